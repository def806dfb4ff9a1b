//! Tests the counters: peaks, levels, and threads.

use std::sync::{Arc, Barrier, Mutex, OnceLock, Weak};

use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, ErrorKind, Layout, MemoryInfo,
    ResourceStatistics, StreamRef, find_trait,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_testkit::Rng;
use millpond_testkit::mock::{self, Call, MockResource};

use super::{Counter, Counters, StatisticsLayer, StatisticsResourceAdaptor};
use crate::probe::Probe;

const S: StreamRef = StreamRef::LEGACY;

fn adaptor() -> (StatisticsResourceAdaptor<MockResource>, mock::Handle) {
    let (upstream, handle) = mock::resource(SimDevice::new(SimConfig::h200()));
    (StatisticsResourceAdaptor::new(upstream), handle)
}

fn free(resource: &impl DeviceMemoryResource, ptr: DevicePtr, bytes: u64) {
    // SAFETY: the tests free each block once, with its size; no work uses it.
    unsafe { resource.deallocate_bytes(ptr, bytes, S) }
}

fn counter(current: i64, peak: i64, total: i64) -> Counter {
    Counter { current, peak, total }
}

#[test]
fn bytes_count_as_asked_for() {
    let (resource, handle) = adaptor();
    let a = resource.allocate_bytes(1000, S).unwrap();
    let b = resource.allocate_bytes(24, S).unwrap();
    free(&resource, a, 1000);
    let c = resource.allocate_bytes(1, S).unwrap();
    let expected =
        Counters { bytes: counter(25, 1024, 1025), allocations: counter(2, 2, 3), ..Default::default() };
    assert_eq!(resource.counters(), expected);
    handle.assert_calls([
        Call::allocate(Layout::new(1000), S),
        Call::allocate(Layout::new(24), S),
        Call::deallocate(a, Layout::new(1000), S),
        Call::allocate(Layout::new(1), S),
    ]);
    free(&resource, b, 24);
    free(&resource, c, 1);
    assert_eq!(resource.counters().bytes, counter(0, 1024, 1025));
}

#[test]
fn a_request_for_zero_bytes_counts_as_an_allocation() {
    let (resource, _handle) = adaptor();
    let null = resource.allocate_bytes(0, S).unwrap();
    assert!(null.is_null());
    assert_eq!(resource.counters().allocations, counter(1, 1, 1));
    free(&resource, null, 0);
    assert_eq!(resource.counters().allocations, counter(0, 1, 1));
    assert_eq!(resource.counters().bytes, counter(0, 0, 0));
}

#[test]
fn a_refused_request_counts_as_a_failure_only() {
    let (resource, handle) = adaptor();
    handle.fail_next(ErrorKind::OutOfMemory);
    let error = resource.allocate_bytes(1000, S).unwrap_err();
    assert!(error.is_out_of_memory());
    assert_eq!(error.stack(), Some("mock"), "the innermost resource that failed is named");
    assert_eq!(resource.counters(), Counters { failures: 1, ..Default::default() });
}

#[test]
fn sizes_that_cannot_be_do_not_panic_when_given_back() {
    let (resource, _handle) = adaptor();
    free(&resource, DevicePtr::new(256), u64::MAX);
    free(&resource, DevicePtr::new(256), u64::MAX);
    assert_eq!(resource.counters().bytes.current, i64::MIN);
}

#[test]
fn allocations_count_after_the_upstream_and_deallocations_before() {
    type Stack = StatisticsResourceAdaptor<Probe<MockResource, Box<dyn Fn(&str) + Send + Sync>>>;
    static ADAPTOR: OnceLock<Weak<Stack>> = OnceLock::new();
    static SEEN: Mutex<Vec<(String, i64)>> = Mutex::new(Vec::new());
    let (upstream, _handle) = mock::resource(SimDevice::new(SimConfig::h200()));
    let before = Box::new(|call: &str| {
        let counters = ADAPTOR.get().and_then(Weak::upgrade).unwrap().counters();
        SEEN.lock().unwrap().push((call.to_owned(), counters.bytes.current));
    });
    let resource: Arc<Stack> = Arc::new(StatisticsResourceAdaptor::new(Probe { upstream, before }));
    ADAPTOR.set(Arc::downgrade(&resource)).unwrap();
    let ptr = resource.allocate_bytes(100, S).unwrap();
    free(&resource, ptr, 100);
    assert_eq!(*SEEN.lock().unwrap(), [("allocate".to_owned(), 0), ("deallocate".to_owned(), 0)]);
}

#[test]
fn levels_fold_as_in_rmm() {
    let (resource, _handle) = adaptor();
    let a = resource.allocate_bytes(10, S).unwrap();
    let pushed = resource.push_counters();
    assert_eq!(pushed.bytes, counter(10, 10, 10));
    assert_eq!(resource.counters(), Counters::default());
    let b = resource.allocate_bytes(5, S).unwrap();
    free(&resource, a, 10);
    free(&resource, b, 5);
    let popped = resource.pop_counters().unwrap();
    assert_eq!(popped.bytes, counter(-10, 5, 5), "a block older than the level was given back in it");
    assert_eq!(resource.counters().bytes, counter(0, 15, 15));
}

#[test]
fn the_last_level_stays() {
    let (resource, _handle) = adaptor();
    let error = resource.pop_counters().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let ptr = resource.allocate_bytes(7, S).unwrap();
    assert_eq!(resource.counters().bytes.current, 7);
    free(&resource, ptr, 7);
}

/// A level must show the counters of a fresh adaptor that saw all calls since the push.
#[test]
fn every_level_equals_a_recount_of_what_happened_since_its_push() {
    (0..200).for_each(|seed| check_recount(seed, |call| call()));
}

/// The same, with each call on another thread.
#[test]
fn every_level_equals_a_recount_with_any_threads() {
    (0..20).for_each(|seed| check_recount(seed, |call| std::thread::scope(|scope| drop(scope.spawn(call)))));
}

fn check_recount(seed: u64, on_some_thread: impl Fn(&mut (dyn FnMut() + Send))) {
    let mut rng = Rng::new(seed);
    let (resource, handle) = adaptor();
    let mut history: Vec<i64> = Vec::new();
    let mut starts = vec![0];
    let mut live = Vec::new();
    for _ in 0..200 {
        match rng.below(10) {
            0 => {
                resource.push_counters();
                starts.push(history.len());
            }
            1 if starts.len() > 1 => {
                let popped = resource.pop_counters().unwrap();
                let start = starts.pop().unwrap();
                assert_eq!(popped.bytes, recount(&history[start..]), "seed {seed}");
            }
            2..=4 if !live.is_empty() => {
                let (ptr, bytes) = live.swap_remove(rng.below(live.len() as u64) as usize);
                on_some_thread(&mut || free(&resource, ptr, bytes));
                history.push(-(bytes as i64));
            }
            _ => {
                let bytes = rng.below(1 << 20) + 1;
                let mut ptr = DevicePtr::NULL;
                on_some_thread(&mut || ptr = resource.allocate_bytes(bytes, S).unwrap());
                live.push((ptr, bytes));
                history.push(bytes as i64);
            }
        }
        let start = *starts.last().unwrap();
        assert_eq!(resource.counters().bytes, recount(&history[start..]), "seed {seed}");
    }
    assert_eq!(handle.live().len(), live.len());
}

fn recount(history: &[i64]) -> Counter {
    history.iter().fold(Counter::default(), |Counter { current, peak, total }, &change| Counter {
        current: current + change,
        peak: peak.max(current + change),
        total: total + change.max(0),
    })
}

#[test]
fn counters_and_peaks_are_exact_under_threads() {
    const THREADS: i64 = 8;
    const ROUNDS: i64 = 2000;
    let (resource, _handle) = adaptor();
    let barrier = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let held = resource.allocate_bytes(1000, S).unwrap();
                barrier.wait();
                // Everything is live now: this is the peak, and later values stay at or below it.
                free(&resource, held, 1000);
                for _ in 0..ROUNDS {
                    let ptr = resource.allocate_bytes(100, S).unwrap();
                    free(&resource, ptr, 100);
                }
            });
        }
    });
    let counters = resource.counters();
    assert_eq!(counters.bytes, counter(0, THREADS * 1000, THREADS * (1000 + ROUNDS * 100)));
    assert_eq!(counters.allocations, counter(0, THREADS, THREADS * (1 + ROUNDS)));
}

#[test]
fn levels_pushed_while_threads_allocate_lose_nothing() {
    let (resource, _handle) = adaptor();
    let totals: i64 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..5000 {
                        let ptr = resource.allocate_bytes(10, S).unwrap();
                        free(&resource, ptr, 10);
                    }
                })
            })
            .collect();
        let mut totals = 0;
        while workers.iter().any(|worker| !worker.is_finished()) {
            resource.push_counters();
            std::thread::yield_now();
            totals += resource.pop_counters().unwrap().bytes.total;
        }
        totals
    });
    let counters = resource.counters();
    assert_eq!((counters.bytes.current, counters.bytes.total), (0, 4 * 5000 * 10));
    assert!(totals <= counters.bytes.total && counters.bytes.peak <= 40);
}

#[test]
fn everything_else_is_the_upstreams() {
    let (resource, handle) = adaptor();
    handle.set_memory_info(MemoryInfo { free: 5, total: 9 });
    handle.set_statistics(Some(ResourceStatistics::default().misuses(3)));
    handle.set_trimmed_bytes(77);
    assert_eq!(resource.memory_info().unwrap(), MemoryInfo { free: 5, total: 9 });
    assert_eq!(resource.statistics().unwrap().misuses, 3);
    assert_eq!(resource.trim(11).unwrap(), 77);
    handle.assert_calls([Call::MemoryInfo, Call::Statistics, Call::Trim { keep_bytes: 11 }]);
}

#[test]
fn equal_is_what_counts_on_top_of_an_equal_upstream() {
    let (upstream, _handle) = mock::resource(SimDevice::new(SimConfig::h200()));
    let upstream: AnyResource = upstream.into_any();
    let one = StatisticsResourceAdaptor::new(Arc::clone(&upstream)).into_any();
    let same_upstream = StatisticsResourceAdaptor::new(Arc::clone(&upstream));
    let other_upstream = StatisticsResourceAdaptor::new(adaptor().0.into_any());
    assert!(one.is_equal(&*one) && one.is_equal(&Arc::clone(&one)));
    assert!(one.is_equal(&same_upstream) && same_upstream.is_equal(&*one));
    assert!(!one.is_equal(&other_upstream) && !one.is_equal(&*upstream));
}

#[test]
fn text_builds_it() {
    let device = SimDevice::new(SimConfig::h200());
    let table =
        LayerTable::new(millpond_resources::LAYERS.iter().copied()).with(crate::LAYERS.iter().copied());
    let spec: StackSpec = "cuda+statistics".parse().unwrap();
    let resource = spec.build(&table, &(device as _)).unwrap();
    assert_eq!(resource.to_string(), "cuda+statistics");
    assert!(find_trait::<dyn crate::AllocationCounters>(&resource).is_some());
    let layered = adaptor().0.layer(StatisticsLayer).unwrap();
    assert_eq!(layered.to_string(), "mock+statistics+statistics");
}

/// A free that the upstream refuses ends no block, and does not count in the total.
#[test]
fn a_refused_free_leaves_the_counters_as_they_are() {
    let pool = millpond_resources::CudaMemoryResource::new(SimDevice::new(SimConfig::h200()))
        .layer(millpond_resources::PoolLayer::new())
        .unwrap();
    let resource = StatisticsResourceAdaptor::new(pool);
    let [a, _b] = [(); 2].map(|()| resource.allocate_bytes(1000, S).unwrap());
    free(&resource, a, 1000);
    let before = resource.counters();
    let ((), reports) = millpond_testkit::misuse_recorder::record(|| {
        free(&resource, a, 1000);
        free(&resource, a, 500);
    });
    assert_eq!((reports.len(), resource.counters()), (2, before), "{reports:?}");
}
