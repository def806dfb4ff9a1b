//! Small blocks, in spans of the pool's large memory.
//!
//! One arena serves all threads. Where two threads use it at the same time, and again and again, one of them
//! moves to the next arena: as many are made as threads that meet, up to [`ARENAS`].

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;

use crate::backing::{Large, NewSpan};
use crate::block_map::ChunkId;
use crate::block_map::{BlockEntry, HeapId};
use crate::heap::Heap;
use crate::heap::chunk::Chunk;
use crate::heap::owner_bits::OwnerBits;
use crate::stream_order::{Epoch, Owner};
use crate::sync::spin_lock::{SpinGuard, SpinLock};

/// At most so many arenas.
pub(super) const ARENAS: usize = 64;

/// How many blocks of a bin are compared: sizes in a bin differ by 3 % at most.
const SCAN: usize = 4;

/// The bytes of a span where threads contend. With spans of 4 to 16 MiB, 16 threads with 1000 blocks each
/// took 1.50 of what was live (over regions 1.45) on an H200, with these 1.33 (1.29), at 47 million steps a
/// second instead of 52.
const CONTENDED_SPAN: u64 = 4 << 20;

/// The number of an arena.
pub(super) type Shard = u8;

/// The heaps of small blocks.
#[derive(Debug)]
pub(super) struct Arenas {
    arenas: [OnceLock<Padded>; ARENAS],
    /// The number of arenas in use.
    made: AtomicU8,
    limit: u8,
}

#[derive(Debug)]
#[repr(align(128))]
struct Padded {
    arena: SpinLock<Arena>,
    /// Those of the arena's heap.
    owners: Arc<OwnerBits>,
}

impl Padded {
    fn new() -> Self {
        let arena = Arena::new();
        Self { owners: Arc::clone(&arena.heap.owners), arena: SpinLock::new(arena) }
    }
}

/// Small blocks, in spans.
#[derive(Debug)]
pub(super) struct Arena {
    pub(super) heap: Heap,
    /// The span at a base is this chunk of the large heap.
    spans: FxHashMap<u64, ChunkId>,
    /// The thread that took a block here last, as a number; 0 for none.
    pub(super) taker: usize,
}

/// Whether a thread should have an arena for itself. Written by the thread only.
///
/// Threads that take turns share an arena well. Where one found it locked lately, they run at the same time;
/// then what another thread took from it is away from this one's caches each time, and costs more than
/// waiting does.
#[derive(Debug, Default)]
pub(crate) struct Contention {
    /// For so many more blocks the threads count as running at the same time.
    window: AtomicU8,
    score: AtomicU8,
    /// Whether the thread took a block from an arena before.
    has_come: AtomicBool,
}

impl Contention {
    const WINDOW: u8 = u8::MAX;
    /// A block that was taken after another thread's counts so much, and one after the own takes 1 off.
    const MEETING: u8 = 16;
    /// A thread with so much moves on: one who meets another now and then does not.
    const MOST: u8 = 160;

    /// Whether the thread takes a block from an arena for the first time.
    pub(super) fn is_first(&self) -> bool {
        let is_first = !self.has_come.load(Ordering::Relaxed);
        if is_first {
            self.has_come.store(true, Ordering::Relaxed);
        }
        is_first
    }

    /// The arena was locked.
    pub(super) fn found_locked(&self) {
        self.window.store(Self::WINDOW, Ordering::Relaxed);
    }

    /// Notes that a block is taken, after another thread or not; says whether the thread had better move on.
    pub(super) fn are_contended(&self, was_others: bool) -> bool {
        let window = self.window.load(Ordering::Relaxed);
        if window == 0 {
            return false;
        }
        self.window.store(window - 1, Ordering::Relaxed);
        let score = self.score.load(Ordering::Relaxed);
        let score = if was_others { score + Self::MEETING } else { score.saturating_sub(1) };
        let are_contended = score >= Self::MOST;
        self.score.store(if are_contended { 0 } else { score }, Ordering::Relaxed);
        are_contended
    }
}

/// A span that goes back to the large heap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) chunk: ChunkId,
    pub(super) owner: Owner,
    pub(super) epoch: Epoch,
}

impl Arena {
    fn new() -> Self {
        Self { heap: Heap::new(SCAN), spans: FxHashMap::default(), taker: 0 }
    }

    /// Adds a span, free for `owner`.
    pub(super) fn add_span(&mut self, span: &NewSpan, owner: Owner) {
        self.heap.add_region(span.base, span.bytes, owner, span.epoch);
        self.spans.insert(span.base, span.chunk);
    }

    /// Removes a span of which nothing is in use.
    pub(super) fn remove_free_span(&mut self) -> Option<Span> {
        let (region, owner, epoch) = self.heap.remove_free_region(|_| true)?;
        let chunk = self.spans.remove(&region.base).expect("an arena's regions are spans");
        Some(Span { chunk, owner, epoch })
    }

    /// Panics unless every span is a chunk in use of the large heap; says how many there are.
    pub(super) fn validate_spans(&self, large: &Large) -> u64 {
        assert_eq!(self.spans.len(), self.heap.regions().len(), "I13: spans and regions of an arena");
        for region in self.heap.regions() {
            let block = self.spans[&region.base];
            let is_in_use = large.block(block).is_some_and(Chunk::is_in_use);
            let is_block = is_in_use && large.has_block(block, region.base, region.bytes);
            assert!(is_block, "I13: the span at {:#x} is no block in use", region.base);
        }
        self.spans.len() as u64
    }

    /// Whether so much is free in whole spans that some should go back.
    #[inline]
    pub(super) fn has_excess(&self) -> bool {
        self.heap.regions_free > 1 && self.heap.bytes_free > self.heap.bytes_reserved / 2
    }

    /// How large the next span should be: a share of what there is, so that few blocks keep few bytes. Where
    /// each thread has an arena it is the same for all: what is left of the last span counts once for each.
    pub(super) fn span_wanted(&self, most: u64, are_contended: bool) -> u64 {
        if are_contended {
            return CONTENDED_SPAN.min(most);
        }
        (self.heap.bytes_reserved / 8).next_power_of_two().clamp(512 << 10, most)
    }
}

impl Arenas {
    pub(super) fn new() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        // More than threads that run at once, so that who moves finds one that nobody has.
        Self::with_limit((threads * 2).clamp(1, ARENAS) as u8)
    }

    /// With at most this many arenas.
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

    /// The arena, unless somebody else has it just now.
    #[inline]
    pub(super) fn try_lock(&self, shard: Shard) -> Option<SpinGuard<'_, Arena>> {
        self.mutex(shard).try_lock()
    }

    /// The arena for a thread that meets others too often in its own, if there are others: one that no thread
    /// uses, or else a new one; at the limit, one that fewer use. `users` says how many threads use each.
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
        if let Ok(fresh) = self.made.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            return fresh;
        }
        if least_users + 1 < users[usize::from(shard)] { least } else { shard }
    }

    /// Whether threads met often enough for a second arena.
    pub(super) fn are_contended(&self) -> bool {
        self.made.load(Ordering::Relaxed) > 1
    }

    /// An arena, if it was made.
    pub(super) fn get(&self, shard: usize) -> Option<SpinGuard<'_, Arena>> {
        Some(self.arenas.get(shard)?.get()?.arena.lock())
    }

    /// All arenas, one after the other.
    pub(super) fn each(&self) -> impl Iterator<Item = (Shard, SpinGuard<'_, Arena>)> {
        let made = self.arenas.iter().enumerate();
        made.filter_map(|(shard, arena)| Some((shard as Shard, arena.get()?.arena.lock())))
    }

    /// The arenas in which an owner may have free blocks, one after the other; or `only` this one.
    pub(super) fn each_of(
        &self,
        owner: Owner,
        only: Option<Shard>,
    ) -> impl Iterator<Item = (Shard, SpinGuard<'_, Arena>)> {
        let (first, count) = only.map_or((0, ARENAS), |only| (usize::from(only), 1));
        (0..).zip(&self.arenas).skip(first).take(count).filter_map(move |(shard, arena)| {
            let arena = arena.get().filter(|arena| arena.owners.may_have(owner))?;
            Some((shard, arena.arena.lock()))
        })
    }

    /// The heap that an arena is, to the block map.
    #[inline]
    pub(super) fn heap_id(shard: Shard) -> HeapId {
        shard + 1
    }

    /// The arena that a heap is.
    #[inline]
    pub(super) fn shard(heap: HeapId) -> Option<Shard> {
        heap.checked_sub(1)
    }
}

/// Gives blocks back to their arenas, keeping the lock from one block to the next of the same arena.
pub(super) struct Visit<'a> {
    arenas: &'a Arenas,
    at: Option<(Shard, SpinGuard<'a, Arena>)>,
    has_excess: bool,
}

impl<'a> Visit<'a> {
    pub(super) fn new(arenas: &'a Arenas) -> Self {
        Self { arenas, at: None, has_excess: false }
    }

    /// Gives back a block that is not handed out; a large one is returned instead.
    pub(super) fn free(&mut self, entry: &BlockEntry, owner: Owner, epoch: Epoch) -> Option<ChunkId> {
        let (heap, chunk) = entry.block();
        entry.end();
        let Some(shard) = Arenas::shard(heap) else { return Some(chunk) };
        if self.at.as_ref().is_none_or(|(at, _)| *at != shard) {
            // Not two locks at once.
            self.at = None;
        }
        let (_, arena) = self.at.get_or_insert_with(|| (shard, self.arenas.lock(shard)));
        arena.heap.free(chunk, owner, epoch);
        self.has_excess |= arena.has_excess();
        None
    }

    /// Whether an arena visited has more free spans than it should keep.
    pub(super) fn has_excess(&self) -> bool {
        self.has_excess
    }
}
