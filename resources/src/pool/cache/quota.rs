//! Gives a thread more quota of live bytes: from the reserve, from other threads, or by raising the peak.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rustc_hash::FxHasher;

use crate::pool::cache::thread_cache::{ThreadCache, ThreadCaches};
use crate::pool::cache::thread_counts::ThreadCounts;
use crate::sync::{Ordering, fence};
use crate::tuning::{READINGS, RESERVE_SHARE};

impl ThreadCaches {
    /// Counts a block that was allocated past the stream caches and the arenas.
    pub(crate) fn count_allocation(&self, thread: &ThreadCounts, bytes: u64, requested: u64) {
        thread.begin_allocation(bytes);
        fence(Ordering::SeqCst);
        thread.end_allocation(bytes, requested);
        if thread.exceeds_quota() {
            self.acquire_quota(thread);
        }
    }

    /// Counts a block that was freed past the stream caches.
    pub(crate) fn count_free(&self, thread: &ThreadCounts, bytes: u64, requested: u64) {
        thread.count_deallocation(bytes, requested);
        if self.peak.has_surplus(thread) {
            self.peak.add_to_reserve(thread);
        }
    }

    /// Gives the calling thread the missing quota after it exceeded its own.
    #[cold]
    pub(crate) fn acquire_quota(&self, counts: &ThreadCounts) {
        let peak = &self.peak;
        if peak.take_from_reserve(counts, -counts.quota_left()) {
            return;
        }
        let all = self.lock();
        let first = activity(&all, counts);
        let mut last = None;
        for scan in 0.. {
            if counts.quota_left() >= 0
                || peak.take_from_reserve(counts, 1)
                || self.borrow_from_others(&all, counts)
            {
                break;
            }
            let now = (activity(&all, counts), peak.reserve.0.load(Ordering::Relaxed));
            if may_rise(scan, last, now) {
                peak.rise(counts, 0);
                break;
            }
            last = Some(now);
        }
        if peak.is_busy_for_long(activity(&all, counts) != first) {
            peak.rise(counts, peak.bytes.load(Ordering::Relaxed) / (2 * RESERVE_SHARE));
        }
        peak.note_threads(all.len());
    }

    /// Borrows the quota that the thread is missing from others; returns whether it has enough afterwards.
    fn borrow_from_others(&self, all: &[Arc<ThreadCache>], counts: &ThreadCounts) -> bool {
        others(all, counts).any(|other| {
            counts.borrow_from(other, -counts.quota_left());
            counts.quota_left() >= 0
        })
    }

    /// Returns the most live bytes so far.
    pub(crate) fn peak_bytes(&self) -> i64 {
        self.peak.bytes.load(Ordering::Relaxed)
    }

    /// Panics if the quotas do not add up to the peak. No thread may be in a call of the pool meanwhile.
    pub(crate) fn validate_peak(&self) {
        let (mut quotas, mut all_live) = (self.peak.reserve.0.load(Ordering::Relaxed), 0);
        assert!(quotas >= 0, "I32: the reserve is negative");
        for thread_cache in self.lock().iter() {
            let live = thread_cache.counts.totals().live_bytes;
            assert!(thread_cache.counts.quota_left() >= 0, "I32: a thread exceeds its quota");
            quotas += live + thread_cache.counts.quota_left();
            all_live += live;
        }
        assert_eq!(quotas, self.peak_bytes(), "I32: the quotas and the reserve add up to the peak");
        assert!(all_live <= quotas, "I32: the live bytes exceed the peak");
    }
}

/// Returns whether the peak may rise after a search without success. It may if two readings of the other
/// threads' activity and of the reserve are equal, so that at one moment no quota was unused. It also may
/// after enough searches.
fn may_rise(scan: usize, last: Option<(u64, i64)>, now: (u64, i64)) -> bool {
    last == Some(now) || scan >= READINGS
}

/// Returns a hash of the other threads' [activity](ThreadCounts::activity).
fn activity(all: &[Arc<ThreadCache>], counts: &ThreadCounts) -> u64 {
    let mut hasher = FxHasher::default();
    others(all, counts).for_each(|other| other.activity().hash(&mut hasher));
    hasher.finish()
}

fn others<'a>(
    all: &'a [Arc<ThreadCache>],
    counts: &'a ThreadCounts,
) -> impl Iterator<Item = &'a ThreadCounts> {
    all.iter().map(|thread_cache| &*thread_cache.counts).filter(|other| !std::ptr::eq(*other, counts))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `validate()` finds quota that no thread and no reserve gave up.
    #[test]
    #[should_panic(expected = "I32: the quotas and the reserve add up to the peak")]
    fn validate_finds_quota_beyond_the_peak() {
        let caches = ThreadCaches::default();
        let first = caches.unused_cache();
        caches.count_allocation(&first.counts, 512, 512);
        caches.validate_peak();
        first.counts.add_quota(256);
        caches.validate_peak();
    }

    /// One search without success proves nothing: a block may pass from thread to thread meanwhile.
    #[test]
    fn the_peak_rises_if_nothing_happened_between_two_searches_or_after_many() {
        for scan in 0..READINGS {
            assert!(!may_rise(scan, None, (1, 2)));
            assert!(may_rise(scan, Some((1, 2)), (1, 2)));
            assert!(!may_rise(scan, Some((1, 2)), (3, 2)), "another thread was active");
            assert!(!may_rise(scan, Some((1, 2)), (1, 3)), "the reserve changed");
        }
        assert!(may_rise(READINGS, Some((1, 2)), (3, 4)));
    }

    /// One of three threads frees its blocks, and another one then takes as many bytes: the peak stays.
    #[test]
    fn a_thread_has_the_quota_that_another_one_no_longer_needs() {
        let caches = ThreadCaches::default();
        let [first, second, third] = [(); 3].map(|()| caches.unused_cache());
        caches.count_allocation(&first.counts, 1 << 20, 1 << 20);
        caches.count_allocation(&second.counts, 256, 256);
        assert_eq!(caches.peak_bytes(), (1 << 20) + 256);
        caches.count_free(&first.counts, 1 << 20, 1 << 20);
        for bytes in [256, (1 << 20) - 256] {
            caches.count_allocation(&third.counts, bytes, bytes);
            assert_eq!(caches.peak_bytes(), (1 << 20) + 256);
            caches.validate_peak();
        }
        caches.count_allocation(&first.counts, 512, 512);
        assert_eq!(caches.peak_bytes(), (1 << 20) + 768);
        caches.validate_peak();
    }

    /// The calling thread's own calls do not count as activity of others.
    #[test]
    fn the_activity_is_that_of_the_other_threads() {
        let caches = ThreadCaches::default();
        let [first, second] = [(); 2].map(|()| caches.unused_cache());
        let before = activity(&caches.lock(), &first.counts);
        caches.count_allocation(&first.counts, 256, 256);
        assert_eq!(activity(&caches.lock(), &first.counts), before);
        caches.count_allocation(&second.counts, 256, 256);
        assert_ne!(activity(&caches.lock(), &first.counts), before);
    }
}

#[cfg(all(test, millpond_loom))]
mod models;
