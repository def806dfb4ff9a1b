//! Caches one stream's free blocks on one thread, by size: a push or a pop takes no lock.
//!
//! ```text
//!  stream cache (of a thread and a stream)
//!    small[256], by size class ─▶ stack of up to 32 slots
//!    large: the block of more than 1 MiB that was freed last
//!
//!  a stack:  [ block | block | 0 | block | 0 | 0 | 0 | 0 ]
//!                              ▲           ▲
//!              taken by another thread     len: all slots from here on are empty
//! ```
//!
//! A slot holds a block's address, or 0. Only the cache's thread puts blocks in, by a plain store, and it
//! takes the topmost one by exchanging it with 0. Any thread may do the same with any slot
//! ([`StreamCache::flush`]) when memory is short. So if two threads want one block, exactly one gets it, and
//! neither waits.
//!
//! A cached block is free for its stream only. The free was in that stream's order, so an allocation on the
//! same stream needs no further ordering. If a block leaves the cache in another way, it counts as freed at
//! that moment. That is later than the real free, and therefore safe.

mod idle;

use std::ptr;
use std::sync::Arc;

use millpond_core::StreamId;

use crate::block_map::BlockEntry;
use crate::heap::size_class::{BlockSize, CLASSES, bytes_of};
use crate::pool::cache::thread_counts::{ThreadCounts, add_signed};
use crate::stream_order::streams::StreamCell;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, bounded};

/// The most blocks of one size class.
pub(crate) const DEPTH: usize = bounded(32, 2);

/// Holds at most one block.
#[derive(Debug, Default)]
struct CacheSlot {
    /// The block's address; 0 for none.
    addr: AtomicU64,
    /// The entry of the block that was put here last. Only the cache's thread reads it.
    entry: AtomicPtr<BlockEntry>,
}

impl CacheSlot {
    /// Takes the block out. Any thread may call it.
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

/// The blocks of a size class.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Stack {
    /// All slots from this one on are empty.
    len: AtomicU32,
    slots: [CacheSlot; DEPTH],
}

impl Stack {
    /// Returns the slots that may have a block.
    fn filled(&self) -> impl Iterator<Item = &CacheSlot> {
        self.slots.iter().take(self.len.load(Ordering::Relaxed) as usize)
    }
}

/// The large block that was freed last.
#[derive(Debug, Default)]
#[repr(align(64))]
struct LastLarge {
    /// The bytes of the block that was put here last; 0 once the cache's thread took it out. Only that thread
    /// writes it.
    bytes: AtomicU64,
    slot: CacheSlot,
}

/// The free blocks of a stream on a thread. Only that thread may call methods that change it, except
/// [`flush`](Self::flush) and [`flush_class`](Self::flush_class).
#[derive(Debug)]
pub(crate) struct StreamCache {
    pub(crate) id: StreamId,
    pub(crate) stream: Arc<StreamCell>,
    /// The thread's counters, which all its stream caches share.
    pub(crate) thread: Arc<ThreadCounts>,
    small: Box<[AtomicPtr<Stack>; CLASSES]>,
    /// A bit for each size class that may have blocks. Only the cache's thread writes it.
    filled: [AtomicU64; CLASSES / 64],
    large: LastLarge,
}

/// A block that was popped from a stream cache, and its entry.
pub(crate) struct CachedBlock<'a> {
    pub(crate) addr: u64,
    pub(crate) entry: &'a BlockEntry,
    /// The thread now exceeds its [quota](crate::pool::cache::peak) of live bytes.
    pub(crate) exceeds_quota: bool,
}

impl StreamCache {
    pub(crate) fn new(id: StreamId, stream: Arc<StreamCell>, thread: Arc<ThreadCounts>) -> Self {
        let small = Box::new(std::array::from_fn(|_| AtomicPtr::default()));
        Self { id, stream, thread, small, filled: Default::default(), large: LastLarge::default() }
    }

    /// Pops a block of this size for a request of `requested` bytes.
    #[inline(always)]
    pub(crate) fn pop(&self, requested: u64, size: BlockSize) -> Option<CachedBlock<'_>> {
        let slot = if size.is_small() { self.pop_small(size) } else { self.pop_large(size.bytes) };
        let (addr, slot) = slot?;
        self.thread.end_pop(requested);
        let exceeds_quota = self.thread.exceeds_quota();
        // SAFETY: the calling thread is the cache's thread, which wrote the entry of the block that it put
        // in; entries live as long as the pool, which the call borrows.
        let entry = unsafe { &*slot.entry.load(Ordering::Relaxed) };
        Some(CachedBlock { addr, entry, exceeds_quota })
    }

    #[inline(always)]
    fn pop_small(&self, size: BlockSize) -> Option<(u64, &CacheSlot)> {
        self.thread.begin_pop(size.bytes);
        let taken = self.take_small(size);
        if taken.is_none() {
            self.thread.cancel_pop(size.bytes);
        }
        taken
    }

    /// Takes the topmost block of a size class.
    #[inline(always)]
    fn take_small(&self, size: BlockSize) -> Option<(u64, &CacheSlot)> {
        let class = size.class();
        // With many streams, the stacks are in no cache of the processor: a clear bit saves reading one.
        if self.filled[class / 64].load(Ordering::Relaxed) >> (class % 64) & 1 == 0 {
            return None;
        }
        // SAFETY: a stack lives as long as the stream cache.
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

    /// Pushes a small block that was freed on the cache's stream. It caches at most `room` bytes per size
    /// class, but at least one block.
    #[inline(always)]
    pub(crate) fn push(
        &self,
        addr: u64,
        requested: u64,
        size: BlockSize,
        entry: &BlockEntry,
        room: u64,
    ) -> bool {
        let is_cached = self.push_small(addr, size, entry, room);
        if is_cached {
            self.thread.count_push(size.bytes, requested);
        }
        is_cached
    }

    fn pop_large(&self, rounded: u64) -> Option<(u64, &CacheSlot)> {
        if self.large.bytes.load(Ordering::Relaxed) != rounded {
            return None;
        }
        self.thread.begin_pop(rounded);
        let taken = self.take_large();
        if taken.is_none() {
            self.thread.cancel_pop(rounded);
        }
        taken.map(|addr| (addr, &self.large.slot))
    }

    fn take_large(&self) -> Option<u64> {
        let bytes = self.large.bytes.load(Ordering::Relaxed);
        if bytes == 0 {
            return None;
        }
        self.large.bytes.store(0, Ordering::Relaxed);
        add_signed(&self.thread.large_bytes, -(bytes as i64));
        let taken = self.large.slot.take();
        if taken.is_none() {
            // Another thread flushed it.
            self.thread.forget(bytes);
        }
        taken
    }

    /// Returns whether the last large block is there, or was until another thread flushed it. Only the
    /// cache's thread may call it.
    pub(crate) fn has_large(&self) -> bool {
        self.large.bytes.load(Ordering::Relaxed) != 0
    }

    /// Takes the last large block out to free it; returns its entry.
    pub(crate) fn evict_large(&self) -> Option<&BlockEntry> {
        let bytes = self.large.bytes.load(Ordering::Relaxed);
        self.take_large()?;
        self.thread.count_eviction(bytes);
        // SAFETY: as in `pop`.
        Some(unsafe { &*self.large.slot.entry.load(Ordering::Relaxed) })
    }

    /// Pushes a large block that was freed on the cache's stream. The caller has evicted the previous one.
    pub(crate) fn push_large(&self, addr: u64, bytes: u64, rounded: u64, entry: &BlockEntry) {
        debug_assert_eq!(self.large.bytes.load(Ordering::Relaxed), 0);
        entry.set_requested(0);
        self.large.bytes.store(rounded, Ordering::Relaxed);
        self.large.slot.put(addr, entry);
        self.thread.count_push(rounded, bytes);
        add_signed(&self.thread.large_bytes, rounded as i64);
    }

    /// Takes out up to half a stack of a size class, and calls `evict` with each block's entry.
    pub(crate) fn evict_half(&self, size: BlockSize, mut evict: impl FnMut(&BlockEntry)) {
        for _ in 0..DEPTH / 2 {
            let Some((_, slot)) = self.take_small(size) else { return };
            self.thread.count_eviction(size.bytes);
            // SAFETY: as in `pop`.
            evict(unsafe { &*slot.entry.load(Ordering::Relaxed) });
        }
    }

    #[inline(always)]
    fn push_small(&self, addr: u64, size: BlockSize, entry: &BlockEntry, room: u64) -> bool {
        let class = size.class();
        let stack = get_or_make(&self.small[class]);
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

    /// Takes all blocks out, or only the large one, and calls `free` with each address; `free` returns the
    /// block's bytes. Any thread may call it.
    pub(crate) fn flush(&self, large_only: bool, mut free: impl FnMut(u64) -> u64) {
        let mut take = |slot: &CacheSlot| {
            if slot.addr.load(Ordering::Relaxed) != 0
                && let Some(addr) = slot.take()
            {
                self.thread.count_flush(free(addr));
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
                // SAFETY: a stack lives as long as the stream cache.
                if let Some(stack) = unsafe { self.small[class].load(Ordering::Acquire).as_ref() } {
                    stack.filled().for_each(&mut take);
                }
            }
        }
    }
}

impl StreamCache {
    /// Calls `visit` with the address of each cached block. Any thread may call it: a block that its thread
    /// moves meanwhile is visited or not.
    pub(crate) fn each_address(&self, mut visit: impl FnMut(u64)) {
        let mut visit_slot = |slot: &CacheSlot| match slot.addr.load(Ordering::Relaxed) {
            0 => {}
            addr => visit(addr),
        };
        visit_slot(&self.large.slot);
        for stack in &*self.small {
            // SAFETY: a stack lives as long as the stream cache.
            if let Some(stack) = unsafe { stack.load(Ordering::Acquire).as_ref() } {
                stack.filled().for_each(&mut visit_slot);
            }
        }
    }

    /// Calls `visit` with each cached block's address, the largest size that its slot takes, and its entry.
    /// No thread may use the stream cache meanwhile.
    pub(crate) fn each_cached(&self, mut visit: impl FnMut(u64, u64, &BlockEntry)) {
        let mut visit_slot = |slot: &CacheSlot, bytes: u64| {
            let addr = slot.addr.load(Ordering::Relaxed);
            if addr != 0 {
                // SAFETY: as in `pop`; the stream cache's thread is in no call.
                visit(addr, bytes, unsafe { &*slot.entry.load(Ordering::Relaxed) });
            }
        };
        visit_slot(&self.large.slot, self.large.bytes.load(Ordering::Relaxed));
        for (class, stack) in self.small.iter().enumerate() {
            // SAFETY: a stack lives as long as the stream cache.
            let Some(stack) = (unsafe { stack.load(Ordering::Relaxed).as_ref() }) else { continue };
            let len = stack.len.load(Ordering::Relaxed) as usize;
            let is_filled = self.filled[class / 64].load(Ordering::Relaxed) >> (class % 64) & 1 == 1;
            assert!(len == 0 || is_filled, "I21: a flush does not see class {class}");
            let above = stack.slots.iter().skip(len).any(|slot| slot.addr.load(Ordering::Relaxed) != 0);
            assert!(!above, "I21: a block is above the top of class {class}");
            stack.slots.iter().for_each(|slot| visit_slot(slot, bytes_of(class)));
        }
    }
}

/// Returns the part; creates it if needed. Only the cache's thread calls it.
#[inline]
fn get_or_make<T: Default>(part: &AtomicPtr<T>) -> &T {
    #[cold]
    fn make<T: Default>(part: &AtomicPtr<T>) -> *mut T {
        let new = Box::into_raw(Box::<T>::default());
        part.store(new, Ordering::Release);
        new
    }
    let made = part.load(Ordering::Relaxed);
    let made = if made.is_null() { make(part) } else { made };
    // SAFETY: `make` created it, in this call or before, and it lives as long as the stream cache.
    unsafe { &*made }
}

impl Drop for StreamCache {
    fn drop(&mut self) {
        for stack in self.small.iter() {
            let stack = stack.load(Ordering::Relaxed);
            if !stack.is_null() {
                // SAFETY: it came from a box, and no other thread uses the stream cache any more.
                drop(unsafe { Box::from_raw(stack) });
            }
        }
    }
}

#[cfg(all(test, millpond_loom))]
mod models;
