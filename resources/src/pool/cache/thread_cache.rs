//! Finds the calling thread's stream caches.
//!
//! A thread has one [`ThreadCache`] in each pool that it calls, with a stream cache for each stream that it
//! uses often. A thread finds a stream cache in a thread-local table of recently used ones, with a few loads
//! and no lock. The table has no destructor and makes no allocation. When a thread ends, its thread caches
//! are orphaned: their blocks stay cached, and the pool's next new thread takes them over.

use std::cell::{Cell, RefCell};
use std::ptr;
use std::sync::Arc;

use millpond_core::StreamId;
use rustc_hash::FxHashMap;

use crate::pool::arena::ARENAS;
use crate::pool::cache::peak::Peak;
use crate::pool::cache::stream_cache::StreamCache;
use crate::pool::cache::thread_counts::ThreadCounts;
use crate::sync::{Mutex, Ordering, bounded, per_thread};
use crate::tuning::READINGS;

/// A pool's number, unique in the life of the process.
pub(crate) type PoolId = u64;

/// The binary logarithm of the size of a thread's table of recently used stream caches. A stream cache that
/// is not in the table costs a call about 80 ns more. With 9 bits, a thread on 256 streams paid that in one
/// of eight calls. The table is small under Miri: each pool that ends clears it.
const TABLE_BITS: u32 = bounded(if cfg!(miri) { 6 } else { 10 }, 6) as u32;
const TABLE_SIZE: usize = 1 << TABLE_BITS;

/// The most stream caches of a thread in one pool, so that most calls find them in the table. A thread that
/// needs more flushes all of them.
pub(crate) const MAX_STREAM_CACHES: usize = TABLE_SIZE / 2;

/// An entry of that table.
#[derive(Clone, Copy)]
struct Recent {
    pool: PoolId,
    stream: u64,
    stream_cache: *const StreamCache,
}

const EMPTY: Recent = Recent { pool: 0, stream: 0, stream_cache: ptr::null() };

per_thread! {
    static RECENTS: [Cell<Recent>; TABLE_SIZE] = const { [const { Cell::new(EMPTY) }; TABLE_SIZE] };
}
per_thread! {
    static LOCAL_CACHES: RefCell<LocalCaches> = RefCell::default();
}

/// The calling thread's caches, by pool.
#[derive(Default)]
struct LocalCaches {
    thread_caches: FxHashMap<PoolId, Arc<ThreadCache>>,
}

impl Drop for LocalCaches {
    fn drop(&mut self) {
        forget_recent();
        for thread_cache in self.thread_caches.values() {
            thread_cache.counts.orphaned.store(true, Ordering::Release);
        }
    }
}

/// The counters and stream caches of a thread in a pool.
#[derive(Debug, Default)]
pub(crate) struct ThreadCache {
    pub(crate) counts: Arc<ThreadCounts>,
    stream_caches: Mutex<FxHashMap<StreamId, Arc<StreamCache>>>,
}

fn recent_index(pool: PoolId, stream: StreamId) -> usize {
    let mixed = (pool ^ stream.get().rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> (u64::BITS - TABLE_BITS)) as usize
}

/// Returns the calling thread's stream cache for a stream, if it was used recently. The pointer stays valid
/// until the thread adds another stream cache.
#[inline]
pub(crate) fn stream_cache(pool: PoolId, stream: StreamId) -> Option<*const StreamCache> {
    RECENTS.with(|recents| {
        let index = recent_index(pool, stream);
        let find = |index: usize| {
            let recent = recents[index].get();
            (recent.stream == stream.get() && recent.pool == pool).then_some(recent.stream_cache)
        };
        find(index).or_else(|| find(index ^ 1))
    })
}

fn forget_recent() {
    // `try_with`, since the thread may be ending.
    _ = RECENTS.try_with(|recents| recents.iter().for_each(|recent| recent.set(EMPTY)));
}

fn remember(pool: PoolId, stream_cache: &Arc<StreamCache>) -> *const StreamCache {
    let (stream, index) = (stream_cache.id.get(), recent_index(pool, stream_cache.id));
    let stream_cache = Arc::as_ptr(stream_cache);
    RECENTS.with(|recents| {
        recents[index ^ 1].set(recents[index].get());
        recents[index].set(Recent { pool, stream, stream_cache });
    });
    stream_cache
}

/// The calling thread's cache for the duration of a call.
pub(crate) struct Lease {
    thread_cache: Arc<ThreadCache>,
    /// Whether the cache is orphaned again after the call.
    is_temporary: bool,
}

impl Lease {
    /// Returns whether the thread keeps the cache after the call.
    pub(crate) fn is_permanent(&self) -> bool {
        !self.is_temporary
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
        if self.is_temporary {
            self.thread_cache.counts.orphaned.store(true, Ordering::Release);
        }
    }
}

/// The caches of all threads in a pool.
#[derive(Debug, Default)]
pub(crate) struct ThreadCaches {
    all: Mutex<Vec<Arc<ThreadCache>>>,
    pub(crate) peak: Peak,
}

impl ThreadCaches {
    /// Returns the calling thread's cache; creates it if needed.
    pub(crate) fn my_cache(&self, pool: PoolId) -> Lease {
        match LOCAL_CACHES.try_with(|local| local.borrow().thread_caches.get(&pool).cloned()) {
            Ok(Some(thread_cache)) => Lease { thread_cache, is_temporary: false },
            Ok(None) => self.add_thread(pool),
            // The thread is ending, so it counts this call in an orphaned cache.
            Err(_) => Lease { thread_cache: self.unused_cache(), is_temporary: true },
        }
    }

    /// Takes over an orphaned cache, or creates a new one.
    pub(crate) fn unused_cache(&self) -> Arc<ThreadCache> {
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
    fn add_thread(&self, pool: PoolId) -> Lease {
        let thread_cache = self.unused_cache();
        // Cannot panic: `my_cache` found that the thread-local variable is alive.
        LOCAL_CACHES.with(|local| {
            let thread_caches = &mut local.borrow_mut().thread_caches;
            // Drop the caches of dropped pools.
            forget_recent();
            thread_caches.retain(|_, thread_cache| !thread_cache.counts.is_closed.load(Ordering::Relaxed));
            thread_caches.insert(pool, Arc::clone(&thread_cache));
        });
        Lease { thread_cache, is_temporary: false }
    }

    /// Locks the list of all caches; the caller holds it only briefly.
    pub(crate) fn lock(&self) -> impl std::ops::Deref<Target = Vec<Arc<ThreadCache>>> + '_ {
        self.all.lock()
    }

    /// Calls `visit` with each cache, under the lock of the list.
    pub(crate) fn each(&self, mut visit: impl FnMut(&ThreadCache)) {
        self.all.lock().iter().for_each(|thread_cache| visit(thread_cache));
    }

    /// Returns the live bytes of all threads at one moment; `None` if threads change them during every
    /// reading.
    pub(crate) fn live_bytes(&self) -> Option<u64> {
        let read = || {
            let mut seen = Vec::new();
            self.each(|thread_cache| {
                let totals = thread_cache.counts.totals();
                seen.push((totals.live_bytes, totals.allocations + totals.deallocations));
            });
            seen
        };
        let mut last = read();
        for _ in 0..READINGS {
            let now = read();
            // No thread made a call between the end of the last reading and the start of this one.
            if now == last {
                return Some(now.iter().map(|(live, _)| live).sum::<i64>().max(0) as u64);
            }
            last = now;
        }
        None
    }

    /// Returns the number of threads that use each arena.
    pub(crate) fn users_of_arenas(&self) -> [u32; ARENAS] {
        let mut users = [0; ARENAS];
        self.each(|thread_cache| {
            if !thread_cache.counts.orphaned.load(Ordering::Relaxed) {
                users[usize::from(thread_cache.counts.shard.load(Ordering::Relaxed)) % ARENAS] += 1;
            }
        });
        users
    }

    /// Marks the pool as dropped. Threads drop their caches of it later.
    pub(crate) fn close(&self) {
        self.each(|thread_cache| thread_cache.counts.is_closed.store(true, Ordering::Relaxed));
    }
}

impl ThreadCache {
    /// Returns the stream cache for a stream, if there is one. Only the cache's thread may call it.
    pub(crate) fn stream_cache(&self, pool: PoolId, stream: StreamId) -> Option<*const StreamCache> {
        stream_cache(pool, stream).or_else(|| {
            self.stream_caches.lock().get(&stream).map(|stream_cache| remember(pool, stream_cache))
        })
    }

    /// Adds a stream cache. Returns it and the stream caches that it replaces; the caller flushes these. Only
    /// the cache's thread may call it.
    pub(crate) fn add(
        &self,
        pool: PoolId,
        stream_cache: StreamCache,
    ) -> (*const StreamCache, Vec<Arc<StreamCache>>) {
        let mut stream_caches = self.stream_caches.lock();
        let replaced = if stream_caches.len() >= MAX_STREAM_CACHES {
            forget_recent();
            stream_caches.drain().map(|(_, stream_cache)| stream_cache).collect()
        } else {
            Vec::new()
        };
        let stream_cache = stream_caches.entry(stream_cache.id).or_insert(Arc::new(stream_cache));
        (remember(pool, stream_cache), replaced)
    }

    /// Returns the thread's stream caches, sorted by owner, so that the order does not depend on stream
    /// handles.
    pub(crate) fn stream_caches(&self) -> Vec<Arc<StreamCache>> {
        let mut stream_caches: Vec<Arc<StreamCache>> = self.stream_caches.lock().values().cloned().collect();
        stream_caches.sort_unstable_by_key(|stream_cache| stream_cache.stream.owner);
        stream_caches
    }

    pub(crate) fn stream_cache_count(&self) -> usize {
        self.stream_caches.lock().len()
    }
}

#[cfg(all(test, not(millpond_loom)))]
mod tests {
    use millpond_core::StreamRef;

    use super::*;

    /// A dropped pool marks its threads' caches as closed, and the threads drop them later.
    #[test]
    fn a_dropped_pool_closes_the_caches_of_its_threads() {
        use crate::{CudaMemoryResource, PoolLayer};
        use millpond_core::DeviceMemoryResourceExt;
        use millpond_driver::sim::{SimConfig, SimDevice};

        let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
        let pool = cuda.layer(PoolLayer::new()).expect("an empty pool");
        let counts = Arc::clone(&pool.shared.thread_caches.my_cache(pool.id).counts);
        assert!(!counts.is_closed.load(Ordering::Relaxed));
        drop(pool);
        assert!(counts.is_closed.load(Ordering::Relaxed));
    }

    /// The pools and the streams of a program are spread over the table, since two in one place evict each
    /// other.
    #[test]
    fn pools_and_streams_have_places_of_their_own() {
        const ADDR: u64 = 0x7f12_3456_7800;
        let places = |indexes: Vec<usize>| {
            assert!(indexes.iter().all(|index| *index < TABLE_SIZE));
            rustc_hash::FxHashSet::from_iter(indexes).len()
        };
        let index = |pool, id| recent_index(pool, StreamRef::from_raw_parts(ADDR, id).id());
        let count = TABLE_SIZE / 16;
        let numbers = 1..=count as u64;
        for id in [1, ADDR] {
            let of_pools = places(numbers.clone().map(|pool| index(pool, id)).collect());
            assert!(of_pools > count / 2, "{count} pools and stream {id} have {of_pools} places");
        }
        for (first, step) in [(1, 1), (ADDR, 256)] {
            let of_streams = places(numbers.clone().map(|n| index(7, first + n * step)).collect());
            assert!(of_streams > count / 2, "{count} streams from {first} have {of_streams} places");
        }
    }
}

#[cfg(all(test, millpond_loom))]
mod models;
