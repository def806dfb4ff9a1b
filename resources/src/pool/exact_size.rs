//! Counts blocks of exact sizes: rounded to 256 bytes and not to a size class, when memory is nearly out.
//!
//! Threads count each block with the size that its request is rounded to. This file counts by how much that
//! is too much.

use std::sync::atomic::Ordering;

use millpond_core::ALLOCATION_ALIGNMENT;

use crate::block_map::{Block, BlockEntry, ChunkId, HeapId};
use crate::heap::request::Request;
use crate::heap::size_class::BlockSize;
use crate::pool::cache::thread_counts::ThreadCounts;
use crate::pool::shared::Shared;

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

    /// Ends the use of a block, if it is in use with this size; returns whether it is.
    pub(super) fn claim(&self, entry: &BlockEntry, bytes: u64) -> bool {
        let claimed = entry.claim(bytes);
        if claimed && entry.is_exact_size() {
            let saved = self.block_bytes(bytes) - bytes.next_multiple_of(ALLOCATION_ALIGNMENT);
            self.saved_by_exact_size.fetch_sub(saved, Ordering::Relaxed);
        }
        claimed
    }
}
