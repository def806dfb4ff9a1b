use super::Heap;
use crate::ordered::{Epoch, Owner};
use crate::pool::chunk::ChunkId;

/// How many free chunks are looked at under one lock: a few microseconds.
pub(in crate::pool) const LOOKS: usize = 32;

/// The least size of the bin after that of a chunk of so many bytes, or of one after.
pub(in crate::pool) fn next_size(bytes: u64) -> u64 {
    bytes + (bytes / 32).max(256)
}

impl Heap {
    /// What [`migrate`](Self::migrate) does, for a few chunks of about `bytes` or more; says from which size
    /// to go on, if there may be more.
    pub(in crate::pool) fn migrate_bite(
        &mut self,
        from: Owner,
        upto: Epoch,
        to: Owner,
        epoch: Epoch,
        bytes: u64,
    ) -> Option<u64> {
        let mut seen: Vec<ChunkId> = self.free_from(from, bytes).map(|(id, _)| id).take(LOOKS).collect();
        let last = self.chunks[*seen.last()?].bytes;
        let may_be_more = seen.len() == LOOKS;
        seen.retain(|id| self.chunks[*id].epoch() <= upto);
        // What moves leaves its bin; where nothing does, the next bin is next.
        let next = if seen.is_empty() { next_size(last) } else { last };
        self.hand_over(&seen, to, epoch);
        may_be_more.then_some(next)
    }
}
