//! Finds the memory that the program held before its trace began, from the trace and the state.

use std::collections::{BTreeMap, HashMap};

use super::entry::{Action, Entry};
use super::state::{Segment, State};
use crate::budget::{Budget, Exceeded};

/// The bytes of a map entry, including the entry's share of the map's free space, also while the map grows.
const MAP_ENTRY_BYTES: usize = 64;

/// The results of reading the trace once.
#[derive(Default, Debug)]
pub(super) struct Start {
    /// The first event at each address. If the first event is a free, the block was live when the trace
    /// began.
    first: HashMap<u64, Option<Early>>,
    /// The events of segments, in order.
    segments: Vec<Entry>,
    pub(super) entries: u64,
    pub(super) malformed: u64,
    pub(super) requested: u64,
    pub(super) completed: u64,
    pub(super) with_time: u64,
    pub(super) with_stack: u64,
    /// The segments that were freed or unmapped although neither an event nor the state shows where they came
    /// from.
    pub(super) odd_segments: u64,
}

/// A block that was live when the trace began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Early {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stream: u64,
}

impl Start {
    /// Adds one entry of the trace.
    ///
    /// # Errors
    /// The budget is used up.
    pub(super) fn note(&mut self, entry: Option<Entry>, budget: &mut Budget) -> Result<(), Exceeded> {
        self.entries += 1;
        let Some(entry) = entry else {
            self.malformed += 1;
            return Ok(());
        };
        self.with_time += u64::from(entry.time.is_some());
        self.with_stack += u64::from(entry.frames.is_some());
        let is_free = match entry.action {
            Action::Alloc => false,
            Action::FreeRequested => {
                self.requested += 1;
                true
            }
            Action::FreeCompleted => {
                self.completed += 1;
                true
            }
            Action::SegmentAlloc | Action::SegmentFree | Action::SegmentMap | Action::SegmentUnmap => {
                budget.take(2 * size_of::<Entry>())?;
                self.segments.push(entry);
                return Ok(());
            }
            _ => return Ok(()),
        };
        if !self.first.contains_key(&entry.address) {
            budget.take(MAP_ENTRY_BYTES)?;
            let Entry { address, bytes, stream, .. } = entry;
            self.first.insert(address, is_free.then_some(Early { address, bytes, stream }));
        }
        Ok(())
    }

    /// Returns the blocks that were live when the trace began and that the trace freed, in no particular
    /// order.
    pub(super) fn freed_blocks(&self) -> impl Iterator<Item = Early> + '_ {
        self.first.values().copied().flatten()
    }

    /// Returns whether the trace has an event of a block at this address.
    pub(super) fn mentions(&self, address: u64) -> bool {
        self.first.contains_key(&address)
    }

    /// Returns the segments at the beginning of the trace, in the order of addresses. Starts with the
    /// segments of the state, and undoes the events of the trace.
    ///
    /// # Errors
    /// The budget is used up.
    pub(super) fn segments(&mut self, state: &State, budget: &mut Budget) -> Result<Vec<Segment>, Exceeded> {
        budget.take(state.segments.len() * 2 * MAP_ENTRY_BYTES)?;
        let mut ranges: BTreeMap<u64, Segment> =
            state.segments.iter().map(|segment| (segment.address, *segment)).collect();
        for at in (0..self.segments.len()).rev() {
            let entry = self.segments[at];
            let is_known = match entry.action {
                Action::SegmentAlloc | Action::SegmentMap => cut(&mut ranges, entry.address, entry.bytes),
                _ => {
                    budget.take(2 * MAP_ENTRY_BYTES)?;
                    let segment = Segment {
                        address: entry.address,
                        bytes: entry.bytes,
                        stream: entry.stream,
                        pool: entry.pool,
                        is_expandable: entry.action == Action::SegmentUnmap,
                        stack: None,
                    };
                    ranges.insert(entry.address, segment).is_none()
                }
            };
            self.odd_segments += u64::from(!is_known);
        }
        Ok(ranges.into_values().collect())
    }
}

/// Removes a range from the segment, or the adjacent segments, that contain it. Returns whether they
/// contained the whole range.
fn cut(ranges: &mut BTreeMap<u64, Segment>, address: u64, bytes: u64) -> bool {
    let Some(end) = address.checked_add(bytes) else { return false };
    let mut left = bytes;
    while let Some((&start, &segment)) = ranges.range(..end).next_back() {
        let segment_end = segment.address.saturating_add(segment.bytes);
        if segment_end <= address {
            break;
        }
        ranges.remove(&start);
        left = left.saturating_sub(segment_end.min(end) - start.max(address));
        if segment_end > end {
            ranges.insert(end, Segment { address: end, bytes: segment_end - end, ..segment });
        }
        if start < address {
            ranges.insert(start, Segment { bytes: address - start, ..segment });
            break;
        }
    }
    left == 0
}
