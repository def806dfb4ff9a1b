//! Pages: physical memory in handles, mapped at home and, where blocks need it, in views.
//!
//! ```text
//!  line     ┌ handle 0 ──┬ handle 1 ┬ handle 2 ──┬ 3 ┬ handle 4 ────┐   homes, without gaps
//!           │ used │ free│   free   │ free│ used │ …  │ free  │ used │   best fit over all borders
//!           └──────┴─────┴──────────┴─────┴──────┴────┴───────┴──────┘
//!
//!  view                ┌ handle 0 ──┬ handle 4 ────┬ handle 2 ─ …        the same handles again
//!                      │      │▒▒▒▒▒▒▒ a block ▒▒▒▒▒▒▒│
//! ```
//!
//! Every handle has a **home** in one of two address lines, one for large blocks and one for the spans of
//! small ones. At home free bytes join over the borders of handles: an ordinary [`Heap`], which serves nearly
//! all requests. Where no hole at home is large enough, a block is put together in a **view**: the free end
//! of one handle, whole free handles, new ones, and the free start of one, mapped a second time behind each
//! other. A block in a view still owns bytes at home, in pieces, and goes back piece by piece. The view stays
//! and serves again without a driver call while its places are free.
//!
//! So memory never moves, nothing is unmapped while it is used, and what cannot be handed out is only what is
//! free inside handles beside blocks in use. How large handles are made decides how much that is, and how
//! many driver calls it takes: [`Policy`].
//!
//! Here no driver call is made. What needs some comes out as a [`Plan`] or a [`Release`], to be carried out
//! without the pool's lock, and comes back to be committed.
//!
//! | file | what it is |
//! |---|---|
//! | `holes` | which hole at home, and where in it |
//! | `ends`, `gathered`, `views` | free ends of handles; runs of them in views |
//! | `assemble`, `plan` | which pieces make a block, how much is new; the three steps |
//! | `release` | what goes back to the driver |
//! | `carry_out` | the driver calls of both |
//! | `backing` | how physical memory is made, and which devices may use it |
//! | `handles`, `space` | tables: handle at an address, free addresses |

mod assemble;
mod backing;
mod carry_out;
mod commit;
mod ends;
mod gathered;
mod handles;
mod holes;
mod plan;
mod policy;
mod release;
#[cfg(test)]
mod replay;
mod shortage;
mod space;
#[cfg(test)]
mod tests;
mod validate;
mod views;

use std::cell::RefCell;
use std::sync::Arc;

use millpond_core::ALLOCATION_ALIGNMENT;

use super::chunk::{Chunk, ChunkId, NIL};
use super::directory::{Block, Directory};
use super::heap::Heap;
use crate::ordered::{ANYONE, Epoch, Owner, Request};
pub(crate) use backing::Admission;
pub(in crate::pool) use backing::Backing;
#[cfg(unix)]
pub(crate) use backing::Part;
use carry_out::Retired;
use ends::{Piece, Whose};
use gathered::Gathered;
use handles::{Handles, ViewId};
use holes::Hole;
use plan::Kept;
pub(crate) use plan::Plan;
use policy::CallBudget;
pub(in crate::pool) use policy::Policy;
pub(crate) use release::Release;
use views::Views;

/// How many blocks of a bin are compared.
const SCAN: usize = 32;

/// A line of homes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Line {
    /// Spans of small blocks.
    Small = 0,
    Large = 1,
}

const LINES: usize = 2;

impl Line {
    const ALL: [Self; LINES] = [Self::Small, Self::Large];
}

/// A chunk of a line's heap as the rest of the pool names it.
fn pack(line: Line, chunk: ChunkId) -> ChunkId {
    debug_assert!(chunk < NIL >> 1);
    chunk << 1 | line as ChunkId
}

fn unpack(block: ChunkId) -> (Line, ChunkId) {
    (if block & 1 == 0 { Line::Small } else { Line::Large }, block >> 1)
}

/// All large blocks and spans of a pool, over physical memory that it maps itself.
#[derive(Debug)]
pub(in crate::pool) struct Pages {
    /// By line.
    heaps: [Heap; LINES],
    handles: Handles,
    views: Views,
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
    pub(in crate::pool) is_short: bool,
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
    gathered: RefCell<Gathered>,
}

/// Free bytes that serve a request.
#[derive(Clone, Debug)]
pub(in crate::pool) struct Found {
    /// Of the hole that the block is taken from.
    pub(in crate::pool) bytes: u64,
    /// The latest in which any of them was given back.
    pub(in crate::pool) epoch: Epoch,
    /// Whose they are; the requester's, if they are its own in part.
    pub(in crate::pool) owner: Owner,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    Home(Hole),
    View { view: ViewId, pieces: Vec<Piece>, addr: u64 },
}

/// Sizes and counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::pool) struct Totals {
    /// Physical memory in bytes, with what is on its way from and to the driver.
    pub(in crate::pool) bytes_reserved: u64,
    pub(in crate::pool) peak_bytes_reserved: u64,
    pub(in crate::pool) bytes_free: u64,
    pub(in crate::pool) blocks_free: u64,
    pub(in crate::pool) blocks_in_use: u64,
    pub(in crate::pool) handles: usize,
    pub(in crate::pool) views: usize,
    /// Mappings in views.
    pub(in crate::pool) mappings: usize,
    /// Bytes taken so far since stitching would have cost more driver calls than the pool had earned.
    pub(in crate::pool) beyond_slack: u64,
}

impl Pages {
    /// `granularity` is the driver's for mappings, `device_total` the device's memory, both in bytes.
    pub(in crate::pool) fn new(
        granularity: u64,
        device_total: u64,
        maximum_bytes: u64,
        policy: Policy,
    ) -> Self {
        // Room for handles that come and go, and never again a reservation in an ordinary life.
        let reservation_bytes = (device_total.max(1 << 30) * 4).next_multiple_of(granularity);
        Self {
            heaps: [Heap::new(SCAN), Heap::new(SCAN)],
            handles: Handles::new(granularity),
            views: Views::default(),
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
            gathered: RefCell::default(),
        }
    }

    fn heap(&self, line: Line) -> &Heap {
        &self.heaps[line as usize]
    }

    fn heap_mut(&mut self, line: Line) -> &mut Heap {
        &mut self.heaps[line as usize]
    }

    fn find_in_views(&self, whose: Whose, request: &Request) -> Option<Found> {
        let is_plain = request.alignment == ALLOCATION_ALIGNMENT && self.line_of(request) == Line::Large;
        let (owner, free) = match whose {
            Whose::Only(owner, _) => (owner, self.free_bytes(owner)),
            Whose::With(owner) => (owner, self.free_bytes(owner) + self.free_bytes(ANYONE)),
        };
        if !is_plain || free < request.bytes || self.views.mappings == 0 {
            return None;
        }
        let mut gathered = self.free_ends(whose);
        if gathered.no_run == Some(request.bytes) {
            return None;
        }
        let run = gathered.ends.oldest_run(&self.handles, &self.views, request.bytes);
        if run.is_none() {
            gathered.no_run = Some(request.bytes);
        }
        let (run, ends) = (run?, &gathered.ends);
        let (pieces, addr) = ends.pieces(&self.handles, &self.views, &run, request.bytes);
        let epoch = pieces.iter().map(|piece| piece.epoch).max()?;
        let is_anyones =
            |piece: &Piece| !piece.joins && self.heap(piece.line).chunk(piece.run).owner() == ANYONE;
        let owner = if pieces.iter().all(is_anyones) { ANYONE } else { owner };
        Some(Found { bytes: run.bytes, epoch, owner, place: Place::View { view: run.view, pieces, addr } })
    }

    /// The best free bytes of `owner` for a request, among those given back in epoch `upto` or before.
    pub(in crate::pool) fn find(&self, owner: Owner, upto: Epoch, request: &Request) -> Option<Found> {
        match self.find_at_home(owner, upto, request) {
            Some(hole) => Some(self.found_at_home(hole)),
            None => self.find_in_views(Whose::Only(owner, upto), request),
        }
    }

    /// The best of what is the owner's and what is anyone's; or of the owner's own, where it has a hole that
    /// serves (`is_own_first`).
    pub(in crate::pool) fn find_for(
        &self,
        owner: Owner,
        request: &Request,
        is_own_first: bool,
    ) -> Option<Found> {
        let own = self.find_at_home(owner, Epoch::MAX, request);
        if let Some(own) = own.filter(|own| is_own_first || own.bytes == request.bytes) {
            return Some(self.found_at_home(own));
        }
        let anyones = if owner == ANYONE { None } else { self.find_at_home(ANYONE, Epoch::MAX, request) };
        let best = match (own, anyones) {
            (Some(own), Some(anyones)) if anyones.rank() < own.rank() => Some(anyones),
            (own, anyones) => own.or(anyones),
        };
        match best {
            Some(best) => Some(self.found_at_home(best)),
            None => self.find_in_views(Whose::With(owner), request),
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
    pub(in crate::pool) fn take_most_used(&mut self) -> u64 {
        let used = self.used();
        std::mem::replace(&mut self.most_used, used)
    }

    /// Hands out what was found, with nothing done in between: the block and its address.
    pub(in crate::pool) fn take(&mut self, found: Found, request: &Request) -> (ChunkId, u64) {
        let taken = self.take_found(found, request);
        self.note_use();
        taken
    }

    fn take_found(&mut self, found: Found, request: &Request) -> (ChunkId, u64) {
        match found.place {
            Place::Home(Hole { line, chunk, addr, .. }) => {
                let heap = self.heap_mut(line);
                let id = heap.take_at(chunk, addr, request.bytes);
                heap.set_link(id, NIL);
                (pack(line, id), addr)
            }
            Place::View { view, pieces, addr } => {
                self.views.note_block(view);
                let taken = self.take_pieces(&pieces, found.owner);
                let pieces: Vec<ChunkId> = taken.iter().map(|kept| kept.id).collect();
                (self.link(&pieces), addr)
            }
        }
    }

    /// Takes pieces out of the free chunks.
    fn take_pieces(&mut self, pieces: &[Piece], owner: Owner) -> Vec<Kept> {
        let take = |piece: &Piece| {
            let heap = self.heap_mut(piece.line);
            // Other pieces of the run may have been taken before this one.
            let hole = heap.chunk_from(piece.run, piece.addr);
            let owner = if piece.joins { owner } else { heap.chunk(hole).owner() };
            let id = heap.take_run(hole, piece.addr, piece.bytes);
            heap.set_link(id, NIL);
            Kept { id: pack(piece.line, id), owner, epoch: piece.epoch }
        };
        pieces.iter().map(take).collect()
    }

    /// Makes pieces one block, named for the first.
    fn link(&mut self, pieces: &[ChunkId]) -> ChunkId {
        for pair in pieces.windows(2) {
            let (line, chunk) = unpack(pair[0]);
            self.heap_mut(line).set_link(chunk, pair[1]);
        }
        self.extra_pieces += pieces.len() as u64 - 1;
        pieces[0]
    }

    /// The pieces of a block.
    pub(in crate::pool) fn pieces_of(&self, block: ChunkId) -> impl Iterator<Item = &Chunk> {
        std::iter::successors(Some(block), |id| {
            let (line, chunk) = unpack(*id);
            Some(self.heap(line).link(chunk)).filter(|next| *next != NIL)
        })
        .map(|id| {
            let (line, chunk) = unpack(id);
            self.heap(line).chunk(chunk)
        })
    }

    /// Whether the pool may grow by a small handle before it does with what it has.
    fn may_grow(&self) -> bool {
        self.room(u64::MAX) >= self.granularity
    }

    /// A span for small blocks, of `wanted` bytes or as many as there are in a row, but enough for the
    /// request: the block, its address and bytes, and when it was given back.
    ///
    /// From the small line; from the large one only while the pool may not grow.
    pub(in crate::pool) fn take_span(
        &mut self,
        owner: Owner,
        upto: Epoch,
        wanted: u64,
        request: &Request,
    ) -> Option<(ChunkId, u64, u64, Epoch)> {
        let in_line = |line| self.find_span(line, owner, upto, wanted, request).map(|chunk| (line, chunk));
        let found = in_line(Line::Small);
        let found = found.or_else(|| if self.may_grow() { None } else { in_line(Line::Large) });
        found.map(|(line, chunk)| self.cut_span(line, chunk, wanted.max(request.bytes)))
    }

    /// A span from either line: before memory is out.
    pub(in crate::pool) fn take_span_anywhere(
        &mut self,
        owner: Owner,
        upto: Epoch,
        wanted: u64,
        request: &Request,
    ) -> Option<(ChunkId, u64, u64, Epoch)> {
        let in_line = |line| self.find_span(line, owner, upto, wanted, request).map(|chunk| (line, chunk));
        let found = in_line(Line::Small).or_else(|| in_line(Line::Large));
        found.map(|(line, chunk)| self.cut_span(line, chunk, wanted.max(request.bytes)))
    }

    fn find_span(
        &self,
        line: Line,
        owner: Owner,
        upto: Epoch,
        wanted: u64,
        request: &Request,
    ) -> Option<ChunkId> {
        let heap = self.heap(line);
        if line == Line::Large {
            // The smallest hole that will do: small blocks live long, and break what they are in.
            return heap.find(owner, upto, request);
        }
        let best = heap.find(owner, upto, &Request { bytes: wanted.max(request.bytes), ..*request });
        best.or_else(|| heap.largest_for(owner, upto, request))
    }

    fn cut_span(&mut self, line: Line, chunk: ChunkId, wanted: u64) -> (ChunkId, u64, u64, Epoch) {
        let heap = self.heap_mut(line);
        let (epoch, bytes) = (heap.chunk(chunk).epoch(), heap.chunk(chunk).bytes.min(wanted));
        let id = heap.take(chunk, bytes, ALLOCATION_ALIGNMENT);
        heap.set_link(id, NIL);
        let base = heap.chunk(id).addr;
        self.note_use();
        (pack(line, id), base, bytes, epoch)
    }

    /// Enters a block that is handed out at an address.
    pub(in crate::pool) fn enter(&mut self, directory: &Directory, block: Block, addr: u64) {
        let (line, chunk) = unpack(block.chunk);
        let heap = self.heap_mut(line);
        if heap.chunk(chunk).addr == addr {
            heap.enter_as(directory, chunk, block);
        } else {
            directory.insert(addr, Block { is_in_view: true, ..block });
        }
    }

    /// The block is none to the directory.
    pub(in crate::pool) fn leave(&mut self, block: ChunkId) {
        let (line, chunk) = unpack(block);
        self.heap_mut(line).leave(chunk);
    }

    pub(in crate::pool) fn heaps_mut(&mut self) -> &mut [Heap] {
        &mut self.heaps
    }

    /// The lines' heaps.
    pub(in crate::pool) fn heaps(&self) -> &[Heap] {
        &self.heaps
    }

    /// Takes a block back for `owner`, all its pieces.
    pub(in crate::pool) fn give(&mut self, block: ChunkId, owner: Owner, epoch: Epoch) {
        let mut next = block;
        while next != NIL {
            let (line, chunk) = unpack(next);
            let heap = self.heap_mut(line);
            next = heap.link(chunk);
            heap.give(chunk, owner, epoch);
            self.extra_pieces -= u64::from(next != NIL);
        }
    }

    /// The first piece of a block, if there is such a chunk.
    pub(in crate::pool) fn block(&self, block: ChunkId) -> Option<&Chunk> {
        let (line, chunk) = unpack(block);
        self.heap(line).get(chunk)
    }

    /// The bytes of a block in use.
    pub(in crate::pool) fn bytes_of(&self, block: ChunkId) -> u64 {
        self.pieces_of(block).map(|piece| piece.bytes).sum()
    }

    /// Moves free bytes given back in epoch `upto` or before to another owner, as given back in `epoch`.
    pub(in crate::pool) fn migrate(&mut self, from: Owner, upto: Epoch, to: Owner, epoch: Epoch) {
        self.heaps.iter_mut().for_each(|heap| heap.migrate(from, upto, to, epoch));
    }

    /// Hands out bytes of the large line that are the owner's in part and anyone's in part.
    pub(in crate::pool) fn take_with_anyones(
        &mut self,
        owner: Owner,
        request: &Request,
    ) -> Option<(ChunkId, u64)> {
        if self.line_of(request) == Line::Small && self.may_grow() && !self.is_short {
            return None;
        }
        let heap = self.heap_mut(Line::Large);
        let (first, addr) = heap.find_run(owner, request)?;
        let id = heap.take_run(first, addr, request.bytes);
        heap.set_link(id, NIL);
        self.note_use();
        Some((pack(Line::Large, id), addr))
    }

    /// Bytes in the free chunks of an owner.
    pub(in crate::pool) fn free_bytes(&self, owner: Owner) -> u64 {
        self.heaps.iter().map(|heap| heap.free_bytes(owner)).sum()
    }

    /// Forgets an owner that has no free chunks.
    pub(in crate::pool) fn remove_owner(&mut self, owner: Owner) {
        self.heaps.iter_mut().for_each(|heap| heap.remove_owner(owner));
    }

    /// The largest hole at home.
    pub(in crate::pool) fn largest_free_block(&self) -> u64 {
        self.heaps.iter().map(Heap::largest_free_block).max().unwrap_or(0)
    }

    /// The chunk that owns the memory at an address, at home or in a view. Error path: it walks.
    pub(in crate::pool) fn chunk_at(&self, addr: u64) -> Option<&Chunk> {
        let home = match self.views.at(addr) {
            Some((handle, start)) => self.handles.get(handle).home + (addr - start),
            None => addr,
        };
        self.heaps.iter().find_map(|heap| heap.chunk_at(home))
    }

    /// Sizes and counts.
    pub(in crate::pool) fn totals(&self) -> Totals {
        let sum = |of: fn(&Heap) -> u64| self.heaps.iter().map(of).sum::<u64>();
        Totals {
            bytes_reserved: self.bytes_reserved(),
            peak_bytes_reserved: self.peak_bytes_reserved,
            bytes_free: sum(|heap| heap.bytes_free),
            blocks_free: sum(|heap| heap.blocks_free),
            blocks_in_use: sum(|heap| heap.blocks_in_use) - self.extra_pieces,
            handles: self.handles.len(),
            views: self.views.len(),
            mappings: self.views.mappings,
            beyond_slack: self.beyond_slack,
        }
    }

    /// Physical memory in bytes, with what is on its way from and to the driver.
    pub(in crate::pool) fn bytes_reserved(&self) -> u64 {
        self.handles.bytes + self.planned + self.retiring
    }
}
