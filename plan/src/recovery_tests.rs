//! Tests the layer when memory is out and when it drops its plan.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use millpond_adaptors::{FailedRequest, FailureCallbackLayer};
use millpond_core::driver::{CaptureMode, Driver, StreamFlags};
use millpond_core::{
    DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Layout, ReportsMemory, StreamRef,
};
use millpond_driver::sim::{SimConfig, SimDevice};

use crate::PlanMemoryResource;
use crate::tests::{Call, layer, layer_of_steps, plan_of};
use millpond_resources::{CudaMemoryResource, Decay, PagesMode, PoolLayer, PoolMemoryResource};

type Stack = PlanMemoryResource<PoolMemoryResource<CudaMemoryResource>>;

const MIB: u64 = 1 << 20;
const BLOCKED_NS: u64 = 1 << 50;

fn give(stack: &dyn DeviceMemoryResource, (ptr, bytes): (DevicePtr, u64), stream: StreamRef) {
    // SAFETY: the block came from the stack with this size, and nothing uses it.
    unsafe { stack.deallocate_bytes(ptr, bytes, stream) };
}

/// Runs a body of blocks, each on a stream.
fn body(stack: &dyn DeviceMemoryResource, blocks: &[(u64, StreamRef)]) {
    let take = |&(bytes, stream): &(u64, StreamRef)| (stack.allocate_bytes(bytes, stream).unwrap(), bytes);
    let held: Vec<_> = blocks.iter().map(take).collect();
    held.into_iter().zip(blocks).for_each(|(held, (_, stream))| give(stack, held, *stream));
}

fn on_legacy(sizes: impl IntoIterator<Item = u64>) -> Vec<(u64, StreamRef)> {
    sizes.into_iter().map(|bytes| (bytes, StreamRef::LEGACY)).collect()
}

/// Makes a plan over a pool of 64 MiB, with 20 MiB for one stream and 24 MiB for another. The plan does not
/// know the limit, so upstream is asked first.
fn of_two_streams(device: &Arc<SimDevice>) -> (Stack, StreamRef, StreamRef) {
    let pool = CudaMemoryResource::new(Arc::clone(device) as _);
    let pool =
        pool.layer(PoolLayer::new().pages(PagesMode::On).maximum_bytes(64 * MIB).decay(Decay::Off)).unwrap();
    let sizes = [(12 * MIB, 0), (24 * MIB, 1), (8 * MIB, 0)];
    let blocks = sizes.iter().enumerate();
    let mut calls: Vec<_> =
        blocks.clone().map(|(block, &(bytes, stream))| Call::Allocate { block, bytes, stream }).collect();
    calls.extend(blocks.map(|(block, &(_, stream))| Call::Free { block, stream }));
    let stack = pool.layer(layer(plan_of(&calls, 0))).unwrap();
    let [one, other] = [0; 2].map(|_| device.stream_create(StreamFlags::NON_BLOCKING).unwrap());
    let blocks = sizes.map(|(bytes, stream)| (bytes, [one, other][stream]));
    (0..4).for_each(|_| body(&stack, &blocks));
    assert_eq!(stack.plan_statistics().held_bytes, 44 * MIB);
    stack.state.lock().plan.as_mut().unwrap().limit_bytes = None;
    (stack, one, other)
}

#[test]
fn a_request_beside_a_live_block_gets_the_rest_of_the_lane_where_memory_is_out() {
    for is_captured in [false, true] {
        let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
        let (stack, one, other) = of_two_streams(&device);
        device.launch_for(other, &[], BLOCKED_NS);
        let rest = stack.allocate_bytes(20 * MIB, StreamRef::LEGACY).unwrap();
        if is_captured {
            device.begin_capture(one, CaptureMode::Global).unwrap();
        }
        let live = stack.allocate_bytes(8 * MIB, one).unwrap();
        let gap = stack.allocate_bytes(11 * MIB, one).expect("the lane has 12 MiB");
        if is_captured {
            device.end_capture(one).expect("the capture is valid");
        }
        let counts = stack.plan_statistics();
        assert_eq!((counts.held_bytes, counts.is_dropped), (44 * MIB, false), "{counts:?}");
        assert!(device.virtual_time_ns() < BLOCKED_NS, "nothing waits");
        give(&stack, (rest, 20 * MIB), StreamRef::LEGACY);
        give(&stack, (live, 8 * MIB), one);
        give(&stack, (gap, 11 * MIB), one);
    }
}

#[test]
fn a_request_of_a_capture_waits_for_nothing_where_memory_is_out() {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let (stack, one, other) = of_two_streams(&device);
    device.launch_for(other, &[], BLOCKED_NS);
    device.begin_capture(one, CaptureMode::Global).unwrap();
    assert!(stack.allocate_bytes(50 * MIB, one).unwrap_err().is_out_of_memory());
    assert!(device.virtual_time_ns() < BLOCKED_NS, "a request of a capture waited");
    // The capture can use the memory of its own stream.
    let ptr = stack.allocate_bytes(38 * MIB, one).expect("20 MiB of the lane and 20 MiB of the device");
    device.end_capture(one).expect("the capture is valid");
    give(&stack, (ptr, 38 * MIB), one);
    let ptr = stack.allocate_bytes(60 * MIB, one).expect("now the stack may wait");
    give(&stack, (ptr, 60 * MIB), one);
}

#[test]
fn what_no_memory_could_serve_drops_no_plan() {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let (stack, one, _) = of_two_streams(&device);
    for bytes in [2 << 30, u64::MAX / 2] {
        assert!(stack.allocate_bytes(bytes, one).is_err());
    }
    assert!(stack.allocate(Layout::with_alignment(MIB, 1 << 40).unwrap(), one).is_err());
    assert!(!stack.plan_statistics().is_dropped);
    assert!(stack.allocate_bytes(65 * MIB, one).is_err());
    assert!(!stack.plan_statistics().is_dropped, "the pool may have no more than 64 MiB");
    let held = stack.allocate_bytes(8 * MIB, one).unwrap();
    assert!(stack.allocate_bytes(62 * MIB, one).is_err());
    let counts = stack.plan_statistics();
    assert!(counts.is_dropped, "its memory goes back as its blocks are freed");
    give(&stack, (held, 8 * MIB), one);
    give(&stack, (stack.allocate_bytes(62 * MIB, one).unwrap(), 62 * MIB), one);
}

#[test]
fn a_request_for_all_of_the_memory_gets_that_of_the_plan() {
    let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::with_capacity(64 * MIB)));
    let stack = cuda.layer(layer_of_steps(&[20 * MIB, 24 * MIB])).unwrap();
    body(&stack, &on_legacy([20 * MIB, 24 * MIB]));
    assert_eq!(stack.plan_statistics().held_bytes, 44 * MIB);
    let all = stack.allocate_bytes(64 * MIB, StreamRef::LEGACY).expect("the plan has the missing memory");
    give(&stack, (all, 64 * MIB), StreamRef::LEGACY);
}

/// A callback below the plan plays another thread, which gives lanes back while upstream refuses.
#[test]
fn a_request_is_tried_again_if_memory_was_given_back_since_it_began() {
    type Top = Weak<dyn DeviceMemoryResource + Send + Sync>;
    let top: Arc<OnceLock<Top>> = Arc::default();
    let (of_callback, calls) = (Arc::clone(&top), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&calls);
    let give_back = move |_: &FailedRequest<'_>| {
        counted.fetch_add(1, Ordering::Relaxed);
        let top = of_callback.get().and_then(Weak::upgrade);
        top.is_some_and(|top| top.trim(0).is_err())
    };
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let pool = CudaMemoryResource::new(device)
        .layer(PoolLayer::new().pages(PagesMode::On).maximum_bytes(64 * MIB))
        .unwrap();
    let stack = pool.layer(FailureCallbackLayer::new(give_back)).unwrap();
    let stack = Arc::new(stack.layer(layer_of_steps(&[20 * MIB, 24 * MIB])).unwrap());
    let weak: Top = Arc::downgrade(&(Arc::clone(&stack) as Arc<dyn DeviceMemoryResource + Send + Sync>));
    assert!(top.set(weak).is_ok());
    let blocks = on_legacy([20 * MIB, 24 * MIB]);
    (0..4).for_each(|_| body(&*stack, &blocks));
    stack.state.lock().plan.as_mut().unwrap().limit_bytes = None;
    let ptr = stack.allocate_bytes(60 * MIB, StreamRef::LEGACY).expect("memory was given back");
    assert_eq!((calls.load(Ordering::Relaxed), stack.plan_statistics().is_dropped), (1, false));
    give(&*stack, (ptr, 60 * MIB), StreamRef::LEGACY);
}

fn over_a_pool(device: &Arc<SimDevice>, sizes: &[u64]) -> Stack {
    let pool = CudaMemoryResource::new(Arc::clone(device) as _).layer(PoolLayer::new().decay(Decay::Off));
    pool.unwrap().layer(layer_of_steps(sizes)).unwrap()
}

fn device() -> Arc<SimDevice> {
    SimDevice::new(SimConfig::with_capacity(1 << 30))
}

#[test]
fn a_plan_that_misses_most_bytes_is_dropped() {
    for (last, is_dropped) in [(MIB / 4, false), (8 * MIB, true)] {
        let sizes = |last| (1..70).map(|size| size << 12).chain([last]).collect::<Vec<_>>();
        let stack = over_a_pool(&device(), &sizes(last));
        body(&stack, &on_legacy(sizes(last)));
        assert!(stack.plan_statistics().held_bytes > 0);
        // One request in seventy misses: the last one is larger than its slot.
        (1..20).for_each(|round| body(&stack, &on_legacy(sizes(last + (round << 8)))));
        assert_eq!(stack.plan_statistics().is_dropped, is_dropped, "a last block of {last} bytes");
    }
}

/// After the device has done the work on its blocks, the memory of a dropped plan goes back at any call.
#[test]
fn a_dropped_plan_gives_its_memory_back() {
    let device = device();
    let sizes: Vec<u64> = (1..40).map(|size| size << 12).collect();
    let stack = over_a_pool(&device, &sizes);
    let stream = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    let blocks: Vec<_> = sizes.iter().map(|bytes| (*bytes, stream)).collect();
    (0..10).for_each(|_| body(&stack, &blocks));
    // One block is freed on a busy stream.
    let other = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    device.launch_for(other, &[], 1 << 30);
    give(&stack, (stack.allocate_bytes(1 << 12, stream).unwrap(), 1 << 12), other);
    stack.locked(|state| state.drop_plan("a test says so"));
    let random = on_legacy((1..200).map(|size| size << 8));
    body(&stack, &random);
    let counts = stack.plan_statistics();
    assert!(counts.is_dropped && counts.held_bytes > 0, "{counts:?}");
    device.advance(1 << 31);
    body(&stack, &random);
    assert_eq!(stack.plan_statistics().held_bytes, 0);
    assert!(!stack.has_plan.load(Ordering::Relaxed));
}

#[test]
fn trimming_keeps_what_it_is_asked_to_keep() {
    let stack = over_a_pool(&device(), &[20 * MIB, 24 * MIB]);
    body(&stack, &on_legacy([20 * MIB, 24 * MIB]));
    let reserved = stack.statistics().unwrap().bytes_reserved;
    stack.trim(reserved).unwrap();
    stack.trim(44 * MIB).unwrap();
    assert_eq!(stack.plan_statistics().held_bytes, 44 * MIB);
    assert!(stack.trim(20 * MIB).unwrap() > 0);
    assert_eq!(stack.plan_statistics().held_bytes, 0);
}

#[test]
fn a_block_of_a_plan_is_known_by_the_bytes_that_were_asked_for() {
    let stack = over_a_pool(&device(), &[4096, 9216]);
    body(&stack, &on_legacy([4000, 9000]));
    let slot = stack.allocate_bytes(4000, StreamRef::LEGACY).unwrap();
    let gap = stack.serve_from_gap(Layout::new(700), StreamRef::LEGACY).unwrap();
    let bytes_at = |ptr| ReportsMemory::block_at(&stack, ptr).map(|block| block.bytes);
    assert_eq!((bytes_at(slot), bytes_at(gap)), (Some(4000), Some(700)));
    assert_eq!((bytes_at(slot.offset(256)), bytes_at(gap.offset(256))), (None, None), "inside of blocks");
    give(&stack, (slot, 4000), StreamRef::LEGACY);
    give(&stack, (gap, 700), StreamRef::LEGACY);
}

/// A block that upstream refuses to free is still in use there, so the plan leaves as much room as before.
#[test]
fn a_refused_free_leaves_the_count_beside_the_plan() {
    let sizes: Vec<u64> = (1..12).map(|size| MIB + (size << 16)).collect();
    let stack = over_a_pool(&device(), &sizes);
    (0..40).for_each(|_| body(&stack, &on_legacy(sizes.iter().copied())));
    let now = || stack.state.lock().followed().expect("a plan is in use").most_beside();
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
