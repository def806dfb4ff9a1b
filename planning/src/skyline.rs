//! The skyline method: places blocks from the bottom up, always in the lowest valley. Of equally low valleys,
//! it uses the leftmost.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::instance::Instance;

/// The unplaced blocks in a tree over births. Each node has the largest key below it.
struct Unplaced<'a> {
    instance: &'a Instance,
    key: &'a [u64],
    leaves: usize,
    /// The largest key and the first death below each node. The key is 0 if all blocks below the node are
    /// placed.
    nodes: Vec<(u64, u64)>,
}

impl<'a> Unplaced<'a> {
    fn new(instance: &'a Instance, key: &'a [u64]) -> Self {
        let leaves = instance.len().next_power_of_two();
        let mut nodes = vec![(0, u64::MAX); 2 * leaves];
        for index in 0..instance.len() {
            nodes[leaves + index] = (key[index], instance.death[index]);
        }
        let mut tree = Self { instance, key, leaves, nodes };
        for node in (1..leaves).rev() {
            tree.update(node);
        }
        tree
    }

    fn update(&mut self, node: usize) {
        let (left, right) = (self.nodes[2 * node], self.nodes[2 * node + 1]);
        self.nodes[node] = (left.0.max(right.0), left.1.min(right.1));
    }

    fn remove(&mut self, index: usize) {
        let mut node = self.leaves + index;
        self.nodes[node] = (0, u64::MAX);
        while node > 1 {
            node /= 2;
            self.update(node);
        }
    }

    /// Returns the block with the largest key that lives within the sections `from..to`. Of equal keys,
    /// returns the first block.
    fn best_within(&self, from: u64, to: u64) -> Option<usize> {
        let births = &self.instance.birth;
        let first = births.partition_point(|&birth| birth < from);
        let end = births.partition_point(|&birth| birth < to);
        let mut best = (0, None);
        let mut waiting = [(0usize, 0usize, 0usize); 64];
        let mut height = 1;
        waiting[0] = (1, 0, self.leaves);
        while height > 0 {
            height -= 1;
            let (node, start, width) = waiting[height];
            let (key, death) = self.nodes[node];
            if start >= end || start + width <= first || key <= best.0 || death > to {
                continue;
            }
            if width == 1 {
                best = (self.key[start], Some(start));
                continue;
            }
            let half = width / 2;
            waiting[height] = (2 * node + 1, start + half, half);
            waiting[height + 1] = (2 * node, start, half);
            height += 2;
        }
        best.1
    }
}

/// Adjacent sections whose tops are at the same height. All such stretches form a list in the order of
/// sections.
#[derive(Clone, Copy)]
struct Stretch {
    from: u64,
    to: u64,
    height: u64,
    before: u32,
    after: u32,
    is_live: bool,
}

const NONE: u32 = u32::MAX;

struct Skyline {
    stretches: Vec<Stretch>,
    free: Vec<u32>,
    lowest: BinaryHeap<Reverse<(u64, u64, u32)>>,
}

impl Skyline {
    fn new(sections: u64) -> Self {
        let ground = Stretch { from: 0, to: sections, height: 0, before: NONE, after: NONE, is_live: true };
        let lowest = BinaryHeap::from([Reverse((0, 0, 0))]);
        Self { stretches: vec![ground], free: Vec::new(), lowest }
    }

    /// Takes the lowest stretch. Of equally low stretches, takes the leftmost.
    fn take_lowest(&mut self) -> Option<u32> {
        while let Some(Reverse((height, from, number))) = self.lowest.pop() {
            let stretch = self.stretches[number as usize];
            if stretch.is_live && stretch.height == height && stretch.from == from {
                return Some(number);
            }
        }
        None
    }

    fn wait(&mut self, number: u32) {
        let stretch = self.stretches[number as usize];
        self.lowest.push(Reverse((stretch.height, stretch.from, number)));
    }

    fn link(&mut self, before: u32, after: u32) {
        if before != NONE {
            self.stretches[before as usize].after = after;
        }
        if after != NONE {
            self.stretches[after as usize].before = before;
        }
    }

    fn insert(&mut self, stretch: Stretch) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.stretches[number as usize] = stretch;
                number
            }
            None => {
                self.stretches.push(stretch);
                self.stretches.len() as u32 - 1
            }
        }
    }

    /// Places a block over `from..to` of the stretch. Keeps the remaining parts of the stretch before and
    /// after it.
    fn place(&mut self, number: u32, from: u64, to: u64, size: u64) {
        let old = self.stretches[number as usize];
        let (mut before, mut after) = (old.before, old.after);
        if old.from < from {
            let left = self.insert(Stretch { to: from, ..old });
            self.link(before, left);
            self.wait(left);
            before = left;
        }
        if to < old.to {
            let right = self.insert(Stretch { from: to, ..old });
            self.link(right, after);
            self.wait(right);
            after = right;
        }
        self.stretches[number as usize] = Stretch { from, to, height: old.height + size, ..old };
        self.link(before, number);
        self.link(number, after);
        self.merge(number);
    }

    /// Raises a stretch in which no block fits to the height of its lower neighbour. Returns `false` if it
    /// has no neighbour.
    fn lift(&mut self, number: u32) -> bool {
        let Stretch { before, after, .. } = self.stretches[number as usize];
        let height = |side: u32| (side != NONE).then(|| self.stretches[side as usize].height);
        let Some(lower) = height(before).into_iter().chain(height(after)).min() else { return false };
        self.stretches[number as usize].height = lower;
        self.merge(number);
        true
    }

    /// Merges a stretch with neighbours of the same height, and adds the result to the waiting stretches.
    fn merge(&mut self, number: u32) {
        for side in [self.stretches[number as usize].before, self.stretches[number as usize].after] {
            let here = self.stretches[number as usize];
            if side == NONE || self.stretches[side as usize].height != here.height {
                continue;
            }
            let other = self.stretches[side as usize];
            self.stretches[side as usize].is_live = false;
            self.free.push(side);
            let merged = &mut self.stretches[number as usize];
            merged.from = here.from.min(other.from);
            merged.to = here.to.max(other.to);
            if other.from < here.from {
                self.link(other.before, number);
                self.stretches[number as usize].before = other.before;
            } else {
                self.link(number, other.after);
                self.stretches[number as usize].after = other.after;
            }
        }
        self.wait(number);
    }
}

/// Places all blocks, the largest key first. Keys are positive. Returns `None` if `stop` ends the placement
/// early.
pub(crate) fn skyline(instance: &Instance, key: &[u64], stop: &dyn Fn() -> bool) -> Option<Vec<u64>> {
    let mut offsets = vec![0; instance.len()];
    let mut unplaced = Unplaced::new(instance, key);
    let mut skyline = Skyline::new(instance.sections() as u64);
    let mut left = instance.len();
    let mut steps = 0u32;
    while left > 0 {
        steps = steps.wrapping_add(1);
        if steps.is_multiple_of(1024) && stop() {
            return None;
        }
        let number = skyline.take_lowest()?;
        let Stretch { from, to, height, .. } = skyline.stretches[number as usize];
        match unplaced.best_within(from, to) {
            Some(index) => {
                offsets[index] = height;
                unplaced.remove(index);
                skyline.place(number, instance.birth[index], instance.death[index], instance.size[index]);
                left -= 1;
            }
            None => {
                skyline.lift(number);
            }
        }
    }
    Some(offsets)
}

/// The number of useful keys: lifetime, size, area, sqrt(size) by lifetime, and lifetime with size as
/// tie-breaker.
pub(crate) const KEYS: usize = 5;

/// Returns the key of each block, which is positive.
pub(crate) fn keys(instance: &Instance, number: usize) -> Vec<u64> {
    let key = |index: usize| {
        let size = instance.size[index] as f64;
        let life = (instance.death[index] - instance.birth[index]) as f64;
        let key = match number {
            0 => life,
            1 => size,
            2 => size * life,
            3 => size.sqrt() * life,
            _ => life + size / (size + 1e6),
        };
        // Keys keep their order as bits, because none is negative.
        (key + 1.0).to_bits()
    };
    (0..instance.len()).map(key).collect()
}
