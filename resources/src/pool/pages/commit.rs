use millpond_core::align_up;

use super::carry_out::{Addresses, Created, Source, Work, upper_line};
use super::handles::{Handle, HandleId};
use super::plan::{InView, Kept, Plan};
use super::{Line, Pages, pack, unpack};
use crate::ordered::ANYONE;
use crate::pool::chunk::{ChunkId, NIL};

/// The end of a [`Plan`].
impl Pages {
    /// Enters what a plan brought that was carried out: the block and its address.
    pub(in crate::pool) fn commit(&mut self, mut plan: Plan) -> (ChunkId, u64) {
        let created = self.enter_new(&mut plan);
        self.budget.spend(plan.work.view_calls());
        self.beyond_slack += plan.beyond_slack;
        let new = self.take_new(&plan);
        self.note_use();
        let pieces = plan.before.iter().map(|kept| kept.id).chain(new).chain(plan.after.map(|kept| kept.id));
        let mut pieces: Vec<ChunkId> = pieces.collect();
        self.extra_pieces -= plan.kept();
        let addr = match &plan.view {
            Some(view) => self.enter_view(view, &plan.work, &created),
            None => {
                let (line, first) = unpack(pieces[0]);
                if pieces.len() > 1 {
                    // The free end of the line, and new memory behind it: one piece at home.
                    self.heap_mut(line).fuse_with_next(first);
                    pieces.truncate(1);
                }
                self.heap(line).chunk(first).addr
            }
        };
        (self.link(&pieces), addr)
    }

    /// Enters memory from [`plan_reserve`](Self::plan_reserve) that was carried out.
    pub(in crate::pool) fn commit_reserve(&mut self, mut plan: Plan) {
        self.enter_new(&mut plan);
    }

    /// Takes back what a plan kept that was not carried out, or failed.
    pub(in crate::pool) fn abandon(&mut self, mut plan: Plan) {
        self.enter_reservations(&plan);
        self.extra_pieces -= plan.kept();
        for Kept { id, owner, epoch } in plan.before.drain(..).chain(plan.after.take()) {
            let (line, chunk) = unpack(id);
            self.heap_mut(line).give(chunk, owner, epoch);
        }
        let new = plan.work.new_bytes();
        self.planned -= new;
        let left = std::mem::take(&mut plan.work.left);
        // What could not be unmapped still occupies its addresses: they are not used again.
        let is_free = |base: u64, bytes: u64| {
            let mut mappings = left.iter().flat_map(|retired| &retired.mappings);
            !mappings.any(|(addr, _)| *addr >= base && *addr - base < bytes)
        };
        if let Some(base) = plan.work.homes_at().filter(|base| new > 0 && is_free(*base, new)) {
            self.handles.spaces[plan.line as usize].give(base, new);
        }
        if let (Some(view), Some(base)) = (plan.view, plan.work.view_at()) {
            let is_free = is_free(base, plan.work.view_bytes());
            match view.view {
                Some(id) => self.views.end_work(id, is_free),
                None if is_free => self.views.space.give(base, plan.work.slot_bytes(view.slot)),
                None => {}
            }
        }
        self.retiring += left.iter().map(|retired| retired.bytes).sum::<u64>();
        self.unfinished.extend(left);
    }

    /// Enters what was reserved; what the plan itself uses of it is taken.
    fn enter_reservations(&mut self, plan: &Plan) {
        if let (Some((base, bytes)), Some(homes)) = (plan.work.reserved_homes, plan.work.homes_at()) {
            self.handles.reserved.push((base, bytes));
            if let Addresses::ReserveBoth { .. } = plan.work.homes {
                let lower = upper_line(bytes, self.granularity);
                self.handles.add_reservation(Line::Small, base, lower);
                self.handles.add_reservation(Line::Large, base + lower, bytes - lower);
            } else {
                self.handles.add_reservation(plan.line, base, bytes);
            }
            self.handles.spaces[plan.line as usize].take_at(homes, plan.work.new_bytes());
        }
        if let (Some((base, bytes)), Some(view)) = (plan.work.reserved_view, &plan.view) {
            self.views.space.add(base, bytes, self.granularity);
            self.views.space.take_at(base, plan.work.slot_bytes(view.slot));
        }
    }

    /// Enters new handles, whose memory is free for anyone.
    fn enter_new(&mut self, plan: &mut Plan) -> Vec<HandleId> {
        self.enter_reservations(plan);
        let new = plan.work.new_bytes();
        let Some(base) = plan.work.homes_at().filter(|_| new > 0) else { return Vec::new() };
        let (line, mut home) = (plan.line, base);
        let enter = |created: &Created| {
            let Created { physical, bytes, .. } = *created;
            let id = self.handles.add(Handle { physical, home, bytes, line, views: Vec::new() });
            home += bytes;
            id
        };
        let created = plan.work.created.iter().map(enter).collect();
        self.planned -= new;
        self.heap_mut(line).extend(base, new, ANYONE, 0);
        self.peak_bytes_reserved = self.peak_bytes_reserved.max(self.bytes_reserved());
        created
    }

    /// Takes the block's part of the new memory, which is at the end of the line now.
    fn take_new(&mut self, plan: &Plan) -> Option<ChunkId> {
        let base = plan.work.homes_at().filter(|_| plan.used > 0)?;
        let addr = align_up(base, plan.alignment)?;
        let heap = self.heap_mut(plan.line);
        let id = heap.take_at(heap.tail()?, addr, plan.used);
        heap.set_link(id, NIL);
        Some(pack(plan.line, id))
    }

    /// Enters what was mapped in a view; says the block's address.
    fn enter_view(&mut self, view: &InView, work: &Work, created: &[HandleId]) -> u64 {
        let base = work.view_at().expect("what is carried out has an address");
        let id = view.view.unwrap_or_else(|| self.views.add(base, work.slot_bytes(view.slot)));
        for source in &work.sources {
            match source {
                Source::Old { id: handle, .. } => self.views.push(&mut self.handles, id, *handle),
                Source::New => {
                    created.iter().for_each(|handle| self.views.push(&mut self.handles, id, *handle));
                }
            }
        }
        self.views.note_block(id);
        if view.view.is_some() {
            self.views.end_work(id, true);
        }
        self.views.get(id).base + view.offset
    }
}

impl Plan {
    /// Pieces that it keeps, which are in use and no block.
    pub(super) fn kept(&self) -> u64 {
        (self.before.len() + usize::from(self.after.is_some())) as u64
    }
}
