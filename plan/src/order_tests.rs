//! Tests that a plan's memory goes back and is used again without waiting for the device.

use std::sync::Arc;

use millpond_core::driver::{CaptureMode, Driver, EventFlags, StreamFlags};
use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Layout, StreamRef};
use millpond_driver::sim::{Access, SimConfig, SimDevice};
use millpond_testkit::Checked;

use crate::tests::layer_of_steps;
use crate::{PlanMemoryResource, PlanStatistics};
use millpond_resources::{
    CudaAsyncMemoryResource, CudaAsyncOptions, CudaMemoryResource, Decay, PoolLayer, PoolMemoryResource,
};

type Stack = PlanMemoryResource<PoolMemoryResource<CudaMemoryResource>>;

/// Longer than any test runs: a kernel that waits for something that the program has yet to do.
const BLOCKED_NS: u64 = 1 << 50;
const BODY: [u64; 5] = [8 << 20, 5 << 20, 1 << 20, 6 << 20, 2 << 20];

struct World {
    device: Arc<SimDevice>,
    stack: Checked<Stack>,
}

impl World {
    fn new() -> Self {
        let device = SimDevice::new(SimConfig::with_capacity(4 << 30));
        let pool =
            CudaMemoryResource::new(Arc::clone(&device) as _).layer(PoolLayer::new().decay(Decay::Off));
        let stack = pool.unwrap().layer(layer_of_steps(&BODY)).unwrap();
        Self { stack: Checked::new(stack, Some(Arc::clone(&device))), device }
    }

    fn stream(&self) -> StreamRef {
        self.device.stream_create(StreamFlags::NON_BLOCKING).unwrap()
    }

    fn counts(&self) -> PlanStatistics {
        self.stack.inner().plan_statistics()
    }

    fn allocate(&self, bytes: u64, stream: StreamRef) -> (DevicePtr, u64) {
        let ptr = self.stack.allocate(Layout::new(bytes), stream).unwrap();
        self.device.launch(stream, &[Access::write(ptr, bytes, bytes)]);
        (ptr, bytes)
    }

    fn free(&self, (ptr, bytes): (DevicePtr, u64), stream: StreamRef) {
        // SAFETY: the block came from the stack with this size, and its uses come before the stream's next
        // work.
        unsafe { self.stack.deallocate(ptr, Layout::new(bytes), stream) };
    }

    /// Makes a stream come after another stream.
    fn join(&self, later: StreamRef, earlier: StreamRef) {
        let event = self.device.event_create(EventFlags::default()).unwrap();
        self.device.event_record(event, earlier).unwrap();
        self.device.stream_wait_event(later, event).unwrap();
        // SAFETY: the event is this test's own.
        unsafe { self.device.event_destroy(event).unwrap() };
    }

    fn body(&self, sizes: &[u64], stream: StreamRef) {
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

    /// Makes a world whose stream follows a plan.
    fn planned() -> (Self, StreamRef, StreamRef) {
        let world = Self::new();
        let (stream, other) = (world.stream(), world.stream());
        (0..40).for_each(|_| world.body(&BODY, stream));
        assert_eq!(world.counts().held_bytes, BODY.iter().sum::<u64>());
        (world, stream, other)
    }

    fn has_waited(&self) -> bool {
        self.device.virtual_time_ns() >= BLOCKED_NS
    }

    fn check(self) {
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
    // A block of the plan waits for the blocked stream; then the program leaves the plan.
    for round in 0..20u64 {
        (0..3).for_each(|_| world.body_with_foreign_free(stream, other));
        let sizes: Vec<u64> = (1..20).map(|size| (size + round % 3) << 14).collect();
        (0..40).for_each(|_| world.body(&sizes, stream));
        let counts = world.counts();
        assert!(counts.is_dropped && counts.held_bytes > 0, "{counts:?}");
    }
    assert!(!world.has_waited(), "a call waited for the device");
    world.check();
}

#[test]
fn the_lane_of_a_dropped_plan_goes_back_after_the_streams_that_freed_its_blocks() {
    let (world, stream, other) = World::planned();
    world.device.launch_for(other, &[], 1 << 40);
    world.body_with_foreign_free(stream, other);
    let sizes = |body: u64| (1..30).map(|size| (size << 12) + 256 * body).collect::<Vec<_>>();
    (0..8).for_each(|body| world.body(&sizes(body), stream));
    let dropped = world.counts();
    assert!(dropped.is_dropped);
    assert_eq!(dropped.held_bytes, BODY.iter().sum::<u64>(), "the other stream is busy");
    world.device.advance(1 << 41);
    let now = world.device.virtual_time_ns();
    world.body(&sizes(8), stream);
    assert_eq!(world.counts().held_bytes, 0);
    assert!(world.device.virtual_time_ns() < now + (1 << 30));
    world.check();
}

#[test]
fn the_lane_of_a_silent_stream_goes_back_when_its_work_is_done() {
    for is_gone in [false, true] {
        let (world, stream, other) = World::planned();
        if is_gone {
            // SAFETY: the test does not use the stream any more.
            unsafe { world.device.stream_destroy(stream).unwrap() };
        }
        let sizes: Vec<u64> = (1..30).map(|size| size << 12).collect();
        for _ in 0..8 {
            world.body(&sizes, other);
            world.device.advance(1 << 30);
        }
        let counts = world.counts();
        assert!(counts.is_dropped);
        assert_eq!(counts.held_bytes > 0, is_gone, "nothing is known of an ended stream: {counts:?}");
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
    // While the other stream is busy, upstream serves such blocks.
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

/// At its end, the layer waits for work on blocks of the plan before upstream may reuse their memory.
#[test]
fn lanes_go_back_at_the_end_when_all_work_is_done() {
    let device = SimDevice::new(SimConfig::with_capacity(4 << 30));
    let upstream = CudaAsyncMemoryResource::new(device.clone(), CudaAsyncOptions::default()).unwrap();
    let stack = upstream.layer(layer_of_steps(&BODY)).unwrap();
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
