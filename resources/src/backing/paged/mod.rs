//! Pages: physical memory in handles, mapped in the primary mapping and, where blocks need it, in aliases.
//!
//! ```text
//!  range    ┌ handle 0 ──┬ handle 1 ┬ handle 2 ──┬ 3 ┬ handle 4 ────┐   primary mappings, without gaps
//!           │ used │ free│   free   │ free│ used │ …  │ free  │ used │   best fit over all borders
//!           └──────┴─────┴──────────┴─────┴──────┴────┴───────┴──────┘
//!
//!  alias               ┌ handle 0 ──┬ handle 4 ────┬ handle 2 ─ …        the same handles again
//!                      │      │▒▒▒▒▒▒▒ a block ▒▒▒▒▒▒▒│
//! ```
//!
//! Every handle has a **primary mapping** in one of two address ranges: one for large blocks, one for the
//! spans of small blocks. In the primary mapping free bytes join over the borders of handles: an ordinary
//! [`Heap`], which serves nearly all requests. Where no free extent there is large enough, the pool stitches
//! a block in an **alias mapping**: the free end of one handle, whole free handles, new handles, and the free
//! start of one, mapped a second time behind each other. A block in an alias owns bytes of the primary
//! mapping, in pieces, and is freed piece by piece. The alias stays, and serves again without a driver call
//! while its handles are free.
//!
//! So memory never moves, and nothing is unmapped while it is in use. Only free bytes of handles that are in
//! use in part cannot be handed out. The sizes of handles decide how many bytes that are, and how many driver
//! calls the pool makes: [`Policy`].
//!
//! This module makes no driver call while the pool's lock is held. A [`Plan`] or a [`Release`] holds the
//! calls: it is planned under the lock, run without it, and committed or aborted under it again.
//!
//! | file | what it is |
//! |---|---|
//! | `free_extents` | finds a free extent in the primary mapping |
//! | `free_ends`, `aliases` | free ends of handles; runs of them in alias mappings |
//! | `stitch`, `plan`, `commit` | which pieces make a block, how much memory is new; the three steps |
//! | `release` | returns memory to the driver |
//! | `driver_calls` | the driver calls of plans and releases |
//! | `access` | how physical memory is made, and which devices have access to it |
//! | `handles`, `address_space` | tables: the handle at an address, free addresses |
//! | `policy` | what driver calls the pool may spend, and how large handles are |

mod access;
mod address_space;
mod aliases;
mod commit;
mod driver_calls;
mod free_ends;
mod free_extents;
mod handles;
mod oom;
mod plan;
mod policy;
mod release;
#[cfg(test)]
mod replay;
mod stitch;
#[cfg(test)]
mod tests;
mod validate;

use std::sync::Arc;

use millpond_core::ALLOCATION_ALIGNMENT;

pub(crate) use crate::backing::paged::access::Admission;
pub(crate) use crate::backing::paged::access::Backing;
#[cfg(unix)]
pub(crate) use crate::backing::paged::access::Part;
use crate::backing::paged::aliases::Aliases;
use crate::backing::paged::driver_calls::Retired;
use crate::backing::paged::free_ends::{FreeEnds, OwnerFilter, Piece};
use crate::backing::paged::free_extents::FreeExtent;
use crate::backing::paged::handles::{AliasId, Handles};
use crate::backing::paged::plan::Kept;
pub(crate) use crate::backing::paged::plan::Plan;
use crate::backing::paged::policy::CallBudget;
pub(crate) use crate::backing::paged::release::Release;
use crate::block_map::{Block, BlockMap};
use crate::block_map::{ChunkId, NIL};
use crate::heap::Heap;
use crate::heap::chunk::Chunk;
use crate::heap::request::Request;
use crate::stream_order::{ANY_STREAM, Epoch, Owner};
pub(crate) use crate::tuning::Policy;
use crate::tuning::{CHUNKS_COMPARED, LEAST_RESERVATION_BASIS, RESERVATION_FACTOR};

/// An address range of primary mappings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AddressRange {
    /// Spans of small blocks.
    Small = 0,
    Large = 1,
}

const RANGES: usize = 2;

impl AddressRange {
    const ALL: [Self; RANGES] = [Self::Small, Self::Large];
}

/// Returns the number by which the rest of the pool knows a chunk of an address range's heap.
fn pack(range: AddressRange, chunk: ChunkId) -> ChunkId {
    debug_assert!(chunk < NIL >> 1);
    chunk << 1 | range as ChunkId
}

fn unpack(block: ChunkId) -> (AddressRange, ChunkId) {
    (if block & 1 == 0 { AddressRange::Small } else { AddressRange::Large }, block >> 1)
}

/// The large blocks and spans of a pool, over physical memory that the pool maps itself.
#[derive(Debug)]
pub(crate) struct Pages {
    /// By address range.
    heaps: [Heap; RANGES],
    handles: Handles,
    aliases: Aliases,
    policy: Policy,
    backing: Arc<Backing>,
    granularity: u64,
    /// Bytes of addresses that one reservation asks for.
    reservation_bytes: u64,
    maximum_bytes: u64,
    /// Driver calls that may be spent to hold less memory.
    budget: CallBudget,
    /// Bytes taken beyond the slack because stitching would have cost too many driver calls.
    beyond_slack: u64,
    /// Whether the driver refused memory lately.
    pub(crate) is_short: bool,
    /// The most live bytes that a caller noted: at growth, and where memory was short.
    peak_live: u64,
    /// The most bytes that were not free since [`take_most_used`](Self::take_most_used) was called last.
    most_used: u64,
    /// Bytes of plans under way.
    planned: u64,
    /// Bytes of releases under way.
    retiring: u64,
    peak_bytes_reserved: u64,
    /// Pieces of blocks beyond the first of each, and pieces that plans keep.
    extra_pieces: u64,
    /// Memory and mappings whose release failed; the next release tries again.
    unfinished: Vec<Retired>,
}

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

/// Sizes and counts of [`Pages`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Totals {
    /// Physical memory in bytes, including plans and releases under way.
    pub(crate) bytes_reserved: u64,
    pub(crate) peak_bytes_reserved: u64,
    pub(crate) bytes_free: u64,
    pub(crate) blocks_free: u64,
    pub(crate) blocks_in_use: u64,
    pub(crate) handles: usize,
    pub(crate) aliases: usize,
    /// Mappings in aliases.
    pub(crate) mappings: usize,
    /// Bytes taken so far because stitching would have cost more driver calls than the pool had earned.
    pub(crate) beyond_slack: u64,
}

impl Pages {
    /// Returns pages without memory. `granularity` is the driver's for mappings, `device_total` the device's
    /// memory, both in bytes.
    pub(crate) fn new(granularity: u64, device_total: u64, maximum_bytes: u64, policy: Policy) -> Self {
        let reservation_bytes = device_total.max(LEAST_RESERVATION_BASIS) * RESERVATION_FACTOR;
        let reservation_bytes = reservation_bytes.next_multiple_of(granularity);
        Self {
            heaps: [(); RANGES].map(|()| Heap::new(CHUNKS_COMPARED)),
            handles: Handles::new(granularity),
            aliases: Aliases::default(),
            policy,
            backing: Arc::default(),
            granularity,
            reservation_bytes,
            maximum_bytes,
            is_short: false,
            budget: CallBudget::default(),
            beyond_slack: 0,
            peak_live: 0,
            most_used: 0,
            planned: 0,
            retiring: 0,
            peak_bytes_reserved: 0,
            extra_pieces: 0,
            unfinished: Vec::new(),
        }
    }

    fn heap(&self, range: AddressRange) -> &Heap {
        &self.heaps[range as usize]
    }

    fn heap_mut(&mut self, range: AddressRange) -> &mut Heap {
        &mut self.heaps[range as usize]
    }

    fn find_in_aliases(&self, filter: OwnerFilter, request: &Request) -> Option<Found> {
        let is_plain =
            request.alignment == ALLOCATION_ALIGNMENT && self.range_of(request) == AddressRange::Large;
        let (owner, free) = match filter {
            OwnerFilter::Only(owner, _) => (owner, self.free_bytes(owner)),
            OwnerFilter::With(owner) => (owner, self.free_bytes(owner) + self.free_bytes(ANY_STREAM)),
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
    pub(crate) fn find(&self, owner: Owner, upto: Epoch, request: &Request) -> Option<Found> {
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

    /// Returns the bytes of handles that are not free.
    fn used(&self) -> u64 {
        self.handles.bytes - self.heaps.iter().map(|heap| heap.bytes_free).sum::<u64>()
    }

    /// Raises the most used bytes after an allocation.
    #[inline]
    fn note_use(&mut self) {
        self.most_used = self.most_used.max(self.used());
    }

    /// Returns the most bytes that were not free since the last call.
    pub(crate) fn take_most_used(&mut self) -> u64 {
        let used = self.used();
        std::mem::replace(&mut self.most_used, used)
    }

    /// Hands out what was found, and returns the block and its address. The caller holds the lock since
    /// `find`.
    pub(crate) fn take(&mut self, found: Found, request: &Request) -> (ChunkId, u64) {
        let taken = self.take_found(found, request);
        self.note_use();
        taken
    }

    fn take_found(&mut self, found: Found, request: &Request) -> (ChunkId, u64) {
        match found.place {
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
        }
    }

    /// Takes pieces out of free chunks.
    fn take_pieces(&mut self, pieces: &[Piece], owner: Owner) -> Vec<Kept> {
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

    /// Links pieces to one block, and returns its number, that of the first piece.
    fn link(&mut self, pieces: &[ChunkId]) -> ChunkId {
        for pair in pieces.windows(2) {
            let (range, chunk) = unpack(pair[0]);
            self.heap_mut(range).set_link(chunk, pair[1]);
        }
        self.extra_pieces += pieces.len() as u64 - 1;
        pieces[0]
    }

    /// Returns the pieces of a block.
    pub(crate) fn pieces_of(&self, block: ChunkId) -> impl Iterator<Item = &Chunk> {
        std::iter::successors(Some(block), |id| {
            let (range, chunk) = unpack(*id);
            Some(self.heap(range).link(chunk)).filter(|next| *next != NIL)
        })
        .map(|id| {
            let (range, chunk) = unpack(id);
            self.heap(range).chunk(chunk)
        })
    }

    /// Returns whether the pool may grow by one granule rather than stitch blocks.
    fn may_grow(&self) -> bool {
        self.room(u64::MAX) >= self.granularity
    }

    /// Takes a span for small blocks: `wanted` contiguous bytes or as many as there are, but enough for the
    /// request. Returns the block, its address, its bytes, and the epoch in which it was freed.
    ///
    /// It comes from the small address range, and from the large one only while the pool may not grow.
    pub(crate) fn take_span(
        &mut self,
        owner: Owner,
        upto: Epoch,
        wanted: u64,
        request: &Request,
    ) -> Option<(ChunkId, u64, u64, Epoch)> {
        let find = |range| self.find_span(range, owner, upto, wanted, request).map(|chunk| (range, chunk));
        let found = find(AddressRange::Small);
        let found = found.or_else(|| if self.may_grow() { None } else { find(AddressRange::Large) });
        found.map(|(range, chunk)| self.cut_span(range, chunk, wanted.max(request.bytes)))
    }

    /// Takes a span from either address range: the last attempt before an out-of-memory error.
    pub(crate) fn take_span_anywhere(
        &mut self,
        owner: Owner,
        upto: Epoch,
        wanted: u64,
        request: &Request,
    ) -> Option<(ChunkId, u64, u64, Epoch)> {
        let find = |range| self.find_span(range, owner, upto, wanted, request).map(|chunk| (range, chunk));
        let found = find(AddressRange::Small).or_else(|| find(AddressRange::Large));
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

    /// Inserts a block that is handed out at an address into the block map.
    pub(crate) fn insert_block(&mut self, block_map: &BlockMap, block: Block, addr: u64) {
        let (range, chunk) = unpack(block.chunk);
        let heap = self.heap_mut(range);
        if heap.chunk(chunk).addr == addr {
            heap.insert_block_as(block_map, chunk, block);
        } else {
            block_map.insert(addr, Block { is_in_alias: true, ..block });
        }
    }

    /// Removes a block from the block map.
    pub(crate) fn remove_block(&mut self, block: ChunkId) {
        let (range, chunk) = unpack(block);
        self.heap_mut(range).remove_block(chunk);
    }

    pub(crate) fn heaps_mut(&mut self) -> &mut [Heap] {
        &mut self.heaps
    }

    /// Returns the heaps of the address ranges.
    pub(crate) fn heaps(&self) -> &[Heap] {
        &self.heaps
    }

    /// Frees a block, with all its pieces, for `owner`.
    pub(crate) fn free(&mut self, block: ChunkId, owner: Owner, epoch: Epoch) {
        let mut next = block;
        while next != NIL {
            let (range, chunk) = unpack(next);
            let heap = self.heap_mut(range);
            next = heap.link(chunk);
            heap.free(chunk, owner, epoch);
            self.extra_pieces -= u64::from(next != NIL);
        }
    }

    /// Returns the first piece of a block, if there is such a chunk.
    pub(crate) fn block(&self, block: ChunkId) -> Option<&Chunk> {
        let (range, chunk) = unpack(block);
        self.heap(range).get(chunk)
    }

    /// Returns the bytes of a block in use.
    pub(crate) fn bytes_of(&self, block: ChunkId) -> u64 {
        self.pieces_of(block).map(|piece| piece.bytes).sum()
    }

    /// Moves chunks freed in epoch `upto` or before to another owner, as freed in `epoch`.
    pub(crate) fn migrate(&mut self, from: Owner, upto: Epoch, to: Owner, epoch: Epoch) {
        self.heaps.iter_mut().for_each(|heap| heap.migrate(from, upto, to, epoch));
    }

    /// Takes contiguous bytes of the large address range of which the owner owns a part and the rest is
    /// unowned.
    pub(crate) fn take_with_unowned(&mut self, owner: Owner, request: &Request) -> Option<(ChunkId, u64)> {
        if self.range_of(request) == AddressRange::Small && self.may_grow() && !self.is_short {
            return None;
        }
        let heap = self.heap_mut(AddressRange::Large);
        let (first, addr) = heap.find_run(owner, request)?;
        let id = heap.take_run(first, addr, request.bytes);
        heap.set_link(id, NIL);
        self.note_use();
        Some((pack(AddressRange::Large, id), addr))
    }

    /// Returns the bytes in the free chunks of an owner.
    pub(crate) fn free_bytes(&self, owner: Owner) -> u64 {
        self.heaps.iter().map(|heap| heap.free_bytes(owner)).sum()
    }

    /// Forgets an owner that has no free chunks.
    pub(crate) fn remove_owner(&mut self, owner: Owner) {
        self.heaps.iter_mut().for_each(|heap| heap.remove_owner(owner));
    }

    /// Returns the bytes of the largest free extent in the primary mapping.
    pub(crate) fn largest_free_block(&self) -> u64 {
        self.heaps.iter().map(Heap::largest_free_block).max().unwrap_or(0)
    }

    /// Returns the chunk that owns the memory at an address, in the primary mapping or in an alias. Only
    /// error paths call this: it walks all chunks of a region.
    pub(crate) fn chunk_at(&self, addr: u64) -> Option<&Chunk> {
        let primary = match self.aliases.at(addr) {
            Some((handle, start)) => self.handles.get(handle).primary + (addr - start),
            None => addr,
        };
        self.heaps.iter().find_map(|heap| heap.chunk_at(primary))
    }

    /// Returns sizes and counts.
    pub(crate) fn totals(&self) -> Totals {
        let sum = |of: fn(&Heap) -> u64| self.heaps.iter().map(of).sum::<u64>();
        Totals {
            bytes_reserved: self.bytes_reserved(),
            peak_bytes_reserved: self.peak_bytes_reserved,
            bytes_free: sum(|heap| heap.bytes_free),
            blocks_free: sum(|heap| heap.blocks_free),
            blocks_in_use: sum(|heap| heap.blocks_in_use) - self.extra_pieces,
            handles: self.handles.len(),
            aliases: self.aliases.len(),
            mappings: self.aliases.mappings,
            beyond_slack: self.beyond_slack,
        }
    }

    /// Returns the bytes of physical memory, including plans and releases under way.
    pub(crate) fn bytes_reserved(&self) -> u64 {
        self.handles.bytes + self.planned + self.retiring
    }
}
