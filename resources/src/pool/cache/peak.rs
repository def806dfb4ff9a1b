//! The most that was in use at a time, although each thread counts by itself: exact where one thread at a
//! time calls the pool, whichever, and up to 2 % too much where several do.
//!
//! Each thread may have a certain amount in use before it asks, and these amounts and a **reserve** that is
//! nobody's add up to the peak. A thread that would have more takes from the reserve, and where that has too
//! little, from what others may have and have not; only where nothing is left there the peak is passed, and
//! rises. It is the escrow method (O'Neil, "The escrow transactional method", ACM TODS 11, 1986), for a bound
//! that gives way. A thread that has much left, as others give back what it took, adds it to the reserve.
//!
//! What a thread has in use is what it took past its stream caches less what it keeps in them. So that a hit
//! costs no more than a comparison, what it may have is written down as the least that it has to keep: its
//! **floor**, and what it **lent** to others. Only the thread itself changes what it keeps and its floor, and
//! only others, one at a time, what it lent. Of a thread that takes a block and of one that borrows from it
//! at the same moment, at least one sees what the other did: each writes, passes a full fence (a hit's is its
//! exchange, that of a block from an arena the exchange that takes the lock), and then reads. Where it was
//! the borrower, it gives back what was too much; the other asks, which waits for that.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rustc_hash::FxHasher;

use crate::pool::cache::stream_cache::ThreadCounts;
use crate::pool::cache::thread_cache::{ThreadCache, ThreadCaches};
use crate::sync::{AtomicI64, Ordering, fence};

/// How often a thread looks through all others while those are busy, before it raises the peak.
const MOST_LOOKS: usize = 4;

/// A look takes the counters of all other threads out of their processors' caches, some 12 µs of 16 threads'
/// time. So where others were busy in this many looks, the peak rises by a share of itself, to the reserve.
/// With 16 threads on streams of their own on an H200's host, without reserve and rise: 25 million steps a
/// second in place of 60.
const BUSY_LOOKS: i64 = 16;
const RISE: i64 = 256;

/// All threads together keep about this share of the peak for what they take next.
const KEPT_SHARE: i64 = 128;

/// What threads may have in use together.
#[derive(Debug)]
pub(crate) struct Peak {
    /// The most bytes that were in use at a time. Changed under the lock of all caches.
    bytes: AtomicI64,
    /// The bytes that a thread takes from the reserve besides what it needs, and keeps when it adds to it.
    quantum: AtomicI64,
    /// Looks that found others busy, since the peak rose or nobody was. Changed under that lock, too.
    busy: AtomicI64,
    reserve: Reserve,
}

/// The part that is nobody's, in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Reserve(AtomicI64);

impl Default for Peak {
    fn default() -> Self {
        // One thread alone has no use for a reserve.
        let quantum = AtomicI64::new(i64::MAX / 4);
        Self { bytes: AtomicI64::default(), quantum, busy: AtomicI64::default(), reserve: Reserve::default() }
    }
}

impl Peak {
    /// Takes what the thread is short of, and some more, if there are at least so many bytes; whether it is
    /// short of nothing then.
    fn take_from_reserve(&self, my_cache: &ThreadCounts, least: i64) -> bool {
        let missing = -my_cache.left();
        let wanted = missing.saturating_add(self.quantum.load(Ordering::Relaxed));
        let mut there = self.reserve.0.load(Ordering::Relaxed);
        while there >= least {
            let taken = wanted.min(there);
            let now = there - taken;
            match self.reserve.0.compare_exchange(there, now, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    my_cache.gain(taken);
                    return taken >= missing;
                }
                Err(other) => there = other,
            }
        }
        false
    }

    /// Whether a thread has so much left that it should add to the reserve.
    #[inline]
    fn is_much(&self, counts: &ThreadCounts) -> bool {
        counts.left() / 2 > self.quantum.load(Ordering::Relaxed)
    }

    /// Adds what a thread has left to the reserve. For the thread itself.
    #[cold]
    pub(crate) fn add_to_reserve(&self, my_cache: &ThreadCounts) {
        let excess = my_cache.left().saturating_sub(self.quantum.load(Ordering::Relaxed));
        if excess <= 0 {
            return;
        }
        my_cache.gain(-excess);
        fence(Ordering::SeqCst);
        // Another thread may have borrowed it at the same moment.
        let too_much = (-my_cache.left()).clamp(0, excess);
        my_cache.gain(too_much);
        self.reserve.0.fetch_add(excess - too_much, Ordering::AcqRel);
    }

    /// Notes that there are so many threads. Under the lock of all caches.
    fn note_threads(&self, threads: usize) {
        if threads > 1 {
            let quantum = self.bytes.load(Ordering::Relaxed) / (KEPT_SHARE * threads as i64);
            self.quantum.store(quantum, Ordering::Relaxed);
        }
    }

    /// Notes whether others were busy during a look; whether they were for long. Under the lock of all
    /// caches.
    fn is_busy_for_long(&self, is_busy: bool) -> bool {
        let looks = if is_busy { self.busy.load(Ordering::Relaxed) + 1 } else { 0 };
        let for_long = looks >= BUSY_LOOKS;
        self.busy.store(if for_long { 0 } else { looks }, Ordering::Relaxed);
        for_long
    }

    /// Raises the peak by what a thread is short of, and by some bytes for the reserve. Under the lock of all
    /// caches.
    fn rise(&self, my_cache: &ThreadCounts, more: i64) {
        let missing = (-my_cache.left()).max(0);
        self.bytes.fetch_add(missing + more, Ordering::Relaxed);
        my_cache.gain(missing);
        if more > 0 {
            self.reserve.0.fetch_add(more, Ordering::AcqRel);
        }
    }
}

impl ThreadCounts {
    /// Whether more is in use on this thread than it may have without asking. For the thread itself, after an
    /// exchange.
    #[inline]
    pub(crate) fn is_beyond(&self) -> bool {
        // Elsewhere an exchange orders too little.
        if cfg!(any(not(target_arch = "x86_64"), millpond_loom)) {
            fence(Ordering::SeqCst);
        }
        self.left() < 0
    }

    /// What the thread may have in use beyond what it has; may be below zero until it has asked.
    fn left(&self) -> i64 {
        let least = self.floor.load(Ordering::Acquire).wrapping_add(self.lent.load(Ordering::Relaxed));
        self.cached_bytes.load(Ordering::Relaxed).wrapping_sub(least)
    }

    /// The thread may have so much more. For the thread itself.
    fn gain(&self, bytes: i64) {
        self.floor.store(self.floor.load(Ordering::Relaxed).wrapping_sub(bytes), Ordering::Relaxed);
    }

    /// Takes what another thread may have and has not: up to `most`, or half of it. For the thread itself,
    /// which holds the lock of all.
    fn take_from(&self, other: &Self, most: i64) {
        let left = other.left();
        if left <= 0 {
            return;
        }
        // Half of it at least, so that this is seldom done.
        let wanted = most.max(left - left / 2).min(left);
        other.lent.fetch_add(wanted, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let too_much = (-other.left()).clamp(0, wanted);
        other.lent.fetch_add(-too_much, Ordering::SeqCst);
        self.gain(wanted - too_much);
    }
}

impl ThreadCaches {
    /// Counts a block that was handed out past the stream caches and the arenas.
    pub(crate) fn count(&self, thread: &ThreadCounts, bytes: u64, requested: u64) {
        thread.takes(bytes);
        fence(Ordering::SeqCst);
        thread.took(bytes, requested);
        if thread.is_beyond() {
            self.settle(thread);
        }
    }

    /// Counts a block that was reclaimed past the stream caches.
    pub(crate) fn count_back(&self, thread: &ThreadCounts, bytes: u64, requested: u64) {
        thread.deallocated(bytes, requested);
        if self.peak.is_much(thread) {
            self.peak.add_to_reserve(thread);
        }
    }

    /// Lets a thread have in use what it has, which is more than it may.
    #[cold]
    pub(crate) fn settle(&self, my_cache: &ThreadCounts) {
        let peak = &self.peak;
        if peak.take_from_reserve(my_cache, -my_cache.left()) {
            return;
        }
        let all = self.lock();
        let first = marks(&all, my_cache);
        let mut last = None;
        for look in 0.. {
            if my_cache.left() >= 0
                || peak.take_from_reserve(my_cache, 1)
                || self.take_from_others(&all, my_cache)
            {
                break;
            }
            // Nothing was left anywhere at one moment, at which the sum was passed.
            let now = Some((marks(&all, my_cache), peak.reserve.0.load(Ordering::Relaxed)));
            if all.len() == 1 || now == last || look >= MOST_LOOKS {
                peak.rise(my_cache, 0);
                break;
            }
            last = now;
        }
        if all.len() > 1 && peak.is_busy_for_long(marks(&all, my_cache) != first) {
            peak.rise(my_cache, peak.bytes.load(Ordering::Relaxed) / RISE);
        }
        peak.note_threads(all.len());
    }

    /// Takes what the thread is short of from others; whether they had as much left.
    fn take_from_others(&self, all: &[Arc<ThreadCache>], my_cache: &ThreadCounts) -> bool {
        others(all, my_cache).any(|other| {
            my_cache.take_from(other, -my_cache.left());
            my_cache.left() >= 0
        })
    }

    /// The most bytes that were in use at a time.
    pub(crate) fn peak_bytes(&self) -> i64 {
        self.peak.bytes.load(Ordering::Relaxed)
    }

    /// Panics where what threads may have does not add up. No thread is in a call of the pool meanwhile.
    pub(crate) fn validate_peak(&self) {
        let (mut may_have, mut has) = (self.peak.reserve.0.load(Ordering::Relaxed), 0);
        assert!(may_have >= 0, "I32: more than the reserve was taken from it");
        for thread_cache in self.lock().iter() {
            let live = thread_cache.counts.totals().live_bytes;
            assert!(thread_cache.counts.left() >= 0, "I32: a thread has more in use than it may");
            may_have += live + thread_cache.counts.left();
            has += live;
        }
        assert_eq!(may_have, self.peak_bytes(), "I32: what threads may have in use is the peak");
        assert!(has <= may_have, "I32: more is in use than ever was");
    }
}

/// What the other threads keep and have to keep, and how often that changed, in one number: it is another one
/// if any of them did anything.
fn marks(all: &[Arc<ThreadCache>], my_cache: &ThreadCounts) -> u64 {
    let mut hasher = FxHasher::default();
    others(all, my_cache).for_each(|other| other.marks().hash(&mut hasher));
    hasher.finish()
}

fn others<'a>(
    all: &'a [Arc<ThreadCache>],
    my_cache: &'a ThreadCounts,
) -> impl Iterator<Item = &'a ThreadCounts> {
    all.iter().map(|thread_cache| &*thread_cache.counts).filter(|other| !std::ptr::eq(*other, my_cache))
}

#[cfg(all(test, millpond_loom))]
mod models;
