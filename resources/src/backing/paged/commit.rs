use millpond_core::align_up;

use crate::backing::paged::driver_calls::{Addresses, Created, Source, Work, upper_range};
use crate::backing::paged::handles::{Handle, HandleId};
use crate::backing::paged::plan::{InView, Kept, Plan};
use crate::backing::paged::{AddressRange, Pages, pack, unpack};
use crate::block_map::{ChunkId, NIL};
use crate::stream_order::ANY_STREAM;

/// The end of a [`Plan`].
impl Pages {
    /// Enters what a plan brought that was run: the block and its address.
    pub(crate) fn commit(&mut self, mut plan: Plan) -> (ChunkId, u64) {
        let created = self.enter_new(&mut plan);
        self.budget.spend(plan.work.alias_calls());
        self.beyond_slack += plan.beyond_slack;
        let new = self.take_new(&plan);
        self.note_use();
        let pieces = plan.before.iter().map(|kept| kept.id).chain(new).chain(plan.after.map(|kept| kept.id));
        let mut pieces: Vec<ChunkId> = pieces.collect();
        self.extra_pieces -= plan.kept();
        let addr = match &plan.alias {
            Some(alias) => self.insert_alias_entry(alias, &plan.work, &created),
            None => {
                let (range, first) = unpack(pieces[0]);
                if pieces.len() > 1 {
                    // The free end of the address range, and new memory behind it: one piece in the primary
                    // mapping.
                    self.heap_mut(range).fuse_with_next(first);
                    pieces.truncate(1);
                }
                self.heap(range).chunk(first).addr
            }
        };
        (self.link(&pieces), addr)
    }

    /// Enters memory from [`plan_reserve`](Self::plan_reserve) that was run.
    pub(crate) fn commit_reserve(&mut self, mut plan: Plan) {
        self.enter_new(&mut plan);
    }

    /// Reclaims what a plan kept that was not run, or failed.
    pub(crate) fn abort(&mut self, mut plan: Plan) {
        self.enter_reservations(&plan);
        self.extra_pieces -= plan.kept();
        for Kept { id, owner, epoch } in plan.before.drain(..).chain(plan.after.take()) {
            let (range, chunk) = unpack(id);
            self.heap_mut(range).free(chunk, owner, epoch);
        }
        let new = plan.work.new_bytes();
        self.planned -= new;
        let left = std::mem::take(&mut plan.work.left);
        // What could not be unmapped still occupies its addresses: they are not used again.
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

    /// Enters what was reserved; what the plan itself uses of it is taken.
    fn enter_reservations(&mut self, plan: &Plan) {
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

    /// Enters new handles, whose memory is free for anyone.
    fn enter_new(&mut self, plan: &mut Plan) -> Vec<HandleId> {
        self.enter_reservations(plan);
        let new = plan.work.new_bytes();
        let Some(base) = plan.work.primaries_at().filter(|_| new > 0) else { return Vec::new() };
        let (range, mut primary) = (plan.range, base);
        let insert_block = |created: &Created| {
            let Created { physical, bytes, .. } = *created;
            let id = self.handles.add(Handle { physical, primary, bytes, range, aliases: Vec::new() });
            primary += bytes;
            id
        };
        let created = plan.work.created.iter().map(insert_block).collect();
        self.planned -= new;
        self.heap_mut(range).extend(base, new, ANY_STREAM, 0);
        self.peak_bytes_reserved = self.peak_bytes_reserved.max(self.bytes_reserved());
        created
    }

    /// Takes the block's part of the new memory, which is at the end of the address range now.
    fn take_new(&mut self, plan: &Plan) -> Option<ChunkId> {
        let base = plan.work.primaries_at().filter(|_| plan.used > 0)?;
        let addr = align_up(base, plan.alignment)?;
        let heap = self.heap_mut(plan.range);
        let id = heap.take_at(heap.tail()?, addr, plan.used);
        heap.set_link(id, NIL);
        Some(pack(plan.range, id))
    }

    /// Enters what was mapped in an alias; says the block's address.
    fn insert_alias_entry(&mut self, alias: &InView, work: &Work, created: &[HandleId]) -> u64 {
        let base = work.alias_at().expect("what is carried out has an address");
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
    /// Pieces that it keeps, which are in use and no block.
    pub(super) fn kept(&self) -> u64 {
        (self.before.len() + usize::from(self.after.is_some())) as u64
    }
}
