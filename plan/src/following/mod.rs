//! A plan in use: the program's position in the plan, and the memory of each stream.

mod locate;
mod window;

use millpond_core::misuse::MisuseKind;
use millpond_core::{DevicePtr, MemoryBlock, MemorySegment, StreamId, StreamRef};
use millpond_planning::ProgramPlan;

use crate::following::locate::Position;
use crate::following::window::Window;
use crate::gaps::Gaps;
use crate::lane::{Bytes, Guests, Lane};
use crate::marks::{Mark, Marks, Question};
use crate::slots::Slots;

pub(crate) use crate::following::window::Verdict;

/// Skipped slots catch up at most once in this fraction of a pass, because catching up examines all slots.
const CATCH_UP_SHARE: u32 = 4;

/// The program may use more bytes than the log, by this fraction of the plan's bytes. The program may differ
/// from the log.
const SPARE_SHARE: u64 = 16;

/// If the plan keeps more than this fraction of its bytes from streams without a lane, the plan ends.
const CROWDED_SHARE: u64 = 16;

/// A mistake that is made on purpose. The tests must find it.
#[cfg(test)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mistake {
    /// A slot serves a request even if it holds a block.
    Unchecked,
    /// A slot is free for its stream as soon as its block was freed, on any stream.
    TooEarly,
    /// A slot serves a request even if guests lie in its bytes.
    OverGuests,
    /// A lane without blocks returns to upstream on any stream, even if the lane has unfinished work.
    LeavesEarly,
}

/// A plan that the program follows, or a dropped plan that still has memory to return.
#[derive(Debug)]
pub(crate) struct Following {
    /// The hash of the log that the plan was made from.
    pub(crate) log: String,
    pub(crate) slots: Slots,
    /// The lanes: the memory of each stream of the plan.
    pub(crate) lanes: Vec<Lane>,
    /// The bytes of all lanes.
    pub(crate) bytes: u64,
    /// The most bytes that allocations without a slot use at one time.
    beside: u64,
    /// The most bytes that the plan and upstream may use together. The number is known after the plan first
    /// allocates memory.
    pub(crate) limit_bytes: Option<u64>,
    position: Position,
    window: Window,
    /// How many requests were made since skipped slots last caught up.
    since_catching_up: u32,
    /// The mistake that is made on purpose.
    #[cfg(test)]
    pub(crate) mistake: Option<Mistake>,
}

impl Following {
    pub(crate) fn new(plan: &ProgramPlan) -> Self {
        let (parts, slots) = (plan.parts(), Slots::new(plan));
        Self {
            log: parts.log.to_string(),
            lanes: parts.lanes.iter().copied().map(Lane::new).collect(),
            bytes: parts.bytes(),
            beside: parts.beside,
            limit_bytes: None,
            position: Position::new(&slots),
            window: Window::default(),
            since_catching_up: u32::MAX,
            slots,
            #[cfg(test)]
            mistake: None,
        }
    }

    /// Returns the position of a request in the plan; `None` if the plan does not know the request.
    #[inline]
    pub(crate) fn locate(&mut self, bytes: u64, stream: StreamId) -> Option<u32> {
        let at = self.position.locate(&mut self.slots, bytes, stream);
        if at == Some(0) {
            self.forget_gaps();
        }
        at
    }

    /// Returns whether the plan serves slots now.
    pub(crate) fn is_begun(&self) -> bool {
        self.position.is_begun()
    }

    /// Returns whether the program may have left the plan's position.
    pub(crate) fn is_lost(&self) -> bool {
        self.position.is_lost()
    }

    /// Returns the lane of a position; `None` if the plan leaves the allocation to upstream.
    pub(crate) fn lane_of(&self, at: u32) -> Option<usize> {
        self.slots.is_placed(at).then(|| self.slots.at(at).stream as usize)
    }

    /// Returns the lane of a stream, if it has memory.
    pub(crate) fn lane_for(&self, stream: StreamId) -> Option<usize> {
        let lane = self.slots.number_of(stream)? as usize;
        self.lanes[lane].base.is_some().then_some(lane)
    }

    /// Returns the lane that contains an address, and the address's distance from the start of the lane.
    pub(crate) fn lane_at(&self, ptr: DevicePtr) -> Option<(usize, u64)> {
        let mut lanes = self.lanes.iter().enumerate();
        lanes.find_map(|(number, lane)| Some((number, lane.offset_of(ptr)?)))
    }

    /// Returns the lanes that have memory, with the blocks in them.
    pub(crate) fn segments(&self) -> Vec<MemorySegment> {
        let held =
            self.lanes.iter().enumerate().filter_map(|(number, lane)| Some((number, lane, lane.base?)));
        let segment = |(number, lane, base): (usize, &Lane, DevicePtr)| {
            let mut live: Vec<_> = self.slots.live(number).chain(lane.guests()).collect();
            live.sort_unstable();
            let (mut blocks, mut end) = (Vec::new(), 0);
            for (offset, bytes, requested) in live.into_iter().chain([(lane.bytes, 0, 0)]) {
                if offset > end {
                    blocks.push(MemoryBlock::new(base.address() + end, offset - end, 0));
                }
                if bytes > 0 {
                    blocks.push(MemoryBlock::new(base.address() + offset, bytes, requested));
                }
                end = end.max(offset + bytes);
            }
            MemorySegment::new(blocks)
        };
        held.map(segment).collect()
    }

    /// Returns the bytes of lanes that have no memory.
    pub(crate) fn missing(&self) -> u64 {
        self.bytes - self.held().0
    }

    /// Returns the bytes that were allocated from upstream, and how many of these bytes are in lanes without
    /// blocks.
    pub(crate) fn held(&self) -> (u64, u64) {
        self.lanes.iter().fold((0, 0), |(all, idle), lane| {
            let held = lane.held_bytes();
            (all + held, idle + if lane.is_idle() { held } else { 0 })
        })
    }

    /// Sets the limit when the first lane is allocated. The log shows how much memory the program uses with
    /// the plan. How much it uses without a plan is unknown.
    pub(crate) fn set_limit(&mut self, in_use_bytes: u64) {
        if self.limit_bytes.is_none() {
            let spare = self.beside.saturating_add(self.bytes / SPARE_SHARE);
            self.limit_bytes = Some(in_use_bytes.saturating_add(self.missing()).saturating_add(spare));
        }
    }

    /// Counts a request. At the end of a window of requests, decides whether the plan is worth keeping.
    #[inline]
    pub(crate) fn judge(&mut self, is_miss: bool, bytes: u64) -> Verdict {
        self.since_catching_up = self.since_catching_up.saturating_add(1);
        let (length, is_begun) = (self.slots.length(), self.is_begun());
        if self.window.count(length, is_begun, is_miss, bytes) {
            self.window.end(is_begun)
        } else {
            Verdict::Good
        }
    }

    /// Counts bytes that upstream allocates or frees.
    #[inline]
    pub(crate) fn count_beside(&mut self, bytes: i64) {
        self.window.count_beside(bytes);
    }

    /// Returns the most bytes that upstream served in this window and the previous one, minus the bytes that
    /// it serves now.
    pub(crate) fn most_beside(&self) -> u64 {
        self.window.most_beside()
    }

    /// Counts a request that upstream has no room for, and whose stream has no lane. Returns whether the plan
    /// keeps so much memory from other streams that it should end.
    pub(crate) fn is_crowding(&mut self, bytes: u64) -> bool {
        self.window.count_crowded(bytes) > self.bytes / CROWDED_SHARE
    }

    /// Serves a request from a slot, unless a block uses some of the slot's bytes or the lane has no memory.
    pub(crate) fn claim(&mut self, at: u32, bytes: u64) -> Option<DevicePtr> {
        let slot = *self.slots.at(at);
        let lane = &mut self.lanes[slot.stream as usize];
        let base = lane.base.filter(|_| bytes <= slot.bytes)?;
        let is_taken = lane.guests.as_ref().is_some_and(|it| !it.gaps.has(slot.offset, slot.bytes));
        #[cfg(test)]
        let is_taken = is_taken && self.mistake != Some(Mistake::OverGuests);
        let mut is_claimed = !is_taken && self.slots.claim(at);
        if !is_claimed && !is_taken && self.since_catching_up > self.slots.length() / CATCH_UP_SHARE {
            self.since_catching_up = 0;
            self.slots.catch_up(at);
            is_claimed = self.slots.claim(at);
        }
        #[cfg(test)]
        let is_claimed = is_claimed || self.mistake == Some(Mistake::Unchecked);
        if !is_claimed {
            return None;
        }
        if let Some(guests) = &mut lane.guests {
            guests.gaps.take_at(slot.offset, slot.bytes);
        }
        lane.claims += 1;
        self.slots.note_block(at, bytes);
        Some(base.offset(slot.offset))
    }

    /// Skips the slot of a request that did not get it.
    pub(crate) fn leave_out(&mut self, at: u32) {
        if self.lane_of(at).is_some_and(|lane| self.lanes[lane].base.is_some()) {
            self.slots.pass_over(at);
        }
    }

    /// Serves a request without a slot from a gap in the lane of its stream. If the bytes of the slot that
    /// the request would have (`at`) are free, uses these bytes. `bytes` is the size of the request, and
    /// `rounded` is a multiple of 256.
    pub(crate) fn claim_gap(
        &mut self,
        lane: usize,
        at: Option<u32>,
        bytes: u64,
        rounded: u64,
    ) -> Option<DevicePtr> {
        let base = self.lanes[lane].base?;
        let slot = at.filter(|at| self.lane_of(*at) == Some(lane)).map(|at| self.slots.at(at).offset);
        let guests = self.guests(lane);
        let own = slot.filter(|offset| guests.gaps.take_at(*offset, rounded));
        let offset = own.or_else(|| guests.gaps.take(rounded))?;
        guests.blocks.insert(offset, (bytes, rounded));
        self.lanes[lane].claims += 1;
        Some(base.offset(offset))
    }

    /// Returns the guests of a lane. The lane may have guests from now on.
    fn guests(&mut self, lane: usize) -> &mut Guests {
        let Lane { guests, bytes, .. } = &mut self.lanes[lane];
        guests.get_or_insert_with(|| {
            let gaps = Gaps::between(self.slots.used(lane), *bytes);
            Guests { gaps, blocks: Default::default() }
        })
    }

    /// If no guest is left, only the slots' counters are used again. Called when a pass begins.
    fn forget_gaps(&mut self) {
        for lane in &mut self.lanes {
            if lane.guests.is_some() && !lane.has_guests() {
                lane.guests = None;
            }
        }
    }

    /// Returns the kind of block that starts at an offset of a lane, and its requested bytes.
    pub(crate) fn block_at(&self, lane: usize, offset: u64) -> Option<(Bytes, u64)> {
        let guests = self.lanes[lane].guests.as_ref();
        if let Some(&(requested, bytes)) = guests.and_then(|guests| guests.blocks.get(&offset)) {
            return Some((Bytes::Guest { offset, bytes }, requested));
        }
        self.slots.block_at(lane, offset).map(|(at, requested)| (Bytes::Slot(at), requested))
    }

    /// Frees the block at an offset of a lane in the order of `stream`. If `stream` is not the lane's stream,
    /// returns the number of a mark. The bytes are free when the mark's work is done.
    pub(crate) fn free(
        &mut self,
        (lane, offset): (usize, u64),
        bytes: u64,
        stream: StreamRef,
        marks: &mut Marks,
    ) -> Result<Option<u64>, MisuseKind> {
        let Some((what, requested)) = self.block_at(lane, offset) else {
            let is_start = self.slots.is_start(lane, offset);
            return Err(if is_start { MisuseKind::DoubleFree } else { MisuseKind::ForeignPointer });
        };
        if bytes != requested {
            return Err(MisuseKind::WrongSize { allocated_bytes: requested });
        }
        let id = stream.id();
        let is_own = self.slots.stream_of(lane) == Some(id);
        #[cfg(test)]
        let is_own = is_own || self.mistake == Some(Mistake::TooEarly);
        let freed = &mut self.lanes[lane];
        freed.frees += 1;
        match what {
            Bytes::Slot(at) => self.slots.forget_block(at),
            Bytes::Guest { .. } => {
                freed.guests.as_mut().and_then(|guests| guests.blocks.remove(&offset));
            }
        }
        if !is_own {
            return Ok(Some(freed.keep_until(what, marks.mark(id, stream))));
        }
        self.give(lane, what);
        Ok(None)
    }

    /// Makes bytes of a lane free.
    fn give(&mut self, lane: usize, what: Bytes) {
        let (offset, bytes) = match what {
            Bytes::Slot(at) => {
                self.slots.release(at);
                let slot = self.slots.at(at);
                (slot.offset, slot.bytes)
            }
            Bytes::Guest { offset, bytes } => (offset, bytes),
        };
        if let Some(guests) = &mut self.lanes[lane].guests {
            guests.gaps.give(offset, bytes);
        }
    }

    /// Returns the questions about blocks in the stream's lane that were freed on other streams.
    pub(crate) fn ask_foreign(&self, stream: StreamId, marks: &mut Marks) -> Vec<Question> {
        let mut questions = Vec::new();
        let lane = self.lane_for(stream).map(|lane| &self.lanes[lane]);
        lane.into_iter().for_each(|lane| lane.ask_foreign(marks, &mut questions));
        questions
    }

    /// Marks the work of the own streams of lanes without blocks.
    pub(crate) fn mark_idle(&mut self, marks: &mut Marks) {
        for (number, lane) in self.lanes.iter_mut().enumerate().filter(|(_, lane)| lane.base.is_some()) {
            let own = self.slots.stream_of(number).filter(|_| lane.is_idle());
            own.into_iter().for_each(|id| lane.mark_own(id, marks));
        }
    }

    /// Returns the questions about all work that lanes without blocks wait for.
    pub(crate) fn ask_idle(&mut self, marks: &mut Marks) -> Vec<Question> {
        self.mark_idle(marks);
        let mut questions = Vec::new();
        let held = self.lanes.iter().filter(|lane| lane.base.is_some() && lane.is_idle());
        held.for_each(|lane| lane.ask_all(marks, &mut questions));
        questions
    }

    pub(crate) fn find_mark(&mut self, number: u64) -> Option<&mut Mark> {
        self.lanes.iter_mut().find_map(|lane| lane.find_mark(number))
    }

    /// Ends the waits for work whose marks `is_done` accepts.
    pub(crate) fn end_waits(&mut self, marks: &mut Marks, is_done: impl Fn(u64) -> bool) {
        for lane in 0..self.lanes.len() {
            for what in self.lanes[lane].end_waits(marks, &is_done) {
                self.give(lane, what);
            }
        }
    }

    /// Removes the memory from a lane without blocks. The stream of the caller is `stream`, and the caller
    /// returns the memory to upstream on this stream.
    pub(crate) fn take_idle(
        &mut self,
        lane: usize,
        stream: StreamId,
        marks: &mut Marks,
    ) -> Option<DevicePtr> {
        let may_leave = self.lanes[lane].may_leave(self.slots.stream_of(lane) == Some(stream));
        #[cfg(test)]
        let may_leave = may_leave || self.mistake == Some(Mistake::LeavesEarly) && self.lanes[lane].is_idle();
        if may_leave { self.lanes[lane].take_base(marks) } else { None }
    }
}
