//! Tests that a plan's memory goes back, and is used again, without a wait for the device.

use std::sync::Arc;

use millpond_core::driver::{CaptureMode, Driver, EventFlags, StreamFlags};
use millpond_core::{DeviceMemoryResource, DevicePtr, Layout, StreamRef};
use millpond_driver::sim::{Access, SimConfig, SimDevice};
use millpond_testkit::Checked;

use crate::plan::{PlanLayer, PlanMemoryResource, PlanStatistics};
use crate::{
    CudaAsyncMemoryResource, CudaAsyncOptions, CudaMemoryResource, Decay, PoolLayer, PoolMemoryResource,
};
use millpond_core::DeviceMemoryResourceExt;

type Stack = PlanMemoryResource<PoolMemoryResource<CudaMemoryResource>>;

/// Longer than any test takes: a kernel that waits for something that the program has yet to do.
pub(super) const BLOCKED_NS: u64 = 1 << 50;
const BODY: [u64; 5] = [8 << 20, 5 << 20, 1 << 20, 6 << 20, 2 << 20];

pub(super) struct World {
    pub(super) device: Arc<SimDevice>,
    pub(super) stack: Checked<Stack>,
}

impl World {
    pub(super) fn new() -> Self {
        let device = SimDevice::new(SimConfig::with_capacity(4 << 30));
        let pool =
            CudaMemoryResource::new(Arc::clone(&device) as _).layer(PoolLayer::new().decay(Decay::Off));
        let stack = pool.unwrap().layer(PlanLayer::new().repeat(32).background(false)).unwrap();
        Self { stack: Checked::new(stack, Some(Arc::clone(&device))), device }
    }

    pub(super) fn stream(&self) -> StreamRef {
        self.device.stream_create(StreamFlags::NON_BLOCKING).unwrap()
    }

    pub(super) fn counts(&self) -> PlanStatistics {
        self.stack.inner().plan_statistics()
    }

    pub(super) fn allocate(&self, bytes: u64, stream: StreamRef) -> (DevicePtr, u64) {
        let ptr = self.stack.allocate(Layout::new(bytes), stream).unwrap();
        self.device.launch(stream, &[Access::write(ptr, bytes, bytes)]);
        (ptr, bytes)
    }

    pub(super) fn free(&self, (ptr, bytes): (DevicePtr, u64), stream: StreamRef) {
        // SAFETY: the block came from the stack with this size, and its uses are before the stream's next
        // work.
        unsafe { self.stack.deallocate(ptr, Layout::new(bytes), stream) };
    }

    /// Makes a stream come after another.
    pub(super) fn join(&self, later: StreamRef, earlier: StreamRef) {
        let event = self.device.event_create(EventFlags::default()).unwrap();
        self.device.event_record(event, earlier).unwrap();
        self.device.stream_wait_event(later, event).unwrap();
        // SAFETY: the event is this test's own.
        unsafe { self.device.event_destroy(event).unwrap() };
    }

    pub(super) fn body(&self, sizes: &[u64], stream: StreamRef) {
        let held: Vec<_> = sizes.iter().map(|bytes| self.allocate(*bytes, stream)).collect();
        held.into_iter().for_each(|held| self.free(held, stream));
    }

    /// Runs a body whose last block is freed on another stream.
    fn body_with_foreign_free(&self, stream: StreamRef, other: StreamRef) {
        let mut held: Vec<_> = BODY.iter().map(|bytes| self.allocate(*bytes, stream)).collect();
        let last = held.pop().unwrap();
        held.into_iter().for_each(|held| self.free(held, stream));
        self.join(other, stream);
        self.device.launch(other, &[Access::check(last.0, last.1, last.1)]);
        self.free(last, other);
    }

    /// A world whose stream follows a plan.
    fn planned() -> (Self, StreamRef, StreamRef) {
        let world = Self::new();
        let (stream, other) = (world.stream(), world.stream());
        (0..40).for_each(|_| world.body(&BODY, stream));
        assert_eq!(world.counts().held_bytes, BODY.iter().sum());
        (world, stream, other)
    }

    pub(super) fn has_waited(&self) -> bool {
        self.device.virtual_time_ns() >= BLOCKED_NS
    }

    pub(super) fn check(self) {
        let found = self.device.take_violations();
        assert!(found.is_empty(), "{found:?}");
        assert!(self.stack.take_faults().is_empty());
        let Self { device, stack } = self;
        drop(stack);
        assert_eq!((device.live_allocations(), device.live_events()), (0, 0));
    }
}

#[test]
fn no_call_waits_for_a_stream_that_is_blocked() {
    let (world, stream, other) = World::planned();
    world.device.launch_for(other, &[], BLOCKED_NS);
    // A block of the plan waits for the blocked stream; then the program leaves that, and others are made.
    for round in 0..20u64 {
        (0..3).for_each(|_| world.body_with_foreign_free(stream, other));
        let sizes: Vec<u64> = (1..20).map(|size| (size + round % 3) << 14).collect();
        (0..40).for_each(|_| world.body(&sizes, stream));
    }
    let counts = world.counts();
    assert!(counts.plans > 1, "{counts:?}");
    assert!(!world.has_waited(), "a call waited for the device");
    world.check();
}

#[test]
fn the_lane_of_a_plan_that_is_set_aside_goes_back_after_the_streams_that_freed_its_blocks() {
    let (world, stream, other) = World::planned();
    world.device.launch_for(other, &[], 1 << 40);
    world.body_with_foreign_free(stream, other);
    // Nothing repeats, so no new plan takes memory.
    let sizes = |body: u64| (1..30).map(|size| (size << 12) + 256 * body).collect::<Vec<_>>();
    (0..8).for_each(|body| world.body(&sizes(body), stream));
    let aside = world.counts();
    assert_eq!((aside.dropped, aside.held_bytes), (0, BODY.iter().sum()), "the other stream is busy");
    world.device.advance(1 << 41);
    let now = world.device.virtual_time_ns();
    world.body(&sizes(8), stream);
    assert!(world.counts().held_bytes < BODY.iter().sum(), "{:?}", world.counts());
    assert!(world.device.virtual_time_ns() < now + (1 << 30));
    world.check();
}

#[test]
fn the_lane_of_a_silent_stream_goes_back_when_its_work_is_done() {
    for is_gone in [false, true] {
        let (world, stream, other) = World::planned();
        if is_gone {
            // SAFETY: the test uses the stream no more.
            unsafe { world.device.stream_destroy(stream).unwrap() };
        }
        let sizes: Vec<u64> = (1..30).map(|size| size << 12).collect();
        for _ in 0..8 {
            world.body(&sizes, other);
            world.device.advance(1 << 30);
        }
        let counts = world.counts();
        assert_eq!(counts.left, 1);
        assert_eq!(
            counts.held_bytes > BODY[0],
            is_gone,
            "of a stream that ended nothing is known: {counts:?}"
        );
        assert!(!world.has_waited());
        world.check();
    }
}

#[test]
fn a_slot_that_another_stream_freed_is_used_again_when_that_has_done_its_work() {
    let (world, stream, other) = World::planned();
    let before = world.counts();
    for _ in 0..20 {
        world.body_with_foreign_free(stream, other);
        world.device.advance(1 << 30);
    }
    let after = world.counts();
    assert_eq!((after.served - before.served, after.missed - before.missed), (100, 0));
    // As long as the other stream is busy, upstream serves such blocks.
    world.device.launch_for(other, &[], BLOCKED_NS);
    (0..2).for_each(|_| world.body_with_foreign_free(stream, other));
    assert!(world.counts().missed > after.missed);
    assert!(!world.has_waited());
    world.check();
}

#[test]
fn a_free_during_a_capture_records_nothing_before_the_capture_ends() {
    let (world, stream, other) = World::planned();
    let held: Vec<_> = BODY.iter().map(|bytes| world.allocate(*bytes, stream)).collect();
    world.join(other, stream);
    world.device.begin_capture(other, CaptureMode::Global).unwrap();
    let events = world.device.live_events();
    held.into_iter().for_each(|held| world.free(held, other));
    world.body(&[3 << 12], stream);
    world.device.end_capture(other).expect("the capture is valid");
    assert!(world.device.live_events() <= events + BODY.len());
    let before = world.counts();
    world.device.advance(1 << 30);
    (0..10).for_each(|_| world.body(&BODY, stream));
    assert!(world.counts().served > before.served + 40, "{:?} {before:?}", world.counts());
    world.check();
}

#[test]
fn blocks_that_another_stream_frees_are_planned() {
    let world = World::new();
    let (stream, other) = (world.stream(), world.stream());
    let step = || {
        world.body_with_foreign_free(stream, other);
        world.device.advance(1 << 30);
    };
    (0..40).for_each(|_| step());
    let before = world.counts();
    assert_eq!(before.plan_bytes, BODY.iter().sum());
    (0..20).for_each(|_| step());
    let after = world.counts();
    assert_eq!((after.served - before.served, after.missed - before.missed), (100, 0));
    world.check();
}

/// The end of the layer waits for work on blocks of the plan before upstream may hand their memory on.
#[test]
fn lanes_go_back_at_the_end_when_all_work_is_done() {
    let device = SimDevice::new(SimConfig::with_capacity(4 << 30));
    let upstream = CudaAsyncMemoryResource::new(device.clone(), CudaAsyncOptions::default()).unwrap();
    let stack = upstream.layer(PlanLayer::new().repeat(32).background(false)).unwrap();
    let stack = Checked::new(stack, Some(Arc::clone(&device)));
    let stream = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    for _ in 0..40 {
        let blocks = BODY.map(|bytes| (stack.allocate_bytes(bytes, stream).unwrap(), bytes));
        for (ptr, bytes) in blocks {
            device.launch_for(stream, &[Access::write(ptr, bytes, 1)], 1 << 30);
            // SAFETY: the block came from the stack with this size, and its uses are on the stream.
            unsafe { stack.deallocate_bytes(ptr, bytes, stream) };
        }
    }
    assert!(stack.inner().plan_statistics().held_bytes > 0);
    drop(stack);
    assert_eq!(device.take_violations(), []);
    assert_eq!((device.live_allocations(), device.live_events()), (0, 0));
}
