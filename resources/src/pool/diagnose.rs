//! Finds out why a free was refused.

use millpond_core::misuse::MisuseKind;

use crate::heap::chunk::Chunk;
use crate::pool::arena::Arena;
use crate::pool::heaps::Heaps;
use crate::sync::spin_lock::SpinGuard;

impl Heaps {
    /// Diagnoses the free of a pointer that is not a block in use. It walks the region; only error paths call
    /// it.
    pub(super) fn diagnose_invalid_free(&self, addr: u64) -> MisuseKind {
        let Some(chunk) = self.store.chunk_at(addr) else { return MisuseKind::ForeignPointer };
        if chunk.is_free() {
            return MisuseKind::DoubleFree;
        }
        if self.shared.block_map.find(addr).is_some_and(|entry| entry.requested() == 0) {
            return MisuseKind::DoubleFree;
        }
        let is_free =
            |(_, arena): (_, SpinGuard<'_, Arena>)| arena.heap.chunk_at(addr).is_some_and(Chunk::is_free);
        if self.shared.arenas.each().any(is_free) {
            return MisuseKind::DoubleFree;
        }
        MisuseKind::ForeignPointer
    }
}
