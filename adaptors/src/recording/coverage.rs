//! Adds a segment to a trace for each block that lies in no segment of a pool. PyTorch's viewer expects a
//! segment around each block.

use std::collections::BTreeMap;

use millpond_core::MemoryMap;
use rustc_hash::FxHashSet;

use super::recorder::{Action, RecordedEvent};

/// Addresses, as ranges that do not overlap: start and end.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn remove(&mut self, start: u64, end: u64) {
        while let Some((&from, &to)) = self.0.range(..end).next_back().filter(|(_, to)| **to > start) {
            self.0.remove(&from);
            if to > end {
                self.0.insert(end, to);
            }
            if from < start {
                self.0.insert(from, start);
            }
        }
    }

    fn add(&mut self, start: u64, end: u64) {
        self.remove(start, end);
        let before = self.0.range(..=start).next_back().map(|(from, to)| (*from, *to));
        let start = match before {
            Some((from, to)) if to == start => {
                self.0.remove(&from);
                from
            }
            _ => start,
        };
        let end = self.0.remove(&end).unwrap_or(end);
        self.0.insert(start, end);
    }

    fn holds(&self, address: u64) -> bool {
        self.0.range(..=address).next_back().is_some_and(|(_, end)| address < *end)
    }

    /// Applies an event of a segment.
    fn apply(&mut self, action: Action, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes);
        match action {
            Action::SegmentAllocate | Action::SegmentMap => self.add(address, end),
            Action::SegmentFree | Action::SegmentUnmap => self.remove(address, end),
            _ => {}
        }
    }

    /// Undoes an event of a segment.
    fn undo(&mut self, action: Action, address: u64, bytes: u64) {
        let opposite = match action {
            Action::SegmentAllocate | Action::SegmentMap => Action::SegmentUnmap,
            Action::SegmentFree | Action::SegmentUnmap => Action::SegmentMap,
            _ => return,
        };
        self.apply(opposite, address, bytes);
    }
}

/// Returns the events of one device with the segments that are missing. `events` are in order, and end when
/// the map was made.
pub(super) fn covered(events: &[RecordedEvent], map: &MemoryMap) -> Vec<RecordedEvent> {
    let is_mapped = map.segments.iter().any(|segment| segment.is_mapped);
    let mut ranges = start(events, map);
    let mut all = Vec::with_capacity(events.len());
    // The blocks whose segment this function added.
    let mut alone = FxHashSet::default();
    for event in events {
        match event.action {
            Action::Allocate if !ranges.holds(event.address) => {
                let bytes = event.bytes.next_multiple_of(ALIGNMENT);
                all.push(segment_event(event, alloc_action(is_mapped), event.address, bytes));
                alone.insert(event.address);
            }
            action => ranges.apply(action, event.address, event.bytes),
        }
        all.push(*event);
        // A block from before the trace may have been alone, too.
        if event.action == Action::FreeCompleted
            && (alone.remove(&event.address) || !ranges.holds(event.address))
        {
            let bytes = event.bytes.next_multiple_of(ALIGNMENT);
            all.push(segment_event(event, free_action(is_mapped), event.address, bytes));
        }
    }
    all
}

/// Blocks are rounded up to this.
const ALIGNMENT: u64 = millpond_core::ALLOCATION_ALIGNMENT;

fn alloc_action(is_mapped: bool) -> Action {
    if is_mapped { Action::SegmentMap } else { Action::SegmentAllocate }
}

fn free_action(is_mapped: bool) -> Action {
    if is_mapped { Action::SegmentUnmap } else { Action::SegmentFree }
}

fn segment_event(beside: &RecordedEvent, action: Action, address: u64, bytes: u64) -> RecordedEvent {
    RecordedEvent { action, address, bytes, stream: 0, stack: 0, ..*beside }
}

/// Returns the segments before the first event.
fn start(events: &[RecordedEvent], map: &MemoryMap) -> Ranges {
    let mut ranges = Ranges::default();
    for segment in &map.segments {
        ranges.add(segment.address, segment.address + segment.bytes);
    }
    // Without a pool, the blocks are the segments, and each was added by its allocation.
    if map.pools.is_empty() {
        for event in events.iter().filter(|event| event.action == Action::Allocate) {
            ranges.remove(event.address, event.address + event.bytes.next_multiple_of(ALIGNMENT));
        }
    }
    events.iter().rev().for_each(|event| ranges.undo(event.action, event.address, event.bytes));
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_split() {
        let mut ranges = Ranges::default();
        let listed = |ranges: &Ranges| ranges.0.iter().map(|(from, to)| (*from, *to)).collect::<Vec<_>>();
        ranges.add(100, 200);
        ranges.add(300, 400);
        ranges.add(200, 300);
        assert_eq!(listed(&ranges), [(100, 400)]);
        ranges.remove(150, 160);
        ranges.remove(390, 500);
        ranges.remove(0, 110);
        assert_eq!(listed(&ranges), [(110, 150), (160, 390)]);
        assert!(ranges.holds(110) && !ranges.holds(150) && ranges.holds(160) && !ranges.holds(390));
        ranges.add(120, 380);
        assert_eq!(listed(&ranges), [(110, 390)]);
    }
}
