//! The part of a pool that threads use without the pool's lock.

use std::sync::atomic::{AtomicU64, Ordering};

use millpond_core::ALLOCATION_ALIGNMENT;

use crate::block_map::{Block, BlockEntry, BlockMap, ChunkId, HeapId};
use crate::heap::request::{Request, Taken, Whose};
use crate::heap::size_class::{BlockSize, LARGEST_SMALL};
use crate::pool::arena::{Arena, Arenas, Shard};
use crate::pool::cache::thread_cache::ThreadCaches;
use crate::pool::cache::thread_counts::ThreadCounts;
use crate::store::FixedBlocks;
use crate::stream_order::{Epoch, Owner};
use crate::tuning::LARGEST_SMALL_OVER_PAGES;

/// The parts of a pool that threads use without the pool's lock.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) block_map: BlockMap,
    pub(super) arenas: Arenas,
    pub(super) thread_caches: ThreadCaches,
    /// Whether the pool maps pages itself.
    pub(super) over_pages: bool,
    pub(super) limits: CacheLimits,
    /// The size of all blocks, if they have only one.
    pub(super) fixed: Option<FixedBlocks>,
    /// The bytes by which the threads' counters exceed the sizes of the blocks in use of exact sizes.
    pub(super) saved_by_exact_size: AtomicU64,
    /// The bytes of the largest block so far. A block from a stream cache was counted here when it was first
    /// allocated.
    pub(super) largest_block: AtomicU64,
}

/// The cache limits, in bytes. Threads read them in each call, so they have their own cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct CacheLimits {
    /// A thread's stream caches together hold at most this many bytes of small blocks.
    pub(super) max_cached_bytes: AtomicU64,
    /// The most bytes of one size class in a stream cache.
    pub(super) max_class_bytes: AtomicU64,
    /// The largest block that a thread may cache.
    pub(super) max_large_block: AtomicU64,
    /// The largest block that comes from an arena.
    pub(super) max_arena_block: AtomicU64,
}

impl Shared {
    /// Notes a block that did not come from a stream cache.
    pub(super) fn note_block(&self, bytes: u64) {
        if bytes > self.largest_block.load(Ordering::Relaxed) {
            self.largest_block.fetch_max(bytes, Ordering::Relaxed);
        }
    }

    /// Returns the bytes of the largest block so far.
    pub(super) fn largest_block(&self) -> u64 {
        self.largest_block.load(Ordering::Relaxed)
    }

    /// Returns the bytes of the largest block that comes from an arena.
    pub(super) fn max_arena_block(&self) -> u64 {
        self.limits.max_arena_block.load(Ordering::Relaxed)
    }

    /// Returns the limit that [`max_arena_block`](Self::max_arena_block) should be set to.
    pub(super) fn current_max_arena_block(&self) -> u64 {
        match self.fixed {
            Some(_) => 0,
            None if self.saves_memory() => LARGEST_SMALL_OVER_PAGES,
            None => LARGEST_SMALL,
        }
    }

    /// Returns whether saving memory comes before speed. It does with pages, while threads do not contend.
    #[inline]
    pub(super) fn saves_memory(&self) -> bool {
        self.over_pages && !self.arenas.are_contended()
    }

    /// Allocates the best block of an arena.
    pub(super) fn take(
        &self,
        shard: Shard,
        arena: &mut Arena,
        whose: Whose,
        request: &Request,
    ) -> Option<Taken> {
        let taken = arena.heap.take_best(whose, request)?;
        let block = self.block_for(Arenas::heap_id(shard), taken.chunk, request);
        arena.heap.insert_block(&self.block_map, taken.chunk, block);
        Some(taken)
    }

    /// Frees a block to its arena and returns its bytes; for a large block, only returns its chunk.
    pub(super) fn free_small(&self, entry: &BlockEntry, owner: Owner, epoch: Epoch) -> Result<u64, ChunkId> {
        let (heap, chunk) = entry.block();
        entry.end();
        let Some(shard) = Arenas::shard(heap) else { return Err(chunk) };
        let mut arena = self.arenas.lock(shard);
        let bytes = arena.heap.chunk(chunk).bytes;
        arena.heap.free(chunk, owner, epoch);
        Ok(bytes)
    }
}

/// Blocks of exact sizes: rounded to 256 bytes and not to a size class, when memory is nearly out. Threads
/// count each block with its usual, rounded size; this counts the excess.
impl Shared {
    /// Returns the usual size of a block for a request.
    pub(super) fn block_size(&self, requested: u64) -> BlockSize {
        self.fixed.map_or_else(|| BlockSize::of(requested), |fixed| BlockSize::fixed(fixed.block_bytes))
    }

    /// Returns the bytes of a block of the usual size for a request.
    pub(super) fn block_bytes(&self, requested: u64) -> u64 {
        self.block_size(requested).bytes
    }

    /// Counts a block that was allocated past the stream caches and the arenas.
    pub(super) fn count_allocation(&self, thread: &ThreadCounts, requested: u64) {
        self.note_block(self.block_bytes(requested));
        self.thread_caches.count_allocation(thread, self.block_bytes(requested), requested);
    }

    /// Counts a block that was freed past the stream caches.
    pub(super) fn count_free(&self, thread: &ThreadCounts, requested: u64) {
        self.thread_caches.count_free(thread, self.block_bytes(requested), requested);
    }

    /// Returns a lower bound of the live bytes: 0 while threads change them too fast to read.
    pub(super) fn least_live_bytes(&self) -> u64 {
        let counted = self.thread_caches.live_bytes().unwrap_or(0);
        counted.saturating_sub(self.saved_by_exact_size.load(Ordering::Relaxed))
    }

    /// Returns the block map's record of a block that is allocated for a request.
    pub(super) fn block_for(&self, heap: HeapId, chunk: ChunkId, request: &Request) -> Block {
        let usual = self.block_bytes(request.requested);
        let is_exact_size = request.bytes != usual;
        if is_exact_size {
            self.saved_by_exact_size.fetch_add(usual - request.bytes, Ordering::Relaxed);
        }
        Block { heap, chunk, requested: request.requested, is_exact_size, is_in_alias: false }
    }

    /// Ends the use of a block, if it is in use with this size; returns whether it was.
    pub(super) fn claim(&self, entry: &BlockEntry, bytes: u64) -> bool {
        let claimed = entry.claim(bytes);
        if claimed && entry.is_exact_size() {
            let saved = self.block_bytes(bytes) - bytes.next_multiple_of(ALLOCATION_ALIGNMENT);
            self.saved_by_exact_size.fetch_sub(saved, Ordering::Relaxed);
        }
        claimed
    }
}
