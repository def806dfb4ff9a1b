//! Measures the peak of live bytes, although each thread counts by itself.
//!
//! The peak is exact if one thread at a time calls the pool, and up to 2 % too high if several do.
//!
//! Each thread has a **quota**: the most live bytes that it may have. The quotas and an unassigned
//! **reserve** add up to the peak. A thread that exceeds its quota takes from the reserve, and then from the
//! unused quota of other threads; the peak rises only if no quota is left. This is the escrow method (O'Neil,
//! "The escrow transactional method", ACM TODS 11, 1986) for a bound that can rise. If other threads free a
//! thread's blocks, its unused quota grows, and it adds this quota to the reserve.
//!
//! A thread's live bytes are the bytes that it took past its stream caches, less the bytes in its caches. A
//! pop must cost no more than a comparison. So the quota is stored as the least bytes that the caches must
//! hold: the thread's **floor**, plus the quota that it **lent** to others. Only the thread itself changes
//! its cached bytes and its floor; only other threads, one at a time, change its lent quota. A thread may
//! take a block while another thread borrows from it. Each stores, passes a full fence (the exchange of the
//! pop, or of the arena's lock), and then loads, so at least one sees the other's store. If the borrower sees
//! the block, it returns the quota that the other thread needs. If the other thread sees the loan, it
//! acquires quota, which waits for the borrower.
//!
//! For example, a thread took 10 bytes past its caches, caches 4 of them, and may have 8 live bytes. It has 6
//! live bytes. Its floor is 2, so it may pop blocks until its caches hold 2 bytes.

use crate::pool::cache::thread_counts::ThreadCounts;
use crate::sync::{AtomicI64, Ordering, fence};
use crate::tuning::{READINGS, RESERVE_SHARE};

/// The peak of live bytes, and the unassigned quota.
#[derive(Debug)]
pub(crate) struct Peak {
    /// The most live bytes so far. Changed under the lock of all caches.
    pub(super) bytes: AtomicI64,
    /// A thread takes this many more bytes of quota from the reserve than it needs. When it returns quota, it
    /// keeps this many.
    pub(super) quantum: AtomicI64,
    /// The number of consecutive searches that found other threads busy. Changed under the lock of all
    /// caches.
    busy: AtomicI64,
    pub(super) reserve: Reserve,
}

/// The unassigned quota in bytes, in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Reserve(pub(super) AtomicI64);

impl Default for Peak {
    fn default() -> Self {
        // One thread alone has no use for a reserve.
        let quantum = AtomicI64::new(i64::MAX / 4);
        Self { bytes: AtomicI64::default(), quantum, busy: AtomicI64::default(), reserve: Reserve::default() }
    }
}

impl Peak {
    /// Takes the quota that the thread is missing, and some spare quota, if the reserve has at least `least`
    /// bytes; returns whether the thread has enough afterwards.
    pub(super) fn take_from_reserve(&self, counts: &ThreadCounts, least: i64) -> bool {
        let missing = -counts.quota_left();
        let wanted = missing.saturating_add(self.quantum.load(Ordering::Relaxed));
        let mut reserve = self.reserve.0.load(Ordering::Relaxed);
        while reserve >= least {
            let taken = wanted.min(reserve);
            let rest = reserve - taken;
            match self.reserve.0.compare_exchange(reserve, rest, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    counts.add_quota(taken);
                    return taken >= missing;
                }
                Err(other) => reserve = other,
            }
        }
        false
    }

    /// Returns whether a thread has so much unused quota that it should add to the reserve.
    #[inline]
    pub(super) fn has_surplus(&self, counts: &ThreadCounts) -> bool {
        counts.quota_left() / 2 > self.quantum.load(Ordering::Relaxed)
    }

    /// Adds the calling thread's unused quota to the reserve.
    #[cold]
    pub(crate) fn add_to_reserve(&self, counts: &ThreadCounts) {
        let excess = counts.quota_left().saturating_sub(self.quantum.load(Ordering::Relaxed));
        if excess <= 0 {
            return;
        }
        counts.add_quota(-excess);
        fence(Ordering::SeqCst);
        // Another thread may have borrowed it at the same time.
        let too_much = (-counts.quota_left()).clamp(0, excess);
        counts.add_quota(too_much);
        self.reserve.0.fetch_add(excess - too_much, Ordering::AcqRel);
    }

    /// Adjusts the quantum to the number of threads. Called under the lock of all caches.
    pub(super) fn note_threads(&self, threads: usize) {
        if threads > 1 {
            let quantum = self.bytes.load(Ordering::Relaxed) / (RESERVE_SHARE * threads as i64);
            self.quantum.store(quantum, Ordering::Relaxed);
        }
    }

    /// Notes whether other threads were busy during a search; returns whether they were busy [`READINGS`]
    /// times in a row. Called under the lock of all caches.
    pub(super) fn is_busy_for_long(&self, is_busy: bool) -> bool {
        let scans = if is_busy { self.busy.load(Ordering::Relaxed) + 1 } else { 0 };
        let for_long = scans >= READINGS as i64;
        self.busy.store(if for_long { 0 } else { scans }, Ordering::Relaxed);
        for_long
    }

    /// Raises the peak by the quota that a thread is missing, and by `more` bytes for the reserve. Called
    /// under the lock of all caches.
    pub(super) fn rise(&self, counts: &ThreadCounts, more: i64) {
        let missing = (-counts.quota_left()).max(0);
        self.bytes.fetch_add(missing + more, Ordering::Relaxed);
        counts.add_quota(missing);
        self.reserve.0.fetch_add(more, Ordering::AcqRel);
    }
}

impl ThreadCounts {
    /// Returns whether the calling thread exceeds its quota. Called after an exchange.
    #[inline]
    pub(crate) fn exceeds_quota(&self) -> bool {
        // On other architectures an exchange is no full fence.
        if cfg!(any(not(target_arch = "x86_64"), millpond_loom)) {
            fence(Ordering::SeqCst);
        }
        self.quota_left() < 0
    }

    /// Returns the thread's unused quota in bytes; negative while the thread exceeds its quota.
    pub(super) fn quota_left(&self) -> i64 {
        let least = self.floor.load(Ordering::Acquire).wrapping_add(self.lent.load(Ordering::Relaxed));
        self.cached_bytes.load(Ordering::Relaxed).wrapping_sub(least)
    }

    /// Adds to the calling thread's quota.
    pub(super) fn add_quota(&self, bytes: i64) {
        self.floor.store(self.floor.load(Ordering::Relaxed).wrapping_sub(bytes), Ordering::Relaxed);
    }

    /// Borrows unused quota of another thread: `most` bytes, or half of it if that is more. `self` belongs to
    /// the calling thread, which holds the lock of all caches.
    pub(super) fn borrow_from(&self, other: &Self, most: i64) {
        let left = other.quota_left();
        if left <= 0 {
            return;
        }
        // At least half of it, so that borrowing is rare.
        let wanted = most.max(left - left / 2).min(left);
        other.lent.fetch_add(wanted, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let too_much = (-other.quota_left()).clamp(0, wanted);
        other.lent.fetch_add(-too_much, Ordering::SeqCst);
        self.add_quota(wanted - too_much);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_exceeds_its_quota_by_what_it_has_and_was_not_given() {
        let counts = ThreadCounts::default();
        assert!(!counts.exceeds_quota());
        counts.begin_allocation(256);
        assert!(counts.exceeds_quota());
        counts.add_quota(256);
        assert!(!counts.exceeds_quota());
    }

    /// Only several searches in a row that find other threads busy raise the peak for the reserve. A single
    /// one would raise it too high.
    #[test]
    fn only_busy_searches_in_a_row_count() {
        let peak = Peak::default();
        let times_for_long = |searches| (0..searches).filter(|_| peak.is_busy_for_long(true)).count();
        assert_eq!(times_for_long(READINGS - 1), 0);
        assert!(!peak.is_busy_for_long(false));
        assert_eq!(times_for_long(READINGS - 1), 0);
        assert_eq!(times_for_long(1), 1);
        assert_eq!(times_for_long(2 * READINGS), 2);
    }

    /// The peak is the sum of all quotas and the reserve, even after it rises for the reserve.
    #[test]
    fn the_peak_rises_by_what_is_missing_and_for_the_reserve() {
        let (peak, counts) = (Peak::default(), ThreadCounts::default());
        counts.begin_allocation(256);
        for (more, bytes, reserve) in [(0, 256, 0), (100, 356, 100), (0, 356, 100)] {
            peak.rise(&counts, more);
            assert_eq!(counts.quota_left(), 0);
            assert_eq!(peak.bytes.load(Ordering::Relaxed), bytes);
            assert_eq!(peak.reserve.0.load(Ordering::Relaxed), reserve);
        }
    }

    /// A thread takes the bytes it needs and a quantum more, or the whole reserve.
    #[test]
    fn a_thread_takes_no_more_from_the_reserve_than_it_needs_and_a_quantum() {
        let (peak, counts) = (Peak::default(), ThreadCounts::default());
        peak.quantum.store(10, Ordering::Relaxed);
        peak.reserve.0.store(100, Ordering::Relaxed);
        counts.begin_allocation(30);
        assert!(!peak.take_from_reserve(&counts, 101), "the reserve has less than the least");
        assert!(peak.take_from_reserve(&counts, 100));
        assert_eq!((counts.quota_left(), peak.reserve.0.load(Ordering::Relaxed)), (10, 60));
        counts.begin_allocation(100);
        assert!(!peak.take_from_reserve(&counts, 1), "90 bytes are missing");
        assert_eq!((counts.quota_left(), peak.reserve.0.load(Ordering::Relaxed)), (-30, 0));
        counts.count_deallocation(130, 130);
        assert!(peak.has_surplus(&counts));
        peak.add_to_reserve(&counts);
        assert_eq!((counts.quota_left(), peak.reserve.0.load(Ordering::Relaxed)), (10, 90));
        assert!(!peak.has_surplus(&counts));
    }

    /// A thread has a surplus if half of its unused quota is more than a quantum.
    #[test]
    fn a_surplus_is_more_than_two_quanta() {
        let (peak, counts) = (Peak::default(), ThreadCounts::default());
        peak.quantum.store(10, Ordering::Relaxed);
        for (more, has_surplus) in [(0, false), (20, false), (1, false), (1, true)] {
            counts.add_quota(more);
            assert_eq!(peak.has_surplus(&counts), has_surplus, "{} are left", counts.quota_left());
        }
    }

    /// Threads share a part of the peak as quota; a single thread takes the whole reserve.
    #[test]
    fn the_quantum_is_a_part_of_the_peak_for_each_of_several_threads() {
        let peak = Peak::default();
        let quantum = || peak.quantum.load(Ordering::Relaxed);
        peak.bytes.store(RESERVE_SHARE * 6000, Ordering::Relaxed);
        let alone = quantum();
        peak.note_threads(1);
        assert_eq!(quantum(), alone);
        for (threads, bytes) in [(2, 3000), (3, 2000), (4, 1500)] {
            peak.note_threads(threads);
            assert_eq!(quantum(), bytes);
        }
    }

    /// A thread borrows the bytes it needs or half of the unused quota, but never more than that quota.
    #[test]
    fn a_thread_borrows_at_least_half_of_what_is_left() {
        for (left, most, borrowed) in
            [(100, 10, 50), (101, 10, 51), (100, 70, 70), (100, 200, 100), (0, 10, 0)]
        {
            let (borrower, other) = (ThreadCounts::default(), ThreadCounts::default());
            other.add_quota(left);
            borrower.borrow_from(&other, most);
            assert_eq!((borrower.quota_left(), other.quota_left()), (borrowed, left - borrowed));
        }
    }
}
