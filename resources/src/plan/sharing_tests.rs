//! Programs whose streams share the memory of a plan.

use millpond_core::{StreamId, StreamRef};
use millpond_planning::Options;

use crate::plan::PlanLayer;
use crate::plan::draft::{Allowed, plan_body};
use crate::plan::history::Step;
use crate::plan::marks::Marks;
use crate::plan::order_tests::{BLOCKED_NS, World};
use crate::plan::running::Mistake;
use crate::plan::sharing::{SHARED, Sharing, Trust};
use crate::plan::sharing::{SHARING, Tried};
use crate::plan::tests::{PROGRAMS, program_over};

/// Runs `body` with plans that may take no more than the blocks in use.
pub(super) fn sharing<T>(trial: Tried, body: impl FnOnce() -> T) -> T {
    SHARING.set(Some(trial));
    let result = body();
    SHARING.set(None);
    result
}

/// Runs a program whose streams share memory, however far they are apart.
fn program(seed: u64, mistake: Option<Mistake>) -> (bool, (u64, u64)) {
    sharing(Tried::Passed, || program_over(seed, mistake, |_| PlanLayer::new()))
}

#[test]
fn programs_whose_streams_share_memory_keep_the_order_whatever_goes_wrong() {
    let (mut served, mut beside) = (0, 0);
    for seed in 0..PROGRAMS {
        let (is_right, (by_slots, by_gaps)) = program(seed, None);
        assert!(is_right, "seed {seed}");
        served += by_slots;
        beside += by_gaps;
    }
    assert!(beside > PROGRAMS * 10, "{beside} requests in {PROGRAMS} programs got a gap");
    assert!(served > PROGRAMS * 50, "{served} requests in {PROGRAMS} programs got a slot");
}

#[test]
fn the_oracles_find_slots_that_pass_between_streams_without_a_check() {
    let found = (0..PROGRAMS).find(|seed| !program(*seed, Some(Mistake::Unordered)).0);
    assert!(found.is_some(), "no program noticed bytes that another stream still uses");
}

#[test]
fn the_oracles_find_a_shared_lane_that_goes_back_too_early() {
    let found = (0..PROGRAMS).find(|seed| !program(*seed, Some(Mistake::LeavesEarly)).0);
    assert!(found.is_some(), "no program noticed memory that another stream still uses");
}

/// A body in which one stream after the other needs most of the memory.
pub(super) const ONE: [u64; 6] = [24 << 20, 9 << 20, 1 << 20, 7 << 20, 2 << 20, 5 << 20];
pub(super) const OTHER: [u64; 4] = [30 << 20, 2 << 20, 11 << 20, 4 << 20];

impl World {
    pub(super) fn turns(&self, streams: [StreamRef; 2], bodies: usize) {
        for _ in 0..bodies {
            self.body(&ONE, streams[0]);
            self.device.advance(1 << 20);
            self.body(&OTHER, streams[1]);
            self.device.advance(1 << 20);
        }
    }

    fn is_shared(&self) -> bool {
        let state = self.stack.inner().state.lock();
        state.running.as_ref().is_some_and(|plan| plan.body.lanes.iter().any(|lane| lane.stream == SHARED))
    }
}

#[test]
fn streams_that_keep_up_with_the_host_share_what_they_need_in_turn() {
    sharing(Tried::Made, || {
        let world = World::new();
        let streams = [world.stream(), world.stream()];
        world.turns(streams, 60);
        let before = world.counts();
        assert!(world.is_shared());
        assert_eq!(before.plan_bytes, ONE.iter().sum::<u64>(), "the larger of the two: {before:?}");
        world.turns(streams, 20);
        let after = world.counts();
        assert_eq!((after.served - before.served, after.missed - before.missed), (200, 0));
        assert_eq!(after.held_bytes, before.plan_bytes);
        world.check();
    });
}

#[test]
fn streams_that_are_behind_share_nothing() {
    sharing(Tried::Made, || {
        let world = World::new();
        let streams = [world.stream(), world.stream()];
        world.device.launch_for(streams[0], &[], BLOCKED_NS);
        world.turns(streams, 60);
        let counts = world.counts();
        assert!(!world.is_shared() && counts.held_bytes == 0, "{counts:?}");
        assert_eq!((counts.plans, counts.dropped), (1, 1), "{counts:?}");
        assert!(!world.has_waited());
        world.check();
    });
}

#[test]
fn a_stream_that_falls_behind_gets_its_bytes_back_and_keeps_others_waiting_for_none() {
    sharing(Tried::Made, || {
        let world = World::new();
        let streams = [world.stream(), world.stream()];
        world.turns(streams, 60);
        assert!(world.is_shared());
        let before = world.counts();
        world.device.launch_for(streams[0], &[], BLOCKED_NS);
        world.turns(streams, 2);
        let after = world.counts();
        // Bytes that the stream itself had last are its own; what the other one had before is done.
        assert!(after.served - before.served >= ONE.len() as u64, "{before:?} {after:?}");
        assert!(after.missed > before.missed, "{before:?} {after:?}");
        assert!(!world.has_waited());
        world.check();
    });
}

#[test]
fn blocks_that_another_stream_frees_take_the_memory_of_the_next_ones_there() {
    sharing(Tried::Made, || {
        let world = World::new();
        let [one, other] = [world.stream(), world.stream()];
        let step = || {
            let held: Vec<_> = ONE.iter().map(|bytes| world.allocate(*bytes, one)).collect();
            world.join(other, one);
            held.into_iter().for_each(|held| world.free(held, other));
            world.device.advance(1 << 20);
            world.body(&OTHER, other);
            world.device.advance(1 << 20);
        };
        (0..60).for_each(|_| step());
        let before = world.counts();
        assert!(world.is_shared());
        assert_eq!(before.plan_bytes, ONE.iter().sum::<u64>());
        (0..20).for_each(|_| step());
        let after = world.counts();
        assert_eq!((after.served - before.served, after.missed - before.missed), (200, 0));
        world.check();
    });
}

#[test]
fn the_memory_of_a_shared_plan_goes_back_when_all_its_streams_have_done_their_work() {
    sharing(Tried::Made, || {
        let world = World::new();
        let streams = [world.stream(), world.stream()];
        world.turns(streams, 60);
        let held = world.counts().held_bytes;
        assert_eq!(held, ONE.iter().sum());
        world.body(&ONE, streams[0]);
        world.device.launch_for(streams[1], &[], 1 << 40);
        world.body(&OTHER, streams[1]);
        // Nothing repeats, so no new plan takes memory.
        let sizes = |body: u64| (1..30).map(|size| (size << 12) + 256 * body).collect::<Vec<_>>();
        (0..8).for_each(|body| world.body(&sizes(body), streams[0]));
        assert!(world.counts().held_bytes > held / 2, "the other stream is busy");
        world.device.advance(1 << 41);
        let now = world.device.virtual_time_ns();
        (8..12).for_each(|body| world.body(&sizes(body), streams[0]));
        assert_eq!(world.counts().held_bytes, 0, "{:?}", world.counts());
        assert!(world.device.virtual_time_ns() < now + (1 << 30));
        world.check();
    });
}

#[test]
fn small_blocks_of_each_stream_lie_apart_where_that_takes_little() {
    let step = |bytes, stream, life| Step { bytes, stream, life: Some(life), is_foreign: false };
    let [one, other] = [0, 1].map(StreamId::placeholder);
    let mut steps = Vec::new();
    for stream in [one, other] {
        steps.extend([step(64 << 20, stream, 3), step(512, stream, 1), step(64 << 20, stream, 1)]);
    }
    let options = Options { threads: 1, ..Options::default() };
    let lanes = |most: u64, may_share| {
        let body =
            plan_body(&steps, Allowed { most: Some(most), is_further: false, may_share }, &options).ok()?;
        let lanes = body.lanes.iter().map(|lane| (lane.stream, lane.bytes));
        Some(lanes.collect::<std::collections::BTreeMap<_, _>>())
    };
    let apart = lanes(1 << 30, true).unwrap();
    assert_eq!(apart.values().copied().collect::<Vec<_>>(), [128 << 20, 128 << 20]);
    let shared = lanes(200 << 20, true).unwrap();
    assert_eq!((shared[&one], shared[&other], shared[&SHARED]), (512, 512, 128 << 20));
    assert_eq!(lanes(200 << 20, false), None, "there is no room for memory of each stream");
}

/// A stream that no driver knows.
fn stream(handle: u64) -> StreamRef {
    StreamRef::from_raw_parts(handle, handle)
}

#[test]
fn bytes_are_free_for_their_stream_at_once_and_for_others_behind_its_work() {
    let [one, other] = [stream(7), stream(8)];
    let (mut sharing, mut marks) = (Sharing::default(), Marks::default());
    let first = sharing.freed(one);
    assert!(sharing.is_free_for(first, one.id()) && !sharing.is_free_for(first, other.id()));
    let mut questions = Vec::new();
    sharing.ask_awaited(&mut marks, &mut questions);
    let number = questions[0].number();
    // The event covers what was freed before it was asked for, and nothing after.
    let second = sharing.freed(one);
    sharing.end_waits(&mut marks, |done| done == number);
    assert!(sharing.is_free_for(first, other.id()) && !sharing.is_free_for(second, other.id()));
    // Bytes of which some wait for one stream and some for another wait for both.
    let third = sharing.freed(other);
    let both = second.and(third);
    assert!(![one, other].into_iter().any(|stream| sharing.is_free_for(both, stream.id())));
    sharing.mark_all(&mut marks);
    sharing.end_waits(&mut marks, |_| true);
    assert!([one, other].into_iter().all(|stream| sharing.is_free_for(both, stream.id())));
}

#[test]
fn what_all_bytes_wait_for_holds_for_each_of_them() {
    let [one, other] = [stream(7), stream(8)];
    let mut sharing = Sharing::default();
    let own = sharing.freed(other);
    let guest = sharing.freed(one);
    sharing.wait_for(guest);
    assert!(sharing.is_free_for(guest, one.id()) && !sharing.is_free_for(own, other.id()));
    sharing.wait_for_all();
    assert!(!sharing.is_free_for(guest, one.id()), "the other stream's work is not done");
}

#[test]
fn a_trial_says_whether_streams_keep_up() {
    let [one, other] = [stream(7), stream(8)];
    for is_behind in [false, true] {
        let (mut sharing, mut marks) = (Sharing::default(), Marks::default());
        let mut asked = 0;
        while sharing.trust() == Trust::Open {
            for stream in [one, other] {
                if let Trust::Ask(freed) = sharing.try_order(stream, 0) {
                    asked += 1;
                    assert!(sharing.ask_about(freed, &mut marks).is_some());
                    sharing.end_waits(&mut marks, |_| !is_behind);
                    sharing.end_try(freed);
                    // Another thread that asked about the same has no part in the next try.
                    sharing.end_try(freed);
                }
            }
        }
        assert_eq!(sharing.trust() == Trust::Behind, is_behind);
        assert_eq!(asked, 64);
    }
}

#[test]
fn many_streams_that_are_done_are_forgotten() {
    let (mut sharing, mut marks) = (Sharing::default(), Marks::default());
    let all: Vec<_> = (10..1000).map(|handle| sharing.freed(stream(handle))).collect();
    assert!(!sharing.is_free_for(all[3], StreamId::LEGACY), "nothing is done, so nothing is forgotten");
    sharing.mark_all(&mut marks);
    sharing.end_waits(&mut marks, |_| true);
    let last = sharing.freed(stream(2000));
    assert!(all.into_iter().all(|freed| sharing.is_free_for(freed, StreamId::LEGACY)));
    assert!(!sharing.is_free_for(last, StreamId::LEGACY) && sharing.known_streams() == 1);
}
