//! Serves requests and frees of a program that has a plan.
//!
//! A request gets an [`Answer`] under the lock. If the answer names an action, the layer takes the action
//! without the lock. Then the request gets another answer.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use millpond_core::misuse::MisuseKind;
use millpond_core::{DeviceMemoryResource, DevicePtr, Layout, Result, StreamRef};

use crate::following::{Following, Verdict};
use crate::resource::PlanMemoryResource;
use crate::state::State;

/// The answer to a request.
#[derive(Clone, Copy)]
enum Answer {
    Block(DevicePtr),
    Upstream,
    /// The answer depends on how much memory upstream has in use.
    Know,
    /// The memory of the request's lane must be allocated from upstream.
    Take {
        lane: usize,
        bytes: u64,
    },
    /// Some bytes of the request's lane may be free, if the driver says that other streams have done their
    /// work.
    Ask,
}

/// How many bytes upstream has in use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InUse {
    NotAsked,
    /// `None` if upstream does not count them.
    Asked(Option<u64>),
}

/// A request. `bytes` are the layout's bytes, rounded up to 256.
#[derive(Clone, Copy)]
struct Request {
    layout: Layout,
    bytes: u64,
    stream: StreamRef,
    /// The request's position in the plan, if it has one.
    at: Option<u32>,
    in_use: InUse,
    /// Whether the answer may be [`Answer::Take`].
    may_take: bool,
    /// How often the answer may be [`Answer::Ask`]. Work that is done now may have been marked too early.
    asks: u32,
}

impl Request {
    /// Returns whether upstream would have more bytes in use than the plan's limit, as far as upstream counts
    /// its bytes. If there is a limit, upstream was asked before.
    fn would_exceed(&self, limit_bytes: Option<u64>, more: u64) -> bool {
        debug_assert!(limit_bytes.is_none() || self.in_use != InUse::NotAsked);
        let InUse::Asked(Some(in_use)) = self.in_use else { return false };
        limit_bytes.is_some_and(|limit| in_use.saturating_add(more) > limit)
    }

    /// Decides how to serve the request. The plan may have been dropped since the last answer.
    #[inline]
    fn answer(&self, state: &mut State) -> Answer {
        let answer = match state.followed() {
            Some(plan) => self.take(plan).unwrap_or_else(|| self.serve(state)),
            None => self.serve_dropped(state),
        };
        if let (Answer::Upstream, Some(plan)) = (answer, state.followed()) {
            plan.count_beside(self.bytes as i64);
        }
        answer
    }

    /// If the lane of the request has no memory, and upstream has room for all lanes without memory, answers
    /// that the lane must be allocated.
    #[inline]
    fn take(&self, plan: &mut Following) -> Option<Answer> {
        let lane = self.at.and_then(|at| plan.lane_of(at)).filter(|_| self.may_take && plan.is_begun())?;
        if plan.lanes[lane].base.is_some() || plan.lanes[lane].is_awaited {
            return None;
        }
        match self.in_use {
            InUse::NotAsked => return Some(Answer::Know),
            InUse::Asked(in_use) => in_use.into_iter().for_each(|in_use| plan.set_limit(in_use)),
        }
        if self.would_exceed(plan.limit_bytes, plan.missing()) {
            return None;
        }
        let taken = &mut plan.lanes[lane];
        taken.is_awaited = true;
        Some(Answer::Take { lane, bytes: taken.bytes })
    }

    /// Serves the request from its slot, or from other memory.
    #[inline]
    fn serve(&self, state: &mut State) -> Answer {
        let Some(plan) = state.followed() else { return Answer::Upstream };
        let planned = self.at.filter(|at| plan.lane_of(*at).is_some());
        let due = planned.filter(|_| plan.is_begun());
        let served = due.and_then(|at| plan.claim(at, self.layout.bytes()));
        if served.is_none() {
            let lane = planned.and_then(|_| plan.lane_for(self.stream.id()));
            if self.asks > 0 && lane.is_some_and(|lane| plan.lanes[lane].has_waits()) {
                return Answer::Ask;
            }
            if self.in_use == InUse::NotAsked {
                return Answer::Know;
            }
        }
        // Requests that the plan leaves to upstream do not count as misses.
        let is_miss = self.at.is_none() || due.is_some() && served.is_none();
        let verdict = plan.judge(is_miss, self.bytes);
        state.is_excess_due |= verdict == Verdict::Steady;
        match served {
            Some(ptr) => {
                state.counts.served += 1;
                Answer::Block(ptr)
            }
            None => self.serve_miss(state, verdict),
        }
    }

    #[cold]
    fn serve_miss(&self, state: &mut State, verdict: Verdict) -> Answer {
        if let (Some(plan), Some(at)) = (state.followed(), self.at) {
            plan.leave_out(at);
        }
        if verdict == Verdict::Left {
            leave_plan(state);
        }
        state.counts.missed += 1;
        self.serve_beside(state).map_or_else(|| self.serve_dropped(state), Answer::Block)
    }

    /// Serves a request without a slot from the lane of its stream, if upstream would have to grow for the
    /// request. If the lane has no blocks, it returns to upstream instead, and upstream serves the request.
    /// The lane also returns when the program has left the plan's position.
    fn serve_beside(&self, state: &mut State) -> Option<DevicePtr> {
        let plan = state.followed()?;
        let is_exceeded = self.would_exceed(plan.limit_bytes, self.bytes);
        if plan.held().0 == 0 || !(plan.is_lost() || is_exceeded) {
            return None;
        }
        let Some(lane) = plan.lane_for(self.stream.id()) else {
            if is_exceeded && plan.is_crowding(self.bytes) {
                leave_plan(state);
            }
            return None;
        };
        // If a lane only waits for other streams before it returns to upstream, no new block may delay this.
        let may_serve = is_exceeded && !(plan.is_lost() && plan.lanes[lane].is_idle());
        if state.release(lane, self.stream).is_some() || !may_serve {
            return None;
        }
        let ptr = state.followed()?.claim_gap(lane, self.at, self.layout.bytes(), self.bytes)?;
        state.counts.served_beside += 1;
        Some(ptr)
    }

    /// Returns the lanes of a dropped plan to upstream if all their blocks were freed on the caller's stream.
    /// If upstream would have to grow for the request, serves the request from the lane of that stream.
    fn serve_dropped(&self, state: &mut State) -> Answer {
        state.release_dropped(self.stream);
        let Some(plan) = state.plan.as_mut() else { return Answer::Upstream };
        if !state.counts.is_dropped {
            return Answer::Upstream;
        }
        if self.in_use == InUse::NotAsked && plan.limit_bytes.is_some() {
            return Answer::Know;
        }
        // No new block may delay the return of a lane that other streams need.
        let lane = plan.lane_for(self.stream.id()).filter(|lane| !plan.lanes[*lane].is_idle());
        let may_serve = !plan.is_crowding(0) && self.would_exceed(plan.limit_bytes, self.bytes);
        let lane = lane.filter(|_| may_serve);
        match lane.and_then(|lane| plan.claim_gap(lane, None, self.layout.bytes(), self.bytes)) {
            Some(ptr) => {
                state.counts.served_beside += 1;
                Answer::Block(ptr)
            }
            None => Answer::Upstream,
        }
    }
}

/// Drops a plan that is not useful.
fn leave_plan(state: &mut State) {
    state.drop_plan("the program does not follow the plan");
}

impl<R: DeviceMemoryResource> PlanMemoryResource<R> {
    /// Serves a request from the plan; `None` if upstream has to serve it. `bytes` is the size of the layout,
    /// rounded up to 256.
    #[inline]
    pub(crate) fn serve_planned(&self, layout: Layout, bytes: u64, stream: StreamRef) -> Option<DevicePtr> {
        let (at, in_use) = (None, InUse::NotAsked);
        let mut request = Request { layout, bytes, stream, at, in_use, may_take: true, asks: 2 };
        let (mut answer, is_query_due, mut is_excess_due) = self.locked(|state| {
            request.at = state.followed().and_then(|plan| plan.locate(bytes, stream.id()));
            let answer = request.answer(state);
            (answer, state.is_query_due(), std::mem::take(&mut state.is_excess_due))
        })?;
        while !matches!(answer, Answer::Block(_) | Answer::Upstream) {
            self.act(answer, &mut request);
            answer = self.locked(|state| {
                let answer = request.answer(state);
                is_excess_due |= std::mem::take(&mut state.is_excess_due);
                answer
            })?;
        }
        if is_query_due {
            self.query_dropped(stream);
        }
        if is_excess_due {
            self.release_excess(stream);
        }
        match answer {
            Answer::Block(ptr) => Some(ptr),
            _ => None,
        }
    }

    /// Takes the action that an answer names, without the lock.
    #[cold]
    fn act(&self, answer: Answer, request: &mut Request) {
        match answer {
            Answer::Block(_) | Answer::Upstream => return,
            Answer::Know => {}
            Answer::Take { lane, bytes } => {
                (request.may_take, request.asks) = (false, 0);
                self.take_lane(lane, bytes, request.stream);
            }
            Answer::Ask => {
                (request.may_take, request.asks) = (false, request.asks - 1);
                self.ask_driver(request.stream, |state| state.ask_foreign(request.stream.id()));
            }
        }
        request.in_use = InUse::Asked(self.upstream.statistics().map(|known| known.bytes_in_use));
    }

    /// Allocates the memory of a lane from upstream. If upstream has no memory, drops the plan. If upstream
    /// panics, a later request allocates the memory.
    fn take_lane(&self, lane: usize, bytes: u64, stream: StreamRef) {
        let layout = Layout::new(bytes);
        let taken = catch_unwind(AssertUnwindSafe(|| self.upstream.allocate(layout, stream)));
        let unused = self.locked(|state| {
            let Some(plan) = state.followed() else { return taken.as_ref().ok()?.as_ref().ok().copied() };
            plan.lanes[lane].is_awaited = false;
            match &taken {
                Ok(Ok(base)) => plan.lanes[lane].put(*base, stream),
                Ok(Err(_)) => state.drop_plan("there is no memory for the plan"),
                Err(_panic) => {}
            }
            None
        });
        if let Err(panic) = taken {
            resume_unwind(panic);
        }
        if let Some(base) = unused.flatten() {
            // SAFETY: the block came from upstream with this layout, and nothing used it.
            unsafe { self.upstream.deallocate(base, layout, stream) };
        }
    }

    /// If upstream has no memory for a request, serves the request from a gap in the lane of its stream.
    pub(crate) fn serve_from_gap(&self, layout: Layout, stream: StreamRef) -> Option<DevicePtr> {
        let bytes = layout.rounded_bytes()?;
        self.locked(|state| {
            let plan = state.plan.as_mut()?;
            let lane = plan.lane_for(stream.id())?;
            let ptr = plan.claim_gap(lane, None, layout.bytes(), bytes)?;
            state.counts.served_beside += 1;
            Some(ptr)
        })?
    }

    /// Frees a block in a lane. Returns `None` if the block belongs to upstream. If the stream is not the
    /// lane's stream, returns the number of a mark. The bytes are free when the mark's work is done.
    #[inline]
    fn free_under_lock(
        &self,
        state: &mut State,
        ptr: DevicePtr,
        layout: Layout,
        stream: StreamRef,
    ) -> Option<Result<Option<u64>, MisuseKind>> {
        let State { plan, marks, .. } = state;
        let freed = plan.as_mut().and_then(|plan| {
            let place = plan.lane_at(ptr)?;
            Some(plan.free(place, layout.bytes(), stream, marks))
        });
        if freed.is_none() {
            let bytes = layout.rounded_bytes().unwrap_or(0) as i64;
            state.followed().into_iter().for_each(|plan| plan.count_beside(-bytes));
        } else if state.is_draining() && !self.driver().health().is_lost() {
            state.release_dropped(stream);
        }
        freed
    }

    /// Counts a block as in use again, because upstream refused to free it.
    #[cold]
    pub(crate) fn not_freed_beside(&self, layout: Layout) {
        let bytes = layout.rounded_bytes().unwrap_or(0) as i64;
        self.locked(|state| state.followed().into_iter().for_each(|plan| plan.count_beside(bytes)));
    }

    /// Frees a block in a lane. Returns `None` if the block belongs to upstream.
    #[inline]
    pub(crate) fn free_planned(
        &self,
        ptr: DevicePtr,
        layout: Layout,
        stream: StreamRef,
    ) -> Option<Result<(), MisuseKind>> {
        let freed = self.locked(|state| self.free_under_lock(state, ptr, layout, stream));
        // A forked child cannot know who owns the block, so it does not free the block.
        let Some(freed) = freed else { return Some(Ok(())) };
        Some(freed?.map(|number| {
            if let Some(number) = number {
                self.record_behind(number, stream);
            }
        }))
    }
}
