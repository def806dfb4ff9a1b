//! The document that a watched process writes for each request.

use std::collections::HashMap;

use crate::{
    AnyResource, BlockState, DeviceMemoryResourceExt, Holder, MemoryBlock, MemoryMap, MemoryReport,
    MemorySegment,
};

/// The version of the document that a watched process writes. The version increases if a program for the
/// previous version would read a wrong value.
pub const FORMAT: u32 = 1;

/// The most streams of a stack in a document.
const MOST_STREAMS: usize = 64;
/// The most holders of a layer in a document.
const MOST_HOLDERS: usize = 32;
/// The most segments of a stack in a document.
const MOST_SEGMENTS: usize = 16;
/// The most bytes of a backtrace in a document.
const MOST_TEXT: usize = 4096;

/// The memory of all watched stacks of a process at one moment.
#[derive(Clone, PartialEq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct ProgramMemory {
    /// The version of the document: [`FORMAT`].
    pub format: u32,
    /// The number of the process.
    pub process: u32,
    /// The command line of the process.
    pub program: String,
    /// The microseconds since the first stack of the process was watched.
    pub elapsed_us: u64,
    /// The stacks, oldest first.
    pub stacks: Vec<StackMemory>,
    /// The number of further stacks, which the document leaves out.
    pub stacks_left_out: usize,
    /// The reasons why some stacks could not report their memory.
    pub errors: Vec<String>,
}

/// The memory of one stack. Sizes are in bytes.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct StackMemory {
    /// The number of the stack in its process. The process gives each number only once.
    pub id: u64,
    /// The reports of the layers, without the device's free memory. Each layer lists at most 32 holders:
    /// groups of live blocks with the same tag and backtrace. Each backtrace is cut to 4 KiB.
    pub report: MemoryReport,
    /// The number of further holders, which the document leaves out.
    pub holders_left_out: usize,
    /// The free memory in the stack's segments; `None` if no layer records segments.
    pub fragmentation: Option<Fragmentation>,
    /// The memory of each stream, for at most 64 streams. The stream with the most memory comes first.
    pub streams: Vec<StreamMemory>,
    /// The number of further streams, which the document leaves out.
    pub streams_left_out: usize,
}

/// The free memory in a stack's segments. Sizes are in bytes.
#[derive(Clone, PartialEq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Fragmentation {
    /// The number of segments.
    pub segments: usize,
    /// The bytes of all segments.
    pub bytes_reserved: u64,
    /// The free bytes in the segments.
    pub bytes_free: u64,
    /// The number of free blocks.
    pub blocks_free: u64,
    /// The size of the largest free block.
    pub largest_free_block: u64,
    /// The free bytes outside the largest free block, as a share of all free bytes, from 0 to 1.
    pub share: f64,
    /// The segments with the most free bytes, at most 16 segments.
    pub most_free: Vec<SegmentMemory>,
}

/// The memory of one segment. Sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct SegmentMemory {
    /// The address at which the segment starts.
    pub address: u64,
    /// The size of the segment.
    pub bytes: u64,
    /// The free bytes in the segment.
    pub bytes_free: u64,
    /// The size of the largest free block in the segment.
    pub largest_free_block: u64,
    /// The number of blocks in the segment that are not free.
    pub blocks_in_use: u64,
}

/// The memory of one stream. Sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct StreamMemory {
    /// The raw handle of the stream. `None` stands for live blocks whose stream no layer records, and for
    /// free memory that any stream may reuse.
    pub stream: Option<u64>,
    /// The number of the stream's blocks that are not free.
    pub blocks_in_use: u64,
    /// The bytes of the blocks that are not free, after rounding.
    pub bytes_in_use: u64,
    /// The number of free blocks that only this stream may reuse.
    pub blocks_free: u64,
    /// The bytes of these free blocks.
    pub bytes_free: u64,
}

impl StackMemory {
    /// Returns the memory of a stack now.
    pub(super) fn of(id: u64, stack: &AnyResource) -> Self {
        let mut report = MemoryReport::of_layers(stack, |layer| layer.layer_memory());
        let left_out = report.layers.iter_mut().map(|layer| shorten(&mut layer.holders));
        let (holders_left_out, map) = (left_out.sum(), stack.memory_map());
        let mut streams = map.as_ref().map(streams_of).unwrap_or_default();
        let streams_left_out = cut(&mut streams, MOST_STREAMS);
        let fragmentation = map.as_ref().map(Fragmentation::of);
        Self { id, report, holders_left_out, fragmentation, streams, streams_left_out }
    }
}

impl Fragmentation {
    fn of(map: &MemoryMap) -> Self {
        let mut all: Vec<SegmentMemory> = map.segments.iter().map(SegmentMemory::of).collect();
        let bytes_free = all.iter().map(|segment| segment.bytes_free).fold(0, u64::saturating_add);
        let largest_free_block = all.iter().map(|segment| segment.largest_free_block).max().unwrap_or(0);
        let blocks = map.segments.iter().flat_map(|segment| &segment.blocks);
        let blocks_free = blocks.filter(|block| block.state == BlockState::Free).count() as u64;
        let share = if bytes_free == 0 { 0.0 } else { 1.0 - largest_free_block as f64 / bytes_free as f64 };
        let (segments, bytes_reserved) = (all.len(), map.bytes_reserved());
        all.retain(|segment| segment.bytes_free > 0);
        all.sort_by_key(|segment| std::cmp::Reverse(segment.bytes_free));
        all.truncate(MOST_SEGMENTS);
        Self { segments, bytes_reserved, bytes_free, blocks_free, largest_free_block, share, most_free: all }
    }
}

impl SegmentMemory {
    fn of(segment: &MemorySegment) -> Self {
        let mut of = Self { address: segment.address, bytes: segment.bytes, ..Self::default() };
        for block in &segment.blocks {
            if block.state == BlockState::Free {
                of.bytes_free = of.bytes_free.saturating_add(block.bytes);
                of.largest_free_block = of.largest_free_block.max(block.bytes);
            } else {
                of.blocks_in_use += 1;
            }
        }
        of
    }
}

impl StreamMemory {
    fn add(&mut self, block: &MemoryBlock) {
        if block.state == BlockState::Free {
            self.blocks_free += 1;
            self.bytes_free = self.bytes_free.saturating_add(block.bytes);
        } else {
            self.blocks_in_use += 1;
            self.bytes_in_use = self.bytes_in_use.saturating_add(block.bytes);
        }
    }
}

/// Returns the memory of each stream, the one with the most memory first.
fn streams_of(map: &MemoryMap) -> Vec<StreamMemory> {
    let mut streams: HashMap<Option<u64>, StreamMemory> = HashMap::new();
    for block in map.segments.iter().flat_map(|segment| &segment.blocks) {
        let of = streams.entry(block.stream).or_default();
        of.stream = block.stream;
        of.add(block);
    }
    let mut streams: Vec<StreamMemory> = streams.into_values().collect();
    streams.sort_by_key(|of| (std::cmp::Reverse((of.bytes_in_use, of.bytes_free)), of.stream));
    streams
}

/// Keeps the largest holders, and the beginning of their backtraces. Returns how many are left out.
fn shorten(holders: &mut Vec<Holder>) -> usize {
    let left_out = cut(holders, MOST_HOLDERS);
    for text in holders.iter_mut().filter_map(|holder| holder.backtrace.as_mut()) {
        let mut end = text.len().min(MOST_TEXT);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    left_out
}

/// Keeps the first items. Returns how many are left out.
pub(super) fn cut<T>(items: &mut Vec<T>, most: usize) -> usize {
    let left_out = items.len().saturating_sub(most);
    items.truncate(most);
    left_out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(address: u64, bytes: u64, is_live: bool, stream: Option<u64>) -> MemoryBlock {
        let mut block = MemoryBlock::new(address, bytes, if is_live { bytes } else { 0 });
        block.stream = stream;
        block
    }

    #[test]
    fn a_map_is_summed_by_segment_and_by_stream() {
        let first = vec![
            block(1024, 512, true, Some(7)),
            block(1536, 1024, false, Some(7)),
            block(2560, 256, false, None),
        ];
        let second = vec![block(8192, 4096, true, Some(9)), block(12288, 512, false, Some(9))];
        let map = MemoryMap::new(vec![MemorySegment::new(first), MemorySegment::new(second)], None);
        let of = Fragmentation::of(&map);
        assert_eq!((of.segments, of.bytes_reserved, of.bytes_free, of.blocks_free), (2, 6400, 1792, 3));
        assert_eq!((of.largest_free_block, of.share), (1024, 1.0 - 1024.0 / 1792.0));
        let free: Vec<_> =
            of.most_free.iter().map(|it| (it.address, it.bytes_free, it.blocks_in_use)).collect();
        assert_eq!(free, [(1024, 1280, 1), (8192, 512, 1)]);
        let streams: Vec<_> = streams_of(&map)
            .iter()
            .map(|of| (of.stream, of.blocks_in_use, of.bytes_in_use, of.blocks_free, of.bytes_free))
            .collect();
        assert_eq!(streams, [(Some(9), 1, 4096, 1, 512), (Some(7), 1, 512, 1, 1024), (None, 0, 0, 1, 256)]);
        assert_eq!(Fragmentation::of(&MemoryMap::default()), Fragmentation::default());
    }

    /// A layer of the program may report anything.
    #[test]
    fn sums_of_a_wrong_map_stop_at_the_greatest_number() {
        let blocks = [true, true, false, false].map(|is_live| block(1, u64::MAX, is_live, None));
        let map = MemoryMap::new(vec![MemorySegment::new(blocks.into()); 2], None);
        let of = Fragmentation::of(&map);
        assert_eq!((of.bytes_reserved, of.bytes_free), (u64::MAX, u64::MAX));
        let streams = streams_of(&map);
        assert_eq!((streams[0].bytes_in_use, streams[0].bytes_free), (u64::MAX, u64::MAX));
        assert_eq!(map.clone().divided(map).bytes_reserved(), u64::MAX);
    }

    #[test]
    fn many_holders_and_long_backtraces_are_cut() {
        let holder = Holder { backtrace: Some("ä".repeat(MOST_TEXT)), ..Holder::default() };
        let mut holders = vec![holder; MOST_HOLDERS + 5];
        assert_eq!((shorten(&mut holders), holders.len()), (5, MOST_HOLDERS));
        assert!(holders.iter().all(|holder| holder.backtrace.as_ref().unwrap().len() <= MOST_TEXT));
    }
}
