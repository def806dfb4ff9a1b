//! Tests the limit: its count, its refusals, and threads that share it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    AnyResource, ByteSize, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, ErrorKind, Layout,
    MemoryInfo, ResourceStatistics, StreamRef, find_trait,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_testkit::Rng;
use millpond_testkit::mock::{self, Call, MockResource};

use super::{LimitingLayer, LimitingResourceAdaptor};
use crate::probe::Probe;

const S: StreamRef = StreamRef::LEGACY;

fn adaptor(limit_bytes: u64) -> (LimitingResourceAdaptor<MockResource>, mock::Handle) {
    let (upstream, handle) = mock::resource(SimDevice::new(SimConfig::h200()));
    (LimitingResourceAdaptor::new(upstream, limit_bytes), handle)
}

fn free(resource: &impl DeviceMemoryResource, ptr: DevicePtr, bytes: u64) {
    // SAFETY: the tests free each block once, with its size; no work uses it.
    unsafe { resource.deallocate_bytes(ptr, bytes, S) }
}

#[test]
fn the_limit_is_reached_and_not_passed() {
    let (resource, handle) = adaptor(1024);
    let a = resource.allocate_bytes(513, S).unwrap();
    assert_eq!(resource.allocated_bytes(), 768, "rounded up to 256");
    let b = resource.allocate_bytes(256, S).unwrap();
    assert_eq!((resource.allocated_bytes(), resource.limit_bytes()), (1024, 1024));
    assert!(resource.allocate_bytes(1, S).unwrap_err().is_out_of_memory());
    free(&resource, a, 513);
    assert_eq!(resource.allocated_bytes(), 256);
    let c = resource.allocate_bytes(768, S).unwrap();
    handle.assert_calls([
        Call::allocate(Layout::new(513), S),
        Call::allocate(Layout::new(256), S),
        Call::deallocate(a, Layout::new(513), S),
        Call::allocate(Layout::new(768), S),
    ]);
    free(&resource, b, 256);
    free(&resource, c, 768);
    assert_eq!(resource.allocated_bytes(), 0);
}

#[test]
fn the_error_says_limit_use_and_lack() {
    let (resource, _handle) = adaptor(1 << 30);
    resource.allocate_bytes(1 << 29, S).unwrap();
    let error = resource.allocate_bytes((1 << 29) + 1000, S).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert_eq!((error.requested_bytes(), error.stream()), (Some((1 << 29) + 1000), Some(S)));
    assert_eq!(error.stack(), Some("mock+limiting:limit=1GiB"));
    assert_eq!(error.device(), Some(resource.device()));
    for part in [
        "the maximum (`limit`) is 1GiB",
        "512MiB are in use; free blocks",
        "the layer below was not asked",
        "1KiB more is needed",
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// Freeing blocks does not help such a request, so the error does not advise it.
#[test]
fn a_request_above_the_limit_gets_no_advice_to_free_blocks() {
    let (resource, _handle) = adaptor(1 << 20);
    let error = resource.allocate_bytes(2 << 20, S).unwrap_err().to_string();
    assert!(error.contains("the request is larger than the maximum (`limit`) of 1MiB"), "{error}");
    assert!(!error.contains("free blocks") && error.contains("raise the maximum by 1MiB"), "{error}");
}

#[test]
fn requests_beyond_all_address_spaces_are_refused_without_overflow() {
    let (resource, handle) = adaptor(u64::MAX);
    let error = resource.allocate_bytes(u64::MAX, S).unwrap_err();
    assert!(error.is_out_of_memory() && error.is_impossible(), "{error}");
    resource.allocate_bytes(256, S).unwrap();
    assert!(resource.allocate_bytes(u64::MAX - 255, S).unwrap_err().is_out_of_memory());
    assert_eq!((resource.allocated_bytes(), handle.calls().len()), (256, 1));
}

#[test]
fn a_request_for_zero_bytes_is_free() {
    let (resource, _handle) = adaptor(0);
    let null = resource.allocate_bytes(0, S).unwrap();
    assert!(null.is_null() && resource.allocate_bytes(1, S).is_err());
    free(&resource, null, 0);
    assert_eq!(resource.allocated_bytes(), 0);
}

#[test]
fn what_the_upstream_refuses_does_not_count() {
    let (resource, handle) = adaptor(1024);
    handle.fail_next(ErrorKind::OutOfMemory);
    let error = resource.allocate_bytes(1000, S).unwrap_err();
    assert_eq!(error.stack(), Some("mock"), "the innermost resource that failed is named");
    assert_eq!(resource.allocated_bytes(), 0);
}

/// A free that the upstream refuses frees nothing: neither a second free, nor a free with another size.
#[test]
fn a_refused_free_leaves_the_count_as_it_is() {
    use millpond_core::misuse::MisuseKind;
    use millpond_resources::{CudaMemoryResource, PoolLayer};
    let pool = CudaMemoryResource::new(SimDevice::new(SimConfig::h200())).layer(PoolLayer::new()).unwrap();
    let resource = pool.layer(LimitingLayer::new(10 << 20)).unwrap();
    let [a, _b] = [(); 2].map(|()| resource.allocate_bytes(4 << 20, S).unwrap());
    let ((), reports) = millpond_testkit::misuse_recorder::record(|| {
        free(&resource, a, 5 << 20);
        free(&resource, a, 4 << 20);
        free(&resource, a, 4 << 20);
    });
    assert!(matches!(reports[0].kind, MisuseKind::WrongSize { .. }) && reports.len() == 2, "{reports:?}");
    assert_eq!(resource.allocated_bytes(), 4 << 20);
    let error = resource.allocate_bytes(10 << 20, S).unwrap_err();
    assert_eq!(error.out_of_memory_report().and_then(|report| report.short_bytes), Some(4 << 20), "{error}");
}

#[test]
fn blocks_that_were_never_handed_out_do_not_wrap_the_count_around() {
    let (resource, _handle) = adaptor(1024);
    free(&resource, DevicePtr::new(256), u64::MAX);
    free(&resource, DevicePtr::new(256), 5000);
    free(&resource, DevicePtr::NULL, 5000);
    assert_eq!(resource.allocated_bytes(), 0);
}

/// Requests that are too large are refused all the time, and must not affect requests that fit.
#[test]
fn large_requests_in_vain_never_refuse_a_small_one() {
    const THREADS: u64 = 4;
    let (upstream, _handle) = mock::resource(SimDevice::new(SimConfig::h200()));
    let resource = LimitingResourceAdaptor::new(upstream, THREADS * 256);
    let (done, barrier) = (AtomicBool::new(false), Barrier::new(THREADS as usize + 1));
    std::thread::scope(|scope| {
        let small: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    for _ in 0..10_000 {
                        let ptr = resource.allocate_bytes(256, S).expect("it fits");
                        assert!(resource.allocated_bytes() <= resource.limit_bytes());
                        free(&resource, ptr, 256);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            barrier.wait();
            while !done.load(Ordering::Relaxed) {
                assert!(resource.allocate_bytes(THREADS * 256 + 1, S).unwrap_err().is_out_of_memory());
            }
        });
        let results: Vec<_> = small.into_iter().map(|thread| thread.join()).collect();
        done.store(true, Ordering::Relaxed);
        results.into_iter().for_each(|result| result.unwrap());
    });
    assert_eq!(resource.allocated_bytes(), 0);
}

/// With any number of threads, requests that fit are served, others are refused, and the count is exact.
#[test]
fn the_limit_is_the_same_for_all_threads() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let (resource, _handle) = adaptor(64 * 256);
        let (mut live, mut allocated) = (Vec::new(), 0);
        for _ in 0..200 {
            let bytes = 256 * (1 + rng.below(24));
            let on_some_thread = |call: &mut (dyn FnMut() + Send)| {
                std::thread::scope(|scope| drop(scope.spawn(call)));
            };
            if rng.percent(60) {
                let mut result = None;
                on_some_thread(&mut || result = resource.allocate_bytes(bytes, S).ok());
                assert_eq!(result.is_some(), allocated + bytes <= resource.limit_bytes(), "seed {seed}");
                live.extend(result.map(|ptr| (ptr, bytes)));
                allocated += result.map_or(0, |_| bytes);
            } else if !live.is_empty() {
                let (ptr, bytes) = live.swap_remove(rng.below(live.len() as u64) as usize);
                on_some_thread(&mut || free(&resource, ptr, bytes));
                allocated -= bytes;
            }
            assert_eq!(resource.allocated_bytes(), allocated, "seed {seed}");
        }
    }
}

/// The upstream itself counts its live bytes.
#[test]
fn the_upstream_never_hands_out_more_than_the_limit() {
    const LIMIT_BLOCKS: usize = 3;
    let (upstream, handle) = mock::resource(SimDevice::new(SimConfig::h200()));
    let live = handle.clone();
    let before = move |call: &str| {
        assert!(call != "allocate" || live.live().len() < LIMIT_BLOCKS, "one more than the limit lets");
    };
    let resource = LimitingResourceAdaptor::new(Probe { upstream, before }, LIMIT_BLOCKS as u64 * 256);
    let served = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let Ok(ptr) = resource.allocate_bytes(1, S) else { continue };
                    served.fetch_add(1, Ordering::Relaxed);
                    free(&resource, ptr, 1);
                }
            });
        }
    });
    assert!(served.into_inner() >= 2000);
    assert_eq!((resource.allocated_bytes(), handle.live().len()), (0, 0));
}

#[test]
fn everything_else_is_the_upstreams() {
    let (resource, handle) = adaptor(1024);
    handle.set_memory_info(MemoryInfo { free: 5000, total: 9000 });
    handle.set_statistics(Some(ResourceStatistics::default().misuses(3)));
    handle.set_trimmed_bytes(77);
    resource.allocate_bytes(200, S).unwrap();
    assert_eq!(resource.memory_info().unwrap(), MemoryInfo { free: 768, total: 9000 });
    handle.set_memory_info(MemoryInfo { free: 5, total: 9000 });
    assert_eq!(resource.memory_info().unwrap(), MemoryInfo { free: 5, total: 9000 });
    assert_eq!(resource.statistics().unwrap().misuses, 3);
    assert_eq!(resource.trim(11).unwrap(), 77);
    let calls = handle.take_calls();
    assert_eq!(
        calls[1..],
        [Call::MemoryInfo, Call::MemoryInfo, Call::Statistics, Call::Trim { keep_bytes: 11 }]
    );
    assert!(resource.is_equal(&resource) && !resource.is_equal(resource.upstream().unwrap()));
    assert!(!resource.is_equal(&adaptor(1024).0));
}

#[test]
fn text_builds_it() {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30)) as _;
    let table =
        LayerTable::new(millpond_resources::LAYERS.iter().copied()).with(crate::LAYERS.iter().copied());
    let build = |text: &str| text.parse::<StackSpec>().unwrap().build(&table, &device);
    let limit =
        |resource: &AnyResource| find_trait::<dyn crate::AllocationLimit>(resource).unwrap().limit_bytes();
    let resource = build("cuda+limiting:limit=8GiB").unwrap();
    assert_eq!((resource.to_string(), limit(&resource)), ("cuda+limiting:limit=8GiB".to_owned(), 8 << 30));
    let half = build("cuda+limiting:limit=50%").unwrap();
    assert_eq!(limit(&half), ByteSize::PercentOfFree(50.0).resolve(&**half.driver()).unwrap());
    assert_eq!(build(&half.to_string()).unwrap().to_string(), half.to_string());
    let layered = Arc::new(adaptor(1).0).layer(LimitingLayer::new(4096)).unwrap();
    assert_eq!(layered.to_string(), "mock+limiting:limit=1B+limiting:limit=4KiB");
    for wrong in ["cuda+limiting", "cuda+limiting:limit=-1", "cuda+limiting:limit=101%"] {
        let error = build(wrong).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidStack, "{error}");
        assert!(error.to_string().contains("limit"), "{error}");
    }
}
