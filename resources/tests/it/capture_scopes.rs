//! Tests the scopes for captured graphs: which requests they serve, who gets freed blocks, and their end.

use std::sync::Arc;

use millpond_core::driver::{CaptureMode, Driver, EventFlags, StreamFlags};
use millpond_core::misuse::MisuseKind;
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, DriverError, DriverHandle,
    ErrorKind, Layout, StreamRef, find_trait,
};
use millpond_driver::sim::{Access, FaultPlan, SimConfig, SimDevice};
use millpond_driver::{CallKind, CountingDriver};
use millpond_resources::{CaptureScope, CaptureScopes};
use millpond_testkit::misuse_recorder;

const MIB: u64 = 1 << 20;

/// Memory of each kind below the scopes.
const STACKS: &[&str] = &[
    "cuda+pool:pages=on,decay=off+capture_scopes",
    "cuda+pool:pages=off,decay=off+capture_scopes",
    "cuda_async+capture_scopes",
    "cuda+capture_scopes",
    "cuda+fixed_size:block_size=4MiB+capture_scopes",
];

fn device() -> Arc<SimDevice> {
    SimDevice::new(SimConfig::with_capacity(256 * MIB))
}

fn build(stack: &str, driver: &DriverHandle) -> AnyResource {
    let table = LayerTable::new(millpond_resources::LAYERS.iter().copied());
    stack.parse::<StackSpec>().unwrap().build(&table, driver).unwrap()
}

fn stack_on(device: &Arc<SimDevice>, stack: &str) -> AnyResource {
    let driver: DriverHandle = device.clone();
    build(stack, &driver)
}

fn stream(device: &SimDevice) -> StreamRef {
    device.stream_create(StreamFlags::NON_BLOCKING).unwrap()
}

fn take(stack: &AnyResource, bytes: u64, stream: StreamRef) -> DevicePtr {
    stack.allocate_bytes(bytes, stream).unwrap()
}

fn give(stack: &AnyResource, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
    // SAFETY: each block came from this stack with this size. A test that frees it wrongly expects a refusal.
    // Its uses are on the stream.
    unsafe { stack.deallocate_bytes(ptr, bytes, stream) }
}

fn scope_at(stack: &AnyResource, ptr: DevicePtr) -> Option<u64> {
    stack.block_at(ptr).and_then(|block| block.scope)
}

/// Captures the work that `act` submits to the stream, in the scope. Returns the addresses of blocks that
/// leave.
fn capture(device: &SimDevice, scope: &CaptureScope, stream: StreamRef, act: impl FnOnce()) -> Vec<u64> {
    let opened = scope.begin(stream).unwrap();
    device.begin_capture(stream, CaptureMode::Global).unwrap();
    act();
    device.end_capture(stream).unwrap();
    opened.end().iter().map(|block| block.address).collect()
}

#[test]
fn what_is_freed_in_a_capture_is_reused_there_and_nowhere_else() {
    for stack in STACKS {
        let device = device();
        let stack = stack_on(&device, stack);
        let [s, other] = [(); 2].map(|()| stream(&device));
        let scope = CaptureScope::of(&stack).unwrap();
        let (mut scratch, mut kept) = (DevicePtr::NULL, DevicePtr::NULL);
        let left = capture(&device, &scope, s, || {
            scratch = take(&stack, MIB, s);
            give(&stack, scratch, MIB, s);
            kept = take(&stack, MIB, s);
            assert_eq!(kept, scratch, "{stack}: the capture reuses it");
            scratch = take(&stack, MIB, s);
            give(&stack, scratch, MIB, s);
            let outside = take(&stack, MIB, other);
            assert_eq!((scope_at(&stack, outside), scope_at(&stack, kept)), (None, Some(scope.id())));
            give(&stack, outside, MIB, other);
        });
        assert_eq!(left, [kept.address()], "{stack}");
        // Other requests take all free memory; none of it is the scope's.
        let spans = scope.memory().bytes_held;
        assert!((2 * MIB..=8 * MIB).contains(&spans), "{spans}");
        let mut others = Vec::new();
        while let Ok(ptr) = stack.allocate_bytes(MIB, if others.len() % 2 == 0 { s } else { other }) {
            assert!(ptr != scratch && ptr != kept, "{stack}");
            others.push(ptr);
        }
        assert!(others.len() >= 60, "{stack}: {}", others.len());
        others.into_iter().for_each(|ptr| give(&stack, ptr, MIB, s));
        give(&stack, kept, MIB, other);
        assert_eq!((scope.memory().blocks, scope.memory().bytes_held), (0, spans), "{stack}");
        drop(scope);
        assert_eq!(find_trait::<dyn CaptureScopes>(&stack).unwrap().scopes(), []);
        drop(stack);
        assert_eq!((device.live_bytes(), device.live_events()), (0, 0));
        assert_eq!(device.take_violations(), []);
    }
}

#[test]
fn captures_of_a_scope_share_what_they_freed() {
    let device = device();
    let stack = stack_on(&device, STACKS[0]);
    let scope = CaptureScope::of(&stack).unwrap();
    let mut outputs = Vec::new();
    for number in 0..10 {
        let s = stream(&device);
        let left = capture(&device, &scope, s, || {
            let scratch = [(); 4].map(|()| take(&stack, MIB, s));
            outputs.push(take(&stack, MIB / 4, s));
            scratch.into_iter().for_each(|ptr| give(&stack, ptr, MIB, s));
        });
        assert_eq!(left, [outputs[number].address()]);
    }
    assert!(scope.memory().bytes_held <= 8 * MIB, "{:?}", scope.memory());
    assert_eq!(scope.blocks().len(), 10);
    let addresses: Vec<u64> = scope.blocks().iter().map(|block| block.address).collect();
    assert_eq!(addresses, outputs.iter().map(|ptr| ptr.address()).collect::<Vec<_>>(), "the oldest first");
    assert_eq!(device.take_violations(), []);
}

/// Two captures at a time share no freed blocks, even in one scope.
#[test]
fn captures_at_the_same_time_share_nothing() {
    let device = device();
    let stack = stack_on(&device, STACKS[0]);
    let [a, b] = [(); 2].map(|()| stream(&device));
    let [one, two] = [(); 2].map(|()| CaptureScope::of(&stack).unwrap());
    assert_ne!(one.id(), two.id());
    for second in [&one, &two] {
        let opened = [one.begin(a).unwrap(), second.begin(b).unwrap()];
        for s in [a, b] {
            device.begin_capture(s, CaptureMode::Relaxed).unwrap();
        }
        let of_a = take(&stack, MIB, a);
        give(&stack, of_a, MIB, a);
        let of_b = [(); 6].map(|()| take(&stack, MIB, b));
        assert!(!of_b.contains(&of_a));
        assert_eq!(take(&stack, MIB, a), of_a, "its own stream reuses it");
        give(&stack, of_a, MIB, a);
        of_b.into_iter().for_each(|ptr| give(&stack, ptr, MIB, b));
        for s in [a, b] {
            device.end_capture(s).unwrap();
        }
        let [first, second] = opened;
        assert_eq!((first.end(), second.end()), (vec![], vec![]));
    }
    let error = {
        let _open = one.begin(a).unwrap();
        two.begin(a).unwrap_err()
    };
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains(&format!("open in scope {}", one.id())), "{error}");
    drop(two.begin(a).unwrap());
}

/// A block that left its capture is in use on a stream when it is freed there.
#[test]
fn a_block_that_left_is_reused_when_its_work_is_done() {
    for is_foreign in [false, true] {
        let device = device();
        let stack = stack_on(&device, STACKS[1]);
        let [s, reader] = [(); 2].map(|()| stream(&device));
        // SAFETY: the stream lives as long as the device.
        let foreign = unsafe { StreamRef::foreign(reader.handle(), reader.id().get()) };
        let reader = if is_foreign { foreign } else { reader };
        let scope = CaptureScope::of(&stack).unwrap();
        let mut output = DevicePtr::NULL;
        capture(&device, &scope, s, || output = take(&stack, 2 * MIB, s));
        device.launch_for(reader, &[Access::read(output, 2 * MIB)], 1_000_000_000);
        give(&stack, output, 2 * MIB, reader);
        let again = |scope: &CaptureScope| {
            let mut ptr = DevicePtr::NULL;
            capture(&device, scope, s, || {
                ptr = take(&stack, 2 * MIB, s);
                give(&stack, ptr, 2 * MIB, s);
            });
            ptr
        };
        assert_ne!(again(&scope), output, "the reader is at work");
        device.stream_synchronize(reader).unwrap();
        let mut both = [DevicePtr::NULL; 2];
        capture(&device, &scope, s, || {
            both = [(); 2].map(|()| take(&stack, 2 * MIB, s));
            both.into_iter().for_each(|ptr| give(&stack, ptr, 2 * MIB, s));
        });
        assert!(both.contains(&output), "{both:?}, {output}");
        assert_eq!(device.take_violations(), []);
    }
}

/// A graph outside of the scope uses the block at each launch.
#[test]
fn a_block_that_is_freed_in_another_graph_waits_for_the_end() {
    let device = device();
    let stack = stack_on(&device, STACKS[1]);
    let [s, other] = [(); 2].map(|()| stream(&device));
    let [scope, theirs] = [(); 2].map(|()| CaptureScope::of(&stack).unwrap());
    for is_scoped in [false, true] {
        let mut output = DevicePtr::NULL;
        capture(&device, &scope, s, || output = take(&stack, 2 * MIB, s));
        let opened = is_scoped.then(|| theirs.begin(other).unwrap());
        device.begin_capture(other, CaptureMode::Global).unwrap();
        device.launch(other, &[Access::read(output, 2 * MIB)]);
        give(&stack, output, 2 * MIB, other);
        device.end_capture(other).unwrap();
        drop(opened);
        for scope in [&scope, &theirs, &scope] {
            device.synchronize().unwrap();
            // More than the scope has, so it asks about all blocks that wait.
            let count = 1 + scope.memory().bytes_held / (2 * MIB);
            capture(&device, scope, s, || {
                let blocks: Vec<_> = (0..count).map(|_| take(&stack, 2 * MIB, s)).collect();
                assert!(!blocks.contains(&output));
                blocks.into_iter().for_each(|ptr| give(&stack, ptr, 2 * MIB, s));
            });
        }
    }
    drop((scope, theirs));
    assert_eq!(stack.statistics().unwrap().bytes_in_use, 0);
}

/// Nothing can be recorded on such streams. Their frees count after a wait for the device.
#[test]
fn blocks_of_streams_that_are_gone_or_legacy_come_back() {
    let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
    let stack = stack_on(&device, STACKS[1]);
    let s = stream(&device);
    let scope = CaptureScope::of(&stack).unwrap();
    let _opened = scope.begin(s).unwrap();
    let gone = stream(&device);
    let block = take(&stack, 40 * MIB, s);
    device.launch_for(gone, &[Access::read(block, 40 * MIB)], 1_000_000);
    // SAFETY: the stream is this test's; naming it afterwards is the mistake that is tested.
    unsafe { device.stream_destroy(gone) }.unwrap();
    give(&stack, block, 40 * MIB, gone);
    assert_eq!(take(&stack, 40 * MIB, s), block);
    device.take_violations(); // the stream that was named is gone

    let blocking = device.stream_create(StreamFlags::BLOCKING).unwrap();
    device.launch_for(StreamRef::LEGACY, &[Access::read(block, 40 * MIB)], 1_000_000);
    device.begin_capture(blocking, CaptureMode::Global).unwrap();
    give(&stack, block, 40 * MIB, StreamRef::LEGACY);
    device.end_capture(blocking).unwrap();
    assert_eq!(take(&stack, 40 * MIB, s), block);
    assert_eq!(device.take_violations(), []);
}

#[test]
fn a_stream_that_is_forked_into_the_capture_is_served() {
    let device = device();
    let stack = stack_on(&device, STACKS[0]);
    let [s, forked, alone] = [(); 3].map(|()| stream(&device));
    let event = device.event_create(EventFlags::default()).unwrap();
    let scope = CaptureScope::of(&stack).unwrap();
    device.begin_capture(alone, CaptureMode::Relaxed).unwrap();
    capture(&device, &scope, s, || {
        assert_eq!(scope_at(&stack, take(&stack, MIB, forked)), None, "it is not a part yet");
        device.event_record(event, s).unwrap();
        device.stream_wait_event(forked, event).unwrap();
        let [own, branch] = [s, forked].map(|s| take(&stack, MIB, s));
        assert_eq!([own, branch].map(|ptr| scope_at(&stack, ptr)), [Some(scope.id()); 2]);
        assert_eq!(scope_at(&stack, take(&stack, MIB, alone)), None, "another capture");
        give(&stack, branch, MIB, forked);
        assert_ne!(take(&stack, MIB, s), branch, "nothing orders the streams here");
        assert_eq!(take(&stack, MIB, forked), branch);
        device.event_record(event, forked).unwrap();
        device.stream_wait_event(s, event).unwrap();
        give(&stack, own, MIB, s);
    });
    device.end_capture(alone).unwrap();
    assert_eq!(scope.blocks().len(), 2);
    assert_eq!(scope_at(&stack, take(&stack, MIB, forked)), None, "the capture has ended");
    assert_eq!(device.take_violations(), []);
}

/// Outside of captures, blocks are in the order of their streams.
#[test]
fn a_stream_may_be_open_and_capture_nothing() {
    let device = device();
    let stack = stack_on(&device, STACKS[1]);
    let [s, other] = [(); 2].map(|()| stream(&device));
    let scope = CaptureScope::of(&stack).unwrap();
    let _open = [scope.begin(s).unwrap(), scope.begin(other).unwrap()];
    let warm_up = take(&stack, 2 * MIB, s);
    device.launch_for(s, &[Access::write(warm_up, 2 * MIB, 1)], 1_000_000);
    give(&stack, warm_up, 2 * MIB, s);
    assert_ne!(take(&stack, 2 * MIB, other), warm_up);
    let again = take(&stack, 2 * MIB, s);
    assert_eq!(again, warm_up, "the stream's own");
    give(&stack, again, 2 * MIB, s);
    device.begin_capture(s, CaptureMode::Global).unwrap();
    assert_ne!(take(&stack, 2 * MIB, s), warm_up, "the graph may be launched on any stream, at once");
    device.end_capture(s).unwrap();
    device.synchronize().unwrap();
    assert_eq!(take(&stack, 2 * MIB, other), warm_up);
    assert_eq!(device.take_violations(), []);
}

#[test]
fn the_end_waits_for_work_and_keeps_what_is_handed_out() {
    for text in &STACKS[..2] {
        let device = device();
        let stack = stack_on(&device, text);
        let [s, launch] = [(); 2].map(|()| stream(&device));
        let scope = CaptureScope::of(&stack).unwrap();
        let mut output = DevicePtr::NULL;
        let mut scratch = DevicePtr::NULL;
        capture(&device, &scope, s, || {
            output = take(&stack, 1000, s);
            scratch = take(&stack, 8 * MIB, s);
            give(&stack, scratch, 8 * MIB, s);
        });
        let held = scope.memory().bytes_held;
        // The launch of a graph.
        device.launch_for(launch, &[Access::write(scratch, 8 * MIB, 3)], 5_000_000);
        let clone = scope.clone();
        drop(scope);
        assert_eq!(clone.memory().bytes_held, held);
        let before = device.virtual_time_ns();
        drop(clone);
        assert!(device.virtual_time_ns() - before >= 4_000_000, "it waits for the launch");
        let report = find_trait::<dyn CaptureScopes>(&stack).unwrap().scopes();
        assert_eq!((report.len(), report[0].has_ended, report[0].blocks), (1, true, 1));
        assert!(report[0].bytes_held < held, "{report:?}");
        assert!(scope_at(&stack, output).is_some());
        device.launch_for(launch, &[Access::write(output, 1000, 4)], 5_000_000);
        give(&stack, output, 1000, launch);
        assert_eq!(find_trait::<dyn CaptureScopes>(&stack).unwrap().scopes(), []);
        assert_eq!(stack.statistics().unwrap().bytes_in_use, 0);
        assert_eq!(device.take_violations(), []);
    }
}

/// If a wait for the device is impossible at the end, the memory goes back later.
#[test]
fn memory_that_could_not_go_back_goes_back_later() {
    for by in ["a trim", "a request", "another scope"] {
        let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
        let stack = stack_on(&device, STACKS[1]);
        let s = stream(&device);
        let scope = CaptureScope::of(&stack).unwrap();
        capture(&device, &scope, s, || {
            let scratch = take(&stack, 40 * MIB, s);
            give(&stack, scratch, 40 * MIB, s);
        });
        let code = DriverError::STREAM_CAPTURE_UNSUPPORTED;
        device.set_faults(FaultPlan::nth_of(CallKind::Synchronize, 0, code));
        drop(scope);
        assert_eq!(stack.statistics().unwrap().bytes_in_use, 40 * MIB);
        let scopes = find_trait::<dyn CaptureScopes>(&stack).unwrap();
        assert!(scopes.scopes()[0].has_ended);
        if by == "a trim" {
            assert_eq!(stack.trim(0).unwrap(), 40 * MIB);
        } else {
            let other = (by == "another scope").then(|| CaptureScope::of(&stack).unwrap());
            let opened = other.as_ref().map(|other| other.begin(s).unwrap());
            let ptr = take(&stack, 40 * MIB, s);
            assert_eq!(scope_at(&stack, ptr), opened.as_ref().map(|opened| opened.scope()));
            give(&stack, ptr, 40 * MIB, s);
        }
        assert_eq!((scopes.scopes(), stack.statistics().unwrap().bytes_in_use), (vec![], 0), "{by}");
        assert_eq!(device.take_violations(), []);
    }
}

#[test]
fn a_scope_outlives_its_resource_and_its_open_streams_hold_it() {
    let device = device();
    let stack = stack_on(&device, STACKS[0]);
    let s = stream(&device);
    let scope = CaptureScope::of(&stack).unwrap();
    let opened = scope.begin(s).unwrap();
    drop(scope);
    let ptr = take(&stack, MIB, s);
    assert_eq!(scope_at(&stack, ptr), Some(opened.scope()));
    drop(stack);
    assert!(device.live_bytes() > 0);
    device.launch(s, &[Access::write(ptr, MIB, 1)]);
    assert_eq!(opened.end().len(), 1, "it is still handed out");
    assert_eq!((device.live_bytes(), device.live_streams()), (0, 1));
    assert_eq!(device.take_violations(), []);
}

#[test]
fn wrong_frees_are_refused() {
    let device = device();
    let stack = stack_on(&device, STACKS[1]);
    let s = stream(&device);
    let scope = CaptureScope::of(&stack).unwrap();
    let opened = scope.begin(s).unwrap();
    let [first, second] = [(); 2].map(|()| take(&stack, 2 * MIB, s));
    let ((), misuses) = misuse_recorder::record(|| {
        give(&stack, first, MIB, s);
        give(&stack, first, 2 * MIB, s);
        // A span of upstream has this address and size.
        give(&stack, first, 2 * MIB, s);
        give(&stack, DevicePtr::new(second.address() + 256), 256, s);
    });
    let kinds: Vec<MisuseKind> = misuses.iter().map(|misuse| misuse.kind).collect();
    let wrong_size = MisuseKind::WrongSize { allocated_bytes: 2 * MIB };
    assert_eq!(kinds, [wrong_size, MisuseKind::DoubleFree, MisuseKind::ForeignPointer]);
    assert_eq!(stack.statistics().unwrap().misuses, 3);
    give(&stack, second, 2 * MIB, s);
    assert_eq!(opened.end(), []);
}

#[test]
fn without_an_open_scope_the_layer_asks_the_driver_nothing() {
    let device = device();
    let counter = CountingDriver::new(device.clone());
    let driver: DriverHandle = counter.clone();
    let calls = |stack: &str| {
        let stack = build(stack, &driver);
        let s = stream(&device);
        let before = counter.counts().total_calls();
        for bytes in [1000, MIB, 4 * MIB] {
            let ptr = take(&stack, bytes, s);
            give(&stack, ptr, bytes, s);
        }
        counter.counts().total_calls() - before
    };
    let bare = calls("cuda+pool:decay=off");
    assert_eq!(calls("cuda+pool:decay=off+capture_scopes"), bare);
}

#[test]
fn a_stack_without_the_layer_says_what_to_add() {
    let stack = stack_on(&device(), "cuda+pool");
    let error = CaptureScope::of(&stack).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("add +capture_scopes"), "{error}");
}

#[test]
fn reports_have_the_scopes() {
    let device = device();
    let stack = stack_on(&device, STACKS[1]);
    let s = stream(&device);
    let scope = CaptureScope::of(&stack).unwrap();
    let opened = scope.begin(s).unwrap();
    take(&stack, 1000, s);
    let id = scope.id();
    let report = stack.memory_report().to_string();
    let line = format!("scope {id}: 1000B in use in 1 block, 2MiB reserved; open on 1 stream");
    assert!(report.contains(&line), "{report}");
    drop((opened, scope));
    let report = stack.memory_report();
    let [known] = &report.layers[0].scopes[..] else { panic!("{report}") };
    assert_eq!((known.id, known.blocks, known.bytes_in_use, known.bytes_held), (id, 1, 1000, 2 * MIB));
    assert!(report.to_string().contains("2MiB reserved; the scope has ended"), "{report}");
}

#[test]
fn requests_are_aligned_and_refused_as_elsewhere() {
    let device = device();
    let stack = stack_on(&device, STACKS[0]);
    let s = stream(&device);
    let scope = CaptureScope::of(&stack).unwrap();
    let _opened = scope.begin(s).unwrap();
    for alignment in [256, 4096, 1 << 20, 8 << 20] {
        let layout = Layout::with_alignment(1000, alignment).unwrap();
        let ptr = stack.allocate(layout, s).unwrap();
        assert!(ptr.address().is_multiple_of(alignment));
        // SAFETY: the block came from this stack with this layout, and nothing uses it.
        unsafe { stack.deallocate(ptr, layout, s) };
    }
    assert_eq!(stack.allocate_bytes(0, s).unwrap(), DevicePtr::NULL);
    let error = stack.allocate_bytes(1 << 40, s).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    assert!(error.to_string().contains("growing a scope of captured graphs"), "{error}");
    assert_eq!(stack.allocate_bytes(u64::MAX, s).unwrap_err().kind(), ErrorKind::OutOfMemory);
}

/// Ended scopes and other streams give up their free memory before memory is out.
#[test]
fn memory_is_out_only_when_it_is() {
    let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
    let stack = stack_on(&device, STACKS[1]);
    let [s, other] = [(); 2].map(|()| stream(&device));
    let scope = CaptureScope::of(&stack).unwrap();
    let opened = [scope.begin(s).unwrap(), scope.begin(other).unwrap()];
    let most = take(&stack, 40 * MIB, s);
    device.launch_for(s, &[Access::write(most, 40 * MIB, 1)], 1_000_000);
    give(&stack, most, 40 * MIB, s);
    let again = take(&stack, 40 * MIB, other);
    assert_eq!(again, most, "after a wait for the other stream's work");
    give(&stack, again, 40 * MIB, other);
    drop(opened);
    assert!(stack.allocate_bytes(40 * MIB, s).unwrap_err().is_out_of_memory(), "the scope keeps it");
    drop(scope);
    take(&stack, 40 * MIB, s);
    assert_eq!(device.take_violations(), []);
}

/// Each driver call fails once, and then permanently; nothing goes back early. The capture is relaxed,
/// because the exchange of the thread's mode fails too.
#[test]
fn every_driver_call_may_fail() {
    for text in &STACKS[..4] {
        for code in [DriverError::OUT_OF_MEMORY, DriverError::ILLEGAL_ADDRESS] {
            let through = (0..).find(|n| is_through_with_fault(text, *n, code));
            assert!(through.is_some_and(|calls| calls > 10), "{text}: {through:?} calls");
        }
    }
}

/// Runs a program in which call `n` fails. Returns whether there were fewer calls.
fn is_through_with_fault(text: &str, n: u64, code: i32) -> bool {
    let device = device();
    let [s, other] = [(); 2].map(|()| stream(&device));
    let stack = stack_on(&device, text);
    device.set_faults(FaultPlan::nth_call(n, code));
    let before = device.driver_calls();
    let scope = CaptureScope::of(&stack).unwrap();
    let mut blocks = Vec::new();
    if let Ok(opened) = scope.begin(s) {
        device.begin_capture(s, CaptureMode::Relaxed).unwrap();
        for bytes in [1000, 3 * MIB, 1000] {
            blocks.extend(stack.allocate_bytes(bytes, s).ok().map(|ptr| (ptr, bytes)));
        }
        if let Some((ptr, bytes)) = blocks.pop() {
            give(&stack, ptr, bytes, s);
        }
        blocks.extend(stack.allocate_bytes(MIB, other).ok().map(|ptr| (ptr, MIB)));
        device.end_capture(s).unwrap_or_else(|error| panic!("{text}, call {n}: {error}"));
        opened.end();
    }
    for (ptr, bytes) in &blocks {
        device.launch_for(other, &[Access::write(*ptr, *bytes, 1)], 100_000);
    }
    for (ptr, bytes) in blocks {
        give(&stack, ptr, bytes, other);
    }
    drop(scope);
    stack.trim(0).ok();
    drop(stack);
    assert_eq!(device.take_violations(), [], "{text}, call {n}");
    let is_through = device.driver_calls() - before <= n;
    if is_through {
        assert_eq!((device.live_bytes(), device.live_events()), (0, 0), "{text}");
    }
    is_through
}

/// Several threads capture, each in a separate scope and stream, while others allocate.
#[test]
fn threads_capture_side_by_side() {
    let device = device();
    let stack = stack_on(&device, STACKS[0]);
    std::thread::scope(|threads| {
        for number in 0..4_u64 {
            let (device, stack) = (&device, &stack);
            threads.spawn(move || {
                let s = stream(device);
                for round in 0..50 {
                    let scope = CaptureScope::of(stack).unwrap();
                    let opened = scope.begin(s).unwrap();
                    device.begin_capture(s, CaptureMode::ThreadLocal).unwrap();
                    let blocks = [1000, MIB / 2, 3 * MIB].map(|bytes| (take(stack, bytes, s), bytes));
                    for (ptr, bytes) in blocks {
                        assert_eq!(scope_at(stack, ptr), Some(scope.id()));
                        device.lend(ptr, bytes, s);
                        device.launch(s, &[Access::write(ptr, bytes, number * 1000 + round)]);
                    }
                    for (ptr, bytes) in blocks {
                        device.launch(s, &[Access::check(ptr, bytes, number * 1000 + round)]);
                        device.give_back(ptr, bytes, s);
                        give(stack, ptr, bytes, s);
                    }
                    device.end_capture(s).unwrap();
                    assert_eq!(opened.end(), []);
                }
            });
            threads.spawn(move || {
                let s = stream(device);
                for round in 0..200 {
                    let ptr = take(stack, MIB, s);
                    assert_eq!(scope_at(stack, ptr), None);
                    device.lend(ptr, MIB, s);
                    device.launch(s, &[Access::write(ptr, MIB, round), Access::check(ptr, MIB, round)]);
                    device.give_back(ptr, MIB, s);
                    give(stack, ptr, MIB, s);
                }
            });
        }
    });
    assert_eq!(find_trait::<dyn CaptureScopes>(&stack).unwrap().scopes(), []);
    assert_eq!(device.take_violations(), []);
}
