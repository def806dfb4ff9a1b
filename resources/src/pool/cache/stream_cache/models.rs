//! Models of a stream cache, which loom runs in every order of their threads' steps.

use loom::thread;
use millpond_core::StreamRef;

use crate::block_map::{Block, BlockMap};
use crate::heap::size_class::{BlockSize, LARGEST_SMALL, rounded};
use crate::pool::cache::stream_cache::*;
use crate::stream_order::streams::stream_cell_for_models;
use crate::sync::{explore, explore_canary, explore_without_order};

/// A stream cache, and the block map of its blocks.
struct Setup {
    block_map: BlockMap,
    stream_cache: StreamCache,
}

const SMALL: u64 = 256;
const LARGE: u64 = LARGEST_SMALL + 256;

impl Setup {
    fn new() -> Arc<Self> {
        let stream = stream_cell_for_models(StreamRef::LEGACY, 1);
        let stream_cache = StreamCache::new(StreamRef::LEGACY.id(), stream, Arc::default());
        Arc::new(Self { block_map: BlockMap::new(), stream_cache })
    }

    /// Inserts a block in use; its address is made from `number`.
    fn insert(&self, number: u64, bytes: u64) -> &BlockEntry {
        let (chunk, requested) = (number as u32, bytes);
        let block = Block { heap: 0, chunk, requested, is_exact_size: false, is_in_alias: false };
        self.block_map.insert(number << 8, block)
    }

    fn entry(&self, addr: u64) -> &BlockEntry {
        self.block_map.find(addr).expect("a block has an entry")
    }

    /// The cache's thread frees a small block; returns whether the stream cache took it.
    fn push(&self, number: u64, bytes: u64) -> bool {
        self.stream_cache.push(number << 8, bytes, BlockSize::of(bytes), self.entry(number << 8), u64::MAX)
    }

    /// The cache's thread pops a block.
    fn pop(&self, bytes: u64) -> Option<u64> {
        let cached = self.stream_cache.pop(bytes, BlockSize::of(bytes))?;
        assert_eq!(cached.entry.requested(), 0, "a cached block is not in use");
        assert!(ptr::eq(cached.entry, self.entry(cached.addr)), "the entry is the block's");
        Some(cached.addr >> 8)
    }

    /// Takes all blocks out, on any thread.
    fn flush(&self) -> Vec<u64> {
        let mut numbers = Vec::new();
        self.stream_cache.flush(false, |addr| {
            assert_eq!(self.entry(addr).requested(), 0, "a cached block is not in use");
            numbers.push(addr >> 8);
            rounded(if addr >> 8 < 4 { SMALL } else { LARGE })
        });
        numbers
    }

    /// Checks that each of `all` was taken once, and that the counters match.
    fn assert_taken_once(&self, mut taken: Vec<u64>, all: &[u64]) {
        taken.extend(self.flush());
        taken.sort_unstable();
        assert_eq!(taken, all);
        let thread = &self.stream_cache.thread;
        assert_eq!((thread.small_bytes_held(), thread.totals().blocks_held), (0, 0));
        assert_eq!(self.flush(), []);
    }
}

/// The cache's thread pushes blocks 1 and 2 and pops two blocks, while another thread flushes.
fn small_blocks_come_and_go() {
    let setup = Setup::new();
    [1, 2].into_iter().for_each(|number| _ = setup.insert(number, SMALL));
    assert!(setup.push(1, SMALL));
    let thief = {
        let setup = Arc::clone(&setup);
        thread::spawn(move || setup.flush())
    };
    assert!(setup.push(2, SMALL), "there is room for two");
    let mut taken: Vec<u64> = [setup.pop(SMALL), setup.pop(SMALL)].into_iter().flatten().collect();
    taken.extend(thief.join().expect("no assertion failed"));
    setup.assert_taken_once(taken, &[1, 2]);
}

#[test]
fn small_blocks_are_taken_once() {
    explore(small_blocks_come_and_go);
}

#[test]
fn canary_small_blocks_without_order() {
    explore_without_order("a cached block is not in use", small_blocks_come_and_go);
}

/// Two threads flush at once, while the cache's thread pops a block.
#[test]
fn two_flushes_share_the_blocks() {
    explore(|| {
        let setup = Setup::new();
        [1, 2, 3].into_iter().for_each(|number| _ = setup.insert(number, SMALL));
        assert!(setup.push(1, SMALL) && setup.push(2, SMALL) && !setup.push(3, SMALL));
        let thieves = [(); 2].map(|()| {
            let setup = Arc::clone(&setup);
            thread::spawn(move || setup.flush())
        });
        let mut taken: Vec<u64> = setup.pop(SMALL).into_iter().collect();
        thieves.into_iter().for_each(|thief| taken.extend(thief.join().expect("no assertion failed")));
        setup.assert_taken_once(taken, &[1, 2]);
    });
}

/// The cache's thread pushes large blocks and pops one, while another thread flushes. Each push evicts the
/// last block.
fn large_blocks_come_and_go() {
    let setup = Setup::new();
    [4, 5].into_iter().for_each(|number| _ = setup.insert(number, LARGE));
    let mut taken = Vec::new();
    let push = |number: u64, taken: &mut Vec<u64>| {
        taken.extend(setup.stream_cache.evict_large().map(|entry| u64::from(entry.block().1)));
        setup.stream_cache.push_large(number << 8, LARGE, LARGE, setup.entry(number << 8));
    };
    push(4, &mut taken);
    let thief = {
        let setup = Arc::clone(&setup);
        thread::spawn(move || setup.flush())
    };
    push(5, &mut taken);
    taken.extend(setup.pop(LARGE));
    taken.extend(setup.pop(LARGE));
    taken.extend(thief.join().expect("no assertion failed"));
    setup.assert_taken_once(taken, &[4, 5]);
}

#[test]
fn large_blocks_are_taken_once() {
    explore(large_blocks_come_and_go);
}

#[test]
fn canary_large_blocks_without_order() {
    explore_without_order("a cached block is not in use", large_blocks_come_and_go);
}

/// Puts a block in a slot by `put`, while another thread takes it out.
fn a_slot_is_filled(put: fn(&CacheSlot, u64, &BlockEntry)) {
    let setup = Setup::new();
    let slot = Arc::new(CacheSlot::default());
    let entry = setup.insert(1, SMALL);
    let thief = {
        let (setup, slot) = (Arc::clone(&setup), Arc::clone(&slot));
        thread::spawn(move || {
            let taken = slot.take();
            let is_complete = |addr: &u64| assert_eq!(setup.entry(*addr).requested(), 0, "not complete");
            taken.inspect(is_complete).is_some()
        })
    };
    put(&slot, 1 << 8, entry);
    let is_taken = slot.take().is_some();
    assert!(is_taken != thief.join().expect("no assertion failed"), "taken once");
}

#[test]
fn a_block_that_is_taken_is_complete() {
    explore(|| {
        a_slot_is_filled(|slot, addr, entry| {
            entry.set_requested(0);
            slot.put(addr, entry);
        });
    });
}

#[test]
fn canary_a_block_published_before_its_entry_is_written() {
    explore_canary("not complete", || {
        a_slot_is_filled(|slot, addr, entry| {
            slot.put(addr, entry);
            entry.set_requested(0);
        });
    });
}

#[test]
fn canary_a_take_that_is_not_atomic() {
    explore_canary("taken once", || {
        let slot = Arc::new(CacheSlot::default());
        let entry = BlockEntry::default();
        slot.put(1 << 8, &entry);
        let take = |slot: &CacheSlot| {
            let addr = slot.addr.load(Ordering::Acquire);
            slot.addr.store(0, Ordering::Release);
            addr != 0
        };
        let thief = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || take(&slot))
        };
        let is_taken = take(&slot);
        assert!(is_taken != thief.join().expect("no assertion failed"), "taken once");
    });
}
