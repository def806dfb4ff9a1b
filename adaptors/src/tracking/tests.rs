//! Tests the tracker: refusals, leaks, reports, and threads.

use std::sync::{Arc, Barrier, Mutex, OnceLock, Weak};

use millpond_core::misuse::{Misuse, MisuseKind};
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, ErrorKind, Layout, MemoryInfo,
    ResourceStatistics, StreamRef, find_trait,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_testkit::Rng;
use millpond_testkit::misuse_recorder::record;
use millpond_testkit::mock::{self, Call, MockResource};

use super::{Stacks, TrackingLayer, TrackingResourceAdaptor};
use crate::events::Events;
use crate::probe::Probe;

const S: StreamRef = StreamRef::LEGACY;

fn mock() -> (MockResource, mock::Handle) {
    mock::resource(SimDevice::new(SimConfig::h200()))
}

fn adaptor() -> (TrackingResourceAdaptor<MockResource>, mock::Handle) {
    let (upstream, handle) = mock();
    let resource = TrackingResourceAdaptor::new(upstream, Stacks::Off);
    // Whether the upstream keeps statistics.
    assert_eq!(handle.take_calls(), [Call::Statistics]);
    (resource, handle)
}

/// Frees `ptr`, and returns the report.
fn free(resource: &impl DeviceMemoryResource, ptr: DevicePtr, bytes: u64) -> Vec<Misuse> {
    // SAFETY: the upstream is a mock, whose addresses have no memory behind them.
    record(|| unsafe { resource.deallocate_bytes(ptr, bytes, S) }).1
}

#[test]
fn what_is_outstanding_is_known() {
    let (resource, handle) = adaptor();
    let stream = StreamRef::from_raw_parts(0x55e8_c0a1_b2d0, 7);
    handle.answer_next(DevicePtr::new(0x9000));
    handle.answer_next(DevicePtr::new(0x5000));
    handle.answer_next(DevicePtr::new(0x7000));
    let a = resource.allocate_bytes(1000, S).unwrap();
    let b = resource.allocate_bytes(24, stream).unwrap();
    let c = resource.allocate_bytes(1, S).unwrap();
    assert_eq!(resource.allocated_bytes(), 1025);
    let oldest_first = "0x9000: 1000 B, stream 0, allocation 0\n\
                        0x5000: 24 B, stream 0x55e8c0a1b2d0, allocation 1\n\
                        0x7000: 1 B, stream 0, allocation 2\n";
    assert_eq!(resource.report(), oldest_first);
    assert_eq!(free(&resource, a, 1000), []);
    let left: Vec<_> = resource.outstanding().iter().map(|it| (it.ptr, it.bytes, it.stream)).collect();
    assert_eq!(left, [(b, 24, stream), (c, 1, S)]);
    assert_eq!(free(&resource, b, 24), []);
    assert_eq!(free(&resource, c, 1), []);
    assert_eq!((resource.report(), resource.allocated_bytes()), (String::new(), 0));
    assert_eq!(handle.live(), []);
}

#[test]
fn a_request_for_zero_bytes_is_not_tracked() {
    let (resource, handle) = adaptor();
    let null = resource.allocate_bytes(0, S).unwrap();
    assert!(null.is_null() && resource.outstanding().is_empty());
    assert_eq!(free(&resource, null, 0), []);
    assert_eq!(handle.calls().len(), 2);
}

#[test]
fn what_fails_is_not_tracked() {
    let (resource, handle) = adaptor();
    handle.fail_next(ErrorKind::OutOfMemory);
    let error = resource.allocate_bytes(1000, S).unwrap_err();
    assert_eq!(error.stack(), Some("mock"), "the innermost resource that failed is named");
    assert!(resource.outstanding().is_empty());
}

#[test]
fn misuse_is_refused_reported_counted_and_not_forwarded() {
    let (resource, handle) = adaptor();
    handle.set_statistics(Some(ResourceStatistics::default().misuses(3)));
    let (kept, freed) = (resource.allocate_bytes(1000, S).unwrap(), resource.allocate_bytes(8, S).unwrap());
    assert_eq!(free(&resource, freed, 8), []);
    handle.take_calls();
    for (ptr, bytes, kind) in [
        (DevicePtr::new(256), 8, MisuseKind::ForeignPointer),
        (kept.offset(256), 8, MisuseKind::ForeignPointer),
        (freed, 8, MisuseKind::ForeignPointer),
        (kept, 999, MisuseKind::WrongSize { allocated_bytes: 1000 }),
        (kept, 0, MisuseKind::WrongSize { allocated_bytes: 1000 }),
    ] {
        let expected = Misuse::new(kind, ptr, bytes, S, "mock+tracking");
        assert_eq!(free(&resource, ptr, bytes), [expected]);
    }
    handle.assert_calls([]);
    assert_eq!(resource.statistics().unwrap().misuses, 3 + 5);
    assert_eq!((resource.allocated_bytes(), resource.outstanding().len()), (1000, 1));
    assert_eq!(free(&resource, kept, 1000), [], "a refusal does not cost the block");
}

#[test]
fn a_block_that_went_back_behind_its_back_is_replaced() {
    let (resource, handle) = adaptor();
    handle.answer_next(DevicePtr::new(0x9000));
    handle.answer_next(DevicePtr::new(0x9000));
    resource.allocate_bytes(1000, S).unwrap();
    let again = resource.allocate_bytes(24, S).unwrap();
    assert_eq!((resource.outstanding().len(), resource.allocated_bytes()), (1, 24));
    assert_eq!(free(&resource, again, 24), []);
    assert_eq!(resource.allocated_bytes(), 0);
}

#[test]
fn a_block_that_is_handed_out_again_is_reported_as_lost() {
    for stacks in [Stacks::Off, Stacks::On] {
        let events = Events::default();
        millpond_testkit::events::heard_by(events.clone(), || {
            let (upstream, handle) = mock();
            let resource = TrackingResourceAdaptor::new(upstream, stacks);
            (0..2).for_each(|_| handle.answer_next(DevicePtr::new(0x9000)));
            resource.allocate_bytes(1000, S).unwrap();
            let lost = resource.report();
            assert_eq!(events.text(), "");
            let again = resource.allocate_bytes(24, S).unwrap();
            assert_eq!(free(&resource, again, 24), []);
            let reported = events.text();
            assert!(reported.contains("0x9000 was allocated again"), "{reported}");
            // With the place of the allocation, if it is known.
            assert!(reported.contains(lost.trim_end()), "{reported} holds {lost}");
        });
    }
}

/// An allocation is written to the table later, but no call may show that.
#[test]
fn blocks_are_known_through_growth_and_in_any_order() {
    let (resource, handle) = adaptor();
    let mut rng = Rng::new(1);
    let mut live = std::collections::BTreeMap::new();
    for step in 0..20_000 {
        if rng.percent(if step < 10_000 { 70 } else { 30 }) || live.is_empty() {
            let bytes = 1 + rng.below(1 << 33);
            live.insert(resource.allocate_bytes(bytes, S).unwrap(), bytes);
        } else {
            let nth = rng.below(live.len() as u64) as usize;
            let (&ptr, &bytes) = live.iter().nth(nth).unwrap();
            let wrong = free(&resource, ptr, bytes + 1);
            assert_eq!(wrong[0].kind, MisuseKind::WrongSize { allocated_bytes: bytes });
            assert_eq!(free(&resource, ptr, bytes), []);
            assert_eq!(free(&resource, ptr, bytes)[0].kind, MisuseKind::ForeignPointer);
            live.remove(&ptr);
        }
        if step % 1000 == 0 {
            assert_eq!(resource.allocated_bytes(), live.values().sum::<u64>());
        }
    }
    let outstanding = resource.outstanding();
    assert!(outstanding.is_sorted_by_key(|allocation| allocation.sequence));
    let outstanding: std::collections::BTreeMap<_, _> =
        outstanding.iter().map(|allocation| (allocation.ptr, allocation.bytes)).collect();
    assert_eq!(outstanding, live);
    assert_eq!(handle.live().len(), live.len());
}

#[test]
fn backtraces_name_the_caller_if_they_are_on() {
    let resource = TrackingLayer::new().stacks(Stacks::On);
    let resource = mock().0.layer(resource).unwrap();
    let ptr = resource.allocate_bytes(1000, S).unwrap();
    let report = resource.report();
    assert!(
        report.starts_with(&format!("{ptr}: 1000 B, stream 0, allocation 0, allocated at\n")),
        "{report}"
    );
    assert!(report.contains("backtraces_name_the_caller_if_they_are_on"), "{report}");
    assert_eq!(free(&resource, ptr, 1000), []);
}

#[test]
fn allocations_are_noted_after_the_upstream_and_deallocations_before() {
    type Stack = TrackingResourceAdaptor<Probe<MockResource, Box<dyn Fn(&str) + Send + Sync>>>;
    static ADAPTOR: OnceLock<Weak<Stack>> = OnceLock::new();
    static SEEN: Mutex<Vec<(String, usize)>> = Mutex::new(Vec::new());
    let before: Box<dyn Fn(&str) + Send + Sync> = Box::new(|call: &str| {
        let outstanding = ADAPTOR.get().and_then(Weak::upgrade).unwrap().outstanding().len();
        SEEN.lock().unwrap().push((call.to_owned(), outstanding));
    });
    let upstream = Probe { upstream: mock().0, before };
    let resource: Arc<Stack> = Arc::new(TrackingResourceAdaptor::new(upstream, Stacks::Off));
    ADAPTOR.set(Arc::downgrade(&resource)).unwrap();
    let ptr = resource.allocate_bytes(100, S).unwrap();
    assert_eq!(free(&resource, ptr, 100), []);
    assert_eq!(*SEEN.lock().unwrap(), [("allocate".to_owned(), 0), ("deallocate".to_owned(), 0)]);
}

/// A pool reuses an address as soon as it gets it back. A tracker that is late would mix up the owners.
#[test]
fn threads_that_pass_addresses_on_are_never_refused() {
    const THREADS: u64 = 4;
    let pool = "cuda+pool:initial=1MiB,max=1MiB+tracking".parse::<StackSpec>().unwrap();
    let resource = pool.build(&table(), &(SimDevice::new(SimConfig::h200()) as _)).unwrap();
    let barrier = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for seed in 0..THREADS {
            let (resource, barrier) = (&resource, &barrier);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                let mut mine = Vec::new();
                barrier.wait();
                for _ in 0..5000 {
                    if mine.len() < 8 && rng.percent(55) {
                        let bytes = 1 + rng.below(5000);
                        mine.push((resource.allocate_bytes(bytes, S).unwrap(), bytes));
                    } else if !mine.is_empty() {
                        let (ptr, bytes) = mine.swap_remove(rng.below(mine.len() as u64) as usize);
                        assert_eq!(free(resource, ptr, bytes), []);
                    }
                }
                mine.into_iter().for_each(|(ptr, bytes)| assert_eq!(free(resource, ptr, bytes), []));
            });
        }
    });
    let tracker = find_trait::<dyn crate::AllocationTracker>(&resource).unwrap();
    assert_eq!((tracker.report(), tracker.allocated_bytes()), (String::new(), 0));
}

#[test]
fn everything_else_is_the_upstreams() {
    let (resource, handle) = adaptor();
    handle.set_memory_info(MemoryInfo { free: 5, total: 9 });
    handle.set_trimmed_bytes(77);
    assert_eq!(resource.memory_info().unwrap(), MemoryInfo { free: 5, total: 9 });
    assert_eq!(resource.statistics(), Some(ResourceStatistics::default().is_counted_above(true)));
    assert_eq!(resource.trim(11).unwrap(), 77);
    handle.assert_calls([Call::MemoryInfo, Call::Statistics, Call::Trim { keep_bytes: 11 }]);
    assert!(resource.is_equal(&resource) && !resource.is_equal(resource.upstream().unwrap()));
    assert!(!resource.is_equal(&adaptor().0));
    let layout = Layout::with_alignment(100, 4096).unwrap();
    let ptr = resource.allocate(layout, S).unwrap();
    // SAFETY: the block is live, unused, and freed with its layout.
    unsafe { resource.deallocate(ptr, layout, S) };
    handle.assert_calls([Call::allocate(layout, S), Call::deallocate(ptr, layout, S)]);
}

#[test]
fn leaks_are_reported_at_drop_and_nothing_else_is() {
    let events = Events::default();
    let text = millpond_testkit::events::heard_by(events.clone(), || {
        drop(adaptor());
        assert_eq!(events.text(), "");
        let (resource, _handle) = adaptor();
        resource.allocate_bytes(1000, S).unwrap();
        let given_back = resource.allocate_bytes(7, S).unwrap();
        assert_eq!(free(&resource, given_back, 7), []);
        resource.report()
    });
    let reported = events.text();
    for part in ["millpond::tracking bytes=1000", "stack=\"mock\"", "1 allocation was never freed", &text] {
        assert!(reported.contains(part), "{part}: {reported}");
    }
}

fn table() -> LayerTable {
    LayerTable::new(millpond_resources::LAYERS.iter().copied()).with(crate::LAYERS.iter().copied())
}

#[test]
fn text_builds_it() {
    let device = SimDevice::new(SimConfig::h200()) as _;
    let build = |text: &str| text.parse::<StackSpec>().unwrap().build(&table(), &device);
    for text in ["cuda+tracking", "cuda+tracking:stacks=on"] {
        let resource = build(text).unwrap();
        assert_eq!(resource.to_string(), text);
        let tracker = find_trait::<dyn crate::AllocationTracker>(&resource).unwrap();
        resource.allocate_bytes(1, S).unwrap();
        assert_eq!(tracker.outstanding()[0].backtrace.is_some(), text.ends_with("on"));
    }
    assert_eq!(build("cuda+tracking:stacks=off").unwrap().to_string(), "cuda+tracking");
    assert_eq!(build("cuda+tracking:stacks=deep").unwrap_err().kind(), ErrorKind::InvalidStack);
}
