//! Programs in which nothing repeats for a while: the layer leaves them alone, and watches them once more.

use std::time::Duration;

use millpond_core::{DeviceMemoryResourceExt, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_testkit::Rng;

use crate::plan::PlanLayer;
use crate::plan::history::{FIRST_EVENTS, MOST_EVENTS};
use crate::plan::learning::REST_REQUESTS;
use crate::plan::recovery_tests::{Stack, body, give, on_legacy};
use crate::sync::Ordering;
use crate::{CudaMemoryResource, PoolLayer};

/// The program, and the layer over a pool.
struct World {
    stack: Stack,
    rng: Rng,
}

impl World {
    fn new(repeat: u32) -> Self {
        let device = SimDevice::new(SimConfig::with_capacity(8 << 30));
        let pool = CudaMemoryResource::new(device).layer(PoolLayer::new()).unwrap();
        let plan = PlanLayer::new().repeat(repeat).background(false).time(Duration::ZERO);
        Self { stack: pool.layer(plan).unwrap(), rng: Rng::new(1) }
    }

    /// Allocates and frees blocks of random sizes.
    fn do_not_repeat(&mut self, times: usize) {
        for _ in 0..times {
            let bytes = self.rng.between(1, 1000) * 256;
            self.one_block(bytes);
        }
    }

    fn one_block(&self, bytes: u64) {
        let ptr = self.stack.allocate_bytes(bytes, StreamRef::LEGACY).unwrap();
        give(&self.stack, (ptr, bytes), StreamRef::LEGACY);
    }

    /// Runs a body of `length` blocks.
    fn repeat(&self, length: u64, times: usize) {
        let blocks = on_legacy((1..=length).map(|size| size << 12));
        (0..times).for_each(|_| body(&self.stack, &blocks));
    }

    fn is_bypassed(&self) -> bool {
        self.stack.is_bypassed.load(Ordering::Relaxed)
    }

    fn served(&self) -> u64 {
        self.stack.plan_statistics().served
    }
}

#[test]
fn a_program_that_repeats_after_a_rest_gets_a_plan() {
    for (length, repeat) in [(40, 32), (40, 512), (500, 512)] {
        let mut world = World::new(repeat);
        world.do_not_repeat(FIRST_EVENTS - 1);
        assert!(!world.is_bypassed());
        world.do_not_repeat(1);
        assert!(world.is_bypassed(), "nothing repeated: the program is left alone");
        world.repeat(40, 100);
        let counts = world.stack.plan_statistics();
        assert!(counts.plans == 0 && !counts.has_given_up, "{counts:?}");
        world.do_not_repeat(REST_REQUESTS as usize - 4000 - 1);
        assert!(world.is_bypassed());
        world.repeat(length, 100);
        let counts = world.stack.plan_statistics();
        assert!(counts.plans == 1 && counts.served > 50 * length, "{counts:?}");
    }
}

#[test]
fn a_program_that_does_not_repeat_after_a_rest_either_is_given_up() {
    let mut world = World::new(512);
    world.do_not_repeat(FIRST_EVENTS + REST_REQUESTS as usize + MOST_EVENTS - 2);
    assert!(!world.is_bypassed() && !world.stack.plan_statistics().has_given_up);
    world.do_not_repeat(1);
    assert!(world.is_bypassed() && world.stack.plan_statistics().has_given_up);
    world.do_not_repeat(100);
    assert!(world.is_bypassed(), "it is not watched any more");
}

/// While a block keeps memory of an old plan, each free has to find out whose its block is.
#[test]
fn a_rest_with_memory_of_an_old_plan_bypasses_nothing_until_that_is_back_and_ends_nevertheless() {
    const LARGE: u64 = 1 << 30;
    for (frees_early, is_over_limit) in [(true, false), (false, false), (false, true)] {
        let mut world = World::new(32);
        world.repeat(40, 100);
        let kept = world.stack.allocate_bytes(1 << 12, StreamRef::LEGACY).unwrap();
        world.do_not_repeat(MOST_EVENTS + 10);
        let held = world.stack.plan_statistics().held_bytes;
        assert!(held > 0 && world.stack.state.lock().is_resting && !world.is_bypassed(), "{held}");
        // The plan's gaps then serve requests for which the pool would have to grow.
        let take = || world.stack.allocate_bytes(LARGE, StreamRef::LEGACY).unwrap();
        let large = is_over_limit.then(take);
        if frees_early {
            give(&world.stack, (kept, 1 << 12), StreamRef::LEGACY);
            assert!(world.stack.plan_statistics().held_bytes == 0 && world.is_bypassed());
        }
        world.do_not_repeat(REST_REQUESTS as usize);
        assert!(!world.stack.state.lock().is_resting && !world.is_bypassed());
        large.into_iter().for_each(|ptr| give(&world.stack, (ptr, LARGE), StreamRef::LEGACY));
        if !frees_early {
            give(&world.stack, (kept, 1 << 12), StreamRef::LEGACY);
            assert_eq!(world.stack.plan_statistics().held_bytes, 0);
        }
        world.repeat(40, 100);
        assert_eq!(world.stack.plan_statistics().plans, 2);
    }
}

/// Other work, such as an evaluation, does not end a plan to which the program comes back.
#[test]
fn a_plan_that_was_set_aside_for_long_serves_again() {
    let mut world = World::new(512);
    world.repeat(1000, 100);
    let before = world.served();
    assert!(before > 90_000, "{before}");
    world.do_not_repeat(FIRST_EVENTS + 40_000);
    world.repeat(1000, 100);
    assert!(world.served() > before + 90_000, "{:?}", world.stack.plan_statistics());
}

/// Each body is short beside what came before, so it may be a loop inside a larger one.
#[test]
fn a_body_that_is_short_beside_what_was_watched_is_served_in_the_end() {
    let mut world = World::new(512);
    for (seed, times, least) in [(7, 60, 10_000), (8, 240, 300_000)] {
        let mut sizes = Rng::new(seed);
        let sizes: Vec<u64> = (0..3000).map(|_| sizes.between(1, 1000) * 256).collect();
        world.do_not_repeat(200_000);
        let before = world.served();
        (0..times).for_each(|_| sizes.iter().for_each(|bytes| world.one_block(*bytes)));
        assert!(world.served() > before + least, "{:?}", world.stack.plan_statistics());
    }
    // 128 bodies in a row are no reason to serve none of them.
    let mut world = World::new(512);
    world.do_not_repeat(20_000);
    world.repeat(40, 2000);
    assert!(world.served() > 60_000, "{:?}", world.stack.plan_statistics());
}

#[test]
fn the_most_that_may_be_asked_for_is_found() {
    let world = World::new(1 << 18);
    world.repeat(1000, 300);
    assert_eq!(world.stack.plan_statistics().plans, 1);
}
