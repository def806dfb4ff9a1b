//! The state under the layer's lock, and the memory that returns to upstream after the lock is released.

use millpond_core::driver::Event;
use millpond_core::{DevicePtr, StreamId, StreamRef};

use crate::following::Following;
use crate::marks::{Marks, Question};

/// Counts of a [`PlanMemoryResource`](crate::PlanMemoryResource).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PlanStatistics {
    /// The number of requests that got a slot of the plan.
    pub served: u64,
    /// The number of requests that got no slot while the plan was in use. Upstream or an unused part of the
    /// plan's memory served them.
    pub missed: u64,
    /// How many of the [`missed`](Self::missed) requests got an unused part of the plan's memory.
    pub served_beside: u64,
    /// The number of allocations in the plan; 0 if the plan was dropped, or if the device had too little
    /// memory for it.
    pub plan_allocations: u64,
    /// The bytes that the plan needs; 0 if there is no plan.
    pub plan_bytes: u64,
    /// The bytes that the layer has allocated from upstream for the plan.
    pub held_bytes: u64,
    /// Whether the layer dropped the plan, because the program did not follow it or because there was too
    /// little memory. Upstream then serves all requests.
    pub is_dropped: bool,
}

/// While a dropped plan has memory, one in this many calls asks the driver. A query of an event takes about
/// 520 ns on an H200, so this costs 33 ns per call for each stream.
const CALLS_BETWEEN_QUERIES: u32 = 16;

/// A dropped plan, which is reported after the lock is released.
#[derive(Debug)]
pub(crate) struct Dropped {
    pub(crate) why: &'static str,
    /// The hash of the log that the plan was made from.
    pub(crate) log: String,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// The plan; `None` after it was dropped and its memory was returned.
    pub(crate) plan: Option<Following>,
    pub(crate) marks: Marks,
    pub(crate) counts: PlanStatistics,
    /// Lanes that return to upstream on these streams, after the lock is released.
    leaving: Vec<(DevicePtr, u64, StreamRef)>,
    dropped: Option<Dropped>,
    /// The number of calls until the driver is asked about a dropped plan again.
    calls_to_query: u32,
    /// Whether upstream should release unused memory.
    pub(crate) is_excess_due: bool,
}

impl State {
    /// Makes the state before the first request.
    pub(crate) fn new(plan: Option<Following>) -> Self {
        Self { plan, ..Self::default() }
    }

    /// Returns the plan, unless it was dropped.
    pub(crate) fn followed(&mut self) -> Option<&mut Following> {
        self.plan.as_mut().filter(|_| !self.counts.is_dropped)
    }

    /// Returns the counts so far.
    pub(crate) fn statistics(&self) -> PlanStatistics {
        let mut counts = self.counts;
        counts.held_bytes = self.held().0;
        if let Some(plan) = self.plan.as_ref().filter(|_| !counts.is_dropped) {
            (counts.plan_allocations, counts.plan_bytes) = (u64::from(plan.slots.length()), plan.bytes);
        }
        counts
    }

    /// Returns whether a wait may free lanes without blocks, or bytes that other streams freed.
    pub(crate) fn has_waits(&self) -> bool {
        self.held().1 > 0 || self.plan.iter().flat_map(|plan| &plan.lanes).any(|lane| lane.has_waits())
    }

    /// Removes all lanes and all events, at the end of the layer.
    pub(crate) fn take_everything(&mut self) -> (Vec<(DevicePtr, u64)>, Vec<Event>) {
        self.end_waits(|_| true);
        let Self { plan, marks, .. } = self;
        let lanes = plan.take().into_iter().flat_map(|plan| plan.lanes);
        let lanes = lanes.filter_map(|mut lane| Some((lane.take_base(marks)?, lane.bytes))).collect();
        (lanes, marks.take_spare())
    }

    /// Ends the use of the plan. The plan's memory returns to upstream when it is free.
    pub(crate) fn drop_plan(&mut self, why: &'static str) {
        let Some(log) = self.followed().map(|plan| plan.log.clone()) else { return };
        self.counts.is_dropped = true;
        self.dropped = Some(Dropped { why, log });
        (self.calls_to_query, self.is_excess_due) = (0, false);
        self.forget_empty();
    }

    /// Removes a dropped plan that has no memory.
    fn forget_empty(&mut self) {
        if self.counts.is_dropped && self.held().0 == 0 {
            self.plan = None;
        }
    }

    /// Returns the bytes that the plan has allocated from upstream, and how many of these bytes are in lanes
    /// without blocks.
    pub(crate) fn held(&self) -> (u64, u64) {
        self.plan.as_ref().map_or((0, 0), Following::held)
    }

    /// Returns whether memory of a dropped plan still has to return to upstream.
    pub(crate) fn is_draining(&self) -> bool {
        self.counts.is_dropped && self.plan.is_some()
    }

    /// Returns whether this call should ask the driver which memory of a dropped plan can return to upstream.
    #[inline]
    pub(crate) fn is_query_due(&mut self) -> bool {
        if !self.is_draining() {
            return false;
        }
        let is_due = self.calls_to_query == 0;
        self.calls_to_query = if is_due { CALLS_BETWEEN_QUERIES } else { self.calls_to_query - 1 };
        is_due
    }

    /// Removes a lane without blocks from the plan. The caller's stream is `stream`. The lane returns to
    /// upstream after the lock is released. Returns the bytes of the lane.
    pub(crate) fn release(&mut self, lane: usize, stream: StreamRef) -> Option<u64> {
        let plan = self.plan.as_mut()?;
        let base = plan.take_idle(lane, stream.id(), &mut self.marks)?;
        let bytes = plan.lanes[lane].bytes;
        self.leaving.push((base, bytes, stream));
        Some(bytes)
    }

    /// Removes lanes in the same way until `most` bytes are removed. Returns the bytes of these lanes.
    pub(crate) fn release_all(&mut self, stream: StreamRef, most: u64) -> u64 {
        let mut released = 0;
        for lane in 0..self.plan.as_ref().map_or(0, |plan| plan.lanes.len()) {
            if released < most {
                released += self.release(lane, stream).unwrap_or(0);
            }
        }
        self.forget_empty();
        released
    }

    /// Removes all lanes of a dropped plan in the same way.
    pub(crate) fn release_dropped(&mut self, stream: StreamRef) {
        if self.is_draining() {
            self.release_all(stream, u64::MAX);
        }
    }

    /// Returns the questions about blocks of the stream's lane that were freed on other streams.
    pub(crate) fn ask_foreign(&mut self, stream: StreamId) -> Vec<Question> {
        let Self { plan, marks, .. } = self;
        plan.as_ref().map_or_else(Vec::new, |plan| plan.ask_foreign(stream, marks))
    }

    /// Returns the questions about work that lanes without blocks wait for.
    pub(crate) fn ask_idle(&mut self) -> Vec<Question> {
        let Self { plan, marks, .. } = self;
        plan.as_mut().map_or_else(Vec::new, |plan| plan.ask_idle(marks))
    }

    /// Returns the question about one mark.
    pub(crate) fn ask_one(&mut self, number: u64) -> Option<Question> {
        let mark = self.plan.as_mut()?.find_mark(number)?;
        Some(self.marks.ask(mark))
    }

    /// Stores the driver's answers.
    pub(crate) fn note_answers(&mut self, questions: Vec<Question>) {
        let mut done = Vec::new();
        for question in questions {
            let number = question.number();
            let mark = self.plan.as_mut().and_then(|plan| plan.find_mark(number));
            if self.marks.answer(question, mark) {
                done.push(number);
            }
        }
        if !done.is_empty() {
            done.sort_unstable();
            self.end_waits(|number| done.binary_search(&number).is_ok());
        }
    }

    /// Marks the work of lanes without blocks, for a caller that then waits for the device. Returns the
    /// number of the last mark.
    pub(crate) fn mark_idle(&mut self) -> u64 {
        self.plan.iter_mut().for_each(|plan| plan.mark_idle(&mut self.marks));
        self.marks.last()
    }

    /// Ends the waits for work whose marks `is_done` accepts.
    pub(crate) fn end_waits(&mut self, is_done: impl Fn(u64) -> bool) {
        self.plan.iter_mut().for_each(|plan| plan.end_waits(&mut self.marks, &is_done));
    }

    /// Removes the lanes that return to upstream, and the plan to report.
    pub(crate) fn take_left(&mut self) -> (Vec<(DevicePtr, u64, StreamRef)>, Option<Dropped>) {
        (std::mem::take(&mut self.leaving), self.dropped.take())
    }

    /// Returns whether work remains to be done after the lock is released.
    #[inline]
    pub(crate) fn has_left(&self) -> bool {
        !self.leaving.is_empty() || self.dropped.is_some()
    }
}
