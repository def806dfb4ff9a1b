//! A plan in use: where in the body the program is, and the memory of each stream.

use millpond_core::misuse::MisuseKind;
use millpond_core::{DevicePtr, ResourceStatistics, StreamId, StreamRef};
use rustc_hash::FxHashMap;

use crate::plan::body::{Body, GRAM, LanePlan, NONE};
use crate::plan::gaps::Gaps;
use crate::plan::history::key;
use crate::plan::lane::{Bytes, Guests, Lane};
use crate::plan::marks::{Mark, Marks, Question};

/// How far ahead of its place a request is looked for after the program left something out.
const WINDOW: u32 = 8;

/// A plan ends when it keeps more than this part of its bytes from other streams.
const CROWDED_SHARE: u64 = 16;

/// Slots catch up once in this part of a body at most, as that looks at all of them.
const CATCH_UP_SHARE: u32 = 4;

/// The fewest requests over which a plan is judged.
const LEAST_WINDOW: u32 = 64;

/// The most requests over which a plan from a file is judged before it begins: its body may be a whole log.
const AWAITED_WINDOW: u32 = 1024;

/// The requests in a row after which a plan from a file begins although those before did not fit. Fewer may
/// fit by chance, and its memory is much.
const LATE_FITS: u32 = 64;

/// A plan from a file has this part of its bytes above them, for what the program does beside it.
const SPARE_SHARE: u64 = 16;

/// What became of a plan at the end of a window of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Good,
    /// The last [`PROVEN`] windows were good: the plan has saved more than planning cost.
    Proven,
    /// The program does not follow the plan.
    Dropped,
}

/// The good windows in a row after which a plan has saved more than planning cost: that takes about 8 µs an
/// allocation, and a served allocation and its free take 70 to 130 ns less than the pool's (docs/plan.md).
const PROVEN: u32 = 128;

/// A mistake that tests must find.
#[cfg(test)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mistake {
    /// Slots are handed out whatever they hold.
    Unchecked,
    /// A slot is free for its stream as soon as its block was freed on any stream.
    TooEarly,
    /// Slots are handed out whatever guests lie there.
    OverGuests,
    /// A lane without blocks goes back on any stream, whatever work it has.
    LeavesEarly,
}

/// A plan in use.
#[derive(Debug)]
pub(crate) struct Running {
    /// The number of the plan.
    pub(crate) number: u64,
    pub(crate) body: Body,
    pub(crate) lanes: Vec<Lane>,
    /// The most bytes that upstream held before the plan, if it counts them.
    pub(crate) limit_bytes: Option<u64>,
    /// The slot whose block has a place; [`NONE`] if none has.
    holders: Vec<u32>,
    /// The bytes that each slot's block was asked for.
    requested: Vec<u64>,
    /// The position of the next expected request, once it is known.
    cursor: Option<u32>,
    /// Whether a body has begun since the plan was made, or since it was postponed.
    is_begun: bool,
    /// Whether the plan's memory did not fit when the last body began.
    is_postponed: bool,
    /// The requests in a row that must fit before a plan from a file begins; 0 once it has.
    awaited_fits: u32,
    /// The keys of the last requests, up to the last one that did not fit.
    recent: [u64; GRAM],
    /// The requests since then, each of which fitted.
    fits: u32,
    /// The requests in a row that did not fit.
    slips: u32,
    /// The requests of the present window, and those of them that found no slot.
    window: (u32, u32),
    /// The bytes of these.
    window_bytes: (u64, u64),
    /// The windows in a row with too many misses, and the good ones in a row.
    bad: u32,
    good: u32,
    /// The bytes of this window's requests on streams without a lane for which upstream had no room.
    crowded_bytes: u64,
    /// The requests since slots caught up.
    since_catching_up: u32,
    /// The mistake that tests must find.
    #[cfg(test)]
    pub(crate) mistake: Option<Mistake>,
}

impl Running {
    pub(crate) fn new(number: u64, body: Body, limit_bytes: Option<u64>) -> Self {
        Self {
            number,
            limit_bytes,
            lanes: body.lanes.iter().map(|_| Lane::default()).collect(),
            holders: vec![NONE; body.places as usize],
            requested: vec![0; body.slots.len()],
            cursor: body.origin.as_ref().map(|_| 0),
            is_begun: false,
            is_postponed: false,
            awaited_fits: body.origin.as_ref().map_or(0, |origin| (origin.lead + 1).min(GRAM as u32)),
            recent: [0; GRAM],
            fits: 0,
            slips: 0,
            window: (0, 0),
            window_bytes: (0, 0),
            bad: 0,
            good: 0,
            crowded_bytes: 0,
            since_catching_up: u32::MAX,
            body,
            #[cfg(test)]
            mistake: None,
        }
    }

    fn length(&self) -> u32 {
        self.body.slots.len() as u32
    }

    fn has(&self, at: u32, bytes: u64, stream: StreamId) -> bool {
        let slot = &self.body.slots[at as usize];
        slot.bytes == bytes && slot.stream == stream
    }

    /// Moves to the position after `at`.
    fn advance(&mut self, at: u32) -> u32 {
        let is_begin = if self.awaited_fits > 0 { self.fits >= self.awaited_fits } else { at == 0 };
        if is_begin {
            self.awaited_fits = 0;
            self.is_begun = true;
            self.is_postponed = false;
            self.forget_gaps();
        }
        self.cursor = Some((at + 1) % self.length());
        at
    }

    /// Returns the slot for a request, which the program may have reached in another order; `None` for a
    /// request that the plan does not know.
    pub(crate) fn locate(&mut self, bytes: u64, stream: StreamId) -> Option<u32> {
        if let Some(at) = self.cursor
            && self.has(at, bytes, stream)
        {
            self.slips = 0;
            self.fits = self.fits.saturating_add(1);
            return Some(self.advance(at));
        }
        self.locate_anew(bytes, stream)
    }

    /// Adds a request that does not fit to the recent ones, after those before it that did.
    fn note_misfit(&mut self, misfit: u64) {
        if self.awaited_fits > 0 {
            self.awaited_fits = LATE_FITS;
        }
        let (cursor, length) = (self.cursor.unwrap_or(0) as usize, self.body.slots.len());
        let fitted = (self.fits as usize).min(GRAM);
        for back in (1..=fitted).rev() {
            let slot = &self.body.slots[(cursor + GRAM * length - back) % length];
            self.recent.rotate_left(1);
            self.recent[GRAM - 1] = key(slot.bytes, slot.stream);
        }
        self.fits = 0;
        self.recent.rotate_left(1);
        self.recent[GRAM - 1] = misfit;
    }

    /// Moves to a position further on. The slots in between pass their bytes on where they can.
    fn skip_to(&mut self, found: u32) -> u32 {
        self.slips = 0;
        let length = self.length();
        if let Some(cursor) = self.cursor {
            let left_out = (found + length - cursor) % length;
            // A position that is rather behind than ahead leaves nothing out.
            if self.is_begun && left_out <= length / 2 {
                (0..left_out).for_each(|step| self.body.pass_over((cursor + step) % length));
            }
        }
        self.advance(found)
    }

    #[cold]
    fn locate_anew(&mut self, bytes: u64, stream: StreamId) -> Option<u32> {
        if let Some(at) = self.cursor
            && self.body.name_stream(at, bytes, stream)
        {
            return self.locate(bytes, stream);
        }
        self.slips = self.slips.saturating_add(1);
        self.note_misfit(key(bytes, stream));
        // Other requests may have the same hash.
        let found = self.body.find(self.recent, self.cursor.unwrap_or(0));
        if let Some(found) = found.filter(|found| self.has(*found, bytes, stream)) {
            return Some(self.skip_to(found));
        }
        if let Some(at) = self.cursor {
            let slot = &self.body.slots[at as usize];
            // A smaller request in the place of the expected one, after one that fitted. The first one of
            // another program would keep the lane for as long as its block lives.
            let may_differ = self.slips == 1 && at != 0;
            if may_differ && slot.stream == stream && bytes < slot.bytes && bytes >= slot.bytes / 2 {
                return Some(self.advance(at));
            }
            // After some that were left out.
            if self.slips < 2 {
                return None;
            }
            let length = u64::from(self.length());
            let mut ahead = (1..=WINDOW).map(|step| ((u64::from(at) + u64::from(step)) % length) as u32);
            let is_it = |at: &u32| self.has(*at, bytes, stream) || self.body.name_stream(*at, bytes, stream);
            return ahead.find(is_it).map(|found| self.skip_to(found));
        }
        None
    }

    /// Returns the lane of a slot; `None` if the plan leaves the allocation to upstream.
    pub(crate) fn lane_of(&self, slot: u32) -> Option<usize> {
        let lane = self.body.slots[slot as usize].lane;
        (lane != NONE).then_some(lane as usize)
    }

    /// Whether slots are handed out: a body has begun since the plan was made.
    pub(crate) fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// Whether the last requests have no place in the plan: the program may be in another part.
    pub(crate) fn is_lost(&self) -> bool {
        self.slips as usize >= GRAM
    }

    /// Hands out no slot until the next body begins. A plan from a file goes on with its other lanes: its
    /// body may be all that the program does.
    pub(crate) fn postpone(&mut self) {
        self.is_postponed = self.body.origin.is_none();
        self.is_begun &= !self.is_postponed;
    }

    /// Sets the limit of a plan from a file when its first lane is taken, where `missing` bytes are not taken
    /// yet: no one knows what the program takes without the plan, but the log says what it takes with it.
    pub(crate) fn set_limit(&mut self, missing: u64, upstream: impl FnOnce() -> Option<ResourceStatistics>) {
        if let Some(origin) = self.body.origin.as_ref().filter(|_| self.limit_bytes.is_none()) {
            let spare = origin.beside.saturating_add(self.body.bytes() / SPARE_SHARE);
            let limit = |known: ResourceStatistics| known.bytes_in_use.saturating_add(missing);
            self.limit_bytes = upstream().map(|known| limit(known).saturating_add(spare));
        }
    }

    /// Whether a request that has a slot and is not served from it counts against the plan.
    pub(crate) fn is_due(&self) -> bool {
        self.is_begun || self.is_postponed
    }

    /// Hands out a slot, unless a block has some of its bytes, or its lane has no memory.
    pub(crate) fn claim(&mut self, at: u32, bytes: u64) -> Option<DevicePtr> {
        let slot = self.body.slots[at as usize];
        let lane = &mut self.lanes[slot.lane as usize];
        let base = lane.base.filter(|_| bytes <= slot.bytes)?;
        let is_taken = lane.guests.as_ref().is_some_and(|it| !it.gaps.has(slot.offset, slot.bytes));
        #[cfg(test)]
        let is_taken = is_taken && self.mistake != Some(Mistake::OverGuests);
        let mut is_free = !is_taken && self.body.claim(at);
        if !is_free && !is_taken && self.since_catching_up > self.body.slots.len() as u32 / CATCH_UP_SHARE {
            self.since_catching_up = 0;
            self.body.catch_up(at);
            is_free = self.body.claim(at);
        }
        #[cfg(test)]
        let is_free = is_free || self.mistake == Some(Mistake::Unchecked);
        if !is_free {
            return None;
        }
        if let Some(guests) = &mut lane.guests {
            guests.gaps.take_at(slot.offset, slot.bytes);
        }
        lane.claims += 1;
        self.holders[slot.place as usize] = at;
        self.requested[at as usize] = bytes;
        Some(base.offset(slot.offset))
    }

    /// Leaves out the slot of a request that did not get it.
    pub(crate) fn leave_out(&mut self, at: u32) {
        let has_memory = |lane: usize| self.lanes[lane].base.is_some();
        if self.lane_of(at).is_some_and(has_memory) {
            self.body.pass_over(at);
        }
    }

    /// Returns the lane of a stream that has memory.
    pub(crate) fn lane_for(&self, stream: StreamId) -> Option<usize> {
        let lanes = self.lanes.iter().zip(&self.body.lanes);
        lanes.into_iter().position(|(lane, plan)| plan.stream == stream && lane.base.is_some())
    }

    /// Serves a request that has no slot from a gap of the lane of its stream: from the bytes of the slot
    /// that it would have (`at`), if they are free. `bytes` is the request, `rounded` a multiple of 256.
    pub(crate) fn claim_gap(
        &mut self,
        lane: usize,
        at: Option<u32>,
        bytes: u64,
        rounded: u64,
    ) -> Option<DevicePtr> {
        let base = self.lanes[lane].base?;
        if self.lanes[lane].guests.is_none() {
            let gaps = self.gaps(lane);
            self.lanes[lane].guests = Some(Guests { gaps, blocks: FxHashMap::default() });
        }
        let slot = at.map(|at| self.body.slots[at as usize]).filter(|slot| slot.lane as usize == lane);
        let lane = &mut self.lanes[lane];
        let guests = lane.guests.as_mut()?;
        let own = slot.filter(|slot| guests.gaps.take_at(slot.offset, rounded));
        let offset = own.map(|slot| slot.offset).or_else(|| guests.gaps.take(rounded))?;
        guests.blocks.insert(offset, (bytes, rounded));
        lane.claims += 1;
        Some(base.offset(offset))
    }

    /// What no slot of the lane uses.
    fn gaps(&self, lane: usize) -> Gaps {
        let live = self.body.slots.iter().filter(|slot| slot.lane as usize == lane && slot.is_live());
        let mut used: Vec<_> = live.map(|slot| (slot.offset, slot.offset + slot.bytes)).collect();
        used.sort_unstable();
        Gaps::between(used, self.body.lanes[lane].bytes)
    }

    /// Goes back to the counters of slots alone where no guest is left. A body begins.
    fn forget_gaps(&mut self) {
        for lane in &mut self.lanes {
            if lane.guests.is_some() && !lane.has_guests() {
                lane.guests = None;
            }
        }
    }

    /// Returns the lane that an address lies in.
    pub(crate) fn lane_at(&self, ptr: DevicePtr) -> Option<usize> {
        let holds = |(lane, plan): (&Lane, &LanePlan)| {
            lane.base.is_some_and(|base| ptr.address().wrapping_sub(base.address()) < plan.bytes)
        };
        self.lanes.iter().zip(&self.body.lanes).position(holds)
    }

    /// Returns the slot whose block starts at an address of the lane, and the bytes that were asked for.
    /// A guest has no slot ([`NONE`]).
    pub(crate) fn block_at(&self, lane: usize, ptr: DevicePtr) -> Option<(u32, u64)> {
        let offset = ptr.address() - self.lanes[lane].base?.address();
        let guests = self.lanes[lane].guests.as_ref();
        if let Some((requested, _)) = guests.and_then(|guests| guests.blocks.get(&offset)) {
            return Some((NONE, *requested));
        }
        let place = *self.body.lanes[lane].places.get(&offset)?;
        let at = self.holders[place as usize];
        (at != NONE).then(|| (at, self.requested[at as usize]))
    }

    /// Whether a slot starts at an address of the lane.
    fn is_start(&self, lane: usize, ptr: DevicePtr) -> bool {
        let offset = self.lanes[lane].base.map(|base| ptr.address() - base.address());
        offset.is_some_and(|offset| self.body.lanes[lane].places.contains_key(&offset))
    }

    /// Takes a block of the lane back, in the order of `stream`. Returns the number of the mark behind which
    /// its bytes are free, if that is another stream's.
    pub(crate) fn free(
        &mut self,
        lane: usize,
        ptr: DevicePtr,
        bytes: u64,
        stream: StreamRef,
        marks: &mut Marks,
    ) -> Result<Option<u64>, MisuseKind> {
        let Some((at, requested)) = self.block_at(lane, ptr) else {
            let is_start = self.is_start(lane, ptr);
            return Err(if is_start { MisuseKind::DoubleFree } else { MisuseKind::ForeignPointer });
        };
        if bytes != requested {
            return Err(MisuseKind::WrongSize { allocated_bytes: requested });
        }
        let id = stream.id();
        let is_own = id == self.body.lanes[lane].stream;
        #[cfg(test)]
        let is_own = is_own || self.mistake == Some(Mistake::TooEarly);
        let freed = &mut self.lanes[lane];
        freed.frees += 1;
        let what = if at == NONE {
            let offset = ptr.address() - freed.base.map_or(0, |base| base.address());
            let guest = freed.guests.as_mut().and_then(|guests| guests.blocks.remove(&offset));
            Bytes::Guest { offset, bytes: guest.map_or(0, |(_, rounded)| rounded) }
        } else {
            self.holders[self.body.slots[at as usize].place as usize] = NONE;
            Bytes::Slot(at)
        };
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
                self.body.release(at);
                let slot = &self.body.slots[at as usize];
                (slot.offset, slot.bytes)
            }
            Bytes::Guest { offset, bytes } => (offset, bytes),
        };
        if let Some(guests) = &mut self.lanes[lane].guests {
            guests.gaps.give(offset, bytes);
        }
    }

    /// Whether blocks of the stream's lane were freed on other streams, whose work may be done by now.
    pub(crate) fn waits_for_others(&self, stream: StreamId) -> bool {
        self.lane_for(stream).is_some_and(|lane| !self.lanes[lane].foreign.is_empty())
    }

    /// The questions about the blocks of the stream's lane that were freed on other streams.
    pub(crate) fn ask_foreign(&self, stream: StreamId, marks: &mut Marks, questions: &mut Vec<Question>) {
        if let Some(lane) = self.lane_for(stream) {
            self.lanes[lane].ask_foreign(marks, questions);
        }
    }

    /// Marks the work of the own streams of lanes without blocks.
    pub(crate) fn mark_idle(&mut self, marks: &mut Marks) {
        for (lane, plan) in self.lanes.iter_mut().zip(&self.body.lanes) {
            if lane.base.is_some() && lane.is_idle() {
                lane.mark_own(plan.stream, marks);
            }
        }
    }

    /// The questions about all work that lanes without blocks wait for.
    pub(crate) fn ask_idle(&mut self, marks: &mut Marks, questions: &mut Vec<Question>) {
        self.mark_idle(marks);
        let idle = self.lanes.iter().filter(|lane| lane.base.is_some() && lane.is_idle());
        idle.for_each(|lane| lane.ask_all(marks, questions));
    }

    pub(crate) fn find_mark(&mut self, number: u64) -> Option<&mut Mark> {
        self.lanes.iter_mut().find_map(|lane| lane.find_mark(number))
    }

    /// Ends the waits for all work whose marks `is_done` names.
    pub(crate) fn end_waits(&mut self, marks: &mut Marks, is_done: impl Fn(u64) -> bool) {
        for lane in 0..self.lanes.len() {
            for what in self.lanes[lane].end_waits(marks, &is_done) {
                self.give(lane, what);
            }
        }
    }

    /// Takes the memory of a lane without blocks out of it, for a caller whose stream is `stream`. The caller
    /// gives it back to upstream on that stream.
    pub(crate) fn take_idle(
        &mut self,
        lane: usize,
        stream: StreamId,
        marks: &mut Marks,
    ) -> Option<(DevicePtr, u64)> {
        let may_leave = self.lanes[lane].may_leave(stream, self.body.lanes[lane].stream);
        #[cfg(test)]
        let may_leave = may_leave || self.mistake == Some(Mistake::LeavesEarly) && self.lanes[lane].is_idle();
        if !may_leave {
            return None;
        }
        Some((self.lanes[lane].take_base(marks)?, self.body.lanes[lane].bytes))
    }

    /// Returns the bytes taken from upstream, and those of them in lanes without blocks.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let taken = self.lanes.iter().zip(&self.body.lanes).filter(|(lane, _)| lane.base.is_some());
        taken.fold((0, 0), |(all, idle), (lane, plan)| {
            (all + plan.bytes, idle + if lane.is_idle() { plan.bytes } else { 0 })
        })
    }

    /// Counts a request on a stream without a lane for which upstream has no room. Returns whether the plan
    /// keeps so much memory from other streams in one window that it should end.
    pub(crate) fn is_crowding(&mut self, bytes: u64) -> bool {
        self.crowded_bytes = self.crowded_bytes.saturating_add(bytes);
        self.crowded_bytes > self.body.bytes() / CROWDED_SHARE
    }

    /// Counts a request, and says at the end of a window whether the plan is worth keeping: it is dropped
    /// after two windows in a row in which more than a quarter of the requests, or of their bytes, found no
    /// slot, or in which no body began.
    #[inline]
    pub(crate) fn judge(&mut self, is_miss: bool, bytes: u64) -> Verdict {
        self.window.0 += 1;
        self.window_bytes.0 = self.window_bytes.0.saturating_add(bytes);
        if is_miss {
            self.window.1 += 1;
            self.window_bytes.1 = self.window_bytes.1.saturating_add(bytes);
        }
        self.since_catching_up = self.since_catching_up.saturating_add(1);
        let most = if self.awaited_fits > 0 { AWAITED_WINDOW } else { u32::MAX };
        if self.window.0 < self.length().clamp(LEAST_WINDOW, most) {
            return Verdict::Good;
        }
        self.end_window()
    }

    fn end_window(&mut self) -> Verdict {
        let (requests, misses) = std::mem::take(&mut self.window);
        let (bytes, missed_bytes) = std::mem::take(&mut self.window_bytes);
        let are_many = |misses: u64, all: u64| misses > all / 4;
        let is_bad = are_many(u64::from(misses), u64::from(requests))
            || are_many(missed_bytes, bytes)
            || !self.is_due();
        self.crowded_bytes = 0;
        (self.bad, self.good) = if is_bad { (self.bad + 1, 0) } else { (0, self.good + 1) };
        match (self.bad, self.good) {
            (2.., _) => Verdict::Dropped,
            (_, PROVEN) => Verdict::Proven,
            _ => Verdict::Good,
        }
    }
}
