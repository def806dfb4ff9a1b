//! Makes the map of a whole stack from the maps of its layers.

use std::collections::BTreeMap;

use crate::find::stack_of;
use crate::{
    ALLOCATION_ALIGNMENT, BlockInfo, DeviceMemoryResource, MemoryBlock, MemoryMap, MemorySegment,
    ReportsMemory, align_up,
};

/// Returns the segments and blocks of a resource and everything below it.
pub(crate) fn map_of(resource: &dyn DeviceMemoryResource) -> Option<MemoryMap> {
    let layers: Vec<_> = stack_of(resource).with::<dyn ReportsMemory>().collect();
    let mut known: Option<BTreeMap<u64, BlockInfo>> = None;
    // If two layers disagree, the outer one wins.
    for blocks in layers.iter().rev().filter_map(|layer| layer.live_blocks()) {
        let known = known.get_or_insert_default();
        known.extend(blocks.into_iter().map(|block| (block.address, block)));
    }
    let maps = layers.iter().rev().filter_map(|layer| layer.memory_map());
    let Some(mut map) = maps.reduce(MemoryMap::divided) else {
        // Without a pool, each block is a segment.
        let alone = |block: BlockInfo| {
            let bytes = align_up(block.bytes, ALLOCATION_ALIGNMENT).unwrap_or(block.bytes);
            let mut alone = MemoryBlock::new(block.address, bytes, block.bytes);
            describe(&mut alone, block);
            MemorySegment::new(vec![alone])
        };
        return known.map(|known| MemoryMap::new(known.into_values().map(alone).collect(), None));
    };
    if let Some(mut known) = known {
        for block in map.live_blocks_mut() {
            known.remove(&block.address).into_iter().for_each(|info| describe(block, info));
        }
    }
    Some(map)
}

/// Adds the facts of a layer about a block.
fn describe(block: &mut MemoryBlock, known: BlockInfo) {
    block.stream = known.stream.or(block.stream);
    block.scope = known.scope.or(block.scope);
    block.tag = known.tag.or(block.tag.take());
    block.backtrace = known.backtrace.or(block.backtrace.take());
}
