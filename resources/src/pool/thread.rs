//! Which fronts a thread has.
//!
//! A thread has one [`Cache`] in each pool that it calls, with a front for each stream that it uses often. A
//! table of the fronts used last, without a lock, a destructor or an allocation, finds one in a few loads.
//! When a thread ends, its caches are orphans: what is in them is free as before, and the next new thread of
//! the pool takes them over.

use std::cell::{Cell, RefCell};
use std::ptr;
use std::sync::Arc;

use millpond_core::StreamId;
use rustc_hash::FxHashMap;

use super::arena::ARENAS;
use super::front::{Front, ThreadCounts};
use super::peak::Peak;
use crate::sync::{Mutex, Ordering, bounded, per_thread};

/// A pool's number, given once in the life of the process.
pub(super) type PoolId = u64;

/// A thread that has so many fronts in a pool starts anew.
const FRONTS: usize = 512;
/// Fronts that are found without a lock. A front that is not among them costs a call some 80 ns more, which
/// 512 places made one call in eight of a thread on 256 streams pay.
const RECENT_BITS: u32 = bounded(10, 6) as u32;
const RECENT: usize = 1 << RECENT_BITS;

#[derive(Clone, Copy)]
struct Recent {
    pool: PoolId,
    stream: u64,
    front: *const Front,
}

const NOTHING: Recent = Recent { pool: 0, stream: 0, front: ptr::null() };

per_thread! {
    static RECENTS: [Cell<Recent>; RECENT] = const { [const { Cell::new(NOTHING) }; RECENT] };
}
per_thread! {
    static MINE: RefCell<Mine> = RefCell::default();
}

/// The caches of a thread, by pool.
#[derive(Default)]
struct Mine {
    caches: FxHashMap<PoolId, Arc<Cache>>,
}

impl Drop for Mine {
    fn drop(&mut self) {
        forget_recent();
        for cache in self.caches.values() {
            cache.counts.orphaned.store(true, Ordering::Release);
        }
    }
}

/// What a thread keeps in a pool.
#[derive(Debug, Default)]
pub(super) struct Cache {
    pub(super) counts: Arc<ThreadCounts>,
    fronts: Mutex<FxHashMap<StreamId, Arc<Front>>>,
}

fn recent(pool: PoolId, stream: StreamId) -> usize {
    let mixed = (pool ^ stream.get().rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> (u64::BITS - RECENT_BITS)) as usize
}

/// The calling thread's front for a stream, if it was used lately. It is the thread's own: good until the
/// thread adds another.
#[inline]
pub(super) fn front(pool: PoolId, stream: StreamId) -> Option<*const Front> {
    RECENTS.with(|recents| {
        let place = recent(pool, stream);
        let here = |place: usize| {
            let recent = recents[place].get();
            (recent.stream == stream.get() && recent.pool == pool).then_some(recent.front)
        };
        here(place).or_else(|| here(place ^ 1))
    })
}

fn forget_recent() {
    // In a thread that is ending, too.
    _ = RECENTS.try_with(|recents| recents.iter().for_each(|recent| recent.set(NOTHING)));
}

fn remember(pool: PoolId, front: &Arc<Front>) -> *const Front {
    let (stream, place) = (front.id.get(), recent(pool, front.id));
    let front = Arc::as_ptr(front);
    RECENTS.with(|recents| {
        recents[place ^ 1].set(recents[place].get());
        recents[place].set(Recent { pool, stream, front });
    });
    front
}

/// A cache for the length of a call.
pub(super) struct Lease {
    cache: Arc<Cache>,
    ends: bool,
}

impl Lease {
    /// Whether the thread keeps the cache after the call.
    pub(super) fn is_kept(&self) -> bool {
        !self.ends
    }
}

impl std::ops::Deref for Lease {
    type Target = Cache;

    fn deref(&self) -> &Cache {
        &self.cache
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.ends {
            self.cache.counts.orphaned.store(true, Ordering::Release);
        }
    }
}

/// All caches of a pool.
#[derive(Debug, Default)]
pub(super) struct Caches {
    all: Mutex<Vec<Arc<Cache>>>,
    pub(super) peak: Peak,
}

impl Caches {
    /// The calling thread's cache.
    pub(super) fn mine(&self, pool: PoolId) -> Lease {
        match MINE.try_with(|mine| mine.borrow().caches.get(&pool).cloned()) {
            Ok(Some(cache)) => Lease { cache, ends: false },
            Ok(None) => self.join(pool),
            // The thread is ending: what it does now is counted in a cache that is nobody's before and after.
            Err(_) => Lease { cache: self.orphan(), ends: true },
        }
    }

    /// A cache that no other thread has.
    pub(super) fn orphan(&self) -> Arc<Cache> {
        let mut all = self.all.lock();
        let orphan = all.iter().find(|cache| cache.counts.orphaned.swap(false, Ordering::AcqRel));
        orphan.cloned().unwrap_or_else(|| {
            let cache = Arc::<Cache>::default();
            all.push(Arc::clone(&cache));
            cache
        })
    }

    #[cold]
    fn join(&self, pool: PoolId) -> Lease {
        let cache = self.orphan();
        // Nothing else runs on this thread meanwhile, so it is not ending.
        MINE.with(|mine| {
            let caches = &mut mine.borrow_mut().caches;
            // Pools that are gone left theirs.
            forget_recent();
            caches.retain(|_, cache| !cache.counts.is_closed.load(Ordering::Relaxed));
            caches.insert(pool, Arc::clone(&cache));
        });
        Lease { cache, ends: false }
    }

    /// All caches, under a lock: short work only.
    pub(super) fn lock(&self) -> impl std::ops::Deref<Target = Vec<Arc<Cache>>> + '_ {
        self.all.lock()
    }

    /// Each cache, under a lock: short work only.
    pub(super) fn each(&self, mut look: impl FnMut(&Cache)) {
        self.all.lock().iter().for_each(|cache| look(cache));
    }

    /// Bytes that are handed out, as the threads count them, at one moment: `None` where they are so busy
    /// that there is no telling.
    pub(super) fn live_bytes(&self) -> Option<u64> {
        const TRIES: usize = 4;
        let look = || {
            let mut seen = Vec::new();
            self.each(|cache| {
                let totals = cache.counts.totals();
                seen.push((totals.live_bytes, totals.allocations + totals.deallocations));
            });
            seen
        };
        let mut last = look();
        for _ in 0..TRIES {
            let now = look();
            // Nobody did anything between the end of the one look and the start of the other.
            if now == last {
                return Some(now.iter().map(|(live, _)| live).sum::<i64>().max(0) as u64);
            }
            last = now;
        }
        None
    }

    /// How many threads use each arena.
    pub(super) fn users_of_arenas(&self) -> [u32; ARENAS] {
        let mut users = [0; ARENAS];
        self.each(|cache| {
            if !cache.counts.orphaned.load(Ordering::Relaxed) {
                users[usize::from(cache.counts.shard.load(Ordering::Relaxed)) % ARENAS] += 1;
            }
        });
        users
    }

    /// The pool ends: threads may forget their caches.
    pub(super) fn close(&self) {
        self.each(|cache| cache.counts.is_closed.store(true, Ordering::Relaxed));
    }
}

impl Cache {
    /// The front for a stream that was used lately or before. For the cache's thread.
    pub(super) fn front(&self, pool: PoolId, stream: StreamId) -> Option<*const Front> {
        front(pool, stream).or_else(|| self.fronts.lock().get(&stream).map(|front| remember(pool, front)))
    }

    /// Adds a front; returns it, and those that have to be drained and dropped instead. For the cache's
    /// thread.
    pub(super) fn add(&self, pool: PoolId, front: Front) -> (*const Front, Vec<Arc<Front>>) {
        let mut fronts = self.fronts.lock();
        let too_many = if fronts.len() >= FRONTS {
            forget_recent();
            fronts.drain().map(|(_, front)| front).collect()
        } else {
            Vec::new()
        };
        let front = fronts.entry(front.id).or_insert(Arc::new(front));
        (remember(pool, front), too_many)
    }

    /// The fronts of the thread, by owner: in the order in which the pool came to know the streams, whatever
    /// identities those have.
    pub(super) fn fronts(&self) -> Vec<Arc<Front>> {
        let mut fronts: Vec<Arc<Front>> = self.fronts.lock().values().cloned().collect();
        fronts.sort_unstable_by_key(|front| front.stream.owner);
        fronts
    }

    pub(super) fn front_count(&self) -> usize {
        self.fronts.lock().len()
    }
}

#[cfg(all(test, millpond_loom))]
mod models;
