//! A plan in use: where in its bodies the program is, and the memory of each stream.

mod bodies;
mod judge;
mod locate;

use millpond_core::misuse::MisuseKind;
use millpond_core::{DevicePtr, StreamId, StreamRef};

use crate::plan::body::{Body, Claim, NONE};
use crate::plan::lane::{Bytes, Lane};
use crate::plan::marks::{Mark, Marks, Question};
use crate::plan::repetition::GRAM;
use crate::plan::sharing::{SHARED, Sharing, Trust};
#[cfg(test)]
use crate::plan::sharing::{SHARING, Tried};

pub(crate) use crate::plan::running::judge::Verdict;

/// A trial has at most one try in this part of a body, so that it sees all of the body.
const TRIED_SHARE: u32 = 128;

/// Slots catch up once in this part of a body at most, as that looks at all of them.
const CATCH_UP_SHARE: u32 = 4;

/// A plan from a file has this part of its bytes above them, for what the program does beside it.
const SPARE_SHARE: u64 = 16;

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
    /// Slots that streams share are handed out whatever streams had their bytes.
    Unordered,
    /// A lane without blocks goes back on any stream, whatever work it has.
    LeavesEarly,
    /// The slots of one body do not know of the blocks in those of another.
    ForgetsGuests,
}

/// How the program follows a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// No body has begun since the plan was made.
    Made,
    /// Slots are handed out.
    Begun,
    /// The plan's memory did not fit when the last body began.
    Postponed,
    /// Some requests in a row had no place in the plan, and not as many in a row have had one since.
    Elsewhere,
    /// The program came back in the middle of a body. The next one begins.
    Found,
}

/// A body of a plan in use, to tell whether the program is still there after the lock was free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// The number of the plan.
    pub(crate) plan: u64,
    /// How often the program went from one body to another.
    changes: u64,
}

/// The bytes that upstream serves beside a plan, over those when the plan was made.
#[derive(Clone, Copy, Debug, Default)]
struct Beside {
    now: i64,
    /// The most in the present window, and in the one before.
    most: i64,
    most_before: i64,
}

/// A plan in use.
#[derive(Debug)]
pub(crate) struct Running {
    place: Place,
    /// The body in which the program is.
    pub(crate) body: Body,
    /// The other bodies; those that were left last come first.
    others: Vec<Body>,
    pub(crate) lanes: Vec<Lane>,
    /// The most bytes that upstream held before the plan, if it counts them.
    pub(crate) limit_bytes: Option<u64>,
    /// The position of the next expected request, once it is known.
    cursor: Option<u32>,
    stage: Stage,
    /// Whether the streams are known to keep up with the host.
    is_tried: bool,
    /// Whether upstream had no room for requests whose slots had bytes of streams that are behind.
    pub(crate) is_behind: bool,
    beside: Beside,
    /// The good windows so far.
    good_windows: u32,
    /// Whether the program has left the plan: it holds no memory without blocks until a body begins.
    is_aside: bool,
    /// The requests in a row that must fit before a plan from a file begins; 0 once it has.
    awaited_fits: u32,
    /// The keys of the last requests, up to the last one that did not fit.
    recent: [u64; GRAM],
    /// The requests since then, each of which fitted.
    fits: u32,
    /// The requests in a row that did not fit.
    slips: u32,
    /// The position that was expected at the first of them.
    left_at: Option<u32>,
    /// The requests since the program was last elsewhere, and the most before it was.
    stretch: u64,
    longest_stretch: u64,
    /// Whether what the plan serves is watched no more: it is no loop inside a larger body.
    pub(crate) is_settled: bool,
    /// Whether a window was good, with slots, since the plan was made or last set aside.
    has_served: bool,
    /// Whether it has saved more than planning cost.
    is_proven: bool,
    /// How often the program came back from elsewhere.
    pub(crate) times_found: u64,
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
            place: Place { plan: number, changes: 0 },
            limit_bytes,
            others: Vec::new(),
            lanes: body.lanes.iter().map(Lane::new).collect(),
            cursor: Some(body.next),
            stage: Stage::Made,
            #[cfg(test)]
            is_tried: SHARING.get() == Some(Tried::Passed),
            #[cfg(not(test))]
            is_tried: false,
            is_behind: false,
            beside: Beside::default(),
            good_windows: 0,
            is_aside: false,
            awaited_fits: body.origin.as_ref().map_or(0, |origin| (origin.lead + 1).min(GRAM as u32)),
            recent: [0; GRAM],
            fits: 0,
            slips: 0,
            left_at: None,
            stretch: 0,
            longest_stretch: 0,
            is_settled: false,
            has_served: false,
            is_proven: false,
            times_found: 0,
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

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// Returns the lane of a slot; `None` if the plan leaves the allocation to upstream.
    pub(crate) fn lane_of(&self, slot: u32) -> Option<usize> {
        let lane = self.body.slots[slot as usize].lane;
        (lane != NONE).then_some(lane as usize)
    }

    /// Whether slots are handed out: a body has begun since the plan was made.
    pub(crate) fn is_begun(&self) -> bool {
        self.stage == Stage::Begun && !self.is_on_trial()
    }

    /// Whether it is tried if the streams keep up with the host, as they share memory in the body in use. No
    /// slot is handed out meanwhile.
    pub(crate) fn is_on_trial(&self) -> bool {
        !self.is_tried && self.body.is_shared()
    }

    pub(crate) fn sharing(&mut self) -> Option<&mut Sharing> {
        self.lanes.iter_mut().find_map(|lane| lane.sharing.as_mut())
    }

    /// Goes on with the trial of a body whose streams share memory, at a request in it.
    pub(crate) fn try_order(&mut self, stream: StreamRef) -> Trust {
        let every = self.body.length() / TRIED_SHARE;
        let trust = self.sharing().map_or(Trust::KeepUp, |sharing| sharing.try_order(stream, every));
        if trust == Trust::KeepUp {
            self.is_tried = true;
            if self.stage == Stage::Begun {
                // The next body begins with all of its blocks in the plan.
                self.postpone();
            }
        }
        trust
    }

    /// Hands out no slot until the next body begins. A plan from a file goes on with its other lanes: its
    /// body may be all that the program does.
    pub(crate) fn postpone(&mut self) {
        if self.may_grow() {
            self.stage = Stage::Postponed;
        }
    }

    /// Sets the limit of a plan from a file when its first lane is taken, where `missing` bytes are not taken
    /// yet: no one knows what the program takes without the plan, but the log says what it takes with it.
    pub(crate) fn set_limit(&mut self, missing: u64, in_use_bytes: u64) {
        if let Some(origin) = self.body.origin.as_ref().filter(|_| self.limit_bytes.is_none()) {
            let spare = origin.beside.saturating_add(self.body.bytes() / SPARE_SHARE);
            self.limit_bytes = Some(in_use_bytes.saturating_add(missing).saturating_add(spare));
        }
    }

    /// Whether what upstream has in use matters: it has a limit, or gets one when it takes memory.
    pub(crate) fn may_have_limit(&self) -> bool {
        self.limit_bytes.is_some() || self.body.origin.is_some()
    }

    /// Whether a request that has a slot and is not served from it counts against the plan.
    pub(crate) fn is_due(&self) -> bool {
        matches!(self.stage, Stage::Begun | Stage::Postponed) && !self.is_on_trial()
    }

    /// Hands out a slot, unless a block has some of its bytes, or its lane has no memory. A lane that streams
    /// share notes the work that some of the bytes wait for.
    pub(crate) fn claim(&mut self, at: u32, bytes: u64) -> Option<DevicePtr> {
        let slot = self.body.slots[at as usize];
        let lane = &mut self.lanes[slot.lane as usize];
        let mut sharing = lane.sharing.as_mut();
        sharing.iter_mut().for_each(|sharing| sharing.forget_awaited());
        // The lane may be that of another body, and smaller.
        let has_room = bytes <= slot.bytes && slot.offset + slot.bytes <= lane.bytes;
        let base = lane.base.filter(|_| has_room)?;
        let is_taken = lane.guests.as_ref().is_some_and(|it| !it.gaps.has(slot.offset, slot.bytes));
        #[cfg(test)]
        let is_taken = is_taken && self.mistake != Some(Mistake::OverGuests);
        let mut is_done =
            |freed| sharing.as_mut().is_none_or(|sharing| sharing.is_free_for(freed, slot.stream));
        #[cfg(test)]
        let mut is_done = |freed| self.mistake == Some(Mistake::Unordered) || is_done(freed);
        let mut claim = if is_taken { Claim::Taken } else { self.body.claim(at, &mut is_done) };
        if claim == Claim::Taken && !is_taken && self.since_catching_up > self.body.length() / CATCH_UP_SHARE
        {
            self.since_catching_up = 0;
            self.body.catch_up(at);
            claim = self.body.claim(at, &mut is_done);
        }
        #[cfg(test)]
        let claim = if self.mistake == Some(Mistake::Unchecked) { Claim::Yes } else { claim };
        if claim != Claim::Yes {
            return None;
        }
        if let Some(guests) = &mut lane.guests {
            guests.gaps.take_at(slot.offset, slot.bytes);
        }
        lane.claims += 1;
        self.body.holders[slot.place as usize] = at;
        self.body.requested[at as usize] = bytes;
        Some(base.offset(slot.offset))
    }

    /// Leaves out the slot of a request that did not get it.
    pub(crate) fn leave_out(&mut self, at: u32) {
        let has_memory = |lane: usize| self.lanes[lane].base.is_some();
        if self.lane_of(at).is_some_and(has_memory) {
            self.body.pass_over(at);
        }
    }

    /// Returns the lane of a stream, if it has memory.
    pub(crate) fn lane_for(&self, stream: StreamId) -> Option<usize> {
        let lanes = self.lanes.iter().zip(&self.body.lanes);
        lanes.into_iter().position(|(lane, plan)| plan.stream == stream && lane.base.is_some())
    }

    /// Returns the lanes that have memory for a stream: its own, and the one that streams share.
    pub(crate) fn lanes_for(&self, stream: StreamId) -> impl Iterator<Item = usize> + use<> {
        [self.lane_for(stream), self.lane_for(SHARED)].into_iter().flatten()
    }

    /// Serves a request that has no slot from a gap of a lane for its stream: from the bytes of the slot
    /// that it would have (`at`), if they are free. `bytes` is the request, `rounded` a multiple of 256.
    pub(crate) fn claim_gap(
        &mut self,
        lane: usize,
        at: Option<u32>,
        bytes: u64,
        rounded: u64,
        stream: StreamId,
    ) -> Option<DevicePtr> {
        let base = self.lanes[lane].base?;
        // Which stream had the bytes of a gap is not known.
        if let Some(sharing) = &mut self.lanes[lane].sharing
            && !sharing.is_all_free_for(stream)
        {
            return None;
        }
        self.open_gaps(lane);
        let slot = at.map(|at| self.body.slots[at as usize]).filter(|slot| slot.lane as usize == lane);
        let lane = &mut self.lanes[lane];
        let guests = lane.guests.as_mut()?;
        let own = slot.filter(|slot| guests.gaps.take_at(slot.offset, rounded));
        let offset = own.map(|slot| slot.offset).or_else(|| guests.gaps.take(rounded))?;
        guests.blocks.insert(offset, (bytes, rounded));
        lane.claims += 1;
        Some(base.offset(offset))
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
        let holds = |base: DevicePtr, bytes| ptr.address().wrapping_sub(base.address()) < bytes;
        self.lanes.iter().position(|lane| lane.base.is_some_and(|base| holds(base, lane.bytes)))
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
        let at = self.body.holders[place as usize];
        (at != NONE).then(|| (at, self.body.requested[at as usize]))
    }

    /// Whether a slot starts at an address of the lane.
    fn is_start(&self, lane: usize, ptr: DevicePtr) -> bool {
        let offset = self.lanes[lane].base.map(|base| ptr.address() - base.address());
        offset.is_some_and(|offset| self.body.lanes[lane].places.contains_key(&offset))
    }

    /// Takes a block of the lane back, in the order of `stream`. Returns the number of the mark of that
    /// stream behind which the bytes are free, if they are another stream's.
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
            self.body.holders[self.body.slots[at as usize].place as usize] = NONE;
            Bytes::Slot(at)
        };
        if let Some(sharing) = &mut freed.sharing {
            let behind = sharing.freed(stream);
            let is_foreign = match what {
                Bytes::Slot(at) => {
                    self.body.note_freed(at, behind);
                    self.body.slots[at as usize].stream != id
                }
                Bytes::Guest { .. } => {
                    sharing.wait_for(behind);
                    false
                }
            };
            // The stream may be one that only frees, and that ends before its work is asked about.
            let to_record = if is_foreign { sharing.mark(id, marks) } else { None };
            self.give(lane, what);
            return Ok(to_record);
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

    /// Whether the slot `at` was refused as other streams have its bytes, whose work may be done by now.
    pub(crate) fn waits_for_order(&self, at: u32) -> bool {
        let sharing = self.lane_of(at).and_then(|lane| self.lanes[lane].sharing.as_ref());
        self.is_begun() && sharing.is_some_and(Sharing::is_awaited)
    }

    /// Whether gaps of the lane that streams share may be free for a stream, if others have done their work.
    pub(crate) fn has_waiting_gaps(&self, stream: StreamId) -> bool {
        let lane = self.lane_for(SHARED).map(|lane| &self.lanes[lane]);
        let sharing = lane.filter(|_| self.is_begun()).and_then(|lane| lane.sharing.as_ref());
        sharing.is_some_and(|sharing| !sharing.is_all_free_for(stream))
    }

    /// Whether blocks of the stream's lane were freed on other streams, whose work may be done by now.
    pub(crate) fn waits_for_others(&self, stream: StreamId) -> bool {
        self.lane_for(stream).is_some_and(|lane| !self.lanes[lane].foreign.is_empty())
    }

    /// The questions about the blocks of the stream's lane that were freed on other streams, and about the
    /// work for which the last request waits.
    pub(crate) fn ask_foreign(&mut self, stream: StreamId, marks: &mut Marks, questions: &mut Vec<Question>) {
        if let Some(lane) = self.lane_for(stream) {
            self.lanes[lane].ask_foreign(marks, questions);
        }
        let sharings = self.lanes.iter_mut().filter_map(|lane| lane.sharing.as_mut());
        sharings.for_each(|sharing| sharing.ask_awaited(marks, questions));
    }

    /// Marks the work of the own streams of lanes without blocks, and of streams that share one.
    pub(crate) fn mark_idle(&mut self, marks: &mut Marks) {
        for (lane, plan) in self.lanes.iter_mut().zip(&self.body.lanes) {
            if lane.base.is_some() && (lane.is_idle() || lane.sharing.is_some()) {
                lane.mark_own(plan.stream, marks);
            }
        }
    }

    /// The questions about all work that lanes without blocks wait for.
    pub(crate) fn ask_idle(&mut self, marks: &mut Marks, questions: &mut Vec<Question>) {
        self.mark_idle(marks);
        let waiting = |lane: &&Lane| lane.is_idle() || lane.sharing.is_some();
        let held = self.lanes.iter().filter(|lane| lane.base.is_some());
        held.filter(waiting).for_each(|lane| lane.ask_all(marks, questions));
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

    /// Forgets the marks of lanes without memory, which are those of a trial.
    pub(crate) fn forget_untaken(&mut self, marks: &mut Marks) {
        let untaken = self.lanes.iter_mut().filter(|lane| lane.base.is_none());
        untaken.filter_map(|lane| lane.sharing.as_mut()).for_each(|sharing| sharing.forget(marks));
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
        self.lanes[lane].take_base(marks)
    }

    /// Returns the bytes taken from upstream, and those of them in lanes without blocks.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        self.lanes.iter().fold((0, 0), |(all, idle), lane| {
            (all + lane.bytes, idle + if lane.is_idle() { lane.bytes } else { 0 })
        })
    }
}
