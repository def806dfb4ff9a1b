//! Finds free bytes for a request, in the primary mappings and in aliases, and hands them out.

use millpond_core::{ALLOCATION_ALIGNMENT, align_up};

use crate::block_map::{ChunkId, NIL};
use crate::heap::Heap;
use crate::heap::request::{Request, Taken, Whose};
use crate::store::pages::free_ends::{FreeEnds, Piece};
use crate::store::pages::handles::{AddressRange, AliasId};
use crate::store::pages::plan::Kept;
use crate::store::pages::state::{Pages, pack};
use crate::stream_order::{ANY_STREAM, Epoch, Owner};
use crate::tuning::DEVICE_PAGE;

/// Free bytes that serve a request.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// Bytes of the free extent that the block is taken from.
    pub(crate) bytes: u64,
    /// The latest epoch in which any of these bytes was freed.
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

/// A free extent in the primary mapping that a block will be taken from.
#[derive(Clone, Copy, Debug)]
pub(super) struct FreeExtent {
    pub(super) range: AddressRange,
    pub(super) chunk: ChunkId,
    /// Bytes of the free extent.
    pub(super) bytes: u64,
    /// The address of the block in it.
    pub(super) addr: u64,
}

impl FreeExtent {
    /// Returns a sort key: the better of two extents has the smaller key, whatever their owners.
    pub(super) fn rank(&self) -> impl Ord + use<> {
        (self.range == AddressRange::Large, self.bytes, self.addr)
    }
}

impl Pages {
    /// Returns the address range that serves a request.
    pub(super) fn range_of(&self, request: &Request) -> AddressRange {
        let is_small = request.bytes < DEVICE_PAGE && request.alignment == ALLOCATION_ALIGNMENT;
        if is_small { AddressRange::Small } else { AddressRange::Large }
    }

    fn extent(&self, range: AddressRange, chunk: ChunkId, request: &Request) -> Option<FreeExtent> {
        let extent = self.heap(range).chunk(chunk);
        let addr = align_up(extent.addr, request.alignment)?;
        Some(FreeExtent { range, chunk, bytes: extent.bytes, addr })
    }

    /// Finds the best free extent of `owner` in the primary mapping. A small request takes an extent of the
    /// large address range only if the pool may not grow.
    pub(super) fn find_in_primary(&self, owner: Owner, upto: Epoch, request: &Request) -> Option<FreeExtent> {
        let find = |range| {
            let chunk = self.heap(range).find(owner, upto, request)?;
            self.extent(range, chunk, request)
        };
        if self.range_of(request) == AddressRange::Small {
            let small = find(AddressRange::Small);
            if small.is_some() || (self.may_grow() && !self.is_short) {
                return small;
            }
        }
        // Before an out-of-memory error, a large request may use free handles of the small address range.
        find(AddressRange::Large).or_else(|| if self.is_short { find(AddressRange::Small) } else { None })
    }

    fn found_in_primary(&self, extent: FreeExtent) -> Found {
        let chunk = self.heap(extent.range).chunk(extent.chunk);
        Found {
            bytes: extent.bytes,
            epoch: chunk.epoch(),
            owner: chunk.owner(),
            place: Location::Primary(extent),
        }
    }

    fn find_in_aliases(&self, whose: Whose, request: &Request) -> Option<Found> {
        let is_plain =
            request.alignment == ALLOCATION_ALIGNMENT && self.range_of(request) == AddressRange::Large;
        let [owner, other] = whose.owners();
        let free_in =
            |heap: &Heap| heap.free_bytes(owner) + if other == owner { 0 } else { heap.free_bytes(other) };
        let free: u64 = self.heaps.iter().map(free_in).sum();
        if !is_plain || free < request.bytes || self.aliases.mappings == 0 {
            return None;
        }
        self.with_free_ends(whose, true, |ends| self.find_run(ends, owner, request))
    }

    fn find_run(&self, ends: &FreeEnds, owner: Owner, request: &Request) -> Option<Found> {
        let run = ends.oldest_run(&self.handles, &self.aliases, request.bytes)?;
        let (pieces, addr) = ends.pieces(&self.aliases, &run, request.bytes);
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

    /// Finds the best free bytes for a request: in the primary mapping, or else in an alias.
    pub(super) fn find_best(&self, whose: Whose, request: &Request) -> Option<Found> {
        let extent = match whose {
            Whose::Of(owner, upto) => self.find_in_primary(owner, upto, request),
            Whose::OwnOrUnowned { owner, is_own_first } => self.find_for(owner, request, is_own_first),
            Whose::Joined(_) => return None,
        };
        let found = extent.map(|extent| self.found_in_primary(extent));
        found.or_else(|| self.find_in_aliases(whose, request))
    }

    /// Finds the best free extent among the owner's and the unowned ones; with `is_own_first`, among only the
    /// owner's if one of them serves.
    fn find_for(&self, owner: Owner, request: &Request, is_own_first: bool) -> Option<FreeExtent> {
        let own = self.find_in_primary(owner, Epoch::MAX, request);
        if owner == ANY_STREAM || own.is_some_and(|own| is_own_first || own.bytes == request.bytes) {
            return own;
        }
        let unowned = self.find_in_primary(ANY_STREAM, Epoch::MAX, request);
        own.into_iter().chain(unowned).min_by_key(FreeExtent::rank)
    }

    /// Hands out the best free bytes for a request.
    pub(super) fn take_best(&mut self, whose: Whose, request: &Request) -> Option<Taken> {
        if let Whose::Joined(owner) = whose {
            return self.take_with_unowned(owner, request);
        }
        let Found { epoch, owner, place, .. } = self.find_best(whose, request)?;
        let (chunk, addr) = match place {
            Location::Primary(FreeExtent { range, chunk, addr, .. }) => {
                let heap = self.heap_mut(range);
                let id = heap.take_at(chunk, addr, request.bytes);
                heap.set_link(id, NIL);
                (pack(range, id), addr)
            }
            Location::Alias { alias, pieces, addr } => {
                self.aliases.note_block(alias);
                let taken = self.take_pieces(&pieces, owner);
                let pieces: Vec<ChunkId> = taken.iter().map(|kept| kept.id).collect();
                let block = self.link(&pieces);
                self.note_stitched(block, addr);
                (block, addr)
            }
        };
        self.note_use();
        Some(Taken { chunk, addr, was_unowned: owner == ANY_STREAM, epoch })
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

    /// Takes a span for small blocks: `wanted` contiguous bytes, or as many as there are, but enough for the
    /// request. Returns the block, its address, its bytes, and the epoch in which it was freed.
    ///
    /// It comes from the small address range, and from the large one only while the pool may not grow. With
    /// `anywhere` it comes from either: that is the last attempt before an out-of-memory error.
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

    /// Takes contiguous bytes of the large address range that are partly the owner's and partly unowned.
    pub(super) fn take_with_unowned(&mut self, owner: Owner, request: &Request) -> Option<Taken> {
        if self.range_of(request) == AddressRange::Small && self.may_grow() && !self.is_short {
            return None;
        }
        let heap = self.heap_mut(AddressRange::Large);
        let taken = heap.take_with_unowned(owner, request)?;
        heap.set_link(taken.chunk, NIL);
        self.note_use();
        Some(Taken { chunk: pack(AddressRange::Large, taken.chunk), ..taken })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::Policy;

    /// A span does not come from the smallest free extent that the request fits, except in the large range.
    /// Small blocks live long, so there they would break up a larger extent.
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

    /// Of the stream's own extents and the unowned ones, the best serves; with `is_own_first`, an own one.
    #[test]
    fn the_best_extent_serves_or_the_streams_own() {
        const MIB: u64 = 1 << 20;
        const OWN: Owner = 1;
        let request = Request::new(millpond_core::Layout::new(4 * MIB)).expect("not too large");
        for (own, unowned, is_own_first, serves) in [
            (8, 6, false, Some(6)),
            (8, 6, true, Some(8)),
            (4, 4, false, Some(4)),
            (6, 8, false, Some(6)),
            (2, 8, true, Some(8)),
            (2, 2, true, None),
        ] {
            let mut pages = Pages::new(2 * MIB, 1 << 30, u64::MAX, Policy::default());
            for (base, bytes, owner) in [(1 << 40, own, OWN), (2 << 40, unowned, ANY_STREAM)] {
                pages.heap_mut(AddressRange::Large).add_region(base, bytes * MIB, owner, 0);
            }
            let found = pages.find_best(Whose::OwnOrUnowned { owner: OWN, is_own_first }, &request);
            let owner = found.as_ref().map(|found| found.owner);
            assert_eq!(found.map(|found| found.bytes / MIB), serves, "{own}, {unowned}, {is_own_first}");
            assert!(own != unowned || owner.is_none_or(|owner| owner == OWN), "the own one is as good");
        }
    }

    /// Extents of the small address range serve first, then smaller ones, then lower ones.
    #[test]
    fn the_small_range_ranks_first() {
        let extent = |range, bytes, addr| FreeExtent { range, chunk: 0, bytes, addr }.rank();
        let small = |bytes, addr| extent(AddressRange::Small, bytes, addr);
        let ranks = [small(2, 1), small(2, 3), small(4, 0), extent(AddressRange::Large, 1, 0)];
        assert!(ranks.is_sorted_by(|a, b| a < b));
    }

    /// The pool counts a block as another stream's completed one only if it was unowned.
    #[test]
    fn a_block_of_the_stream_itself_was_not_unowned() {
        let request = Request::new(millpond_core::Layout::new(4 << 20)).expect("not too large");
        for (before, was_unowned) in [(1, false), (ANY_STREAM, true)] {
            let mut pages = Pages::new(2 << 20, 1 << 30, u64::MAX, Policy::default());
            pages.heap_mut(AddressRange::Large).add_region(1 << 40, 4 << 20, before, 0);
            let whose = Whose::OwnOrUnowned { owner: 1, is_own_first: false };
            let taken = pages.take_best(whose, &request).expect("the extent serves the request");
            assert_eq!(taken.was_unowned, was_unowned);
        }
    }
}
