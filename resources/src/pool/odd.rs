//! Blocks of odd sizes: cut to 256 bytes, and not to a class, where memory is nearly out. Threads count each
//! block as what its request is rounded to; by how much that is too much is counted here.

use std::sync::atomic::Ordering;

use millpond_core::ALLOCATION_ALIGNMENT;

use super::chunk::ChunkId;
use super::classes::rounded;
use super::directory::{Block, Entry, HeapId};
use super::front::ThreadCounts;
use super::heaps::Shared;
use crate::ordered::Request;

impl Shared {
    /// The bytes of a block for a request.
    #[inline]
    pub(super) fn block_bytes(&self, requested: u64) -> u64 {
        self.fixed.map_or_else(|| rounded(requested), |fixed| fixed.block_bytes)
    }

    /// Counts a block that was handed out past the fronts and the arenas.
    pub(super) fn count(&self, thread: &ThreadCounts, requested: u64) {
        self.caches.count(thread, self.block_bytes(requested), requested);
    }

    /// Counts a block that was taken back past the fronts.
    pub(super) fn count_back(&self, thread: &ThreadCounts, requested: u64) {
        self.caches.count_back(thread, self.block_bytes(requested), requested);
    }

    /// Bytes handed out, or 0 where threads are so busy that there is no telling.
    pub(super) fn least_live_bytes(&self) -> u64 {
        let counted = self.caches.live_bytes().unwrap_or(0);
        counted.saturating_sub(self.saved_by_odd.load(Ordering::Relaxed))
    }

    /// A block as the directory has it, to be handed out.
    pub(super) fn entered(&self, heap: HeapId, chunk: ChunkId, request: &Request) -> Block {
        let usual = self.block_bytes(request.requested);
        let is_odd = request.bytes != usual;
        if is_odd {
            self.saved_by_odd.fetch_add(usual - request.bytes, Ordering::Relaxed);
        }
        Block { heap, chunk, requested: request.requested, is_odd, is_in_view: false }
    }

    /// Takes a block back from its user, if it is handed out with this size.
    pub(super) fn claim(&self, entry: &Entry, bytes: u64) -> bool {
        let claimed = entry.claim(bytes);
        if claimed && entry.is_odd() {
            let saved = self.block_bytes(bytes) - bytes.next_multiple_of(ALLOCATION_ALIGNMENT);
            self.saved_by_odd.fetch_sub(saved, Ordering::Relaxed);
        }
        claimed
    }
}
