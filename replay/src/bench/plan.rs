use millpond_core::format_bytes;

/// A source of random numbers: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). The harness of the peers
/// has the same, so that one seed is one plan for all.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    /// The numbers of one lane of a seed; other lanes have others.
    pub(super) const fn new(seed: u64, lane: u64) -> Self {
        Self(mix(seed ^ mix(lane + 1)))
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, which is not 0.
    pub(super) const fn below(&mut self, bound: u64) -> u64 {
        ((self.next() as u128 * bound as u128) >> 64) as u64
    }

    /// A number from 0 up to, but not including, 1.
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

/// The sizes of blocks in bytes, log-uniform: each doubling is as likely as any other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sizes {
    pub(super) smallest: u64,
    pub(super) largest: u64,
}

impl Sizes {
    pub(super) const fn only(bytes: u64) -> Self {
        Self { smallest: bytes, largest: bytes }
    }

    fn draw(self, random: &mut Random) -> u64 {
        let (smallest, largest) = (self.smallest as f64, self.largest as f64);
        let bytes = smallest * (random.unit() * (largest / smallest).ln()).exp();
        (bytes as u64).clamp(self.smallest, self.largest)
    }
}

impl std::fmt::Display for Sizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.smallest == self.largest {
            return f.write_str(&format_bytes(self.smallest));
        }
        write!(f, "{}..{}", format_bytes(self.smallest), format_bytes(self.largest))
    }
}

/// One step: the block in `slot` is freed, and one of `bytes` takes its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Replacement {
    pub(super) slot: u32,
    pub(super) bytes: u64,
}

/// What one thread does: made before, so that drawing numbers is no part of what is measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    /// The sizes of the first block of each slot.
    pub(super) fill: Vec<u64>,
    /// Steps before the clock starts.
    pub(super) warm_up: Vec<Replacement>,
    /// Steps that are measured, with a meeting of all threads before each round.
    pub(super) rounds: Vec<Vec<Replacement>>,
    /// The most bytes that are live at one time.
    pub(super) peak_bytes: u64,
}

/// Which slots steps replace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// Any, one round.
    Random,
    /// Each once in a round, in an order drawn anew for each.
    Sweeps,
}

/// How many of what a plan has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) live: usize,
    pub(super) sizes: Sizes,
    pub(super) warm_up: usize,
    pub(super) steps: usize,
    pub(super) order: Order,
}

impl Plan {
    pub(super) fn new(mut random: Random, shape: Shape) -> Self {
        let Shape { live, sizes, warm_up, steps, order } = shape;
        let fill: Vec<u64> = (0..live).map(|_| sizes.draw(&mut random)).collect();
        let any = |random: &mut Random| Replacement {
            slot: random.below(live as u64) as u32,
            bytes: sizes.draw(random),
        };
        let warm_up: Vec<_> = (0..warm_up).map(|_| any(&mut random)).collect();
        let rounds = match order {
            Order::Random => vec![(0..steps).map(|_| any(&mut random)).collect()],
            Order::Sweeps => (0..steps / live).map(|_| sweep(&mut random, live, sizes)).collect(),
        };
        let mut plan = Self { fill, warm_up, rounds, peak_bytes: 0 };
        plan.peak_bytes = plan.most_bytes();
        plan
    }

    /// How many steps are measured, unless time runs out.
    pub(super) fn steps(&self) -> usize {
        self.rounds.iter().map(Vec::len).sum()
    }

    fn most_bytes(&self) -> u64 {
        let mut slots = self.fill.clone();
        let mut live: u64 = slots.iter().sum();
        let mut most = live;
        for step in self.warm_up.iter().chain(self.rounds.iter().flatten()) {
            let slot = &mut slots[step.slot as usize];
            live = live - *slot + step.bytes;
            *slot = step.bytes;
            most = most.max(live);
        }
        most
    }
}

/// Every slot once, shuffled (Fisher and Yates).
fn sweep(random: &mut Random, live: usize, sizes: Sizes) -> Vec<Replacement> {
    let mut steps: Vec<Replacement> =
        (0..live).map(|slot| Replacement { slot: slot as u32, bytes: sizes.draw(random) }).collect();
    for last in (1..live).rev() {
        steps.swap(last, random.below(last as u64 + 1) as usize);
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes { smallest: 256, largest: 1 << 20 };

    fn shape(order: Order) -> Shape {
        Shape { live: 100, sizes: SIZES, warm_up: 50, steps: 1000, order }
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

    /// These numbers come from `benches/peers`, in C++ and in Python: all do the same work.
    #[test]
    fn the_numbers_are_those_of_the_peers() {
        let mut random = Random::new(42, 0);
        assert_eq!([random.next(), random.next()], [3_559_393_546_817_448_020, 6_457_831_781_006_907_122]);
        assert_eq!((random.below(1000), SIZES.draw(&mut random)), (129, 14_055));
        let shape = Shape { live: 1000, sizes: SIZES, warm_up: 2000, steps: 20_000, order: Order::Random };
        assert_eq!(Plan::new(Random::new(42, 1000 << 16), shape).peak_bytes, 143_819_365);
    }

    #[test]
    fn as_many_blocks_are_live_as_asked_for() {
        for order in [Order::Random, Order::Sweeps] {
            let plan = Plan::new(Random::new(3, 0), shape(order));
            assert_eq!((plan.fill.len(), plan.warm_up.len(), plan.steps()), (100, 50, 1000));
            let steps = plan.warm_up.iter().chain(plan.rounds.iter().flatten());
            assert!(steps.into_iter().all(|step| step.slot < 100));
            let first: u64 = plan.fill.iter().sum();
            assert!(plan.peak_bytes >= first && plan.peak_bytes <= 100 << 20, "{}", plan.peak_bytes);
        }
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
