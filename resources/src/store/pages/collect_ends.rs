//! Collects the free ends of handles from the heaps.

use crate::heap::chunk::Chunk;
use crate::heap::request::Whose;
use crate::store::pages::free_ends::{FreeEnds, Piece};
use crate::store::pages::handles::AddressRange;
use crate::store::pages::state::Pages;
use crate::stream_order::{ANY_STREAM, Epoch, Owner};
use crate::tuning::LEAST_PIECE;

impl Pages {
    /// Gives the ends of free chunks of at least [`LEAST_PIECE`] bytes to `look`. In the small address range
    /// only wholly free handles count; with `is_for_aliases`, only handles with an alias.
    pub(super) fn with_free_ends<T>(
        &self,
        whose: Whose,
        is_for_aliases: bool,
        look: impl FnOnce(&FreeEnds) -> T,
    ) -> T {
        let mut ends = self.free_ends.take();
        ends.restart(self.handles.numbers(), is_for_aliases);
        for range in AddressRange::ALL {
            match whose {
                Whose::Of(owner, upto) => self.add_chunks(&mut ends, range, owner, upto),
                Whose::OwnOrUnowned { owner, .. } | Whose::Joined(owner) => {
                    self.add_runs(&mut ends, range, owner, owner);
                    if owner != ANY_STREAM {
                        self.add_runs(&mut ends, range, owner, ANY_STREAM);
                    }
                }
            }
        }
        let seen = look(&ends);
        self.free_ends.replace(ends);
        seen
    }

    /// Adds the chunks of an owner that were freed in epoch `upto` or before.
    fn add_chunks(&self, ends: &mut FreeEnds, range: AddressRange, owner: Owner, upto: Epoch) {
        for (id, chunk) in self.heap(range).free_from(owner, LEAST_PIECE) {
            if chunk.bytes >= LEAST_PIECE && chunk.epoch() <= upto {
                let Chunk { addr, bytes, .. } = *chunk;
                let extent = Piece { range, addr, bytes, run: id, joins: false, epoch: chunk.epoch() };
                ends.add(&self.handles, extent);
            }
        }
    }

    /// Adds the runs for `owner` in which `of` owns a large enough chunk.
    fn add_runs(&self, ends: &mut FreeEnds, range: AddressRange, owner: Owner, of: Owner) {
        let heap = self.heap(range);
        for (id, chunk) in heap.free_from(of, LEAST_PIECE).filter(|(_, chunk)| chunk.bytes >= LEAST_PIECE) {
            // A run is added once: at its first chunk that is large enough.
            let Some(run) = heap.run_led_by(id, owner, LEAST_PIECE) else { continue };
            let addr = heap.chunk(run).addr;
            let (mut end, mut chunks, mut epoch) = (chunk.addr + chunk.bytes, 0, 0);
            for chunk in heap.run(run, owner) {
                end = chunk.addr + chunk.bytes;
                chunks += 1;
                epoch = chunk.epoch().max(epoch);
            }
            ends.add(&self.handles, Piece { range, addr, bytes: end - addr, run, joins: chunks > 1, epoch });
        }
    }
}
