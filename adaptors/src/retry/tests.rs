//! Tests waiting: the ends of a wait, and the requests that never wait.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use millpond_core::interrupt::set_interrupt;
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, ErrorKind, Layout, MemoryInfo,
    Result, StreamRef,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_testkit::mock::{self, Call, MockResource};

use super::{RetryLayer, RetryResourceAdaptor};
use crate::probe::Probe;
use crate::{LimitingLayer, LimitingResourceAdaptor, ThreadSafeLayer};

const S: StreamRef = StreamRef::LEGACY;
const LONG: Duration = Duration::from_secs(3600);
/// After this time, a call counts as hanging.
const WATCHDOG: Duration = Duration::from_secs(60);

type Limited = RetryResourceAdaptor<LimitingResourceAdaptor<MockResource>>;

fn mock() -> (MockResource, mock::Handle) {
    mock::resource(SimDevice::new(SimConfig::h200()))
}

fn limited(bytes: u64, timeout: Duration) -> (Limited, mock::Handle) {
    let (upstream, handle) = mock();
    let limited = upstream.layer(LimitingLayer::new(bytes)).unwrap();
    (limited.layer(RetryLayer::new().timeout(timeout)).unwrap(), handle)
}

fn free(resource: &impl DeviceMemoryResource, ptr: DevicePtr, bytes: u64) {
    // SAFETY: the tests free each block once, with its size; no work uses it.
    unsafe { resource.deallocate_bytes(ptr, bytes, S) }
}

fn waits(resource: &Limited) -> bool {
    resource.frees.are_awaited()
}

#[test]
fn a_request_waits_for_another_threads_free() {
    let (resource, handle) = limited(256, LONG);
    let first = resource.allocate_bytes(200, S).unwrap();
    let second = std::thread::scope(|scope| {
        let second = scope.spawn(|| resource.allocate_bytes(200, S));
        while !waits(&resource) {
            std::thread::yield_now();
        }
        free(&resource, first, 200);
        second.join().unwrap()
    });
    assert!(!waits(&resource));
    assert_eq!(resource.frees.counted(), 1, "the free was told to the thread that waited");
    free(&resource, second.unwrap(), 200);
    assert_eq!(resource.frees.counted(), 1, "no thread waits any more");
    assert_eq!(handle.live(), []);
}

/// The request releases the lock before it waits, so the free that serves it gets through. Layers between the
/// two, and a second lock, change nothing.
#[test]
fn a_request_below_a_lock_waits_without_the_lock() {
    let table =
        LayerTable::new(millpond_resources::LAYERS.iter().copied()).with(crate::LAYERS.iter().copied());
    for text in [
        "cuda+limiting:limit=20MiB+retry:timeout=3600s+thread_safe",
        "cuda+limiting:limit=20MiB+retry:timeout=3600s+tracking+thread_safe",
        "cuda+limiting:limit=20MiB+retry:timeout=3600s+thread_safe+statistics+thread_safe",
        "cuda+limiting:limit=20MiB+thread_safe+retry:timeout=3600s+thread_safe",
        "cuda+limiting:limit=20MiB+thread_safe+retry:timeout=3600s",
    ] {
        let device = SimDevice::new(SimConfig::with_capacity(1 << 30)) as _;
        let spec: StackSpec = text.parse().unwrap();
        let resource = spec.build(&table, &device).unwrap();
        let first = resource.allocate_bytes(16 << 20, S).unwrap();
        let (begun, begins) = mpsc::channel();
        let (served, serves) = mpsc::channel();
        let shared = Arc::clone(&resource);
        std::thread::spawn(move || {
            begun.send(()).unwrap();
            served.send(shared.allocate_bytes(16 << 20, S))
        });
        begins.recv().unwrap();
        // Most of the time, it waits by then; if not, it is served at once.
        std::thread::sleep(Duration::from_millis(20));
        let (freed, frees) = mpsc::channel();
        let shared = Arc::clone(&resource);
        std::thread::spawn(move || {
            free(&shared, first, 16 << 20);
            freed.send(())
        });
        frees.recv_timeout(WATCHDOG).unwrap_or_else(|_| panic!("{text}: the free waits for the request"));
        let second = serves.recv_timeout(WATCHDOG).unwrap_or_else(|_| panic!("{text}: hangs"));
        free(&resource, second.unwrap(), 16 << 20);
    }
}

/// The thread that holds the lock would wait for itself.
#[test]
fn a_request_from_inside_a_lock_does_not_wait() {
    static STACK: OnceLock<AnyResource> = OnceLock::new();
    let (upstream, handle) = mock();
    let before = |call: &str| {
        if call == "trim" {
            let inside = STACK.get().unwrap().allocate_bytes(100, S);
            assert!(inside.unwrap_err().is_out_of_memory());
        }
    };
    let below = Probe { upstream, before }.layer(RetryLayer::new().timeout(LONG)).unwrap();
    let stack = STACK.get_or_init(|| below.layer(ThreadSafeLayer::new()).unwrap().into_any());
    handle.fail_next(ErrorKind::OutOfMemory);
    assert_eq!(stack.trim(0).unwrap(), 0);
}

/// Each thread needs the whole limit, so all except one wait.
#[test]
fn threads_take_turns() {
    let (resource, handle) = limited(256, LONG);
    let served = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let ptr = resource.allocate_bytes(256, S).unwrap();
                    served.fetch_add(1, Ordering::Relaxed);
                    std::thread::yield_now();
                    free(&resource, ptr, 256);
                }
            });
        }
    });
    assert_eq!((served.into_inner(), waits(&resource), handle.live()), (200, false, vec![]));
}

#[test]
fn the_error_is_returned_after_the_time() {
    let (upstream, handle) = mock();
    let attempts = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&attempts);
    let before = move |call: &str| {
        seen.fetch_add(u32::from(call == "allocate"), Ordering::Relaxed);
    };
    let limited = Probe { upstream, before }.layer(LimitingLayer::new(1 << 20)).unwrap();
    let resource = Probe { upstream: limited, before: |_: &str| {} }
        .layer(RetryLayer::new().timeout(Duration::from_millis(1)))
        .unwrap();
    let block = resource.allocate_bytes(1 << 20, S).unwrap();
    let error = resource.allocate_bytes(300, S).unwrap_err();
    assert_eq!((error.kind(), error.requested_bytes()), (ErrorKind::OutOfMemory, Some(300)));
    assert!(error.stack().unwrap().ends_with("limiting:limit=1MiB"), "{error}");
    assert_eq!(attempts.load(Ordering::Relaxed), 1, "the limit refused every attempt");
    free(&resource, block, 1 << 20);
    assert_eq!((resource.frees.are_awaited(), handle.live()), (false, vec![]));
}

#[test]
fn a_request_is_tried_again_before_and_after_it_waits() {
    let (upstream, handle) = mock();
    let resource = upstream.layer(RetryLayer::new().timeout(Duration::from_millis(20))).unwrap();
    (0..3).for_each(|_| handle.fail_next(ErrorKind::OutOfMemory));
    let ptr = resource.allocate_bytes(100, S).unwrap();
    let asked = Call::allocate(Layout::new(100), S);
    handle.assert_calls([asked, Call::MemoryInfo, asked, asked, asked]);
    free(&resource, ptr, 100);
}

#[test]
fn what_waiting_cannot_help_fails_at_once() {
    let (upstream, handle) = mock();
    let resource = upstream.layer(RetryLayer::new().timeout(LONG)).unwrap();
    for kind in [ErrorKind::InvalidArgument, ErrorKind::Driver, ErrorKind::Poisoned, ErrorKind::Unsupported] {
        handle.fail_next(kind);
        assert_eq!(resource.allocate_bytes(100, S).unwrap_err().kind(), kind);
    }
    assert_eq!(handle.take_calls().len(), 4);
    handle.set_memory_info(MemoryInfo { free: 0, total: 5000 });
    handle.fail_next(ErrorKind::OutOfMemory);
    assert!(resource.allocate_bytes(5001, S).unwrap_err().is_out_of_memory());
    handle.assert_calls([Call::allocate(Layout::new(5001), S), Call::MemoryInfo]);
    handle.fail_next(ErrorKind::OutOfMemory);
    handle.fail_next(ErrorKind::Driver);
    assert_eq!(resource.allocate_bytes(5000, S).unwrap_err().kind(), ErrorKind::Driver);
    assert!(!resource.frees.are_awaited());

    let (resource, handle) = limited(256, Duration::ZERO);
    assert!(resource.allocate_bytes(257, S).unwrap_err().is_out_of_memory());
    handle.assert_calls([]);
}

#[test]
fn everything_else_is_the_upstreams() {
    let (upstream, handle) = mock();
    let resource = upstream.layer(RetryLayer::new()).unwrap();
    assert_eq!(resource.timeout(), Duration::from_millis(100));
    handle.set_memory_info(MemoryInfo { free: 5, total: 9 });
    handle.set_trimmed_bytes(77);
    assert_eq!(resource.memory_info().unwrap(), MemoryInfo { free: 5, total: 9 });
    assert_eq!((resource.statistics(), resource.trim(11).unwrap()), (None, 77));
    assert!(resource.is_equal(&resource) && !resource.is_equal(resource.upstream().unwrap()));
}

#[test]
fn text_builds_it() {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30)) as _;
    let table =
        LayerTable::new(millpond_resources::LAYERS.iter().copied()).with(crate::LAYERS.iter().copied());
    let build = |text: &str| -> Result<AnyResource> { text.parse::<StackSpec>()?.build(&table, &device) };
    for (text, printed) in [
        ("cuda+retry", "cuda+retry"),
        ("cuda+retry:timeout=100ms", "cuda+retry"),
        ("cuda+retry:timeout=2000ms", "cuda+retry:timeout=2s"),
        ("cuda+pool+retry:timeout=50us", "cuda+pool+retry:timeout=50us"),
    ] {
        assert_eq!(build(text).unwrap().to_string(), printed);
    }
    for (wrong, message) in [
        ("soon", "`timeout=soon` of `retry`: `soon` is not a time; write for example 100ms"),
        ("2h", "`2h` is not a time"),
        ("4000s", "a request waits for an hour at most, not for 4000s"),
    ] {
        let error = build(&format!("cuda+retry:timeout={wrong}")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidStack, "{wrong}: {error}");
        assert!(error.to_string().contains(message), "{wrong}: {error}");
    }
    let error = mock().0.layer(RetryLayer::new().timeout(2 * LONG)).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

/// The program is asked on the waiting thread; other threads continue to wait.
#[test]
fn a_program_ends_a_wait() {
    let (thread, asked) = (std::thread::current().id(), Arc::new(AtomicU32::new(0)));
    let count = asked.clone();
    let ask = move || std::thread::current().id() == thread && count.fetch_add(1, Ordering::Relaxed) == 2;
    let before = set_interrupt(Some(Arc::new(ask)));
    let (resource, handle) = limited(256, LONG);
    let first = resource.allocate_bytes(200, S).unwrap();
    let error = resource.allocate_bytes(200, S).unwrap_err();
    set_interrupt(before);
    assert_eq!((error.kind(), asked.load(Ordering::Relaxed)), (ErrorKind::OutOfMemory, 3));
    assert!(!waits(&resource), "the wait is over");
    free(&resource, first, 200);
    assert_eq!(handle.live(), []);
}

/// No free makes room for a request that is larger than the limit.
#[test]
fn a_request_beyond_the_limit_is_made_once() {
    let asked = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&asked);
    let before = move |call: &str| _ = counted.fetch_add(u32::from(call == "allocate"), Ordering::SeqCst);
    let upstream = mock().0.layer(LimitingLayer::new(1000)).unwrap();
    let resource = Probe { upstream, before }.layer(RetryLayer::new().timeout(WATCHDOG / 1000)).unwrap();
    let error = resource.allocate_bytes(2000, S).unwrap_err();
    assert!(error.is_out_of_memory() && error.is_impossible(), "{error}");
    assert_eq!(asked.load(Ordering::SeqCst), 1, "it was tried again");
}
