//! The most that was in use at a time, although each thread counts by itself: exact while the others do nothing
//! for the moment of a look, and where they stay busy, up to 1/256 too much.
//!
//! Each thread may have a certain amount in use before it asks, and these amounts add up to the peak. A
//! thread that would have more takes from what others may have and have not; only where nothing is left
//! there the peak is passed, and rises. It is the escrow method (O'Neil, "The escrow transactional method",
//! ACM TODS 11, 1986), for a bound that gives way. A thread whose blocks others give back asks now and then;
//! one that gives back its own never does.
//!
//! What a thread has in use is what it took past its fronts less what it keeps in them. So that a hit costs
//! no more than a comparison, what it may have is written down as the least that it has to keep: its
//! **floor**, and what it **lent** to others. Only the thread itself changes what it keeps and its floor,
//! and only others, one at a time, what it lent. Of a thread that takes a block and of one that borrows from
//! it at the same moment, at least one sees what the other did: each writes, passes a full fence (a hit's is
//! its exchange, that of a block from an arena the exchange that takes the lock), and then reads. Where it
//! was the borrower, it gives back what was too much; the other asks, which waits for that.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rustc_hash::FxHasher;

use super::front::ThreadCounts;
use super::thread::{Cache, Caches};
use crate::sync::{Ordering, fence};

/// How often a thread looks through all others while those are busy, before it raises the peak.
const MOST_LOOKS: usize = 4;

/// Then it raises the peak by this share of itself besides, so that it need not look again soon: a look takes
/// the counters of all other threads from their processors' caches. On an H200's host with 16 threads on
/// streams of their own, 16 looks and no such share left 23 million steps a second where there had been 36 to 41.
const SLACK: i64 = 256;

impl ThreadCounts {
    /// Whether more is in use on this thread than it may have without asking. For the thread itself, after an
    /// exchange.
    #[inline]
    pub(super) fn is_beyond(&self) -> bool {
        // Elsewhere an exchange orders too little.
        if cfg!(any(not(target_arch = "x86_64"), millpond_loom)) {
            fence(Ordering::SeqCst);
        }
        self.left() < 0
    }

    /// What the thread may have in use beyond what it has; may be below zero until it has asked.
    fn left(&self) -> i64 {
        let least = self.floor.load(Ordering::Acquire).wrapping_add(self.lent.load(Ordering::Relaxed));
        self.kept_bytes.load(Ordering::Relaxed).wrapping_sub(least)
    }

    /// The thread may have so much more. For the thread itself.
    fn gain(&self, bytes: i64) {
        self.floor.store(self.floor.load(Ordering::Relaxed).wrapping_sub(bytes), Ordering::Relaxed);
    }

    /// Takes up to `most` of what another thread may have and has not. For the thread itself, which holds the
    /// lock of all.
    fn take_from(&self, other: &Self, most: i64) -> i64 {
        let left = other.left();
        if left <= 0 {
            return 0;
        }
        // Half of it at least, so that this is seldom done.
        let wanted = most.max(left - left / 2).min(left);
        other.lent.fetch_add(wanted, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let too_much = (-other.left()).clamp(0, wanted);
        other.lent.fetch_add(-too_much, Ordering::SeqCst);
        self.gain(wanted - too_much);
        wanted - too_much
    }
}

impl Caches {
    /// Lets a thread have in use what it has, which is more than it may.
    #[cold]
    pub(super) fn settle(&self, mine: &ThreadCounts) {
        let all = self.lock();
        let mut last = None;
        for look in 0.. {
            let missing = -mine.left();
            if missing <= 0 {
                return;
            }
            let taken = self.take_from_others(&all, mine, missing);
            if taken >= missing {
                return;
            }
            // Nothing was left anywhere at one moment, at which the sum was passed.
            let now = Some(marks(&all, mine));
            let is_exact = taken == 0 && (now == last || all.len() == 1);
            if is_exact || look >= MOST_LOOKS {
                let slack = if is_exact { 0 } else { self.peak_bytes() / SLACK };
                let more = (-mine.left()).max(0) + slack;
                self.peak_bytes.fetch_add(more, Ordering::Relaxed);
                mine.gain(more);
                return;
            }
            last = now;
        }
    }

    fn take_from_others(&self, all: &[Arc<Cache>], mine: &ThreadCounts, missing: i64) -> i64 {
        let mut taken = 0;
        for other in others(all, mine) {
            taken += mine.take_from(other, missing - taken);
            if taken >= missing {
                break;
            }
        }
        taken
    }

    /// The most bytes that were in use at a time.
    pub(super) fn peak_bytes(&self) -> i64 {
        self.peak_bytes.load(Ordering::Relaxed)
    }

    /// Panics where what threads may have does not add up. No thread is in a call of the pool meanwhile.
    pub(super) fn validate_peak(&self) {
        let (mut may_have, mut has) = (0, 0);
        for cache in self.lock().iter() {
            let live = cache.counts.totals().live_bytes;
            assert!(cache.counts.left() >= 0, "I32: a thread has more in use than it may");
            may_have += live + cache.counts.left();
            has += live;
        }
        assert_eq!(may_have, self.peak_bytes(), "I32: what threads may have in use is the peak");
        assert!(has <= may_have, "I32: more is in use than ever was");
    }
}

/// What the other threads keep and have to keep, and how often that changed, in one number: it is another one
/// if anything happened.
fn marks(all: &[Arc<Cache>], mine: &ThreadCounts) -> u64 {
    let mut hasher = FxHasher::default();
    others(all, mine).for_each(|other| other.marks().hash(&mut hasher));
    hasher.finish()
}

fn others<'a>(all: &'a [Arc<Cache>], mine: &'a ThreadCounts) -> impl Iterator<Item = &'a ThreadCounts> {
    all.iter().map(|cache| &*cache.counts).filter(|other| !std::ptr::eq(*other, mine))
}

#[cfg(all(test, millpond_loom))]
mod models;
