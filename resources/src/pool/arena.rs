//! Arenas: heaps of small blocks, in spans cut from large blocks. Each has its own lock.
//!
//! One arena serves all threads at first. If two threads repeatedly use an arena at the same time, one of
//! them moves to another arena. The pool creates it if needed.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;

use crate::block_map::{BlockEntry, ChunkId, HeapId};
use crate::heap::owner_bits::OwnerBits;
use crate::heap::{Heap, Region};
use crate::store::{NewSpan, Store};
use crate::stream_order::{Epoch, Owner};
use crate::sync::spin_lock::{SpinGuard, SpinLock};
use crate::tuning::{FEW_COMPARED, LEAST_PIECE, LITTLE, SPAN_BYTES};

/// The number of an arena.
pub(super) type Shard = u8;

/// The number of entries in tables with one entry for each arena.
pub(super) const ARENAS: usize = 64;

/// All arenas of a pool.
#[derive(Debug)]
pub(super) struct Arenas {
    arenas: [OnceLock<Padded>; ARENAS],
    /// The number of arenas created so far.
    made: AtomicU8,
    limit: u8,
}

#[derive(Debug)]
#[repr(align(128))]
struct Padded {
    arena: SpinLock<Arena>,
    /// The owner bits of the arena's heap, readable without its lock.
    owners: Arc<OwnerBits>,
}

impl Padded {
    fn new() -> Self {
        let arena = Arena::new();
        Self { owners: Arc::clone(&arena.heap.owners), arena: SpinLock::new(arena) }
    }
}

/// A heap of small blocks, whose regions are spans.
#[derive(Debug)]
pub(super) struct Arena {
    pub(super) heap: Heap,
    /// The spans by their addresses, each with its chunk in the large heap.
    spans: FxHashMap<u64, ChunkId>,
    /// Identifies the thread that took the last block; 0 for none.
    pub(super) taker: usize,
}

/// A span that leaves its arena for the large heap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) chunk: ChunkId,
    pub(super) owner: Owner,
    pub(super) epoch: Epoch,
}

impl Arena {
    fn new() -> Self {
        Self { heap: Heap::new(FEW_COMPARED), spans: FxHashMap::default(), taker: 0 }
    }

    /// Adds a span, free for `owner`.
    pub(super) fn add_span(&mut self, span: &NewSpan, owner: Owner) {
        self.heap.next_number = span.region;
        self.heap.add_region(span.base, span.bytes, owner, span.epoch);
        self.spans.insert(span.base, span.chunk);
    }

    /// Removes a fully free span.
    pub(super) fn remove_free_span(&mut self) -> Option<Span> {
        let (region, owner, epoch) = self.heap.remove_free_region(|_| true)?;
        let chunk = self.spans.remove(&region.base).expect("an arena's regions are spans");
        Some(Span { chunk, owner, epoch })
    }

    /// Returns each span with its chunk in the large heap.
    pub(super) fn spans(&self) -> impl Iterator<Item = (&Region, ChunkId)> {
        self.heap.regions().iter().map(|region| (region, self.spans[&region.base]))
    }

    /// Panics unless every span is a chunk in use of the large heap; returns the number of spans.
    pub(super) fn validate_spans(&self, store: &dyn Store) -> u64 {
        assert_eq!(self.spans.len(), self.heap.regions().len(), "I13: spans and regions of an arena");
        for region in self.heap.regions() {
            let block = self.spans[&region.base];
            let first = store.first_piece(block).filter(|first| first.is_in_use());
            let is_block = first.is_some_and(|first| {
                // A span over pages may start anywhere in an alias.
                let is_there = store.pages().is_some() || first.addr == region.base;
                is_there && store.bytes_of(block) == region.bytes
            });
            assert!(is_block, "I13: the span at {:#x} is no block in use", region.base);
        }
        self.spans.len() as u64
    }

    /// Returns whether free spans should return to the large heap: there are several, and half of the arena
    /// is free.
    #[inline]
    pub(super) fn has_excess(&self) -> bool {
        self.heap.regions_free > 1 && self.heap.bytes_free > self.heap.bytes_reserved / 2
    }

    /// Returns the bytes that the next span should have.
    pub(super) fn span_wanted(&self, most: u64, are_contended: bool) -> u64 {
        if are_contended {
            return SPAN_BYTES.min(most);
        }
        (self.heap.bytes_reserved / LITTLE).next_power_of_two().clamp(LEAST_PIECE, most)
    }
}

impl Arenas {
    pub(super) fn new() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        // Two for each thread that can run at once, so that a thread that moves finds an unused one.
        Self::with_limit((2 * threads).min(ARENAS) as u8)
    }

    /// Creates one arena; at most `limit` may exist.
    pub(super) fn with_limit(limit: u8) -> Self {
        let arenas = std::array::from_fn(|_| OnceLock::new());
        Self { arenas, made: AtomicU8::new(1), limit }
    }

    #[inline]
    fn mutex(&self, shard: Shard) -> &SpinLock<Arena> {
        &self.arenas[shard as usize % ARENAS].get_or_init(Padded::new).arena
    }

    #[inline]
    pub(super) fn lock(&self, shard: Shard) -> SpinGuard<'_, Arena> {
        self.mutex(shard).lock()
    }

    /// Locks the arena, unless another thread has locked it.
    #[inline]
    pub(super) fn try_lock(&self, shard: Shard) -> Option<SpinGuard<'_, Arena>> {
        self.mutex(shard).try_lock()
    }

    /// Returns the arena that a contending thread should move to: an unused arena, or else a new one, or, at
    /// the limit, one that fewer threads use. A thread that is alone in its arena stays. `users` is the
    /// number of threads that use each arena.
    pub(super) fn next(&self, shard: Shard, users: &[u32; ARENAS]) -> Shard {
        if users[usize::from(shard)] < 2 {
            return shard;
        }
        let made = self.made.load(Ordering::Relaxed);
        let least = (0..made).min_by_key(|it| users[usize::from(*it)]).unwrap_or(shard);
        let least_users = users[usize::from(least)];
        if least_users == 0 {
            return least;
        }
        let more = |made: u8| (made < self.limit).then_some(made + 1);
        if let Ok(fresh) = self.made.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more) {
            return fresh;
        }
        if least_users + 1 < users[usize::from(shard)] { least } else { shard }
    }

    /// Returns whether threads have contended for an arena, so that there is more than one.
    pub(super) fn are_contended(&self) -> bool {
        self.made.load(Ordering::Relaxed) > 1
    }

    /// Locks an arena, if it was created.
    pub(super) fn get(&self, shard: usize) -> Option<SpinGuard<'_, Arena>> {
        Some(self.arenas.get(shard)?.get()?.arena.lock())
    }

    /// Locks all arenas, one after the other.
    pub(super) fn each(&self) -> impl Iterator<Item = (Shard, SpinGuard<'_, Arena>)> {
        let made = 0..self.made.load(Ordering::Acquire);
        made.filter_map(|shard| Some((shard, self.get(usize::from(shard))?)))
    }

    /// Locks the arenas in which one of the owners may have free blocks, one after the other. With `only`, it
    /// locks no other arena.
    pub(super) fn each_of<const N: usize>(
        &self,
        owners: [Owner; N],
        only: Option<Shard>,
    ) -> impl Iterator<Item = (Shard, SpinGuard<'_, Arena>)> {
        let made = only.map_or(0..self.made.load(Ordering::Acquire), |only| only..only + 1);
        made.filter_map(move |shard| {
            let arena = self.arenas[usize::from(shard)].get()?;
            let may_have = owners.iter().any(|owner| arena.owners.may_have(*owner));
            may_have.then(|| (shard, arena.arena.lock()))
        })
    }

    /// Returns the number of an arena's heap in the block map.
    #[inline]
    pub(super) fn heap_id(shard: Shard) -> HeapId {
        shard + 1
    }

    /// Returns the arena of a heap; `None` for the large heap.
    #[inline]
    pub(super) fn shard(heap: HeapId) -> Option<Shard> {
        heap.checked_sub(1)
    }
}

/// Frees blocks to their arenas. It holds an arena's lock until a block of another arena comes.
pub(super) struct BatchFree<'a> {
    arenas: &'a Arenas,
    at: Option<(Shard, SpinGuard<'a, Arena>)>,
    has_excess: bool,
}

impl<'a> BatchFree<'a> {
    pub(super) fn new(arenas: &'a Arenas) -> Self {
        Self { arenas, at: None, has_excess: false }
    }

    /// Frees a block to its arena; for a large block, only returns its chunk.
    pub(super) fn free(&mut self, entry: &BlockEntry, owner: Owner, epoch: Epoch) -> Option<ChunkId> {
        let (heap, chunk) = entry.block();
        entry.end();
        let Some(shard) = Arenas::shard(heap) else { return Some(chunk) };
        if self.at.as_ref().is_none_or(|(at, _)| *at != shard) {
            // Unlock before the next arena is locked.
            self.at = None;
        }
        let (_, arena) = self.at.get_or_insert_with(|| (shard, self.arenas.lock(shard)));
        arena.heap.free(chunk, owner, epoch);
        self.has_excess |= arena.has_excess();
        None
    }

    /// Returns whether one of the arenas should return free spans.
    pub(super) fn has_excess(&self) -> bool {
        self.has_excess
    }
}

#[cfg(test)]
mod tests {
    use millpond_core::{DeviceMemoryResourceExt, StreamRef};
    use millpond_driver::sim::{SimConfig, SimDevice};

    use super::*;
    use crate::{CudaMemoryResource, PagesMode, PoolLayer};

    /// A new span has about an eighth of the arena, within limits.
    #[test]
    fn spans_grow_with_their_arena() {
        const KIB: u64 = 1 << 10;
        for (reserved, most, contended, wanted) in [
            (0, 4096, false, 512),
            (8 << 10, 4096, false, 1024),
            (9 << 10, 4096, false, 2048),
            (20 << 10, 4096, false, 4096),
            (20 << 10, 2048, false, 2048),
            (0, 2048, true, 2048),
            (0, 64 << 10, true, SPAN_BYTES / KIB),
        ] {
            let mut arena = Arena::new();
            if reserved > 0 {
                let span = NewSpan { chunk: 0, region: 0, base: 1 << 40, bytes: reserved * KIB, epoch: 0 };
                arena.add_span(&span, 1);
            }
            assert_eq!(arena.span_wanted(most * KIB, contended) / KIB, wanted, "of {reserved} KiB");
        }
    }

    /// A batch of frees returns spans if the arena had excess after any of its blocks.
    #[test]
    fn a_batch_has_excess_once_an_arena_had_it() {
        const BYTES: u64 = 64 << 10;
        let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
        let pool = cuda.layer(PoolLayer::new().pages(PagesMode::Off)).expect("an empty pool");
        let blocks = [(); 64].map(|()| pool.allocate_bytes(BYTES, StreamRef::LEGACY).expect("there is room"));
        let mut batch = BatchFree::new(&pool.shared.arenas);
        let mut had_excess = false;
        for ptr in blocks {
            let entry = pool.shared.block_map.find(ptr.address()).expect("it is in use");
            assert!(batch.free(entry, 1, 0).is_none(), "it is no large block");
            had_excess |= batch.at.as_ref().is_some_and(|(_, arena)| arena.has_excess());
            assert_eq!(batch.has_excess(), had_excess);
        }
        assert!(had_excess);
        // All blocks except one are taken again.
        let (_, arena) = batch.at.as_mut().expect("an arena is locked");
        let mut last = None;
        loop {
            let free = arena.heap.all_chunks().find(|(_, chunk)| chunk.is_free());
            let Some((id, bytes)) = free.map(|(id, chunk)| (id, chunk.bytes)) else { break };
            last = Some(arena.heap.take(id, bytes, 256));
        }
        arena.heap.free(last.expect("there were free chunks"), 1, 0);
        assert!(!arena.has_excess() && batch.has_excess());
    }
}
