//! Best fit: places blocks in the order of their births, each in the smallest hole that is large enough.
//!
//! This is the fastest placement. It is the result if the time ends before a better placement is found.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use crate::instance::Instance;

/// The holes below the top of the placed blocks. No two holes are adjacent.
#[derive(Default)]
struct Holes {
    /// The end of each hole, by its start.
    ends: BTreeMap<u64, u64>,
    /// The size and the start of each hole.
    sizes: BTreeSet<(u64, u64)>,
    top: u64,
}

impl Holes {
    fn add(&mut self, start: u64, end: u64) {
        self.ends.insert(start, end);
        self.sizes.insert((end - start, start));
    }

    fn remove(&mut self, start: u64, end: u64) {
        self.ends.remove(&start);
        self.sizes.remove(&(end - start, start));
    }

    /// Takes space from the smallest hole that has enough space. If there is none, takes it from the top.
    fn take(&mut self, size: u64) -> u64 {
        if let Some(&(room, start)) = self.sizes.range((size, 0)..).next() {
            self.remove(start, start + room);
            if room > size {
                self.add(start + size, start + room);
            }
            return start;
        }
        // The hole below the top can grow.
        let start = match self.ends.last_key_value() {
            Some((&start, &end)) if end == self.top => {
                self.remove(start, end);
                start
            }
            _ => self.top,
        };
        self.top = start + size;
        start
    }

    /// Makes space free again.
    fn give(&mut self, mut start: u64, mut end: u64) {
        if let Some((&before, &before_end)) = self.ends.range(..start).next_back()
            && before_end == start
        {
            self.remove(before, before_end);
            start = before;
        }
        if let Some(&after_end) = self.ends.get(&end) {
            self.remove(end, after_end);
            end = after_end;
        }
        self.add(start, end);
    }
}

/// Places all blocks of an instance with one lane.
pub(crate) fn best_fit(instance: &Instance) -> Vec<u64> {
    let mut holes = Holes::default();
    let mut live: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut offsets = Vec::with_capacity(instance.len());
    for index in 0..instance.len() {
        while let Some(&Reverse((death, dead))) = live.peek()
            && death <= instance.birth[index]
        {
            live.pop();
            let start: u64 = offsets[dead];
            holes.give(start, start + instance.size[dead]);
        }
        offsets.push(holes.take(instance.size[index]));
        live.push(Reverse((instance.death[index], index)));
    }
    offsets
}
