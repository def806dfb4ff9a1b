//! Computes what each stream knows of the other streams at each position. This knowledge comes from the
//! orders in a log.

use std::collections::{BTreeMap, HashMap};

use crate::{Block, Order};

/// The most facts that all streams together can learn about each other. Further orders in the log are
/// ignored. Each fact needs 16 bytes. Without this limit, 10,000 streams that pass on their knowledge would
/// need gigabytes.
const MOST_TOLD: usize = 1 << 22;

/// Pairs of positions. From the first position on, frees up to the second position are ordered. Both
/// positions increase.
type Known = Vec<(u64, u64)>;

/// For each pair of streams, the position up to which the frees of one stream are ordered before the work of
/// the other.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    streams: usize,
    /// The facts that only one pair of streams learns, by the stream that learns and the stream that it
    /// learns about.
    pairs: HashMap<(u32, u32), Known>,
    /// The facts that all streams learn because the host waited for a stream, by this stream.
    by_host: HashMap<u32, Known>,
    /// The positions at which the host waited for the whole device.
    by_device: Vec<u64>,
    /// Whether some orders were ignored because there are too many.
    is_cut: bool,
}

/// From this position on, `seer` is ordered after the work of `seen` up to that position.
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
    /// Reads the orders once. Streams without a block still pass on their knowledge.
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
        let mut steps = Vec::with_capacity(orders.len());
        for (index, order) in orders.iter().enumerate() {
            if let Order::Event { recorded, .. } = *order {
                steps.push((recorded, index, Step::Record));
            }
            steps.push((order.at(), index, Step::Hold));
        }
        steps.sort_by_key(|&(at, index, step)| (at, index, step as u8));
        let mut sweep = Sweep::new(streams, numbers.len());
        let mut recorded: BTreeMap<usize, Vec<(u32, u64)>> = BTreeMap::new();
        for (at, index, step) in steps {
            match (orders[index], step) {
                (Order::Device { .. }, _) => sweep.device(at),
                (Order::Stream { stream, .. }, _) => sweep.host(numbers[&stream] as u32, at),
                (Order::Event { from, .. }, Step::Record) => {
                    recorded.insert(index, sweep.seen_by(numbers[&from] as u32, at));
                }
                (Order::Event { to, .. }, Step::Hold) => {
                    let seen = recorded.remove(&index).unwrap_or_default();
                    sweep.learn(numbers[&to] as u32, at, &seen);
                }
            }
            if sweep.told > MOST_TOLD {
                sweep.clocks.is_cut = true;
                break;
            }
        }
        sweep.clocks
    }

    /// Returns the facts that streams learn about each other, by the position from which they know them.
    /// Waits for the whole device are not included. Returns `None` if there are too many facts.
    pub(crate) fn told(&self) -> Option<Vec<Told>> {
        let streams = self.streams as u32;
        let by_host = || self.by_host.iter().filter(|(seen, _)| **seen < streams);
        let host: usize = by_host().map(|(_, known)| known.len()).sum();
        if self.is_cut || host.saturating_mul(self.streams) > MOST_TOLD {
            return None;
        }
        let mut all = Vec::new();
        let mut add = |seer: u32, seen: u32, known: &Known| {
            let (seer, seen) = (seer as usize, seen as usize);
            all.extend(known.iter().map(|&(from, up_to)| Told { from, seer, seen, up_to }));
        };
        for (&(seer, seen), known) in &self.pairs {
            add(seer, seen, known);
        }
        for (&seen, known) in by_host() {
            (0..streams).filter(|&seer| seer != seen).for_each(|seer| add(seer, seen, known));
        }
        all.sort_unstable_by_key(|told| (told.from, told.seer, told.seen, told.up_to));
        Some(all)
    }

    /// Returns the positions at which the host waited for the whole device, in order.
    pub(crate) fn device_waits(&self) -> &[u64] {
        &self.by_device
    }

    /// Returns the position up to which frees of `seen` are ordered before an allocation of `seer` at `at`.
    pub(crate) fn ordered_up_to(&self, seer: usize, seen: usize, at: u64) -> u64 {
        let last = |known: &Known| {
            let later = known.partition_point(|&(from, _)| from <= at);
            later.checked_sub(1).map_or(0, |index| known[index].1)
        };
        let waits = self.by_device.partition_point(|&wait| wait <= at);
        let device = waits.checked_sub(1).map_or(0, |index| self.by_device[index]);
        self.of(seer, seen).map(last).fold(device, u64::max)
    }

    /// Returns the first position from which `seer` may reuse memory that `seen` freed at `freed`.
    pub(crate) fn ready(&self, seer: usize, seen: usize, freed: u64) -> u64 {
        let first = |known: &Known| {
            let first = known.partition_point(|&(_, up_to)| up_to < freed);
            known.get(first).map_or(u64::MAX, |&(from, _)| from)
        };
        let waits = self.by_device.partition_point(|&wait| wait < freed);
        let device = self.by_device.get(waits).copied().unwrap_or(u64::MAX);
        self.of(seer, seen).map(first).fold(device, u64::min)
    }

    fn of(&self, seer: usize, seen: usize) -> impl Iterator<Item = &Known> {
        let pair = self.pairs.get(&(seer as u32, seen as u32));
        pair.into_iter().chain(self.by_host.get(&(seen as u32)))
    }
}

/// The present knowledge of each stream. All streams know everything that the host knows. The host knows
/// everything up to its last wait for the device.
struct Sweep {
    clocks: Clocks,
    /// The knowledge of each stream beyond the host's knowledge.
    now: Vec<HashMap<u32, u64>>,
    host: HashMap<u32, u64>,
    device: u64,
    /// How often a fact was learned or copied.
    told: usize,
}

impl Sweep {
    fn new(streams: usize, all: usize) -> Self {
        let clocks = Clocks { streams, ..Clocks::default() };
        Self { clocks, now: vec![HashMap::new(); all], host: HashMap::new(), device: 0, told: 0 }
    }

    fn device(&mut self, at: u64) {
        self.device = at;
        if self.clocks.by_device.last() != Some(&at) {
            self.clocks.by_device.push(at);
        }
    }

    /// Returns a stream's knowledge beyond the host's knowledge, including facts about the stream itself.
    fn seen_by(&mut self, stream: u32, at: u64) -> Vec<(u32, u64)> {
        let device = self.device;
        let now = &mut self.now[stream as usize];
        now.retain(|_, up_to| *up_to > device);
        self.told += 1 + now.len();
        let mut seen: Vec<(u32, u64)> = now.iter().map(|(&other, &up_to)| (other, up_to)).collect();
        seen.push((stream, at));
        seen
    }

    /// The host waits for a stream. From now on, all streams know everything that this stream knows.
    fn host(&mut self, stream: u32, at: u64) {
        for (other, up_to) in self.seen_by(stream, at) {
            if up_to <= self.device || self.host.get(&other).is_some_and(|known| *known >= up_to) {
                continue;
            }
            self.host.insert(other, up_to);
            self.clocks.by_host.entry(other).or_default().push((at, up_to));
        }
        self.now[stream as usize].clear();
    }

    /// A stream waits for another stream, and learns the knowledge that the other stream had at that time.
    fn learn(&mut self, seer: u32, at: u64, seen: &[(u32, u64)]) {
        self.told += seen.len();
        let streams = self.clocks.streams as u32;
        for &(other, up_to) in seen {
            let now = &mut self.now[seer as usize];
            let known = now.get(&other).max(self.host.get(&other)).copied().unwrap_or(0).max(self.device);
            if up_to <= known || other == seer {
                continue;
            }
            now.insert(other, up_to);
            if seer < streams && other < streams {
                self.clocks.pairs.entry((seer, other)).or_default().push((at, up_to));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Computes the same with full vector clocks, as in the definition.
    fn ordered(orders: &[Order], streams: usize, seer: usize, seen: usize, position: u64) -> u64 {
        let mut steps = Vec::new();
        for (index, order) in orders.iter().enumerate() {
            if let Order::Event { recorded, .. } = *order {
                steps.push((recorded, index, 0));
            }
            steps.push((order.at(), index, 1));
        }
        steps.sort_unstable();
        let mut now = vec![vec![0; streams]; streams];
        let mut recorded = HashMap::new();
        for (at, index, step) in steps.into_iter().filter(|step| step.0 <= position) {
            let seen_by = |now: &[Vec<u64>], stream: u64| {
                let mut seen = now[stream as usize].clone();
                seen[stream as usize] = at;
                seen
            };
            let (seers, seen) = match orders[index] {
                Order::Device { .. } => (0..streams, vec![at; streams]),
                Order::Stream { stream, .. } => (0..streams, seen_by(&now, stream)),
                Order::Event { from, .. } if step == 0 => {
                    recorded.insert(index, seen_by(&now, from));
                    continue;
                }
                Order::Event { to, .. } => (to as usize..to as usize + 1, recorded[&index].clone()),
            };
            for seer in seers {
                for other in 0..streams {
                    now[seer][other] = now[seer][other].max(seen[other]);
                }
            }
        }
        now[seer][seen]
    }

    #[test]
    fn sparse_clocks_know_what_full_ones_do() {
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let streams = 1 + random.below(5);
            let blocks =
                (0..streams as u64).map(|stream| Block { birth: 0, death: 1, size: 1, stream }).collect();
            let orders: Vec<Order> = (0..random.below(14))
                .map(|_| {
                    let mut below = |end| random.below(end) as u64;
                    let (at, stream, to) = (below(30), below(streams), below(streams));
                    match below(8) {
                        0 => Order::Device { at },
                        1 | 2 => Order::Stream { at, stream },
                        _ => Order::Event { recorded: at, waited: at + below(6), from: stream, to },
                    }
                })
                .collect();
            let problem = crate::Problem::stream_safe(blocks, 1, orders).unwrap();
            let clocks = Clocks::new(problem.blocks(), problem.orders().unwrap());
            for (seer, seen) in (0..streams * streams).map(|pair| (pair / streams, pair % streams)) {
                if seer == seen {
                    continue; // a stream is in order with itself
                }
                for at in 0..40 {
                    let expected = ordered(problem.orders().unwrap(), streams, seer, seen, at);
                    let known = clocks.ordered_up_to(seer, seen, at);
                    assert_eq!(known, expected, "seed {seed}: {seen} at {at} by {seer}");
                }
                for freed in 1..40 {
                    let ready = clocks.ready(seer, seen, freed);
                    let expected = (0..60).find(|&at| clocks.ordered_up_to(seer, seen, at) >= freed);
                    assert_eq!(ready, expected.unwrap_or(u64::MAX), "seed {seed}: {seen} freed at {freed}");
                }
            }
        }
    }

    /// Each of 10,000 streams waits for the one before it, and the host waits for each: 10^8 pairs know of
    /// each other.
    #[test]
    fn ten_thousand_streams_that_all_know_of_each_other_take_no_square_of_memory() {
        let streams = 10_000;
        let blocks: Vec<Block> =
            (0..streams).map(|stream| Block { birth: stream, death: stream + 1, size: 1, stream }).collect();
        let chain =
            |stream: u64| Order::Event { recorded: stream, waited: stream, from: stream - 1, to: stream };
        let chained: Vec<Order> = (1..streams).map(chain).collect();
        let clocks = Clocks::new(&blocks, &chained);
        assert!(clocks.is_cut && clocks.told().is_none());
        let waits: Vec<Order> = (1..streams).map(|at| Order::Stream { at, stream: at - 1 }).collect();
        let clocks = Clocks::new(&blocks, &waits);
        assert!(!clocks.is_cut && clocks.pairs.is_empty());
        assert_eq!(clocks.ordered_up_to(9999, 17, 9999), 18);
        let waits: Vec<Order> = (1..streams).map(|at| Order::Device { at }).collect();
        let clocks = Clocks::new(&blocks, &waits);
        assert_eq!((clocks.ready(3, 4, 77), clocks.told().map(|told| told.len())), (77, Some(0)));
        // If there are too many orders for a bound, the sum of blocks that are live together remains a bound.
        let problem = crate::Problem::stream_safe(blocks, 1, chained).unwrap();
        assert_eq!(crate::bounds(&problem).bytes, 1);
    }
}
