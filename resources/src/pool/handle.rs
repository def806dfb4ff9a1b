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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millpond_core::driver::{Driver, StreamFlags};
    use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, PoolBelow, find_trait};
    use millpond_driver::sim::{SimConfig, SimDevice, SimMachine};

    use super::*;
    use crate::{CudaMemoryResource, Decay, PagesMode, PoolLayer, PoolMemoryResource};

    const MIB: u64 = 1 << 20;
    const LEGACY: StreamRef = StreamRef::LEGACY;

    fn over(device: &Arc<SimDevice>, layer: PoolLayer) -> PoolMemoryResource<CudaMemoryResource> {
        CudaMemoryResource::new(device.clone()).layer(layer).expect("there is room")
    }

    fn give(pool: &dyn DeviceMemoryResource, ptr: DevicePtr, bytes: u64) {
        // SAFETY: each block came from the pool with this size and is freed once.
        unsafe { pool.deallocate_bytes(ptr, bytes, LEGACY) };
    }

    #[test]
    fn a_pool_found_by_its_trait_answers_as_the_pool_itself() {
        let machine = SimMachine::new();
        let [device, other] = [(); 2].map(|()| machine.add_device(SimConfig::with_capacity(1 << 30)));
        let pool = over(&device, PoolLayer::new().initial_bytes(4 * MIB).peers(crate::Peers::None));
        let found = find_trait::<dyn Pool>(&pool).expect("a pool is one");
        for _ in 0..2 {
            let stream = device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
            pool.allocate_bytes(1000, stream).expect("there is room");
        }
        assert_eq!((found.known_streams(), found.maps_pages()), (2, true));
        let over_regions = over(&device, PoolLayer::new().pages(PagesMode::Off));
        assert!(!find_trait::<dyn Pool>(&over_regions).expect("a pool is one").maps_pages());
        assert_eq!((found.pool_bytes(), found.options()), (pool.pool_bytes(), pool.options()));
        found.add_peer(other.device()).expect("the device may have access");
        assert_eq!((found.peers(), pool.peers()), (vec![other.device()], vec![other.device()]));
        let below = find_trait::<dyn PoolBelow>(&pool).expect("a pool is one");
        assert_eq!(below.initial_bytes(), 4 * MIB);
    }

    #[test]
    fn a_pool_found_by_its_trait_caches_blocks() {
        let pool = over(&SimDevice::new(SimConfig::h200()), PoolLayer::new());
        let found = find_trait::<dyn Pool>(&pool).expect("a pool is one");
        let layout = Layout::new(1000);
        assert_eq!(found.allocate_cached(layout, LEGACY), None);
        // After some calls the stream has a cache.
        let take = || pool.allocate(layout, LEGACY).expect("there is room");
        [(); 8].map(|()| take()).into_iter().for_each(|ptr| give(&pool, ptr, 1000));
        let ptr = take();
        // SAFETY: the block came from the pool with this layout and is freed once.
        assert!(unsafe { found.deallocate_cached(ptr, layout, LEGACY) });
        assert_eq!(found.allocate_cached(layout, LEGACY), Some(ptr));
    }

    #[cfg(unix)]
    #[test]
    fn a_pool_found_by_its_trait_exports_blocks() {
        let device = SimDevice::new(SimConfig::h200());
        let pool = over(&device, PoolLayer::new().share(crate::Share::Fd));
        let ptr = pool.allocate_bytes(4 * MIB, LEGACY).expect("there is room");
        let found = find_trait::<dyn Pool>(&pool).expect("a pool is one");
        let exported = found.export_block(ptr, 4 * MIB).expect("the pool may be shared");
        assert_eq!(exported.bytes(), 4 * MIB);
        found.export_block(ptr, 8 * MIB).expect_err("the block has fewer bytes");
    }

    /// Each way to release memory returns the bytes that the pool no longer holds.
    #[test]
    fn a_release_through_a_trait_returns_its_bytes() {
        type Release = fn(&dyn DeviceMemoryResource, Duration) -> Result<u64>;
        let ways: [Release; 3] = [
            |pool, _| find_trait::<dyn Pool>(pool).expect("a pool is one").release_unused(0, LEGACY),
            |pool, _| find_trait::<dyn PoolBelow>(pool).expect("a pool is one").release_unused(0, LEGACY),
            |pool, now| find_trait::<dyn Pool>(pool).expect("a pool is one").decay_step(now),
        ];
        for release in ways {
            let layer = PoolLayer::new().decay(Decay::Over(Duration::from_secs(4)));
            let pool = over(&SimDevice::new(SimConfig::h200()), layer);
            give(&pool, pool.allocate_bytes(64 * MIB, LEGACY).expect("there is room"), 64 * MIB);
            let mut held = pool.pool_bytes();
            for second in 0..60 {
                held -= release(&pool, Duration::from_secs(second)).expect("the device is there");
                assert_eq!(pool.pool_bytes(), held);
            }
            assert_eq!(held, 0);
        }
    }
}
