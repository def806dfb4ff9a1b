//! Plans of random steps. They are drawn before the clock starts.

use std::ops::Range;

use millpond_core::format_bytes;

/// A source of random numbers: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). The programs in
/// `benches/peers` use the same source, so a seed gives the same plan in each program.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Returns the source for one lane of a seed. Each lane has different numbers.
    pub(crate) const fn new(seed: u64, lane: u64) -> Self {
        Self(mix(seed ^ mix(lane + 1)))
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number below `bound`, which must not be 0.
    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        ((self.next() as u128 * bound as u128) >> 64) as u64
    }

    /// Returns a number from 0 up to, but not including, 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Spreads every bit of `x` over all bits.
const fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The sizes of blocks in bytes. They are log-uniform: every doubling is equally likely.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sizes {
    pub(super) smallest: u32,
    pub(super) largest: u32,
}

impl Sizes {
    pub(super) const fn only(bytes: u32) -> Self {
        Self { smallest: bytes, largest: bytes }
    }

    fn draw(self, random: &mut Random) -> u32 {
        let (smallest, largest) = (f64::from(self.smallest), f64::from(self.largest));
        let bytes = smallest * (random.unit() * (largest / smallest).ln()).exp();
        (bytes as u32).clamp(self.smallest, self.largest)
    }
}

impl std::fmt::Display for Sizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.smallest == self.largest {
            return f.write_str(&format_bytes(self.smallest.into()));
        }
        write!(f, "{}..{}", format_bytes(self.smallest.into()), format_bytes(self.largest.into()))
    }
}

/// A block to allocate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request {
    pub(super) bytes: u32,
    /// The number of the stream.
    pub(super) stream: u32,
}

/// One step: the block in `slot` is freed, and another block takes its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Replacement {
    pub(super) slot: u32,
    pub(super) by: Request,
}

/// The steps of one thread. They are drawn in advance, so that drawing them is not measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    /// The blocks that are allocated first, to fragment the heap.
    pub(super) fragments: Vec<Request>,
    /// The fragmenting blocks to free afterwards, in this order. The other fragmenting blocks stay until the
    /// end.
    pub(super) freed: Vec<u32>,
    /// The first block of each slot.
    pub(super) fill: Vec<Request>,
    /// The steps before the clock starts.
    pub(super) warm_up: Vec<Replacement>,
    /// The measured steps in rounds. Before each round, all threads wait for each other.
    pub(super) rounds: Vec<Vec<Replacement>>,
    /// The most bytes that are live at one time.
    pub(super) peak_bytes: u64,
}

/// Which slots the steps replace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// Any slot, at random, in one round.
    Random,
    /// Each slot once in each round, in a new random order.
    Sweeps,
}

/// The numbers that define a plan.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) fragments: Fragments,
    pub(super) live: usize,
    pub(super) sizes: Sizes,
    /// The streams. Each block is on one of them, at random.
    pub(super) streams: Range<u32>,
    pub(super) warm_up: usize,
    pub(super) steps: usize,
    pub(super) order: Order,
}

/// The blocks that fragment a heap before the first step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fragments {
    pub(super) count: usize,
    pub(super) sizes: Sizes,
    /// The percentage of these blocks that are freed before the first step.
    pub(super) freed_percent: u32,
}

impl Fragments {
    pub(super) const NONE: Self = Self { count: 0, sizes: Sizes::only(1), freed_percent: 0 };
}

impl Plan {
    pub(super) fn new(mut random: Random, shape: Shape) -> Self {
        let Shape { fragments: Fragments { count, sizes, freed_percent }, .. } = shape;
        let fragments = (0..count).map(|_| shape.request(sizes, &mut random)).collect();
        let freed = some(&mut random, count, count * freed_percent as usize / 100);
        let fill = (0..shape.live).map(|_| shape.request(shape.sizes, &mut random)).collect();
        let warm_up = (0..shape.warm_up).map(|_| shape.any(&mut random)).collect();
        let rounds = match shape.order {
            Order::Random => vec![(0..shape.steps).map(|_| shape.any(&mut random)).collect()],
            Order::Sweeps => (0..shape.steps / shape.live).map(|_| shape.sweep(&mut random)).collect(),
        };
        let mut plan = Self { fragments, freed, fill, warm_up, rounds, peak_bytes: 0 };
        plan.peak_bytes = plan.most_bytes();
        plan
    }

    /// Returns the number of measured steps, if the time suffices for all of them.
    pub(super) fn steps(&self) -> usize {
        self.rounds.iter().map(Vec::len).sum()
    }

    /// Adds all numbers of the plan, except the peak, to the hash `hash`. The hash is FNV-1a, over 32 bits at
    /// a time.
    #[cfg(test)]
    pub(super) fn digest(&self, hash: u64) -> u64 {
        let request = |of: &Request| [of.bytes, of.stream];
        let steps = self.warm_up.iter().chain(self.rounds.iter().flatten());
        let numbers = self.fragments.iter().flat_map(request);
        let numbers = numbers.chain(self.freed.iter().copied()).chain(self.fill.iter().flat_map(request));
        let numbers = numbers.chain(steps.flat_map(|step| [step.slot, step.by.bytes, step.by.stream]));
        numbers.fold(hash, |hash, number| (hash ^ u64::from(number)).wrapping_mul(0x100_0000_01b3))
    }

    fn most_bytes(&self) -> u64 {
        let sum = |requests: &[Request]| requests.iter().map(|request| u64::from(request.bytes)).sum::<u64>();
        let fragments = sum(&self.fragments);
        let gone: u64 = self.freed.iter().map(|&index| u64::from(self.fragments[index as usize].bytes)).sum();
        let mut slots = self.fill.clone();
        let mut live = fragments - gone + sum(&slots);
        let mut most = live.max(fragments);
        for step in self.warm_up.iter().chain(self.rounds.iter().flatten()) {
            let slot = &mut slots[step.slot as usize];
            live = live - u64::from(slot.bytes) + u64::from(step.by.bytes);
            *slot = step.by;
            most = most.max(live);
        }
        most
    }
}

impl Shape {
    fn request(&self, sizes: Sizes, random: &mut Random) -> Request {
        let bytes = sizes.draw(random);
        let Range { start, end } = self.streams;
        // A single stream needs no number, so its plan equals the plan of a workload without streams.
        let stream =
            if end - start > 1 { start + random.below(u64::from(end - start)) as u32 } else { start };
        Request { bytes, stream }
    }

    fn any(&self, random: &mut Random) -> Replacement {
        let slot = random.below(self.live as u64) as u32;
        Replacement { slot, by: self.request(self.sizes, random) }
    }

    /// Returns every slot once, in a random order (Fisher and Yates).
    fn sweep(&self, random: &mut Random) -> Vec<Replacement> {
        let mut steps: Vec<Replacement> = (0..self.live as u32)
            .map(|slot| Replacement { slot, by: self.request(self.sizes, random) })
            .collect();
        for last in (1..self.live).rev() {
            steps.swap(last, random.below(last as u64 + 1) as usize);
        }
        steps
    }
}

/// Draws `count` of the numbers below `bound`, each at most once, in any order. The method is the start of a
/// shuffle.
fn some(random: &mut Random, bound: usize, count: usize) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..bound as u32).collect();
    for at in 0..count {
        numbers.swap(at, at + random.below((bound - at) as u64) as usize);
    }
    numbers.truncate(count);
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes { smallest: 256, largest: 1 << 20 };

    fn shape(order: Order) -> Shape {
        let fragments = Fragments { count: 40, sizes: SIZES, freed_percent: 25 };
        Shape { fragments, live: 100, sizes: SIZES, streams: 3..7, warm_up: 50, steps: 1000, order }
    }

    #[test]
    fn the_same_seed_is_the_same_plan_and_another_seed_or_lane_is_another() {
        for order in [Order::Random, Order::Sweeps] {
            let plan = |seed, lane| Plan::new(Random::new(seed, lane), shape(order));
            assert_eq!(plan(1, 0), plan(1, 0));
            assert_ne!(plan(1, 0), plan(2, 0));
            assert_ne!(plan(1, 0), plan(1, 1));
        }
    }

    #[test]
    fn as_many_blocks_are_live_as_asked_for() {
        for order in [Order::Random, Order::Sweeps] {
            let plan = Plan::new(Random::new(3, 0), shape(order));
            assert_eq!((plan.fill.len(), plan.warm_up.len(), plan.steps()), (100, 50, 1000));
            let steps = plan.warm_up.iter().chain(plan.rounds.iter().flatten());
            assert!(steps.clone().all(|step| step.slot < 100));
            for stream in 3..7 {
                assert!(steps.clone().any(|step| step.by.stream == stream));
            }
            assert!(steps.into_iter().all(|step| (3..7).contains(&step.by.stream)));
            let first: u64 = plan.fill.iter().map(|request| u64::from(request.bytes)).sum();
            assert!(plan.peak_bytes >= first && plan.peak_bytes <= 140 << 20, "{}", plan.peak_bytes);
        }
    }

    #[test]
    fn of_fragments_a_share_is_freed_and_bytes_that_stay_are_counted() {
        let mut of = shape(Order::Random);
        of.fragments = Fragments { count: 1000, sizes: Sizes::only(1 << 20), freed_percent: 60 };
        let plan = Plan::new(Random::new(3, 0), of.clone());
        let mut freed = plan.freed.clone();
        assert!(!freed.is_sorted() && freed.iter().all(|&index| index < 1000));
        freed.sort_unstable();
        freed.dedup();
        assert_eq!((plan.fragments.len(), freed.len()), (1000, 600));
        assert_eq!(plan.peak_bytes, 1000 << 20, "before the share is freed");
        of.fragments.freed_percent = 0;
        let stay = Plan::new(Random::new(3, 0), of);
        assert!(stay.freed.is_empty() && stay.peak_bytes > 1000 << 20);
    }

    #[test]
    fn a_sweep_replaces_each_block_once_and_not_in_order() {
        let plan = Plan::new(Random::new(3, 0), shape(Order::Sweeps));
        assert_eq!(plan.rounds.len(), 10);
        for round in &plan.rounds {
            let mut slots: Vec<u32> = round.iter().map(|step| step.slot).collect();
            assert!(!slots.is_sorted());
            slots.sort_unstable();
            assert_eq!(slots, (0..100).collect::<Vec<u32>>());
        }
    }

    #[test]
    fn sizes_are_log_uniform() {
        let mut random = Random::new(5, 0);
        let mut by_doubling = [0_u32; 12];
        for _ in 0..12_000 {
            let bytes = SIZES.draw(&mut random);
            assert!((SIZES.smallest..=SIZES.largest).contains(&bytes));
            by_doubling[(bytes.ilog2() as usize - 8).min(11)] += 1;
        }
        // 1000 are expected in each, with a standard deviation of 30.
        assert!(by_doubling.iter().all(|count| (850..1150).contains(count)), "{by_doubling:?}");
        assert_eq!(Sizes::only(4096).draw(&mut random), 4096);
    }
}
