//! Tests the failure callback: when, with what, and how often it is called.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, ErrorKind, Layout, MemoryInfo, StreamRef,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_testkit::conformance::{self, Subject};
use millpond_testkit::mock::{self, Call, MockResource};

use super::{FailedRequest, FailureCallbackLayer, FailureCallbackResourceAdaptor};
use crate::LimitingLayer;

const S: StreamRef = StreamRef::LEGACY;

fn mock() -> (MockResource, mock::Handle) {
    mock::resource(SimDevice::new(SimConfig::h200()))
}

type Calls = Arc<Mutex<Vec<(u64, u64, StreamRef, u32)>>>;

/// Returns an adaptor whose callback records its calls and returns `answer`.
fn adaptor(answer: bool, retries: u32) -> (impl DeviceMemoryResource, mock::Handle, Calls) {
    let (upstream, handle) = mock();
    let calls = Calls::default();
    let noted = Arc::clone(&calls);
    let callback = move |failed: &FailedRequest<'_>| {
        assert!(failed.error.is_out_of_memory());
        let layout = failed.layout;
        noted.lock().unwrap().push((layout.bytes(), layout.alignment(), failed.stream, failed.attempt));
        answer
    };
    let layer = FailureCallbackLayer::new(callback).max_retries(retries);
    (upstream.layer(layer).unwrap(), handle, calls)
}

#[test]
fn a_request_is_tried_again_when_the_callback_says_so() {
    let (resource, handle, calls) = adaptor(true, 10);
    handle.fail_next(ErrorKind::OutOfMemory);
    let layout = Layout::with_alignment(100, 4096).unwrap();
    let ptr = resource.allocate(layout, StreamRef::PER_THREAD).unwrap();
    assert!(ptr.is_aligned_to(4096), "the alignment reaches the upstream each time");
    assert_eq!(*calls.lock().unwrap(), [(100, 4096, StreamRef::PER_THREAD, 1)]);
    let asked = Call::allocate(layout, StreamRef::PER_THREAD);
    handle.assert_calls([asked, asked]);
    resource.allocate_bytes(1, S).unwrap();
    assert_eq!(calls.lock().unwrap().len(), 1, "nothing failed");
}

#[test]
fn the_error_passes_when_the_callback_says_no() {
    let (resource, handle, calls) = adaptor(false, 10);
    handle.fail_next(ErrorKind::OutOfMemory);
    let error = resource.allocate_bytes(100, S).unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::OutOfMemory, "scripted by a test"));
    assert_eq!((error.stack(), error.requested_bytes()), (Some("mock"), Some(100)));
    assert_eq!((calls.lock().unwrap().len(), handle.calls().len()), (1, 1));
}

#[test]
fn retries_are_bounded() {
    let (resource, handle, calls) = adaptor(true, 3);
    (0..4).for_each(|_| handle.fail_next(ErrorKind::OutOfMemory));
    let error = resource.allocate_bytes(100, S).unwrap_err();
    let message = "the request still failed after 3 retries with the failure callback: scripted by a test";
    assert_eq!((error.kind(), error.message()), (ErrorKind::OutOfMemory, message));
    let attempts: Vec<u32> = calls.lock().unwrap().iter().map(|call| call.3).collect();
    assert_eq!((attempts, handle.calls().len()), (vec![1, 2, 3], 4));
    let (resource, handle, calls) = adaptor(true, 0);
    handle.fail_next(ErrorKind::OutOfMemory);
    assert!(resource.allocate_bytes(100, S).unwrap_err().is_out_of_memory());
    assert_eq!(calls.lock().unwrap().len(), 0);
}

#[test]
fn other_errors_pass() {
    let (resource, handle, calls) = adaptor(true, 10);
    for kind in [ErrorKind::InvalidArgument, ErrorKind::Driver, ErrorKind::Poisoned, ErrorKind::Unsupported] {
        handle.fail_next(kind);
        assert_eq!(resource.allocate_bytes(100, S).unwrap_err().kind(), kind);
    }
    handle.fail_next(ErrorKind::OutOfMemory);
    handle.fail_next(ErrorKind::Driver);
    assert_eq!(resource.allocate_bytes(100, S).unwrap_err().kind(), ErrorKind::Driver);
    assert_eq!(calls.lock().unwrap().len(), 1);
}

/// The callback frees through the adaptor that called it, while other threads do the same.
#[test]
fn the_callback_may_free_on_the_stack_that_calls_it() {
    const BLOCKS: u64 = 64;
    type Shared = Arc<Mutex<Vec<DevicePtr>>>;
    let cache = Shared::default();
    let below = Arc::new(mock().0.layer(LimitingLayer::new(BLOCKS * 256)).unwrap());
    let full: Vec<_> = (0..BLOCKS).map(|_| below.allocate_bytes(256, S).unwrap()).collect();
    cache.lock().unwrap().extend(full);
    type Callback = Box<dyn Fn(&FailedRequest<'_>) -> bool + Send + Sync>;
    type Stack = FailureCallbackResourceAdaptor<Arc<crate::LimitingResourceAdaptor<MockResource>>, Callback>;
    let stack: Arc<std::sync::OnceLock<Stack>> = Arc::default();
    let (inner, kept) = (Arc::downgrade(&stack), Arc::clone(&cache));
    let callback: Callback = Box::new(move |_| {
        let (Some(ptr), Some(stack)) = (kept.lock().unwrap().pop(), inner.upgrade()) else { return false };
        // SAFETY: the block was taken out of the cache, and is freed with its size.
        unsafe { stack.get().unwrap().deallocate_bytes(ptr, 256, S) };
        true
    });
    assert!(stack.set(below.layer(FailureCallbackLayer::new(callback)).unwrap()).is_ok());
    let (served, resource) = (AtomicU32::new(0), stack.get().unwrap());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..BLOCKS / 4 {
                    resource.allocate_bytes(256, S).unwrap();
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!((served.into_inner(), cache.lock().unwrap().len()), (BLOCKS as u32, 0));
    assert!(resource.allocate_bytes(256, S).unwrap_err().is_out_of_memory(), "nothing is left to free");
}

/// If a callback allocates from the stack, it is not called for that request: otherwise it would never end.
#[test]
fn the_callbacks_own_requests_do_not_call_it() {
    type Callback = Box<dyn Fn(&FailedRequest<'_>) -> bool + Send + Sync>;
    type Stack = FailureCallbackResourceAdaptor<crate::LimitingResourceAdaptor<MockResource>, Callback>;
    let stack: Arc<std::sync::OnceLock<Stack>> = Arc::default();
    let (inner, calls) = (Arc::downgrade(&stack), Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&calls);
    let callback: Callback = Box::new(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        let stack = inner.upgrade().unwrap();
        let error = stack.get().unwrap().allocate_bytes(512, S).unwrap_err();
        assert!(error.is_out_of_memory() && error.message().contains("itself made this request"), "{error}");
        true
    });
    let limited = mock().0.layer(LimitingLayer::new(256)).unwrap();
    assert!(stack.set(limited.layer(FailureCallbackLayer::new(callback).max_retries(3)).unwrap()).is_ok());
    for requests in 1..3 {
        assert!(stack.get().unwrap().allocate_bytes(512, S).unwrap_err().is_out_of_memory());
        assert_eq!(calls.load(Ordering::Relaxed), 3 * requests);
    }
}

#[test]
fn everything_else_is_the_upstreams() {
    let (resource, handle, _) = adaptor(true, 10);
    let ptr = resource.allocate_bytes(100, S).unwrap();
    // SAFETY: the block is live, unused, and freed with its size.
    unsafe { resource.deallocate_bytes(ptr, 100, S) };
    handle.set_memory_info(MemoryInfo { free: 5, total: 9 });
    handle.set_trimmed_bytes(77);
    assert_eq!(resource.memory_info().unwrap(), MemoryInfo { free: 5, total: 9 });
    assert_eq!((resource.trim(11).unwrap(), resource.statistics()), (77, None));
    handle.assert_calls([
        Call::allocate(Layout::new(100), S),
        Call::deallocate(ptr, Layout::new(100), S),
        Call::MemoryInfo,
        Call::Trim { keep_bytes: 11 },
        Call::Statistics,
    ]);
    assert!(resource.is_equal(&resource) && !resource.is_equal(&adaptor(true, 10).0));
    assert!(!resource.is_equal(resource.upstream().unwrap()));
    assert_eq!(format!("{resource:?}"), "FailureCallbackResourceAdaptor(mock+failure_callback)");
}

#[test]
fn the_adaptor_keeps_the_contract() {
    let table = LayerTable::new(millpond_resources::LAYERS.iter().copied());
    let subject = Subject::new("cuda+pool+failure_callback", move |driver| {
        let pool = "cuda+pool".parse::<StackSpec>()?.build(&table, driver)?;
        Ok(pool.layer(FailureCallbackLayer::new(|_| false))?.into_any())
    });
    let report = conformance::run(&subject);
    assert!(report.passed(), "{report}");
}
