//! Models of the peak of live bytes, which loom runs in every order of their threads' steps.

use loom::thread;

use crate::pool::cache::quota::*;
use crate::sync::{AtomicU64, explore, explore_without_order};

/// Two threads of a pool. The first thread caches two blocks of one byte. They were live when the peak was
/// two.
struct Setup {
    thread_caches: ThreadCaches,
    /// The slots of the two blocks.
    slots: [AtomicU64; 2],
}

impl Setup {
    fn new() -> (Arc<Self>, [Arc<ThreadCache>; 2]) {
        let setup =
            Self { thread_caches: ThreadCaches::default(), slots: [(); 2].map(|()| AtomicU64::new(1)) };
        let thread_caches = [(); 2].map(|()| setup.thread_caches.unused_cache());
        let first = &thread_caches[0].counts;
        first.begin_allocation(2);
        first.end_allocation(2, 2);
        setup.thread_caches.acquire_quota(first);
        first.count_push(1, 1);
        first.count_push(1, 1);
        (Arc::new(setup), thread_caches)
    }

    /// The first thread pops a cached block.
    fn pop(&self, thread: &ThreadCounts, slot: usize) {
        thread.begin_pop(1);
        assert_eq!(self.slots[slot].swap(0, Ordering::SeqCst), 1, "no other thread takes it");
        thread.end_pop(1);
        if thread.exceeds_quota() {
            self.thread_caches.acquire_quota(thread);
        }
    }

    /// A thread allocates a block past its stream caches.
    fn take(&self, thread: &ThreadCounts) {
        thread.begin_allocation(1);
        thread.end_allocation(1, 1);
        if thread.exceeds_quota() {
            self.thread_caches.acquire_quota(thread);
        }
    }
}

/// The first thread pops `pops` blocks, and the second one allocates a new block.
fn two_allocate(pops: usize) {
    let (setup, thread_caches) = Setup::new();
    let other = {
        let (setup, thread_cache) = (Arc::clone(&setup), Arc::clone(&thread_caches[1]));
        thread::spawn(move || setup.take(&thread_cache.counts))
    };
    (0..pops).for_each(|slot| setup.pop(&thread_caches[0].counts, slot));
    other.join().expect("no assertion failed");
    setup.thread_caches.validate_peak();
    assert_eq!(setup.thread_caches.peak_bytes(), 2.max(pops as i64 + 1), "the peak is exact");
}

#[test]
fn the_peak_does_not_rise_without_need() {
    explore(|| two_allocate(1));
}

#[test]
fn the_peak_rises_by_what_is_missing() {
    explore(|| two_allocate(2));
}

#[test]
fn canary_quota_borrowed_without_order() {
    explore_without_order("exceeds its quota", || two_allocate(2));
}

/// The first thread adds its unused quota to the reserve, while the second one needs one more byte of quota.
fn one_adds_to_the_reserve() {
    let (setup, thread_caches) = Setup::new();
    let first = &thread_caches[0].counts;
    let other = {
        let (setup, thread_cache) = (Arc::clone(&setup), Arc::clone(&thread_caches[1]));
        thread::spawn(move || setup.take(&thread_cache.counts))
    };
    setup.thread_caches.peak.quantum.store(0, Ordering::Relaxed);
    setup.thread_caches.peak.add_to_reserve(first);
    other.join().expect("no assertion failed");
    setup.thread_caches.validate_peak();
    // The second thread may miss quota that is on its way to the reserve.
    let peak = setup.thread_caches.peak_bytes();
    assert!((2..=3).contains(&peak), "{peak}");
}

#[test]
fn quota_in_the_reserve_is_taken_once() {
    explore(one_adds_to_the_reserve);
}

#[test]
fn canary_the_reserve_is_filled_without_order() {
    explore_without_order("exceeds its quota", one_adds_to_the_reserve);
}
