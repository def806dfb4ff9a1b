//! Tests the manager over stacks: streams, parking, building and resetting the stack.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use millpond_core::driver::{CaptureMode, StreamFlags};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DevicePtr, Driver, DriverError, DriverHandle, Layout, Result,
    StreamRef, forward_to_upstream,
};
use millpond_driver::CallKind;
use millpond_driver::sim::{Access, FaultPlan, Schedule, SimConfig, SimDevice};
use millpond_plugin::{
    MemoryManager, MemoryPointer, MillpondMemoryManager, StackBuilder, StreamScope, with_stream,
};
use parking_lot::Mutex;

use crate::common::{MIB, layers, misuses};

/// The value that the last work on a block writes, if a test checks it.
const WRITTEN: u64 = 1;

/// A resource that records the stream of each call.
#[derive(Debug)]
struct Recorder {
    upstream: AnyResource,
    /// If set, a block must hold [`WRITTEN`] on this device when it comes back, as its stream sees it.
    check: Option<Arc<SimDevice>>,
    calls: Arc<Mutex<Vec<(&'static str, StreamRef)>>>,
}

impl fmt::Display for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+recorder", self.upstream)
    }
}

// SAFETY: every call goes to the upstream with the same arguments.
#[deny(clippy::missing_trait_methods)]
unsafe impl DeviceMemoryResource for Recorder {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        self.calls.lock().push(("allocate", stream));
        self.upstream.allocate(layout, stream)
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        self.calls.lock().push(("deallocate", stream));
        if let Some(device) = &self.check {
            device.launch(stream, &[Access::check(ptr, layout.bytes(), WRITTEN)]);
        }
        // SAFETY: the caller's promises.
        unsafe { self.upstream.deallocate(ptr, layout, stream) }
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        self.upstream.is_equal(other)
    }

    forward_to_upstream!(except allocate, deallocate, is_equal);
}

fn build(device: &Arc<SimDevice>, stack: &str) -> AnyResource {
    let driver: DriverHandle = Arc::<SimDevice>::clone(device);
    stack.parse::<millpond_core::stack::StackSpec>().unwrap().build(&layers(), &driver).unwrap()
}

struct Setup {
    device: Arc<SimDevice>,
    manager: MillpondMemoryManager,
    calls: Arc<Mutex<Vec<(&'static str, StreamRef)>>>,
}

impl Setup {
    fn new() -> Self {
        Self::with(SimDevice::new(SimConfig::with_capacity(64 * MIB)), None)
    }

    /// Makes a setup that reports blocks as violations if they come back too early.
    fn checking(seed: u64) -> Self {
        let config = SimConfig::with_capacity(64 * MIB).seed(seed).schedule(Schedule::Seeded(seed));
        let device = SimDevice::new(config);
        Self::with(Arc::clone(&device), Some(device))
    }

    fn with(device: Arc<SimDevice>, check: Option<Arc<SimDevice>>) -> Self {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let upstream = build(&device, "cuda+pool:pages=off");
        let recorder = Recorder { upstream, check, calls: Arc::clone(&calls) };
        let manager = MillpondMemoryManager::new(Arc::new(recorder));
        manager.initialize().unwrap();
        Self { device, manager, calls }
    }

    fn stream(&self) -> StreamRef {
        self.device.stream_create(StreamFlags::NON_BLOCKING).unwrap()
    }

    fn destroy(&self, stream: StreamRef) {
        // SAFETY: the tests do not use the stream again.
        unsafe { self.device.stream_destroy(stream).unwrap() };
    }

    fn take_calls(&self) -> Vec<(&'static str, StreamRef)> {
        std::mem::take(&mut *self.calls.lock())
    }
}

#[test]
fn memory_is_taken_on_the_legacy_stream_or_on_the_scopes() {
    let setup = Setup::new();
    let stream = setup.stream();
    drop(setup.manager.memalloc(64).unwrap());
    let (inside, outside) =
        with_stream(stream, || (setup.manager.memalloc(64).unwrap(), setup.manager.memalloc(64).unwrap()));
    {
        let _scope = StreamScope::enter(stream);
        drop(inside);
    }
    drop(outside);
    assert_eq!(
        setup.take_calls(),
        [
            ("allocate", StreamRef::LEGACY),
            ("deallocate", StreamRef::LEGACY),
            ("allocate", stream),
            ("allocate", stream),
            ("deallocate", stream), // inside the scope the stream is alive
            ("deallocate", StreamRef::LEGACY),
        ]
    );
    assert_eq!(setup.device.violations(), []);
}

#[test]
fn a_stream_that_is_gone_is_not_named_again() {
    let setup = Setup::new();
    let stream = setup.stream();
    let memory = with_stream(stream, || setup.manager.memalloc(64).unwrap());
    setup.device.launch(stream, &[Access::write(memory.device_pointer(), 64, 1)]);
    setup.destroy(stream);
    drop(memory);
    assert_eq!(setup.take_calls()[1], ("deallocate", StreamRef::LEGACY));
    let next = setup.manager.memalloc(64).unwrap();
    setup.device.launch(StreamRef::LEGACY, &[Access::write(next.device_pointer(), 64, 2)]);
    setup.device.synchronize().unwrap();
    assert_eq!(setup.device.violations(), []);
}

#[test]
fn another_threads_per_thread_stream_needs_no_event() {
    let setup = Setup::new();
    let memory = with_stream(StreamRef::PER_THREAD, || setup.manager.memalloc(64).unwrap());
    setup.device.launch(StreamRef::PER_THREAD, &[Access::write(memory.device_pointer(), 64, 1)]);
    // The other thread's per-thread stream is another stream, even inside of its scope.
    std::thread::spawn(move || with_stream(StreamRef::PER_THREAD, || drop(memory))).join().unwrap();
    assert!(setup.take_calls()[1].1.is_legacy());
    assert_eq!(setup.device.violations(), []);
}

#[test]
fn a_block_that_cannot_be_ordered_waits_for_the_next_allocation() {
    let setup = Setup::new();
    let stream = setup.stream();
    let memory = with_stream(stream, || setup.manager.memalloc(64).unwrap());
    setup.device.begin_capture(stream, CaptureMode::Global).unwrap();
    setup.device.set_faults(no_device_wide_wait());
    drop(memory);
    assert_eq!((setup.manager.parked(), setup.manager.live()), (1, 0));
    setup.device.set_faults(FaultPlan::none());
    setup.device.end_capture(stream).unwrap();
    let next = setup.manager.memalloc(64).unwrap();
    assert_eq!(setup.manager.parked(), 0);
    drop(next);
    assert_eq!(setup.device.violations(), []);
}

/// How [`mixed_up`] uses a block.
#[derive(Clone, Copy, Default)]
struct Use {
    /// The block is allocated on the stream that writes to it.
    taken: bool,
    /// The stream is recorded.
    recorded: bool,
    /// The stream is destroyed, with work left, before the block is dropped.
    destroyed: bool,
}

/// Work on a stream writes to a block. The block is dropped and allocated again, and work on the legacy
/// stream writes to it and checks. Returns whether the two writes mix for any seed.
fn mixed_up(how: Use) -> bool {
    (0..64).any(|seed| {
        let config = SimConfig::with_capacity(64 * MIB).seed(seed).schedule(Schedule::Seeded(seed));
        let device = SimDevice::new(config);
        let manager = MillpondMemoryManager::new(build(&device, "cuda+pool:pages=off"));
        let stream = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
        let take = || manager.memalloc(4096).unwrap();
        let memory = if how.taken { with_stream(stream, take) } else { take() };
        if how.recorded {
            manager.record_stream(&memory, stream).unwrap();
            manager.record_stream(&memory.view(0..1).unwrap(), stream).unwrap();
        }
        let ptr = memory.device_pointer();
        device.launch(stream, &[Access::write(ptr, 4096, 1)]);
        if how.destroyed {
            // SAFETY: the stream is not named again, which is the point of the test.
            unsafe { device.stream_destroy(stream).unwrap() };
        }
        drop(memory);
        let next = take();
        assert_eq!(next.device_pointer(), ptr, "the pool reuses the block");
        device.launch(StreamRef::LEGACY, &[Access::write(ptr, 4096, 2)]);
        device.launch(StreamRef::LEGACY, &[Access::check(ptr, 4096, 2)]);
        device.synchronize().unwrap();
        device.launch(StreamRef::LEGACY, &[Access::check(ptr, 4096, 2)]);
        device.synchronize().unwrap();
        !device.violations().is_empty()
    })
}

#[test]
fn blocks_go_back_after_all_work_that_was_announced() {
    for destroyed in [false, true] {
        assert!(!mixed_up(Use { taken: true, destroyed, ..Use::default() }));
        assert!(!mixed_up(Use { recorded: true, destroyed, ..Use::default() }));
        assert!(!mixed_up(Use { taken: true, recorded: true, destroyed }));
    }
}

#[test]
fn work_that_was_not_announced_is_seen_to_be_mixed_up() {
    for destroyed in [false, true] {
        assert!(mixed_up(Use { destroyed, ..Use::default() }), "the test above could not fail");
    }
}

/// Work on the legacy stream writes to a block. The block is dropped and allocated again in the scope of
/// another stream, whose work writes to it and checks. Returns whether the two writes mix for any seed.
fn mixed_up_in_a_scope(announce: fn(&MillpondMemoryManager, StreamRef) -> MemoryPointer) -> bool {
    (0..64).any(|seed| {
        let config = SimConfig::with_capacity(64 * MIB).seed(seed).schedule(Schedule::Seeded(seed));
        let device = SimDevice::new(config);
        let manager = MillpondMemoryManager::new(build(&device, "cuda+pool:pages=off"));
        let stream = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
        let memory = announce(&manager, stream);
        device.launch(StreamRef::LEGACY, &[Access::write(memory.device_pointer(), 4096, 1)]);
        let next = with_stream(stream, || {
            drop(memory);
            manager.memalloc(4096).unwrap()
        });
        let ptr = next.device_pointer();
        device.launch(stream, &[Access::write(ptr, 4096, 2)]);
        device.launch(stream, &[Access::check(ptr, 4096, 2)]);
        device.synchronize().unwrap();
        device.launch(stream, &[Access::check(ptr, 4096, 2)]);
        device.synchronize().unwrap();
        !device.violations().is_empty()
    })
}

#[test]
fn uses_on_the_legacy_stream_count_in_a_scope_of_the_only_other_stream() {
    assert!(!mixed_up_in_a_scope(|manager, stream| {
        let memory = manager.memalloc(4096).unwrap();
        manager.record_stream(&memory, stream).unwrap();
        memory
    }));
    assert!(!mixed_up_in_a_scope(|manager, stream| {
        let memory = with_stream(stream, || manager.memalloc(4096).unwrap());
        manager.record_stream(&memory, StreamRef::LEGACY).unwrap();
        memory
    }));
    let unannounced = |manager: &MillpondMemoryManager, stream| {
        with_stream(stream, || manager.memalloc(4096).unwrap()) //
    };
    assert!(mixed_up_in_a_scope(unannounced), "the tests above could not fail");
}

/// Faults that prevent waiting for the whole device, as while a stream captures a graph.
fn no_device_wide_wait() -> FaultPlan {
    FaultPlan::nth_of(CallKind::Synchronize, 0, DriverError::STREAM_CAPTURE_UNSUPPORTED).persistent()
}

#[test]
fn reset_and_drop_wait_for_each_stream_where_the_device_cannot_be_waited_for() {
    for (seed, reset) in (0..64).flat_map(|seed| [(seed, true), (seed, false)]) {
        let setup = Setup::checking(seed);
        let stream = setup.stream();
        let memory = with_stream(stream, || setup.manager.memalloc(4096).unwrap());
        setup.device.launch(stream, &[Access::write(memory.device_pointer(), 4096, WRITTEN)]);
        let Setup { device, manager, calls } = setup;
        if reset {
            device.set_faults(no_device_wide_wait());
            manager.reset();
        } else {
            let no_event = DriverError::STREAM_CAPTURE_UNSUPPORTED;
            device.set_faults(FaultPlan::nth_of(CallKind::EventRecord, 0, no_event));
            drop(memory);
            assert_eq!(manager.parked(), 1);
            device.set_faults(no_device_wide_wait());
            drop(manager);
        }
        assert_eq!(calls.lock()[1..], [("deallocate", StreamRef::LEGACY)]);
        device.set_faults(FaultPlan::none());
        device.synchronize().unwrap();
        assert_eq!(device.violations(), [], "seed {seed}, reset {reset}");
    }
}

#[test]
fn reset_and_drop_keep_what_cannot_be_ordered() {
    let setup = Setup::new();
    let take = || {
        let stream = setup.stream();
        let memory = with_stream(stream, || setup.manager.memalloc(4096).unwrap());
        setup.device.launch(stream, &[Access::write(memory.device_pointer(), 4096, 1)]);
        setup.destroy(stream);
        memory
    };
    let memory = take();
    setup.device.set_faults(no_device_wide_wait());
    setup.manager.reset();
    assert_eq!((setup.manager.live(), setup.manager.parked()), (0, 1));
    assert!(!memory.is_live());
    assert_eq!(setup.take_calls().len(), 1, "nothing was given back");
    setup.device.set_faults(FaultPlan::none());
    setup.manager.reset();
    assert_eq!(setup.manager.parked(), 0);
    assert_eq!(setup.take_calls(), [("deallocate", StreamRef::LEGACY)]);

    let memory = take();
    setup.device.set_faults(no_device_wide_wait());
    drop(memory);
    let Setup { device, manager, calls } = setup;
    drop(manager);
    assert!(calls.lock().iter().all(|(call, _)| *call == "allocate"));
    assert_eq!(device.live_allocations(), 1, "even the stack was kept");
    assert_eq!(device.violations(), []);
}

#[test]
fn a_stack_that_was_built_stays_while_its_memory_cannot_be_ordered() {
    let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
    let builds = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&builds);
    let builder: StackBuilder = Arc::new(move |driver| {
        counted.fetch_add(1, Ordering::SeqCst);
        "cuda+pool:pages=off".parse::<millpond_core::stack::StackSpec>()?.build(&layers(), driver)
    });
    let driver: DriverHandle = Arc::<SimDevice>::clone(&device);
    let manager = MillpondMemoryManager::with_builder(Some(driver), builder);
    let stream = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    let memory = with_stream(stream, || manager.memalloc(4096).unwrap());
    // SAFETY: the stream is not named again.
    unsafe { device.stream_destroy(stream).unwrap() };
    device.set_faults(no_device_wide_wait());
    manager.reset();
    assert_eq!((manager.parked(), device.live_allocations()), (1, 1));
    device.set_faults(FaultPlan::none());
    manager.reset();
    assert_eq!((manager.parked(), device.live_allocations()), (0, 0));
    assert_eq!(builds.load(Ordering::SeqCst), 1);
    drop(memory);
    assert!(manager.memalloc(64).unwrap().is_live());
    assert_eq!(builds.load(Ordering::SeqCst), 2);
}

#[test]
fn a_device_that_is_lost_is_called_no_more() {
    let setup = Setup::new();
    let (first, second) = (setup.stream(), setup.stream());
    let take = |stream| with_stream(stream, || setup.manager.memalloc(64).unwrap());
    let (ordered, shared, left) = (take(first), take(first), take(second));
    setup.manager.record_stream(&shared, second).unwrap();
    drop(ordered); // outside of the scope: ordered by an event, which is kept
    setup.device.set_faults(FaultPlan::nth_call(0, DriverError::ILLEGAL_ADDRESS));
    drop(shared);
    assert!(setup.device.health().is_lost(), "the error was noted");
    let calls = setup.device.driver_calls();
    drop(left);
    let Setup { device, manager, .. } = setup;
    manager.reset();
    assert!(manager.memallocmanaged(64, true).unwrap_err().is_sticky());
    drop(manager);
    assert_eq!(device.driver_calls(), calls);
}

#[test]
fn parked_memory_goes_back_when_memory_is_short() {
    let setup = Setup::new();
    let guard = setup.manager.defer_cleanup();
    drop(setup.manager.memalloc(40 * MIB).unwrap());
    assert_eq!(setup.manager.parked(), 1);
    let memory = setup.manager.memalloc(40 * MIB).unwrap();
    assert_eq!(setup.manager.parked(), 0);
    drop(memory);
    assert_eq!(setup.manager.parked(), 1, "the deferral goes on");
    drop(guard);
    assert_eq!((setup.manager.parked(), setup.manager.live()), (0, 0));
}

#[test]
fn pending_host_memory_goes_back_when_memory_is_short() {
    let setup = Setup::new();
    drop(setup.manager.memallocmanaged(10 * MIB, true).unwrap());
    assert!(setup.manager.memalloc(60 * MIB).unwrap().is_live());
}

#[test]
fn reset_gives_blocks_back_and_keeps_a_stack_that_was_given() {
    let setup = Setup::new();
    let stream = setup.stream();
    let memory = setup.manager.memalloc(MIB).unwrap();
    let other = with_stream(stream, || setup.manager.memalloc(MIB).unwrap());
    setup.destroy(stream);
    setup.take_calls();
    setup.manager.reset();
    assert_eq!(setup.take_calls(), [("deallocate", StreamRef::LEGACY); 2]);
    assert_eq!((setup.manager.live(), setup.device.live_allocations()), (0, 0));
    drop((memory, other));
    assert_eq!(setup.take_calls(), []);
    drop(setup.manager.memalloc(MIB).unwrap());
    assert_eq!(setup.take_calls().len(), 2);
    assert_eq!(setup.device.violations(), []);
}

#[test]
fn a_stack_is_built_once_by_the_first_caller_and_again_after_a_reset() {
    let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
    let builds = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&builds);
    let builder: StackBuilder = Arc::new(move |driver| {
        counted.fetch_add(1, Ordering::SeqCst);
        // Two stacks at a time would not fit.
        "cuda+pool:initial=40MiB,pages=off"
            .parse::<millpond_core::stack::StackSpec>()?
            .build(&layers(), driver)
    });
    let driver: DriverHandle = Arc::<SimDevice>::clone(&device);
    let manager = MillpondMemoryManager::with_builder(Some(driver), builder);
    assert_eq!(device.driver_calls(), 0, "making a manager touches nothing");
    for round in 1..=3 {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert!(manager.memalloc(MIB).unwrap().is_live()));
            }
        });
        assert_eq!(builds.load(Ordering::SeqCst), round);
        manager.reset();
        assert_eq!(device.live_allocations(), 0);
    }
}

#[test]
fn resets_and_finalizers_may_race() {
    assert_eq!(misuses(), 0);
    let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
    let driver: DriverHandle = Arc::<SimDevice>::clone(&device);
    let builder: StackBuilder = Arc::new(|driver| {
        "cuda+pool:pages=off".parse::<millpond_core::stack::StackSpec>()?.build(&layers(), driver)
    });
    let manager = MillpondMemoryManager::with_builder(Some(driver), builder);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let manager = &manager;
            scope.spawn(move || {
                for round in 0..200 {
                    let memory = manager.memalloc(4096).unwrap();
                    let view = memory.view(0..16).unwrap();
                    if (round + thread) % 20 == 0 {
                        manager.reset();
                    }
                    let _guard = (round % 3 == 0).then(|| manager.defer_cleanup());
                    drop(memory);
                    drop(view);
                }
            });
        }
    });
    assert_eq!((manager.parked(), misuses()), (0, 0));
    manager.reset();
    assert_eq!((manager.live(), device.live_allocations()), (0, 0));
    assert_eq!(device.violations(), []);
}

#[test]
fn late_finalizers_bear_a_device_that_is_lost() {
    let setup = Setup::new();
    let stream = setup.stream();
    let memory = with_stream(stream, || setup.manager.memalloc(64).unwrap());
    let parked = setup.manager.memalloc(64).unwrap();
    let guard = setup.manager.defer_cleanup();
    drop(parked);
    setup.device.set_faults(FaultPlan::nth_call(0, DriverError::DEINITIALIZED).persistent());
    drop(memory);
    drop(guard);
    setup.manager.reset();
    assert_eq!((setup.manager.live(), setup.manager.parked()), (0, 0));
}

#[test]
fn a_threads_last_breath_may_drop_pointers() {
    thread_local! {
        static KEPT: RefCell<Vec<MemoryPointer>> = const { RefCell::new(Vec::new()) };
    }
    let setup = Setup::new();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // This is dropped with the thread's locals, when this crate's own locals may already be gone.
            KEPT.with_borrow_mut(|kept| kept.push(setup.manager.memalloc(64).unwrap()));
            let take = || setup.manager.memalloc(64).unwrap();
            KEPT.with_borrow_mut(|kept| kept.push(with_stream(StreamRef::PER_THREAD, take)));
            assert_eq!(setup.manager.live(), 2);
        });
        thread.join().unwrap(); // also waits for the thread's locals; the scope's end does not
    });
    assert_eq!(setup.manager.live(), 0);
    assert_eq!(setup.take_calls().len(), 4);
}

#[test]
fn foreign_memory_cannot_be_announced() {
    let setup = Setup::new();
    let other = Setup::new();
    let memory = other.manager.memalloc(64).unwrap();
    assert!(setup.manager.record_stream(&memory, StreamRef::PER_THREAD).is_err());
    other.manager.reset();
    assert!(other.manager.record_stream(&memory, StreamRef::PER_THREAD).is_err());
}
