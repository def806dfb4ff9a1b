//! A layer that learns the part of a program that repeats, and places its blocks as a plan says.
//!
//! `history` finds what repeats; `body` has a slot for each of its allocations, and checks that slots are
//! free; `running` follows the program through the body. `docs/plan.md` says when the layer is worth it.

mod body;
mod file;
#[cfg(test)]
mod file_tests;
mod gaps;
mod history;
mod layer;
mod options;
mod running;
mod state;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod upstream_tests;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use millpond_core::driver::CaptureModeGuard;
use millpond_core::misuse::{self, Misuse, MisuseKind};
use millpond_core::{
    ALLOCATION_ALIGNMENT, Accessibility, BlockInfo, DeviceMemoryResource, DevicePtr, DriverHandle,
    LayerMemory, Layout, MemoryInfo, ReportsMemory, ResourceStatistics, Result, StreamRef, Traits,
    find_trait, is_same,
};
use millpond_planning::Options;
use parking_lot::Mutex;

pub(crate) use crate::plan::layer::ENTRY;
pub use crate::plan::layer::PlanLayer;
pub use crate::plan::options::PlanOptions;
pub use crate::plan::state::PlanStatistics;

use crate::capture_scopes::CaptureScopes;
use crate::driver_calls::ask;
use crate::plan::body::Body;
use crate::plan::history::{MOST_EVENTS, Step};
use crate::plan::running::{Running, Verdict};
use crate::plan::state::{State, locked};
use crate::process::Origin;

/// The plans that may be dropped before the layer gives up. Each one asks for a repetition twice as long.
const MOST_DROPPED: u32 = 12;

/// A part that repeats and has no plan has to repeat over this many times as many allocations.
const UNPLANNED_FACTOR: usize = 8;

/// The rounds of search for one plan, which are always the same where they need less than the time.
const ROUNDS: u32 = 8;

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

/// Learns the part of a program that repeats, and places its blocks as a plan says.
///
/// At first upstream serves every request. Once the sizes and streams of the requests have repeated, and the
/// lives of their blocks with them, the layer plans the part that repeats ([`millpond_planning`]), takes the
/// memory for it from upstream, once for each stream, and serves each request from its slot of the plan. A
/// slot is handed out only if no block has any of its bytes, whatever the program does. A request that
/// differs goes upstream, and the layer finds its place again. If more than a quarter of the requests miss in
/// two bodies in a row, the plan is dropped, and the layer learns anew. It gives up if that happens often, or
/// if nothing repeats.
///
/// Slots never change their stream. A block that is freed on another stream than its own keeps its slot until
/// the plan's memory goes back. The calls of all threads together are one program: where threads race,
/// nothing repeats, and the layer gives up.
///
/// It is for a pool that grows: what it learns has to fit into what the pool held before, if that counts it.
///
/// ```
/// use millpond_core::{DeviceMemoryResourceExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::{CudaMemoryResource, PlanLayer, PoolLayer};
///
/// let device = SimDevice::new(SimConfig::h200());
/// let stack = CudaMemoryResource::new(device).layer(PoolLayer::new())?.layer(PlanLayer::new())?;
/// for _step in 0..100 {
///     let blocks: Vec<_> = (1..20)
///         .map(|size| stack.allocate_bytes(size << 20, StreamRef::LEGACY).map(|ptr| (ptr, size << 20)))
///         .collect::<Result<_, _>>()?;
///     for (ptr, bytes) in blocks {
///         // SAFETY: the block came from this resource with this size, and nothing uses it.
///         unsafe { stack.deallocate_bytes(ptr, bytes, StreamRef::LEGACY) };
///     }
/// }
/// assert_eq!(stack.plan_statistics().body_allocations, 19);
/// assert_eq!(stack.to_string(), "cuda+pool+plan");
/// # Ok::<(), millpond_core::Error>(())
/// ```
#[derive(Debug)]
pub struct PlanMemoryResource<R: DeviceMemoryResource> {
    upstream: R,
    options: PlanOptions,
    state: Mutex<State>,
    /// Whether the layer gave up and holds nothing: no call needs its lock.
    is_bypassed: AtomicBool,
    /// Whether a layer below serves captures from scopes of its own.
    has_scopes: bool,
    misuses: AtomicU64,
    process: Origin,
}

impl<R: DeviceMemoryResource> PlanMemoryResource<R> {
    /// Puts the layer on `upstream`.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) for a time of more than an hour, for a
    /// repetition over no or more than 262144 allocations, and for a file that holds no plan.
    pub fn new(upstream: R, options: PlanOptions) -> Result<Self> {
        Ok(Self {
            has_scopes: find_trait::<dyn CaptureScopes>(&upstream).is_some(),
            state: Mutex::new(file::begin(&upstream, &options)?),
            upstream,
            options,
            is_bypassed: AtomicBool::new(false),
            misuses: AtomicU64::new(0),
            process: Origin::here(),
        })
    }

    /// Returns the counts so far.
    pub fn plan_statistics(&self) -> PlanStatistics {
        let state = self.state.lock();
        let mut counts = PlanStatistics { has_given_up: state.has_given_up, ..state.counts };
        if let Some(running) = &state.running {
            counts.held_bytes = running.bytes().0;
            if !running.is_retired {
                counts.body_allocations = running.body.slots.len() as u64;
                counts.plan_bytes = running.body.bytes();
            }
        }
        counts
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
            running.set_limit(missing, self.upstream.statistics());
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

    /// Ends a plan: the program is watched again from now on, or not any more.
    fn drop_plan(&self, state: &mut State, why: &str) {
        let Some(running) = state.running.as_mut().filter(|running| !running.is_retired) else { return };
        running.is_retired = true;
        let log = running.body.log();
        tracing::info!(target: "millpond::plan", stack = %self, why, log, "dropped a plan");
        state.least_span *= if log.is_some() { 1 } else { 2 };
        state.counts.dropped += 1;
        state.learn_anew();
        if state.counts.dropped >= u64::from(MOST_DROPPED) {
            self.give_up(state, "too many plans were dropped");
        }
    }

    fn give_up(&self, state: &mut State, why: &str) {
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

    /// Takes a block of a lane back; `None` if it is upstream's.
    fn free(
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

    /// Gives back the memory of lanes without blocks that belongs to the caller's stream, once the plan is
    /// dropped.
    fn release_retired(&self, state: &mut State, stream: StreamRef) {
        let lanes = state.running.as_ref().filter(|running| running.is_retired);
        for lane in 0..lanes.map_or(0, |running| running.lanes.len()) {
            state.release(lane, stream, false);
        }
        self.note_end(state);
    }

    fn note_end(&self, state: &mut State) {
        if state.running.as_ref().is_some_and(|running| running.is_retired && running.bytes().0 == 0) {
            state.running = None;
        }
        if state.has_given_up && state.running.is_none() {
            self.is_bypassed.store(true, Ordering::Release);
        }
    }

    /// Waits for the device and gives back the memory of all lanes without blocks; returns its bytes. Does
    /// nothing where the device cannot be waited for.
    fn release_idle(&self, state: &mut State) -> u64 {
        let mut released = 0;
        if let Some(running) = &state.running
            && running.bytes().1 > 0
            && self.has_waited()
        {
            let lanes = 0..running.lanes.len();
            released = lanes.filter_map(|lane| state.release(lane, StreamRef::LEGACY, true)).sum();
        }
        self.note_end(state);
        released
    }

    /// Waits for all work of the device; returns whether memory may go back. Plain memory may in any case, as
    /// its free waits by itself.
    fn has_waited(&self) -> bool {
        let driver = &**self.upstream.driver();
        if driver.health().is_lost() {
            return false;
        }
        let _captures = CaptureModeGuard::relaxed(driver);
        ask(driver, |driver| driver.synchronize_beside_captures()) == Ok(true)
            || !(self.upstream.is_stream_ordered() || driver.health().is_lost())
    }

    /// Asks upstream. If memory is out, the plan's goes back and the plan ends.
    fn allocate_upstream(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        match self.upstream.allocate(layout, stream) {
            Err(error) if error.is_out_of_memory() => {
                let released = self.locked(|state| {
                    let released = self.release_idle(state);
                    if released > 0 {
                        self.drop_plan(state, "upstream is out of memory");
                    }
                    self.note_end(state);
                    released
                });
                if released == 0 { Err(error) } else { self.upstream.allocate(layout, stream) }
            }
            other => other,
        }
    }

    /// Whether a stream is open in a scope below: its requests, and those of streams that join its capture,
    /// are the scope's, so the plan serves none.
    fn is_beside_captures(&self) -> bool {
        self.has_scopes
            && find_trait::<dyn CaptureScopes>(&self.upstream).is_some_and(|scopes| scopes.open_streams() > 0)
    }

    /// Runs `body` under the lock.
    fn locked<T>(&self, body: impl FnOnce(&mut State) -> T) -> T {
        locked(&self.state, &self.upstream, body)
    }

    fn refuse(&self, kind: MisuseKind, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        self.misuses.fetch_add(1, Ordering::Relaxed);
        misuse::report(&Misuse { kind, ptr, bytes: layout.bytes(), stream, resource: self.to_string() });
    }
}

impl<R: DeviceMemoryResource> fmt::Display for PlanMemoryResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.upstream, self.options)
    }
}

// SAFETY: blocks are those of upstream, or slots of lanes that came from upstream. Slots whose blocks are in
// use do not overlap (`Body::claim`), are as large as their requests, and start at multiples of 256. A lane
// belongs to the stream it was allocated on, and a slot is free again only after a deallocation on that
// stream, so a request on the stream is ordered after all earlier uses. A lane goes back on its stream with
// all blocks freed on it, or after a wait for the device.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for PlanMemoryResource<R> {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        if layout.bytes() == 0 {
            return Ok(DevicePtr::NULL);
        }
        let bytes = layout.rounded_bytes().filter(|_| layout.alignment() <= ALLOCATION_ALIGNMENT);
        let is_watched = !self.is_bypassed.load(Ordering::Acquire) && !self.driver().health().is_lost();
        let Some(bytes) = bytes.filter(|_| is_watched && !self.is_beside_captures()) else {
            return self.allocate_upstream(layout, stream).map_err(|error| error.in_stack(self));
        };
        let served = match self.locked(|state| self.answer(state, layout, bytes, stream)) {
            Answer::Block(ptr) => Some(ptr),
            Answer::Take(taking) => self.take(&taking, layout, bytes, stream),
            Answer::Upstream => None,
        };
        if let Some(ptr) = served {
            return Ok(ptr);
        }
        let ptr = self.allocate_upstream(layout, stream).map_err(|error| error.in_stack(self))?;
        self.locked(|state| {
            if state.is_learning() {
                state.history.allocated(ptr, bytes, stream.id());
                if state.history.len() >= state.search_at.min(MOST_EVENTS) {
                    self.search(state);
                }
            }
        });
        Ok(ptr)
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        if ptr.is_null() {
            return;
        }
        if !self.is_bypassed.load(Ordering::Acquire) {
            let answer = self.locked(|state| self.free(state, ptr, layout, stream));
            match answer {
                Some(Ok(())) => return,
                Some(Err(kind)) => return self.refuse(kind, ptr, layout, stream),
                None => {}
            }
        }
        // SAFETY: the caller's promises; the block is none of a lane, so it came from upstream.
        unsafe { self.upstream.deallocate(ptr, layout, stream) }
    }

    fn driver(&self) -> &DriverHandle {
        self.upstream.driver()
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        Some(&self.upstream)
    }

    /// Counts the memory of idle lanes as free: trimming returns it.
    fn memory_info(&self) -> Result<MemoryInfo> {
        let info = self.upstream.memory_info().map_err(|error| error.in_stack(self))?;
        let idle = self.state.lock().running.as_ref().map_or(0, |running| running.bytes().1);
        Ok(MemoryInfo { free: (info.free + idle).min(info.total), ..info })
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    /// `true`: a slot is free for its stream alone.
    fn is_stream_ordered(&self) -> bool {
        true
    }

    fn accessibility(&self) -> Accessibility {
        self.upstream.accessibility()
    }

    /// The upstream's, to which a lane is one block in use. See
    /// [`plan_statistics`](PlanMemoryResource::plan_statistics) for the layer's own.
    fn statistics(&self) -> Option<ResourceStatistics> {
        let known = self.upstream.statistics();
        match self.misuses.load(Ordering::Relaxed) {
            0 => known,
            misuses => {
                let known = known.unwrap_or_default();
                Some(ResourceStatistics { misuses: known.misuses + misuses, ..known })
            }
        }
    }

    /// Gives idle lanes back first. The plan takes them again when a request needs them.
    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        let to_upstream = self.locked(|state| self.release_idle(state));
        // An upstream in stream order keeps the lanes until it is trimmed itself.
        let released = if self.upstream.is_stream_ordered() { 0 } else { to_upstream };
        Ok(released + self.upstream.trim(keep_bytes).map_err(|error| error.in_stack(self))?)
    }

    fn provide(&self, traits: &mut Traits) {
        traits.add::<Self, dyn ReportsMemory>(|it| it);
    }
}

impl<R: DeviceMemoryResource> ReportsMemory for PlanMemoryResource<R> {
    fn layer_memory(&self) -> LayerMemory {
        let mut memory = LayerMemory::default();
        memory.reclaimable_after_sync_bytes =
            self.state.lock().running.as_ref().map(|running| running.bytes().1);
        memory
    }

    fn block_at(&self, ptr: DevicePtr) -> Option<BlockInfo> {
        let state = self.state.lock();
        let running = state.running.as_ref()?;
        let (_, bytes) = running.block_at(running.lane_at(ptr)?, ptr)?;
        let mut block = BlockInfo::default();
        (block.address, block.bytes) = (ptr.address(), bytes);
        Some(block)
    }
}

impl<R: DeviceMemoryResource> Drop for PlanMemoryResource<R> {
    fn drop(&mut self) {
        if self.process.is_elsewhere() {
            return;
        }
        let Some(running) = self.state.get_mut().running.take() else { return };
        let lanes = running.lanes.iter().zip(&running.body.lanes);
        let held: Vec<_> = lanes.filter_map(|(lane, plan)| Some((lane.base?, plan.bytes))).collect();
        if held.is_empty() || self.driver().health().is_lost() {
            return;
        }
        if !self.has_waited() {
            tracing::warn!(target: "millpond::driver", "the memory of a plan is left to upstream");
            return;
        }
        for (base, bytes) in held {
            // SAFETY: the lane came from upstream with this layout, once, and all work of the device is done.
            unsafe { self.upstream.deallocate(base, Layout::new(bytes), StreamRef::LEGACY) };
        }
    }
}
