//! What the layer's lock guards, and the memory that goes back to upstream after it is released.

use std::thread::JoinHandle;

use millpond_core::driver::Event;
use millpond_core::{DevicePtr, StreamId, StreamRef};

use crate::plan::draft::Planned;
use crate::plan::history::{FIRST_EVENTS, History, MOST_EVENTS};
use crate::plan::lane::Lane;
use crate::plan::marks::{Marks, Question};
use crate::plan::notes::Note;
use crate::plan::running::Running;

/// Counts of a [`PlanMemoryResource`](crate::PlanMemoryResource).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PlanStatistics {
    /// The requests that got a slot of the plan.
    pub served: u64,
    /// The requests that got no slot while a plan was in use: upstream served them, or a gap of the plan.
    pub missed: u64,
    /// Those of them that a gap of the plan's memory served.
    pub served_beside: u64,
    /// The plans that were made.
    pub plans: u64,
    /// How often a plan was set aside, because the program did not follow it.
    pub left: u64,
    /// The plans that were dropped: the program did not follow one from a file, or memory was short.
    pub dropped: u64,
    /// The allocations of the present plan's body; 0 without a plan.
    pub body_allocations: u64,
    /// The bytes that the present plan needs; 0 without a plan.
    pub plan_bytes: u64,
    /// The bytes that the layer holds from upstream for plans.
    pub held_bytes: u64,
    /// Whether the layer gave up: upstream serves all requests.
    pub has_given_up: bool,
}

/// The calls from one question to the driver to the next, while a dropped plan has memory. A query of an
/// event takes about 520 ns on an H200, so this is 33 ns a call for each stream.
const CALLS_BETWEEN_QUERIES: u32 = 16;

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) history: History,
    /// How often the program had come back to the plan when the history began.
    watched_since: u64,
    /// The requests that were watched, and those before the last plan was made.
    watched: usize,
    watched_before: usize,
    /// Those among which the last part that repeats was found.
    pub(crate) watched_for_it: usize,
    pub(crate) running: Option<Running>,
    /// Dropped plans that still have memory.
    pub(crate) draining: Vec<Running>,
    pub(crate) marks: Marks,
    /// Whether a thread plans what the history had.
    pub(crate) is_planning: bool,
    /// The requests since it was found what repeats.
    pub(crate) since_found: u64,
    /// That thread, if it does nothing else.
    pub(crate) planner: Option<JoinHandle<Planned>>,
    /// The allocations over which a part has to repeat.
    pub(crate) least_span: usize,
    /// Whether streams may share memory: not after they were too far apart for that.
    pub(crate) may_share: bool,
    /// The plans that were dropped since one was worth its cost.
    pub(crate) strikes: u32,
    /// Whether the program is left alone for a while, as nothing repeated; and whether it was before.
    pub(crate) is_resting: bool,
    pub(crate) has_rested: bool,
    pub(crate) has_given_up: bool,
    pub(crate) counts: PlanStatistics,
    /// Lanes that go back to upstream on these streams once the lock is released.
    leaving: Vec<(DevicePtr, u64, StreamRef)>,
    /// The notes to report then.
    notes: Vec<Note>,
    /// The calls until the driver is asked about dropped plans.
    calls_to_query: u32,
    /// Whether upstream should give back what it does not use.
    pub(crate) is_excess_due: bool,
}

impl State {
    pub(crate) fn new(least_span: usize) -> Self {
        Self {
            history: History::default(),
            running: None,
            draining: Vec::new(),
            marks: Marks::default(),
            is_planning: false,
            since_found: 0,
            watched_since: 0,
            watched: 0,
            watched_before: 0,
            watched_for_it: 0,
            planner: None,
            least_span,
            may_share: true,
            strikes: 0,
            is_resting: false,
            has_rested: false,
            has_given_up: false,
            counts: PlanStatistics::default(),
            leaving: Vec::new(),
            notes: Vec::new(),
            calls_to_query: 0,
            is_excess_due: false,
        }
    }

    /// Whether the program is watched: it has no plan, is elsewhere than in the plan, or the plan is new.
    #[inline]
    pub(crate) fn is_learning(&self) -> bool {
        let is_watched = self.running.as_ref().is_none_or(Running::is_watched);
        is_watched && !self.has_given_up && !self.is_planning && !self.is_resting
    }

    /// The most allocations that are watched before the layer ends its search for what repeats. The first
    /// search is short, unless there is a plan, to which the program may come back.
    pub(crate) fn most_events(&self) -> usize {
        let is_first = !self.has_rested && self.running.is_none();
        if is_first && self.least_span <= FIRST_EVENTS / 4 { FIRST_EVENTS } else { MOST_EVENTS }
    }

    /// Leaves the program alone for a while. What was watched before says nothing about what comes then.
    pub(crate) fn begin_rest(&mut self) {
        (self.is_resting, self.has_rested, self.watched) = (true, true, 0);
    }

    /// Watches a request.
    pub(crate) fn watch(&mut self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        self.since_found += u64::from(self.is_planning);
        if !self.is_learning() {
            return;
        }
        self.watched += 1;
        if let Some(running) = &mut self.running {
            if running.settle(self.watched_before) {
                return self.history.clear();
            }
            if running.is_settled && running.times_found != self.watched_since {
                // What was watched ended where the plan served the program.
                self.history.clear();
                self.watched_since = running.times_found;
            }
        }
        self.history.allocated(ptr, bytes, stream.id());
    }

    /// A plan was made.
    pub(crate) fn note_planned(&mut self) {
        self.is_planning = false;
        self.counts.plans += 1;
        self.watched_before = self.watched;
    }

    /// Forgets dropped plans, since the plan in use was worth its cost.
    pub(crate) fn forgive(&mut self, least_span: usize) {
        (self.strikes, self.may_share, self.has_rested) = (0, true, false);
        self.least_span = least_span;
    }

    /// Counts a request that a gap served, and watches its block.
    pub(crate) fn note_beside(&mut self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        self.counts.served_beside += 1;
        self.watch(ptr, bytes, stream);
    }

    /// Whether lanes without blocks, or bytes of others, may become free by a wait.
    pub(crate) fn has_waits(&self) -> bool {
        self.plans().any(|plan| plan.bytes().1 > 0 || plan.lanes.iter().any(Lane::has_waits))
    }

    /// Takes all lanes and all events, at the end.
    pub(crate) fn take_everything(&mut self) -> (Vec<(DevicePtr, u64)>, Vec<Event>) {
        let Self { running, draining, marks, .. } = self;
        let mut lanes = Vec::new();
        for mut plan in running.take().into_iter().chain(draining.drain(..)) {
            plan.end_waits(marks, |_| true);
            lanes.extend(plan.lanes.iter_mut().filter_map(|lane| lane.take_base(marks)));
        }
        (lanes, marks.take_spare())
    }

    /// Ends the plan in use. Its memory goes back when that is free.
    pub(crate) fn retire(&mut self) {
        if let Some(mut plan) = self.running.take() {
            plan.forget_untaken(&mut self.marks);
            self.draining.extend(Some(plan).filter(|plan| plan.bytes().0 > 0));
        }
        (self.calls_to_query, self.is_excess_due) = (0, false);
    }

    /// The plan in use, and dropped plans.
    pub(crate) fn plans(&self) -> impl Iterator<Item = &Running> {
        self.running.iter().chain(&self.draining)
    }

    /// Returns the bytes that all plans have taken from upstream, and those of them in lanes without blocks.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let bytes = self.plans().map(Running::bytes);
        bytes.fold((0, 0), |(all, idle), plan| (all + plan.0, idle + plan.1))
    }

    /// Whether memory of plans that do not serve the program has yet to go back.
    pub(crate) fn is_draining(&self) -> bool {
        !self.draining.is_empty() || self.running.as_ref().is_some_and(Running::is_draining)
    }

    /// Whether this call should ask the driver which of that memory may go back.
    #[inline]
    pub(crate) fn is_query_due(&mut self) -> bool {
        if !self.is_draining() {
            return false;
        }
        let is_due = self.calls_to_query == 0;
        self.calls_to_query = if is_due { CALLS_BETWEEN_QUERIES } else { self.calls_to_query - 1 };
        is_due
    }

    /// Takes a lane without blocks out of the plan in use, for a caller whose stream is `stream`. It goes
    /// back once the lock is released. Returns its bytes.
    pub(crate) fn release(&mut self, lane: usize, stream: StreamRef) -> Option<u64> {
        let (base, bytes) = self.running.as_mut()?.take_idle(lane, stream.id(), &mut self.marks)?;
        self.leaving.push((base, bytes, stream));
        Some(bytes)
    }

    /// Does the same with lanes of dropped plans, with those that the plan in use does not need, and with all
    /// of its lanes if `with_running`, until `most` bytes are released. Returns their bytes.
    pub(crate) fn release_all(&mut self, stream: StreamRef, with_running: bool, most: u64) -> u64 {
        let Self { running, draining, marks, leaving, .. } = self;
        let of_draining = draining.iter_mut().map(|plan| (true, plan));
        let mut released = 0;
        for (all, plan) in of_draining.chain(running.iter_mut().map(|plan| (with_running, plan))) {
            for lane in 0..plan.lanes.len() {
                if released < most
                    && (all || plan.is_unneeded(lane))
                    && let Some((base, bytes)) = plan.take_idle(lane, stream.id(), marks)
                {
                    released += bytes;
                    leaving.push((base, bytes, stream));
                }
            }
        }
        draining.iter_mut().for_each(|plan| plan.forget_untaken(marks));
        draining.retain(|plan| plan.bytes().0 > 0);
        released
    }

    /// The questions about the blocks of the stream's lane that were freed on other streams.
    pub(crate) fn ask_foreign(&mut self, stream: StreamId) -> Vec<Question> {
        let mut questions = Vec::new();
        for plan in self.running.iter_mut().chain(&mut self.draining) {
            plan.ask_foreign(stream, &mut self.marks, &mut questions);
        }
        questions
    }

    /// The questions about the work that lanes without blocks wait for: those of plans that were dropped or
    /// set aside, and with `with_running` also those of the plan in use.
    pub(crate) fn ask_idle(&mut self, with_running: bool) -> Vec<Question> {
        let mut questions = Vec::new();
        let running = self.running.iter_mut().filter(|plan| with_running || plan.is_draining());
        for plan in self.draining.iter_mut().chain(running) {
            plan.ask_idle(&mut self.marks, &mut questions);
        }
        questions
    }

    /// The question about one mark.
    pub(crate) fn ask_one(&mut self, number: u64) -> Option<Question> {
        let mark =
            self.running.iter_mut().chain(&mut self.draining).find_map(|plan| plan.find_mark(number))?;
        Some(self.marks.ask(mark))
    }

    /// Notes the driver's answers.
    pub(crate) fn note_answers(&mut self, questions: Vec<Question>) {
        let mut done = Vec::new();
        for question in questions {
            let number = question.number();
            let mut plans = self.running.iter_mut().chain(&mut self.draining);
            let mark = plans.find_map(|plan| plan.find_mark(number));
            if self.marks.answer(question, mark) {
                done.push(number);
            }
        }
        if !done.is_empty() {
            done.sort_unstable();
            self.end_waits(|number| done.binary_search(&number).is_ok());
        }
    }

    /// Marks the work of lanes without blocks, for a caller who then waits for the device. Returns the number
    /// of the last mark.
    pub(crate) fn mark_idle(&mut self) -> u64 {
        for plan in self.running.iter_mut().chain(&mut self.draining) {
            plan.mark_idle(&mut self.marks);
        }
        self.marks.last()
    }

    /// Ends the waits for all work whose marks `is_done` names.
    pub(crate) fn end_waits(&mut self, is_done: impl Fn(u64) -> bool) {
        for plan in self.running.iter_mut().chain(&mut self.draining) {
            plan.end_waits(&mut self.marks, &is_done);
        }
    }

    /// Has something reported once the lock is released.
    pub(crate) fn note(&mut self, note: Note) {
        self.notes.push(note);
    }

    /// Takes the lanes that go back, and the notes to report.
    pub(crate) fn take_left(&mut self) -> (Vec<(DevicePtr, u64, StreamRef)>, Vec<Note>) {
        (std::mem::take(&mut self.leaving), std::mem::take(&mut self.notes))
    }

    /// Whether something is left to do once the lock is released.
    #[inline]
    pub(crate) fn has_left(&self) -> bool {
        !self.leaving.is_empty() || !self.notes.is_empty()
    }
}
