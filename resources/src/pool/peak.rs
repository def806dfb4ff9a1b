//! The most that was in use at a time, exactly, although each thread counts by itself. Only where other
//! threads stay busy for 16 looks in a row, it may be too much, by what they had left to themselves.
//!
//! Each thread may have a certain amount in use before it asks, and these amounts add up to the peak. A
//! thread that would have more takes from what others may have and have not; only where nothing is left
//! there the peak is passed, and rises. It is the escrow method (O'Neil, "The escrow transactional method",
//! ACM TODS 11, 1986), for a bound that gives way. A thread whose blocks others give back asks now and then;
//! one that gives back its own never does.
//!
//! What a thread has in use is what it took past its fronts less what it keeps in them. So that a hit costs
//! no more than a comparison, what it may have is written down as the least that it has to keep: its
//! **floor**. Others lower and raise the floor; only the thread itself changes what it keeps. Of a thread
//! that takes a block out of a front and of one that raises its floor at the same moment, at least one sees
//! what the other did: each writes, passes a full fence (a hit's is its exchange), and then reads. Where it
//! was the one who raised the floor, it takes that back as far as it was too much; the other asks, which
//! waits for that.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rustc_hash::FxHasher;

use super::front::ThreadCounts;
use super::thread::{Cache, Caches};
use crate::sync::{Ordering, fence};

/// So often a thread looks through all others while those are busy, before it takes the sum as it is.
const MOST_LOOKS: usize = 16;

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
        self.kept_bytes.load(Ordering::Relaxed) - self.floor.load(Ordering::Relaxed)
    }

    /// Takes up to `most` of what another thread may have and has not.
    fn take_from(&self, other: &Self, most: i64) -> i64 {
        let left = other.left();
        if left <= 0 {
            return 0;
        }
        // Half of it at least, so that this is seldom done.
        let wanted = most.max(left - left / 2).min(left);
        other.floor.fetch_add(wanted, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let too_much = (-other.left()).clamp(0, wanted);
        other.floor.fetch_add(-too_much, Ordering::SeqCst);
        self.floor.fetch_add(too_much - wanted, Ordering::SeqCst);
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
            if taken == 0 && (now == last || look >= MOST_LOOKS || all.len() == 1) {
                self.peak_bytes.fetch_add(missing, Ordering::Relaxed);
                mine.floor.fetch_add(-missing, Ordering::SeqCst);
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
