//! Represents the pools of CUDA's stream-ordered allocator.
//!
//! A [`MemoryPool`] is built from [`MemoryPoolOptions`], or is the device's default or current pool. All
//! clones of a `MemoryPool` refer to the same pool. A [`CudaAsyncMemoryResource`] creates its own pool. A
//! [`CudaAsyncViewMemoryResource`] allocates from an existing pool.
//!
//! # Lifetimes
//! - A pool that this library created is destroyed when its last clone is dropped. The live blocks stay valid
//!   until they are freed, because CUDA keeps a destroyed pool as long as it has live blocks.
//! - The default pools belong to the driver, and are never destroyed.
//! - If this library made a pool current, the library does not destroy the pool while it is current. So a
//!   view of the current pool cannot outlive the pool. If another library makes a pool current, that library
//!   must keep the pool.
//! - After an error that loses the device, this library makes no further driver call. After a reset of the
//!   device's context, this library only frees blocks and destroys pools.
//!
//! # Graph captures
//! While a stream captures a graph, CUDA turns each allocation and each free on the stream into a node of the
//! graph. The resources over a pool avoid such nodes:
//! - A request on a capturing stream is served on a separate stream, outside of the capture. The host waits
//!   until the memory is ready on the separate stream. If other streams use all remaining memory, the driver
//!   may make the separate stream wait for them. The host then waits for these streams, too.
//! - A block that is freed on a capturing stream goes into a list. After the capture has ended, the next call
//!   on the same stream frees the block in the order of that stream. In three cases, the host waits for the
//!   device and frees all blocks in the list: if memory is out, in [`trim`](MemoryPool::trim), and when the
//!   pool is dropped.
//!
//! [`CudaAsyncMemoryResource`]: crate::CudaAsyncMemoryResource
//! [`CudaAsyncViewMemoryResource`]: crate::CudaAsyncViewMemoryResource

mod access;
mod current;
mod graph;
mod guard;
mod handles;
mod inner;
mod options;
mod place;
#[cfg(unix)]
mod share;

use std::fmt;
use std::sync::Arc;

use millpond_core::driver::{
    AccessFlags, Driver, DriverResult, HandleTypes, MemAllocationType, MemLocation, MemPool,
    MemPoolAttribute, MemPoolProps, call,
};
use millpond_core::{Accessibility, DriverHandle, Error, ErrorKind, MemoryInfo, Result};

use crate::process;

pub use access::explain_access;
pub use graph::GraphMemory;
pub use guard::CurrentPool;
pub(crate) use inner::Freed;
use inner::{Inner, Origin, POOLS, key};
pub use options::{MemoryPoolOptions, PoolReuse};
use place::Place;
#[cfg(unix)]
pub use share::{ImportedAllocation, ImporterToken, Importers, handshake};

/// A pool of CUDA's stream-ordered allocator. The [module](self) describes how long a pool lives, and how it
/// behaves during graph captures.
///
/// ```
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::memory_pool::{MemoryPool, MemoryPoolOptions};
///
/// let device = SimDevice::new(SimConfig::h200());
/// let pool = MemoryPool::new(device.clone(), MemoryPoolOptions::new())?;
/// pool.set_current()?;
/// assert_eq!(MemoryPool::current_of(device)?, pool);
/// # Ok::<(), millpond_core::Error>(())
/// ```
#[derive(Clone)]
pub struct MemoryPool(Arc<Inner>);

/// A resource that allocates from a pool of the driver. [`find_trait`](millpond_core::find_trait) finds such
/// a resource at the base of a stack.
///
/// ```
/// use millpond_core::{DeviceMemoryResource, find_trait};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::memory_pool::DriverPool;
/// use millpond_resources::{CudaAsyncMemoryResource, CudaAsyncOptions};
///
/// let device = SimDevice::new(SimConfig::h200());
/// let stack = CudaAsyncMemoryResource::new(device, CudaAsyncOptions::default())?;
/// let base = find_trait::<dyn DriverPool>(&stack).expect("the stack stands on a pool");
/// assert_eq!(base.memory_pool(), stack.pool());
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub trait DriverPool {
    /// Returns the pool from which the resource allocates.
    fn memory_pool(&self) -> &MemoryPool;
}

impl MemoryPool {
    /// Creates a pool with these options.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) if the driver or the device does not support such a pool, and
    /// the driver's errors.
    pub fn new(driver: DriverHandle, options: MemoryPoolOptions) -> Result<Self> {
        Self::build(driver, options, false)
    }

    /// Makes a pool. With `frees_at_end`, it frees its live blocks at its end.
    pub(crate) fn build(
        driver: DriverHandle,
        options: MemoryPoolOptions,
        frees_at_end: bool,
    ) -> Result<Self> {
        handles::check(&*driver, options.props)?;
        let _captures = millpond_core::driver::CaptureModeGuard::relaxed(&*driver);
        let raw = call(&*driver, |driver| driver.mem_pool_create(options.props)).map_err(|error| {
            let is_fabric = options.props.handles.contains(HandleTypes::FABRIC);
            let error = if is_fabric { handles::explain(error, &*driver) } else { error };
            place::explain(error, &*driver, options.props.location)
        })?;
        let origin = Origin::Made { props: options.props, frees_at_end };
        let pool = Self::register(driver.clone(), raw, origin);
        if let Some(bytes) = options.release_threshold {
            pool.set_release_threshold(bytes)?;
        }
        if options.reuse != PoolReuse::ALL {
            pool.set_reuse(options.reuse)?;
        }
        Ok(pool)
    }

    /// Returns the default pool of the driver's device.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn default_of(driver: DriverHandle) -> Result<Self> {
        let raw = call(&*driver, |driver| driver.device_get_default_mem_pool())?;
        Ok(Self::known(driver, raw))
    }

    /// Returns the default pool for a location and a kind of memory. A pool other than the device's default
    /// pool needs CUDA 13.0.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) on an older driver, and the driver's errors.
    pub fn default_for(driver: DriverHandle, location: MemLocation, kind: MemAllocationType) -> Result<Self> {
        if (location, kind) == (MemLocation::Device, MemAllocationType::Pinned) {
            return Self::default_of(driver);
        }
        let raw = call(&*driver, |driver| driver.mem_get_default_mem_pool(location, kind))
            .map_err(|error| place::explain(error, &*driver, location))?;
        let pool = Self::known(driver, raw);
        pool.0.place.get_or_init(|| Place { location, kind });
        Ok(pool)
    }

    /// Returns the current pool of the driver's device. `cuMemAllocAsync` allocates from the current pool.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn current_of(driver: DriverHandle) -> Result<Self> {
        // The current pools are kept until the answer is used: a pool that stops being current meanwhile may
        // end, and another pool may get its handle.
        current::looked(driver.health(), |kept| {
            let raw = call(&*driver, |driver| driver.device_get_mem_pool())?;
            let kept = kept.into_iter().find(|pool| pool.raw == raw).map(Self);
            Ok(kept.unwrap_or_else(|| Self::known(driver.clone(), raw)))
        })
    }

    /// Wraps a pool that other code created. The other code must also destroy the pool.
    ///
    /// # Safety
    /// The pool belongs to this driver's context. The pool outlives this value, all clones of this value, and
    /// the resources that allocate from them.
    pub unsafe fn from_raw(driver: DriverHandle, raw: MemPool) -> Self {
        Self::known(driver, raw)
    }

    /// Returns the existing value for this pool, or a new value that does not own the pool.
    fn known(driver: DriverHandle, raw: MemPool) -> Self {
        let found = POOLS.get(&key(&driver, raw)).and_then(|pool| pool.upgrade());
        found.map_or_else(|| Self::register(driver, raw, Origin::Elsewhere), Self)
    }

    fn register(driver: DriverHandle, raw: MemPool, origin: Origin) -> Self {
        let pool = Arc::new(Inner::new(driver, raw, origin));
        let known = {
            let mut entry = POOLS.entry(key(&pool.driver, raw)).or_default();
            // Another thread may have come first. A pool that was just made is a new one, even if a view
            // still exists of an earlier pool with the same handle.
            match entry.upgrade() {
                Some(known) if origin == Origin::Elsewhere => known,
                known => {
                    *entry = Arc::downgrade(&pool);
                    drop(entry); // before `known`, which may be the last of its pool
                    drop(known);
                    return Self(pool);
                }
            }
        };
        Self(known)
    }

    /// Makes this pool the current pool of its device, for the whole process. The pool is not destroyed while
    /// it is current.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) for an imported pool, and the driver's errors.
    pub fn set_current(&self) -> Result<()> {
        self.refuse_import("be a device's current pool")?;
        current::set(&self.0)
    }

    /// Returns the raw handle of the pool (`CUmemoryPool` as a number).
    pub fn raw(&self) -> MemPool {
        self.0.raw
    }

    /// Returns the driver of the pool's device.
    pub fn driver(&self) -> &DriverHandle {
        &self.0.driver
    }

    /// Returns whether the pool was imported from another process.
    pub fn is_imported(&self) -> bool {
        self.0.origin == Origin::Imported
    }

    /// Returns the properties with which the pool was created. For a pool that other code created, this
    /// method needs CUDA 13.2.
    ///
    /// # Errors
    /// The driver's errors. A driver before CUDA 13.2 returns an error for a pool that other code created.
    pub fn properties(&self) -> Result<MemPoolProps> {
        if let Origin::Made { props, .. } = self.0.origin {
            return Ok(props);
        }
        let [kind, handles, location, id, max_bytes, hw_decompress] = [
            MemPoolAttribute::AllocationType,
            MemPoolAttribute::ExportHandleTypes,
            MemPoolAttribute::LocationType,
            MemPoolAttribute::LocationId,
            MemPoolAttribute::MaxPoolSize,
            MemPoolAttribute::HwDecompressEnabled,
        ]
        .map(|attribute| self.get(attribute));
        let managed = u64::from(MemAllocationType::Managed.cuda_number());
        let kind = if kind? == managed { MemAllocationType::Managed } else { MemAllocationType::Pinned };
        let location = MemLocation::from_cuda(location?, id?).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "this version of millpond does not know the pool's location")
        })?;
        Ok(MemPoolProps::default()
            .kind(kind)
            .handles(HandleTypes::from_bits(handles? as u32))
            .location(location)
            .max_bytes(max_bytes?)
            .hw_decompress(hw_decompress? != 0))
    }

    // --- The pool's memory ---

    /// Releases free memory to the device until the pool holds at most `keep_bytes`. The call waits for the
    /// device, unless the capture of a graph prevents the wait. Returns the number of bytes released.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) for an imported pool, and the driver's errors.
    pub fn trim(&self, keep_bytes: u64) -> Result<u64> {
        self.refuse_import("be trimmed")?;
        self.0.trim(keep_bytes)
    }

    /// Returns how many bytes the pool may keep when the host waits for a stream, an event or the device.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) for an imported pool, and the driver's errors.
    pub fn release_threshold(&self) -> Result<u64> {
        self.get(MemPoolAttribute::ReleaseThreshold)
    }

    /// Sets how many bytes the pool may keep. If the pool holds more when the host waits for a stream, an
    /// event or the device, it returns free memory to the device. CUDA's default is 0. With `u64::MAX`, the
    /// pool keeps all memory.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) for an imported pool, and the driver's errors.
    pub fn set_release_threshold(&self, bytes: u64) -> Result<()> {
        self.set(MemPoolAttribute::ReleaseThreshold, bytes)
    }

    /// Returns the number of bytes that the pool holds, live and free.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) for an imported pool, and the driver's errors.
    pub fn reserved_bytes(&self) -> Result<u64> {
        self.get(MemPoolAttribute::ReservedMemCurrent)
    }

    /// Returns the highest number of bytes that the pool has held.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) for an imported pool, and the driver's errors.
    pub fn reserved_high(&self) -> Result<u64> {
        self.get(MemPoolAttribute::ReservedMemHigh)
    }

    /// Resets [`reserved_high`](Self::reserved_high) to the bytes that the pool holds now.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) for an imported pool, and the driver's errors.
    pub fn reset_reserved_high(&self) -> Result<()> {
        self.set(MemPoolAttribute::ReservedMemHigh, 0)
    }

    /// Returns the number of bytes in the pool's live blocks.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) for an imported pool, and the driver's errors.
    pub fn used_bytes(&self) -> Result<u64> {
        self.get(MemPoolAttribute::UsedMemCurrent)
    }

    /// Returns the highest number of bytes that were live in the pool.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) for an imported pool, and the driver's errors.
    pub fn used_high(&self) -> Result<u64> {
        self.get(MemPoolAttribute::UsedMemHigh)
    }

    /// Resets [`used_high`](Self::used_high) to the number of bytes that are live now.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) for an imported pool, and the driver's errors.
    pub fn reset_used_high(&self) -> Result<()> {
        self.set(MemPoolAttribute::UsedMemHigh, 0)
    }

    /// Returns how the driver may reuse memory that other streams have freed.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) for an imported pool, and the driver's errors.
    pub fn reuse(&self) -> Result<PoolReuse> {
        Ok(PoolReuse {
            follow_event_dependencies: self.get(MemPoolAttribute::ReuseFollowEventDependencies)? != 0,
            opportunistic: self.get(MemPoolAttribute::ReuseAllowOpportunistic)? != 0,
            internal_dependencies: self.get(MemPoolAttribute::ReuseAllowInternalDependencies)? != 0,
        })
    }

    /// Sets how the driver may reuse memory that other streams have freed.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) for an imported pool, and the driver's errors.
    pub fn set_reuse(&self, reuse: PoolReuse) -> Result<()> {
        let PoolReuse { follow_event_dependencies, opportunistic, internal_dependencies } = reuse;
        self.set(MemPoolAttribute::ReuseFollowEventDependencies, follow_event_dependencies.into())?;
        self.set(MemPoolAttribute::ReuseAllowOpportunistic, opportunistic.into())?;
        self.set(MemPoolAttribute::ReuseAllowInternalDependencies, internal_dependencies.into())
    }

    // --- For the resources ---

    pub(crate) fn inner(&self) -> &Inner {
        &self.0
    }

    /// Returns who can access the pool's memory now.
    pub(crate) fn accessibility(&self) -> Result<Accessibility> {
        let takes = self.call(|_| self.0.place())?.takes();
        if takes != Accessibility::HOST {
            return Ok(takes);
        }
        let is_reached = self.access(self.driver().device())? == AccessFlags::ReadWrite;
        Ok(if is_reached { Accessibility::DEVICE_AND_HOST } else { Accessibility::HOST })
    }

    /// Returns the memory of the pool's location; memory that the pool can reuse counts as free.
    pub(crate) fn memory_info(&self) -> Result<MemoryInfo> {
        let MemoryInfo { free, total } = self.call(|driver| self.0.place()?.memory_info(driver))?;
        let idle = self.reserved_bytes()?.saturating_sub(self.used_bytes()?);
        let free = free.saturating_add(idle).saturating_add(self.0.deferred_bytes());
        Ok(MemoryInfo { free: free.min(total), total })
    }

    /// CUDA refuses the attributes of an imported pool (driver 580, `benches/rules/pools.cpp`, 2026-11-27),
    /// except its properties (since CUDA 13.2).
    fn refuse_import_of(&self, attribute: MemPoolAttribute) -> Result<()> {
        use MemPoolAttribute::{
            ReleaseThreshold, ReuseAllowInternalDependencies, ReuseAllowOpportunistic,
            ReuseFollowEventDependencies,
        };
        match attribute {
            ReleaseThreshold => self.refuse_import("have a release threshold"),
            ReuseFollowEventDependencies | ReuseAllowOpportunistic | ReuseAllowInternalDependencies => {
                self.refuse_import("hand out freed memory")
            }
            count if count.is_count() => self.refuse_import("count its memory"),
            _ => Ok(()),
        }
    }

    fn get(&self, attribute: MemPoolAttribute) -> Result<u64> {
        self.refuse_import_of(attribute)?;
        self.call(|driver| driver.mem_pool_get_attribute(self.raw(), attribute))
    }

    fn set(&self, attribute: MemPoolAttribute, value: u64) -> Result<()> {
        self.refuse_import_of(attribute)?;
        self.call(|driver| driver.mem_pool_set_attribute(self.raw(), attribute, value))
    }

    fn call<T>(&self, body: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> Result<T> {
        self.0.call(body)
    }

    pub(crate) fn refuse_import(&self, what: &str) -> Result<()> {
        if !self.is_imported() {
            return Ok(());
        }
        let message = format!("an imported pool cannot {what}; do this in the process that made the pool");
        Err(Error::new(ErrorKind::Unsupported, message).on_device(self.0.driver.device()))
    }
}

/// After a reset of the context, no pool is current any more. A pool that was current is then kept only by
/// its own clones.
impl Drop for MemoryPool {
    fn drop(&mut self) {
        if self.0.is_elsewhere() {
            // In a forked child, the pool stays: other threads may have been in its parts during the fork.
            return process::leave(&self.0);
        }
        if !self.0.driver.was_reset() {
            return;
        }
        current::forget(self.0.driver.health());
    }
}

/// Two values are equal if they refer to the same pool.
impl PartialEq for MemoryPool {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for MemoryPool {}

impl fmt::Debug for MemoryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let handle = self.0.raw.0;
        f.debug_struct("MemoryPool")
            .field("device", &self.0.driver.device())
            .field("handle", &format_args!("{handle:#x}"))
            .field("origin", &self.0.origin)
            .finish_non_exhaustive()
    }
}
