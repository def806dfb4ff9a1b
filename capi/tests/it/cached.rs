//! Tests calls that use the calling thread's cache alone: they succeed, or refuse and change nothing.

use std::ffi::c_void;
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::bench::{Bench, KIB, MIB, message};
use millpond_c::cached::*;
use millpond_c::device::*;
use millpond_c::framework::*;
use millpond_c::registry::*;
use millpond_c::resource::*;
use millpond_c::status::*;
use millpond_core::Driver;

fn allocate(resource: *const Resource, bytes: u64) -> *mut c_void {
    let mut ptr = null_mut();
    // SAFETY: the handle is live, and the result is valid for writes.
    let status = unsafe { millpond_allocate(resource, bytes, 0, null_mut(), &raw mut ptr) };
    assert_eq!(status, Status::Ok, "{}", message());
    ptr
}

fn deallocate(resource: *const Resource, ptr: *mut c_void, bytes: u64) {
    // SAFETY: the block came from the resource with this size.
    assert_eq!(unsafe { millpond_deallocate(resource, ptr, bytes, 0, null_mut()) }, Status::Ok);
}

fn cached(resource: *const Resource, bytes: u64, stream: usize) -> Option<*mut c_void> {
    let mut ptr = null_mut();
    // SAFETY: the handle is live or null, and the result is valid for writes.
    let is_served = unsafe {
        millpond_allocate_cached(resource, false, bytes, without_provenance_mut(stream), &raw mut ptr)
    };
    is_served.then_some(ptr)
}

fn is_cached_again(resource: *const Resource, ptr: *mut c_void, bytes: u64) -> bool {
    // SAFETY: the block came from the resource; wrong sizes must be refused.
    unsafe { millpond_deallocate_cached(resource, ptr, bytes, null_mut()) }
}

/// Returns the number of live blocks and of refused frees.
fn counts(resource: *const Resource) -> (u64, u64) {
    let mut counted = Statistics::default();
    // SAFETY: the handle is live, and the result is valid for writes.
    assert_eq!(unsafe { millpond_resource_statistics(resource, &raw mut counted) }, Status::Ok);
    (counted.blocks_in_use, counted.misuses)
}

/// Uses a stream so often that the thread gets a cache for it.
fn warm_up(resource: *const Resource, bytes: u64) {
    for _ in 0..16 {
        let ptr = allocate(resource, bytes);
        deallocate(resource, ptr, bytes);
    }
}

#[test]
fn a_block_that_was_freed_comes_from_the_cache_and_goes_back() {
    let bench = Bench::new();
    let pool = bench.resource("cuda+pool");
    assert_eq!(cached(pool, KIB, 0), None, "the thread has no cache yet");
    for bytes in [KIB, 100 * KIB, 8 * MIB] {
        warm_up(pool, bytes);
        let block = allocate(pool, bytes);
        assert!(is_cached_again(pool, block, bytes), "{bytes}");
        let same = cached(pool, bytes, 0);
        assert_eq!((same, counts(pool)), (Some(block), (1, 0)), "{bytes}");
        assert!(is_cached_again(pool, block, bytes));
        assert_eq!(counts(pool), (0, 0));
    }
    // A thread caches one large block.
    let two = [(); 2].map(|()| allocate(pool, 8 * MIB));
    assert_eq!(two.map(|block| is_cached_again(pool, block, 8 * MIB)), [true, false]);
    deallocate(pool, two[1], 8 * MIB);
    assert_eq!(counts(pool), (0, 0));
    // SAFETY: the handle is not used again.
    unsafe { millpond_resource_free(pool) };
    assert_eq!(bench.sim.live_bytes(), 0);
}

#[test]
fn what_is_refused_changes_nothing() {
    let bench = Bench::new();
    let [pool, counting, plain] = ["cuda+pool", "cuda+pool+statistics", "cuda"].map(|it| bench.resource(it));
    for resource in [pool, counting, plain] {
        warm_up(resource, KIB);
    }
    let block = allocate(pool, KIB);
    assert!(!is_cached_again(pool, block, 3 * KIB), "a wrong size");
    assert!(!is_cached_again(pool, without_provenance_mut(block.addr() + 8), KIB), "no block's start");
    assert!(!is_cached_again(pool, null_mut(), KIB));
    assert_eq!(counts(pool), (1, 0), "only the ordinary call reports a mistake");
    assert!(is_cached_again(pool, block, KIB));
    assert!(!is_cached_again(pool, block, KIB), "the block is already free");
    let own = bench.stream();
    assert_eq!([cached(pool, KIB, own.addr()), cached(pool, 0, 0), cached(null(), KIB, 0)], [None; 3]);
    assert_eq!([counting, plain].map(|resource| cached(resource, KIB, 0)), [None; 2], "no pool on top");
    assert!(cached(pool, KIB, 1).is_some_and(|same| same == block));
    deallocate(pool, block, KIB);
    // SAFETY: the handles are not used again, and a null place for the result is refused.
    unsafe {
        assert!(!millpond_allocate_cached(pool, false, KIB, null_mut(), null_mut()));
        for resource in [pool, counting, plain] {
            millpond_resource_free(resource);
        }
    }
}

#[test]
fn the_default_is_asked_for_each_time() {
    let bench = Bench::new();
    let [pool, other] = ["cuda+pool"; 2].map(|it| bench.resource(it));
    bench.sim.make_current();
    warm_up(pool, KIB);
    let serve = || {
        let mut ptr = null_mut();
        // SAFETY: the handle is live, and the result is valid for writes.
        let is_served = unsafe { millpond_allocate_cached(pool, true, KIB, null_mut(), &raw mut ptr) };
        if is_served {
            deallocate(pool, ptr, KIB);
        }
        is_served
    };
    // SAFETY: the handles are live.
    unsafe {
        assert!(!serve(), "another resource is the default");
        assert_eq!(millpond_set_per_device_resource(pool, null_mut()), Status::Ok);
        assert!(serve());
        assert_eq!(millpond_set_per_device_resource(other, null_mut()), Status::Ok);
        assert!(!serve());
        assert_eq!(millpond_set_per_device_resource(pool, null_mut()), Status::Ok);
        assert!(serve());
        bench.sim.reset_context();
        assert!(!serve(), "the default was lost");
        for resource in [pool, other] {
            millpond_resource_free(resource);
        }
    }
}

/// How often this thread released the lock and took it again.
static LEFT: AtomicUsize = AtomicUsize::new(0);
static ENTERED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn leave() -> *mut c_void {
    without_provenance_mut(LEFT.fetch_add(1, Ordering::Relaxed) + 1)
}

extern "C" fn enter(state: *mut c_void) {
    assert_eq!(ENTERED.fetch_add(1, Ordering::Relaxed) + 1, state.addr());
}

#[test]
fn a_lock_is_released_for_all_but_the_threads_own_blocks() {
    let bench = Bench::new();
    let [pool, other] = ["cuda+pool"; 2].map(|it| bench.resource(it));
    let number = bench.sim.device().ordinal() as i32;
    let times = || {
        let left = LEFT.load(Ordering::Relaxed);
        assert_eq!(left, ENTERED.load(Ordering::Relaxed));
        left
    };
    // SAFETY: all arguments are valid.
    let malloc =
        |bytes: u64| unsafe { millpond_malloc_unlocked(bytes as usize, number, null_mut(), leave, enter) };
    // SAFETY: each block is freed once, when nothing uses it.
    let free = |ptr| unsafe { millpond_free_unlocked(ptr, leave, enter) };
    // SAFETY: all arguments are valid.
    unsafe {
        assert_eq!(millpond_set_per_device_resource(pool, null_mut()), Status::Ok);
        for _ in 0..16 {
            free(malloc(KIB));
        }
        let before = times();
        let block = malloc(KIB);
        free(block);
        assert_eq!((malloc(KIB), times()), (block, before), "the block is in the thread's cache");
        let large = malloc(20 * MIB);
        assert_eq!(times(), before + 1);
        assert!(malloc(1 << 40).is_null() && message().starts_with("out of memory for 1TiB"));
        assert_eq!(times(), before + 2);
        free(null_mut());
        free(without_provenance_mut(0x123));
        // The second free's report is written without the lock: the log may need it.
        assert_eq!((times(), counts(pool)), (before + 3, (2, 0)), "the pool has no such block");
        // The wait for a use on another stream runs without the lock.
        let stream = bench.stream();
        assert_eq!(millpond_record_stream(block, stream), Status::Ok);
        free(block);
        assert_eq!(times(), before + 4);
        assert_eq!(millpond_empty_cache(), Status::Ok);
        // A replaced resource ends with its last block, without the lock.
        assert_eq!(millpond_set_per_device_resource(other, null_mut()), Status::Ok);
        let left = times();
        millpond_resource_free(pool);
        let held = bench.sim.live_bytes();
        assert!(held > 0);
        free(large);
        assert!(times() > left && bench.sim.live_bytes() < held, "the pool has ended");
        assert_eq!(millpond_reset_per_device_resource(bench.device), Status::Ok);
        millpond_resource_free(other);
    }
}

/// How often the test below released the lock.
static RELEASES: AtomicUsize = AtomicUsize::new(0);

/// A block from before a reset may be the last one that keeps its pool alive. A call that the thread's cache
/// serves finds it when another block has its address.
#[test]
fn a_pool_that_was_lost_ends_without_the_lock() {
    extern "C" fn release() -> *mut c_void {
        RELEASES.fetch_add(1, Ordering::Relaxed);
        null_mut()
    }
    extern "C" fn take_again(_: *mut c_void) {}
    let bench = Bench::new();
    let number = bench.sim.device().ordinal();
    let lost = bench.resource("cuda+pool:pages=off");
    // SAFETY: all arguments are valid, and each block is freed once.
    unsafe {
        let malloc =
            || millpond_malloc_unlocked(KIB as usize, number as i32, null_mut(), release, take_again);
        let free = |block| millpond_free_unlocked(block, release, take_again);
        assert_eq!(millpond_set_per_device_resource(lost, null_mut()), Status::Ok);
        for _ in 0..16 {
            free(malloc());
        }
        let of_before: Vec<_> = [(); 8].map(|()| malloc()).into();
        let last = of_before[7];
        of_before[..7].iter().for_each(|block| free(*block));
        millpond_resource_free(lost);
        bench.sim.reset_context();

        let mut device = null_mut();
        assert_eq!(millpond_device_find(number, true, &raw mut device), Status::Ok);
        let mut fresh = null_mut();
        let text = c"cuda+pool:pages=off";
        assert_eq!(millpond_resource_new(device, text.as_ptr(), &raw mut fresh), Status::Ok);
        assert_eq!(millpond_set_per_device_resource(fresh, null_mut()), Status::Ok);
        // The thread's cache holds the block at the address of `last`, which `malloc` has not met yet.
        for _ in 0..4 {
            let blocks = [(); 8].map(|()| allocate(fresh, KIB));
            blocks.into_iter().for_each(|block| deallocate(fresh, block, KIB));
        }
        free(millpond_malloc_unlocked(MIB as usize, number as i32, null_mut(), release, take_again));
        let mut blocks = Vec::new();
        while blocks.last() != Some(&last) {
            let before = RELEASES.load(Ordering::Relaxed);
            blocks.push(malloc());
            let released = RELEASES.load(Ordering::Relaxed) - before;
            let is_last = blocks.last() == Some(&last);
            assert_eq!(released, usize::from(is_last), "the lost pool ends in one call, {} in", blocks.len());
        }
        free(last); // from before the reset
        blocks.into_iter().for_each(free);
        assert_eq!(counts(fresh), (0, 0));
        assert_eq!(millpond_reset_per_device_resource(device), Status::Ok);
        millpond_resource_free(fresh);
        millpond_device_free(device);
    }
}
