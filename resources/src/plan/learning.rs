//! Finds the part of a program that repeats, plans it, and drops plans.

use std::thread::{self, JoinHandle};
use std::time::Instant;

use millpond_core::{DeviceMemoryResource, DevicePtr, StreamRef};
use millpond_planning::Options;

use crate::plan::PlanMemoryResource;
use crate::plan::draft::{Allowed, Planned, plan_body};
use crate::plan::history::Step;
use crate::plan::notes::Note;
use crate::plan::running::Running;
#[cfg(test)]
use crate::plan::sharing::SHARING;
use crate::plan::state::State;
use crate::sync::Ordering;

/// The plans that may be dropped before the layer gives up, unless one of them served well for long. Each one
/// asks for a repetition twice as long.
const MOST_DROPPED: u32 = 12;

/// A body is served at once if it has this part of the requests in which it was found. One that is found when
/// it has repeated has a half of them, and less if other work came before.
const TRUSTED_SHARE: usize = 4;

/// A part that repeats and has no plan has to repeat over this many times as many allocations.
const UNPLANNED_FACTOR: usize = 8;

/// The requests for which the layer leaves a program alone in which nothing repeated: four times as many as
/// it watched before.
pub(crate) const REST_REQUESTS: u32 = 1 << 20;

/// The stack of the thread that plans. The exact search nests once for each block, of which it takes up to
/// 1500; the planner gives its own threads as much.
const STACK_BYTES: usize = 64 << 20;

/// The rounds of search for one plan, which are always the same where they need less than the time.
const ROUNDS: u32 = 8;

/// A part that repeats.
struct Found {
    steps: Vec<Step>,
    /// The most bytes that its blocks, and those before them, had in use.
    peak_bytes: u64,
    /// Whether there is a plan for other work.
    is_further: bool,
    /// Whether streams may share memory.
    may_share: bool,
}

impl<R: DeviceMemoryResource> PlanMemoryResource<R> {
    /// Notes an allocation that upstream served, and searches for what repeats when it is time.
    pub(crate) fn watch(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        let found = self.locked(|state| {
            if state.is_resting && self.ends_rest() {
                self.end_rest(state);
            }
            state.watch(ptr, bytes, stream);
            self.take_up_finished(state);
            if state.is_learning() { self.search(state) } else { None }
        });
        if let Some(found) = found.flatten() {
            self.plan(found);
        }
    }

    /// Ends a plan: the program is watched again from now on, or not any more.
    pub(crate) fn drop_plan(&self, state: &mut State, why: &'static str) {
        let Some(running) = &state.running else { return };
        let log = running.body.log().map(ToString::to_string);
        let is_learnt = log.is_none();
        state.note(Note::Dropped { why, log });
        state.retire();
        state.counts.dropped += 1;
        state.strikes += u32::from(!is_learnt);
        state.history.clear();
        self.note_wasted(state, is_learnt);
    }

    /// Sets aside a plan that the program does not follow any more, and drops one from a file. The program is
    /// watched from now on.
    pub(crate) fn leave_plan(&self, state: &mut State) {
        let Some(running) = state.running.as_mut().filter(|running| !running.is_aside()) else { return };
        if !running.may_grow() {
            return self.drop_plan(state, "the program does not follow it");
        }
        let is_wasted = !running.set_aside();
        state.counts.left += 1;
        state.note(Note::Left);
        self.note_wasted(state, is_wasted);
    }

    /// Counts a plan that was of no use.
    fn note_wasted(&self, state: &mut State, is_wasted: bool) {
        state.strikes += u32::from(is_wasted);
        state.least_span <<= u32::from(is_wasted);
        if state.strikes >= MOST_DROPPED {
            state.retire();
            self.give_up(state, "too many plans were dropped");
            self.note_end(state);
        }
    }

    pub(crate) fn give_up(&self, state: &mut State, why: &'static str) {
        state.history.clear();
        state.has_given_up = true;
        state.note(Note::GaveUp(why));
    }

    /// Notes that the layer gave up or rests, and holds nothing, once that is so.
    pub(crate) fn note_end(&self, state: &State) {
        if (state.has_given_up || state.is_resting) && state.plans().next().is_none() {
            self.is_bypassed.store(true, Ordering::Release);
        }
    }

    /// Searches the history for what repeats.
    fn search(&self, state: &mut State) -> Option<Found> {
        let least = state.running.as_ref().map_or(0, Running::least_span).max(state.least_span);
        let State { history, running, .. } = &mut *state;
        // A loop that is known may be inside a larger body.
        let is_new = |steps: &[Step]| !running.as_mut().is_some_and(|running| running.knows(steps));
        if let Some(steps) = history.body(least, is_new) {
            let peak_bytes = state.history.peak_bytes();
            state.watched_for_it = state.history.len();
            (state.is_planning, state.since_found) = (true, 0);
            state.history.clear();
            let is_further = state.running.is_some();
            let may_share = self.options.share;
            #[cfg(test)]
            let may_share = may_share || SHARING.get().is_some();
            let may_share = may_share && state.may_share && !is_further;
            return Some(Found { steps, peak_bytes, is_further, may_share });
        }
        if state.history.len() >= state.most_events() {
            return self.end_search(state);
        }
        None
    }

    /// Nothing new repeats. A plan that serves the program goes on without being watched.
    #[cold]
    fn end_search<T>(&self, state: &mut State) -> Option<T> {
        state.history.clear();
        match &mut state.running {
            Some(running) if !running.is_aside() => running.settle_now(),
            _ => {
                state.retire();
                if state.has_rested {
                    self.give_up(state, "no part repeats");
                } else {
                    self.rest(state);
                }
                self.note_end(state);
            }
        }
        None
    }

    /// Leaves the program alone for a while.
    pub(crate) fn rest(&self, state: &mut State) {
        state.begin_rest();
        self.rest.store(REST_REQUESTS, Ordering::Relaxed);
        state.note(Note::Rests);
    }

    /// Counts a request of a program that is left alone; returns whether it is watched again from now on.
    #[inline]
    pub(crate) fn ends_rest(&self) -> bool {
        let left = self.rest.load(Ordering::Relaxed);
        if left > 0 {
            // What threads that race do not count makes the rest longer.
            self.rest.store(left - 1, Ordering::Relaxed);
        }
        left == 1
    }

    /// Watches the program again.
    #[cold]
    pub(crate) fn wake(&self) -> bool {
        let is_awake = self.locked(|state| {
            self.end_rest(state);
            !state.has_given_up
        });
        is_awake == Some(true)
    }

    /// A lane may have gone back in another thread since the caller saw that the layer is not bypassed.
    pub(crate) fn end_rest(&self, state: &mut State) {
        state.is_resting = false;
        let is_over = state.has_given_up && state.plans().next().is_none();
        self.is_bypassed.store(is_over, Ordering::Release);
    }

    /// Plans what repeats, while the lock is free. The plan may take as much as upstream held before, or as
    /// the blocks took together, rounded up to 256: an upstream need not round. A further body may not take
    /// much more than its own blocks: what upstream held before was for other work.
    fn plan(&self, Found { steps, peak_bytes, is_further, may_share }: Found) {
        let options = Options { time: self.options.time, rounds: ROUNDS, seed: 0, threads: 1 };
        let known = self.upstream.statistics().map(|known| known.peak_bytes_reserved);
        #[cfg(test)]
        let known = if SHARING.get().is_some() { Some(1) } else { known };
        let limit = known.filter(|bytes| *bytes > 0).map(|bytes| bytes.max(peak_bytes));
        let allowed = Allowed { most: limit, is_further, may_share };
        let work = move || {
            let started = Instant::now();
            let body = plan_body(&steps, allowed, &options);
            Planned { body, limit, duration: started.elapsed() }
        };
        if !self.options.background {
            let planned = work();
            self.locked(|state| self.take_up(state, planned));
            return;
        }
        let planner = thread::Builder::new().name("millpond-plan".to_owned()).stack_size(STACK_BYTES);
        let planner = planner.spawn(work);
        self.locked(|state| match planner {
            Ok(planner) => state.planner = Some(planner),
            Err(error) => {
                // The next search tries it again: this says nothing about the program.
                state.is_planning = false;
                state.history.clear();
                state.note(Note::NoThread(error));
            }
        });
    }

    /// Takes up what the thread of its own has planned, if it is done.
    fn take_up_finished(&self, state: &mut State) {
        if !state.planner.as_ref().is_some_and(JoinHandle::is_finished) {
            return;
        }
        match state.planner.take().map(JoinHandle::join) {
            Some(Ok(planned)) => self.take_up(state, planned),
            Some(Err(_)) => self.note_unplanned(state, "the planner panicked".to_owned()),
            None => {}
        }
    }

    fn take_up(&self, state: &mut State, planned: Planned) {
        if state.has_given_up {
            state.is_planning = false;
            return;
        }
        let mut body = match planned.body {
            Ok(body) => body,
            Err(why) => return self.note_unplanned(state, format!("{why:?}")),
        };
        let (allocations, bytes, duration) = (body.slots.len(), body.bytes(), planned.duration);
        state.note_planned();
        let next = u64::from(body.next) + state.since_found;
        body.next = (next % u64::from(body.length())) as u32;
        body.is_trusted = body.slots.len() >= state.watched_for_it / TRUSTED_SHARE;
        match &mut state.running {
            Some(running) => {
                running.add(body, planned.limit);
            }
            None => {
                state.running = Some(Running::new(state.counts.plans, body, planned.limit));
            }
        }
        state.note(Note::Made { allocations, bytes, duration });
    }

    /// Notes that what repeats has no plan. The same part is not worth another look soon.
    fn note_unplanned(&self, state: &mut State, why: String) {
        state.is_planning = false;
        // What else the program does may have one.
        state.least_span *= if state.running.is_some() { 2 } else { UNPLANNED_FACTOR };
        state.history.clear();
        state.note(Note::NotMade(why));
    }
}
