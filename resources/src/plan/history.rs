//! The allocations that a program made lately, and the part of them that repeats.

use std::hash::Hasher;

use millpond_core::{DevicePtr, StreamId};
use rustc_hash::{FxHashMap, FxHasher};

use crate::plan::repetition::Repetition;

/// The end of a block that is still in use.
const IN_USE: u32 = u32::MAX;

/// The most allocations that are remembered. A program whose period is more than half of it gets no plan.
pub(crate) const MOST_EVENTS: usize = 1 << 20;

/// The most that are remembered at first. To watch takes 54 to 69 ns an operation (docs/plan.md), so a
/// program in which nothing repeats is left alone for most of the time.
pub(crate) const FIRST_EVENTS: usize = 1 << 18;

/// One allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    /// The size in bytes, rounded up to 256.
    pub(crate) bytes: u64,
    /// The stream of the allocation.
    pub(crate) stream: StreamId,
    /// The number of allocations before its deallocation.
    end: u32,
    /// Whether it was freed on another stream.
    is_foreign: bool,
}

impl Event {
    /// Returns the number of allocations from this one, which is the `index`th, until the deallocation;
    /// `None` while the block is in use.
    fn life(&self, index: usize) -> Option<u32> {
        (self.end != IN_USE).then(|| self.end - index as u32)
    }
}

/// One allocation of the part that repeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    /// The size in bytes, rounded up to 256.
    pub(crate) bytes: u64,
    /// The stream of the allocation.
    pub(crate) stream: StreamId,
    /// The number of allocations until the deallocation, itself included; `None` if the block lives until its
    /// own place in the next body.
    pub(crate) life: Option<u32>,
    /// Whether it is freed on another stream.
    pub(crate) is_foreign: bool,
}

/// Returns what identifies an allocation among others. Two that differ may have the same key by chance, which
/// costs a request its place in the plan and nothing else.
pub(crate) fn key(bytes: u64, stream: StreamId) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write_u64(bytes);
    hasher.write_u64(stream.get());
    hasher.finish()
}

/// The allocations since the program was last seen to change.
#[derive(Debug, Default)]
pub(crate) struct History {
    events: Vec<Event>,
    repetition: Repetition,
    in_use: FxHashMap<DevicePtr, u32>,
    /// The bytes of the blocks in use, and their peak.
    bytes: u64,
    peak_bytes: u64,
}

impl History {
    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    /// Forgets everything, and gives the host's memory back.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn allocated(&mut self, ptr: DevicePtr, bytes: u64, stream: StreamId) {
        self.in_use.insert(ptr, self.events.len() as u32);
        self.bytes = self.bytes.saturating_add(bytes);
        self.peak_bytes = self.peak_bytes.max(self.bytes);
        self.events.push(Event { bytes, stream, end: IN_USE, is_foreign: false });
        self.repetition.push(key(bytes, stream));
    }

    pub(crate) fn freed(&mut self, ptr: DevicePtr, stream: StreamId) {
        let count = self.events.len() as u32;
        if let Some(index) = self.in_use.remove(&ptr) {
            let event = &mut self.events[index as usize];
            event.end = count;
            event.is_foreign = event.stream != stream;
            self.bytes = self.bytes.saturating_sub(event.bytes);
        }
    }

    /// Returns the peak of the bytes in use.
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// Returns the shortest part that the newest allocations have repeated over at least `least` allocations
    /// and at least once, with the same lives, and for which `is_new` is true; the last of it is the newest
    /// allocation.
    pub(crate) fn body(
        &mut self,
        least: usize,
        mut is_new: impl FnMut(&[Step]) -> bool,
    ) -> Option<Vec<Step>> {
        let events = &self.events;
        self.repetition.period(least, |period| body_of(events, period).filter(|steps| is_new(steps)))
    }
}

/// Returns the last allocations but `period`, so that most of their lives are known; `None` if the lives
/// of the newest ones differ, or too few blocks could be in a plan.
fn body_of(events: &[Event], period: usize) -> Option<Vec<Step>> {
    let start = events.len() - 2 * period;
    let (older, newer) = events[start..].split_at(period);
    let mut alike = 0;
    let mut steps = Vec::with_capacity(period);
    for (index, (old, new)) in (start..).zip(older.iter().zip(newer)) {
        let known = old.life(index);
        alike += usize::from(match new.life(index + period) {
            Some(life) => known == Some(life),
            None => known.is_none_or(|life| life as usize > events.len() - 1 - (index + period)),
        });
        let life = known.filter(|life| *life as usize <= period);
        let is_foreign = old.is_foreign && life.is_some();
        steps.push(Step { bytes: old.bytes, stream: old.stream, life, is_foreign });
    }
    let total: u128 = steps.iter().map(|step| u128::from(step.bytes)).sum();
    let planned = steps.iter().filter(|step| step.life.is_some());
    let planned: u128 = planned.map(|step| u128::from(step.bytes)).sum();
    (alike * 20 >= period * 19 && planned * 2 >= total).then_some(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A history of sizes, each freed when the next `life` allocations are made.
    fn history(sizes: &[u64], life: usize) -> History {
        let mut history = History::default();
        let ptr = |index: usize| DevicePtr::new(index as u64 * 256 + 256);
        for (index, bytes) in sizes.iter().enumerate() {
            if index >= life {
                history.freed(ptr(index - life), StreamId::LEGACY);
            }
            history.allocated(ptr(index), *bytes, StreamId::LEGACY);
        }
        history
    }

    #[test]
    fn a_body_is_found_after_a_prefix_and_one_repetition() {
        let body = [256, 512, 256, 1024, 256, 768];
        let mut sizes = vec![4096, 512, 8192];
        assert!(history(&sizes, 2).body(6, |_| true).is_none());
        sizes.extend(body);
        assert!(history(&sizes, 2).body(6, |_| true).is_none());
        sizes.extend(body);
        let found = history(&sizes, 2).body(6, |_| true).unwrap();
        assert_eq!(found.iter().map(|step| step.bytes).collect::<Vec<_>>(), body);
        assert!(found.iter().all(|step| step.life == Some(2)), "{found:?}");
        assert!(history(&sizes, 2).body(7, |_| true).is_none(), "it repeated over 6 allocations, not 7");
    }

    #[test]
    fn blocks_that_live_for_a_body_are_not_planned_and_those_that_die_on_another_stream_are_named() {
        let sizes = [256, 512].repeat(4);
        assert!(history(&sizes, 3).body(2, |_| true).is_none(), "each lives longer than the body");
        let sizes = [256, 512].repeat(5);
        let mut one = history(&sizes, 1);
        one.events[6].is_foreign = true;
        let found = one.body(2, |_| true).unwrap();
        assert_eq!((found[0].is_foreign, found[1].is_foreign), (true, false));
        assert_eq!((found[0].life, found[1].life), (Some(1), Some(1)));
    }

    #[test]
    fn equal_sizes_with_other_lives_are_no_repetition() {
        let sizes = [256, 512, 768, 1024, 1280, 1536].repeat(2);
        assert!(history(&sizes, 2).body(6, |_| true).is_some());
        let mut other = history(&sizes, 2);
        for index in 0..2 {
            other.events[index].end += 1;
        }
        assert!(other.body(6, |_| true).is_none());
    }
}
