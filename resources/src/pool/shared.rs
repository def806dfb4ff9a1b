//! The part of a pool that threads use without the pool's lock.

use std::sync::atomic::{AtomicU64, Ordering};

use millpond_core::DevicePtr;

use crate::block_map::{BlockEntry, BlockMap, ChunkId};
use crate::heap::request::Request;
use crate::heap::size_class::LARGEST_SMALL;
use crate::pool::arena::{Arena, Arenas, Shard};
use crate::pool::cache::thread_cache::ThreadCaches;
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
    /// The bytes of the largest block so far. Blocks from a stream cache were allocated without one before.
    pub(super) largest_block: AtomicU64,
}

/// The cache limits, in bytes: threads read them in each call, so they have cache lines of their own.
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

    /// Returns the largest block in bytes that comes from an arena.
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

    /// Returns whether saving memory comes before speed: with pages, while threads do not contend.
    #[inline]
    pub(super) fn saves_memory(&self) -> bool {
        self.over_pages && !self.arenas.are_contended()
    }

    /// Allocates a block from an arena.
    pub(super) fn take(
        &self,
        shard: Shard,
        arena: &mut Arena,
        chunk: ChunkId,
        request: &Request,
    ) -> DevicePtr {
        let id = arena.heap.take(chunk, request.bytes, request.alignment);
        let block = self.block_for(Arenas::heap_id(shard), id, request);
        DevicePtr::new(arena.heap.insert_block(&self.block_map, block))
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
