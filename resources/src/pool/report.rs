//! Reports a pool's memory at any time.

use millpond_core::{BlockInfo, DeviceMemoryResource, DevicePtr, LayerMemory, MemoryMap, ReportsMemory};

use crate::pool::PoolMemoryResource;

impl<R: DeviceMemoryResource> ReportsMemory for PoolMemoryResource<R> {
    fn layer_memory(&self) -> LayerMemory {
        let mut memory = self.central.layer_memory();
        memory.largest_allocation = Some(self.shared.largest_block());
        memory
    }

    fn layer_figures(&self) -> LayerMemory {
        let mut memory = self.central.layer_figures();
        memory.largest_allocation = Some(self.shared.largest_block());
        memory
    }

    fn block_at(&self, ptr: DevicePtr) -> Option<BlockInfo> {
        let bytes = self.shared.block_map.find(ptr.address())?.requested();
        let mut block = BlockInfo::default();
        (block.address, block.bytes) = (ptr.address(), bytes);
        (bytes > 0).then_some(block)
    }

    fn memory_map(&self) -> Option<MemoryMap> {
        Some(self.central.memory_map())
    }
}

#[cfg(test)]
mod tests {
    use millpond_core::{DeviceMemoryResourceExt, StreamRef};
    use millpond_driver::sim::{SimConfig, SimDevice};

    use super::*;
    use crate::{CudaMemoryResource, PoolLayer};

    /// A block is found at its start while it is in use, even if it comes from a cache.
    #[test]
    fn a_block_is_found_while_it_is_in_use() {
        let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
        let pool = cuda.layer(PoolLayer::new()).expect("an empty pool");
        let block_at = |ptr| ReportsMemory::block_at(&pool, ptr);
        let mut last = None;
        for round in 0..4 {
            let ptr = pool.allocate_bytes(1000, StreamRef::LEGACY).expect("there is room");
            let found = block_at(ptr).map(|block| (block.address, block.bytes));
            assert_eq!(found, Some((ptr.address(), 1000)), "round {round}");
            assert!(block_at(DevicePtr::new(ptr.address() + 256)).is_none(), "no block starts there");
            // SAFETY: the block came from the pool with this size and is freed once.
            unsafe { pool.deallocate_bytes(ptr, 1000, StreamRef::LEGACY) };
            assert!(block_at(ptr).is_none(), "it is freed, or in a cache");
            last = Some(ptr);
        }
        let held = pool.shared.thread_caches.my_cache(pool.id).counts.totals().blocks_held;
        assert_eq!((held, block_at(last.expect("there were blocks"))), (1, None));
    }

    /// The debug text names the pool's upstream.
    #[test]
    fn the_debug_text_shows_upstream_and_no_blocks() {
        let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
        let pool = cuda.layer(PoolLayer::new()).expect("an empty pool");
        let text = |part: &dyn std::fmt::Debug| format!("{part:?}");
        let empty = text(&pool.central);
        assert!(empty.contains("CudaMemoryResource") && empty.contains("reuse"), "{empty}");
        assert!(text(&**pool.central.core()).contains("reuse"));
        pool.allocate_bytes(1000, StreamRef::LEGACY).expect("there is room");
        assert_eq!(text(&pool.central), empty);
    }
}
