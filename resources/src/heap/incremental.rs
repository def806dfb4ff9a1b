//! Makes free chunks unowned in steps, a few under each lock.

use crate::block_map::ChunkId;
use crate::heap::Heap;
use crate::stream_order::{ANY_STREAM, Epoch, Owner};
use crate::tuning::CHUNKS_COMPARED;

/// Returns a size in bytes that lies beyond this size's bin: in the next bin, or in one after it.
pub(crate) fn next_size(bytes: u64) -> u64 {
    bytes + (bytes / 32).max(256)
}

impl Heap {
    /// Makes chunks unowned that were freed in epoch `upto` or before: a few of about `bytes` or more.
    /// Returns the size from which the next step continues, if there may be more.
    pub(crate) fn disown_step(&mut self, owner: Owner, upto: Epoch, bytes: u64) -> Option<u64> {
        let mut seen: Vec<ChunkId> =
            self.free_from(owner, bytes).map(|(id, _)| id).take(CHUNKS_COMPARED).collect();
        let last = self.chunks[*seen.last()?].bytes;
        let has_more = seen.len() == CHUNKS_COMPARED;
        seen.retain(|id| self.chunks[*id].epoch() <= upto);
        // Chunks that move leave their bin. If none moves, the next step starts at the next bin.
        let next = if seen.is_empty() { next_size(last) } else { last };
        self.hand_over(&seen, owner, ANY_STREAM, 0);
        has_more.then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::stream_order::ANY_STREAM;

    const OWNER: Owner = 1;

    /// Free chunks of an owner, freed in the epochs from 1 on. Blocks in use separate them.
    fn apart(chunks: usize, bytes: impl Fn(usize) -> u64) -> Heap {
        let mut heap = Heap::new(32);
        for index in 0..chunks {
            let first = heap.add_region((index as u64 + 1) << 32, bytes(index) + 256, ANY_STREAM, 0);
            let free = heap.take(first, bytes(index), 256);
            heap.take_at(heap.chunk(free).next, heap.chunk(free).addr + bytes(index), 256);
            heap.free(free, OWNER, 1 + index as Epoch);
        }
        heap
    }

    fn free_chunks(heap: &Heap, owner: Owner) -> usize {
        heap.free_from(owner, 0).count()
    }

    /// Runs all steps, and returns their number.
    fn migrate(heap: &mut Heap, upto: Epoch) -> usize {
        let (mut at, mut steps) = (Some(0), 0);
        while let Some(bytes) = at {
            let before = free_chunks(heap, OWNER);
            at = heap.disown_step(OWNER, upto, bytes);
            assert!(before - free_chunks(heap, OWNER) <= CHUNKS_COMPARED, "a step is short");
            steps += 1;
        }
        heap.validate();
        steps
    }

    #[test]
    fn steps_migrate_all_chunks_of_the_epochs() {
        for chunks in [0, 1, CHUNKS_COMPARED - 1, CHUNKS_COMPARED, 3 * CHUNKS_COMPARED + 1] {
            for upto in [0, chunks / 2, chunks] {
                let mut heap = apart(chunks, |index| 4096 * (1 + index as u64));
                let steps = migrate(&mut heap, upto as Epoch);
                let moved = free_chunks(&heap, ANY_STREAM);
                assert_eq!((moved, free_chunks(&heap, OWNER)), (upto, chunks - upto), "{upto} of {chunks}");
                assert!(steps <= 2 + chunks / CHUNKS_COMPARED, "{steps} steps for {chunks} chunks");
            }
        }
    }

    /// Chunks of one size share a bin. The next step visits that bin again only while some of its chunks
    /// move.
    #[test]
    fn steps_end_where_no_chunk_of_a_bin_may_move() {
        let mut heap = apart(2 * CHUNKS_COMPARED, |_| 4096);
        assert_eq!(migrate(&mut heap, 0), 2);
        assert_eq!(free_chunks(&heap, ANY_STREAM), 0);
    }

    /// The next size lies in the next bin, so no bin is skipped.
    #[test]
    fn no_size_is_passed_over() {
        for (bytes, next) in [(0, 256), (256, 512), (8192, 8448), (64 << 10, 66 << 10), (1 << 20, 33 << 15)] {
            assert_eq!(next_size(bytes), next);
        }
        // None of the smaller chunks may move, and they fill a step.
        let mut heap = apart(CHUNKS_COMPARED + 3, |index| if index < 3 { 4608 } else { 4096 });
        migrate(&mut heap, 3);
        assert_eq!(free_chunks(&heap, ANY_STREAM), 3);
    }
}
