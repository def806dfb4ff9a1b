//! What a thread keeps of a stream's free blocks, by size: taken and put back without a lock.
//!
//! ```text
//!  Stream cache (a thread and a stream)
//!    small[256], by class (classes.rs) ─▶ stack of up to 32 blocks
//!    large: the block of more than 1 MiB that was given back last
//!
//!  a stack:  [ block | block | 0 | block | 0 | 0 | 0 | 0 ]
//!                               ▲           ▲
//!               taken by another thread     len: nothing is at or above
//! ```
//!
//! A place holds a block's address. Its thread alone puts blocks in, and takes the topmost out by exchanging
//! it with 0; any thread may do the same with any place ([`StreamCache::flush`]), when memory is short. So of
//! two who want a block one gets it, nobody waits, and putting one in is a plain store.
//!
//! A block here is free for its stream only, whose order its free was in: handing it out on the same stream
//! needs nothing else. When it leaves the stream cache otherwise, it counts as given back at that moment,
//! which is later than it was, and so safe.

mod idle;

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::compiler_fence;

use millpond_core::StreamId;

use crate::block_map::BlockEntry;
use crate::heap::size_class::{BlockSize, CLASSES, LARGEST_SMALL, bytes_of};
use crate::pool::arena::Contention;
use crate::stream_order::streams::StreamCell;
use crate::sync::{AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, bounded};

/// Blocks of one class, at most.
const DEPTH: usize = bounded(32, 2);

/// A place for a block.
#[derive(Debug, Default)]
struct CacheSlot {
    /// 0 for none.
    addr: AtomicU64,
    /// Of the block last put here. For the stream cache's thread only.
    entry: AtomicPtr<BlockEntry>,
}

impl CacheSlot {
    /// Takes the block out, whoever does it.
    #[inline]
    fn take(&self) -> Option<u64> {
        Some(self.addr.swap(0, Ordering::SeqCst)).filter(|addr| *addr != 0)
    }

    #[inline]
    fn put(&self, addr: u64, entry: &BlockEntry) {
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
    slots: [CacheSlot; DEPTH],
}

impl Stack {
    /// The places that may have a block.
    fn filled(&self) -> impl Iterator<Item = &CacheSlot> {
        self.slots.iter().take(self.len.load(Ordering::Relaxed) as usize)
    }
}

/// The large block that was given back last.
#[derive(Debug, Default)]
#[repr(align(64))]
struct LastLarge {
    /// The size of the block that was put here last; 0 once the thread took it out. Written by the stream
    /// cache's thread only.
    bytes: AtomicU64,
    slot: CacheSlot,
}

/// See the module. Methods that change what is in it are for its thread, but for [`flush`](Self::flush).
#[derive(Debug)]
pub(crate) struct StreamCache {
    pub(crate) id: StreamId,
    pub(crate) stream: Arc<StreamCell>,
    /// What all stream caches of the thread share.
    pub(crate) thread: Arc<ThreadCounts>,
    small: Box<[AtomicPtr<Stack>; CLASSES]>,
    /// A bit for each class that may have blocks. Written by the stream cache's thread only.
    filled: [AtomicU64; CLASSES / 64],
    large: LastLarge,
}

/// A block that was taken out of a stream cache, and its entry.
pub(crate) struct CachedBlock<'a> {
    pub(crate) addr: u64,
    pub(crate) entry: &'a BlockEntry,
    /// More is in use on the thread now than it may hand out without [asking](crate::pool::cache::peak).
    pub(crate) is_beyond: bool,
}

/// Adds to a counter that one thread writes and all read.
#[inline]
pub(crate) fn add(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// Counters of a thread: written by it, read by all.
///
/// The stream caches count what they keep, and the pool what passes by them; what is handed out is the
/// difference. So a block that goes in and out of a stream cache costs few stores.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ThreadCounts {
    /// Bytes put in stream caches less bytes that the thread took out.
    pub(crate) cached_bytes: AtomicI64,
    /// Of it, bytes in large blocks.
    large_bytes: AtomicI64,
    /// Where `cached_bytes` falls below this and `lent` together, the thread hands out more than it may
    /// without asking: see [`peak`](crate::pool::cache::peak).
    pub(crate) floor: AtomicI64,
    /// What other threads took of what this one may hand out. Written by them.
    pub(crate) lent: AtomicI64,
    /// As `cached_bytes`, as asked for, of the requests that ended and began so.
    cached_requested: AtomicI64,
    pops: AtomicU64,
    pushes: AtomicU64,
    /// Blocks that the thread took out of stream caches, and did not hand out.
    evicted_blocks: AtomicU64,
    /// How many went past the stream caches when what may be kept was last thought over.
    looked_at: AtomicU64,
    /// Bytes handed out less bytes reclaimed past the stream caches, on this thread; may be below zero.
    live_bytes: AtomicI64,
    live_requested: AtomicI64,
    allocations: AtomicU64,
    deallocations: AtomicU64,
    /// Of the allocations, those that took a block of their stream, or unowned, from an arena.
    pub(crate) own_stream: AtomicU64,
    pub(crate) completed: AtomicU64,
    /// The thread's arena.
    pub(crate) shard: AtomicU8,
    /// What it knows of others there.
    pub(crate) contention: Contention,
    /// Whether the thread is gone.
    pub(crate) orphaned: AtomicBool,
    /// Whether the pool is gone.
    pub(crate) is_closed: AtomicBool,
    /// Taken out of the stream caches for others: written by any thread.
    flushed: Flushed,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Flushed {
    /// In small blocks.
    bytes: AtomicI64,
    blocks: AtomicU64,
}

/// What a thread's counters say.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct ThreadTotals {
    /// Bytes handed out less bytes reclaimed, on this thread.
    pub(crate) live_bytes: i64,
    pub(crate) live_requested: i64,
    pub(crate) allocations: u64,
    pub(crate) deallocations: u64,
    pub(crate) own_stream: u64,
    pub(crate) completed: u64,
    /// Blocks in the thread's stream caches.
    pub(crate) blocks_held: u64,
}

#[inline]
fn raise(counter: &AtomicI64, by: i64) -> i64 {
    let sum = counter.load(Ordering::Relaxed).wrapping_add(by);
    counter.store(sum, Ordering::Relaxed);
    sum
}

impl ThreadCounts {
    /// A block of `bytes` is about to be handed out, past the stream caches. Said before a lock is taken, and
    /// undone where there was none: the lock's exchange is the fence between this and
    /// [`is_beyond`](Self::is_beyond).
    pub(crate) fn takes(&self, bytes: u64) {
        raise(&self.floor, bytes as i64);
        compiler_fence(Ordering::SeqCst);
    }

    pub(crate) fn took_none(&self, bytes: u64) {
        raise(&self.floor, -(bytes as i64));
    }

    /// The block of `bytes` was handed out.
    pub(crate) fn took(&self, bytes: u64, requested: u64) {
        raise(&self.live_bytes, bytes as i64);
        raise(&self.live_requested, requested as i64);
        add(&self.allocations, 1);
    }

    /// A block of `bytes` was reclaimed, past the stream caches.
    pub(crate) fn deallocated(&self, bytes: u64, requested: u64) {
        raise(&self.live_bytes, -(bytes as i64));
        raise(&self.live_requested, -(requested as i64));
        raise(&self.floor, -(bytes as i64));
        add(&self.deallocations, 1);
    }

    /// Whether so many more blocks went past the stream caches that what may be kept should be thought over.
    pub(crate) fn is_time_to_look(&self) -> bool {
        const PAST: u64 = 1024;
        let past = self.deallocations.load(Ordering::Relaxed) + self.evicted_blocks.load(Ordering::Relaxed);
        let is_time = past >= self.looked_at.load(Ordering::Relaxed) + PAST;
        if is_time {
            self.looked_at.store(past, Ordering::Relaxed);
        }
        is_time
    }

    /// What the thread keeps, the least that it has to, and how often it changed either: two equal answers
    /// say that the thread did nothing in between.
    pub(crate) fn marks(&self) -> ([i64; 2], [u64; 5]) {
        let bytes = [&self.cached_bytes, &self.floor];
        let counts = [&self.pops, &self.pushes, &self.evicted_blocks, &self.allocations, &self.deallocations];
        (bytes.map(|it| it.load(Ordering::Relaxed)), counts.map(|it| it.load(Ordering::Relaxed)))
    }

    /// Bytes in small blocks in the thread's stream caches.
    #[inline]
    pub(crate) fn small_bytes_held(&self) -> u64 {
        let gone = self.flushed.bytes.load(Ordering::Relaxed) + self.large_bytes.load(Ordering::Relaxed);
        (self.cached_bytes.load(Ordering::Relaxed) - gone).max(0) as u64
    }

    /// Whether a large block may be in the thread's stream caches.
    pub(crate) fn may_have_large(&self) -> bool {
        self.large_bytes.load(Ordering::Relaxed) > 0
    }

    #[inline]
    pub(crate) fn pushed(&self, bytes: u64, requested: u64) {
        raise(&self.cached_bytes, bytes as i64);
        raise(&self.cached_requested, requested as i64);
        add(&self.pushes, 1);
    }

    /// A block is about to be taken out of a stream cache and handed out. Said before the exchange that takes
    /// it, and undone where there was none: the exchange is the fence between this and
    /// [`is_beyond`](Self::is_beyond).
    #[inline]
    pub(crate) fn pops(&self, bytes: u64) {
        raise(&self.cached_bytes, -(bytes as i64));
    }

    #[inline]
    fn popped_none(&self, bytes: u64) {
        raise(&self.cached_bytes, bytes as i64);
    }

    #[inline]
    pub(crate) fn popped(&self, requested: u64) {
        raise(&self.cached_requested, -(requested as i64));
        add(&self.pops, 1);
    }

    /// The thread took a block out of a stream cache for others.
    fn evicted(&self, bytes: u64) {
        self.forget(bytes);
        add(&self.evicted_blocks, 1);
    }

    /// A block is not kept any more, and was not handed out.
    fn forget(&self, bytes: u64) {
        raise(&self.cached_bytes, -(bytes as i64));
        raise(&self.live_bytes, -(bytes as i64));
        // After what is kept: nobody sees more left to the thread than there is.
        let floor = self.floor.load(Ordering::Relaxed).wrapping_sub(bytes as i64);
        self.floor.store(floor, Ordering::Release);
    }

    /// Another thread took a block out of a stream cache.
    fn flushed(&self, bytes: u64) {
        if bytes <= LARGEST_SMALL {
            self.flushed.bytes.fetch_add(bytes as i64, Ordering::Relaxed);
        }
        self.flushed.blocks.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn totals(&self) -> ThreadTotals {
        let (live, kept) =
            (self.live_bytes.load(Ordering::Relaxed), self.cached_bytes.load(Ordering::Relaxed));
        let (pops, pushes) = (self.pops.load(Ordering::Relaxed), self.pushes.load(Ordering::Relaxed));
        let requested = self.live_requested.load(Ordering::Relaxed);
        let flushed = self.flushed.blocks.load(Ordering::Relaxed);
        let gone = flushed + self.evicted_blocks.load(Ordering::Relaxed);
        ThreadTotals {
            live_bytes: live - kept,
            live_requested: requested - self.cached_requested.load(Ordering::Relaxed),
            allocations: self.allocations.load(Ordering::Relaxed) + pops,
            deallocations: self.deallocations.load(Ordering::Relaxed) + pushes,
            own_stream: self.own_stream.load(Ordering::Relaxed) + pops,
            completed: self.completed.load(Ordering::Relaxed),
            blocks_held: pushes.wrapping_sub(pops).wrapping_sub(gone),
        }
    }
}

impl StreamCache {
    pub(crate) fn new(id: StreamId, stream: Arc<StreamCell>, thread: Arc<ThreadCounts>) -> Self {
        let small = Box::new(std::array::from_fn(|_| AtomicPtr::default()));
        Self { id, stream, thread, small, filled: Default::default(), large: LastLarge::default() }
    }

    /// Takes a block of this size for a request of `requested` bytes.
    #[inline(always)]
    pub(crate) fn pop(&self, requested: u64, size: BlockSize) -> Option<CachedBlock<'_>> {
        let slot = if size.is_small() { self.pop_small(size) } else { self.pop_large(size.bytes) };
        let (addr, slot) = slot?;
        self.thread.popped(requested);
        let is_beyond = self.thread.is_beyond();
        // SAFETY: the stream cache's thread, which this is, wrote the entry of the block that it put in;
        // entries live as long as the pool, and the pool is borrowed by the call.
        let entry = unsafe { &*slot.entry.load(Ordering::Relaxed) };
        Some(CachedBlock { addr, entry, is_beyond })
    }

    /// Takes a block of a class out, to be handed out.
    #[inline(always)]
    fn pop_small(&self, size: BlockSize) -> Option<(u64, &CacheSlot)> {
        self.thread.pops(size.bytes);
        let taken = self.take_small(size);
        if taken.is_none() {
            self.thread.popped_none(size.bytes);
        }
        taken
    }

    /// Takes a block of a class out.
    #[inline(always)]
    fn take_small(&self, size: BlockSize) -> Option<(u64, &CacheSlot)> {
        let class = size.class();
        // Says so where nothing is, without the stack's address ranges: with many streams those are in no
        // cache.
        if self.filled[class / 64].load(Ordering::Relaxed) >> (class % 64) & 1 == 0 {
            return None;
        }
        // SAFETY: a stack that is there lives as long as the stream cache.
        let stack = unsafe { self.small[class].load(Ordering::Relaxed).as_ref() }?;
        let mut len = stack.len.load(Ordering::Relaxed);
        if len == 0 {
            let filled = &self.filled[class / 64];
            filled.store(filled.load(Ordering::Relaxed) & !(1 << (class % 64)), Ordering::Relaxed);
            return None;
        }
        while len > 0 {
            len -= 1;
            let slot = &stack.slots[len as usize % DEPTH];
            let taken = slot.take();
            stack.len.store(len, Ordering::Relaxed);
            if let Some(addr) = taken {
                return Some((addr, slot));
            }
        }
        None
    }

    /// Keeps a small block that was freed on the stream cache's stream, if there is room.
    ///
    /// Of one class, so many bytes have room, or one block.
    #[inline(always)]
    pub(crate) fn push(
        &self,
        addr: u64,
        requested: u64,
        size: BlockSize,
        entry: &BlockEntry,
        room: u64,
    ) -> bool {
        let kept = self.push_small(addr, size, entry, room);
        if kept {
            self.thread.pushed(size.bytes, requested);
        }
        kept
    }

    fn pop_large(&self, rounded: u64) -> Option<(u64, &CacheSlot)> {
        if self.large.bytes.load(Ordering::Relaxed) != rounded {
            return None;
        }
        self.thread.pops(rounded);
        let taken = self.take_large();
        if taken.is_none() {
            self.thread.popped_none(rounded);
        }
        taken.map(|addr| (addr, &self.large.slot))
    }

    fn take_large(&self) -> Option<u64> {
        let bytes = self.large.bytes.load(Ordering::Relaxed);
        if bytes == 0 {
            return None;
        }
        self.large.bytes.store(0, Ordering::Relaxed);
        raise(&self.thread.large_bytes, -(bytes as i64));
        let taken = self.large.slot.take();
        if taken.is_none() {
            // Another thread took it.
            self.thread.forget(bytes);
        }
        taken
    }

    /// Takes the large block out, for others: its entry, if it is still here.
    pub(crate) fn evict_large(&self) -> Option<&BlockEntry> {
        let bytes = self.large.bytes.load(Ordering::Relaxed);
        self.take_large()?;
        self.thread.evicted(bytes);
        // SAFETY: as in `pop`.
        Some(unsafe { &*self.large.slot.entry.load(Ordering::Relaxed) })
    }

    /// Keeps a large block that was freed on the stream cache's stream; the one before was given up.
    pub(crate) fn push_large(&self, addr: u64, bytes: u64, rounded: u64, entry: &BlockEntry) {
        debug_assert_eq!(self.large.bytes.load(Ordering::Relaxed), 0);
        entry.set_requested(0);
        self.large.bytes.store(rounded, Ordering::Relaxed);
        self.large.slot.put(addr, entry);
        self.thread.pushed(rounded, bytes);
        raise(&self.thread.large_bytes, rounded as i64);
    }

    /// Takes up to half of what a class can keep, for others; `evict` is told the entry of each.
    pub(crate) fn evict_half(&self, size: BlockSize, mut evict: impl FnMut(&BlockEntry)) {
        for _ in 0..DEPTH / 2 {
            let Some((_, slot)) = self.take_small(size) else { return };
            self.thread.evicted(size.bytes);
            // SAFETY: as in `pop`.
            evict(unsafe { &*slot.entry.load(Ordering::Relaxed) });
        }
    }

    #[inline(always)]
    fn push_small(&self, addr: u64, size: BlockSize, entry: &BlockEntry, room: u64) -> bool {
        let class = size.class();
        let stack = made(&self.small[class]);
        let len = stack.len.load(Ordering::Relaxed);
        let Some(slot) = stack.slots.get(len as usize).filter(|_| u64::from(len) * size.bytes < room) else {
            return false;
        };
        if len == 0 {
            let filled = &self.filled[class / 64];
            filled.store(filled.load(Ordering::Relaxed) | 1 << (class % 64), Ordering::Relaxed);
        }
        entry.set_requested(0);
        slot.put(addr, entry);
        stack.len.store(len + 1, Ordering::Relaxed);
        true
    }

    /// Takes every block out, or every large one, on any thread, and tells `free` the address of each; `free`
    /// says its size.
    pub(crate) fn flush(&self, large_only: bool, mut free: impl FnMut(u64) -> u64) {
        let mut take = |slot: &CacheSlot| {
            if slot.addr.load(Ordering::Relaxed) != 0
                && let Some(addr) = slot.take()
            {
                self.thread.flushed(free(addr));
            }
        };
        take(&self.large.slot);
        if large_only {
            return;
        }
        for (word, filled) in self.filled.iter().enumerate() {
            let mut bits = filled.load(Ordering::Acquire);
            while bits != 0 {
                let class = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                // SAFETY: a stack that is there lives as long as the stream cache.
                if let Some(stack) = unsafe { self.small[class].load(Ordering::Acquire).as_ref() } {
                    stack.filled().for_each(&mut take);
                }
            }
        }
    }
}

impl StreamCache {
    /// Looks at each kept block: its address, the largest size that its place takes, its entry. No thread
    /// works on the stream cache meanwhile.
    pub(crate) fn each_cached(&self, mut look: impl FnMut(u64, u64, &BlockEntry)) {
        let mut look_at = |slot: &CacheSlot, bytes: u64| {
            let addr = slot.addr.load(Ordering::Relaxed);
            if addr != 0 {
                // SAFETY: as in `pop`; the stream cache's thread is in no call.
                look(addr, bytes, unsafe { &*slot.entry.load(Ordering::Relaxed) });
            }
        };
        look_at(&self.large.slot, self.large.bytes.load(Ordering::Relaxed));
        for (class, stack) in self.small.iter().enumerate() {
            // SAFETY: a stack that is there lives as long as the stream cache.
            let Some(stack) = (unsafe { stack.load(Ordering::Relaxed).as_ref() }) else { continue };
            let len = stack.len.load(Ordering::Relaxed) as usize;
            let is_filled = self.filled[class / 64].load(Ordering::Relaxed) >> (class % 64) & 1 == 1;
            assert!(len == 0 || is_filled, "I21: a drain does not see class {class}");
            let above = stack.slots.iter().skip(len).any(|slot| slot.addr.load(Ordering::Relaxed) != 0);
            assert!(!above, "I21: something is above the top of class {class}");
            stack.slots.iter().for_each(|slot| look_at(slot, bytes_of(class)));
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
    // SAFETY: it was made above, now or before, and lives as long as the stream cache.
    unsafe { &*there }
}

impl Drop for StreamCache {
    fn drop(&mut self) {
        for stack in self.small.iter() {
            let stack = stack.load(Ordering::Relaxed);
            if !stack.is_null() {
                // SAFETY: it came from a box, and nobody else looks at it any more.
                drop(unsafe { Box::from_raw(stack) });
            }
        }
    }
}

#[cfg(all(test, millpond_loom))]
mod models;
