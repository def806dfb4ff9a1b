use loom::thread;
use millpond_core::StreamRef;

use super::super::classes::rounded;
use super::super::directory::{Block, Directory};
use super::*;
use crate::ordered::stream_cell_for_models;
use crate::sync::{explore, explore_canary, explore_without_order};

/// A front, the directory of its blocks, and who was given which.
struct Setup {
    directory: Directory,
    front: Front,
}

const SMALL: u64 = 256;
const LARGE: u64 = LARGEST_SMALL + 256;

impl Setup {
    fn new() -> Arc<Self> {
        let stream = stream_cell_for_models(StreamRef::LEGACY, 1);
        let front = Front::new(StreamRef::LEGACY.id(), stream, Arc::default());
        Arc::new(Self { directory: Directory::new(), front })
    }

    /// A block of so many bytes that is handed out: the number is in its address.
    fn hand_out(&self, number: u64, bytes: u64) -> &Entry {
        let (chunk, requested) = (number as u32, bytes);
        let block = Block { heap: 0, chunk, requested, is_odd: false, is_in_view: false };
        self.directory.insert(number << 8, block)
    }

    fn entry(&self, addr: u64) -> &Entry {
        self.directory.find(addr).expect("a block is entered")
    }

    /// The front's thread gives a block back: to the front, or past it. Says whether it is in the front.
    fn push(&self, number: u64, bytes: u64) -> bool {
        self.front.push(number << 8, bytes, rounded(bytes), self.entry(number << 8), u64::MAX)
    }

    /// The front's thread takes a block for a request, if there is one.
    fn pop(&self, bytes: u64) -> Option<u64> {
        let held = self.front.pop(bytes, rounded(bytes))?;
        assert_eq!(held.entry.requested(), 0, "kept blocks are asked for by nobody");
        assert!(ptr::eq(held.entry, self.entry(held.addr)), "the entry is the block's");
        Some(held.addr >> 8)
    }

    /// Another thread takes all blocks.
    fn drain(&self) -> Vec<u64> {
        let mut numbers = Vec::new();
        self.front.drain(false, |addr| {
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
        let thread = &self.front.thread;
        assert_eq!((thread.small_bytes_held(), thread.totals().blocks_held), (0, 0));
        assert_eq!(self.drain(), []);
    }
}

/// The front's thread gives blocks 1 and 2 back, and takes two blocks; meanwhile another drains.
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

/// Two threads drain at once, and the front's thread goes on with what they leave.
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

/// The front's thread keeps large blocks, of which older ones go, and takes one; meanwhile another drains.
fn large_blocks_come_and_go() {
    let setup = Setup::new();
    [4, 5].into_iter().for_each(|number| _ = setup.hand_out(number, LARGE));
    let mut had = Vec::new();
    let push = |number: u64, had: &mut Vec<u64>| {
        had.extend(setup.front.give_up_large().map(|entry| u64::from(entry.block().1)));
        setup.front.push_large(number << 8, LARGE, LARGE, setup.entry(number << 8));
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
fn a_place_is_filled(put: fn(&Place, u64, &Entry)) {
    let setup = Setup::new();
    let place = Arc::new(Place::default());
    let entry = setup.hand_out(1, SMALL);
    let thief = {
        let (setup, place) = (Arc::clone(&setup), Arc::clone(&place));
        thread::spawn(move || {
            let taken = place.take();
            let is_complete = |addr: &u64| assert_eq!(setup.entry(*addr).requested(), 0, "not complete");
            taken.inspect(is_complete).is_some()
        })
    };
    put(&place, 1 << 8, entry);
    let mine = place.take().is_some();
    assert!(mine != thief.join().expect("no assertion failed"), "had once");
}

#[test]
fn a_block_that_is_taken_is_complete() {
    explore(|| {
        a_place_is_filled(|place, addr, entry| {
            entry.set_requested(0);
            place.put(addr, entry);
        });
    });
}

#[test]
fn canary_a_block_published_before_its_entry_is_written() {
    explore_canary("not complete", || {
        a_place_is_filled(|place, addr, entry| {
            place.put(addr, entry);
            entry.set_requested(0);
        });
    });
}

#[test]
fn canary_a_block_taken_after_a_look() {
    explore_canary("had once", || {
        let place = Arc::new(Place::default());
        let entry = Entry::default();
        place.put(1 << 8, &entry);
        let take = |place: &Place| {
            let addr = place.addr.load(Ordering::Acquire);
            place.addr.store(0, Ordering::Release);
            addr != 0
        };
        let thief = {
            let place = Arc::clone(&place);
            thread::spawn(move || take(&place))
        };
        let mine = take(&place);
        assert!(mine != thief.join().expect("no assertion failed"), "had once");
    });
}
