//! The trait [`Pool`], with which callers reach a pool in a stack of unknown type.

use std::time::Duration;

use millpond_core::{DeviceId, DevicePtr, Layout, Result, StreamRef};

use crate::pool::options::PoolOptions;

/// The methods of a [`PoolMemoryResource`](crate::PoolMemoryResource), for callers that do not know the type
/// of the stack. [`find_trait`](millpond_core::find_trait) finds the pool in the stack.
///
/// ```
/// use millpond_core::stack::{LayerTable, StackSpec};
/// use millpond_core::{DeviceMemoryResourceExt, DriverHandle, StreamRef, find_trait};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::{CudaMemoryResource, FixedSizeLayer, LAYERS, Pool, PoolLayer};
///
/// let driver: DriverHandle = SimDevice::new(SimConfig::h200());
/// let built = CudaMemoryResource::new(driver.clone())
///     .layer(PoolLayer::new())?
///     .layer(FixedSizeLayer::new())?
///     .into_any();
/// let table = LayerTable::new(LAYERS.iter().copied());
/// let read = "cuda+pool+fixed_size".parse::<StackSpec>()?.build(&table, &driver)?;
/// for stack in [built, read] {
///     stack.allocate_bytes(1000, StreamRef::LEGACY)?;
///     let pool = find_trait::<dyn Pool>(&stack).expect("there is one");
///     assert!(pool.pool_bytes() > 0);
/// }
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub trait Pool {
    /// See [`PoolMemoryResource::pool_bytes`](crate::PoolMemoryResource::pool_bytes).
    fn pool_bytes(&self) -> u64;

    /// See [`PoolMemoryResource::known_streams`](crate::PoolMemoryResource::known_streams).
    fn known_streams(&self) -> usize;

    /// See [`PoolMemoryResource::maps_pages`](crate::PoolMemoryResource::maps_pages).
    fn maps_pages(&self) -> bool;

    /// See [`PoolMemoryResource::options`](crate::PoolMemoryResource::options).
    fn options(&self) -> PoolOptions;

    /// See [`PoolMemoryResource::peers`](crate::PoolMemoryResource::peers).
    fn peers(&self) -> Vec<DeviceId>;

    /// See [`PoolMemoryResource::add_peer`](crate::PoolMemoryResource::add_peer).
    ///
    /// # Errors
    /// The errors of [`PoolMemoryResource::add_peer`](crate::PoolMemoryResource::add_peer).
    fn add_peer(&self, device: DeviceId) -> Result<()>;

    /// See [`PoolMemoryResource::export_block`](crate::PoolMemoryResource::export_block).
    ///
    /// # Errors
    /// The errors of [`PoolMemoryResource::export_block`](crate::PoolMemoryResource::export_block).
    #[cfg(unix)]
    fn export_block(&self, ptr: DevicePtr, bytes: u64) -> Result<crate::share::ExportedBlock>;

    /// See [`PoolMemoryResource::decay_step`](crate::PoolMemoryResource::decay_step).
    ///
    /// # Errors
    /// The errors of [`PoolMemoryResource::decay_step`](crate::PoolMemoryResource::decay_step).
    fn decay_step(&self, now: Duration) -> Result<u64>;

    /// See [`PoolMemoryResource::release_unused`](crate::PoolMemoryResource::release_unused).
    ///
    /// # Errors
    /// The errors of [`PoolMemoryResource::release_unused`](crate::PoolMemoryResource::release_unused).
    fn release_unused(&self, keep_bytes: u64, stream: StreamRef) -> Result<u64>;

    /// Allocates a block from the cache that the calling thread has for the stream. Returns `None` if this
    /// cache has no block that fits.
    ///
    /// This method calls neither the driver nor the upstream. It does not wait for another thread's call of
    /// the driver or the upstream. Such a call may need a lock that the caller of this method holds, such as
    /// Python's global lock. So the caller may keep its lock during this method.
    fn allocate_cached(&self, layout: Layout, stream: StreamRef) -> Option<DevicePtr>;

    /// Frees a block into the cache that the calling thread has for the stream. Returns whether the cache
    /// accepted the block. If the result is `false`, the block is still live. Like
    /// [`allocate_cached`](Self::allocate_cached), this method calls neither the driver nor the upstream, and
    /// the caller may hold a lock.
    ///
    /// # Safety
    /// The conditions of
    /// [`DeviceMemoryResource::deallocate`](millpond_core::DeviceMemoryResource::deallocate).
    unsafe fn deallocate_cached(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) -> bool;
}
