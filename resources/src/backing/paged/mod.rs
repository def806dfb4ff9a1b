//! Pages: physical memory in handles, mapped in the primary mapping and, where blocks need it, in aliases.
//!
//! ```text
//!  address range     ┌ handle 0 ──┬ handle 1 ┬ handle 2 ──┬ 3 ┬ handle 4 ────┐   primary mappings, without gaps
//!           │ used │ free│   free   │ free│ used │ …  │ free  │ used │   best fit over all borders
//!           └──────┴─────┴──────────┴─────┴──────┴────┴───────┴──────┘
//!
//!  alias                ┌ handle 0 ──┬ handle 4 ────┬ handle 2 ─ …        the same handles again
//!                      │      │▒▒▒▒▒▒▒ a block ▒▒▒▒▒▒▒│
//! ```
//!
//! Every handle has a **primary mapping** in one of two address range, one for large blocks and one for the
//! spans of small ones. At primary mapping free bytes join over the borders of handles: an ordinary [`Heap`],
//! which serves nearly all requests. Where no free extent in the primary mapping is large enough, a block is
//! stitched in a **alias**: the free end of one handle, whole free handles, new ones, and the free start of
//! one, mapped a second time behind each other. A block in an alias still owns bytes in the primary mapping,
//! in pieces, and goes back piece by piece. The alias stays and serves again without a driver call while its
//! places are free.
//!
//! So memory never moves, nothing is unmapped while it is used, and what cannot be handed out is only what is
//! free inside handles beside blocks in use. How large handles are made decides how much that is, and how
//! many driver calls it takes: [`Policy`].
//!
//! Here no driver call is made. What needs some comes out as a [`Plan`] or a [`Release`], to be run
//! without the pool's lock, and comes back to be committed.
//!
//! | file | what it is |
//! |---|---|
//! | `free_extents` | which free extent in the primary mapping, and where in it |
//! | `ends`, `reclaimed`, `aliases` | free ends of handles; runs of them in aliases |
//! | `stitch`, `plan` | which pieces make a block, how much is new; the three steps |
//! | `release` | what goes back to the driver |
//! | `run` | the driver calls of both |
//! | `backing` | how physical memory is made, and which devices may use it |
//! | `handles`, `space` | tables: handle at an address, free addresses |

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
pub(crate) use crate::backing::paged::policy::Policy;
pub(crate) use crate::backing::paged::release::Release;
use crate::block_map::{Block, BlockMap};
use crate::block_map::{ChunkId, NIL};
use crate::heap::Heap;
use crate::heap::chunk::Chunk;
use crate::heap::request::Request;
use crate::stream_order::{ANY_STREAM, Epoch, Owner};

/// How many blocks of a bin are compared.
const SCAN: usize = 32;

/// A address range of primary mappings.
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

/// A chunk of a address range's heap as the rest of the pool names it.
fn pack(range: AddressRange, chunk: ChunkId) -> ChunkId {
    debug_assert!(chunk < NIL >> 1);
    chunk << 1 | range as ChunkId
}

fn unpack(block: ChunkId) -> (AddressRange, ChunkId) {
    (if block & 1 == 0 { AddressRange::Small } else { AddressRange::Large }, block >> 1)
}

/// All large blocks and spans of a pool, over physical memory that it maps itself.
#[derive(Debug)]
pub(crate) struct Pages {
    /// By address range.
    heaps: [Heap; RANGES],
    handles: Handles,
    aliases: Aliases,
    policy: Policy,
    backing: Arc<Backing>,
    granularity: u64,
    /// How many bytes of addresses are reserved at a time.
    reservation_bytes: u64,
    maximum_bytes: u64,
    /// Driver calls that may be spent to hold less memory.
    budget: CallBudget,
    /// Bytes taken beyond the slack since stitching would have cost too many driver calls.
    beyond_slack: u64,
    /// Whether there was no memory to be had, lately.
    pub(crate) is_short: bool,
    /// The most that was in use when memory was short.
    peak_live: u64,
    /// The most that was not free since somebody asked last.
    most_used: u64,
    /// Bytes of plans under way.
    planned: u64,
    /// Bytes taken out to go back to the driver.
    retiring: u64,
    peak_bytes_reserved: u64,
    /// Pieces of blocks beyond the first of each, and pieces kept by plans.
    extra_pieces: u64,
    /// What should have gone back and did not.
    unfinished: Vec<Retired>,
}

/// Free bytes that serve a request.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// Of the free extent that the block is taken from.
    pub(crate) bytes: u64,
    /// The latest in which any of them was given back.
    pub(crate) epoch: Epoch,
    /// Whose they are; the requester's, if they are its own in part.
    pub(crate) owner: Owner,
    place: Location,
}

#[derive(Clone, Debug)]
enum Location {
    Home(FreeExtent),
    Alias { alias: AliasId, pieces: Vec<Piece>, addr: u64 },
}

/// Sizes and counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Totals {
    /// Physical memory in bytes, with what is on its way from and to the driver.
    pub(crate) bytes_reserved: u64,
    pub(crate) peak_bytes_reserved: u64,
    pub(crate) bytes_free: u64,
    pub(crate) blocks_free: u64,
    pub(crate) blocks_in_use: u64,
    pub(crate) handles: usize,
    pub(crate) aliases: usize,
    /// Mappings in aliases.
    pub(crate) mappings: usize,
    /// Bytes taken so far since stitching would have cost more driver calls than the pool had earned.
    pub(crate) beyond_slack: u64,
}

impl Pages {
    /// `granularity` is the driver's for mappings, `device_total` the device's memory, both in bytes.
    pub(crate) fn new(granularity: u64, device_total: u64, maximum_bytes: u64, policy: Policy) -> Self {
        // Room for handles that come and go, and never again a reservation in an ordinary life.
        let reservation_bytes = (device_total.max(1 << 30) * 4).next_multiple_of(granularity);
        Self {
            heaps: [Heap::new(SCAN), Heap::new(SCAN)],
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

    /// The best free bytes of `owner` for a request, among those freed in epoch `upto` or before.
    pub(crate) fn find(&self, owner: Owner, upto: Epoch, request: &Request) -> Option<Found> {
        match self.find_in_primary(owner, upto, request) {
            Some(extent) => Some(self.found_in_primary(extent)),
            None => self.find_in_aliases(OwnerFilter::Only(owner, upto), request),
        }
    }

    /// The best of what is the owner's and what is unowned; or of the owner's own, where it has a free extent
    /// that serves (`is_own_first`).
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

    /// Bytes of handles that are not free.
    fn used(&self) -> u64 {
        self.handles.bytes - self.heaps.iter().map(|heap| heap.bytes_free).sum::<u64>()
    }

    /// Notes that something was taken.
    #[inline]
    fn note_use(&mut self) {
        self.most_used = self.most_used.max(self.used());
    }

    /// The most that was not free since this was asked last, in bytes.
    pub(crate) fn take_most_used(&mut self) -> u64 {
        let used = self.used();
        std::mem::replace(&mut self.most_used, used)
    }

    /// Hands out what was found, with nothing done in between: the block and its address.
    pub(crate) fn take(&mut self, found: Found, request: &Request) -> (ChunkId, u64) {
        let taken = self.take_found(found, request);
        self.note_use();
        taken
    }

    fn take_found(&mut self, found: Found, request: &Request) -> (ChunkId, u64) {
        match found.place {
            Location::Home(FreeExtent { range, chunk, addr, .. }) => {
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

    /// Takes pieces out of the free chunks.
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

    /// Makes pieces one block, named for the first.
    fn link(&mut self, pieces: &[ChunkId]) -> ChunkId {
        for pair in pieces.windows(2) {
            let (range, chunk) = unpack(pair[0]);
            self.heap_mut(range).set_link(chunk, pair[1]);
        }
        self.extra_pieces += pieces.len() as u64 - 1;
        pieces[0]
    }

    /// The pieces of a block.
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

    /// Whether the pool may grow by a small handle before it does with what it has.
    fn may_grow(&self) -> bool {
        self.room(u64::MAX) >= self.granularity
    }

    /// A span for small blocks, of `wanted` bytes or as many as there are in a row, but enough for the
    /// request: the block, its address and bytes, and when it was given back.
    ///
    /// From the small address range; from the large one only while the pool may not grow.
    pub(crate) fn take_span(
        &mut self,
        owner: Owner,
        upto: Epoch,
        wanted: u64,
        request: &Request,
    ) -> Option<(ChunkId, u64, u64, Epoch)> {
        let in_line = |range| self.find_span(range, owner, upto, wanted, request).map(|chunk| (range, chunk));
        let found = in_line(AddressRange::Small);
        let found = found.or_else(|| if self.may_grow() { None } else { in_line(AddressRange::Large) });
        found.map(|(range, chunk)| self.cut_span(range, chunk, wanted.max(request.bytes)))
    }

    /// A span from either address range: before memory is out.
    pub(crate) fn take_span_anywhere(
        &mut self,
        owner: Owner,
        upto: Epoch,
        wanted: u64,
        request: &Request,
    ) -> Option<(ChunkId, u64, u64, Epoch)> {
        let in_line = |range| self.find_span(range, owner, upto, wanted, request).map(|chunk| (range, chunk));
        let found = in_line(AddressRange::Small).or_else(|| in_line(AddressRange::Large));
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
            // The smallest free extent that will do: small blocks live long, and break what they are in.
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

    /// Enters a block that is handed out at an address.
    pub(crate) fn insert_block(&mut self, block_map: &BlockMap, block: Block, addr: u64) {
        let (range, chunk) = unpack(block.chunk);
        let heap = self.heap_mut(range);
        if heap.chunk(chunk).addr == addr {
            heap.insert_block_as(block_map, chunk, block);
        } else {
            block_map.insert(addr, Block { is_in_alias: true, ..block });
        }
    }

    /// The block is none to the block map.
    pub(crate) fn remove_block(&mut self, block: ChunkId) {
        let (range, chunk) = unpack(block);
        self.heap_mut(range).remove_block(chunk);
    }

    pub(crate) fn heaps_mut(&mut self) -> &mut [Heap] {
        &mut self.heaps
    }

    /// The address ranges' heaps.
    pub(crate) fn heaps(&self) -> &[Heap] {
        &self.heaps
    }

    /// Takes a block back for `owner`, all its pieces.
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

    /// The first piece of a block, if there is such a chunk.
    pub(crate) fn block(&self, block: ChunkId) -> Option<&Chunk> {
        let (range, chunk) = unpack(block);
        self.heap(range).get(chunk)
    }

    /// The bytes of a block in use.
    pub(crate) fn bytes_of(&self, block: ChunkId) -> u64 {
        self.pieces_of(block).map(|piece| piece.bytes).sum()
    }

    /// Moves free bytes freed in epoch `upto` or before to another owner, as freed in `epoch`.
    pub(crate) fn migrate(&mut self, from: Owner, upto: Epoch, to: Owner, epoch: Epoch) {
        self.heaps.iter_mut().for_each(|heap| heap.migrate(from, upto, to, epoch));
    }

    /// Hands out bytes of the large address range that are the owner's in part and unowned in part.
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

    /// Bytes in the free chunks of an owner.
    pub(crate) fn free_bytes(&self, owner: Owner) -> u64 {
        self.heaps.iter().map(|heap| heap.free_bytes(owner)).sum()
    }

    /// Forgets an owner that has no free chunks.
    pub(crate) fn remove_owner(&mut self, owner: Owner) {
        self.heaps.iter_mut().for_each(|heap| heap.remove_owner(owner));
    }

    /// The largest free extent in the primary mapping.
    pub(crate) fn largest_free_block(&self) -> u64 {
        self.heaps.iter().map(Heap::largest_free_block).max().unwrap_or(0)
    }

    /// The chunk that owns the memory at an address, in the primary mapping or in an alias. Error path: it
    /// walks.
    pub(crate) fn chunk_at(&self, addr: u64) -> Option<&Chunk> {
        let primary = match self.aliases.at(addr) {
            Some((handle, start)) => self.handles.get(handle).primary + (addr - start),
            None => addr,
        };
        self.heaps.iter().find_map(|heap| heap.chunk_at(primary))
    }

    /// Sizes and counts.
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

    /// Physical memory in bytes, with what is on its way from and to the driver.
    pub(crate) fn bytes_reserved(&self) -> u64 {
        self.handles.bytes + self.planned + self.retiring
    }
}
