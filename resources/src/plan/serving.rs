//! Serves requests and frees of a program that has a plan.

use millpond_core::misuse::MisuseKind;
use millpond_core::{DeviceMemoryResource, DevicePtr, Layout, StreamRef};

use crate::plan::PlanMemoryResource;
use crate::plan::running::Verdict;
use crate::plan::state::State;

/// What becomes of a request.
enum Answer {
    Block(DevicePtr),
    /// Its lane has to be taken from upstream first.
    Take(Taking),
    Upstream,
}

/// A lane that a request takes from upstream, while the lock is free.
struct Taking {
    plan: u64,
    lane: usize,
    slot: u32,
    bytes: u64,
}

impl<R: DeviceMemoryResource> PlanMemoryResource<R> {
    /// Serves a request from the plan; `None` if upstream serves it.
    pub(crate) fn serve_planned(&self, layout: Layout, bytes: u64, stream: StreamRef) -> Option<DevicePtr> {
        match self.locked(|state| self.answer(state, layout, bytes, stream)) {
            Answer::Block(ptr) => Some(ptr),
            Answer::Take(taking) => self.take(&taking, layout, bytes, stream),
            Answer::Upstream => None,
        }
    }

    /// Says how a request is served.
    fn answer(&self, state: &mut State, layout: Layout, bytes: u64, stream: StreamRef) -> Answer {
        let Some(running) = state.running.as_mut() else { return Answer::Upstream };
        if running.is_retired {
            let beside = self.serve_beside(state, None, layout, bytes, stream);
            self.release_retired(state, stream);
            return beside.map_or(Answer::Upstream, Answer::Block);
        }
        let at = running.locate(bytes, stream.id());
        let lane = at.and_then(|at| running.lane_of(at)).filter(|_| running.is_begun());
        if let Some((slot, lane)) = at.zip(lane)
            && running.lanes[lane].base.is_none()
            && !running.lanes[lane].is_awaited
        {
            let missing = running.body.bytes() - running.bytes().0;
            if self.would_exceed(running.limit_bytes, missing) {
                // The next body tries again.
                running.postpone();
            } else {
                running.lanes[lane].is_awaited = true;
                let (plan, bytes) = (running.number, running.body.lanes[lane].bytes);
                return Answer::Take(Taking { plan, lane, slot, bytes });
            }
        }
        self.serve(state, at, layout, bytes, stream).map_or(Answer::Upstream, Answer::Block)
    }

    /// Takes a lane from upstream, and serves the request from it; `None` if upstream serves the request.
    fn take(&self, taking: &Taking, layout: Layout, bytes: u64, stream: StreamRef) -> Option<DevicePtr> {
        let lane = Layout::new(taking.bytes);
        let taken = self.upstream.allocate(lane, stream);
        let (served, unused) = self.locked(|state| {
            let running = state.running.as_mut().filter(|running| running.number == taking.plan);
            let Some(running) = running else { return (None, taken.ok()) };
            running.lanes[taking.lane].is_awaited = false;
            match taken {
                Ok(base) if !running.is_retired => running.lanes[taking.lane].base = Some(base),
                Ok(base) => return (None, Some(base)),
                Err(_) => {
                    self.drop_plan(state, "there is no memory for it");
                    return (None, None);
                }
            }
            (self.serve(state, Some(taking.slot), layout, bytes, stream), None)
        });
        if let Some(base) = unused {
            // SAFETY: the block came from upstream with this layout, and nothing used it.
            unsafe { self.upstream.deallocate(base, lane, stream) };
        }
        served
    }

    /// Serves a request, which the plan knows as the slot `at`, from the slot or beside it; `None` if
    /// upstream serves it.
    fn serve(
        &self,
        state: &mut State,
        at: Option<u32>,
        layout: Layout,
        bytes: u64,
        stream: StreamRef,
    ) -> Option<DevicePtr> {
        let running = state.running.as_mut()?;
        let is_planned = at.is_some_and(|at| running.lane_of(at).is_some());
        let served = at.filter(|_| is_planned && running.is_begun());
        let served = served.and_then(|at| running.claim(at, layout.bytes()));
        // Requests that the plan leaves to upstream are no misses.
        let is_miss = at.is_none() || is_planned && running.is_due() && served.is_none();
        if running.judge(is_miss) == Verdict::Dropped {
            self.drop_plan(state, "the program does not follow it");
        }
        if served.is_some() {
            state.counts.served += 1;
            return served;
        }
        state.counts.missed += 1;
        self.serve_beside(state, at, layout, bytes, stream)
    }

    /// Whether upstream would have more bytes in use than it held before the plan, as far as it counts them.
    fn would_exceed(&self, limit_bytes: Option<u64>, more: u64) -> bool {
        let Some((limit, known)) = limit_bytes.zip(self.upstream.statistics()) else { return false };
        known.bytes_in_use.saturating_add(more) > limit
    }

    /// Serves a request without a slot from the lane of its stream, if upstream would have to grow for it.
    /// A lane without blocks goes back instead, and upstream serves the request; so it does when the program
    /// left the plan.
    fn serve_beside(
        &self,
        state: &mut State,
        at: Option<u32>,
        layout: Layout,
        bytes: u64,
        stream: StreamRef,
    ) -> Option<DevicePtr> {
        let running = state.running.as_mut()?;
        let is_wanted = running.is_lost() || self.would_exceed(running.limit_bytes, bytes);
        if running.bytes().0 == 0 || !is_wanted {
            return None;
        }
        let Some(lane) = running.lane_for(stream.id()) else {
            if self.would_exceed(running.limit_bytes, bytes) && running.is_crowding(bytes) {
                self.drop_plan(state, "other streams need its memory");
                self.release_idle(state);
            }
            return None;
        };
        if running.is_retired && running.is_crowding(0) {
            // Nothing new keeps the lane from going back.
            return None;
        }
        let is_exceeded = self.would_exceed(running.limit_bytes, bytes);
        if state.release(lane, stream, false).is_some() || !is_exceeded {
            return None;
        }
        let ptr = state.running.as_mut()?.claim_gap(lane, at, layout.bytes(), bytes)?;
        state.counts.served_beside += 1;
        if state.is_learning() {
            state.history.allocated(ptr, bytes, stream.id());
        }
        Some(ptr)
    }

    /// Takes a block of a lane back; `None` if it is upstream's.
    pub(crate) fn free(
        &self,
        state: &mut State,
        ptr: DevicePtr,
        layout: Layout,
        stream: StreamRef,
    ) -> Option<Result<(), MisuseKind>> {
        let lane = state.running.as_mut().and_then(|running| Some((running.lane_at(ptr)?, running)));
        let freed = lane.map(|(lane, running)| {
            let freed = running.free(lane, ptr, layout.bytes(), stream.id());
            (freed, running.is_retired)
        });
        if state.is_learning() && freed.is_none_or(|(freed, _)| freed.is_ok()) {
            state.history.freed(ptr, stream.id());
        }
        let (freed, is_retired) = freed?;
        if is_retired && !self.driver().health().is_lost() {
            self.release_retired(state, stream);
        }
        Some(freed)
    }
}
