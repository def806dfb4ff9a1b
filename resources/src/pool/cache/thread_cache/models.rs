//! Models of thread caches, which loom runs in every order of their threads' steps.

use loom::thread;
use millpond_core::StreamRef;

use crate::block_map::{Block, BlockMap};
use crate::heap::size_class::BlockSize;
use crate::pool::cache::thread_cache::*;
use crate::stream_order::streams::stream_cell_for_models;
use crate::sync::{explore, explore_canary, explore_without_order};

const POOL: PoolId = 1;
const STREAM: StreamRef = StreamRef::LEGACY;
const BYTES: u64 = 256;

struct Setup {
    block_map: BlockMap,
    thread_caches: ThreadCaches,
}

impl Setup {
    fn new() -> Arc<Self> {
        let setup = Self { block_map: BlockMap::new(), thread_caches: ThreadCaches::default() };
        for number in 1..=2 {
            let block =
                Block { heap: 0, chunk: number, requested: BYTES, is_exact_size: false, is_in_alias: false };
            setup.block_map.insert(u64::from(number) << 8, block);
        }
        Arc::new(setup)
    }

    /// The calling thread's stream cache.
    fn stream_cache(&self, thread_cache: &ThreadCache) -> *const StreamCache {
        thread_cache.stream_cache(POOL, STREAM.id()).unwrap_or_else(|| {
            let cell = stream_cell_for_models(STREAM, 1);
            thread_cache.add(POOL, StreamCache::new(STREAM.id(), cell, Arc::clone(&thread_cache.counts))).0
        })
    }

    fn push(&self, stream_cache: *const StreamCache, number: u64) {
        let entry = self.block_map.find(number << 8).expect("entered");
        // SAFETY: the calling thread's cache has the stream cache, and adds no other.
        assert!(unsafe { &*stream_cache }.push(number << 8, BYTES, BlockSize::of(BYTES), entry, u64::MAX));
    }

    fn pop(&self, stream_cache: *const StreamCache) -> Option<u64> {
        // SAFETY: as above.
        unsafe { &*stream_cache }.pop(BYTES, BlockSize::of(BYTES)).map(|held| held.addr >> 8)
    }

    /// Flushes all stream caches; returns their blocks, after a check of the counters.
    fn flush_all(&self) -> Vec<u64> {
        let mut flushed = Vec::new();
        let mut counted = 0;
        self.thread_caches.each(|thread_cache| counted += thread_cache.counts.totals().blocks_held);
        let mut stream_caches = Vec::new();
        self.thread_caches.each(|thread_cache| stream_caches.extend(thread_cache.stream_caches()));
        stream_caches.iter().for_each(|stream_cache| {
            stream_cache.flush(false, |addr| {
                flushed.push(addr >> 8);
                BYTES
            });
        });
        assert_eq!(counted, flushed.len() as u64, "the counters match the blocks");
        flushed
    }
}

/// A thread ends with a block in its cache, while another thread caches its own block for a while.
fn a_thread_ends_and_another_comes() {
    let setup = Setup::new();
    let first = {
        let setup = Arc::clone(&setup);
        thread::spawn(move || {
            let thread_cache = setup.thread_caches.my_cache(POOL);
            setup.push(setup.stream_cache(&thread_cache), 1);
        })
    };
    let second = {
        let setup = Arc::clone(&setup);
        thread::spawn(move || {
            let thread_cache = setup.thread_caches.my_cache(POOL);
            let stream_cache = setup.stream_cache(&thread_cache);
            setup.push(stream_cache, 2);
            setup.pop(stream_cache).expect("its own block, at least")
        })
    };
    first.join().expect("no assertion failed");
    let mut taken = vec![second.join().expect("no assertion failed")];
    taken.extend(setup.flush_all());
    taken.sort_unstable();
    assert_eq!(taken, [1, 2], "each block is taken once");
}

#[test]
fn a_cache_of_an_ended_thread_is_taken_over_once() {
    explore(a_thread_ends_and_another_comes);
}

#[test]
fn canary_threads_that_are_not_ordered() {
    explore_without_order("each block is taken once", a_thread_ends_and_another_comes);
}

/// Two threads call `adopt` at once, while there is one orphaned cache.
fn two_adopt(adopt: impl Fn(&ThreadCaches) -> Arc<ThreadCache> + Copy + Send + 'static) {
    let setup = Setup::new();
    let orphan = setup.thread_caches.unused_cache();
    orphan.counts.orphaned.store(true, Ordering::Release);
    let other = {
        let setup = Arc::clone(&setup);
        thread::spawn(move || adopt(&setup.thread_caches))
    };
    let first = adopt(&setup.thread_caches);
    let second = other.join().expect("no assertion failed");
    assert!(!Arc::ptr_eq(&first, &second), "two threads have one cache");
    assert!(Arc::ptr_eq(&first, &orphan) || Arc::ptr_eq(&second, &orphan), "no thread took the orphan over");
}

#[test]
fn an_orphan_has_one_new_owner() {
    explore(|| two_adopt(ThreadCaches::unused_cache));
}

#[test]
fn canary_adoption_that_is_not_atomic() {
    explore_canary("two threads have one cache", || {
        two_adopt(|thread_caches| {
            let known = thread_caches.all.lock()[0].clone();
            if known.counts.orphaned.load(Ordering::Acquire) {
                known.counts.orphaned.store(false, Ordering::Release);
                return known;
            }
            thread_caches.unused_cache()
        });
    });
}
