//! Tests the plan over layers that call back, wait for other threads, or serve captures themselves.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use millpond_adaptors::{FailedRequest, FailureCallbackLayer, LimitingLayer, RetryLayer};
use millpond_core::driver::{CaptureMode, Driver, StreamFlags};
use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, ErrorKind, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_testkit::mock;

use crate::PlanMemoryResource;
use crate::tests::layer_of_steps;
use millpond_resources::{
    CallbackMemoryResource, CaptureScope, CaptureScopesLayer, CudaMemoryResource, Decay, PoolLayer,
};

const MIB: u64 = 1 << 20;
const BODY: [u64; 3] = [8 * MIB, 4 * MIB, 3 * MIB];
const SPARE: u64 = 30 * MIB;

type Freeing = Arc<dyn DeviceMemoryResource + Send + Sync>;

fn give(stack: &dyn DeviceMemoryResource, ptr: DevicePtr, bytes: u64) {
    // SAFETY: the block came from the stack with this size, and nothing uses it.
    unsafe { stack.deallocate_bytes(ptr, bytes, StreamRef::LEGACY) };
}

fn body(stack: &dyn DeviceMemoryResource) {
    let held = BODY.map(|bytes| (stack.allocate_bytes(bytes, StreamRef::LEGACY).unwrap(), bytes));
    held.into_iter().for_each(|(ptr, bytes)| give(stack, ptr, bytes));
}

/// Runs a body after upstream has given out a block that leaves no room for the plan.
fn run_with_a_spare_block<R: DeviceMemoryResource>(
    stack: &PlanMemoryResource<R>,
    spare: &Mutex<Option<DevicePtr>>,
) {
    *spare.lock().unwrap() = Some(stack.upstream.allocate_bytes(SPARE, StreamRef::LEGACY).unwrap());
    body(stack);
}

/// Frees the spare block.
#[derive(Default)]
struct Spare {
    top: OnceLock<Weak<dyn DeviceMemoryResource + Send + Sync>>,
    block: Mutex<Option<DevicePtr>>,
}

impl Spare {
    fn free(&self) -> bool {
        let top: Option<Freeing> = self.top.get().and_then(Weak::upgrade);
        let block = self.block.lock().unwrap().take();
        let Some((top, block)) = top.zip(block) else { return false };
        give(&*top, block, SPARE);
        true
    }
}

#[test]
fn a_callback_below_the_plan_may_free_through_the_stack() {
    let spare = Arc::new(Spare::default());
    let calls = Arc::new(AtomicU64::new(0));
    let (of_callback, counted) = (Arc::clone(&spare), Arc::clone(&calls));
    let free = move |_: &FailedRequest<'_>| {
        counted.fetch_add(1, Ordering::Relaxed);
        of_callback.free()
    };
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let limited = CudaMemoryResource::new(device).layer(LimitingLayer::new(40 * MIB)).unwrap();
    let below = limited.layer(FailureCallbackLayer::new(free)).unwrap();
    let stack = Arc::new(below.layer(layer_of_steps(&BODY)).unwrap());
    let top: Freeing = Arc::clone(&stack) as _;
    assert!(spare.top.set(Arc::downgrade(&top)).is_ok());
    run_with_a_spare_block(&stack, &spare.block);
    let counts = stack.plan_statistics();
    assert_eq!((counts.is_dropped, counts.held_bytes), (false, BODY.iter().sum()));
    assert_eq!(calls.load(Ordering::Relaxed), 1, "the lane was out of memory once");
}

#[test]
fn the_plans_lock_is_free_while_a_retry_waits_for_another_thread() {
    let spare = Arc::new(Spare::default());
    let (tell, asked) = channel::<()>();
    let tell: Mutex<Sender<()>> = Mutex::new(tell);
    let say = move |_: &FailedRequest<'_>| {
        // The other thread ends after its first free.
        let _ = tell.lock().unwrap().send(());
        false
    };
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let limited = CudaMemoryResource::new(device).layer(LimitingLayer::new(40 * MIB)).unwrap();
    let told = limited.layer(FailureCallbackLayer::new(say)).unwrap();
    let waiting = told.layer(RetryLayer::new().timeout(Duration::from_secs(20))).unwrap();
    let stack = Arc::new(waiting.layer(layer_of_steps(&BODY)).unwrap());
    let top: Freeing = Arc::clone(&stack) as _;
    assert!(spare.top.set(Arc::downgrade(&top)).is_ok());
    let of_thread = Arc::clone(&spare);
    let other = thread::spawn(move || asked.recv().is_ok() && of_thread.free());
    run_with_a_spare_block(&stack, &spare.block);
    assert!(other.join().unwrap(), "the lane was out of memory");
    let counts = stack.plan_statistics();
    assert_eq!((counts.is_dropped, counts.held_bytes), (false, BODY.iter().sum()));
}

/// Runs a body in a scope below the plan; returns whether the scope served all of its blocks.
fn body_in_a_scope(is_asked: bool) -> bool {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let pool = CudaMemoryResource::new(Arc::clone(&device) as _).layer(PoolLayer::new().decay(Decay::Off));
    let scopes = pool.unwrap().layer(CaptureScopesLayer::new()).unwrap();
    let mut stack = scopes.layer(layer_of_steps(&BODY)).unwrap();
    stack.has_scopes &= is_asked;
    let stream = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    let run = |stack: &dyn DeviceMemoryResource| {
        BODY.map(|bytes| (stack.allocate_bytes(bytes, stream).unwrap(), bytes))
    };
    let end = |held: [(DevicePtr, u64); 3]| {
        // SAFETY: the blocks came from the stack with these sizes, and nothing uses them.
        held.into_iter().for_each(|(ptr, bytes)| unsafe { stack.deallocate_bytes(ptr, bytes, stream) });
    };
    end(run(&stack));
    let before = stack.plan_statistics().served;
    end(run(&stack));
    assert_eq!(stack.plan_statistics().served - before, 3, "the plan serves the stream");

    let scope = CaptureScope::of(&stack).unwrap();
    let opened = scope.begin(stream).unwrap();
    device.begin_capture(stream, CaptureMode::Global).unwrap();
    let held = run(&stack);
    device.end_capture(stream).unwrap();
    let blocks = opened.end();
    let is_in_scope = |ptr: DevicePtr| blocks.iter().any(|block| block.address == ptr.address());
    let is_all = held.iter().all(|(ptr, _)| is_in_scope(*ptr));
    end(held);
    // The plan continues after the scope is closed.
    let before = stack.plan_statistics().served;
    (0..4).for_each(|_| end(run(&stack)));
    assert!(stack.plan_statistics().served > before);
    is_all
}

#[test]
fn a_request_in_a_capture_scope_below_gets_no_slot() {
    assert!(body_in_a_scope(true));
    assert!(!body_in_a_scope(false), "the test notices a plan that does not ask for scopes");
}

/// If a panic below the plan fails a request, a later request takes its lane.
#[test]
fn a_lane_whose_memory_did_not_come_for_a_panic_is_taken_later() {
    let mut panics = 0;
    for at in 0..60 {
        let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
        let limited = CudaMemoryResource::new(device).layer(LimitingLayer::new(15 * MIB)).unwrap();
        let limited = Arc::new(limited);
        let (counted, requests) = (Arc::clone(&limited), AtomicU64::new(0));
        let frees = Arc::clone(&limited);
        // SAFETY: both functions pass the call to plain memory, or return no block.
        let upstream = unsafe {
            CallbackMemoryResource::new(
                Arc::clone(limited.driver()),
                move |layout, stream| {
                    let is_due = requests.fetch_add(1, Ordering::Relaxed) == at;
                    if is_due {
                        std::panic::resume_unwind(Box::new("on purpose"));
                    }
                    counted.allocate(layout, stream)
                },
                move |ptr, layout, stream| frees.deallocate(ptr, layout, stream),
            )
        };
        let stack = upstream.layer(layer_of_steps(&BODY)).unwrap();
        for _ in 0..60 {
            let mut held = Vec::new();
            for bytes in BODY {
                let request = AssertUnwindSafe(|| stack.allocate_bytes(bytes, StreamRef::LEGACY).unwrap());
                match catch_unwind(request) {
                    Ok(ptr) => held.push((ptr, bytes)),
                    Err(_) => panics += 1,
                }
            }
            held.into_iter().for_each(|(ptr, bytes)| give(&stack, ptr, bytes));
            // The next pass takes the lane again.
            stack.trim(0).unwrap();
        }
        let served = stack.plan_statistics().served;
        body(&stack);
        assert_eq!(stack.plan_statistics().served - served, 3, "request {at} of the plan panicked");
        assert_eq!(limited.allocated_bytes(), stack.plan_statistics().held_bytes, "request {at}");
    }
    assert_eq!(panics, 60);
}

/// If the layer below cannot be trimmed, the plan still gives its own memory back.
#[test]
fn a_trim_gives_lanes_back_although_the_upstream_cannot_be_trimmed() {
    let (upstream, handle) = mock::resource(SimDevice::new(SimConfig::with_capacity(1 << 30)));
    let stack = upstream.layer(layer_of_steps(&BODY)).unwrap();
    body(&stack);
    assert_eq!(stack.plan_statistics().held_bytes, BODY.iter().sum::<u64>());
    handle.fail_trims(Some(ErrorKind::Driver));
    assert_eq!(stack.trim(0).unwrap_err().kind(), ErrorKind::Driver);
    assert_eq!(stack.plan_statistics().held_bytes, 0);
}
