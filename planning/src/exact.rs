//! Exact search: finds out whether a placement of at most this height exists.
//!
//! A placement can be built block by block in the order of offsets. Each block is dropped onto the blocks
//! below it. The search tries these orders depth first. It skips orders that differ only in the sequence of
//! equal choices. It skips drops of a block onto a gap that another whole block fits into. It also skips
//! states in which the blocks that remain for a section exceed its room. If no remaining block crosses a
//! section, the blocks before and after it are searched separately.

use std::collections::HashMap;

use crate::instance::{Instance, UNPLACED};
use crate::random::Random;

/// How a search ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The search found a placement with these offsets.
    Found(Vec<u64>),
    /// No placement has at most this height.
    Impossible,
    /// All nodes are used up, or the caller asked the search to stop.
    Unknown,
}

/// The number of preference orders without randomness.
pub(crate) const ORDERS: usize = 6;

/// The most words of memory for stored failures.
const FAILURES: usize = 8 << 20;

/// The most failures that are stored for the same set of blocks. Each lookup compares all of them.
const SAME: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    Found,
    Failed,
    Stopped,
}

/// A failed state for a set of remaining blocks. Any other state whose floors are at least as high fails,
/// too.
struct Failure {
    floors: Vec<u64>,
    /// Only offsets at or above this offset were tried. Ranks change, so equal offsets show nothing.
    after: u64,
}

pub(crate) struct Exact<'a> {
    instance: &'a Instance,
    capacity: u64,
    /// The conflicts of each block.
    conflicts: Vec<Vec<u32>>,
    /// The blocks of each section.
    members: Vec<Vec<u32>>,
    /// The place of each block in the order of preference.
    rank: Vec<u32>,
    order: usize,
    shake: Vec<(f64, f64)>,
    /// A random number for each block; the sum over a set identifies the set.
    name: Vec<u64>,
    offsets: Vec<u64>,
    /// For each unplaced block, the height onto which it would drop.
    lowest: Vec<u64>,
    /// For each section, the height below which nothing more can be placed.
    floor: Vec<u64>,
    /// For each section, the sum of sizes that are left to place.
    rest: Vec<u64>,
    /// The values to restore, as (index, old value), for `lowest` and `floor`.
    lowest_trail: Vec<(u32, u64)>,
    floor_trail: Vec<(u32, u64)>,
    touched: Vec<u32>,
    touched_at: Vec<u64>,
    stamp: u64,
    failures: HashMap<u64, Vec<Failure>>,
    failures_left: usize,
    nodes: u64,
    stop: &'a dyn Fn() -> bool,
}

impl<'a> Exact<'a> {
    /// Prepares a search for placements of at most `capacity` units. Works with one lane only.
    pub(crate) fn new(instance: &'a Instance, capacity: u64, stop: &'a dyn Fn() -> bool) -> Self {
        let (blocks, sections) = (instance.len(), instance.sections());
        let mut conflicts = vec![Vec::new(); blocks];
        let mut members = vec![Vec::new(); sections];
        for (index, conflicts) in conflicts.iter_mut().enumerate() {
            instance.conflicts(index, |other| conflicts.push(other as u32));
            for section in &mut members[instance.birth[index] as usize..instance.death[index] as usize] {
                section.push(index as u32);
            }
        }
        let mut random = Random::new(blocks as u64);
        Self {
            instance,
            capacity,
            conflicts,
            members,
            rank: vec![0; blocks],
            order: 0,
            shake: Vec::new(),
            name: (0..blocks).map(|_| random.next()).collect(),
            offsets: vec![UNPLACED; blocks],
            lowest: vec![0; blocks],
            floor: vec![0; sections],
            rest: instance.loads(),
            lowest_trail: Vec::new(),
            floor_trail: Vec::new(),
            touched: Vec::new(),
            touched_at: vec![0; sections],
            stamp: 0,
            failures: HashMap::new(),
            failures_left: 0,
            nodes: 0,
            stop,
        }
    }

    /// Searches at most `nodes` states, preferring blocks in the order with this number; from [`ORDERS`] on,
    /// the order is random.
    pub(crate) fn search(&mut self, order: usize, seed: u64, nodes: u64) -> Outcome {
        if self.rest.iter().any(|&load| load > self.capacity) {
            return Outcome::Impossible;
        }
        self.order = order;
        self.shake = Self::shakes(order, seed, self.instance.len());
        self.offsets.fill(UNPLACED);
        self.lowest.fill(0);
        self.floor.fill(0);
        self.rest = self.instance.loads();
        self.lowest_trail.clear();
        self.floor_trail.clear();
        self.failures.clear();
        self.failures_left = FAILURES / (self.floor.len() + 8);
        self.nodes = nodes;
        let all: Vec<u32> = (0..self.instance.len() as u32).collect();
        self.rank(&all);
        match self.parts(all, (0, 0)) {
            Ended::Found => Outcome::Found(self.offsets.clone()),
            Ended::Failed => Outcome::Impossible,
            Ended::Stopped => Outcome::Unknown,
        }
    }

    /// Ranks the blocks of a part by the order of preference, with the sizes left to place in their sections.
    fn rank(&mut self, part: &[u32]) {
        let instance = self.instance;
        let key = |index: usize| {
            let sections = instance.birth[index] as usize..instance.death[index] as usize;
            let width = sections.len() as f64;
            let total = self.rest[sections].iter().max().copied().unwrap_or(0) as f64;
            let life = instance.life[index] as f64;
            let size = instance.size[index] as f64;
            let (first, second, third) = match self.order % ORDERS {
                0 => (total, size * life, life),
                1 => (total, life, size * life),
                2 => (life, size * life, total),
                3 => (total, size * width, width),
                4 => (size * width, total, width),
                _ => (width, size, total),
            };
            let shake = self.shake[index];
            (first * shake.0, second * shake.1, third)
        };
        let mut sorted: Vec<_> = part.iter().map(|&index| (key(index as usize), index)).collect();
        sorted.sort_by(|(a, first), (b, second)| {
            b.partial_cmp(a).unwrap_or(std::cmp::Ordering::Equal).then(first.cmp(second))
        });
        for (rank, &(_, index)) in sorted.iter().enumerate() {
            self.rank[index as usize] = rank as u32;
        }
    }

    /// Returns factors near 1 for each block, which change the order of preference at random.
    fn shakes(order: usize, seed: u64, blocks: usize) -> Vec<(f64, f64)> {
        let mut random = Random::new(seed ^ order as u64);
        let noise = [0.0, 0.1, 0.3, 0.6][(order / ORDERS) % 4];
        let mut shake = || 1.0 + noise * (random.below(1 << 20) as f64 / f64::from(1 << 19) - 1.0);
        (0..blocks).map(|_| (shake(), shake())).collect()
    }

    /// Searches each part separately. No remaining block crosses from one part to another. The blocks are in
    /// the order of births.
    fn parts(&mut self, blocks: Vec<u32>, after: (u64, u32)) -> Ended {
        let mut parts: Vec<Vec<u32>> = Vec::new();
        let mut end = 0;
        for &index in &blocks {
            if parts.is_empty() || self.instance.birth[index as usize] >= end {
                parts.push(Vec::new());
            }
            end = end.max(self.instance.death[index as usize]);
            if let Some(part) = parts.last_mut() {
                part.push(index);
            }
        }
        if parts.len() == 1 {
            return self.remembered(&blocks, after);
        }
        // The tightest part comes first, because it fails soonest.
        parts.sort_by_cached_key(|part| part.iter().map(|&index| self.slack(index)).min());
        for (number, part) in parts.iter().enumerate() {
            // The remaining blocks get a new order of preference, and their offsets start again.
            let ranks: Vec<u32> = part.iter().map(|&index| self.rank[index as usize]).collect();
            self.rank(part);
            let ended = self.remembered(part, (0, 0));
            if ended != Ended::Found {
                for (&index, rank) in part.iter().zip(ranks) {
                    self.rank[index as usize] = rank;
                }
                // The earlier parts were placed.
                parts[..number].iter().flatten().for_each(|&index| self.unplace(index as usize));
                return ended;
            }
        }
        Ended::Found
    }

    fn slack(&self, index: u32) -> u64 {
        let (birth, death) = self.span(index as usize);
        let left = (birth..death).map(|section| self.capacity - self.floor[section] - self.rest[section]);
        left.min().unwrap_or(0)
    }

    fn span(&self, index: usize) -> (usize, usize) {
        (self.instance.birth[index] as usize, self.instance.death[index] as usize)
    }

    /// Searches a part, unless a state that was no worse has failed.
    fn remembered(&mut self, part: &[u32], after: (u64, u32)) -> Ended {
        if let [index] = *part {
            // The block hinders no other block, so it needs no position in the order of offsets.
            let index = index as usize;
            self.offsets[index] = self.lowest[index];
            let (birth, death) = self.span(index);
            self.rest[birth..death].iter_mut().for_each(|rest| *rest -= self.instance.size[index]);
            return Ended::Found;
        }
        let turn = |&index: &u32| (self.lowest[index as usize], self.rank[index as usize]) >= after;
        // An offset that keeps no block out does not narrow the search, now or later.
        let after = if part.iter().all(turn) { (0, 0) } else { after };
        let first = self.instance.birth[part[0] as usize] as usize;
        let end = part.iter().map(|&index| self.span(index as usize).1).max().unwrap_or(first);
        let name = part.iter().fold(0u64, |sum, &index| sum.wrapping_add(self.name[index as usize]));
        if let Some(failures) = self.failures.get(&name) {
            let floors = &self.floor[first..end];
            let as_high = |failure: &Failure| {
                failure.after <= after.0
                    && failure.floors.iter().zip(floors).all(|(failed, now)| failed <= now)
            };
            if failures.iter().any(as_high) {
                return Ended::Failed;
            }
        }
        let ended = self.drop_one(part, after);
        if ended == Ended::Failed && self.failures_left > 0 {
            let failures = self.failures.entry(name).or_default();
            if failures.len() < SAME {
                self.failures_left -= 1;
                let after = after.0 + u64::from(after.1 > 0);
                failures.push(Failure { floors: self.floor[first..end].to_vec(), after });
            }
        }
        ended
    }

    /// Tries each block of a part as the next block, at or above the previous block's offset.
    fn drop_one(&mut self, part: &[u32], after: (u64, u32)) -> Ended {
        if part.is_empty() {
            return Ended::Found;
        }
        let top = |&index: &u32| self.lowest[index as usize] + self.instance.size[index as usize];
        let gap = part.iter().map(top).min().unwrap_or(0);
        let mut next: Vec<(u64, u32, u32)> = part
            .iter()
            .map(|&index| (self.lowest[index as usize], self.rank[index as usize], index))
            .filter(|&(offset, rank, _)| offset < gap && (offset, rank) >= after)
            .collect();
        next.sort_unstable();
        for (offset, rank, index) in next {
            if self.nodes == 0 || (self.nodes.is_multiple_of(256) && (self.stop)()) {
                return Ended::Stopped;
            }
            self.nodes -= 1;
            let marks = (self.lowest_trail.len(), self.floor_trail.len());
            let mut ended = Ended::Failed;
            let mut hinders = true;
            if self.place(index as usize, offset, part) {
                let left = part.iter().copied().filter(|&other| other != index).collect();
                hinders = self.lowest_trail.len() > marks.0;
                ended = self.parts(left, (offset, rank));
            }
            if ended == Ended::Found {
                return ended;
            }
            self.undo(index as usize, marks);
            // If a block raised no other block, it is never in the way. If the search failed with it, it also
            // fails without it.
            if ended == Ended::Stopped || !hinders {
                return ended;
            }
        }
        Ended::Failed
    }

    /// Places a block. Returns `false` if this makes some section of the part too full.
    fn place(&mut self, index: usize, offset: u64, part: &[u32]) -> bool {
        let size = self.instance.size[index];
        let top = offset + size;
        self.offsets[index] = offset;
        let (birth, death) = self.span(index);
        let mut fits = true;
        for section in birth..death {
            self.floor_trail.push((section as u32, self.floor[section]));
            self.floor[section] = top;
            self.rest[section] -= size;
            fits &= top + self.rest[section] <= self.capacity;
        }
        if !fits {
            return false;
        }
        self.raise(index, top);
        for touched in 0..self.touched.len() {
            let section = self.touched[touched] as usize;
            let left =
                self.members[section].iter().filter(|&&other| self.offsets[other as usize] == UNPLACED);
            let lowest = left.map(|&other| self.lowest[other as usize]).min().unwrap_or(0);
            if lowest > self.floor[section] {
                self.floor_trail.push((section as u32, self.floor[section]));
                self.floor[section] = lowest;
                if lowest + self.rest[section] > self.capacity {
                    return false;
                }
            }
        }
        // All blocks that are placed from now on lie at `offset` or above.
        part.iter().all(|&other| {
            let (birth, death) = self.span(other as usize);
            let rest = &self.rest[birth..death];
            self.offsets[other as usize] != UNPLACED
                || rest.iter().all(|&rest| offset + rest <= self.capacity)
        })
    }

    /// Raises the blocks that conflict with a placed block to its top, and marks their sections.
    fn raise(&mut self, index: usize, top: u64) {
        self.touched.clear();
        self.stamp += 1;
        for &other in &self.conflicts[index] {
            let other = other as usize;
            if self.offsets[other] != UNPLACED || self.lowest[other] >= top {
                continue;
            }
            self.lowest_trail.push((other as u32, self.lowest[other]));
            self.lowest[other] = top;
            let sections = self.instance.birth[other] as usize..self.instance.death[other] as usize;
            for section in sections {
                if self.touched_at[section] != self.stamp {
                    self.touched_at[section] = self.stamp;
                    self.touched.push(section as u32);
                }
            }
        }
    }

    fn undo(&mut self, index: usize, (lowest, floor): (usize, usize)) {
        while self.lowest_trail.len() > lowest {
            if let Some((other, old)) = self.lowest_trail.pop() {
                self.lowest[other as usize] = old;
            }
        }
        while self.floor_trail.len() > floor {
            if let Some((section, old)) = self.floor_trail.pop() {
                self.floor[section as usize] = old;
            }
        }
        self.unplace(index);
    }

    /// Removes a placed block.
    fn unplace(&mut self, index: usize) {
        let (birth, death) = self.span(index);
        let size = self.instance.size[index];
        for rest in &mut self.rest[birth..death] {
            *rest += size;
        }
        self.offsets[index] = UNPLACED;
    }
}
