//! The resources over the pools of CUDA's stream-ordered allocator.

mod checks;
mod layers;
mod memory;
mod options;
mod pinned;

use std::fmt;

use millpond_core::driver::{DeviceAttribute, MemAllocationType, MemLocation, call, has_attribute};
use millpond_core::{
    Accessibility, DeviceMemoryResource, DevicePtr, DriverHandle, Error, ErrorKind, FailureTally, Layout,
    MemoryInfo, ResourceStatistics, Result, StreamRef, Traits, downcast,
};

use crate::debug_as_text::debug_as_text;
use crate::memory_pool::{DriverPool, MemoryPool, MemoryPoolOptions};
use checks::{check_initial, check_initial_and_maximum, check_pools, is_refused};
pub(crate) use layers::{CUDA_ASYNC, CUDA_ASYNC_MANAGED, CUDA_ASYNC_VIEW};
use memory::AsyncMemory;
use options::Sizes;
pub use options::{CudaAsyncOptions, HwDecompress};
pub(crate) use pinned::CUDA_ASYNC_PINNED;
pub use pinned::{CudaAsyncPinnedMemoryResource, CudaAsyncPinnedOptions};

/// The first version of CUDA whose pools support the decompression engine.
const HW_DECOMPRESS_SINCE: i32 = 12_080;

/// Allocates from its own pool of CUDA's stream-ordered allocator, with `cuMemAllocFromPoolAsync` and
/// `cuMemFreeAsync`.
///
/// The driver reuses freed memory, also between streams. When a stream, an event or the device is
/// synchronised, the pool keeps its free memory, unless
/// [`release_threshold`](CudaAsyncOptions::release_threshold) is set. When the resource is dropped, its live
/// blocks are freed, unless a clone of its [`pool`](Self::pool) still exists.
///
/// [`memory_pool`](crate::memory_pool) explains how the pool behaves while a graph is captured.
///
/// ```
/// use millpond_core::{DeviceMemoryResourceExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::{CudaAsyncMemoryResource, CudaAsyncOptions};
///
/// let device = SimDevice::new(SimConfig::h200());
/// let resource = CudaAsyncMemoryResource::new(device, CudaAsyncOptions::default())?;
/// let ptr = resource.allocate_bytes(1000, StreamRef::LEGACY)?;
/// assert_eq!(resource.pool().used_bytes()?, 1024);
/// // SAFETY: the block came from this resource with this size, and nothing uses it.
/// unsafe { resource.deallocate_bytes(ptr, 1000, StreamRef::LEGACY) };
/// # Ok::<(), millpond_core::Error>(())
/// ```
///
#[doc = include_str!("../../layers/cuda_async.md")]
pub struct CudaAsyncMemoryResource {
    memory: AsyncMemory,
    /// The layer's text.
    text: String,
}

impl CudaAsyncMemoryResource {
    /// Creates a pool, and a resource that allocates from the pool.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) if the driver or the device does not support stream-ordered
    /// memory pools; [`OutOfMemory`](ErrorKind::OutOfMemory) if the device has too little memory for the
    /// initial bytes; and the driver's errors.
    pub fn new(driver: DriverHandle, options: CudaAsyncOptions) -> Result<Self> {
        Self::said(driver, options, Sizes::of(&options))
    }

    /// Makes a pool with these options. Its text has the sizes as the caller gave them.
    fn said(driver: DriverHandle, options: CudaAsyncOptions, sizes: Sizes) -> Result<Self> {
        let text = format!("cuda_async{}", options.text(sizes));
        let build = || {
            check_pools(&driver)?;
            check_initial_and_maximum(&driver, &options)?;
            check_initial(&driver, options.initial_bytes)?;
            let pool = make_pool(&driver, options)?;
            if options.initial_bytes > 0 {
                pool.inner().prime(options.initial_bytes)?;
            }
            Ok(pool)
        };
        let pool = build().map_err(|error: Error| error.in_stack(&text))?;
        Ok(Self { memory: AsyncMemory::new(pool, Accessibility::DEVICE), text })
    }

    /// Returns the resource's pool.
    pub fn pool(&self) -> &MemoryPool {
        self.memory.pool()
    }
}

impl fmt::Display for CudaAsyncMemoryResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn make_pool(driver: &DriverHandle, options: CudaAsyncOptions) -> Result<MemoryPool> {
    let of_pool = MemoryPoolOptions::new()
        .handles(options.handles)
        .max_bytes(options.maximum_bytes.unwrap_or(0))
        .release_threshold(options.release_threshold.unwrap_or(u64::MAX))
        .reuse(options.reuse);
    let make = |is_on| MemoryPool::build(DriverHandle::clone(driver), of_pool.hw_decompress(is_on), true);
    let is_wanted = match options.hw_decompress {
        HwDecompress::On => return make(true),
        HwDecompress::Off => false,
        // A simulated device has no version.
        HwDecompress::Auto => {
            matches!(call(&**driver, |driver| driver.version())?, 0 | HW_DECOMPRESS_SINCE..)
        }
    };
    match make(is_wanted) {
        Err(error) if is_wanted && is_refused(&error) => make(false),
        made => made,
    }
}

/// The pool that a [`CudaAsyncViewMemoryResource`] was made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Viewed {
    Default,
    Current,
    Other,
}

/// Allocates from an existing pool of CUDA's stream-ordered allocator, which other code may also use. The
/// pool is the device's default pool, the device's current pool, or any [`MemoryPool`].
///
/// The resource does not change the pool's settings. With CUDA's default settings, a pool returns all free
/// memory to the device at each synchronisation. Blocks that are live when the resource is dropped stay
/// valid.
///
/// ```
/// use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::CudaAsyncViewMemoryResource;
/// use millpond_resources::memory_pool::{MemoryPool, MemoryPoolOptions};
///
/// let pool = MemoryPool::new(SimDevice::new(SimConfig::h200()), MemoryPoolOptions::new())?;
/// let [first, second] = [(); 2].map(|()| CudaAsyncViewMemoryResource::new(pool.clone()));
/// let (first, second) = (first?, second?);
/// assert!(first.is_equal(&second));
/// let ptr = first.allocate_bytes(1000, StreamRef::LEGACY)?;
/// // SAFETY: the block came from an equal resource with this size, and nothing uses it.
/// unsafe { second.deallocate_bytes(ptr, 1000, StreamRef::LEGACY) };
/// # Ok::<(), millpond_core::Error>(())
/// ```
///
#[doc = include_str!("../../layers/cuda_async_view.md")]
pub struct CudaAsyncViewMemoryResource {
    memory: AsyncMemory,
    viewed: Viewed,
}

impl CudaAsyncViewMemoryResource {
    /// Creates a resource that allocates from this pool.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) for an imported pool, and the driver's errors.
    pub fn new(pool: MemoryPool) -> Result<Self> {
        Self::over(pool, Viewed::Other)
    }

    /// Creates a resource that allocates from the device's default pool.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn of_default(driver: DriverHandle) -> Result<Self> {
        Self::over(MemoryPool::default_of(driver)?, Viewed::Default)
    }

    /// Creates a resource that allocates from the pool that is now the device's current pool.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn of_current(driver: DriverHandle) -> Result<Self> {
        Self::over(MemoryPool::current_of(driver)?, Viewed::Current)
    }

    fn over(pool: MemoryPool, viewed: Viewed) -> Result<Self> {
        pool.refuse_import("allocate")?;
        let accessibility =
            if viewed == Viewed::Other { pool.accessibility()? } else { Accessibility::DEVICE };
        Ok(Self { memory: AsyncMemory::new(pool, accessibility), viewed })
    }

    /// Returns the pool from which the resource allocates.
    pub fn pool(&self) -> &MemoryPool {
        self.memory.pool()
    }
}

impl fmt::Display for CudaAsyncViewMemoryResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.viewed {
            Viewed::Default => "cuda_async_view",
            Viewed::Current => "cuda_async_view:pool=current",
            Viewed::Other => "cuda_async_view:pool=other",
        })
    }
}

/// Allocates managed memory from the driver's default pool of managed memory (since CUDA 13.0). Host and
/// device use managed memory at the same address.
///
/// All resources of this type on one device share the pool, so they are equal. Blocks that are live when a
/// resource is dropped stay valid.
///
/// The resource keeps freed memory in the pool. CUDA's default is different: a release threshold of 0, with
/// which the pool returns all free memory at each synchronisation. Releasing and allocating managed memory
/// again can take longer than a program's kernels (RMM's issue 2510). So if the threshold is 0, the resource
/// raises the threshold.
///
/// ```
/// use millpond_core::{Accessibility, DeviceMemoryResource};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::CudaAsyncManagedMemoryResource;
///
/// let managed = CudaAsyncManagedMemoryResource::new(SimDevice::new(SimConfig::h200()))?;
/// assert_eq!(managed.accessibility(), Accessibility::DEVICE_AND_HOST);
/// # Ok::<(), millpond_core::Error>(())
/// ```
///
#[doc = include_str!("../../layers/cuda_async_managed.md")]
pub struct CudaAsyncManagedMemoryResource {
    memory: AsyncMemory,
}

impl CudaAsyncManagedMemoryResource {
    /// Creates a resource that allocates from the driver's default pool of managed memory.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) before CUDA 13.0; [`Unsupported`](ErrorKind::Unsupported) if
    /// the device and the host cannot use managed memory at the same time; and the driver's errors.
    pub fn new(driver: DriverHandle) -> Result<Self> {
        let pool = Self::pool_of(driver).map_err(|error| error.in_stack("cuda_async_managed"))?;
        Ok(Self { memory: AsyncMemory::new(pool, Accessibility::DEVICE_AND_HOST) })
    }

    fn pool_of(driver: DriverHandle) -> Result<MemoryPool> {
        let unsupported = |why: String| Error::new(ErrorKind::Unsupported, why).on_device(driver.device());
        let version = call(&*driver, |driver| driver.version())?;
        let needs = |version: i32| {
            let (major, minor) = (version / 1000, version % 1000 / 10);
            format!(
                "pools of managed memory need CUDA 13.0, but the driver has {major}.{minor}; use the base \
                 `managed`"
            )
        };
        if (1..13_000).contains(&version) {
            return Err(unsupported(needs(version)));
        }
        if !has_attribute(&*driver, DeviceAttribute::ConcurrentManagedAccess)? {
            let why = "host and device cannot use managed memory at the same time here; use the base \
                       `managed`";
            return Err(unsupported(why.to_owned()));
        }
        let pool = MemoryPool::default_for(driver, MemLocation::Device, MemAllocationType::Managed)?;
        if pool.release_threshold()? == 0 {
            pool.set_release_threshold(u64::MAX)?;
        }
        Ok(pool)
    }

    /// Returns the pool from which the resource allocates.
    pub fn pool(&self) -> &MemoryPool {
        self.memory.pool()
    }
}

impl fmt::Display for CudaAsyncManagedMemoryResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cuda_async_managed")
    }
}

macro_rules! async_resource {
    ($($name:ident),*) => {$(
        debug_as_text!($name);

        // SAFETY: the driver hands out disjoint ranges, each ordered for its stream; an over-aligned block
        // lies inside the driver's block. During a capture of the stream, the memory is ready before the call
        // returns.
        #[deny(clippy::missing_trait_methods)]
        unsafe impl DeviceMemoryResource for $name {
            fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
                self.memory.allocate(layout, stream, self)
            }

            unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
                self.memory.deallocate(ptr, layout, stream, self);
            }

            fn driver(&self) -> &DriverHandle {
                self.memory.pool().driver()
            }

            fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
                None
            }

            fn memory_info(&self) -> Result<MemoryInfo> {
                self.memory.pool().memory_info().map_err(|error| error.in_stack(self))
            }

            /// Returns whether the two resources use the same pool.
            fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
                downcast::<Self>(other).is_some_and(|other| self.memory.pool() == other.memory.pool())
            }

            fn is_stream_ordered(&self) -> bool {
                true
            }

            fn accessibility(&self) -> Accessibility {
                self.memory.accessibility()
            }

            /// Returns only the number of misuses, if there are any. The pool reports the bytes in use.
            fn statistics(&self) -> Option<ResourceStatistics> {
                self.memory.statistics()
            }

            fn trim(&self, keep_bytes: u64) -> Result<u64> {
                self.memory.pool().trim(keep_bytes).map_err(|error| error.in_stack(self))
            }

            fn provide(&self, traits: &mut Traits) {
                traits
                    .add::<Self, dyn DriverPool>(|it| it)
                    .add::<Self, FailureTally>(|it| &it.memory.failures)
                    .share::<Self>();
            }
        }

        impl DriverPool for $name {
            fn memory_pool(&self) -> &MemoryPool {
                self.memory.pool()
            }
        }
    )*};
}

async_resource!(
    CudaAsyncMemoryResource,
    CudaAsyncViewMemoryResource,
    CudaAsyncManagedMemoryResource,
    CudaAsyncPinnedMemoryResource
);
