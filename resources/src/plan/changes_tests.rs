//! Programs that change while the layer `plan` serves them, and bodies for which there is no room.

use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;

use millpond_adaptors::{FailedRequest, FailureCallbackLayer, LimitingLayer};
use millpond_core::driver::{Driver, StreamFlags};
use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};

use crate::CudaMemoryResource;
use crate::plan::PlanLayer;
use crate::plan::recovery_tests::{Stack, body, give, on_legacy, over_a_pool};

const MIB: u64 = 1 << 20;

type Top = Weak<dyn DeviceMemoryResource + Send + Sync>;

fn device() -> Arc<SimDevice> {
    SimDevice::new(SimConfig::with_capacity(1 << 30))
}

fn set_limit(stack: &Stack, bytes: u64) {
    stack.state.lock().running.as_mut().expect("a plan is in use").limit_bytes = Some(bytes);
}

/// While a request waits for its lane, another thread goes to a body in which its slot is another's, or none.
#[test]
fn a_request_that_waited_for_a_lane_is_not_served_from_another_bodys_slot() {
    for large_at in [0, 15] {
        let device = device();
        let [one, other] = [0; 2].map(|_| device.stream_create(StreamFlags::NON_BLOCKING).unwrap());
        let mut long: Vec<_> = (1..21u64).map(|size| (size << 16, one)).collect();
        long[large_at] = (64 << 10, other);
        long.insert(large_at + 1, (180 * MIB, other));
        let short: Vec<_> = (0..10u64).map(|size| (MIB + (size << 16), one)).collect();
        let spare: Arc<Mutex<Option<DevicePtr>>> = Arc::default();
        let top: Arc<OnceLock<Top>> = Arc::default();
        let (its_spare, its_top, its_body) = (Arc::clone(&spare), Arc::clone(&top), short.clone());
        let call = move |_: &FailedRequest<'_>| {
            let Some(block) = its_spare.lock().unwrap().take() else { return false };
            let stack = its_top.get().and_then(Weak::upgrade).unwrap();
            let blocks = its_body.clone();
            let other_thread = thread::spawn(move || {
                (0..3).for_each(|_| body(&*stack, &blocks));
                give(&*stack, (block, 400 * MIB), StreamRef::LEGACY);
            });
            other_thread.join().unwrap();
            true
        };
        let limited = CudaMemoryResource::new(Arc::clone(&device) as _).layer(LimitingLayer::new(500 * MIB));
        let below = limited.unwrap().layer(FailureCallbackLayer::new(call)).unwrap();
        let stack = Arc::new(below.layer(PlanLayer::new().repeat(32).background(false)).unwrap());
        let weak: Top = Arc::downgrade(&(Arc::clone(&stack) as Arc<dyn DeviceMemoryResource + Send + Sync>));
        assert!(top.set(weak).is_ok());
        for blocks in [&long, &short, &long] {
            (0..20).for_each(|_| body(&*stack, blocks));
        }
        stack.trim(0).unwrap();
        let taken = stack.allocate_bytes(400 * MIB, StreamRef::LEGACY).unwrap();
        *spare.lock().unwrap() = Some(taken);
        for (bytes, stream) in &long {
            let ptr = stack.allocate_bytes(*bytes, *stream).unwrap();
            let state = stack.state.lock();
            let running = state.running.as_ref().unwrap();
            if let Some(lane) = running.lane_at(ptr) {
                assert_eq!(running.lanes[lane].stream.unwrap().id(), stream.id(), "a lane of another stream");
            }
        }
        assert!(spare.lock().unwrap().is_none(), "the other thread ran");
    }
}

#[test]
fn a_program_that_contains_the_old_one_is_learnt() {
    for times in [20, 200] {
        let stack = over_a_pool(&device());
        let forward = on_legacy((1..100).map(|size| size << 12));
        let both: Vec<_> =
            forward.iter().copied().chain(on_legacy((1..100).map(|it| (1 << 19) + (it << 10)))).collect();
        (0..times).for_each(|_| body(&stack, &forward));
        (0..40).for_each(|_| body(&stack, &both));
        let before = stack.plan_statistics();
        assert_eq!((before.plans, before.body_allocations), (2, 198), "{before:?}");
        (0..10).for_each(|_| body(&stack, &both));
        assert_eq!(stack.plan_statistics().served - before.served, 1980);
    }
}

#[test]
fn a_plan_that_never_has_room_is_given_up() {
    let stack = over_a_pool(&device());
    let blocks = on_legacy((1..100).map(|size| size << 12));
    while stack.plan_statistics().plans == 0 {
        body(&stack, &blocks);
    }
    let needed = stack.plan_statistics().plan_bytes;
    for _ in 0..200 {
        if stack.plan_statistics().plan_bytes > 0 {
            set_limit(&stack, needed - 256);
        }
        body(&stack, &blocks);
    }
    let counts = stack.plan_statistics();
    assert!(counts.has_given_up && counts.served == 0, "{counts:?}");
}

#[test]
fn streams_that_are_gone_leave_no_lanes() {
    let device = device();
    let stack = over_a_pool(&device);
    for _epoch in 0..60 {
        let streams = [0; 4].map(|_| device.stream_create(StreamFlags::NON_BLOCKING).unwrap());
        let blocks: Vec<_> = (1..60u64).map(|size| (size << 12, streams[size as usize % 4])).collect();
        (0..12).for_each(|_| body(&stack, &blocks));
        stack.trim(0).unwrap();
        for stream in streams {
            // SAFETY: the test uses the stream no more.
            unsafe { device.stream_destroy(stream).unwrap() };
        }
    }
    let lanes = stack.state.lock().running.as_ref().map_or(0, |running| running.lanes.len());
    // Eight bodies, and what was added last.
    assert!(lanes <= 9 * 4, "{lanes} lanes of 240 streams");
}

#[test]
fn what_gaps_serve_is_watched_too() {
    let stack = over_a_pool(&device());
    let blocks = on_legacy((1..100).map(|size| size << 12));
    (0..20).for_each(|_| body(&stack, &blocks));
    let kept = stack.allocate_bytes(1 << 12, StreamRef::LEGACY).unwrap();
    let other = on_legacy((1..60).map(|size| size * 5632));
    (0..60).for_each(|_| body(&stack, &other));
    let before = stack.plan_statistics();
    (0..20).for_each(|_| body(&stack, &other));
    let after = stack.plan_statistics();
    assert_eq!((after.body_allocations, after.left), (59, before.left), "{after:?}");
    assert!(after.served - before.served > 59 * 18, "{before:?} {after:?}");
    give(&stack, (kept, 1 << 12), StreamRef::LEGACY);
}

#[test]
fn the_memory_of_one_body_goes_back_where_another_has_no_room() {
    let device = device();
    let stack = over_a_pool(&device);
    let [one, other] = [0; 2].map(|_| device.stream_create(StreamFlags::NON_BLOCKING).unwrap());
    let of = |large: StreamRef, small: StreamRef, factor: u64| {
        let blocks = (1..100u64).map(|size| ((size * factor) << 12, large));
        std::iter::once((256 * factor, small)).chain(blocks).collect::<Vec<_>>()
    };
    let bodies = [of(one, other, 3), of(other, one, 4)];
    bodies.iter().for_each(|blocks| (0..20).for_each(|_| body(&stack, blocks)));
    // As much as the larger needs, and a little.
    set_limit(&stack, (1..100u64).map(|size| size << 14).sum::<u64>() + MIB);
    let before = stack.plan_statistics();
    for _ in 0..10 {
        bodies.iter().for_each(|blocks| (0..6).for_each(|_| body(&stack, blocks)));
    }
    let after = stack.plan_statistics();
    let (served, missed) = (after.served - before.served, after.missed - before.missed);
    assert!(served > missed, "{served} served, {missed} missed");
}

/// What upstream refuses to take back is still in use there, so the plan leaves as much room as before.
#[test]
fn a_refused_free_leaves_the_count_beside_the_plan() {
    let stack = over_a_pool(&device());
    let blocks = on_legacy((1..12).map(|size| MIB + (size << 16)));
    (0..40).for_each(|_| body(&stack, &blocks));
    let now = || {
        let state = stack.state.lock();
        state.running.as_ref().expect("a plan is in use").most_beside()
    };
    let [kept, freed] =
        [300 * MIB, 200 * MIB].map(|bytes| stack.allocate_bytes(bytes, StreamRef::LEGACY).unwrap());
    give(&stack, (freed, 200 * MIB), StreamRef::LEGACY);
    let before = now();
    let ((), reports) = millpond_testkit::misuse_recorder::record(|| {
        give(&stack, (freed, 200 * MIB), StreamRef::LEGACY);
        give(&stack, (kept, 100 * MIB), StreamRef::LEGACY);
    });
    assert_eq!((reports.len(), now()), (2, before), "{reports:?}");
    give(&stack, (kept, 300 * MIB), StreamRef::LEGACY);
    assert_eq!(now(), before + 300 * MIB);
}
