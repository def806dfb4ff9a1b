use millpond_core::ALLOCATION_ALIGNMENT;
use millpond_core::driver::{Driver, DriverResult};

use crate::backing::paged::driver_calls::{Addresses, Source, Work};
use crate::backing::paged::free_ends::{FreeEnds, OwnerFilter, Piece};
use crate::backing::paged::handles::{AliasId, Handle, HandleId};
use crate::backing::paged::stitch::Stitching;
use crate::backing::paged::{AddressRange, Pages};
use crate::block_map::ChunkId;
use crate::heap::chunk::Chunk;
use crate::heap::request::Request;
use crate::pool::protocol::Lack;
use crate::stream_order::{ANY_STREAM, Epoch, Owner};

/// Addresses kept for an alias, as a multiple of what is mapped first: aliases go on at their ends.
const SLOT_FACTOR: u64 = 4;

/// The fewest addresses kept for an alias.
const LEAST_SLOT: u64 = 64 << 20;

/// Driver calls that bring a handle: it is created, mapped, and made accessible.
pub(super) const CALLS_FOR_HANDLE: u64 = 3;

/// A block that is on its way: pieces are kept for it, addresses too, and some work is for the driver.
///
/// It ends with [`Pages::commit`] when it was run, or else with [`Pages::abort`].
#[derive(Debug)]
#[must_use = "a plan keeps memory until it is committed or abandoned"]
pub(crate) struct Plan {
    pub(super) range: AddressRange,
    /// Pieces that come before the new memory, and the one behind it.
    pub(super) before: Vec<Kept>,
    pub(super) after: Option<Kept>,
    /// Bytes of the new memory that are the block's, and to what its address is aligned.
    pub(super) used: u64,
    pub(super) alignment: u64,
    /// Where the block lies, if not in the primary mapping.
    pub(super) alias: Option<InView>,
    pub(super) work: Work,
    /// Bytes of the new memory that a larger budget of driver calls would have saved.
    pub(super) beyond_slack: u64,
}

/// A piece that is taken, and whose it was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) id: ChunkId,
    pub(super) owner: Owner,
    pub(super) epoch: Epoch,
}

#[derive(Debug)]
pub(super) struct InView {
    /// An existing alias that goes on; `None` for a new one.
    pub(super) alias: Option<AliasId>,
    /// From the start of the alias to the block, in bytes.
    pub(super) offset: u64,
    /// Bytes of addresses kept for a new alias.
    pub(super) slot: u64,
}

/// Why no block can be had: more new memory is needed than there may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refused {
    /// Bytes of new memory that the block would need.
    pub(crate) needed: u64,
    /// Bytes that the pool may still take.
    pub(crate) available: u64,
}

impl Plan {
    /// Bytes of new memory.
    pub(crate) fn new_bytes(&self) -> u64 {
        self.work.new_bytes()
    }

    /// Makes the new memory one handle: the driver gives it all, or nothing.
    pub(crate) fn take_at_once(&mut self) {
        self.work.take_at_once();
    }

    /// Makes the driver calls, without the pool's lock. Where one fails, those before it are undone.
    ///
    /// # Errors
    /// What the driver reports. Where it refuses a handle and has enough, smaller ones were tried first.
    pub(crate) fn run(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        self.work.run(driver)
    }
}

impl Pages {
    /// Bytes that the pool may take from the driver, in whole granules.
    fn available(&self, most_new: u64) -> u64 {
        let available = self.maximum_bytes.saturating_sub(self.bytes_reserved()).min(most_new);
        available / self.granularity * self.granularity
    }

    /// Bytes by which the pool may grow before it puts blocks together instead.
    pub(super) fn room(&self, most_new: u64) -> u64 {
        let allowed = self.policy.allowed(self.peak_live, &self.budget);
        let room = allowed.saturating_sub(self.bytes_reserved());
        (room / self.granularity * self.granularity).min(self.available(most_new))
    }

    /// Notes how many bytes are in use, where the caller knows it: the more the pool knows of the peak, the
    /// less it does to save memory that was once needed anyway.
    pub(crate) fn note_live(&mut self, live_bytes: u64) {
        self.peak_live = self.peak_live.max(live_bytes);
    }

    /// Notes how many allocations and deallocations there were: each earns a little of the driver
    /// calls that the pool may spend to hold less memory.
    pub(crate) fn note_operations(&mut self, operations: u64) {
        self.budget.note_operations(&self.policy, operations);
    }

    /// Plans a block for which `find_for` found nothing. A span for small blocks (`is_span`, and the request
    /// has its size) comes on the small address range whatever its size.
    ///
    /// `live_bytes` is what is in use now, without this request. At most `most_new` bytes are taken from the
    /// driver: less than all is for when it had no more.
    ///
    /// # Errors
    /// [`Refused`] where that, or the pool's maximum, is too little.
    pub(crate) fn plan(
        &mut self,
        owner: Owner,
        request: &Request,
        is_span: bool,
        live_bytes: u64,
        most_new: u64,
    ) -> Result<Plan, Refused> {
        self.note_live(live_bytes.saturating_add(request.bytes));
        if request.alignment > ALLOCATION_ALIGNMENT {
            return self.plan_aligned(request, most_new);
        }
        let range = if is_span { AddressRange::Small } else { self.range_of(request) };
        let tail = self.tail(range, owner).filter(|tail| tail.bytes < request.bytes);
        let missing = request.bytes - tail.map_or(0, |tail| tail.bytes);
        let room = self.room(most_new);
        let mut growth = self.whole_granules(missing);
        if range == AddressRange::Small {
            let at_once = self.policy.spans_at_once(self.heap(range).bytes_reserved, self.granularity);
            growth = growth.max(at_once.min(self.available(most_new)));
        }
        if range == AddressRange::Large && growth > room {
            let ends = FreeEnds::of(self, OwnerFilter::With(owner));
            let chosen = self.choose(&ends, request.bytes, room);
            if !chosen.before.is_empty() || chosen.last.is_some() {
                return self.plan_stitching(owner, &ends, chosen, request, most_new);
            }
        }
        let mut plan = self.plan_growth(range, growth, tail.map(|tail| (tail, owner)), missing, most_new)?;
        if range == AddressRange::Large {
            let within = self.policy.target(self.peak_live).saturating_sub(self.bytes_reserved() - growth);
            plan.beyond_slack = growth.saturating_sub(within);
        }
        Ok(plan)
    }

    /// Plans free memory of so many bytes, in whole granules, and no block: for
    /// [`commit_reserve`](Self::commit_reserve). A maximum that ends within a granule leaves that out.
    ///
    /// # Errors
    /// [`Refused`] where the pool's maximum, or `most_new`, is less.
    pub(crate) fn plan_reserve(&mut self, bytes: u64, most_new: u64) -> Result<Plan, Refused> {
        self.note_live(bytes);
        let whole = self.whole_granules(bytes);
        let fits = whole <= self.available(u64::MAX);
        let new = if fits { whole } else { bytes / self.granularity * self.granularity };
        self.plan_growth(AddressRange::Large, new, None, 0, most_new)
    }

    /// What was in the way of a plan that was refused.
    pub(crate) fn lack(&self, refused: &Refused) -> Lack {
        if refused.needed > self.available(u64::MAX) { Lack::OwnLimit } else { Lack::NewMemory }
    }

    /// What is free at the end of a address range.
    fn tail(&self, range: AddressRange, owner: Owner) -> Option<Piece> {
        let heap = self.heap(range);
        let tail = heap.tail().filter(|id| heap.chunk(*id).is_free())?;
        let chunk = heap.chunk(tail);
        if chunk.owner() != owner && chunk.owner() != ANY_STREAM {
            return None;
        }
        let run = heap.first_of_run(tail, owner);
        let addr = heap.chunk(run).addr;
        let epoch = heap.run(run, owner).map(Chunk::epoch).max()?;
        let bytes = chunk.addr + chunk.bytes - addr;
        Some(Piece { range, addr, bytes, run, joins: run != tail, epoch })
    }

    /// The address behind the last primary mapping of a address range.
    fn end_of(&self, range: AddressRange) -> Option<u64> {
        let heap = self.heap(range);
        heap.tail().map(|tail| heap.chunk(tail).addr + heap.chunk(tail).bytes)
    }

    fn refuse(&self, needed: u64, most_new: u64) -> Result<(), Refused> {
        let available = self.available(most_new);
        if needed > available { Err(Refused { needed, available }) } else { Ok(()) }
    }

    /// Sizes of new handles, about equal, that together have `new` bytes and serve a request: large ones, or
    /// smaller ones as far as the budget pays for more. Small handles are what blocks are stitched from with
    /// the least waste (without: bytes 1.083 after 40 passes instead of 1.063).
    fn sizes(&mut self, range: AddressRange, new: u64, request: u64) -> Vec<u64> {
        let most = match range {
            AddressRange::Small => request.max(self.granularity),
            AddressRange::Large => self.policy.largest_handle(request, self.peak_live, self.granularity),
        };
        let mut count = new.div_ceil(most);
        // Where streams are far behind, more is held, and none of it is worth the time.
        if range == AddressRange::Large && self.bytes_reserved() + new <= self.policy.most(self.peak_live) {
            let more = self.budget.available_later(&self.policy) / CALLS_FOR_HANDLE;
            let more = more.min((new / self.granularity).saturating_sub(count));
            self.budget.spend(more * CALLS_FOR_HANDLE);
            count += more;
        }
        let mut left = new;
        let size = |rest: u64| {
            let size = self.whole_granules(left / rest).min(left);
            left -= size;
            size
        };
        (1..=count).rev().map(size).filter(|size| *size > 0).collect()
    }

    /// Addresses for new primary mappings: behind the address range's end, if they are free, or elsewhere.
    fn addresses_for(&mut self, range: AddressRange, new: u64) -> Addresses {
        let end = self.end_of(range);
        let space = &mut self.handles.spaces[range as usize];
        if let Some(end) = end.filter(|end| space.take_at(*end, new)) {
            return Addresses::At(end);
        }
        if let Some(elsewhere) = space.take_roomiest(new) {
            return Addresses::At(elsewhere);
        }
        let bytes = self.reservation_bytes.max(new);
        match self.handles.reserved.is_empty() {
            true => Addresses::ReserveBoth { bytes, is_upper: range == AddressRange::Large },
            false => Addresses::Reserve(bytes),
        }
    }

    /// Plans new memory at the end of a address range, of which `used` bytes are the block's; the free end of
    /// the address range before it too, where there is one.
    fn plan_growth(
        &mut self,
        range: AddressRange,
        new: u64,
        tail: Option<(Piece, Owner)>,
        used: u64,
        most_new: u64,
    ) -> Result<Plan, Refused> {
        let whole = used + tail.as_ref().map_or(0, |(tail, _)| tail.bytes);
        self.refuse(new, most_new)?;
        let end = self.end_of(range);
        let primaries = self.addresses_for(range, new);
        let goes_on = matches!(primaries, Addresses::At(base) if Some(base) == end);
        if tail.is_some() && !goes_on {
            // The address range goes on elsewhere: its free end is of no use, and all of the block is new.
            self.free_addresses(range, &primaries, new);
            return self.plan_growth(range, self.whole_granules(whole), None, whole, most_new);
        }
        let before = tail.map_or(Vec::new(), |(tail, owner)| self.take_pieces(&[tail], owner));
        self.extra_pieces += before.len() as u64;
        self.planned += new;
        let sizes = self.sizes(range, new, whole.max(new));
        let work = Work::new(&self.backing, self.granularity, sizes, primaries);
        Ok(Plan {
            range,
            before,
            after: None,
            used,
            alignment: ALLOCATION_ALIGNMENT,
            alias: None,
            work,
            beyond_slack: 0,
        })
    }

    fn plan_aligned(&mut self, request: &Request, most_new: u64) -> Result<Plan, Refused> {
        let is_free = request.alignment <= self.granularity; // as every primary mapping is
        let new = self.whole_granules(if is_free { request.bytes } else { request.padded_bytes() });
        let plan = self.plan_growth(AddressRange::Large, new, None, request.bytes, most_new)?;
        Ok(Plan { alignment: request.alignment, ..plan })
    }

    fn free_addresses(&mut self, range: AddressRange, primaries: &Addresses, bytes: u64) {
        if let Addresses::At(base) = primaries {
            self.handles.spaces[range as usize].free(*base, bytes);
        }
    }

    /// What the block is stitched from, in an alias that goes on only where there are addresses enough.
    fn choose(&self, ends: &FreeEnds, bytes: u64, room: u64) -> Stitching {
        let chosen = self.stitch(ends, bytes, room, true);
        let Some((id, place)) = chosen.base else { return chosen };
        let alias = self.aliases.get(id);
        let mapped = alias.maps.len() - place;
        let more = chosen.before[mapped..].iter().chain(&chosen.last).map(|id| self.handles.get(*id).bytes);
        if alias.bytes + more.sum::<u64>() + chosen.new <= alias.slot {
            return chosen;
        }
        self.stitch(ends, bytes, room, false)
    }

    fn plan_stitching(
        &mut self,
        owner: Owner,
        ends: &FreeEnds,
        chosen: Stitching,
        request: &Request,
        most_new: u64,
    ) -> Result<Plan, Refused> {
        self.refuse(chosen.new, most_new)?;
        let free = |id| ends.get(id).suffix.bytes;
        let mut pieces: Vec<Piece> =
            chosen.before.iter().map(|id| ends.end_of(&self.handles, *id, free(*id))).collect();
        let missing = request.bytes - pieces.iter().map(|piece| piece.bytes).sum::<u64>();
        let used = missing.min(chosen.new);
        let offset = chosen.before.first().map_or(0, |id| self.handles.get(*id).bytes - free(*id));
        let has_last = chosen.last.is_some();
        pieces.extend(chosen.last.map(|id| ends.start_of(&self.handles, id, missing - used)));
        let is_one_piece = pieces.len() + usize::from(used > 0) == 1;

        let primaries = if chosen.new > 0 {
            self.addresses_for(AddressRange::Large, chosen.new)
        } else {
            Addresses::At(0)
        };
        let sizes = self.sizes(AddressRange::Large, chosen.new, request.bytes);
        let mut work = Work::new(&self.backing, self.granularity, sizes, primaries);
        let alias = (!is_one_piece).then(|| self.plan_alias(&chosen, offset, &mut work));
        self.planned += chosen.new;
        let mut before = self.take_pieces(&pieces, owner);
        let after = if has_last { before.pop() } else { None };
        self.extra_pieces += (before.len() + usize::from(after.is_some())) as u64;
        Ok(Plan {
            range: AddressRange::Large,
            before,
            after,
            used,
            alignment: request.alignment,
            alias,
            work,
            beyond_slack: 0,
        })
    }

    /// Where the block will lie: in an alias that goes on, or in a new one.
    fn plan_alias(&mut self, chosen: &Stitching, offset: u64, work: &mut Work) -> InView {
        let mapped = chosen.base.map_or(0, |(id, place)| self.aliases.get(id).maps.len() - place);
        let old = |id: &HandleId| {
            let Handle { physical, bytes, .. } = *self.handles.get(*id);
            Source::Old { id: *id, physical, bytes }
        };
        work.sources = chosen.before[mapped..].iter().map(old).collect();
        if chosen.new > 0 {
            work.sources.push(Source::New);
        }
        work.sources.extend(chosen.last.as_ref().map(old));
        if let Some((id, place)) = chosen.base {
            let alias = self.aliases.get_mut(id);
            alias.busy += 1;
            work.alias = Addresses::At(alias.base + alias.bytes);
            return InView { alias: Some(id), offset: alias.maps[place].offset + offset, slot: 0 };
        }
        let slot = (work.alias_bytes() * SLOT_FACTOR).max(LEAST_SLOT).next_multiple_of(self.granularity);
        let there = self.aliases.space.take_lowest(slot);
        work.alias = there.map_or(Addresses::Reserve(self.reservation_bytes.max(slot)), Addresses::At);
        InView { alias: None, offset, slot }
    }
}
