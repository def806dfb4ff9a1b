//! Plans that a thread of its own makes: no call waits for it, and the plan may come at any request.

use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use millpond_core::DeviceMemoryResource;
use millpond_driver::sim::Schedule;
use millpond_testkit::Rng;

use crate::plan::draft::{Planned, Unplanned};
use crate::plan::tests::{Call, World, random_body};
use crate::plan::{PlanLayer, PlanStatistics};

/// Longer than the planner needs for 60 blocks, so that a planner that never ends fails its test.
const LONGEST: Duration = Duration::from_secs(60);

const PROGRAMS: u64 = if cfg!(miri) { 1 } else { 60 };

fn counts(world: &World) -> PlanStatistics {
    world.stack.inner().plan_statistics()
}

/// Runs the body until `is_enough`; returns whether that came.
fn run_until(world: &mut World, body: &[Call], is_enough: impl Fn(&World) -> bool) -> bool {
    let started = Instant::now();
    while started.elapsed() < LONGEST {
        world.run(body);
        if is_enough(world) {
            return true;
        }
        thread::yield_now();
    }
    false
}

/// A layer that believes that `planner` plans for it.
fn planned_by(planner: JoinHandle<Planned>) -> World {
    let world = World::over_as_it_is(Schedule::Timed, PlanLayer::new());
    let mut state = world.stack.inner().state.lock();
    state.is_planning = true;
    state.planner = Some(planner);
    drop(state);
    world
}

fn no_plan() -> Planned {
    Planned { body: Err(Unplanned::TooLarge), limit: None, duration: Duration::ZERO }
}

#[test]
fn plans_that_come_at_any_request_keep_the_order() {
    let mut planned = 0;
    for seed in 0..PROGRAMS {
        let body = random_body(&mut Rng::new(seed));
        let mut world = World::over_as_it_is(Schedule::Seeded(seed), PlanLayer::new());
        // Half of the programs change before the plan comes, or when it does.
        let other = random_body(&mut Rng::new(seed + PROGRAMS));
        for _ in 0..10 {
            world.run(&body);
        }
        if seed % 2 == 0 {
            world.run(&other);
        }
        let is_planning = world.stack.inner().state.lock().is_planning;
        if is_planning || counts(&world).plans > 0 {
            // A body that has no plan ends the planning, too.
            assert!(run_until(&mut world, &body, |world| { !world.stack.inner().state.lock().is_planning }));
            for _ in 0..10 {
                world.run(&body);
            }
            planned += u64::from(counts(&world).served > 0);
        }
        world.unwind();
        assert!(world.is_right(), "seed {seed}");
        let World { device, stack, .. } = world;
        drop(stack);
        assert_eq!(device.live_allocations(), 0, "seed {seed}");
    }
    assert!(planned >= PROGRAMS / 3, "{planned} programs of {PROGRAMS} were served from a plan");
}

#[test]
fn no_call_waits_for_the_planner() {
    let body = random_body(&mut Rng::new(1));
    let (done, is_done) = channel::<()>();
    let mut world = planned_by(thread::spawn(move || {
        let _ = is_done.recv_timeout(LONGEST);
        no_plan()
    }));
    for _ in 0..20 {
        world.run(&body);
    }
    world.stack.trim(0).unwrap();
    assert!(world.stack.inner().state.lock().planner.as_ref().is_some_and(|planner| !planner.is_finished()));
    assert_eq!((counts(&world).plans, counts(&world).served), (0, 0));
    // It is done, without a plan: the layer learns anew, and plans.
    drop(done);
    assert!(run_until(&mut world, &body, |world| counts(world).served > 0));
    world.unwind();
    assert!(world.is_right());
}

#[test]
fn a_layer_ends_while_its_planner_works() {
    let (done, is_done) = channel::<()>();
    let (said, is_said) = channel::<()>();
    let world = planned_by(thread::spawn(move || {
        let _ = is_done.recv_timeout(LONGEST);
        let _ = said.send(());
        no_plan()
    }));
    let World { device, stack, .. } = world;
    drop(stack);
    assert!(is_said.try_recv().is_err(), "the layer waited for its planner");
    assert_eq!(device.live_allocations(), 0);
    drop(done);
    is_said.recv().expect("the planner goes on to its end");
}

#[test]
fn a_planner_that_panics_leaves_the_program_to_upstream() {
    let body = random_body(&mut Rng::new(1));
    let mut world = planned_by(thread::spawn(|| panic!("a planner of a test panics")));
    assert!(run_until(&mut world, &body, |world| !world.stack.inner().state.lock().is_planning));
    assert!(run_until(&mut world, &body, |world| counts(world).served > 0));
    world.unwind();
    assert!(world.is_right());
}
