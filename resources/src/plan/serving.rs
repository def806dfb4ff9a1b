//! Serves requests and frees of a program that has a plan.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use millpond_core::misuse::MisuseKind;
use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Layout, Result, StreamRef};

use crate::plan::PlanMemoryResource;
use crate::plan::running::{Place, Running, Verdict};
use crate::plan::sharing::{Freed, Trust};
use crate::plan::state::State;

/// What a pool of pages may hold for a lane above what it held before, as it rounds to its handles. That is
/// 1 % of the smallest of the logs in docs/plan.md for which it matters.
const SPARE_BYTES: u64 = 32 << 20;

/// What becomes of a request.
enum Answer {
    Block(DevicePtr),
    /// Its lane has to be taken from upstream first.
    Take(Taking),
    /// Bytes of its lane may be free by now, if the driver says that other streams have done their work.
    Ask {
        place: Place,
        slot: Option<u32>,
    },
    /// Upstream serves it, and the driver is asked whether another stream has done its work.
    Try(Freed),
    /// It depends on how much upstream has in use, which is asked without the lock.
    Know {
        place: Option<Place>,
        slot: Option<u32>,
        may_ask: bool,
    },
    Upstream,
}

/// How many bytes upstream has in use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InUse {
    NotAsked,
    /// `None` if upstream does not count them.
    Asked(Option<u64>),
}

/// A lane that a request takes from upstream, while the lock is free.
struct Taking {
    place: Place,
    lane: usize,
    slot: u32,
    bytes: u64,
    limit_bytes: Option<u64>,
}

/// A request. `bytes` are those of the layout, rounded up to 256.
#[derive(Clone, Copy)]
struct Request {
    layout: Layout,
    bytes: u64,
    stream: StreamRef,
    in_use: InUse,
}

impl Request {
    /// Whether upstream would have more bytes in use than it held before the plan, as far as it counts them.
    /// Upstream was asked, if there is a limit.
    fn would_exceed(&self, limit_bytes: Option<u64>, more: u64) -> bool {
        debug_assert!(limit_bytes.is_none() || self.in_use != InUse::NotAsked);
        let InUse::Asked(Some(in_use)) = self.in_use else { return false };
        limit_bytes.is_some_and(|limit| in_use.saturating_add(more) > limit)
    }
}

impl<R: DeviceMemoryResource> PlanMemoryResource<R> {
    /// Serves a request from the plan; `None` if upstream serves it. `bytes` are those of the layout, rounded
    /// up to 256.
    #[inline]
    pub(crate) fn serve_planned(&self, layout: Layout, bytes: u64, stream: StreamRef) -> Option<DevicePtr> {
        let mut request = Request { layout, bytes, stream, in_use: InUse::NotAsked };
        let (mut answer, is_due, mut is_excess_due) = self.locked(|state| {
            let answer = self.answer(state, &request);
            self.note_answer(state, &answer, &request);
            (answer, state.is_query_due(), std::mem::take(&mut state.is_excess_due))
        })?;
        if let Answer::Know { place, slot, may_ask } = answer {
            request = self.knowing(&request);
            (answer, is_excess_due) = self.locked(|state| {
                let answer = self.answer_at(state, place, slot, &request, may_ask);
                self.note_answer(state, &answer, &request);
                (answer, std::mem::take(&mut state.is_excess_due) || is_excess_due)
            })?;
        }
        let served = match answer {
            Answer::Block(ptr) => Some(ptr),
            Answer::Take(taking) => self.take(&taking, &request),
            Answer::Ask { place, slot } => self.ask_and_serve(place, slot, &request),
            Answer::Try(freed) => self.ask_and_try(freed, stream),
            Answer::Upstream | Answer::Know { .. } => None,
        };
        if is_due {
            self.query_dropped(stream);
        }
        if is_excess_due {
            self.release_excess(stream);
        }
        served
    }

    /// Counts what serves a request.
    #[inline]
    fn note_answer(&self, state: &mut State, answer: &Answer, request: &Request) {
        // What upstream serves is counted when it is watched.
        if state.is_resting && matches!(answer, Answer::Block(_)) && self.ends_rest() {
            self.end_rest(state);
        }
        if let Some(running) = state.running.as_mut().filter(|_| matches!(answer, Answer::Upstream)) {
            running.count_beside(request.bytes as i64);
        }
    }

    /// The request, with what upstream has in use now.
    #[cold]
    fn knowing(&self, request: &Request) -> Request {
        let in_use = self.upstream.statistics().map(|known| known.bytes_in_use);
        Request { in_use: InUse::Asked(in_use), ..*request }
    }

    /// Says how a request is served that is at this place of the plan, after the lock was free. If another
    /// thread has made a request meanwhile, upstream serves this one.
    #[cold]
    fn answer_at(
        &self,
        state: &mut State,
        place: Option<Place>,
        slot: Option<u32>,
        request: &Request,
        may_ask: bool,
    ) -> Answer {
        if state.running.as_ref().map(Running::place) != place {
            return Answer::Upstream;
        }
        match (place, may_ask) {
            (None, _) => self.serve_draining(state, request),
            (Some(_), false) => self.serve(state, slot, request, false),
            (Some(_), true) => self.take_or_serve(state, slot, request),
        }
    }

    /// Says how a request is served.
    #[inline]
    fn answer(&self, state: &mut State, request: &Request) -> Answer {
        let Request { bytes, stream, .. } = *request;
        let Some(running) = state.running.as_mut() else { return self.serve_draining(state, request) };
        let at = running.locate(bytes, stream.id());
        if running.is_on_trial() && at.is_some() {
            match running.try_order(stream) {
                Trust::Ask(freed) => return Answer::Try(freed),
                Trust::Behind => self.end_sharing(state),
                Trust::KeepUp | Trust::Open => {}
            }
            return self.serve(state, at, request, false);
        }
        self.take_or_serve(state, at, request)
    }

    /// Serves a request without a plan in use.
    fn serve_draining(&self, state: &mut State, request: &Request) -> Answer {
        let has_limit = state.draining.iter().any(|plan| plan.limit_bytes.is_some());
        if has_limit && request.in_use == InUse::NotAsked {
            return Answer::Know { place: None, slot: None, may_ask: false };
        }
        self.serve_dropped(state, request).map_or(Answer::Upstream, Answer::Block)
    }

    /// Serves a request, which the plan knows as the slot `at`, after its lane was taken from upstream.
    #[inline]
    fn take_or_serve(&self, state: &mut State, at: Option<u32>, request: &Request) -> Answer {
        let Some(running) = state.running.as_mut() else { return Answer::Upstream };
        let lane = at.and_then(|at| running.lane_of(at)).filter(|_| running.is_begun());
        if let Some((slot, lane)) = at.zip(lane)
            && running.is_short(lane)
        {
            if request.in_use == InUse::NotAsked && running.may_have_limit() {
                return Answer::Know { place: Some(running.place()), slot: at, may_ask: true };
            }
            if let Some(taking) = self.taking(state, slot, lane, request) {
                return Answer::Take(taking);
            }
        }
        self.serve(state, at, request, true)
    }

    /// Says what a lane without enough memory is taken with; `None` if upstream has no room for the plan.
    #[cold]
    fn taking(&self, state: &mut State, slot: u32, lane: usize, request: &Request) -> Option<Taking> {
        let running = state.running.as_mut()?;
        if let InUse::Asked(Some(in_use)) = request.in_use {
            running.set_limit(running.missing(false), in_use);
        }
        let fits = |with_others| !request.would_exceed(running.limit_bytes, running.missing(with_others));
        let Some(with_others) = [true, false].into_iter().find(|with_others| fits(*with_others)) else {
            // The next body tries again. Until then a lane of another body serves what fits.
            if running.lanes[lane].bytes == 0 {
                running.postpone();
            }
            return None;
        };
        let (place, bytes) = (running.place(), running.lane_bytes(lane, with_others));
        // What a pool of regions will hold beside a plan from a file is not known yet.
        let limit_bytes = running.limit_bytes.filter(|_| running.body.log().is_none());
        if running.lanes[lane].base.is_some() {
            // It goes back before the larger one is taken.
            state.release(lane, request.stream)?;
        }
        state.running.as_mut()?.lanes[lane].is_awaited = true;
        Some(Taking { place, lane, slot, bytes, limit_bytes })
    }

    /// Takes a lane from upstream, and serves the request from it; `None` if upstream serves the request.
    #[cold]
    fn take(&self, taking: &Taking, request: &Request) -> Option<DevicePtr> {
        let lane = Layout::new(taking.bytes);
        let may_take = !self.would_hold_more(taking.limit_bytes, taking.bytes);
        let taken = may_take.then(|| self.take_lane(taking, request));
        let request = &self.knowing(request);
        let (served, unused) = self.locked(|state| {
            let is_same = |running: &&mut Running| running.place().plan == taking.place.plan;
            let running = state.running.as_mut().filter(is_same);
            let Some(running) = running else { return (None, taken.and_then(Result::ok)) };
            let awaited = &mut running.lanes[taking.lane];
            awaited.is_awaited = false;
            match taken {
                Some(Ok(base)) => awaited.put(base, taking.bytes, request.stream),
                // The next body tries again.
                None => running.postpone(),
                Some(Err(_error)) => {
                    self.drop_plan(state, "there is no memory for it");
                    return (None, None);
                }
            }
            let is_there = running.place() == taking.place;
            match self.serve(state, Some(taking.slot).filter(|_| is_there), request, false) {
                Answer::Block(ptr) => (Some(ptr), None),
                _ => (None, None),
            }
        })?;
        if let Some(base) = unused {
            // SAFETY: the block came from upstream with this layout, and nothing used it.
            unsafe { self.upstream.deallocate(base, lane, request.stream) };
        }
        served
    }

    /// Takes the memory of a lane from upstream. If that panics, a later request takes it.
    fn take_lane(&self, taking: &Taking, request: &Request) -> Result<DevicePtr> {
        let take = || self.upstream.allocate(Layout::new(taking.bytes), request.stream);
        catch_unwind(AssertUnwindSafe(take)).unwrap_or_else(|panic| {
            self.locked(|state| {
                let running = state.running.as_mut();
                let same = running.filter(|running| running.place().plan == taking.place.plan);
                same.into_iter().for_each(|running| running.lanes[taking.lane].is_awaited = false);
            });
            resume_unwind(panic)
        })
    }

    /// Asks the driver about blocks of the request's lane that were freed on other streams, and serves the
    /// request then. Where work that is done now was marked too early, it asks a second time.
    #[cold]
    fn ask_and_serve(&self, place: Place, slot: Option<u32>, request: &Request) -> Option<DevicePtr> {
        let request = &self.knowing(request);
        for may_ask in [true, false] {
            self.ask_driver(request.stream, |state| state.ask_foreign(request.stream.id()));
            let answer = self.locked(|state| {
                let is_same = state.running.as_ref().is_some_and(|running| running.place() == place);
                if is_same { self.serve(state, slot, request, may_ask) } else { Answer::Upstream }
            })?;
            match answer {
                Answer::Ask { .. } => {}
                Answer::Block(ptr) => return Some(ptr),
                _ => return None,
            }
        }
        None
    }

    /// Asks the driver whether another stream has done its work, for the trial. Upstream serves the request.
    #[cold]
    fn ask_and_try(&self, freed: Freed, stream: StreamRef) -> Option<DevicePtr> {
        self.ask_driver(stream, |state| {
            let State { running, marks, .. } = state;
            let sharing = running.as_mut().and_then(Running::sharing);
            sharing.and_then(|sharing| sharing.ask_about(freed, marks)).into_iter().collect()
        });
        self.locked(|state| {
            let sharing = state.running.as_mut().and_then(Running::sharing);
            sharing.into_iter().for_each(|sharing| sharing.end_try(freed));
        });
        None
    }

    /// Drops a plan whose streams are too far apart for the memory that they share. None share any more.
    #[cold]
    fn end_sharing(&self, state: &mut State) {
        state.may_share = false;
        self.drop_plan(state, "its streams do not keep up with the host, and share memory");
    }

    /// Serves a request, which the plan knows as the slot `at`, from the slot or beside it. `may_ask` says
    /// whether the answer may be [`Answer::Ask`].
    #[inline]
    fn serve(&self, state: &mut State, at: Option<u32>, request: &Request, may_ask: bool) -> Answer {
        let Some(running) = state.running.as_mut() else { return Answer::Upstream };
        let is_planned = at.is_some_and(|at| running.lane_of(at).is_some());
        let served = at.filter(|_| is_planned && running.is_begun());
        let served = served.and_then(|at| running.claim(at, request.layout.bytes()));
        let refused = at.filter(|_| served.is_none() && is_planned);
        let waits = refused.is_some_and(|at| running.waits_for_order(at));
        if refused.is_some() && may_ask && (waits || running.waits_for_others(request.stream.id())) {
            return Answer::Ask { place: running.place(), slot: at };
        }
        let has_limits = |plan: &Running| plan.may_have_limit();
        if served.is_none() && request.in_use == InUse::NotAsked && state.plans().any(has_limits) {
            let place = state.running.as_ref().map(Running::place);
            return Answer::Know { place, slot: at, may_ask };
        }
        let Some(running) = state.running.as_mut() else { return Answer::Upstream };
        // Which streams had the bytes of gaps is not known, so all work has to be done.
        let wants_gap = served.is_none()
            && may_ask
            && running.has_waiting_gaps(request.stream.id())
            && request.would_exceed(running.limit_bytes, request.bytes);
        if wants_gap {
            running.sharing().into_iter().for_each(|sharing| sharing.await_all(request.stream.id()));
            return Answer::Ask { place: running.place(), slot: at };
        }
        // Requests that the plan leaves to upstream are no misses.
        let is_miss = at.is_none() || is_planned && running.is_due() && served.is_none();
        let verdict = running.judge(is_miss, request.bytes);
        if let Some(ptr) = served {
            let is_settled = running.is_settled;
            match verdict {
                Verdict::Proven => state.forgive(self.options.repeat as usize),
                Verdict::Behind => self.end_sharing(state),
                Verdict::Steady => state.is_excess_due = true,
                Verdict::Good | Verdict::Left => {}
            }
            state.counts.served += 1;
            if !is_settled {
                state.watch(ptr, request.bytes, request.stream);
            }
            return Answer::Block(ptr);
        }
        self.serve_miss(state, at, request, verdict, waits)
    }

    #[cold]
    fn serve_miss(
        &self,
        state: &mut State,
        at: Option<u32>,
        request: &Request,
        verdict: Verdict,
        waits: bool,
    ) -> Answer {
        if let Some((running, at)) = state.running.as_mut().zip(at) {
            running.leave_out(at);
        }
        match verdict {
            Verdict::Good => {}
            Verdict::Steady => state.is_excess_due = true,
            Verdict::Proven => state.forgive(self.options.repeat as usize),
            Verdict::Left => self.leave_plan(state),
            Verdict::Behind => self.end_sharing(state),
        }
        state.counts.missed += 1;
        let beside = self.serve_beside(state, at, request, waits);
        let served = beside.or_else(|| self.serve_dropped(state, request));
        served.map_or(Answer::Upstream, Answer::Block)
    }

    /// Whether upstream would hold more for a lane than it held before the plan, and a little. A pool has no
    /// use for free bytes that are not in one piece, unless they are whole regions or handles.
    fn would_hold_more(&self, limit_bytes: Option<u64>, lane_bytes: u64) -> bool {
        let Some((limit, known)) = limit_bytes.zip(self.upstream.statistics()) else { return false };
        let grown = known.bytes_reserved.saturating_add(lane_bytes);
        let limit = limit.saturating_add(if self.maps_pages { SPARE_BYTES } else { 0 });
        if !self.maps_pages && known.largest_free_block >= lane_bytes || grown <= limit {
            return false;
        }
        let layers = self.upstream.memory_report().layers;
        let known = |bytes: Option<u64>| bytes.unwrap_or(0);
        let whole =
            layers.iter().map(|it| known(it.reclaimable_after_sync_bytes) + known(it.cached_bytes)).max();
        grown.saturating_sub(known(whole)) > limit
    }

    /// Serves a request without a slot from the lane of its stream, if upstream would have to grow for it.
    /// A lane without blocks goes back instead, and upstream serves the request; so it does when the program
    /// left the plan.
    fn serve_beside(
        &self,
        state: &mut State,
        at: Option<u32>,
        request: &Request,
        waits: bool,
    ) -> Option<DevicePtr> {
        let Request { layout, bytes, stream, .. } = *request;
        let running = state.running.as_mut()?;
        let is_wanted = running.is_lost() || request.would_exceed(running.limit_bytes, bytes);
        if running.bytes().0 == 0 || !is_wanted {
            return None;
        }
        let is_exceeded = request.would_exceed(running.limit_bytes, bytes);
        let mut lanes = running.lanes_for(stream.id()).peekable();
        let is_alone = lanes.peek().is_none();
        for lane in lanes {
            let running = state.running.as_mut()?;
            // Nothing new keeps a lane from going back that only waits for other streams.
            let may_serve = is_exceeded && !(running.is_lost() && running.lanes[lane].is_idle());
            if state.release(lane, stream).is_some() {
                return None;
            }
            let running = state.running.as_mut()?;
            let gap = || running.claim_gap(lane, at, layout.bytes(), bytes, stream.id());
            if let Some(ptr) = may_serve.then(gap).flatten() {
                state.note_beside(ptr, bytes, stream);
                return Some(ptr);
            }
        }
        let running = state.running.as_mut()?;
        if is_exceeded && (is_alone || waits) && running.is_crowding(bytes) {
            // Until its end, the body has blocks in the memory that streams share.
            running.is_behind |= waits;
            if !waits {
                self.leave_plan(state);
            }
        }
        None
    }

    /// Gives lanes of dropped plans back whose blocks are all freed on the caller's stream. Serves the
    /// request from another lane of that stream, if upstream would have to grow for it.
    fn serve_dropped(&self, state: &mut State, request: &Request) -> Option<DevicePtr> {
        let Request { layout, bytes, stream, .. } = *request;
        if !state.is_draining() {
            return None;
        }
        state.release_all(stream, false, u64::MAX);
        self.note_end(state);
        let served = state.draining.iter_mut().find_map(|plan| {
            let mut lanes = plan.lanes_for(stream.id());
            let lane = lanes.find(|lane| !plan.lanes[*lane].is_idle())?;
            // Nothing new keeps a lane from going back that other streams need.
            let may_serve = !plan.is_crowding(0) && request.would_exceed(plan.limit_bytes, bytes);
            if may_serve { plan.claim_gap(lane, None, layout.bytes(), bytes, stream.id()) } else { None }
        })?;
        state.note_beside(served, bytes, stream);
        Some(served)
    }

    /// Serves a request for which upstream has no memory from a gap of any lane of its stream.
    pub(crate) fn serve_from_gap(&self, layout: Layout, stream: StreamRef) -> Option<DevicePtr> {
        let bytes = layout.rounded_bytes()?;
        self.locked(|state| {
            let mut plans = state.running.iter_mut().chain(&mut state.draining);
            let served = plans.find_map(|plan| {
                let mut lanes = plan.lanes_for(stream.id());
                lanes.find_map(|lane| plan.claim_gap(lane, None, layout.bytes(), bytes, stream.id()))
            });
            state.counts.served_beside += u64::from(served.is_some());
            served
        })?
    }

    /// Takes a block of a lane back; `None` if it is upstream's. Returns the number of the mark behind which
    /// its bytes are free, if that is another stream's than the lane's.
    #[inline]
    fn free_under_lock(
        &self,
        state: &mut State,
        ptr: DevicePtr,
        layout: Layout,
        stream: StreamRef,
    ) -> Option<Result<Option<u64>, MisuseKind>> {
        let State { running, draining, marks, .. } = state;
        let mut free = |plan: &mut Running| {
            let lane = plan.lane_at(ptr)?;
            Some(plan.free(lane, ptr, layout.bytes(), stream, marks))
        };
        let freed = running.as_mut().and_then(&mut free);
        let freed = freed.or_else(|| draining.iter_mut().find_map(free));
        if let Some(running) = running.as_mut().filter(|_| freed.is_none()) {
            running.count_beside(-(layout.rounded_bytes().unwrap_or(0) as i64));
        }
        if state.is_learning() && freed.is_none_or(|freed| freed.is_ok()) {
            state.history.freed(ptr, stream.id());
        }
        if freed.is_some() && state.is_draining() && !self.driver().health().is_lost() {
            state.release_all(stream, false, u64::MAX);
            self.note_end(state);
        }
        freed
    }

    /// Counts a block as in use again that upstream refused to take back.
    #[cold]
    pub(crate) fn not_freed_beside(&self, layout: Layout) {
        let bytes = layout.rounded_bytes().unwrap_or(0) as i64;
        self.locked(|state| state.running.as_mut().into_iter().for_each(|plan| plan.count_beside(bytes)));
    }

    /// Takes a block of a lane back; `None` if it is upstream's.
    #[inline]
    pub(crate) fn free_planned(
        &self,
        ptr: DevicePtr,
        layout: Layout,
        stream: StreamRef,
    ) -> Option<Result<(), MisuseKind>> {
        let freed = self.locked(|state| self.free_under_lock(state, ptr, layout, stream));
        // A forked child cannot say whose the block is, and leaves it.
        let Some(freed) = freed else { return Some(Ok(())) };
        Some(freed?.map(|number| {
            if let Some(number) = number {
                self.record_behind(number, stream);
            }
        }))
    }
}
