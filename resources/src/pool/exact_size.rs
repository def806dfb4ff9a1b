//! Blocks of exact sizes: cut to 256 bytes, and not to a class, where memory is nearly out. Threads count
//! each block as what its request is rounded to; by how much that is too much is counted here.

use std::sync::atomic::Ordering;

use millpond_core::ALLOCATION_ALIGNMENT;

use crate::block_map::ChunkId;
use crate::block_map::{Block, BlockEntry, HeapId};
use crate::heap::request::Request;
use crate::heap::size_class::BlockSize;
use crate::pool::cache::stream_cache::ThreadCounts;
use crate::pool::heaps::Shared;

impl Shared {
    /// The size of a block for a request.
    pub(super) fn block_size(&self, requested: u64) -> BlockSize {
        self.fixed.map_or_else(|| BlockSize::of(requested), |fixed| BlockSize::fixed(fixed.block_bytes))
    }

    /// The bytes of a block for a request.
    pub(super) fn block_bytes(&self, requested: u64) -> u64 {
        self.block_size(requested).bytes
    }

    /// Counts a block that was handed out past the stream caches and the arenas.
    pub(super) fn count(&self, thread: &ThreadCounts, requested: u64) {
        self.thread_caches.count(thread, self.block_bytes(requested), requested);
    }

    /// Counts a block that was reclaimed past the stream caches.
    pub(super) fn count_back(&self, thread: &ThreadCounts, requested: u64) {
        self.thread_caches.count_back(thread, self.block_bytes(requested), requested);
    }

    /// Bytes handed out, or 0 where threads are so busy that there is no telling.
    pub(super) fn least_live_bytes(&self) -> u64 {
        let counted = self.thread_caches.live_bytes().unwrap_or(0);
        counted.saturating_sub(self.saved_by_exact_size.load(Ordering::Relaxed))
    }

    /// A block as the block map has it, to be handed out.
    pub(super) fn block_for(&self, heap: HeapId, chunk: ChunkId, request: &Request) -> Block {
        let usual = self.block_bytes(request.requested);
        let is_exact_size = request.bytes != usual;
        if is_exact_size {
            self.saved_by_exact_size.fetch_add(usual - request.bytes, Ordering::Relaxed);
        }
        Block { heap, chunk, requested: request.requested, is_exact_size, is_in_alias: false }
    }

    /// Takes a block back from its user, if it is handed out with this size.
    pub(super) fn claim(&self, entry: &BlockEntry, bytes: u64) -> bool {
        let claimed = entry.claim(bytes);
        if claimed && entry.is_exact_size() {
            let saved = self.block_bytes(bytes) - bytes.next_multiple_of(ALLOCATION_ALIGNMENT);
            self.saved_by_exact_size.fetch_sub(saved, Ordering::Relaxed);
        }
        claimed
    }
}
