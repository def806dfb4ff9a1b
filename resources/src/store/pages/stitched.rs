//! Notes the blocks that lie in aliases, for those who watch the pool's segments.

use millpond_core::segments::{SegmentAction, is_watched};

use crate::block_map::ChunkId;
use crate::heap::chunk::Chunk;
use crate::store::pages::state::{Change, Pages};

impl Pages {
    /// Notes that a block took its pieces to an address in an alias.
    pub(super) fn note_stitched(&mut self, block: ChunkId, addr: u64) {
        self.stitched.addresses.insert(block, addr);
        let pieces = self.pieces_as(block, SegmentAction::Unmap);
        let bytes = pieces.iter().map(|(.., bytes)| bytes).sum();
        self.note_changes(pieces.into_iter().chain([(SegmentAction::Map, addr, bytes)]));
    }

    /// Notes that a block is freed. If it lay in an alias, its pieces go back.
    pub(super) fn note_freed(&mut self, block: ChunkId) {
        if self.stitched.addresses.is_empty() {
            return;
        }
        if let Some(addr) = self.stitched.addresses.remove(&block) {
            let pieces = self.pieces_as(block, SegmentAction::Map);
            let bytes = pieces.iter().map(|(.., bytes)| bytes).sum();
            self.note_changes([(SegmentAction::Unmap, addr, bytes)].into_iter().chain(pieces));
        }
    }

    /// Notes that all blocks are freed.
    pub(super) fn note_all_freed(&mut self) {
        let blocks: Vec<ChunkId> = self.stitched.addresses.keys().copied().collect();
        blocks.into_iter().for_each(|block| self.note_freed(block));
    }

    /// Returns the changes that no watcher knows yet.
    pub(crate) fn take_changes(&mut self) -> Vec<(SegmentAction, u64, u64)> {
        std::mem::take(&mut self.stitched.changes)
    }

    fn pieces_as(&self, block: ChunkId, action: SegmentAction) -> Vec<Change> {
        self.each_piece_of(block).map(|Chunk { addr, bytes, .. }| (action, *addr, *bytes)).collect()
    }

    fn note_changes(&mut self, changes: impl Iterator<Item = Change>) {
        if is_watched() {
            self.stitched.changes.extend(changes);
        }
    }
}
