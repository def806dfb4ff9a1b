//! What a pool says about its memory at any time.

use millpond_core::{BlockInfo, DeviceMemoryResource, DevicePtr, LayerMemory, ReportsMemory};

use crate::pool::PoolMemoryResource;

impl<R: DeviceMemoryResource> ReportsMemory for PoolMemoryResource<R> {
    fn layer_memory(&self) -> LayerMemory {
        let mut memory = self.central.layer_memory();
        memory.largest_allocation = Some(self.shared.largest_block());
        memory
    }

    fn block_at(&self, ptr: DevicePtr) -> Option<BlockInfo> {
        let bytes = self.shared.block_map.find(ptr.address())?.requested();
        let mut block = BlockInfo::default();
        (block.address, block.bytes) = (ptr.address(), bytes);
        (bytes > 0).then_some(block)
    }
}
