//! Repair: fits blocks under a capacity. It removes the blocks that are in the way, and learns which blocks
//! are hard to place.
//!
//! Each block that finds no gap gets a higher weight. It then goes where the blocks in the way have the least
//! total weight, and these blocks wait to be placed again. So hard blocks find a place that they keep, and
//! easy blocks move around them.

use crate::instance::{Instance, UNPLACED};
use crate::random::Random;

/// A placement that is not complete yet.
pub(crate) struct Repair {
    capacity: u64,
    offsets: Vec<u64>,
    weight: Vec<u64>,
    waiting: Vec<u32>,
    random: Random,
    /// The placed blocks that conflict with the present block, the lowest first: (offset, end, block).
    around: Vec<(u64, u64, u32)>,
    /// The ends of blocks with sums of weights, the lowest end first.
    ends: Vec<(u64, u64)>,
}

impl Repair {
    /// Begins with the placed blocks of `offsets` that end at `capacity` or below. The other blocks wait.
    pub(crate) fn new(instance: &Instance, capacity: u64, mut offsets: Vec<u64>, seed: u64) -> Self {
        let mut waiting = Vec::new();
        for (index, offset) in offsets.iter_mut().enumerate() {
            if *offset == UNPLACED || *offset + instance.size[index] > capacity {
                *offset = UNPLACED;
                waiting.push(index as u32);
            }
        }
        waiting.sort_by_key(|&index| (instance.size[index as usize], index));
        Self {
            capacity,
            offsets,
            weight: vec![1; instance.len()],
            waiting,
            random: Random::new(seed),
            around: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Lowers the capacity. Blocks that end above it wait.
    pub(crate) fn lower(&mut self, instance: &Instance, capacity: u64) {
        self.capacity = capacity;
        for index in 0..instance.len() {
            if self.offsets[index] != UNPLACED && self.offsets[index] + instance.size[index] > capacity {
                self.take_out(index as u32);
            }
        }
    }

    /// Places blocks until no block waits, `work` is used up, or `stop` ends it. Each conflict that is
    /// examined costs one unit of work. Returns `true` if all blocks are placed.
    pub(crate) fn run(&mut self, instance: &Instance, work: &mut u64, stop: &dyn Fn() -> bool) -> bool {
        let mut steps = 0u32;
        while let Some(index) = self.next() {
            steps = steps.wrapping_add(1);
            if *work == 0 || (steps.is_multiple_of(64) && stop()) {
                self.waiting.push(index);
                return false;
            }
            self.look_around(instance, index as usize);
            *work = work.saturating_sub(self.around.len() as u64 + 16);
            let size = instance.size[index as usize];
            let offset = match self.gap(size) {
                Some(offset) => offset,
                None => {
                    self.weight[index as usize] += 1;
                    let offset = self.lightest(size);
                    self.clear(offset, offset + size);
                    offset
                }
            };
            self.offsets[index as usize] = offset;
        }
        true
    }

    pub(crate) fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the next waiting block: usually the block that was removed last, and sometimes a random one.
    fn next(&mut self) -> Option<u32> {
        if self.waiting.len() > 1 && self.random.below(8) == 0 {
            let place = self.random.below(self.waiting.len());
            return Some(self.waiting.swap_remove(place));
        }
        self.waiting.pop()
    }

    fn look_around(&mut self, instance: &Instance, index: usize) {
        let Self { offsets, around, .. } = self;
        around.clear();
        instance.conflicts(index, |other| {
            if offsets[other] != UNPLACED {
                around.push((offsets[other], offsets[other] + instance.size[other], other as u32));
            }
        });
        around.sort_unstable();
    }

    /// Returns an offset in the tightest gap that is large enough. The block lies at the better end of the
    /// gap.
    fn gap(&mut self, size: u64) -> Option<u64> {
        let mut best: Option<(u64, u64)> = None;
        let mut top = 0;
        let capacity = self.capacity;
        let mut consider = |low: u64, high: u64| {
            if high >= low + size && best.is_none_or(|(room, _)| high - low < room) {
                best = Some((high - low, low));
            }
        };
        for &(offset, end, _) in &self.around {
            if offset > top {
                consider(top, offset);
            }
            top = top.max(end);
        }
        if capacity > top {
            consider(top, capacity);
        }
        let (room, low) = best?;
        let high_side = self.random.below(4) == 0;
        Some(if high_side { low + room - size } else { low })
    }

    /// Returns the offset at which the blocks in the way have the least total weight.
    fn lightest(&mut self, size: u64) -> u64 {
        let weight = |block: u32| self.weight[block as usize];
        self.ends.clear();
        self.ends.extend(self.around.iter().map(|&(_, end, block)| (end, weight(block))));
        self.ends.sort_unstable();
        // For each position, the total weight of all blocks that end at or below it, and of all blocks that
        // begin below it.
        let mut offsets = Vec::with_capacity(2 * self.around.len() + 2);
        let last = self.capacity - size;
        offsets.push(0);
        offsets.push(last);
        for &(offset, end, _) in &self.around {
            if end <= last {
                offsets.push(end);
            }
            if offset >= size {
                offsets.push(offset - size);
            }
        }
        offsets.sort_unstable();
        offsets.dedup();
        let (mut ended, mut begun) = (0u64, 0u64);
        let (mut end_at, mut begin_at) = (0, 0);
        let (mut best, mut lightest, mut equals) = (0, u64::MAX, 0);
        for offset in offsets {
            while end_at < self.ends.len() && self.ends[end_at].0 <= offset {
                ended += self.ends[end_at].1;
                end_at += 1;
            }
            while begin_at < self.around.len() && self.around[begin_at].0 < offset + size {
                begun += weight(self.around[begin_at].2);
                begin_at += 1;
            }
            let in_the_way = begun - ended;
            if in_the_way < lightest {
                (best, lightest, equals) = (offset, in_the_way, 1);
            } else if in_the_way == lightest {
                equals += 1;
                if self.random.below(equals) == 0 {
                    best = offset;
                }
            }
        }
        best
    }

    fn clear(&mut self, low: u64, high: u64) {
        for place in 0..self.around.len() {
            let (offset, end, block) = self.around[place];
            if offset < high && end > low {
                self.take_out(block);
            }
        }
    }

    fn take_out(&mut self, block: u32) {
        self.offsets[block as usize] = UNPLACED;
        self.waiting.push(block);
    }
}
