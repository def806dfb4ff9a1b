//! The addresses of a stack's memory at one moment: its segments, and the blocks in them.

/// Lists the memory of a stack by address: its segments and blocks. A [`MemoryReport`](crate::MemoryReport)
/// contains only sums.
///
/// [`DeviceMemoryResourceExt::memory_map`](crate::DeviceMemoryResourceExt::memory_map) makes a map at any
/// time. To make the map, a pool holds its lock while it copies one entry for each block. Other threads that
/// need the lock wait for the end of the copy. If other threads allocate during the copy, the map may list
/// blocks that these threads take from their caches as free.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct MemoryMap {
    /// The segments, in the order of their addresses. They do not overlap.
    pub segments: Vec<MemorySegment>,
    /// The numbers of the pools that hold these segments. [`SegmentEvent`](crate::segments::SegmentEvent)
    /// uses the same numbers.
    pub pools: Vec<u64>,
}

/// Contiguous memory that a pool holds, divided into blocks without a gap.
///
/// A pool that maps pages may build one block from several pieces of memory. Such a block is a segment of its
/// own. No other segment lists the block's pieces, so the map lists each byte of the device once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct MemorySegment {
    /// The address at which the segment starts.
    pub address: u64,
    /// The size of the segment in bytes.
    pub bytes: u64,
    /// Whether the pool mapped the memory itself. The pool can then return any part of the segment to the
    /// driver.
    pub is_mapped: bool,
    /// The address and the size in bytes of each piece, as the pool first mapped the piece. Only a segment
    /// that the pool built from several pieces has entries here. For any other segment, the list is empty.
    pub pieces: Vec<(u64, u64)>,
    /// The blocks, in the order of their addresses.
    pub blocks: Vec<MemoryBlock>,
}

/// A live or free block of a segment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct MemoryBlock {
    /// The address at which the block starts.
    pub address: u64,
    /// The size of the block in bytes, after the pool rounded the request up.
    pub bytes: u64,
    /// The size in bytes that the program requested; 0 for a free block.
    pub requested_bytes: u64,
    /// The state of the block.
    pub state: BlockState,
    /// For a live block, the raw handle of the stream on which the program allocated the block. For a free
    /// block, the raw handle of the only stream that may reuse the block. `None` if any stream may reuse the
    /// free block, or if no layer records the stream.
    pub stream: Option<u64>,
    /// The number of the block's capture scope, if the block belongs to a captured graph.
    pub scope: Option<u64>,
    /// The tag of the thread that allocated the block.
    pub tag: Option<String>,
    /// The backtrace of the block's allocation.
    pub backtrace: Option<String>,
}

/// The state of a block in a [`MemoryMap`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum BlockState {
    /// The block is free. [`MemoryBlock::stream`] says which stream may reuse the block.
    #[default]
    Free,
    /// The program uses the block.
    Active,
    /// The program freed the block, but other streams may still use it.
    Waiting,
}

impl MemoryBlock {
    /// Creates a block with this address and size in bytes. The block is live if `requested_bytes` is not 0.
    pub const fn new(address: u64, bytes: u64, requested_bytes: u64) -> Self {
        let state = if requested_bytes > 0 { BlockState::Active } else { BlockState::Free };
        Self { address, bytes, requested_bytes, state, stream: None, scope: None, tag: None, backtrace: None }
    }

    const fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes)
    }
}

impl MemorySegment {
    /// Creates a segment from these blocks. Each block starts where the previous block ends.
    pub fn new(blocks: Vec<MemoryBlock>) -> Self {
        let address = blocks.first().map_or(0, |first| first.address);
        let bytes = blocks.iter().map(|block| block.bytes).fold(0, u64::saturating_add);
        Self { address, bytes, blocks, ..Self::default() }
    }

    fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes)
    }
}

impl MemoryMap {
    /// Creates a map of these segments. `pool` is the number of the pool that holds the segments.
    pub fn new(mut segments: Vec<MemorySegment>, pool: Option<u64>) -> Self {
        segments.sort_unstable_by_key(|segment| segment.address);
        Self { segments, pools: pool.into_iter().collect() }
    }

    /// Returns the sum of the sizes of all segments, in bytes. If the sum overflows, returns `u64::MAX`.
    pub fn bytes_reserved(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).fold(0, u64::saturating_add)
    }

    /// Returns the blocks that are not free, in the order of their addresses.
    pub fn live_blocks(&self) -> impl Iterator<Item = &MemoryBlock> {
        self.segments.iter().flat_map(|it| &it.blocks).filter(|block| block.state != BlockState::Free)
    }

    /// Returns the blocks that are not free, as mutable references. A caller can add facts to the blocks,
    /// such as tags.
    pub fn live_blocks_mut(&mut self) -> impl Iterator<Item = &mut MemoryBlock> {
        let blocks = self.segments.iter_mut().flat_map(|segment| &mut segment.blocks);
        blocks.filter(|block| block.state != BlockState::Free)
    }

    /// Adds the segments of another resource. Leaves out segments that overlap segments of this map.
    #[must_use]
    pub fn beside(mut self, other: Self) -> Self {
        let known = self.segments.len();
        for segment in other.segments {
            let before = self.segments[..known].partition_point(|it| it.address < segment.end());
            if before.checked_sub(1).is_none_or(|at| self.segments[at].end() <= segment.address) {
                self.segments.push(segment);
            }
        }
        self.segments.sort_unstable_by_key(|segment| segment.address);
        self.pools.extend(other.pools);
        self.pools.sort_unstable();
        self.pools.dedup();
        self
    }

    /// Combines this map of a lower pool with the map `above` of an upper pool. Some segments of the upper
    /// pool are live blocks of the lower pool. The method replaces each such block by the blocks of the
    /// segment, and adds the other segments of `above`.
    #[must_use]
    pub fn divided(mut self, above: Self) -> Self {
        let has_pools = !self.pools.is_empty();
        let (all, mut apart) = (above.segments.len(), Self::default());
        for mut segment in above.segments {
            let Some((outer, at)) = self.block_around(&segment) else {
                apart.segments.push(segment);
                continue;
            };
            let blocks = &mut self.segments[outer].blocks;
            // The lower pool may have rounded the segment up: the first and the last block get these bytes.
            let (start, end) = (blocks[at].address, blocks[at].end());
            let (before, after) = (segment.address - start, end - segment.end());
            if let Some(first) = segment.blocks.first_mut() {
                (first.address, first.bytes) = (start, first.bytes.saturating_add(before));
            }
            if let Some(last) = segment.blocks.last_mut() {
                last.bytes = last.bytes.saturating_add(after);
                blocks.splice(at..=at, segment.blocks);
            }
        }
        // The segments of a pool over a pool are blocks of the lower one, and not new memory.
        if !has_pools || (all > 0 && apart.segments.len() == all) {
            apart.pools = above.pools;
        }
        self.beside(apart)
    }

    fn block_around(&self, segment: &MemorySegment) -> Option<(usize, usize)> {
        let outer = self.segments.partition_point(|it| it.address <= segment.address).checked_sub(1)?;
        let blocks = &self.segments[outer].blocks;
        let block = blocks.partition_point(|it| it.address <= segment.address).checked_sub(1)?;
        let found = &blocks[block];
        let holds = found.end() >= segment.end() && found.state == BlockState::Active;
        holds.then_some((outer, block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(blocks: &[(u64, u64, u64)]) -> MemorySegment {
        let block =
            |&(address, bytes, requested): &(u64, u64, u64)| MemoryBlock::new(address, bytes, requested);
        MemorySegment::new(blocks.iter().map(block).collect())
    }

    fn listed(map: &MemoryMap) -> Vec<(u64, u64, u64)> {
        let blocks = map.segments.iter().flat_map(|segment| &segment.blocks);
        blocks.map(|block| (block.address, block.bytes, block.requested_bytes)).collect()
    }

    /// A segment of the upper pool is a block of the lower one. The blocks of the upper pool take its place,
    /// and the bytes of the lower pool stay the same.
    #[test]
    fn blocks_of_an_upper_pool_replace_the_block_that_holds_them() {
        let lower =
            MemoryMap::new(vec![segment(&[(1024, 512, 500), (1536, 1024, 1000), (2560, 512, 0)])], Some(1));
        let upper = vec![segment(&[(1536, 256, 0), (1792, 512, 400)]), segment(&[(9216, 256, 100)])];
        let both = lower.divided(MemoryMap::new(upper, Some(2)));
        let expected = [(1024, 512, 500), (1536, 256, 0), (1792, 768, 400), (2560, 512, 0), (9216, 256, 100)];
        assert_eq!((listed(&both), both.pools.clone()), (expected.to_vec(), vec![1]));
        assert_eq!((both.segments.len(), both.bytes_reserved()), (2, 2304));
        assert_eq!(both.live_blocks().map(|block| block.address).collect::<Vec<_>>(), [1024, 1792, 9216]);
    }

    /// Segments that overlap known memory, because another thread changed it meanwhile, are left out.
    #[test]
    fn no_byte_is_listed_twice() {
        let here = MemoryMap::new(vec![segment(&[(1024, 1024, 0)])], Some(3));
        let other =
            vec![segment(&[(512, 768, 700)]), segment(&[(1792, 512, 500)]), segment(&[(2048, 256, 9)])];
        let both = here.clone().beside(MemoryMap::new(other.clone(), Some(2)));
        assert_eq!((listed(&both), both.pools), (vec![(1024, 1024, 0), (2048, 256, 9)], vec![2, 3]));
        let both = here.divided(MemoryMap::new(other, Some(2)));
        assert_eq!(listed(&both), [(1024, 1024, 0), (2048, 256, 9)]);
    }
}
