//! Finds the part of a program that repeats, plans it, and drops plans.

use std::time::Instant;

use millpond_core::{DeviceMemoryResource, DevicePtr, StreamRef};
use millpond_planning::Options;

use crate::plan::PlanMemoryResource;
use crate::plan::body::Body;
use crate::plan::history::{MOST_EVENTS, Step};
use crate::plan::running::Running;
use crate::plan::state::State;

/// The plans that may be dropped before the layer gives up. Each one asks for a repetition twice as long.
const MOST_DROPPED: u32 = 12;

/// A part that repeats and has no plan has to repeat over this many times as many allocations.
const UNPLANNED_FACTOR: usize = 8;

/// The rounds of search for one plan, which are always the same where they need less than the time.
const ROUNDS: u32 = 8;

impl<R: DeviceMemoryResource> PlanMemoryResource<R> {
    /// Notes an allocation that upstream served, and searches for what repeats when it is time.
    pub(crate) fn watch(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        self.locked(|state| {
            if state.is_learning() {
                state.history.allocated(ptr, bytes, stream.id());
                if state.history.len() >= state.search_at.min(MOST_EVENTS) {
                    self.search(state);
                }
            }
        });
    }

    /// Ends a plan: the program is watched again from now on, or not any more.
    pub(crate) fn drop_plan(&self, state: &mut State, why: &str) {
        let Some(running) = state.running.as_mut().filter(|running| !running.is_retired) else { return };
        running.is_retired = true;
        state.counts.dropped += 1;
        state.least_span *= 2;
        tracing::info!(target: "millpond::plan", stack = %self, why, "dropped a plan");
        state.learn_anew();
        if state.counts.dropped >= u64::from(MOST_DROPPED) {
            self.give_up(state, "too many plans were dropped");
        }
    }

    pub(crate) fn give_up(&self, state: &mut State, why: &str) {
        state.history.clear();
        state.has_given_up = true;
        tracing::warn!(
            target: "millpond::plan", stack = %self, why, "the program does not repeat; upstream serves it"
        );
    }

    /// Searches the history for what repeats, and plans it.
    fn search(&self, state: &mut State) {
        let length = state.history.len();
        state.search_at = length + length / 4;
        if state.running.is_some() {
            // The memory of the last plan goes back first.
            self.release_idle(state);
        }
        if state.running.is_none()
            && let Some(steps) = state.history.body(state.least_span)
        {
            return self.plan(state, steps);
        }
        if length >= MOST_EVENTS {
            self.give_up(state, "no part repeats");
            self.note_end(state);
        }
    }

    fn plan(&self, state: &mut State, steps: Vec<Step>) {
        let started = Instant::now();
        let options = Options { time: self.options.time, rounds: ROUNDS, seed: 0, threads: 1 };
        let known = self.upstream.statistics().map(|known| known.peak_bytes_reserved);
        let limit = known.filter(|bytes| *bytes > 0);
        match Body::plan(steps, limit, &options) {
            Ok(body) => {
                let (allocations, bytes) = (body.slots.len(), body.bytes());
                let duration = started.elapsed();
                tracing::info!(
                    target: "millpond::plan", stack = %self, allocations, bytes, ?duration, "made a plan"
                );
                state.counts.plans += 1;
                state.running = Some(Running::new(state.counts.plans, body, limit));
                state.history.clear();
            }
            Err(why) => {
                tracing::info!(target: "millpond::plan", stack = %self, ?why, "made no plan");
                // The same part is not worth another look soon.
                state.least_span *= UNPLANNED_FACTOR;
                state.learn_anew();
            }
        }
    }
}
