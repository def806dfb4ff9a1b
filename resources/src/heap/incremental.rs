//! Migrates free chunks in steps, a few under each lock.

use crate::block_map::ChunkId;
use crate::heap::Heap;
use crate::stream_order::{Epoch, Owner};
use crate::tuning::CHUNKS_PER_STEP;

/// Returns a size in bytes of the next bin, or of one after it.
pub(crate) fn next_size(bytes: u64) -> u64 {
    bytes + (bytes / 32).max(256)
}

impl Heap {
    /// Does what [`migrate`](Self::migrate) does for a few chunks of about `bytes` or more. Returns the size
    /// from which the next step continues, if there may be more.
    pub(crate) fn migrate_step(
        &mut self,
        from: Owner,
        upto: Epoch,
        to: Owner,
        epoch: Epoch,
        bytes: u64,
    ) -> Option<u64> {
        let mut seen: Vec<ChunkId> =
            self.free_from(from, bytes).map(|(id, _)| id).take(CHUNKS_PER_STEP).collect();
        let last = self.chunks[*seen.last()?].bytes;
        let has_more = seen.len() == CHUNKS_PER_STEP;
        seen.retain(|id| self.chunks[*id].epoch() <= upto);
        // Chunks that move leave their bin; if none does, the next step starts at the next bin.
        let next = if seen.is_empty() { next_size(last) } else { last };
        self.hand_over(&seen, from, to, epoch);
        has_more.then_some(next)
    }
}
