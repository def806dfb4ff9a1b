//! What a thread keeps of a stream's free blocks, by size: taken and put back without a lock.
//!
//! ```text
//!  Front (a thread and a stream)
//!    small[256], by class (classes.rs) ─▶ stack of up to 32 blocks
//!    large ─▶ 16 sets of 4 blocks of more than 1 MiB, by exact size
//!
//!  a stack:  [ block | block | 0 | block | 0 | 0 | 0 | 0 ]
//!                               ▲           ▲
//!               taken by another thread     len: nothing is at or above
//! ```
//!
//! A place holds a block's address. Its thread alone puts blocks in, and takes the topmost out by exchanging
//! it with 0; any thread may do the same with any place ([`Front::drain`]), when memory is short. So of two
//! who want a block one gets it, nobody waits, and putting one in is a plain store.
//!
//! A block here is free for its stream only, whose order its free was in: handing it out on the same stream
//! needs nothing else. When it leaves the front otherwise, it counts as given back at that moment, which is
//! later than it was, and so safe.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use millpond_core::StreamId;

use super::classes::{CLASSES, LARGEST_SMALL, class_of};
use super::directory::Entry;
use crate::ordered::StreamCell;

/// Blocks of one class.
const DEPTH: usize = 32;
const SETS: usize = 16;
const WAYS: usize = 4;

/// A place for a block.
#[derive(Debug, Default)]
struct Place {
    /// 0 for none.
    addr: AtomicU64,
    /// Of the block last put here. For the front's thread only.
    entry: AtomicPtr<Entry>,
}

impl Place {
    /// Takes the block out, whoever does it.
    fn take(&self) -> Option<u64> {
        Some(self.addr.swap(0, Ordering::AcqRel)).filter(|addr| *addr != 0)
    }

    fn put(&self, addr: u64, entry: &Entry) {
        self.entry.store(ptr::from_ref(entry).cast_mut(), Ordering::Relaxed);
        self.addr.store(addr, Ordering::Release);
    }
}

/// The blocks of a class.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Stack {
    /// Nothing is at this place or above.
    len: AtomicU32,
    places: [Place; DEPTH],
}

#[derive(Debug, Default)]
struct LargePlace {
    /// The size of the block last put here.
    bytes: AtomicU64,
    place: Place,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Large {
    sets: [[LargePlace; WAYS]; SETS],
    /// The place that is next to be given up.
    hand: AtomicU8,
}

impl Large {
    fn set(&self, bytes: u64) -> &[LargePlace; WAYS] {
        let spread = (bytes >> 8).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60;
        &self.sets[spread as usize % SETS]
    }
}

/// See the module. Methods that change what is in it are for its thread, but for [`drain`](Self::drain).
#[derive(Debug)]
pub(super) struct Front {
    pub(super) id: StreamId,
    pub(super) stream: Arc<StreamCell>,
    /// What all fronts of the thread share.
    pub(super) thread: Arc<ThreadCounts>,
    small: Box<[AtomicPtr<Stack>; CLASSES]>,
    large: AtomicPtr<Large>,
}

/// A block that was taken out of a front, and its entry.
pub(super) struct Held<'a> {
    pub(super) addr: u64,
    pub(super) entry: &'a Entry,
}

/// Adds to a counter that one thread writes and all read.
#[inline]
pub(super) fn add(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// Counters of a thread: written by it, read by all.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct ThreadCounts {
    /// Bytes handed out less bytes taken back, rounded; may be below zero.
    pub(super) live_bytes: AtomicI64,
    /// The highest value of it so far.
    pub(super) peak_bytes: AtomicI64,
    /// The same as asked for.
    pub(super) live_requested: AtomicI64,
    pub(super) allocations: AtomicU64,
    pub(super) deallocations: AtomicU64,
    /// Of the allocations, those that took a block of their stream, or anyone's, without the pool's lock.
    pub(super) own_stream: AtomicU64,
    pub(super) completed: AtomicU64,
    /// Bytes put in fronts less bytes taken out by the thread itself.
    pub(super) kept_bytes: AtomicU64,
    pub(super) kept_blocks: AtomicU64,
    /// Taken out by others: these are written by any thread.
    pub(super) drained_bytes: AtomicU64,
    pub(super) drained_blocks: AtomicU64,
    /// The thread's arena.
    pub(super) shard: AtomicU8,
    /// How often it met another thread there.
    pub(super) met: AtomicU8,
    /// Whether the thread is gone.
    pub(super) orphaned: AtomicBool,
    /// Whether the pool is gone.
    pub(super) is_closed: AtomicBool,
}

impl ThreadCounts {
    /// An allocation of a block of `bytes` for a request.
    #[inline]
    pub(super) fn allocated(&self, bytes: u64, requested: u64) {
        let live = self.live_bytes.load(Ordering::Relaxed) + bytes as i64;
        self.live_bytes.store(live, Ordering::Relaxed);
        if live > self.peak_bytes.load(Ordering::Relaxed) {
            self.peak_bytes.store(live, Ordering::Relaxed);
        }
        let sum = self.live_requested.load(Ordering::Relaxed) + requested as i64;
        self.live_requested.store(sum, Ordering::Relaxed);
        add(&self.allocations, 1);
    }

    /// The reverse.
    #[inline]
    pub(super) fn deallocated(&self, bytes: u64, requested: u64) {
        let live = self.live_bytes.load(Ordering::Relaxed) - bytes as i64;
        self.live_bytes.store(live, Ordering::Relaxed);
        let sum = self.live_requested.load(Ordering::Relaxed) - requested as i64;
        self.live_requested.store(sum, Ordering::Relaxed);
        add(&self.deallocations, 1);
    }

    /// Bytes in the thread's fronts.
    #[inline]
    pub(super) fn bytes_held(&self) -> u64 {
        let kept = self.kept_bytes.load(Ordering::Relaxed);
        kept.wrapping_sub(self.drained_bytes.load(Ordering::Relaxed))
    }

    pub(super) fn blocks_held(&self) -> u64 {
        let kept = self.kept_blocks.load(Ordering::Relaxed);
        kept.wrapping_sub(self.drained_blocks.load(Ordering::Relaxed))
    }

    #[inline]
    fn keep(&self, bytes: u64) {
        add(&self.kept_bytes, bytes);
        add(&self.kept_blocks, 1);
    }

    #[inline]
    fn unkeep(&self, bytes: u64) {
        add(&self.kept_bytes, bytes.wrapping_neg());
        add(&self.kept_blocks, 1u64.wrapping_neg());
    }
}

impl Front {
    pub(super) fn new(id: StreamId, stream: Arc<StreamCell>, thread: Arc<ThreadCounts>) -> Self {
        let small = Box::new(std::array::from_fn(|_| AtomicPtr::default()));
        Self { id, stream, thread, small, large: AtomicPtr::default() }
    }

    /// Takes a block for a request of `bytes`, whose blocks have `rounded`.
    #[inline]
    pub(super) fn pop(&self, bytes: u64, rounded: u64) -> Option<Held<'_>> {
        let place = if bytes <= LARGEST_SMALL { self.pop_small(bytes) } else { self.pop_large(rounded) };
        let (addr, place) = place?;
        self.thread.unkeep(rounded);
        // SAFETY: the front's thread, which this is, wrote the entry of the block that it put in; entries live
        // as long as the pool, and the pool is borrowed by the call.
        let entry = unsafe { &*place.entry.load(Ordering::Relaxed) };
        Some(Held { addr, entry })
    }

    #[inline]
    fn pop_small(&self, bytes: u64) -> Option<(u64, &Place)> {
        // SAFETY: a stack that is there lives as long as the front.
        let stack = unsafe { self.small[class_of(bytes)].load(Ordering::Relaxed).as_ref() }?;
        let mut len = stack.len.load(Ordering::Relaxed);
        while len > 0 {
            len -= 1;
            let place = &stack.places[len as usize % DEPTH];
            let taken = place.take();
            stack.len.store(len, Ordering::Relaxed);
            if let Some(addr) = taken {
                return Some((addr, place));
            }
        }
        None
    }

    fn pop_large(&self, rounded: u64) -> Option<(u64, &Place)> {
        // SAFETY: as above.
        let large = unsafe { self.large.load(Ordering::Relaxed).as_ref() }?;
        let same = |way: &&LargePlace| way.bytes.load(Ordering::Relaxed) == rounded;
        let found = large.set(rounded).iter().filter(same);
        found.map(|way| &way.place).find_map(|place| Some((place.take()?, place)))
    }

    /// Keeps a block that was given back on the front's stream, if there is room.
    #[inline]
    pub(super) fn push(&self, addr: u64, bytes: u64, rounded: u64, entry: &Entry) -> bool {
        let kept = if bytes <= LARGEST_SMALL {
            self.push_small(addr, bytes, entry)
        } else {
            self.push_large(addr, rounded, entry)
        };
        if kept {
            self.thread.keep(rounded);
        }
        kept
    }

    #[inline]
    fn push_small(&self, addr: u64, bytes: u64, entry: &Entry) -> bool {
        let stack = made(&self.small[class_of(bytes)]);
        let len = stack.len.load(Ordering::Relaxed);
        let Some(place) = stack.places.get(len as usize) else { return false };
        entry.set_requested(0);
        place.put(addr, entry);
        stack.len.store(len + 1, Ordering::Relaxed);
        true
    }

    fn push_large(&self, addr: u64, rounded: u64, entry: &Entry) -> bool {
        if NOLARGE.with(|n| *n) { return false }
        let large = made(&self.large);
        let mut empty = large.set(rounded).iter();
        let Some(way) = empty.find(|way| way.place.addr.load(Ordering::Relaxed) == 0) else { return false };
        entry.set_requested(0);
        way.bytes.store(rounded, Ordering::Relaxed);
        way.place.put(addr, entry);
        true
    }

    /// Takes one large block out, to make room: each in turn.
    pub(super) fn evict_large(&self) -> Option<u64> {
        // SAFETY: as above.
        let large = unsafe { self.large.load(Ordering::Relaxed).as_ref() }?;
        for _ in 0..SETS * WAYS {
            let hand = large.hand.load(Ordering::Relaxed).wrapping_add(1);
            large.hand.store(hand, Ordering::Relaxed);
            let index = hand as usize % (SETS * WAYS);
            let way = &large.sets[index / WAYS][index % WAYS];
            if let Some(addr) = way.place.take() {
                self.thread.unkeep(way.bytes.load(Ordering::Relaxed));
                return Some(addr);
            }
        }
        None
    }

    /// Takes every block out, on any thread, and tells `give` the address of each; `give` says its size.
    pub(super) fn drain(&self, mut give: impl FnMut(u64) -> u64) {
        let mut take = |place: &Place| {
            if place.addr.load(Ordering::Relaxed) != 0
                && let Some(addr) = place.take()
            {
                let bytes = give(addr);
                self.thread.drained_bytes.fetch_add(bytes, Ordering::Relaxed);
                self.thread.drained_blocks.fetch_add(1, Ordering::Relaxed);
            }
        };
        for stack in self.small.iter() {
            // SAFETY: a stack that is there lives as long as the front.
            if let Some(stack) = unsafe { stack.load(Ordering::Acquire).as_ref() } {
                stack.places.iter().for_each(&mut take);
            }
        }
        // SAFETY: as above.
        if let Some(large) = unsafe { self.large.load(Ordering::Acquire).as_ref() } {
            large.sets.as_flattened().iter().for_each(|way| take(&way.place));
        }
    }
}

/// What is there, made at first need by the only thread that makes it.
#[inline]
fn made<T: Default>(part: &AtomicPtr<T>) -> &T {
    #[cold]
    fn make<T: Default>(part: &AtomicPtr<T>) -> *mut T {
        let new = Box::into_raw(Box::<T>::default());
        part.store(new, Ordering::Release);
        new
    }
    let there = part.load(Ordering::Relaxed);
    let there = if there.is_null() { make(part) } else { there };
    // SAFETY: it was made above, now or before, and lives as long as the front.
    unsafe { &*there }
}

impl Drop for Front {
    fn drop(&mut self) {
        fn drop_part<T>(part: &mut AtomicPtr<T>) {
            let part = *part.get_mut();
            if !part.is_null() {
                // SAFETY: it came from a box, and nobody else looks at it any more.
                drop(unsafe { Box::from_raw(part) });
            }
        }
        self.small.iter_mut().for_each(drop_part);
        drop_part(&mut self.large);
    }
}

thread_local!{ static NOLARGE: bool = super::heaps::tune("MP_NOLARGE",0)==1; }
