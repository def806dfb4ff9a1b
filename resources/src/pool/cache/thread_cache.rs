//! Which stream caches a thread has.
//!
//! A thread has one [`ThreadCache`] in each pool that it calls, with a stream cache for each stream that it
//! uses often. A table of the stream caches used last, without a lock, a destructor or an allocation, finds
//! one in a few loads. When a thread ends, its caches are orphans: what is in them is free as before, and the
//! next new thread of the pool takes them over.

use std::cell::{Cell, RefCell};
use std::ptr;
use std::sync::Arc;

use millpond_core::StreamId;
use rustc_hash::FxHashMap;

use crate::pool::arena::ARENAS;
use crate::pool::cache::peak::Peak;
use crate::pool::cache::stream_cache::{StreamCache, ThreadCounts};
use crate::sync::{Mutex, Ordering, bounded, per_thread};

/// A pool's number, given once in the life of the process.
pub(crate) type PoolId = u64;

/// A thread that has so many stream caches in a pool starts anew.
const MAX_STREAM_CACHES: usize = 512;
/// Stream caches that are found without a lock. A stream cache that is not among them costs a call some 80 ns
/// more, which 512 places made one call in eight of a thread on 256 streams pay.
const RECENT_BITS: u32 = bounded(10, 6) as u32;
const RECENT: usize = 1 << RECENT_BITS;

#[derive(Clone, Copy)]
struct Recent {
    pool: PoolId,
    stream: u64,
    stream_cache: *const StreamCache,
}

const NOTHING: Recent = Recent { pool: 0, stream: 0, stream_cache: ptr::null() };

per_thread! {
    static RECENTS: [Cell<Recent>; RECENT] = const { [const { Cell::new(NOTHING) }; RECENT] };
}
per_thread! {
    static MINE: RefCell<Mine> = RefCell::default();
}

/// The caches of a thread, by pool.
#[derive(Default)]
struct Mine {
    thread_caches: FxHashMap<PoolId, Arc<ThreadCache>>,
}

impl Drop for Mine {
    fn drop(&mut self) {
        forget_recent();
        for thread_cache in self.thread_caches.values() {
            thread_cache.counts.orphaned.store(true, Ordering::Release);
        }
    }
}

/// What a thread keeps in a pool.
#[derive(Debug, Default)]
pub(crate) struct ThreadCache {
    pub(crate) counts: Arc<ThreadCounts>,
    stream_caches: Mutex<FxHashMap<StreamId, Arc<StreamCache>>>,
}

fn recent(pool: PoolId, stream: StreamId) -> usize {
    let mixed = (pool ^ stream.get().rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> (u64::BITS - RECENT_BITS)) as usize
}

/// The calling thread's stream cache for a stream, if it was used lately. It is the thread's own: good until
/// the thread adds another.
#[inline]
pub(crate) fn stream_cache(pool: PoolId, stream: StreamId) -> Option<*const StreamCache> {
    RECENTS.with(|recents| {
        let place = recent(pool, stream);
        let here = |place: usize| {
            let recent = recents[place].get();
            (recent.stream == stream.get() && recent.pool == pool).then_some(recent.stream_cache)
        };
        here(place).or_else(|| here(place ^ 1))
    })
}

fn forget_recent() {
    // In a thread that is ending, too.
    _ = RECENTS.try_with(|recents| recents.iter().for_each(|recent| recent.set(NOTHING)));
}

fn remember(pool: PoolId, stream_cache: &Arc<StreamCache>) -> *const StreamCache {
    let (stream, place) = (stream_cache.id.get(), recent(pool, stream_cache.id));
    let stream_cache = Arc::as_ptr(stream_cache);
    RECENTS.with(|recents| {
        recents[place ^ 1].set(recents[place].get());
        recents[place].set(Recent { pool, stream, stream_cache });
    });
    stream_cache
}

/// A cache for the length of a call.
pub(crate) struct Lease {
    thread_cache: Arc<ThreadCache>,
    ends: bool,
}

impl Lease {
    /// Whether the thread keeps the cache after the call.
    pub(crate) fn is_kept(&self) -> bool {
        !self.ends
    }
}

impl std::ops::Deref for Lease {
    type Target = ThreadCache;

    fn deref(&self) -> &ThreadCache {
        &self.thread_cache
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.ends {
            self.thread_cache.counts.orphaned.store(true, Ordering::Release);
        }
    }
}

/// All caches of a pool.
#[derive(Debug, Default)]
pub(crate) struct ThreadCaches {
    all: Mutex<Vec<Arc<ThreadCache>>>,
    pub(crate) peak: Peak,
}

impl ThreadCaches {
    /// The calling thread's cache.
    pub(crate) fn my_cache(&self, pool: PoolId) -> Lease {
        match MINE.try_with(|my_cache| my_cache.borrow().thread_caches.get(&pool).cloned()) {
            Ok(Some(thread_cache)) => Lease { thread_cache, ends: false },
            Ok(None) => self.join(pool),
            // The thread is ending: what it does now is counted in a cache that is nobody's before and after.
            Err(_) => Lease { thread_cache: self.orphan(), ends: true },
        }
    }

    /// A cache that no other thread has.
    pub(crate) fn orphan(&self) -> Arc<ThreadCache> {
        let mut all = self.all.lock();
        let orphan =
            all.iter().find(|thread_cache| thread_cache.counts.orphaned.swap(false, Ordering::AcqRel));
        orphan.cloned().unwrap_or_else(|| {
            let thread_cache = Arc::<ThreadCache>::default();
            all.push(Arc::clone(&thread_cache));
            thread_cache
        })
    }

    #[cold]
    fn join(&self, pool: PoolId) -> Lease {
        let thread_cache = self.orphan();
        // Nothing else runs on this thread meanwhile, so it is not ending.
        MINE.with(|my_cache| {
            let thread_caches = &mut my_cache.borrow_mut().thread_caches;
            // Pools that are gone left theirs.
            forget_recent();
            thread_caches.retain(|_, thread_cache| !thread_cache.counts.is_closed.load(Ordering::Relaxed));
            thread_caches.insert(pool, Arc::clone(&thread_cache));
        });
        Lease { thread_cache, ends: false }
    }

    /// All caches, under a lock: short work only.
    pub(crate) fn lock(&self) -> impl std::ops::Deref<Target = Vec<Arc<ThreadCache>>> + '_ {
        self.all.lock()
    }

    /// Each cache, under a lock: short work only.
    pub(crate) fn each(&self, mut look: impl FnMut(&ThreadCache)) {
        self.all.lock().iter().for_each(|thread_cache| look(thread_cache));
    }

    /// Bytes that are handed out, as the threads count them, at one moment: `None` where they are so busy
    /// that there is no telling.
    pub(crate) fn live_bytes(&self) -> Option<u64> {
        const TRIES: usize = 4;
        let look = || {
            let mut seen = Vec::new();
            self.each(|thread_cache| {
                let totals = thread_cache.counts.totals();
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
    pub(crate) fn users_of_arenas(&self) -> [u32; ARENAS] {
        let mut users = [0; ARENAS];
        self.each(|thread_cache| {
            if !thread_cache.counts.orphaned.load(Ordering::Relaxed) {
                users[usize::from(thread_cache.counts.shard.load(Ordering::Relaxed)) % ARENAS] += 1;
            }
        });
        users
    }

    /// The pool ends: threads may forget their caches.
    pub(crate) fn close(&self) {
        self.each(|thread_cache| thread_cache.counts.is_closed.store(true, Ordering::Relaxed));
    }
}

impl ThreadCache {
    /// The stream cache for a stream that was used lately or before. For the cache's thread.
    pub(crate) fn stream_cache(&self, pool: PoolId, stream: StreamId) -> Option<*const StreamCache> {
        stream_cache(pool, stream).or_else(|| {
            self.stream_caches.lock().get(&stream).map(|stream_cache| remember(pool, stream_cache))
        })
    }

    /// Adds a stream cache; returns it, and those that have to be flushed and dropped instead. For the
    /// cache's thread.
    pub(crate) fn add(
        &self,
        pool: PoolId,
        stream_cache: StreamCache,
    ) -> (*const StreamCache, Vec<Arc<StreamCache>>) {
        let mut stream_caches = self.stream_caches.lock();
        let too_many = if stream_caches.len() >= MAX_STREAM_CACHES {
            forget_recent();
            stream_caches.drain().map(|(_, stream_cache)| stream_cache).collect()
        } else {
            Vec::new()
        };
        let stream_cache = stream_caches.entry(stream_cache.id).or_insert(Arc::new(stream_cache));
        (remember(pool, stream_cache), too_many)
    }

    /// The stream caches of the thread, by owner: in the order in which the pool came to know the streams,
    /// whatever identities those have.
    pub(crate) fn stream_caches(&self) -> Vec<Arc<StreamCache>> {
        let mut stream_caches: Vec<Arc<StreamCache>> = self.stream_caches.lock().values().cloned().collect();
        stream_caches.sort_unstable_by_key(|stream_cache| stream_cache.stream.owner);
        stream_caches
    }

    pub(crate) fn stream_cache_count(&self) -> usize {
        self.stream_caches.lock().len()
    }
}

#[cfg(all(test, millpond_loom))]
mod models;
