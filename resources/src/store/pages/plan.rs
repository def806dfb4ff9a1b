//! Plans growth and stitching: sets aside free pieces and addresses, lists the driver calls, and commits or
//! aborts the plan.

use millpond_core::{ALLOCATION_ALIGNMENT, align_up};

use crate::block_map::{ChunkId, NIL};
use crate::heap::chunk::Chunk;
use crate::heap::request::{Request, Whose};
use crate::store::pages::driver_calls::{Addresses, Created, Source, Work, upper_range};
use crate::store::pages::free_ends::{FreeEnds, Piece};
use crate::store::pages::handles::{AddressRange, AliasId, Handle, HandleId};
use crate::store::pages::policy::{most_bytes, target_bytes};
use crate::store::pages::state::{Pages, pack, unpack};
use crate::store::pages::stitch::Stitching;
use crate::stream_order::{ANY_STREAM, Epoch, Owner};
use crate::tuning::{ADDRESS_FACTOR, SPANS_SHARE};

/// Driver calls that a new handle takes: create, map, and set access.
pub(super) const CALLS_FOR_HANDLE: u64 = 3;

/// A block under way: the pieces and addresses set aside for it, and the driver calls that it needs.
///
/// [`Pages::commit_block`] or [`Pages::add_handles`] ends a plan that was run, and [`Pages::abort_plan`] any
/// other plan.
#[derive(Debug)]
#[must_use = "a plan keeps memory until it is committed or aborted"]
pub(crate) struct Plan {
    pub(super) range: AddressRange,
    /// The free pieces that the block uses, and how many of them lie before the new memory.
    pub(super) kept: Vec<Kept>,
    pub(super) kept_before: usize,
    /// Bytes of the new memory that the block uses, and the alignment of its address.
    pub(super) used: u64,
    pub(super) alignment: u64,
    /// Where the block lies, if not in the primary mapping.
    pub(super) alias: Option<InAlias>,
    pub(crate) work: Work,
    /// Bytes of the new memory beyond the target, which the budget of driver calls did not allow the pool to
    /// stitch.
    pub(super) beyond_slack: u64,
}

/// A piece that a plan took, and its earlier owner and epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) id: ChunkId,
    pub(super) owner: Owner,
    pub(super) epoch: Epoch,
}

/// Where a stitched block lies.
#[derive(Debug)]
pub(super) struct InAlias {
    /// An existing alias that the plan extends; `None` for a new one.
    pub(super) alias: Option<AliasId>,
    /// From the start of the alias to the block, in bytes.
    pub(super) offset: u64,
    /// Bytes of addresses kept for a new alias.
    pub(super) slot: u64,
}

/// A refused plan: the block needs this number of bytes of new memory, but the pool may take only fewer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refused(pub(crate) u64);

impl Pages {
    /// Returns the bytes that the pool may take from the driver, in whole granules.
    fn available(&self, most_new: u64) -> u64 {
        let available = self.maximum_bytes.saturating_sub(self.held()).min(most_new);
        available / self.granularity * self.granularity
    }

    /// Returns the bytes by which the pool may grow before it stitches blocks instead.
    pub(super) fn room(&self, most_new: u64) -> u64 {
        let allowed = self.policy.allowed(self.peak_live, &self.budget);
        let room = allowed.saturating_sub(self.held());
        (room / self.granularity * self.granularity).min(self.available(most_new))
    }

    /// Notes the live bytes, if the caller knows them. The pool grows up to the peak of live bytes before it
    /// stitches, so a peak that is noted late costs driver calls.
    pub(crate) fn note_live(&mut self, live_bytes: u64) {
        self.peak_live = self.peak_live.max(live_bytes);
    }

    /// Notes the number of allocations and deallocations so far: each earns a part of a driver call that the
    /// pool may spend to hold less memory.
    ///
    /// If none is left, the pool places large blocks by address until a later growth finds calls again. A
    /// program that repeats its requests then gets the same places again, and needs no driver call.
    pub(crate) fn note_operations(&mut self, operations: u64) {
        self.budget.note_operations(&self.policy, operations);
        let is_spent = self.budget.available(&self.policy) == 0;
        self.heap_mut(AddressRange::Large).by_address = is_spent;
    }

    /// Plans a block for which `find_for` found nothing. A span for small blocks (`is_span`) comes from the
    /// small address range, whatever its size.
    ///
    /// `live_bytes` are the bytes in use now, without this request. The plan takes at most `most_new` bytes
    /// from the driver; callers lower this limit after the driver refused memory.
    ///
    /// # Errors
    /// [`Refused`] if `most_new` or the pool's maximum is too little.
    pub(super) fn plan_block(
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
            let at_once = self.heap(range).bytes_reserved / SPANS_SHARE / self.granularity * self.granularity;
            growth = growth.max(at_once.min(self.available(most_new)));
        }
        if range == AddressRange::Large && growth > room {
            let (chosen, pieces) = self.with_free_ends(Whose::Joined(owner), false, |ends| {
                let chosen = self.choose(ends, request.bytes, room);
                let pieces = chosen.pieces(ends, request.bytes);
                (chosen, pieces)
            });
            if !pieces.is_empty() {
                return self.plan_stitching(owner, &pieces, chosen, request, most_new);
            }
        }
        let mut plan = self.plan_at_end(range, growth, tail.map(|tail| (tail, owner)), missing, most_new)?;
        if range == AddressRange::Large {
            let within = target_bytes(self.peak_live).saturating_sub(self.held() - growth);
            plan.beyond_slack = growth.saturating_sub(within);
        }
        Ok(plan)
    }

    /// Plans `bytes` of free memory in whole granules, without a block, for
    /// [`add_handles`](Self::add_handles). If the pool's maximum ends within the last granule, the plan
    /// leaves that granule out.
    ///
    /// # Errors
    /// [`Refused`] if the pool's maximum or `most_new` is too little.
    pub(crate) fn plan_reserve(&mut self, bytes: u64, most_new: u64) -> Result<Plan, Refused> {
        self.note_live(bytes);
        let whole = self.whole_granules(bytes);
        let fits = whole <= self.available(u64::MAX);
        let new = if fits { whole } else { bytes / self.granularity * self.granularity };
        self.plan_at_end(AddressRange::Large, new, None, 0, most_new)
    }

    /// Returns whether the pool's maximum refused a plan.
    pub(crate) fn is_at_limit(&self, refused: &Refused) -> bool {
        refused.0 > self.available(u64::MAX)
    }

    /// Returns the free end of an address range.
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

    /// Returns the address after the last primary mapping of an address range.
    fn end_of(&self, range: AddressRange) -> Option<u64> {
        let heap = self.heap(range);
        heap.tail().map(|tail| heap.chunk(tail).addr + heap.chunk(tail).bytes)
    }

    fn refuse(&self, needed: u64, most_new: u64) -> Result<(), Refused> {
        if needed > self.available(most_new) { Err(Refused(needed)) } else { Ok(()) }
    }

    /// Returns about equal sizes of new handles, `new` bytes together, and the calls of the budget that this
    /// spent. The handles are large, or smaller if the budget pays for more driver calls. Small handles waste
    /// less memory when blocks are stitched: without them, six logs take 1.083 times the live bytes after 40
    /// passes instead of 1.063.
    fn sizes(&mut self, range: AddressRange, new: u64, request: u64) -> (Vec<u64>, u64) {
        let most = match range {
            AddressRange::Small => request.max(self.granularity),
            AddressRange::Large => self.policy.largest_handle(request, self.peak_live, self.granularity),
        };
        let (mut count, mut spent) = (new.div_ceil(most), 0);
        // Beyond the most slack, smaller handles would save too little memory for their calls.
        if range == AddressRange::Large && self.held() + new <= most_bytes(self.peak_live) {
            let more = self.budget.available_later(&self.policy) / CALLS_FOR_HANDLE;
            let more = more.min((new / self.granularity).saturating_sub(count));
            spent = more * CALLS_FOR_HANDLE;
            self.budget.spend(spent);
            count += more;
        }
        let mut left = new;
        let size = |rest: u64| {
            let size = self.whole_granules(left / rest).min(left);
            left -= size;
            size
        };
        ((1..=count).rev().map(size).filter(|size| *size > 0).collect(), spent)
    }

    /// Takes addresses for new primary mappings: after the end of the address range if they are free, or else
    /// elsewhere.
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

    /// Plans new memory at the end of an address range. The block uses `used` bytes of it, and the free end
    /// of the address range before it (`tail`), if there is one.
    fn plan_at_end(
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
        let is_contiguous = matches!(primaries, Addresses::At(base) if Some(base) == end);
        if tail.is_some() && !is_contiguous {
            // The new memory does not follow the free end, so the whole block must be new.
            if let Addresses::At(base) = primaries {
                self.handles.spaces[range as usize].free(base, new);
            }
            return self.plan_at_end(range, self.whole_granules(whole), None, whole, most_new);
        }
        let kept = tail.map_or(Vec::new(), |(tail, owner)| self.take_pieces(&[tail], owner));
        self.extra_pieces += kept.len() as u64;
        self.planned += new;
        let sizes = self.sizes(range, new, whole.max(new));
        let work = Work::new(&self.backing, self.granularity, sizes, primaries);
        Ok(Plan {
            range,
            kept_before: kept.len(),
            kept,
            used,
            alignment: ALLOCATION_ALIGNMENT,
            alias: None,
            work,
            beyond_slack: 0,
        })
    }

    fn plan_aligned(&mut self, request: &Request, most_new: u64) -> Result<Plan, Refused> {
        let new = self.needed_alone(request);
        let plan = self.plan_at_end(AddressRange::Large, new, None, request.bytes, most_new)?;
        Ok(Plan { alignment: request.alignment, ..plan })
    }

    /// Chooses the handles of a stitched block; it extends an alias only if the alias has enough addresses.
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

    /// Plans a block of these free pieces, in the order of the chosen handles, and of the chosen new memory.
    fn plan_stitching(
        &mut self,
        owner: Owner,
        pieces: &[Piece],
        chosen: Stitching,
        request: &Request,
        most_new: u64,
    ) -> Result<Plan, Refused> {
        self.refuse(chosen.new, most_new)?;
        let used = request.bytes - pieces.iter().map(|piece| piece.bytes).sum::<u64>();
        let offset = chosen.before.first().map_or(0, |id| self.handles.get(*id).bytes - pieces[0].bytes);
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
        let kept = self.take_pieces(pieces, owner);
        self.extra_pieces += kept.len() as u64;
        Ok(Plan {
            range: AddressRange::Large,
            kept_before: chosen.before.len(),
            kept,
            used,
            alignment: request.alignment,
            alias,
            work,
            beyond_slack: 0,
        })
    }

    /// Plans the mappings of a stitched block, in an alias that it extends or in a new one.
    fn plan_alias(&mut self, chosen: &Stitching, offset: u64, work: &mut Work) -> InAlias {
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
            return InAlias { alias: Some(id), offset: alias.maps[place].offset + offset, slot: 0 };
        }
        let slot = work.alias_bytes() * ADDRESS_FACTOR;
        let there = self.aliases.space.take_lowest(slot);
        work.alias = there.map_or(Addresses::Reserve(self.reservation_bytes.max(slot)), Addresses::At);
        InAlias { alias: None, offset, slot }
    }
}

/// Ends plans: adds new handles and aliases to the tables, or frees everything that was set aside.
impl Pages {
    /// Commits a plan that was run, and returns the block and its address.
    pub(super) fn commit_block(&mut self, plan: Plan) -> (ChunkId, u64) {
        let created = self.add_handles(&plan);
        self.budget.spend(plan.work.alias_calls());
        self.beyond_slack += plan.beyond_slack;
        let new = self.take_new(&plan);
        self.note_use();
        self.extra_pieces -= plan.kept.len() as u64;
        let mut pieces: Vec<ChunkId> = plan.kept.iter().map(|kept| kept.id).collect();
        pieces.splice(plan.kept_before..plan.kept_before, new);
        let addr = match &plan.alias {
            Some(alias) => self.extend_alias(alias, &plan.work, &created),
            None => {
                let (range, first) = unpack(pieces[0]);
                if pieces.len() > 1 {
                    // The free end of the address range and the new memory after it are contiguous.
                    self.heap_mut(range).fuse_with_next(first);
                    pieces.truncate(1);
                }
                self.heap(range).chunk(first).addr
            }
        };
        let block = self.link(&pieces);
        if plan.alias.is_some() {
            self.note_stitched(block, addr);
        }
        (block, addr)
    }

    /// Frees everything that a plan set aside, if it failed or was not run.
    pub(super) fn abort_plan(&mut self, mut plan: Plan) {
        self.add_reservations(&plan);
        self.budget.give_back(plan.work.spent_calls);
        self.extra_pieces -= plan.kept.len() as u64;
        for Kept { id, owner, epoch } in plan.kept {
            let (range, chunk) = unpack(id);
            self.heap_mut(range).free(chunk, owner, epoch);
        }
        let new = plan.work.new_bytes();
        self.planned -= new;
        let left = std::mem::take(&mut plan.work.left);
        // Mappings that could not be unmapped still occupy their addresses, so the pool does not use these
        // again.
        let is_free = |base: u64, bytes: u64| {
            let mut mappings = left.iter().flat_map(|retired| &retired.mappings);
            !mappings.any(|(addr, _)| *addr >= base && *addr - base < bytes)
        };
        if let Some(base) = plan.work.primaries_at().filter(|base| new > 0 && is_free(*base, new)) {
            self.handles.spaces[plan.range as usize].free(base, new);
        }
        if let (Some(alias), Some(base)) = (plan.alias, plan.work.alias_at()) {
            let is_free = is_free(base, plan.work.alias_bytes());
            match alias.alias {
                Some(id) => self.aliases.end_work(id, is_free),
                None if is_free => self.aliases.space.free(base, plan.work.slot_bytes(alias.slot)),
                None => {}
            }
        }
        self.retiring += left.iter().map(|retired| retired.bytes).sum::<u64>();
        self.unfinished.extend(left);
    }

    /// Adds the reservations that a plan made, and takes the addresses that the plan itself uses.
    fn add_reservations(&mut self, plan: &Plan) {
        if let (Some((base, bytes)), Some(primaries)) =
            (plan.work.reserved_primaries, plan.work.primaries_at())
        {
            self.handles.reserved.push((base, bytes));
            if let Addresses::ReserveBoth { .. } = plan.work.primaries {
                let lower = upper_range(bytes, self.granularity);
                self.handles.add_reservation(AddressRange::Small, base, lower);
                self.handles.add_reservation(AddressRange::Large, base + lower, bytes - lower);
            } else {
                self.handles.add_reservation(plan.range, base, bytes);
            }
            self.handles.spaces[plan.range as usize].take_at(primaries, plan.work.new_bytes());
        }
        if let (Some((base, bytes)), Some(alias)) = (plan.work.reserved_alias, &plan.alias) {
            self.aliases.space.add(base, bytes, self.granularity);
            self.aliases.space.take_at(base, plan.work.slot_bytes(alias.slot));
        }
    }

    /// Adds new handles, whose memory is unowned. A plan of [`plan_reserve`](Self::plan_reserve) needs no
    /// other commit.
    pub(super) fn add_handles(&mut self, plan: &Plan) -> Vec<HandleId> {
        self.add_reservations(plan);
        let new = plan.work.new_bytes();
        let Some(base) = plan.work.primaries_at().filter(|_| new > 0) else { return Vec::new() };
        let (range, mut primary) = (plan.range, base);
        let add = |created: &Created| {
            let Created { physical, bytes, .. } = *created;
            let id = self.handles.add(Handle { physical, primary, bytes, range, aliases: Vec::new() });
            primary += bytes;
            id
        };
        let created = plan.work.created.iter().map(add).collect();
        self.planned -= new;
        self.heap_mut(range).extend(base, new, ANY_STREAM, 0);
        self.peak_bytes_reserved = self.peak_bytes_reserved.max(self.held());
        created
    }

    /// Takes the block's part of the new memory, which is now the end of the address range.
    fn take_new(&mut self, plan: &Plan) -> Option<ChunkId> {
        let base = plan.work.primaries_at().filter(|_| plan.used > 0)?;
        let addr = align_up(base, plan.alignment)?;
        let heap = self.heap_mut(plan.range);
        let id = heap.take_at(heap.tail()?, addr, plan.used);
        heap.set_link(id, NIL);
        Some(pack(plan.range, id))
    }

    /// Adds the new mappings to their alias, and returns the block's address.
    fn extend_alias(&mut self, alias: &InAlias, work: &Work, created: &[HandleId]) -> u64 {
        let base = work.alias_at().expect("a plan that was run has addresses");
        let id = alias.alias.unwrap_or_else(|| self.aliases.add(base, work.slot_bytes(alias.slot)));
        for source in &work.sources {
            match source {
                Source::Old { id: handle, .. } => self.aliases.push(&mut self.handles, id, *handle),
                Source::New => {
                    created.iter().for_each(|handle| self.aliases.push(&mut self.handles, id, *handle));
                }
            }
        }
        self.aliases.note_block(id);
        if alias.alias.is_some() {
            self.aliases.end_work(id, true);
        }
        self.aliases.get(id).base + alias.offset
    }
}

#[cfg(test)]
mod tests;
