//! Programs that alternate between bodies: training and evaluation, or a few shapes of their data.

use millpond_core::DeviceMemoryResource;
use millpond_driver::sim::Schedule;
use millpond_testkit::{Rng, misuse_recorder};

use crate::plan::running::Mistake;
use crate::plan::tests::{Call, PROGRAMS, World, random_body};
use crate::plan::{PlanLayer, PlanStatistics};

/// Blocks of these sizes in KiB, one stream, all of them in use at a time.
fn stack_of(sizes: impl IntoIterator<Item = u64>, stream: usize) -> Vec<Call> {
    let sizes: Vec<_> = sizes.into_iter().enumerate().collect();
    let calls = sizes.iter().map(|&(block, kib)| Call::Allocate { block, bytes: kib << 10, stream });
    calls.chain(sizes.iter().rev().map(|&(block, _)| Call::Free { block, stream })).collect()
}

fn world() -> World {
    World::over(Schedule::Timed, PlanLayer::new())
}

fn counts(world: &World) -> PlanStatistics {
    world.stack.inner().plan_statistics()
}

/// Runs bodies in an order that repeats nowhere, until the layer should know each of them, and then again.
/// Returns the requests that the plan served and missed in the second part.
fn alternate(world: &mut World, bodies: &[Vec<Call>], times: usize) -> (u64, u64) {
    let mut rng = Rng::new(7);
    let mut some = |world: &mut World| {
        for _ in 0..times {
            world.run(&bodies[rng.below(bodies.len() as u64) as usize]);
        }
        counts(world)
    };
    let before = some(world);
    let after = some(world);
    (after.served - before.served, after.missed - before.missed)
}

#[test]
fn bodies_in_any_order_are_served_and_take_what_the_largest_needs() {
    let shapes = [40u64, 50, 60].map(|count| stack_of((1..count).map(|size| size * count), 0));
    let mut world = world();
    let (served, missed) = alternate(&mut world, &shapes, 200);
    assert!(missed * 50 < served, "{missed} missed of {served}");
    let counts = counts(&world);
    assert_eq!((counts.plans, counts.dropped), (3, 0), "{counts:?}");
    assert_eq!(counts.held_bytes, (1..60).map(|size| (size * 60) << 10).sum::<u64>());
    assert!(world.is_right());
}

#[test]
fn a_body_that_comes_back_needs_no_new_plan() {
    let (train, evaluate) =
        (stack_of((1..80).map(|size| size * 7), 0), stack_of((1..30).map(|it| it * 9), 1));
    let mut world = world();
    (0..20).for_each(|_| world.run(&train));
    (0..20).for_each(|_| world.run(&evaluate));
    let known = counts(&world);
    assert_eq!((known.plans, known.body_allocations), (2, 29));
    for _ in 0..3 {
        let before = counts(&world);
        (0..20).for_each(|_| world.run(&train));
        (0..20).for_each(|_| world.run(&evaluate));
        let after = counts(&world);
        assert_eq!((after.plans, after.dropped), (2, 0));
        // The first of each body may be found only after some of its requests.
        assert!(after.missed - before.missed <= 2 * 79, "{before:?} {after:?}");
    }
    assert!(world.is_right());
}

#[test]
fn a_loop_inside_a_body_that_was_left_is_no_body() {
    let body: Vec<u64> = (1..800).collect();
    let mut world = world();
    (0..4).for_each(|_| world.run(&stack_of(body.iter().copied(), 0)));
    assert_eq!(counts(&world).plans, 1);
    // Other work, with a loop over a thirtieth of the body's length.
    world.run(&stack_of((1000..1100).chain((0..26).map(|step| 2000 + step % 13)).chain(1200..1300), 0));
    (0..4).for_each(|_| world.run(&stack_of(body.iter().copied(), 0)));
    let counts = counts(&world);
    assert_eq!((counts.plans, counts.body_allocations), (1, 799), "{counts:?}");
}

/// Runs a program of up to four bodies, each of which may leave blocks to the next one.
fn program(seed: u64, mistake: Option<Mistake>) -> (bool, u64) {
    let ((is_right, served), refused) = misuse_recorder::record(|| {
        let mut rng = Rng::new(seed);
        let bodies: Vec<_> = (0..rng.between(2, 4)).map(|_| random_body(&mut rng)).collect();
        let schedule = if seed.is_multiple_of(2) { Schedule::Timed } else { Schedule::Seeded(seed) };
        let mut world = World::over(schedule, PlanLayer::new());
        for body in &bodies {
            (0..12).for_each(|_| world.run(body));
        }
        if let Some(mistake) = mistake.filter(|_| counts(&world).plan_bytes > 0) {
            world.set_mistake(mistake);
        }
        let before = counts(&world).served;
        for _ in 0..60 {
            let body = &bodies[rng.below(bodies.len() as u64) as usize];
            // A body that breaks off leaves blocks in its slots.
            let end = if rng.percent(20) { rng.below(body.len() as u64) as usize } else { body.len() };
            world.run(&body[..end]);
            if rng.percent(3) {
                world.stack.trim(0).unwrap();
            }
        }
        let served = counts(&world).served - before;
        world.unwind();
        let is_right = world.is_right();
        let World { device, stack, .. } = world;
        drop(stack);
        (is_right && device.live_allocations() == 0, served)
    });
    (is_right && refused.is_empty(), served)
}

#[test]
fn programs_that_alternate_keep_the_order() {
    let mut all = 0;
    for seed in 0..PROGRAMS {
        let (is_right, served) = program(seed, None);
        assert!(is_right, "seed {seed}");
        all += served;
    }
    assert!(all > PROGRAMS * 200, "{all} requests in {PROGRAMS} programs got a slot");
}

#[test]
fn the_oracles_find_a_body_that_does_not_know_of_the_blocks_of_another() {
    let found = (0..PROGRAMS).find(|seed| !program(*seed, Some(Mistake::ForgetsGuests)).0);
    assert!(found.is_some(), "no program noticed a slot over a block of another body");
}
