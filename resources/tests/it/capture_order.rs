//! Tests that a scope for captured graphs hands a block on only after work outside of captures is done with
//! it, and holds none of its locks during a driver call.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use millpond_core::driver::{CaptureMode, Driver, EventFlags, StreamFlags};
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{AnyResource, DeviceMemoryResourceExt, DevicePtr, DriverHandle, StreamRef};
use millpond_driver::sim::{Access, SimConfig, SimDevice};
use millpond_resources::{CaptureScope, ScopedStream};
use millpond_testkit::Checked;
use millpond_testkit::hooked::HookedDriver;

const MIB: u64 = 1 << 20;
const LONG: u64 = 1_000_000_000; // No test runs that long on the virtual clock.

const STACKS: [&str; 3] =
    ["cuda+pool:pages=on,decay=off+capture_scopes", "cuda_async+capture_scopes", "cuda+capture_scopes"];

/// A device, a stack with scopes over it, and the checks on top.
struct Rig {
    device: Arc<SimDevice>,
    driver: Arc<HookedDriver>,
    stack: AnyResource,
    checked: AnyResource,
}

fn rig(text: &str) -> Rig {
    let device = SimDevice::new(SimConfig::with_capacity(256 * MIB));
    let driver = HookedDriver::new(device.clone());
    let table = LayerTable::new(millpond_resources::LAYERS.iter().copied());
    let handle: DriverHandle = driver.clone();
    let stack = text.parse::<StackSpec>().unwrap().build(&table, &handle).unwrap();
    let checked = Checked::new(stack.clone(), Some(device.clone())).into_any();
    Rig { device, driver, stack, checked }
}

impl Rig {
    fn stream(&self) -> StreamRef {
        self.device.stream_create(StreamFlags::NON_BLOCKING).unwrap()
    }

    fn scope(&self) -> CaptureScope {
        CaptureScope::of(&self.stack).unwrap()
    }

    fn take(&self, stream: StreamRef) -> DevicePtr {
        self.checked.allocate_bytes(MIB, stream).unwrap()
    }

    /// Takes all free blocks.
    fn take_all(&self, stream: StreamRef) -> Vec<DevicePtr> {
        std::iter::from_fn(|| self.checked.allocate_bytes(MIB, stream).ok()).collect()
    }

    fn give(&self, ptr: DevicePtr, stream: StreamRef) {
        // SAFETY: each block came from this stack with this size, once; its uses are before the stream.
        unsafe { self.checked.deallocate_bytes(ptr, MIB, stream) }
    }

    fn begin(&self, stream: StreamRef) {
        self.device.begin_capture(stream, CaptureMode::Relaxed).unwrap();
    }

    fn end(&self, stream: StreamRef) {
        self.device.end_capture(stream).unwrap();
    }

    /// Submits long work that uses the block on the stream.
    fn work(&self, stream: StreamRef, ptr: DevicePtr) {
        self.device.launch_for(stream, &[Access::write(ptr, MIB, 7)], LONG);
    }

    /// Makes a stream wait for another's present work. If the other captures, the stream joins the capture.
    fn order(&self, before: StreamRef, after: StreamRef) {
        let event = self.device.event_create(EventFlags::default()).unwrap();
        self.device.event_record(event, before).unwrap();
        self.device.stream_wait_event(after, event).unwrap();
        // SAFETY: this function made the event.
        unsafe { self.device.event_destroy(event) }.unwrap();
    }

    /// Returns the blocks that a stream gets from a scope, and uses at once. All go back to the scope.
    fn blocks_of(
        &self,
        scope: &CaptureScope,
        stream: StreamRef,
        captures: bool,
        count: u64,
    ) -> Vec<DevicePtr> {
        let opened = scope.begin(stream).unwrap();
        if captures {
            self.begin(stream);
        }
        let blocks: Vec<_> = (0..count).map(|_| self.take(stream)).collect();
        blocks.iter().for_each(|ptr| self.device.launch(stream, &[Access::write(*ptr, MIB, 8)]));
        blocks.iter().for_each(|ptr| self.give(*ptr, stream));
        if captures {
            self.end(stream);
        }
        drop(opened);
        blocks
    }

    #[track_caller]
    fn assert_order_was_kept(&self, case: &str) {
        assert_eq!(self.device.take_violations(), [], "{case}");
    }
}

/// Runs the case over each stack. It returns a block that work uses outside of captures, and a scope that no
/// stream has open. While the work runs, another stream must not get the block from the scope. When the work
/// is done, that stream gets it, without more memory.
fn is_handed_on_when_work_is_done(case: &str, run: impl Fn(&Rig) -> (CaptureScope, DevicePtr)) {
    for stack in STACKS {
        for captures in [false, true] {
            let case = format!("{case}, {stack}, the next captures: {captures}");
            let rig = rig(stack);
            let other = rig.stream();
            let (scope, block) = run(&rig);
            let got = rig.blocks_of(&scope, other, captures, 4);
            assert!(!got.contains(&block), "{case}: work is under way");
            rig.device.advance(2 * LONG);
            let held = scope.memory().bytes_held;
            let got = rig.blocks_of(&scope, rig.stream(), captures, held / MIB);
            assert!(got.contains(&block), "{case}: the work is done");
            assert_eq!(scope.memory().bytes_held, held, "{case}");
            rig.assert_order_was_kept(&case);
        }
    }
}

#[test]
fn a_block_with_work_before_the_capture_that_frees_it_is_handed_on_after_that_work() {
    is_handed_on_when_work_is_done("one stream", |rig| {
        let (scope, s) = (rig.scope(), rig.stream());
        let opened = scope.begin(s).unwrap();
        let x = rig.take(s);
        rig.work(s, x);
        rig.begin(s);
        rig.give(x, s);
        rig.end(s);
        drop(opened);
        (scope, x)
    });
}

/// The driver does not know whether such a stream is alive. The program that closes the scope guarantees it.
#[test]
fn a_stream_from_elsewhere_that_was_open_needs_no_wait_for_the_device() {
    is_handed_on_when_work_is_done("foreign", |rig| {
        let (scope, s) = (rig.scope(), rig.stream());
        // SAFETY: the stream lives as long as the device.
        let foreign = unsafe { StreamRef::foreign(s.handle(), s.id().get()) };
        let opened = scope.begin(foreign).unwrap();
        let x = rig.take(foreign);
        rig.work(foreign, x);
        rig.begin(foreign);
        rig.give(x, foreign);
        rig.end(foreign);
        drop(opened);
        (scope, x)
    });
}

#[test]
fn a_block_of_another_stream_that_a_forked_stream_frees_waits_for_both() {
    is_handed_on_when_work_is_done("forked", |rig| {
        let (scope, a, origin, forked) = (rig.scope(), rig.stream(), rig.stream(), rig.stream());
        let opened = scope.begin(a).unwrap();
        let x = rig.take(a);
        drop(opened);
        rig.work(a, x);
        // The forked stream gets the order through the capture alone.
        rig.order(a, origin);
        let opened = scope.begin(origin).unwrap();
        rig.begin(origin);
        rig.order(origin, forked);
        rig.give(x, forked);
        rig.order(forked, origin);
        rig.end(origin);
        drop(opened);
        (scope, x)
    });
}

/// The capture begins on a stream that the scope does not know.
#[test]
fn a_block_waits_for_the_stream_that_allocated_it() {
    is_handed_on_when_work_is_done("allocated elsewhere", |rig| {
        let (scope, a, origin, s) = (rig.scope(), rig.stream(), rig.stream(), rig.stream());
        let opened = scope.begin(a).unwrap();
        let x = rig.take(a);
        drop(opened);
        rig.work(a, x);
        rig.order(a, origin);
        let opened = scope.begin(s).unwrap();
        rig.begin(origin);
        rig.order(origin, s);
        rig.give(x, s);
        rig.order(s, origin);
        rig.end(origin);
        drop(opened);
        (scope, x)
    });
}

/// The streams that allocate and free the block are not ordered after its work.
#[test]
fn a_block_waits_for_the_streams_that_are_open() {
    is_handed_on_when_work_is_done("used elsewhere", |rig| {
        let (scope, a, user) = (rig.scope(), rig.stream(), rig.stream());
        let (origin, forked) = (rig.stream(), rig.stream());
        let opened = scope.begin(a).unwrap();
        let x = rig.take(a);
        drop(opened);
        rig.order(a, user);
        rig.work(user, x);
        rig.order(user, origin);
        let opened = scope.begin(origin).unwrap();
        rig.begin(origin);
        rig.order(origin, forked);
        rig.give(x, forked);
        rig.order(forked, origin);
        rig.end(origin);
        drop(opened);
        (scope, x)
    });
}

/// The stream was forked into the capture, and is not open in the scope.
#[test]
fn a_block_waits_for_the_stream_that_frees_it() {
    is_handed_on_when_work_is_done("used by the fork", |rig| {
        let (scope, a, origin, forked) = (rig.scope(), rig.stream(), rig.stream(), rig.stream());
        let opened = scope.begin(a).unwrap();
        let x = rig.take(a);
        drop(opened);
        rig.order(a, forked);
        rig.work(forked, x);
        let opened = scope.begin(origin).unwrap();
        rig.begin(origin);
        rig.order(origin, forked);
        rig.give(x, forked);
        rig.order(forked, origin);
        rig.end(origin);
        drop(opened);
        (scope, x)
    });
}

#[test]
fn a_block_that_an_ordinary_stream_allocated_is_handed_on_after_that_streams_work() {
    is_handed_on_when_work_is_done("allocated outside", |rig| {
        let (scope, ordinary, s) = (rig.scope(), rig.stream(), rig.stream());
        let opened = [scope.begin(ordinary).unwrap(), scope.begin(s).unwrap()];
        rig.begin(s);
        let x = rig.take(ordinary);
        rig.work(ordinary, x);
        rig.device.stream_synchronize(ordinary).unwrap();
        rig.device.launch_for(ordinary, &[Access::read(x, MIB)], LONG);
        rig.end(s);
        rig.order(ordinary, s);
        rig.begin(s);
        rig.give(x, s);
        rig.end(s);
        drop(opened);
        (scope, x)
    });
}

#[test]
fn an_output_that_ordinary_work_used_and_a_later_capture_freed_is_handed_on_after_that_work() {
    is_handed_on_when_work_is_done("an output", |rig| {
        let (scope, s, launches) = (rig.scope(), rig.stream(), rig.stream());
        let opened = scope.begin(s).unwrap();
        rig.begin(s);
        let x = rig.take(s);
        rig.device.launch(s, &[Access::write(x, MIB, 1)]);
        rig.end(s);
        drop(opened);
        rig.order(s, launches);
        rig.work(launches, x); // the launch of the graph
        rig.order(launches, s);
        let opened = scope.begin(s).unwrap();
        rig.begin(s);
        rig.give(x, s);
        rig.end(s);
        drop(opened);
        (scope, x)
    });
}

/// The graph may be launched at once on any stream. So not even the capture that frees the block gets it.
#[test]
fn the_capture_reuses_what_it_allocated_and_nothing_else() {
    for stack in STACKS {
        let rig = rig(stack);
        let (scope, s) = (rig.scope(), rig.stream());
        let opened = scope.begin(s).unwrap();
        let before = rig.take(s);
        rig.work(s, before);
        rig.begin(s);
        rig.give(before, s);
        let first = rig.take(s);
        rig.give(first, s);
        let second = rig.take(s);
        assert_eq!(first, second, "{stack}: the capture allocated it");
        assert_ne!(first, before, "{stack}");
        rig.give(second, s);
        rig.end(s);
        // Another capture while the scope is open may run on other streams than the first.
        rig.begin(s);
        let third = rig.take(s);
        assert_ne!(third, before, "{stack}");
        rig.give(third, s);
        rig.end(s);
        drop(opened);
        rig.assert_order_was_kept(stack);
    }
}

/// The streams of two captures in one scope share nothing until both are closed.
#[test]
fn a_stream_that_closes_leaves_the_captures_of_others_alone() {
    for stack in STACKS {
        for is_forked in [false, true] {
            let rig = rig(stack);
            let (scope, first, second, other) = (rig.scope(), rig.stream(), rig.stream(), rig.stream());
            let opened = [first, second].map(|s| scope.begin(s).unwrap());
            let x = rig.take(second);
            rig.work(second, x);
            rig.begin(first);
            match is_forked {
                true => rig.order(first, second),
                false => rig.begin(second),
            }
            let [of_first, of_second] = [first, second].map(|s| rig.take(s));
            rig.give(of_first, first);
            rig.give(of_second, second);
            rig.give(x, second);
            if is_forked {
                rig.order(second, first);
            } else {
                rig.end(first);
            }
            let [open, still_open] = opened;
            drop(open);
            let freed = [of_first, of_second, x];
            // Neither another stream nor the one that continues gets the others' blocks.
            let mut got = rig.blocks_of(&scope, other, false, 4);
            got.extend((0..3).map(|_| rig.take(second)).filter(|ptr| *ptr != of_second));
            assert!(got.iter().all(|ptr| !freed.contains(ptr)), "{stack}, forked: {is_forked}: {got:x?}");
            rig.end(if is_forked { first } else { second });
            drop(still_open);
            let got = rig.blocks_of(&scope, other, true, 16);
            assert!(got.contains(&of_first), "{stack}, forked: {is_forked}: no capture goes on");
            assert!(!got.contains(&x), "{stack}, forked: {is_forked}: its work is under way");
            rig.assert_order_was_kept(stack);
        }
    }
}

/// The scope cannot record on a foreign stream that is not open: it waits for the device, or memory is out.
#[test]
fn blocks_of_streams_that_cannot_be_recorded_come_back_after_a_wait_for_the_device() {
    for stack in STACKS {
        let rig = rig(stack);
        let (scope, a, s) = (rig.scope(), rig.stream(), rig.stream());
        // SAFETY: the stream lives as long as the device.
        let foreign = unsafe { StreamRef::foreign(a.handle(), a.id().get()) };
        let opened = scope.begin(foreign).unwrap();
        let x = rig.take(foreign);
        drop(opened);
        rig.work(foreign, x);
        rig.order(foreign, s);
        let opened = scope.begin(s).unwrap();
        rig.begin(s);
        rig.give(x, s);
        rig.end(s);
        drop(opened);
        assert!(!rig.blocks_of(&scope, s, true, 4).contains(&x), "{stack}");
        let opened = scope.begin(s).unwrap();
        let mut blocks = Vec::new();
        while !blocks.contains(&x) {
            assert!(blocks.len() < 256, "{stack}: the block does not come back");
            blocks.push(rig.take(s));
        }
        blocks.into_iter().for_each(|ptr| rig.give(ptr, s));
        drop(opened);
        rig.assert_order_was_kept(stack);
    }
}

/// The device wait covers earlier frees, and none that another thread makes meanwhile.
#[test]
fn a_wait_for_the_device_covers_no_later_free() {
    let rig = rig("cuda+capture_scopes");
    let (scope, s, other, third) = (rig.scope(), rig.stream(), rig.stream(), rig.stream());
    let opened: Vec<ScopedStream> = [s, other, third].into_iter().map(|s| scope.begin(s).unwrap()).collect();
    let blocks = rig.take_all(s);
    // Neighbours would join.
    let (early, late, captured) = (blocks[10], blocks[20], blocks[30]);
    rig.work(s, early);
    rig.give(early, s);
    let (checked, device) = (rig.checked.clone(), rig.device.clone());
    rig.driver.after_synchronize(move || {
        // SAFETY: each block came from this stack with this size, once; its use is on the stream.
        let give = |ptr| unsafe { checked.deallocate_bytes(ptr, MIB, s) };
        device.launch_for(s, &[Access::write(late, MIB, 7), Access::write(captured, MIB, 7)], LONG);
        give(late);
        device.begin_capture(s, CaptureMode::Relaxed).unwrap();
        give(captured);
        device.end_capture(s).unwrap();
    });
    assert_eq!(rig.take(other), early);
    assert_eq!(rig.driver.hooks_left(), 0);
    let before = rig.device.virtual_time_ns();
    assert_eq!(rig.take(third), late);
    assert!(rig.device.virtual_time_ns() - before > LONG / 2);
    rig.assert_order_was_kept("late");
    drop(opened);
}

/// After a wait for the device, a block belongs to the capture that freed it: the graph's own work on it
/// comes before the stream of the free only.
#[test]
fn a_block_is_its_captures_when_other_work_is_done() {
    let rig = rig("cuda+capture_scopes");
    let (scope, s, other) = (rig.scope(), rig.stream(), rig.stream());
    let opened = [s, other].map(|s| scope.begin(s).unwrap());
    let blocks = rig.take_all(s);
    let x = blocks[10];
    rig.work(s, x);
    rig.begin(s);
    rig.device.launch(s, &[Access::read(x, MIB)]);
    rig.give(x, s);
    assert!(rig.checked.allocate_bytes(MIB, s).unwrap_err().is_out_of_memory(), "a capture does not wait");
    assert!(rig.checked.allocate_bytes(MIB, other).unwrap_err().is_out_of_memory(), "it is the capture's");
    assert_eq!(rig.take(s), x, "the device was waited for");
    rig.give(x, s);
    rig.end(s);
    drop(opened);
    assert_eq!(rig.blocks_of(&scope, other, true, 1), [x]);
    rig.assert_order_was_kept("capture");
}

/// If another thread begins a capture just before the record, the event belongs to it. A query would end it.
#[test]
fn an_event_that_a_capture_got_is_not_asked_about() {
    for stack in STACKS {
        let rig = rig(stack);
        let (scope, s, other) = (rig.scope(), rig.stream(), rig.stream());
        let opened = [s, other].map(|s| scope.begin(s).unwrap());
        let x = rig.take(s);
        rig.work(s, x);
        let device = rig.device.clone();
        rig.driver.before_record(move || device.begin_capture(s, CaptureMode::Relaxed).unwrap());
        rig.give(x, s);
        assert_eq!(rig.driver.hooks_left(), 0, "{stack}: nothing was recorded");
        let y = rig.take(other);
        assert_ne!(x, y, "{stack}");
        rig.device.end_capture(s).unwrap_or_else(|error| panic!("{stack}: {error}"));
        rig.device.synchronize().unwrap();
        rig.give(y, other);
        // The same when the scope closes for the stream.
        let z = rig.take(s);
        rig.work(s, z);
        rig.begin(s);
        rig.give(z, s);
        rig.end(s);
        let device = rig.device.clone();
        rig.driver.before_record(move || device.begin_capture(s, CaptureMode::Relaxed).unwrap());
        let [of_s, of_other] = opened;
        drop(of_s);
        assert_eq!(rig.driver.hooks_left(), 0, "{stack}: nothing was recorded");
        assert_ne!(rig.take(other), z, "{stack}");
        rig.device.end_capture(s).unwrap_or_else(|error| panic!("{stack}: {error}"));
        drop(of_other);
        rig.assert_order_was_kept(stack);
    }
}

/// Another thread closes and drops the scope during an allocation, which then belongs to no scope.
#[test]
fn a_scope_that_ends_during_an_allocation_hands_out_nothing() {
    for stack in STACKS {
        for has_memory in [false, true] {
            let case = format!("{stack}, the scope has memory: {has_memory}");
            let rig = rig(stack);
            let (scope, s, other) = (rig.scope(), rig.stream(), rig.stream());
            let mut opened = vec![scope.begin(other).unwrap()];
            let (mut kept, mut freed) = (DevicePtr::NULL, DevicePtr::NULL);
            if has_memory {
                opened.push(scope.begin(s).unwrap());
                [kept, freed] = [(); 2].map(|()| rig.take(s));
                rig.work(s, freed);
                rig.give(freed, s);
            }
            let end = move || drop((opened, scope));
            match has_memory {
                true => rig.driver.before_capture_query(end),
                false => rig.driver.before_stream_create(end),
            }
            let ptr = rig.take(other);
            assert_eq!(rig.driver.hooks_left(), 0, "{case}: the scope did not end");
            assert_eq!(rig.stack.block_at(ptr).and_then(|block| block.scope), None, "{case}");
            assert_ne!(ptr, freed, "{case}: work is under way");
            rig.give(ptr, other);
            if has_memory {
                rig.give(kept, s);
            }
            let Rig { device, driver, stack, checked } = rig;
            drop((checked, stack, driver));
            assert_eq!((device.live_bytes(), device.live_events()), (0, 0), "{case}");
            assert_eq!(device.take_violations(), [], "{case}");
        }
    }
}

/// The driver's pool frees a block behind both streams: the captured order holds for the graph alone.
#[test]
fn a_pool_of_the_driver_frees_a_block_behind_the_stream_that_allocated_it_too() {
    for is_foreign in [false, true] {
        let rig = rig("cuda_async");
        let [a, origin, forked, other] = [(); 4].map(|()| rig.stream());
        // SAFETY: the stream lives as long as the device.
        let foreign = unsafe { StreamRef::foreign(a.handle(), a.id().get()) };
        let a = if is_foreign { foreign } else { a };
        let x = rig.take(a);
        rig.work(a, x);
        rig.order(a, origin);
        rig.begin(origin);
        rig.order(origin, forked);
        rig.give(x, forked);
        rig.order(forked, origin);
        rig.end(origin);
        for stream in [forked, other] {
            let ptr = rig.take(stream);
            rig.give(ptr, stream);
        }
        rig.assert_order_was_kept("cuda_async");
        rig.stack.trim(0).unwrap();
        assert_eq!(rig.device.used_bytes(), 0, "foreign: {is_foreign}");
        rig.assert_order_was_kept("cuda_async");
    }
}

fn within_a_minute(what: &str, run: impl FnOnce() + Send + 'static) {
    let (done, waits) = mpsc::channel();
    std::thread::spawn(move || {
        run();
        done.send(()).ok();
    });
    assert!(waits.recv_timeout(Duration::from_secs(60)).is_ok(), "{what} hangs, or failed");
}

#[test]
fn driver_calls_are_made_without_the_locks_of_a_scope() {
    within_a_minute("a driver call of a scope", || {
        let rig = rig("cuda+capture_scopes");
        let (scope, s, other) = (rig.scope(), rig.stream(), rig.stream());
        let opened = [s, other].map(|s| scope.begin(s).unwrap());
        let uses = || {
            let (scope, stack) = (scope.clone(), rig.stack.clone());
            move || {
                let bytes = scope.memory().bytes_held;
                let ptr = stack.allocate_bytes(MIB, other).unwrap();
                // SAFETY: the block came from this stack with this size, and nothing uses it.
                unsafe { stack.deallocate_bytes(ptr, MIB, other) };
                assert!(scope.memory().bytes_held >= bytes);
            }
        };
        let [x, y] = [(); 2].map(|()| rig.take(s));
        rig.driver.before_record(uses());
        rig.give(x, s);
        rig.driver.before_query(uses());
        let z = rig.take(other);
        rig.begin(s);
        rig.give(y, s);
        rig.end(s);
        rig.driver.before_record(uses());
        let [of_s, of_other] = opened;
        drop(of_s);
        let of_hook = scope.clone();
        rig.driver.before_synchronize(move || assert!(of_hook.memory().bytes_held > 0));
        let mut blocks = rig.take_all(other);
        blocks.push(z);
        assert_eq!(rig.driver.hooks_left(), 0, "memory is out, and the device was not waited for");
        blocks.into_iter().for_each(|ptr| rig.give(ptr, other));
        drop(of_other);
        rig.driver.before_synchronize(|| ());
        drop(scope);
        assert_eq!(rig.driver.hooks_left(), 0, "the end waits");
        rig.assert_order_was_kept("hooks");
    });
}
