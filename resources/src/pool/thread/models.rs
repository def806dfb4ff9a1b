use loom::thread;
use millpond_core::StreamRef;

use super::super::directory::{Block, Directory};
use super::*;
use crate::ordered::stream_cell_for_models;
use crate::sync::{explore, explore_canary, explore_without_order};

const POOL: PoolId = 1;
const STREAM: StreamRef = StreamRef::LEGACY;
const BYTES: u64 = 256;

struct Setup {
    directory: Directory,
    caches: Caches,
}

impl Setup {
    fn new() -> Arc<Self> {
        let setup = Self { directory: Directory::new(), caches: Caches::default() };
        for number in 1..=2 {
            let block = Block { heap: 0, chunk: number, requested: BYTES, is_odd: false, is_in_view: false };
            setup.directory.insert(u64::from(number) << 8, block);
        }
        Arc::new(setup)
    }

    /// The calling thread's front.
    fn front(&self, cache: &Cache) -> *const Front {
        cache.front(POOL, STREAM.id()).unwrap_or_else(|| {
            let cell = stream_cell_for_models(STREAM, 1);
            cache.add(POOL, Front::new(STREAM.id(), cell, Arc::clone(&cache.counts))).0
        })
    }

    fn push(&self, front: *const Front, number: u64) {
        let entry = self.directory.find(number << 8).expect("entered");
        // SAFETY: the calling thread's cache has the front, and adds no other.
        assert!(unsafe { &*front }.push(number << 8, BYTES, BYTES, entry, u64::MAX));
    }

    fn pop(&self, front: *const Front) -> Option<u64> {
        // SAFETY: as above.
        unsafe { &*front }.pop(BYTES, BYTES).map(|held| held.addr >> 8)
    }

    /// What is left in all fronts, and whether the counters say the same.
    fn drain_all(&self) -> Vec<u64> {
        let mut had = Vec::new();
        let mut counted = 0;
        self.caches.each(|cache| counted += cache.counts.totals().blocks_held);
        let mut fronts = Vec::new();
        self.caches.each(|cache| fronts.extend(cache.fronts()));
        fronts.iter().for_each(|front| {
            front.drain(false, |addr| {
                had.push(addr >> 8);
                BYTES
            });
        });
        assert_eq!(counted, had.len() as u64, "blocks counted, and blocks there");
        had
    }
}

/// A thread leaves a block behind as it ends; two more come, each of which keeps a block of its own for a
/// while.
fn a_thread_ends_and_others_come() {
    let setup = Setup::new();
    let first = {
        let setup = Arc::clone(&setup);
        thread::spawn(move || {
            let cache = setup.caches.mine(POOL);
            setup.push(setup.front(&cache), 1);
        })
    };
    let second = {
        let setup = Arc::clone(&setup);
        thread::spawn(move || {
            let cache = setup.caches.mine(POOL);
            let front = setup.front(&cache);
            setup.push(front, 2);
            setup.pop(front).expect("its own, at least")
        })
    };
    first.join().expect("no assertion failed");
    let mut had = vec![second.join().expect("no assertion failed")];
    had.extend(setup.drain_all());
    had.sort_unstable();
    assert_eq!(had, [1, 2], "each is had once");
}

#[test]
fn what_a_thread_leaves_is_taken_over_once() {
    explore(a_thread_ends_and_others_come);
}

#[test]
fn canary_threads_that_are_not_ordered() {
    explore_without_order("each is had once", a_thread_ends_and_others_come);
}

/// Two threads look for a cache at once, of which one is an orphan's; `adopt` is how.
fn two_adopt(adopt: impl Fn(&Caches) -> Arc<Cache> + Copy + Send + 'static) {
    let setup = Setup::new();
    let orphan = setup.caches.orphan();
    orphan.counts.orphaned.store(true, Ordering::Release);
    let other = {
        let setup = Arc::clone(&setup);
        thread::spawn(move || adopt(&setup.caches))
    };
    let mine = adopt(&setup.caches);
    let others = other.join().expect("no assertion failed");
    assert!(!Arc::ptr_eq(&mine, &others), "two threads have one cache");
    assert!(Arc::ptr_eq(&mine, &orphan) || Arc::ptr_eq(&others, &orphan), "nobody took the orphan over");
}

#[test]
fn an_orphan_has_one_new_owner() {
    explore(|| two_adopt(Caches::orphan));
}

#[test]
fn canary_adopted_after_a_look() {
    explore_canary("two threads have one cache", || {
        two_adopt(|caches| {
            let known = caches.all.lock()[0].clone();
            if known.counts.orphaned.load(Ordering::Acquire) {
                known.counts.orphaned.store(false, Ordering::Release);
                return known;
            }
            caches.orphan()
        });
    });
}
