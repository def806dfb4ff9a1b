use crate::block_map::ChunkId;
use crate::heap::Heap;
use crate::stream_order::{Epoch, Owner};

/// How many free chunks are looked at under one lock: a few microseconds.
pub(crate) const CHUNKS_PER_STEP: usize = 32;

/// The least size of the bin after that of a chunk of so many bytes, or of one after.
pub(crate) fn next_size(bytes: u64) -> u64 {
    bytes + (bytes / 32).max(256)
}

impl Heap {
    /// What [`migrate`](Self::migrate) does, for a few chunks of about `bytes` or more; says from which size
    /// to go on, if there may be more.
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
        let may_be_more = seen.len() == CHUNKS_PER_STEP;
        seen.retain(|id| self.chunks[*id].epoch() <= upto);
        // What moves leaves its bin; where nothing does, the next bin is next.
        let next = if seen.is_empty() { next_size(last) } else { last };
        self.hand_over(&seen, from, to, epoch);
        may_be_more.then_some(next)
    }
}
