//! Tests the lock: exclusion, forwarding, and panics.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::thread;
use std::time::Duration;

use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, ErrorKind, Layout, MemoryInfo,
    ResourceStatistics, StreamRef, downcast, find_trait,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_testkit::mock::{self, Call, MockResource};
use parking_lot::Mutex;

use super::{ThreadSafeLayer, ThreadSafeResourceAdaptor};
use crate::StatisticsResourceAdaptor;
use crate::events::Events;
use crate::probe::Probe;

const S: StreamRef = StreamRef::LEGACY;

fn mock() -> (MockResource, mock::Handle) {
    mock::resource(SimDevice::new(SimConfig::h200()))
}

fn free(resource: &impl DeviceMemoryResource, ptr: DevicePtr, bytes: u64) {
    // SAFETY: the tests free each block once, with its size; no work uses it.
    unsafe { resource.deallocate_bytes(ptr, bytes, S) }
}

/// The cell is not `Sync`: without the adaptor this does not compile, and without the lock calls are lost.
#[test]
fn a_resource_for_one_thread_becomes_one_for_all() {
    let calls = Cell::new(0_u32);
    let (upstream, _handle) = mock();
    let seen = Arc::new(AtomicBool::new(false));
    let (inside, total) = (Arc::clone(&seen), Arc::new(std::sync::atomic::AtomicU32::new(0)));
    let published = Arc::clone(&total);
    let before = move |_: &str| {
        assert!(!inside.swap(true, Ordering::SeqCst), "two threads are below the lock");
        calls.set(calls.get() + 1);
        std::thread::yield_now();
        published.store(calls.get(), Ordering::SeqCst);
        inside.store(false, Ordering::SeqCst);
    };
    let resource = ThreadSafeResourceAdaptor::new(Probe { upstream, before });
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let ptr = resource.allocate_bytes(100, S).unwrap();
                    free(&resource, ptr, 100);
                }
            });
        }
    });
    assert_eq!(total.load(Ordering::SeqCst), 4 * 50 * 2);
}

/// A request that waits above the lock is retried when a block is freed.
#[test]
fn a_free_wakes_the_request_that_waits() {
    let resource = ThreadSafeResourceAdaptor::new(mock().0);
    let ptr = resource.allocate_bytes(100, S).unwrap();
    let layout = Layout::new(100);
    let attempt = || match resource.gate.frees.counted() {
        0 => Err(millpond_core::Error::out_of_memory(layout, S)),
        _ => Ok(DevicePtr::NULL),
    };
    let (begin, minute) = (std::time::Instant::now(), std::time::Duration::from_secs(60));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            resource.gate.frees.wait_for(begin, minute, millpond_core::Error::is_out_of_memory, attempt)
        });
        while !resource.gate.frees.are_awaited() {
            std::thread::yield_now();
        }
        free(&resource, ptr, 100);
        assert!(waits.join().unwrap().is_ok(), "the free was not counted");
    });
}

/// A resource below frees memory through the whole stack while it allocates, as a failure callback does.
#[test]
fn the_thread_inside_may_come_back_in() {
    type Stack = ThreadSafeResourceAdaptor<Probe<MockResource, Box<dyn Fn(&str) + Send>>>;
    static STACK: OnceLock<Weak<Stack>> = OnceLock::new();
    static CACHED: OnceLock<DevicePtr> = OnceLock::new();
    let (upstream, handle) = mock();
    let released = Cell::new(false);
    let before = Box::new(move |call: &str| {
        if let ("allocate", Some(&ptr), false) = (call, CACHED.get(), released.get()) {
            released.set(true);
            free(&STACK.get().and_then(Weak::upgrade).unwrap(), ptr, 512);
        }
    });
    let resource: Arc<Stack> = Arc::new(ThreadSafeResourceAdaptor::new(Probe { upstream, before }));
    STACK.set(Arc::downgrade(&resource)).unwrap();
    CACHED.set(resource.allocate_bytes(512, S).unwrap()).unwrap();
    let ptr = resource.allocate_bytes(100, S).unwrap();
    assert_eq!(handle.live(), [(ptr, Layout::new(100))]);
    free(&resource, ptr, 100);
}

type Inside = Box<dyn Fn(&str, &AnyResource) + Send + Sync>;

/// Returns a stack whose code below `thread_safe` runs `inside` at each call, and the calls that reach the
/// upstream.
fn stack_with(patience: Duration, inside: Inside) -> (AnyResource, mock::Handle) {
    let place: Arc<OnceLock<Weak<dyn DeviceMemoryResource + Send + Sync>>> = Arc::default();
    let (upstream, handle) = mock();
    let known = Arc::clone(&place);
    let before = move |call: &str| {
        if let Some(stack) = known.get().and_then(Weak::upgrade) {
            inside(call, &stack);
        }
    };
    let layer = ThreadSafeLayer::new().patience(patience);
    let stack = Probe { upstream, before }.layer(layer).unwrap().into_any();
    assert!(place.set(Arc::downgrade(&stack)).is_ok());
    (stack, handle)
}

/// Runs a test on its own thread, and panics if it does not end.
fn watched(test: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let test = thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match ended.recv_timeout(Duration::from_secs(60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        _ => test.join().unwrap(),
    }
}

/// Code below joins threads that use the stack. Each of their calls ends with an error that says why, and the
/// call inside carries out a free.
#[test]
fn issue_29_a_thread_that_the_inside_waits_for_has_an_error_and_its_free_is_not_lost() {
    watched(|| {
        let live: Arc<Mutex<Option<DevicePtr>>> = Arc::default();
        let given = Arc::clone(&live);
        let inside = move |call: &str, stack: &AnyResource| {
            let Some(ptr) = given.lock().take().filter(|_| call == "allocate") else { return };
            let stack = Arc::clone(stack);
            let other = thread::spawn(move || {
                free(&stack, ptr, 512);
                let error = stack.allocate_bytes(100, S).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Busy);
                let text = error.to_string();
                assert!(text.contains("`mock+probe+thread_safe:patience=20ms`"), "{text}");
                assert!(text.contains("has not ended for 20ms"), "{text}");
                let refused = [stack.memory_info().map(drop), stack.trim(0).map(drop)];
                assert!(refused.iter().all(|it| it.as_ref().unwrap_err().kind() == ErrorKind::Busy));
                assert!(
                    stack.statistics().is_none() && format!("{stack:?}").contains("mock+probe+thread_safe")
                );
            });
            other.join().unwrap();
        };
        let (stack, handle) = stack_with(Duration::from_millis(20), Box::new(inside));
        let first = stack.allocate_bytes(512, S).unwrap();
        *live.lock() = Some(first);
        let second = stack.allocate_bytes(300, S).unwrap();
        assert_eq!(handle.live(), [(second, Layout::new(300))], "the free was carried out");
        free(&stack, second, 300);
        assert_eq!(handle.live(), []);
    });
}

/// The stream of a free ends before the free is carried out.
#[test]
fn issue_29_a_free_that_is_left_names_no_stream_that_may_end() {
    watched(|| {
        let live: Arc<Mutex<Option<(DevicePtr, StreamRef)>>> = Arc::default();
        let given = Arc::clone(&live);
        let inside = move |call: &str, stack: &AnyResource| {
            let Some((ptr, stream)) = given.lock().take().filter(|_| call == "allocate") else { return };
            let stack = Arc::clone(stack);
            let other = thread::spawn(move || {
                // SAFETY: the block is live, unused, and freed with its size; then nothing names the stream
                // any more.
                unsafe {
                    stack.deallocate_bytes(ptr, 512, stream);
                    stack.driver().stream_destroy(stream).unwrap();
                }
            });
            other.join().unwrap();
        };
        let (stack, handle) = stack_with(Duration::from_millis(20), Box::new(inside));
        let stream = stack.driver().stream_create(Default::default()).unwrap();
        let first = stack.allocate_bytes(512, stream).unwrap();
        *live.lock() = Some((first, stream));
        handle.take_calls();
        let second = stack.allocate_bytes(300, S).unwrap();
        handle.assert_calls([
            Call::allocate(Layout::new(300), S),
            Call::deallocate(first, Layout::new(512), StreamRef::LEGACY),
        ]);
        free(&stack, second, 300);
    });
}

/// If a call panics, the next call, or the end, carries out the frees that were left to it.
#[test]
fn issue_29_a_free_that_is_left_to_a_call_that_panics_is_not_lost() {
    watched(|| {
        let live: Arc<Mutex<Option<DevicePtr>>> = Arc::default();
        let given = Arc::clone(&live);
        let inside = move |call: &str, stack: &AnyResource| {
            let Some(ptr) = given.lock().take().filter(|_| call == "allocate") else { return };
            let stack = Arc::clone(stack);
            thread::spawn(move || free(&stack, ptr, 512)).join().unwrap();
            panic!("the code below fails");
        };
        let (stack, handle) = stack_with(Duration::from_millis(20), Box::new(inside));
        for ends in [false, true] {
            let first = stack.allocate_bytes(512, S).unwrap();
            *live.lock() = Some(first);
            let failed = catch_unwind(AssertUnwindSafe(|| stack.allocate_bytes(300, S)));
            assert!(failed.is_err() && handle.live() == [(first, Layout::new(512))]);
            if !ends {
                stack.trim(0).unwrap();
                assert_eq!(handle.live(), []);
            }
        }
        drop(stack);
        assert_eq!(handle.live(), []);
    });
}

/// Another thread's mistake, which makes the misuse hook panic, and a valid free after it: a call, or the
/// end, carries out both.
#[test]
fn a_free_that_is_left_and_panics_is_no_panic_of_the_call_inside_and_loses_no_other() {
    for at_end in [false, true] {
        let events = Events::default();
        millpond_testkit::events::heard_by(events.clone(), || frees_that_are_left(at_end));
        let told = events.text();
        assert_eq!(told.matches("millpond::thread_safe panic=the free is wrong").count(), 1, "{told}");
    }
}

fn frees_that_are_left(at_end: bool) {
    type Stack = ThreadSafeResourceAdaptor<Probe<MockResource, Box<dyn Fn(&str) + Send>>>;
    let (upstream, handle) = mock();
    let place: Arc<OnceLock<Weak<Stack>>> = Arc::default();
    let live: Arc<Mutex<Vec<DevicePtr>>> = Arc::default();
    let (known, given, is_wrong) = (Arc::clone(&place), Arc::clone(&live), Cell::new(true));
    let before = Box::new(move |call: &str| match call {
        "allocate" if given.lock().len() == 2 => {
            let (stack, given) = (known.get().and_then(Weak::upgrade).unwrap(), Arc::clone(&given));
            let frees = move || given.lock().drain(..).for_each(|ptr| free(&*stack, ptr, 512));
            thread::spawn(frees).join().unwrap();
            assert!(!at_end, "the code below fails");
        }
        "deallocate" if is_wrong.replace(false) => panic!("the free is wrong"),
        _ => {}
    });
    let layer = ThreadSafeLayer::new().patience(Duration::from_millis(20));
    let stack: Arc<Stack> = Arc::new(Probe { upstream, before: before as _ }.layer(layer).unwrap());
    place.set(Arc::downgrade(&stack)).unwrap();
    let wrong = stack.allocate_bytes(512, S).unwrap();
    let sound = stack.allocate_bytes(512, S).unwrap();
    live.lock().extend([wrong, sound]);
    let mut left = vec![(wrong, Layout::new(512))];
    match catch_unwind(AssertUnwindSafe(|| stack.allocate_bytes(300, S))) {
        Ok(served) => left.push((served.unwrap(), Layout::new(300))),
        Err(_) => assert!(at_end && handle.live().len() == 2, "it carried them out"),
    }
    drop(stack);
    assert_eq!(handle.live(), left);
}

/// The caller's formatter is code of the program, and may wait for a thread that uses the stack.
#[test]
fn debug_text_is_written_without_the_lock() {
    /// Uses the stack on another thread at each piece of text.
    struct Uses<'a>(&'a ThreadSafeResourceAdaptor<MockResource>, String);
    impl std::fmt::Write for Uses<'_> {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.1.push_str(text);
            let is_free = thread::scope(|scope| scope.spawn(|| self.0.gate.try_enter().is_some()).join());
            if is_free.unwrap() { Ok(()) } else { Err(std::fmt::Error) }
        }
    }
    let resource = ThreadSafeResourceAdaptor::new(mock().0);
    let mut uses = Uses(&resource, String::new());
    std::fmt::write(&mut uses, format_args!("{resource:?}")).expect("the lock is free");
    assert_eq!(uses.1, "ThreadSafeResourceAdaptor(mock+thread_safe)");
}

#[test]
fn calls_pass_unchanged() {
    let (upstream, handle) = mock();
    let resource = ThreadSafeResourceAdaptor::new(upstream);
    let layout = Layout::with_alignment(100, 4096).unwrap();
    let stream = StreamRef::PER_THREAD;
    let ptr = resource.allocate(layout, stream).unwrap();
    // SAFETY: the block is live, unused, and freed with its layout.
    unsafe { resource.deallocate(ptr, layout, stream) };
    handle.set_memory_info(MemoryInfo { free: 5, total: 9 });
    handle.set_statistics(Some(ResourceStatistics::default().misuses(3)));
    handle.set_trimmed_bytes(77);
    assert_eq!(resource.memory_info().unwrap(), MemoryInfo { free: 5, total: 9 });
    assert_eq!(resource.statistics().unwrap().misuses, 3);
    assert_eq!(resource.trim(11).unwrap(), 77);
    handle.assert_calls([
        Call::allocate(layout, stream),
        Call::deallocate(ptr, layout, stream),
        Call::MemoryInfo,
        Call::Statistics,
        Call::Trim { keep_bytes: 11 },
    ]);
    handle.fail_next(ErrorKind::OutOfMemory);
    assert!(resource.allocate_bytes(1, S).unwrap_err().is_out_of_memory());
}

#[test]
fn only_an_upstream_that_may_be_shared_is_lent() {
    let alone = ThreadSafeResourceAdaptor::new(mock().0);
    assert!(alone.upstream().is_none());
    let counting = StatisticsResourceAdaptor::new(mock().0.into_any()).into_any();
    let shared = ThreadSafeResourceAdaptor::new(counting);
    assert_eq!(shared.upstream().unwrap().to_string(), "mock+statistics");
    assert!(find_trait::<dyn crate::AllocationCounters>(&shared).is_some());
}

#[test]
fn equal_is_the_same_or_what_shares_an_upstream() {
    let one = ThreadSafeResourceAdaptor::new(mock().0);
    let other = ThreadSafeResourceAdaptor::new(mock().0);
    assert!(one.is_equal(&one) && !one.is_equal(&other));
    let upstream = mock().0.into_any();
    let one = ThreadSafeResourceAdaptor::new(Arc::clone(&upstream)).into_any();
    let same = ThreadSafeResourceAdaptor::new(Arc::clone(&upstream));
    let other = ThreadSafeResourceAdaptor::new(mock().0.into_any());
    assert!(one.is_equal(&Arc::clone(&one)) && one.is_equal(&same) && same.is_equal(&*one));
    assert!(!one.is_equal(&other) && !one.is_equal(&*upstream));
}

#[test]
fn text_builds_it() {
    let device = SimDevice::new(SimConfig::h200());
    let table =
        LayerTable::new(millpond_resources::LAYERS.iter().copied()).with(crate::LAYERS.iter().copied());
    let device = device as _;
    let build = |text: &str| text.parse::<StackSpec>()?.build(&table, &device);
    for (text, printed) in [
        ("cuda+thread_safe", "cuda+thread_safe"),
        ("cuda+thread_safe:patience=60s", "cuda+thread_safe"),
        ("cuda+thread_safe:patience=1500ms", "cuda+thread_safe:patience=1500ms"),
    ] {
        assert_eq!(build(text).unwrap().to_string(), printed);
    }
    for wrong in ["soon", "2h", "4000s"] {
        let error = build(&format!("cuda+thread_safe:patience={wrong}")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidStack, "{wrong}: {error}");
    }
    let layered = mock().0.layer(ThreadSafeLayer::new()).unwrap();
    assert_eq!(
        (layered.to_string(), format!("{:?}", layered.driver().device().is_sim())),
        ("mock+thread_safe".into(), "true".into())
    );
}

/// A typed stack over `Sync` resources is found through the lock.
#[test]
fn issue_29_a_lock_over_a_typed_stack_hides_nothing() {
    let cuda = || millpond_resources::CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
    let typed = cuda()
        .layer(crate::LimitingLayer::new(1 << 30))
        .unwrap()
        .layer(crate::StatisticsLayer::new())
        .unwrap()
        .layer(ThreadSafeLayer::new())
        .unwrap()
        .layer(ThreadSafeLayer::new())
        .unwrap();
    let erased = cuda()
        .into_any()
        .layer(crate::LimitingLayer::new(1 << 30))
        .unwrap()
        .into_any()
        .layer(crate::StatisticsLayer::new())
        .unwrap()
        .into_any()
        .layer(ThreadSafeLayer::new())
        .unwrap()
        .into_any()
        .layer(ThreadSafeLayer::new())
        .unwrap();
    let limit = |stack: &dyn DeviceMemoryResource| {
        find_trait::<dyn crate::AllocationLimit>(stack).map(|layer| layer.limit_bytes())
    };
    assert_eq!((limit(&typed), limit(&erased)), (Some(1 << 30), Some(1 << 30)));
    let names =
        |stack: Vec<&dyn DeviceMemoryResource>| stack.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(names(typed.stack().collect()), names(erased.stack().collect()));
    assert_eq!(typed.stack().count(), 5);
    let block = typed.allocate_bytes(1000, S).unwrap();
    let other = erased.allocate_bytes(1000, S).unwrap();
    assert_eq!(typed.memory_report().layers, erased.memory_report().layers);
    assert_eq!(
        typed.memory_report().layers[0].limit_bytes.or(typed.memory_report().layers[1].limit_bytes),
        Some(1 << 30)
    );
    free(&typed, block, 1000);
    free(&erased, other, 1000);
    type Limited = crate::LimitingResourceAdaptor<millpond_resources::CudaMemoryResource>;
    assert!(typed.stack().find_map(downcast::<Limited>).is_some());
}

/// Every layer declares that threads may share it only if its type is `Sync`.
#[test]
fn a_lock_lends_nothing_of_what_threads_may_not_share() {
    let (upstream, _handle) = mock();
    let cell = Cell::new(0);
    let single = Probe { upstream, before: move |_: &str| cell.set(cell.get() + 1) };
    let locked = ThreadSafeResourceAdaptor::new(StatisticsResourceAdaptor::new(
        crate::LimitingResourceAdaptor::new(single, 1 << 30),
    ));
    assert!(locked.upstream().is_none() && !millpond_core::is_shareable(&locked));
    assert!(find_trait::<dyn crate::AllocationLimit>(&locked).is_none());

    const fn shared<R: Send + Sync>() {}
    type Cuda = millpond_resources::CudaMemoryResource;
    shared::<crate::AlignedResourceAdaptor<Cuda>>();
    shared::<crate::FallbackResourceAdaptor<Cuda, Cuda>>();
    shared::<crate::LimitingResourceAdaptor<Cuda>>();
    shared::<crate::PrefetchResourceAdaptor<Cuda>>();
    shared::<crate::RetryResourceAdaptor<Cuda>>();
    shared::<StatisticsResourceAdaptor<Cuda>>();
    shared::<ThreadSafeResourceAdaptor<Cuda>>();
    shared::<crate::TrackingResourceAdaptor<Cuda>>();
    shared::<millpond_resources::PoolMemoryResource<Cuda>>();
    shared::<millpond_resources::ArenaMemoryResource<Cuda>>();
    shared::<millpond_resources::FixedSizeMemoryResource<Cuda>>();
    shared::<millpond_resources::BinningMemoryResource<Cuda>>();
    shared::<millpond_plan::PlanMemoryResource<Cuda>>();
    #[cfg(feature = "logging")]
    shared::<crate::LoggingResourceAdaptor<Cuda>>();
}
