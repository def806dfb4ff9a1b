//! What each stream knows of the others at each position, from the orders of a log.

use std::collections::BTreeMap;

use crate::{Block, Order};

/// For each pair of streams, up to which position one stream's frees are ordered before the other's work.
#[derive(Debug)]
pub(crate) struct Clocks {
    streams: usize,
    /// By `seer * streams + seen`: from this position on, frees up to that one are ordered. Both rise.
    known: Vec<Vec<(u64, u64)>>,
}

/// From this position on, `seer` is ordered after what `seen` did up to that one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) from: u64,
    pub(crate) seer: usize,
    pub(crate) seen: usize,
    pub(crate) up_to: u64,
}

/// Numbers the streams of blocks from 0, in the order of their ids.
pub(crate) fn number_streams(blocks: &[Block]) -> BTreeMap<u64, usize> {
    let mut numbers: BTreeMap<u64, usize> = blocks.iter().map(|block| (block.stream, 0)).collect();
    for (number, entry) in numbers.values_mut().enumerate() {
        *entry = number;
    }
    numbers
}

#[derive(Clone, Copy)]
enum Step {
    Record,
    Hold,
}

impl Clocks {
    /// Goes over the orders once. Streams without a block still pass on what they know.
    pub(crate) fn new(blocks: &[Block], orders: &[Order]) -> Self {
        let mut numbers = number_streams(blocks);
        let streams = numbers.len();
        for order in orders {
            let named = match *order {
                Order::Device { .. } => continue,
                Order::Stream { stream, .. } => [stream; 2],
                Order::Event { from, to, .. } => [from, to],
            };
            for stream in named {
                let next = numbers.len();
                numbers.entry(stream).or_insert(next);
            }
        }
        let mut sweep = Sweep {
            clocks: Self { streams, known: vec![Vec::new(); streams * streams] },
            now: vec![vec![0; numbers.len()]; numbers.len()],
        };
        let mut steps = Vec::with_capacity(orders.len());
        for (index, order) in orders.iter().enumerate() {
            if let Order::Event { recorded, .. } = *order {
                steps.push((recorded, index, Step::Record));
            }
            steps.push((order.at(), index, Step::Hold));
        }
        steps.sort_by_key(|&(at, index, step)| (at, index, step as u8));
        let mut recorded: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for (at, index, step) in steps {
            match (orders[index], step) {
                (Order::Device { .. }, _) => {
                    let all = vec![at; numbers.len()];
                    sweep.everyone(at, &all);
                }
                (Order::Stream { stream, .. }, _) => {
                    let seen = sweep.seen_by(numbers[&stream], at);
                    sweep.everyone(at, &seen);
                }
                (Order::Event { from, .. }, Step::Record) => {
                    recorded.insert(index, sweep.seen_by(numbers[&from], at));
                }
                (Order::Event { to, .. }, Step::Hold) => {
                    let seen = recorded.remove(&index).unwrap_or_default();
                    sweep.learn(numbers[&to], at, &seen);
                }
            }
        }
        sweep.clocks
    }

    /// All that streams are told of each other, by the position from which they know.
    pub(crate) fn told(&self) -> Vec<Told> {
        let mut all = Vec::new();
        for (pair, known) in self.known.iter().enumerate() {
            let (seer, seen) = (pair / self.streams, pair % self.streams);
            all.extend(known.iter().map(|&(from, up_to)| Told { from, seer, seen, up_to }));
        }
        all.sort_unstable_by_key(|told| (told.from, told.seer, told.seen));
        all
    }

    /// Frees of `seen` up to this position are ordered before an allocation of `seer` at `at`.
    pub(crate) fn ordered_up_to(&self, seer: usize, seen: usize, at: u64) -> u64 {
        let known = &self.known[seer * self.streams + seen];
        let later = known.partition_point(|&(from, _)| from <= at);
        later.checked_sub(1).map_or(0, |index| known[index].1)
    }

    /// The first position from which `seer` may reuse what `seen` freed at `freed`.
    pub(crate) fn ready(&self, seer: usize, seen: usize, freed: u64) -> u64 {
        let known = &self.known[seer * self.streams + seen];
        let first = known.partition_point(|&(_, up_to)| up_to < freed);
        known.get(first).map_or(u64::MAX, |&(from, _)| from)
    }
}

struct Sweep {
    clocks: Clocks,
    now: Vec<Vec<u64>>,
}

impl Sweep {
    fn seen_by(&self, stream: usize, at: u64) -> Vec<u64> {
        let mut seen = self.now[stream].clone();
        seen[stream] = at;
        seen
    }

    fn everyone(&mut self, at: u64, seen: &[u64]) {
        for stream in 0..self.now.len() {
            self.learn(stream, at, seen);
        }
    }

    fn learn(&mut self, seer: usize, at: u64, seen: &[u64]) {
        let streams = self.clocks.streams;
        for (other, &up_to) in seen.iter().enumerate() {
            if up_to <= self.now[seer][other] || other == seer {
                continue;
            }
            self.now[seer][other] = up_to;
            if seer < streams && other < streams {
                self.clocks.known[seer * streams + other].push((at, up_to));
            }
        }
    }
}
