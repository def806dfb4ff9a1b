//! Finds free bytes for a request, in the primary mappings and in aliases, and hands them out.

use millpond_core::ALLOCATION_ALIGNMENT;

use crate::block_map::{ChunkId, NIL};
use crate::heap::request::Request;
use crate::store::pages::free_ends::{FreeEnds, OwnerFilter, Piece};
use crate::store::pages::free_extents::FreeExtent;
use crate::store::pages::handles::{AddressRange, AliasId};
use crate::store::pages::plan::Kept;
use crate::store::pages::state::{Pages, pack};
use crate::stream_order::{ANY_STREAM, Epoch, Owner};

/// Free bytes that serve a request.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// Bytes of the free extent that the block is taken from.
    pub(crate) bytes: u64,
    /// The latest epoch in which any of them was freed.
    pub(crate) epoch: Epoch,
    /// Their owner: the requester, if it owns some of them.
    pub(crate) owner: Owner,
    place: Location,
}

#[derive(Clone, Debug)]
enum Location {
    Primary(FreeExtent),
    Alias { alias: AliasId, pieces: Vec<Piece>, addr: u64 },
}

impl Pages {
    fn found_in_primary(&self, extent: FreeExtent) -> Found {
        let chunk = self.heap(extent.range).chunk(extent.chunk);
        Found {
            bytes: extent.bytes,
            epoch: chunk.epoch(),
            owner: chunk.owner(),
            place: Location::Primary(extent),
        }
    }

    fn find_in_aliases(&self, filter: OwnerFilter, request: &Request) -> Option<Found> {
        let is_plain =
            request.alignment == ALLOCATION_ALIGNMENT && self.range_of(request) == AddressRange::Large;
        let (owner, free) = match filter {
            OwnerFilter::Only(owner, _) => (owner, self.free_of(owner)),
            OwnerFilter::With(owner) => (owner, self.free_of(owner) + self.free_of(ANY_STREAM)),
        };
        if !is_plain || free < request.bytes || self.aliases.mappings == 0 {
            return None;
        }
        let ends = FreeEnds::of(self, filter);
        let run = ends.oldest_run(&self.handles, &self.aliases, request.bytes)?;
        let (pieces, addr) = ends.pieces(&self.handles, &self.aliases, &run, request.bytes);
        let epoch = pieces.iter().map(|piece| piece.epoch).max()?;
        let is_unowned =
            |piece: &Piece| !piece.joins && self.heap(piece.range).chunk(piece.run).owner() == ANY_STREAM;
        let owner = if pieces.iter().all(is_unowned) { ANY_STREAM } else { owner };
        Some(Found {
            bytes: run.bytes,
            epoch,
            owner,
            place: Location::Alias { alias: run.alias, pieces, addr },
        })
    }

    /// Finds the best free bytes of `owner` for a request, among those freed in epoch `upto` or before.
    pub(super) fn find_of(&self, owner: Owner, upto: Epoch, request: &Request) -> Option<Found> {
        match self.find_in_primary(owner, upto, request) {
            Some(extent) => Some(self.found_in_primary(extent)),
            None => self.find_in_aliases(OwnerFilter::Only(owner, upto), request),
        }
    }

    /// Finds the best free bytes among the owner's and the unowned ones; with `is_own_first`, among the
    /// owner's alone if one of its free extents serves.
    pub(crate) fn find_for(&self, owner: Owner, request: &Request, is_own_first: bool) -> Option<Found> {
        let own = self.find_in_primary(owner, Epoch::MAX, request);
        if let Some(own) = own.filter(|own| is_own_first || own.bytes == request.bytes) {
            return Some(self.found_in_primary(own));
        }
        let unowned =
            if owner == ANY_STREAM { None } else { self.find_in_primary(ANY_STREAM, Epoch::MAX, request) };
        let best = match (own, unowned) {
            (Some(own), Some(unowned)) if unowned.rank() < own.rank() => Some(unowned),
            (own, unowned) => own.or(unowned),
        };
        match best {
            Some(best) => Some(self.found_in_primary(best)),
            None => self.find_in_aliases(OwnerFilter::With(owner), request),
        }
    }

    /// Hands out what was found, and returns the block and its address. The caller holds the lock since then.
    pub(super) fn take_found(&mut self, found: Found, request: &Request) -> (ChunkId, u64) {
        let taken = match found.place {
            Location::Primary(FreeExtent { range, chunk, addr, .. }) => {
                let heap = self.heap_mut(range);
                let id = heap.take_at(chunk, addr, request.bytes);
                heap.set_link(id, NIL);
                (pack(range, id), addr)
            }
            Location::Alias { alias, pieces, addr } => {
                self.aliases.note_block(alias);
                let taken = self.take_pieces(&pieces, found.owner);
                let pieces: Vec<ChunkId> = taken.iter().map(|kept| kept.id).collect();
                (self.link(&pieces), addr)
            }
        };
        self.note_use();
        taken
    }

    /// Takes pieces out of free chunks.
    pub(super) fn take_pieces(&mut self, pieces: &[Piece], owner: Owner) -> Vec<Kept> {
        let take = |piece: &Piece| {
            let heap = self.heap_mut(piece.range);
            // Other pieces of the run may have been taken before this one.
            let extent = heap.chunk_from(piece.run, piece.addr);
            let owner = if piece.joins { owner } else { heap.chunk(extent).owner() };
            let id = heap.take_run(extent, piece.addr, piece.bytes);
            heap.set_link(id, NIL);
            Kept { id: pack(piece.range, id), owner, epoch: piece.epoch }
        };
        pieces.iter().map(take).collect()
    }

    /// Returns whether the pool may grow by one granule rather than stitch blocks.
    pub(super) fn may_grow(&self) -> bool {
        self.room(u64::MAX) >= self.granularity
    }

    /// Takes a span for small blocks: `wanted` contiguous bytes or as many as there are, but enough for the
    /// request. Returns the block, its address, its bytes, and the epoch in which it was freed.
    ///
    /// It comes from the small address range, and from the large one only while the pool may not grow; with
    /// `anywhere`, from either: the last attempt before an out-of-memory error.
    pub(super) fn cut_span_of(
        &mut self,
        owner: Owner,
        upto: Epoch,
        wanted: u64,
        request: &Request,
        anywhere: bool,
    ) -> Option<(ChunkId, u64, u64, Epoch)> {
        let find = |range| self.find_span(range, owner, upto, wanted, request).map(|chunk| (range, chunk));
        let found = find(AddressRange::Small).or_else(|| {
            let may_use_large = anywhere || !self.may_grow();
            if may_use_large { find(AddressRange::Large) } else { None }
        });
        found.map(|(range, chunk)| self.cut_span(range, chunk, wanted.max(request.bytes)))
    }

    fn find_span(
        &self,
        range: AddressRange,
        owner: Owner,
        upto: Epoch,
        wanted: u64,
        request: &Request,
    ) -> Option<ChunkId> {
        let heap = self.heap(range);
        if range == AddressRange::Large {
            // The smallest free extent that serves: small blocks live long, and break up the extent.
            return heap.find(owner, upto, request);
        }
        let best = heap.find(owner, upto, &Request { bytes: wanted.max(request.bytes), ..*request });
        best.or_else(|| heap.largest_for(owner, upto, request))
    }

    fn cut_span(&mut self, range: AddressRange, chunk: ChunkId, wanted: u64) -> (ChunkId, u64, u64, Epoch) {
        let heap = self.heap_mut(range);
        let (epoch, bytes) = (heap.chunk(chunk).epoch(), heap.chunk(chunk).bytes.min(wanted));
        let id = heap.take(chunk, bytes, ALLOCATION_ALIGNMENT);
        heap.set_link(id, NIL);
        let base = heap.chunk(id).addr;
        self.note_use();
        (pack(range, id), base, bytes, epoch)
    }

    /// Takes contiguous bytes of the large address range of which the owner owns a part and the rest is
    /// unowned. Returns the block, its address, and the latest epoch in which any of the bytes was freed.
    pub(crate) fn take_with_unowned(
        &mut self,
        owner: Owner,
        request: &Request,
    ) -> Option<(ChunkId, u64, Epoch)> {
        if self.range_of(request) == AddressRange::Small && self.may_grow() && !self.is_short {
            return None;
        }
        let heap = self.heap_mut(AddressRange::Large);
        let (id, addr, epoch) = heap.take_with_unowned(owner, request)?;
        heap.set_link(id, NIL);
        self.note_use();
        Some((pack(AddressRange::Large, id), addr, epoch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::Policy;

    /// A span is not cut from the smallest free extent that the request fits, except in the large range:
    /// small blocks live long, and would break up a larger extent.
    #[test]
    fn a_span_comes_from_an_extent_with_the_bytes_wanted() {
        const MIB: u64 = 1 << 20;
        let mut pages = Pages::new(2 * MIB, 1 << 30, u64::MAX, Policy::default());
        let request = Request::new(millpond_core::Layout::new(1000)).expect("not too large");
        for (range, found) in [(AddressRange::Small, 2 * MIB), (AddressRange::Large, MIB / 16)] {
            for (base, bytes) in [(1 << 40, MIB / 16), (2 << 40, 2 * MIB)] {
                pages.heap_mut(range).add_region(base, bytes, ANY_STREAM, 0);
            }
            let chunk = pages.find_span(range, ANY_STREAM, Epoch::MAX, MIB, &request);
            let chunk = chunk.expect("both extents serve the request");
            assert_eq!(pages.heap(range).chunk(chunk).bytes, found, "{range:?}");
        }
    }
}
