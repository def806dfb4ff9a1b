use std::sync::Arc;

use loom::thread;

use crate::block_map::*;
use crate::sync::{explore, explore_canary, explore_without_order};

const BYTES: u64 = 100;

fn block(start: u64) -> Block {
    Block { heap: 1, chunk: start as ChunkId, requested: BYTES, is_exact_size: false, is_in_alias: false }
}

/// Whether this is the entry of the block at a start.
fn is_right(entry: &BlockEntry, start: u64) -> bool {
    entry.block() == (1, start as ChunkId) && entry.requested() == BYTES
}

/// Two threads enter blocks of one page, which has room for one in itself, one in its first table and two in
/// its second; each looks for its own and for the other's.
fn blocks_of_a_page_are_entered(before: u64, at_once: [u64; 2]) {
    let block_map = Arc::new(BlockMap::new());
    (0..before).for_each(|start| _ = block_map.insert(start << 8, block(start)));
    let insert_block = |my_cache: u64, others: u64| {
        let block_map = Arc::clone(&block_map);
        move || {
            let entry = ptr::from_ref(block_map.insert(my_cache << 8, block(my_cache)));
            let found = block_map.find(my_cache << 8).expect("entered by this thread");
            assert!(ptr::eq(entry, found) && is_right(found, my_cache));
            // Not handed over to this thread, so its size need not be seen yet; but it is no other's.
            if let Some(found) = block_map.find(others << 8) {
                assert_eq!(found.block(), (1, others as ChunkId));
            }
        }
    };
    let [my_cache, others] = at_once;
    let other = thread::spawn(insert_block(others, my_cache));
    insert_block(my_cache, others)();
    other.join().expect("no assertion failed");
    for start in (0..before).chain(at_once) {
        assert!(block_map.find(start << 8).is_some_and(|entry| is_right(entry, start)));
    }
}

#[test]
fn two_blocks_share_an_empty_page() {
    explore(|| blocks_of_a_page_are_entered(0, [0, 1]));
}

#[test]
fn two_blocks_share_a_page_with_one() {
    explore(|| blocks_of_a_page_are_entered(1, [1, 2]));
}

#[test]
fn two_blocks_need_the_last_table() {
    explore(|| blocks_of_a_page_are_entered(2, [2, 3]));
}

/// A block leaves its place, and another start takes it, while somebody looks for a third.
#[test]
fn a_place_changes_hands() {
    explore(|| {
        let block_map = Arc::new(BlockMap::new());
        block_map.insert(0, block(0));
        block_map.insert(1 << 8, block(1));
        let changing = {
            let block_map = Arc::clone(&block_map);
            thread::spawn(move || {
                block_map.find(0).expect("entered").remove();
                assert!(is_right(block_map.insert(2 << 8, block(2)), 2));
                assert!(block_map.find(0).is_none());
            })
        };
        assert!(block_map.find(1 << 8).is_some_and(|entry| is_right(entry, 1)));
        changing.join().expect("no assertion failed");
    });
}

/// A block is handed from thread to thread by way of a flag, as programs do.
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
        assert!(block_map.find(1 << 8).is_some_and(|entry| is_right(entry, 1)), "who has a block finds it");
    }
    from.join().expect("no assertion failed");
}

#[test]
fn who_has_a_block_finds_it() {
    explore(a_block_is_handed_over);
}

#[test]
fn canary_a_directory_that_orders_nothing() {
    explore_without_order("who has a block finds it", a_block_is_handed_over);
}

/// Enters a block where the page has none, after a look.
fn occupy_after_a_look(entry: &BlockEntry, start: u64) -> bool {
    let is_free = entry.key.load(Ordering::Acquire) == 0;
    if is_free {
        entry.key.store(BlockEntry::key(start, block(start)), Ordering::Release);
        entry.set_requested(BYTES);
    }
    is_free
}

#[test]
fn canary_a_place_occupied_after_a_look() {
    explore_canary("two blocks in one place", || {
        let place = Arc::new(BlockEntry::default());
        let insert_block = |start| {
            let place = Arc::clone(&place);
            move || occupy_after_a_look(&place, start)
        };
        let other = thread::spawn(insert_block(1));
        let my_cache = insert_block(0)();
        let others = other.join().expect("no assertion failed");
        assert!(!(my_cache && others), "two blocks in one place");
    });
}

/// Two threads give one block back: `claim` says who has.
fn a_block_is_given_back_twice(claim: fn(&BlockEntry) -> bool) {
    let block_map = Arc::new(BlockMap::new());
    block_map.insert(0, block(0));
    let free = || {
        let block_map = Arc::clone(&block_map);
        move || block_map.find(0).is_some_and(claim)
    };
    let other = thread::spawn(free());
    let my_cache = free()();
    let others = other.join().expect("no assertion failed");
    assert!(my_cache != others, "given back {} times", u8::from(my_cache) + u8::from(others));
    assert_eq!(block_map.find(0).map(BlockEntry::requested), Some(0));
}

#[test]
fn of_two_who_give_a_block_back_one_does() {
    explore(|| a_block_is_given_back_twice(|entry| entry.claim(BYTES)));
}

#[test]
fn canary_claimed_after_a_look() {
    explore_canary("given back 2 times", || {
        a_block_is_given_back_twice(|entry| {
            let is_handed_out = entry.requested() == BYTES;
            if is_handed_out {
                entry.set_requested(0);
            }
            is_handed_out
        });
    });
}
