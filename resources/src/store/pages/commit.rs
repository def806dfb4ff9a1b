//! Commits and aborts plans: new handles and aliases enter the tables, or everything kept is freed.

use millpond_core::align_up;

use crate::block_map::{ChunkId, NIL};
use crate::store::pages::driver_calls::{Addresses, Created, Source, Work, upper_range};
use crate::store::pages::handles::AddressRange;
use crate::store::pages::handles::{Handle, HandleId};
use crate::store::pages::plan::{InAlias, Kept, Plan};
use crate::store::pages::state::{Pages, pack, unpack};
use crate::stream_order::ANY_STREAM;

impl Pages {
    /// Commits a plan that was run, and returns the block and its address.
    pub(super) fn commit_block(&mut self, plan: Plan) -> (ChunkId, u64) {
        let created = self.add_handles(&plan);
        self.budget.spend(plan.work.alias_calls());
        self.beyond_slack += plan.beyond_slack;
        let new = self.take_new(&plan);
        self.note_use();
        let pieces = plan.before.iter().map(|kept| kept.id).chain(new).chain(plan.after.map(|kept| kept.id));
        let mut pieces: Vec<ChunkId> = pieces.collect();
        self.extra_pieces -= plan.kept();
        let addr = match &plan.alias {
            Some(alias) => self.extend_alias(alias, &plan.work, &created),
            None => {
                let (range, first) = unpack(pieces[0]);
                if pieces.len() > 1 {
                    // The free end of the address range and the new memory behind it are contiguous.
                    self.heap_mut(range).fuse_with_next(first);
                    pieces.truncate(1);
                }
                self.heap(range).chunk(first).addr
            }
        };
        (self.link(&pieces), addr)
    }

    /// Commits a plan of [`plan_reserve`](Self::plan_reserve) that was run.
    pub(crate) fn commit_reserve(&mut self, plan: Plan) {
        self.add_handles(&plan);
    }

    /// Frees what a plan kept that was not run, or whose run failed.
    pub(super) fn abort_plan(&mut self, mut plan: Plan) {
        self.add_reservations(&plan);
        self.budget.give_back(plan.work.spent_calls);
        self.extra_pieces -= plan.kept();
        for Kept { id, owner, epoch } in plan.before.drain(..).chain(plan.after.take()) {
            let (range, chunk) = unpack(id);
            self.heap_mut(range).free(chunk, owner, epoch);
        }
        let new = plan.work.new_bytes();
        self.planned -= new;
        let left = std::mem::take(&mut plan.work.left);
        // Mappings that could not be unmapped still occupy their addresses, which are not used again.
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

    /// Adds new handles, whose memory is unowned.
    fn add_handles(&mut self, plan: &Plan) -> Vec<HandleId> {
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

impl Plan {
    /// Returns the number of pieces that the plan keeps: they are in use, and no blocks.
    pub(super) fn kept(&self) -> u64 {
        (self.before.len() + usize::from(self.after.is_some())) as u64
    }
}
