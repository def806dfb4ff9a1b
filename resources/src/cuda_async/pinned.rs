//! The resource over a pool of pinned host memory.

use std::fmt;
use std::sync::Arc;

use millpond_core::driver::{AccessFlags, HandleTypes, MemLocation, call};
use millpond_core::stack::{LayerEntry, LayerKind, Params};
use millpond_core::{Accessibility, ByteSize, DriverHandle, Error, ErrorKind, Result};

use super::checks::{check_initial_and_maximum, check_pools, is_refused};
use super::memory::AsyncMemory;
use super::options::{CudaAsyncOptions, Sizes, handles_of};
use crate::memory_pool::{MemoryPool, MemoryPoolOptions, PoolReuse};

/// The options of a [`CudaAsyncPinnedMemoryResource`].
///
/// ```
/// use millpond_resources::CudaAsyncPinnedOptions;
///
/// let options = CudaAsyncPinnedOptions::default().numa(Some(0)).maximum_bytes(Some(1 << 30));
/// assert_eq!(options.to_string(), ":numa=0,max=1GiB");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CudaAsyncPinnedOptions {
    /// The NUMA node of the host (since CUDA 12.6). With `None` (the default), any node, which needs CUDA
    /// 13.0.
    pub numa: Option<i32>,
    /// The number of bytes that the pool allocates when it is created (default 0).
    pub initial_bytes: u64,
    /// The number of bytes that the pool keeps at a synchronisation. With `None` (the default), the pool
    /// keeps all memory.
    pub release_threshold: Option<u64>,
    /// The most bytes that the pool may hold. With `None` (the default), only the host's memory limits the
    /// pool.
    pub maximum_bytes: Option<u64>,
    /// How the driver may reuse memory that other streams have freed. By default, the driver may use all
    /// three methods that [`PoolReuse`] lists.
    pub reuse: PoolReuse,
    /// The types of handles with which other processes can import the pool (default: no types).
    pub handles: HandleTypes,
}

impl CudaAsyncPinnedOptions {
    millpond_core::setters! {
        numa: Option<i32>,
        initial_bytes: u64,
        release_threshold: Option<u64>,
        maximum_bytes: Option<u64>,
        reuse: PoolReuse,
        handles: HandleTypes,
    }

    /// Returns the options that a pool of device memory has, too.
    fn common(&self) -> CudaAsyncOptions {
        let Self { initial_bytes, release_threshold, maximum_bytes, reuse, handles, .. } = *self;
        CudaAsyncOptions {
            initial_bytes,
            release_threshold,
            maximum_bytes,
            reuse,
            handles,
            ..CudaAsyncOptions::default()
        }
    }
}

/// Prints the options as parameters of a stack's text. Options with their default value are left out.
impl fmt::Display for CudaAsyncPinnedOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let common = self.common();
        let common = common.text(Sizes::of(&common));
        match self.numa {
            Some(node) => write!(f, ":numa={node}{}", common.replacen(':', ",", 1)),
            None => f.write_str(&common),
        }
    }
}

/// Allocates pinned host memory in stream order, from its own pool of the driver. Host and device use the
/// memory at the same address. RMM and CCCL call such a pool `pinned_memory_pool`.
///
/// The device that builds the resource can access the memory. [`MemoryPool::set_access`] lets other devices
/// access it, too. Host code may use a block after it has synchronised the stream of the allocation. When the
/// resource is dropped, its live blocks are freed, unless a clone of its [`pool`](Self::pool) still exists.
///
/// ```
/// use millpond_core::{Accessibility, DeviceMemoryResource};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::{CudaAsyncPinnedMemoryResource, CudaAsyncPinnedOptions};
///
/// let device = SimDevice::new(SimConfig::h200());
/// let pinned = CudaAsyncPinnedMemoryResource::new(device, CudaAsyncPinnedOptions::default())?;
/// assert_eq!(pinned.accessibility(), Accessibility::DEVICE_AND_HOST);
/// # Ok::<(), millpond_core::Error>(())
/// ```
///
#[doc = include_str!("../../layers/cuda_async_pinned.md")]
pub struct CudaAsyncPinnedMemoryResource {
    pub(super) memory: AsyncMemory,
    /// The layer's text.
    text: String,
}

impl CudaAsyncPinnedMemoryResource {
    /// Creates a pool, and a resource that allocates from the pool.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) if the driver has no pools of host memory, or none without a
    /// NUMA node; [`OutOfMemory`](ErrorKind::OutOfMemory) if the host has too little memory for the initial
    /// bytes; and the driver's errors.
    pub fn new(driver: DriverHandle, options: CudaAsyncPinnedOptions) -> Result<Self> {
        let text = format!("cuda_async_pinned{options}");
        let pool = Self::pool_of(&driver, options).map_err(|error| error.in_stack(&text))?;
        Ok(Self { memory: AsyncMemory::new(pool, Accessibility::DEVICE_AND_HOST), text })
    }

    fn pool_of(driver: &DriverHandle, options: CudaAsyncPinnedOptions) -> Result<MemoryPool> {
        check_pools(driver)?;
        check_initial_and_maximum(driver, &options.common())?;
        let version = call(&**driver, |driver| driver.version())?;
        let said = || format!("{}.{}", version / 1000, version % 1000 / 10);
        let unsupported = |why: String| Error::new(ErrorKind::Unsupported, why).on_device(driver.device());
        // A simulated device has no version.
        if options.numa.is_none() && (1..13_000).contains(&version) {
            return Err(unsupported(format!(
                "a pool of pinned memory on any NUMA node needs CUDA 13.0, but the driver has {}; name a \
                 node, as in `cuda_async_pinned:numa=0`, or use the base `pinned_host`",
                said()
            )));
        }
        let of_pool = MemoryPoolOptions::new()
            .location(options.numa.map_or(MemLocation::Host, MemLocation::HostNuma))
            .handles(options.handles)
            .max_bytes(options.maximum_bytes.unwrap_or(0))
            .release_threshold(options.release_threshold.unwrap_or(u64::MAX))
            .reuse(options.reuse);
        let pool = MemoryPool::build(DriverHandle::clone(driver), of_pool, true).map_err(|error| {
            // An error about the NUMA node already says what to do.
            if !is_refused(&error) || error.kind() == ErrorKind::InvalidArgument {
                return error;
            }
            let node = options.numa.map_or(String::new(), |node| format!(" on NUMA node {node}"));
            let driver = if version == 0 { String::new() } else { format!(" (CUDA {})", said()) };
            unsupported(format!(
                "the driver{driver} makes no pool of pinned host memory{node} with these options; use the \
                 base `pinned_host`"
            ))
            .caused_by(error)
        })?;
        pool.set_access(AccessFlags::ReadWrite, &[driver.device()])?;
        if options.initial_bytes > 0 {
            pool.inner().prime(options.initial_bytes)?;
        }
        Ok(pool)
    }

    /// Returns the resource's pool.
    pub fn pool(&self) -> &MemoryPool {
        self.memory.pool()
    }
}

impl fmt::Display for CudaAsyncPinnedMemoryResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Builds `cuda_async_pinned` from text.
pub(crate) const CUDA_ASYNC_PINNED: LayerEntry = LayerEntry {
    name: "cuda_async_pinned",
    about: "a stream-ordered pool of pinned host memory (cuMemAllocFromPoolAsync)",
    params: &[
        ("numa", "the NUMA node of the host, since CUDA 12.6 (default: any node, since CUDA 13.0)"),
        ("initial", "bytes that the pool allocates when it is built (default 0)"),
        ("release_threshold", "bytes that the pool keeps at a synchronisation (default: all)"),
        ("max", "the most bytes that the pool may hold (default: the host's memory)"),
        (
            "reuse",
            "how the driver reuses memory that other streams have freed: \
             follow/opportunistic/internal (default), some of them, or own",
        ),
        (
            "handles",
            "handles with which other processes can import the pool: none (default), fd, fabric, fd/fabric",
        ),
    ],
    kind: LayerKind::ReadBase(|params| {
        let handles = params.text("handles")?.map(|text| handles_of(text, "cuda_async_pinned"));
        let options = CudaAsyncPinnedOptions {
            numa: params.get("numa")?,
            initial_bytes: bytes_of(params, "initial")?.unwrap_or(0),
            release_threshold: bytes_of(params, "release_threshold")?,
            maximum_bytes: bytes_of(params, "max")?,
            reuse: params.get("reuse")?.unwrap_or_default(),
            handles: handles.transpose()?.unwrap_or_default(),
        };
        Ok(Box::new(move |driver, _| {
            Ok(Arc::new(CudaAsyncPinnedMemoryResource::new(Arc::clone(driver), options)?))
        }))
    }),
};

/// Reads a size. A percentage would be one of the device's memory.
fn bytes_of(params: &Params<'_>, key: &str) -> Result<Option<u64>> {
    match params.get(key)? {
        None => Ok(None),
        Some(ByteSize::Bytes(bytes)) => Ok(Some(bytes)),
        Some(share) => Err(Error::invalid_stack(format!(
            "`{key}={share}` of `cuda_async_pinned`: write a size such as 1GiB; a percentage is one of the \
             device's memory"
        ))),
    }
}
