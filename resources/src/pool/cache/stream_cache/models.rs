use loom::thread;
use millpond_core::StreamRef;

use crate::block_map::{Block, BlockMap};
use crate::heap::size_class::{BlockSize, rounded};
use crate::pool::cache::stream_cache::*;
use crate::stream_order::streams::stream_cell_for_models;
use crate::sync::{explore, explore_canary, explore_without_order};

/// A stream cache, the block map of its blocks, and who was given which.
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

    /// A block of so many bytes that is handed out: the number is in its address.
    fn hand_out(&self, number: u64, bytes: u64) -> &BlockEntry {
        let (chunk, requested) = (number as u32, bytes);
        let block = Block { heap: 0, chunk, requested, is_exact_size: false, is_in_alias: false };
        self.block_map.insert(number << 8, block)
    }

    fn entry(&self, addr: u64) -> &BlockEntry {
        self.block_map.find(addr).expect("a block is entered")
    }

    /// The stream cache's thread gives a block back: to the stream cache, or past it. Says whether it is in
    /// the stream cache.
    fn push(&self, number: u64, bytes: u64) -> bool {
        self.stream_cache.push(number << 8, bytes, BlockSize::of(bytes), self.entry(number << 8), u64::MAX)
    }

    /// The stream cache's thread takes a block for a request, if there is one.
    fn pop(&self, bytes: u64) -> Option<u64> {
        let held = self.stream_cache.pop(bytes, BlockSize::of(bytes))?;
        assert_eq!(held.entry.requested(), 0, "kept blocks are asked for by nobody");
        assert!(ptr::eq(held.entry, self.entry(held.addr)), "the entry is the block's");
        Some(held.addr >> 8)
    }

    /// Another thread takes all blocks.
    fn flush(&self) -> Vec<u64> {
        let mut numbers = Vec::new();
        self.stream_cache.flush(false, |addr| {
            assert_eq!(self.entry(addr).requested(), 0, "kept blocks are asked for by nobody");
            numbers.push(addr >> 8);
            rounded(if addr >> 8 < 4 { SMALL } else { LARGE })
        });
        numbers
    }

    /// Each of `all` was had once, and nothing is counted that is not there.
    fn assert_had_once(&self, mut had: Vec<u64>, all: &[u64]) {
        had.extend(self.drain());
        had.sort_unstable();
        assert_eq!(had, all);
        let thread = &self.stream_cache.thread;
        assert_eq!((thread.small_bytes_held(), thread.totals().blocks_held), (0, 0));
        assert_eq!(self.drain(), []);
    }
}

/// The stream cache's thread gives blocks 1 and 2 back, and takes two blocks; meanwhile another flushes.
fn small_blocks_come_and_go() {
    let setup = Setup::new();
    [1, 2].into_iter().for_each(|number| _ = setup.hand_out(number, SMALL));
    assert!(setup.push(1, SMALL));
    let thief = {
        let setup = Arc::clone(&setup);
        thread::spawn(move || setup.drain())
    };
    assert!(setup.push(2, SMALL), "there is room for two");
    let mut had: Vec<u64> = [setup.pop(SMALL), setup.pop(SMALL)].into_iter().flatten().collect();
    had.extend(thief.join().expect("no assertion failed"));
    setup.assert_had_once(had, &[1, 2]);
}

#[test]
fn small_blocks_are_had_once() {
    explore(small_blocks_come_and_go);
}

#[test]
fn canary_a_front_that_orders_nothing() {
    explore_without_order("kept blocks are asked for by nobody", small_blocks_come_and_go);
}

/// Two threads flush at once, and the stream cache's thread goes on with what they leave.
#[test]
fn two_who_drain_share_the_blocks() {
    explore(|| {
        let setup = Setup::new();
        [1, 2, 3].into_iter().for_each(|number| _ = setup.hand_out(number, SMALL));
        assert!(setup.push(1, SMALL) && setup.push(2, SMALL) && !setup.push(3, SMALL));
        let thieves = [(); 2].map(|()| {
            let setup = Arc::clone(&setup);
            thread::spawn(move || setup.drain())
        });
        let mut had: Vec<u64> = setup.pop(SMALL).into_iter().collect();
        thieves.into_iter().for_each(|thief| had.extend(thief.join().expect("no assertion failed")));
        setup.assert_had_once(had, &[1, 2]);
    });
}

/// The stream cache's thread keeps large blocks, of which older ones go, and takes one; meanwhile another
/// flushes.
fn large_blocks_come_and_go() {
    let setup = Setup::new();
    [4, 5].into_iter().for_each(|number| _ = setup.hand_out(number, LARGE));
    let mut had = Vec::new();
    let push = |number: u64, had: &mut Vec<u64>| {
        had.extend(setup.stream_cache.evict_large().map(|entry| u64::from(entry.block().1)));
        setup.stream_cache.push_large(number << 8, LARGE, LARGE, setup.entry(number << 8));
    };
    push(4, &mut had);
    let thief = {
        let setup = Arc::clone(&setup);
        thread::spawn(move || setup.drain())
    };
    push(5, &mut had);
    had.extend(setup.pop(LARGE));
    had.extend(setup.pop(LARGE));
    had.extend(thief.join().expect("no assertion failed"));
    setup.assert_had_once(had, &[4, 5]);
}

#[test]
fn large_blocks_are_had_once() {
    explore(large_blocks_come_and_go);
}

#[test]
fn canary_large_blocks_without_order() {
    explore_without_order("kept blocks are asked for by nobody", large_blocks_come_and_go);
}

/// Puts a block in a place: `put` is how; meanwhile another takes it out.
fn a_place_is_filled(put: fn(&CacheSlot, u64, &BlockEntry)) {
    let setup = Setup::new();
    let slot = Arc::new(CacheSlot::default());
    let entry = setup.hand_out(1, SMALL);
    let thief = {
        let (setup, slot) = (Arc::clone(&setup), Arc::clone(&slot));
        thread::spawn(move || {
            let taken = slot.take();
            let is_complete = |addr: &u64| assert_eq!(setup.entry(*addr).requested(), 0, "not complete");
            taken.inspect(is_complete).is_some()
        })
    };
    put(&slot, 1 << 8, entry);
    let my_cache = slot.take().is_some();
    assert!(my_cache != thief.join().expect("no assertion failed"), "had once");
}

#[test]
fn a_block_that_is_taken_is_complete() {
    explore(|| {
        a_place_is_filled(|slot, addr, entry| {
            entry.set_requested(0);
            slot.put(addr, entry);
        });
    });
}

#[test]
fn canary_a_block_published_before_its_entry_is_written() {
    explore_canary("not complete", || {
        a_place_is_filled(|slot, addr, entry| {
            slot.put(addr, entry);
            entry.set_requested(0);
        });
    });
}

#[test]
fn canary_a_block_taken_after_a_look() {
    explore_canary("had once", || {
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
        let my_cache = take(&slot);
        assert!(my_cache != thief.join().expect("no assertion failed"), "had once");
    });
}
