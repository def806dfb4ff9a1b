//! The memory after one event of a recording.

use std::collections::BTreeMap;

use foldhash::HashMap;

use super::{Event, EventKind, Id, Lane, Recording, Source};

/// PyTorch rounds sizes up to multiples of this number of bytes.
const ROUNDED_TO: u64 = 512;

/// The size in bytes of PyTorch's segments for small blocks. Larger segments hold large blocks.
const SMALL_SEGMENT: u64 = 2 << 20;

/// The most bytes at the end of a large block that PyTorch does not split off.
const UNSPLIT: u64 = 1 << 20;

/// Memory that the allocator had reserved from the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Segment {
    /// The address of the segment.
    pub address: u64,
    /// The size in bytes.
    pub bytes: u64,
    /// Whether this is a mapped range of an expandable segment.
    pub is_expandable: bool,
    /// The stream and the pool.
    pub lane: Lane,
}

/// A block that was in use, or waited for other streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LiveBlock {
    /// The address of the block.
    pub address: u64,
    /// The size in bytes, as requested.
    pub bytes: u64,
    /// The rounded size in bytes, as the source records it. If the source does not record it, the size of a
    /// block in a segment of PyTorch is rounded by PyTorch's rules. The size of any other block is the
    /// requested size, because the rules of its allocator are not known.
    pub rounded_bytes: u64,
    /// Whether the program had freed the block, and the block waited for other streams.
    pub is_held: bool,
    /// The call stack of the block's allocation.
    pub stack: Option<Id>,
    /// The number of the event that allocated the block.
    pub event: usize,
    /// The stream and the pool of the block.
    pub lane: Lane,
}

/// The memory after one event.
///
/// ```
/// use millpond_snapshot::import::{self, Options};
/// let csv = "id,lower,upper,size\na,0,10,4096\nb,5,20,1024\n";
/// let recording = import::read("example", csv.as_bytes(), &Options::default())?;
/// let moment = recording.moment(1);
/// assert_eq!(moment.blocks().len(), 2);
/// assert_eq!(moment.ledger().requested_bytes, 5120);
/// # Ok::<(), millpond_engine::log::LogError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moment {
    event: usize,
    segments: Vec<Segment>,
    blocks: Vec<LiveBlock>,
}

impl Recording {
    /// Returns the memory after the event with this number, counted from 0. If there are fewer events,
    /// returns the memory after the last event.
    pub fn moment(&self, number: usize) -> Moment {
        let mut walk = Walk::new(self);
        walk.go_to(number);
        walk.moment()
    }
}

/// Walks over the events of a recording, and knows the memory after the last event that it has reached.
pub(crate) struct Walk<'a> {
    recording: &'a Recording,
    /// The number of the next event.
    next: usize,
    segments: BTreeMap<u64, Segment>,
    /// The live blocks by address: the number of the allocation, and whether the block is held.
    blocks: HashMap<u64, (usize, bool)>,
}

impl<'a> Walk<'a> {
    /// Returns a walk that begins before the first event.
    pub(crate) fn new(recording: &'a Recording) -> Self {
        Self { recording, next: 0, segments: BTreeMap::new(), blocks: HashMap::default() }
    }

    /// Walks to the event with this number, or to the last event. The walk never goes back.
    pub(crate) fn go_to(&mut self, number: usize) {
        let end = number.saturating_add(1).min(self.recording.len());
        for at in self.next..end {
            let event = self.recording.at(at);
            let Event { address, bytes, .. } = *event;
            match event.kind {
                EventKind::Allocate => drop(self.blocks.insert(address, (at, false))),
                EventKind::FreeRequested => {
                    if let Some((_, is_held)) = self.blocks.get_mut(&address) {
                        *is_held = true;
                    }
                }
                EventKind::Free => drop(self.blocks.remove(&address)),
                EventKind::SegmentAllocate | EventKind::SegmentMap => {
                    let is_expandable = event.kind == EventKind::SegmentMap;
                    let lane = self.recording.lane(event);
                    self.segments.insert(address, Segment { address, bytes, is_expandable, lane });
                }
                EventKind::SegmentFree | EventKind::SegmentUnmap => cut(&mut self.segments, address, bytes),
                _ => {}
            }
        }
        self.next = self.next.max(end);
    }

    /// Returns the memory after the last event.
    pub(crate) fn moment(&self) -> Moment {
        let mut segments: Vec<Segment> = self.segments.values().copied().collect();
        let format = self.recording.source().format.as_str();
        let block = |(&address, &(at, is_held)): (&u64, &(usize, bool))| {
            let event = self.recording.event(at)?;
            // millpond's resources do not round as PyTorch does.
            let unrounded = if format == Source::MILLPOND { event.bytes.max(1) } else { 0 };
            Some(LiveBlock {
                address,
                bytes: event.bytes,
                rounded_bytes: self.recording.rounded_bytes(at).unwrap_or(unrounded),
                is_held,
                stack: event.stack,
                event: at,
                lane: self.recording.lane(event),
            })
        };
        let mut blocks: Vec<LiveBlock> = self.blocks.iter().filter_map(block).collect();
        blocks.sort_unstable_by_key(|block| block.address);
        // In an allocator, segments never overlap, so an overlap in the file is removed.
        for at in 1..segments.len() {
            let room = segments[at].address - segments[at - 1].address;
            segments[at - 1].bytes = segments[at - 1].bytes.min(room);
        }
        // Another allocator may not round as PyTorch does.
        round(&segments, &mut blocks, format == Source::PYTORCH);
        for at in 1..blocks.len() {
            let room = blocks[at].address - blocks[at - 1].address;
            // Without segments, only the sizes are needed, and they stay right if the addresses are wrong.
            let room = if segments.is_empty() { room.max(blocks[at - 1].bytes) } else { room };
            blocks[at - 1].rounded_bytes = blocks[at - 1].rounded_bytes.min(room);
        }
        Moment { event: self.next.saturating_sub(1), segments, blocks }
    }
}

impl Moment {
    /// Returns the number of the event after which this is the memory.
    pub fn event(&self) -> usize {
        self.event
    }

    /// Returns the segments in the order of addresses. Each mapped range of an expandable segment is a
    /// separate segment here.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the segments that hold no blocks.
    pub(crate) fn wholly_free_segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments().iter().filter(|segment| self.blocks_in(segment).is_empty())
    }

    /// Returns the blocks, in the order of addresses.
    pub fn blocks(&self) -> &[LiveBlock] {
        &self.blocks
    }

    /// Returns the blocks that lie in a segment, completely or in part.
    pub fn blocks_in(&self, segment: &Segment) -> &[LiveBlock] {
        let end = segment.address.saturating_add(segment.bytes);
        let first = self.blocks.partition_point(|block| block.end() <= segment.address);
        let last = self.blocks.partition_point(|block| block.address < end);
        &self.blocks[first..last.max(first)]
    }
}

impl LiveBlock {
    /// Returns the end address of the block.
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.rounded_bytes.max(1))
    }
}

/// Fills in the rounded sizes that a source does not record. With `is_rounded`, blocks outside of all known
/// segments are rounded as in PyTorch.
fn round(segments: &[Segment], blocks: &mut [LiveBlock], is_rounded: bool) {
    let ends = ends_of_runs(segments);
    for at in 0..blocks.len() {
        let LiveBlock { address, bytes, rounded_bytes, .. } = blocks[at];
        if rounded_bytes > 0 {
            continue;
        }
        let rounded = bytes.max(1).checked_next_multiple_of(ROUNDED_TO).unwrap_or(bytes);
        let Some((end, is_large)) = segment_of(segments, &ends, address) else {
            blocks[at].rounded_bytes = if is_rounded { rounded } else { bytes };
            continue;
        };
        let next = blocks.get(at + 1).map_or(u64::MAX, |next| next.address);
        let room = next.min(end) - address;
        let tail = room.saturating_sub(rounded);
        // The bytes that PyTorch would not split off belong to the block.
        let is_unsplit = if is_large { tail <= UNSPLIT } else { tail < ROUNDED_TO };
        blocks[at].rounded_bytes = if is_unsplit { room.max(rounded) } else { rounded };
    }
}

/// Returns the end of each segment. For an expandable segment, returns the end of the last segment that
/// adjoins it.
fn ends_of_runs(segments: &[Segment]) -> Vec<u64> {
    let mut ends: Vec<u64> =
        segments.iter().map(|segment| segment.address.saturating_add(segment.bytes)).collect();
    for at in (1..segments.len()).rev() {
        let (before, segment) = (&segments[at - 1], &segments[at]);
        if before.is_expandable && segment.is_expandable && segment.address == ends[at - 1] {
            ends[at - 1] = ends[at];
        }
    }
    ends
}

/// Returns the end of the run of segments that contains an address, and whether these segments are for large
/// blocks.
fn segment_of(segments: &[Segment], ends: &[u64], address: u64) -> Option<(u64, bool)> {
    let at = segments.partition_point(|segment| segment.address <= address).checked_sub(1)?;
    let Segment { address: start, bytes, .. } = segments[at];
    (start.saturating_add(bytes) > address).then(|| (ends[at], bytes > SMALL_SEGMENT))
}

/// Removes a range from the segments that contain it.
fn cut(segments: &mut BTreeMap<u64, Segment>, address: u64, bytes: u64) {
    let end = address.saturating_add(bytes);
    while let Some((&start, &segment)) = segments.range(..end).next_back() {
        let segment_end = start.saturating_add(segment.bytes);
        if segment_end <= address {
            return;
        }
        segments.remove(&start);
        if segment_end > end {
            segments.insert(end, Segment { address: end, bytes: segment_end - end, ..segment });
        }
        if start < address {
            segments.insert(start, Segment { bytes: address - start, ..segment });
            return;
        }
    }
}
