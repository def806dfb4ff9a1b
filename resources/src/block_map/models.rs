//! Models of the block map: loom runs them in every order of threads.

use std::sync::Arc;

use loom::thread;

use crate::block_map::*;
use crate::sync::{explore, explore_canary, explore_without_order};

const BYTES: u64 = 100;

fn block(start: u64) -> Block {
    Block { heap: 1, chunk: start as ChunkId, requested: BYTES, is_exact_size: false, is_in_alias: false }
}

/// Returns whether this is the entry of the block at a start.
fn is_right(entry: &BlockEntry, start: u64) -> bool {
    entry.block() == (1, start as ChunkId) && entry.requested() == BYTES
}

/// Two threads insert blocks of one page. The page has one entry, its first table one, its second table two.
/// Each thread looks for both blocks.
fn blocks_of_a_page_are_inserted(before: u64, at_once: [u64; 2]) {
    let block_map = Arc::new(BlockMap::new());
    (0..before).for_each(|start| _ = block_map.insert(start << 8, block(start)));
    let insert = |own: u64, others: u64| {
        let block_map = Arc::clone(&block_map);
        move || {
            let entry = ptr::from_ref(block_map.insert(own << 8, block(own)));
            let found = block_map.find(own << 8).expect("inserted by this thread");
            assert!(ptr::eq(entry, found) && is_right(found, own));
            // The other thread did not hand over its block, so the block's size may not be visible yet.
            if let Some(found) = block_map.find(others << 8) {
                assert_eq!(found.block(), (1, others as ChunkId));
            }
        }
    };
    let [own, others] = at_once;
    let other = thread::spawn(insert(others, own));
    insert(own, others)();
    other.join().expect("no assertion failed");
    for start in (0..before).chain(at_once) {
        assert!(block_map.find(start << 8).is_some_and(|entry| is_right(entry, start)));
    }
}

#[test]
fn two_blocks_share_an_empty_page() {
    explore(|| blocks_of_a_page_are_inserted(0, [0, 1]));
}

#[test]
fn two_blocks_share_a_page_with_one() {
    explore(|| blocks_of_a_page_are_inserted(1, [1, 2]));
}

#[test]
fn two_blocks_need_the_last_table() {
    explore(|| blocks_of_a_page_are_inserted(2, [2, 3]));
}

/// While a thread looks for a third block, a block leaves its entry and another start takes it.
#[test]
fn an_entry_passes_to_another_start() {
    explore(|| {
        let block_map = Arc::new(BlockMap::new());
        block_map.insert(0, block(0));
        block_map.insert(1 << 8, block(1));
        let changing = {
            let block_map = Arc::clone(&block_map);
            thread::spawn(move || {
                block_map.find(0).expect("the block was inserted").remove();
                assert!(is_right(block_map.insert(2 << 8, block(2)), 2));
                assert!(block_map.find(0).is_none());
            })
        };
        assert!(block_map.find(1 << 8).is_some_and(|entry| is_right(entry, 1)));
        changing.join().expect("no assertion failed");
    });
}

/// A thread hands a block to another through a flag, as programs do.
fn a_block_is_handed_over() {
    let block_map = Arc::new(BlockMap::new());
    block_map.insert(0, block(0));
    let ready = Arc::new(AtomicU64::new(0));
    let from = {
        let (block_map, ready) = (Arc::clone(&block_map), Arc::clone(&ready));
        thread::spawn(move || {
            block_map.insert(1 << 8, block(1));
            ready.store(1, Ordering::Release);
        })
    };
    if ready.load(Ordering::Acquire) == 1 {
        assert!(
            block_map.find(1 << 8).is_some_and(|entry| is_right(entry, 1)),
            "a thread does not find its block"
        );
    }
    from.join().expect("no assertion failed");
}

#[test]
fn a_thread_finds_a_block_handed_to_it() {
    explore(a_block_is_handed_over);
}

#[test]
fn canary_a_block_map_that_orders_nothing() {
    explore_without_order("a thread does not find its block", a_block_is_handed_over);
}

/// Takes an entry by a load and a store instead of an exchange.
fn occupy_after_a_look(entry: &BlockEntry, start: u64) -> bool {
    let is_free = entry.key.load(Ordering::Acquire) == 0;
    if is_free {
        entry.key.store(BlockEntry::key(start, block(start)), Ordering::Release);
        entry.set_requested(BYTES);
    }
    is_free
}

#[test]
fn canary_an_entry_occupied_after_a_look() {
    explore_canary("two blocks in one entry", || {
        let entry = Arc::new(BlockEntry::default());
        let occupy = |start| {
            let entry = Arc::clone(&entry);
            move || occupy_after_a_look(&entry, start)
        };
        let other = thread::spawn(occupy(1));
        let own = occupy(0)();
        let others = other.join().expect("no assertion failed");
        assert!(!(own && others), "two blocks in one entry");
    });
}

/// Two threads free one block. `claim` returns whether a thread took it back.
fn a_block_is_freed_twice(claim: fn(&BlockEntry) -> bool) {
    let block_map = Arc::new(BlockMap::new());
    block_map.insert(0, block(0));
    let free = || {
        let block_map = Arc::clone(&block_map);
        move || block_map.find(0).is_some_and(claim)
    };
    let other = thread::spawn(free());
    let own = free()();
    let others = other.join().expect("no assertion failed");
    assert!(own != others, "freed {} times", u8::from(own) + u8::from(others));
    assert_eq!(block_map.find(0).map(BlockEntry::requested), Some(0));
}

#[test]
fn of_two_threads_that_free_a_block_one_does() {
    explore(|| a_block_is_freed_twice(|entry| entry.claim(BYTES)));
}

#[test]
fn canary_claimed_after_a_look() {
    explore_canary("freed 2 times", || {
        a_block_is_freed_twice(|entry| {
            let is_handed_out = entry.requested() == BYTES;
            if is_handed_out {
                entry.set_requested(0);
            }
            is_handed_out
        });
    });
}
