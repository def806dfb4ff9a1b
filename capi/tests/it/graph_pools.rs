//! Tests the hooks for PyTorch's graph pools: which memory a capture gets, and when it goes back.

use std::ffi::c_void;
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::bench::{Bench, KIB, MIB, message};
use millpond_c::cached::*;
use millpond_c::device::*;
use millpond_c::framework::*;
use millpond_c::graph_pools::*;
use millpond_c::registry::*;
use millpond_c::resource::*;
use millpond_c::status::*;
use millpond_core::driver::CaptureMode;

const POOL: GraphPoolId = GraphPoolId { first: 7, second: 0 };
const OTHER: GraphPoolId = GraphPoolId { first: 0, second: 7 };
const SIZE: usize = 512 * KIB as usize;

impl Bench {
    fn begin(&self, pool: GraphPoolId, stream: *mut c_void) {
        // SAFETY: Rust lets exceptions pass, and the call throws none here.
        unsafe { millpond_begin_allocate_to_pool(self.number(), pool, null()) };
        self.sim.begin_capture(self.stream_ref(stream), CaptureMode::Relaxed).expect("a capture begins");
    }

    fn end(&self, pool: GraphPoolId, stream: *mut c_void) {
        self.sim.end_capture(self.stream_ref(stream)).expect("a capture ends");
        millpond_end_allocate_to_pool(self.number(), pool);
    }

    fn malloc(&self, stream: *mut c_void) -> *mut c_void {
        // SAFETY: the stream is alive.
        let ptr = unsafe { millpond_malloc(SIZE, self.number(), stream) };
        assert!(!ptr.is_null(), "{}", message());
        ptr
    }

    /// Allocates all that is left. So the result contains every block that could be allocated again.
    fn rest(&self, stream: *mut c_void) -> Vec<*mut c_void> {
        // SAFETY: the stream is alive.
        let next = || Some(unsafe { millpond_malloc(SIZE, self.number(), stream) });
        std::iter::from_fn(next).take_while(|ptr| !ptr.is_null()).collect()
    }
}

fn free(ptr: *mut c_void) {
    // SAFETY: each test frees a block once, when nothing uses it.
    unsafe { millpond_free(ptr, SIZE, 0, null_mut()) }
}

fn blocks_in_use(resource: *const Resource) -> u64 {
    let mut counted = Statistics::default();
    // SAFETY: the resource is live, and the result is valid for writes.
    assert_eq!(unsafe { millpond_resource_statistics(resource, &raw mut counted) }, Status::Ok);
    assert_eq!(counted.misuses, 0);
    counted.blocks_in_use
}

/// Runs `body` with two streams on a device whose default is a pool. Nothing is in use at the end.
fn with_pool(body: impl FnOnce(&Bench, *mut Resource, [*mut c_void; 2])) {
    let bench = Bench::new();
    let pool = bench.resource("cuda+pool");
    // SAFETY: all arguments are valid.
    unsafe {
        assert_eq!(millpond_set_per_device_resource(pool, null_mut()), Status::Ok);
        body(&bench, pool, [bench.stream(), bench.stream()]);
        assert_eq!(blocks_in_use(pool), 0);
        assert_eq!(bench.sim.take_violations(), []);
        assert_eq!(millpond_reset_per_device_resource(bench.device), Status::Ok);
        millpond_resource_free(pool);
    }
}

#[test]
fn memory_of_a_capture_stays_with_its_graph() {
    with_pool(|bench, pool, [own, other]| {
        let before = bench.malloc(own);
        bench.begin(POOL, own);
        let block = bench.malloc(own);
        free(block);
        assert_eq!(bench.malloc(own), block, "the capture reuses the block");
        let kept = bench.malloc(own);
        let outside = bench.malloc(other);
        free(block);
        free(before);
        free(outside);
        bench.end(POOL, own);
        // No one else gets the live blocks of the capture, or the blocks that it freed.
        for stream in [own, other] {
            let others = bench.rest(stream);
            assert!(
                others.len() * SIZE >= 50 * MIB as usize
                    && !others.contains(&block)
                    && !others.contains(&kept)
            );
            assert!(others.contains(&before), "a block that was freed meanwhile is allocated again");
            others.into_iter().for_each(free);
        }
        millpond_release_pool(bench.number(), POOL);
        assert!(blocks_in_use(pool) > 0, "a block of the pool is in use");
        free(kept);
    });
}

#[test]
fn graphs_share_a_pool_until_the_last_is_released() {
    with_pool(|bench, pool, [own, other]| {
        bench.begin(OTHER, own);
        let block = bench.malloc(own);
        free(block);
        bench.end(OTHER, own);
        bench.begin(OTHER, other);
        assert_eq!(bench.malloc(other), block, "the second capture gets the block that the first has freed");
        free(block);
        bench.end(OTHER, other);
        millpond_release_pool(bench.number(), OTHER);
        assert_eq!(blocks_in_use(pool), 1, "the second graph may be launched");
        millpond_release_pool(bench.number(), OTHER);
        // An extra release changes nothing.
        millpond_release_pool(bench.number(), OTHER);
    });
}

#[test]
fn captures_of_two_threads_have_pools_of_their_own() {
    with_pool(|bench, _, streams| {
        let barrier = Barrier::new(2);
        let [one, two] = streams.map(|stream| stream.addr());
        let capture = |pool: GraphPoolId, stream: usize| {
            let stream: *mut c_void = without_provenance_mut(stream);
            bench.begin(pool, stream);
            barrier.wait(); // both have begun, and neither has allocated
            let block = bench.malloc(stream);
            free(block);
            barrier.wait();
            let again = bench.malloc(stream);
            free(again);
            bench.end(pool, stream);
            millpond_release_pool(bench.number(), pool);
            (block.addr(), again.addr())
        };
        let found = std::thread::scope(|scope| {
            let capture = &capture;
            let first = scope.spawn(move || capture(POOL, one));
            let second = scope.spawn(move || capture(OTHER, two));
            [first, second].map(|thread| thread.join().expect("the thread ends"))
        });
        assert!(found.iter().all(|(block, again)| block == again), "{found:x?}");
        assert_ne!(found[0].0, found[1].0);
    });
}

/// A thread that began no capture allocates first while two captures are new: the driver's number does not
/// help yet.
#[test]
fn a_stream_of_one_of_two_new_captures_is_refused_on_another_thread() {
    with_pool(|bench, _, streams| {
        let barrier = Barrier::new(3);
        let [own, other] = streams.map(|stream| stream.addr());
        let capture = |pool: GraphPoolId, stream: usize| {
            let stream: *mut c_void = without_provenance_mut(stream);
            bench.begin(pool, stream);
            barrier.wait(); // both have begun
            barrier.wait(); // the third thread was refused
            free(bench.malloc(stream)); // begun on this thread
            bench.end(pool, stream);
            millpond_release_pool(bench.number(), pool);
        };
        std::thread::scope(|scope| {
            let capture = &capture;
            scope.spawn(move || capture(POOL, own));
            scope.spawn(move || capture(OTHER, other));
            barrier.wait();
            // SAFETY: the stream is alive.
            let ptr = unsafe { millpond_malloc(SIZE, bench.number(), streams[0]) };
            let why = message();
            barrier.wait();
            assert!(ptr.is_null() && why.contains("several threads began to capture"), "{why}");
        });
    });
}

/// PyTorch does not announce that a capture failed. It captures on the same stream again.
#[test]
fn a_capture_that_failed_ends_with_the_next_one() {
    with_pool(|bench, pool, [own, other]| {
        bench.begin(POOL, own);
        free(bench.malloc(own));
        bench.sim.end_capture(bench.stream_ref(own)).expect("a capture ends");
        assert_eq!(blocks_in_use(pool), 1);
        // Another thread cannot know whether the first one is about to announce the end of its capture.
        std::thread::scope(|scope| {
            let (stream, third) = (other.addr(), GraphPoolId { first: 8, second: 0 });
            let capture = move || {
                let stream: *mut c_void = without_provenance_mut(stream);
                bench.begin(third, stream);
                free(bench.malloc(stream));
                bench.end(third, stream);
                millpond_release_pool(bench.number(), third);
            };
            scope.spawn(capture).join().expect("the thread ends");
        });
        assert_eq!(blocks_in_use(pool), 1);
        bench.begin(OTHER, own);
        let block = bench.malloc(own);
        assert_eq!(blocks_in_use(pool), 1, "the failed capture's memory went back");
        free(block);
        bench.end(OTHER, own);
        millpond_release_pool(bench.number(), OTHER);
        assert!(!is_slow(bench), "no capture is open");
    });
}

/// Returns whether allocations look for captures: then the thread's cache serves nothing.
fn is_slow(bench: &Bench) -> bool {
    static LEFT: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn leave() -> *mut c_void {
        LEFT.fetch_add(1, Ordering::Relaxed);
        null_mut()
    }
    extern "C" fn enter(_: *mut c_void) {}
    // SAFETY: the legacy default stream is alive, and the functions can be called.
    let malloc = || unsafe { millpond_malloc_unlocked(1 << 10, bench.number(), null_mut(), leave, enter) };
    for _ in 0..16 {
        free(malloc());
    }
    let before = LEFT.load(Ordering::Relaxed);
    free(malloc());
    LEFT.load(Ordering::Relaxed) > before
}

/// A stream of another library may be gone when the next capture begins: CUDA would read freed memory.
#[test]
fn streams_of_failed_captures_are_asked_nothing() {
    with_pool(|bench, pool, [own, other]| {
        bench.begin(POOL, own);
        free(bench.malloc(own));
        bench.sim.end_capture(bench.stream_ref(own)).expect("a capture ends");
        // SAFETY: the stream is not used again.
        assert_eq!(unsafe { millpond_stream_destroy(bench.device, own) }, Status::Ok);
        let calls = bench.sim.driver_calls();
        // SAFETY: Rust lets exceptions pass, and the call throws none here.
        unsafe { millpond_begin_allocate_to_pool(bench.number(), OTHER, null()) };
        assert_eq!(bench.sim.driver_calls(), calls);
        millpond_end_allocate_to_pool(bench.number(), OTHER);
        millpond_release_pool(bench.number(), OTHER);
        // Nothing tells that the capture has ended, so its memory stays until its pool is released.
        assert_eq!(blocks_in_use(pool), 1);
        millpond_release_pool(bench.number(), POOL);
        free(bench.malloc(other));
    });
}

/// PyTorch announces neither an end nor a release if a call that cannot be captured comes before the first
/// allocation.
#[test]
fn a_capture_that_failed_before_it_allocated_ends_with_the_next_one() {
    with_pool(|bench, _, [own, _]| {
        bench.begin(POOL, own);
        bench.sim.end_capture(bench.stream_ref(own)).expect("a capture ends");
        bench.begin(OTHER, own);
        free(bench.malloc(own));
        bench.end(OTHER, own);
        millpond_release_pool(bench.number(), OTHER);
        assert!(!is_slow(bench), "no capture is open");
    });
}

/// The thread of the failed capture ends before it captures again.
#[test]
fn a_failed_capture_of_a_thread_that_ended_ends_with_the_next_one() {
    with_pool(|bench, pool, [own, other]| {
        std::thread::scope(|scope| {
            let streams = [own.addr(), other.addr()];
            let fail = move || {
                for (stream, pool) in [(streams[0], POOL), (streams[1], OTHER)] {
                    let stream: *mut c_void = without_provenance_mut(stream);
                    bench.begin(pool, stream);
                    free(bench.malloc(stream));
                    bench.sim.end_capture(bench.stream_ref(stream)).expect("a capture ends");
                }
            };
            scope.spawn(fail).join().expect("the thread ends");
        });
        let third = GraphPoolId { first: 9, second: 0 };
        for stream in [own, other] {
            free(bench.malloc(stream)); // shows that the capture on this stream is over
        }
        bench.begin(third, own);
        assert_eq!(blocks_in_use(pool), 0);
        bench.end(third, own);
        millpond_release_pool(bench.number(), third);
        assert!(!is_slow(bench), "no capture is open");
    });
}

#[test]
fn a_graph_that_is_released_while_another_is_captured_gives_its_memory_back_later() {
    with_pool(|bench, pool, [own, other]| {
        bench.begin(POOL, own);
        free(bench.malloc(own));
        bench.end(POOL, own);
        bench.begin(OTHER, other);
        free(bench.malloc(other));
        millpond_release_pool(bench.number(), POOL);
        bench.end(OTHER, other);
        assert_eq!(millpond_empty_cache(), Status::Ok);
        assert_eq!(blocks_in_use(pool), 1, "the second graph's memory stays");
        millpond_release_pool(bench.number(), OTHER);
    });
}

/// A capture that never began in the driver is not mistaken for another thread's capture.
#[test]
fn a_capture_that_never_began_ends_with_its_graph() {
    with_pool(|bench, _, [own, other]| {
        // SAFETY: Rust lets exceptions pass, and the call throws none here.
        unsafe { millpond_begin_allocate_to_pool(bench.number(), POOL, null()) };
        millpond_release_pool(bench.number(), POOL);
        let stream = other.addr();
        std::thread::scope(|scope| {
            let begin = move || bench.begin(OTHER, without_provenance_mut(stream));
            scope.spawn(begin).join().expect("the thread ends");
        });
        let block = bench.malloc(other);
        free(block);
        bench.end(OTHER, other);
        let others = bench.rest(own);
        assert!(!others.contains(&block), "the block stays with its graph");
        others.into_iter().for_each(free);
        millpond_release_pool(bench.number(), OTHER);
    });
}

/// A thread may capture on two devices at once.
#[test]
fn a_capture_on_another_device_ends_none() {
    with_pool(|bench, _, [own, _]| {
        let second = Bench::new();
        let pool = second.resource("cuda+pool");
        // SAFETY: the resource is live.
        assert_eq!(unsafe { millpond_set_per_device_resource(pool, null_mut()) }, Status::Ok);
        let there = second.stream();
        bench.begin(POOL, own);
        second.begin(OTHER, there);
        second.end(OTHER, there);
        let block = bench.malloc(own);
        free(block);
        bench.end(POOL, own);
        let others = bench.rest(own);
        assert!(!others.contains(&block), "the block stays with its graph");
        others.into_iter().for_each(free);
        millpond_release_pool(bench.number(), POOL);
        millpond_release_pool(second.number(), OTHER);
        // SAFETY: the resource is not used again.
        unsafe {
            assert_eq!(millpond_reset_per_device_resource(second.device), Status::Ok);
            millpond_resource_free(pool);
        }
    });
}
