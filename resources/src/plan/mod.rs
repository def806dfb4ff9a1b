//! A layer that learns the part of a program that repeats, and places its blocks as a plan says.
//!
//! `history` finds what repeats; `body` has a slot for each of its allocations, and checks that slots are
//! free; `running` follows the program through the body. `docs/plan.md` says when the layer is worth it.

mod body;
mod history;
mod layer;
mod options;
mod running;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use millpond_core::driver::CaptureModeGuard;
use millpond_core::misuse::{self, Misuse, MisuseKind};
use millpond_core::{
    ALLOCATION_ALIGNMENT, Accessibility, BlockInfo, DeviceMemoryResource, DevicePtr, DriverHandle,
    LayerMemory, Layout, MemoryInfo, ReportsMemory, ResourceStatistics, Result, StreamRef, Traits, is_same,
};
use millpond_planning::Options;
use parking_lot::Mutex;

pub(crate) use crate::plan::layer::ENTRY;
pub use crate::plan::layer::PlanLayer;
pub use crate::plan::options::PlanOptions;

use crate::driver_calls::ask;
use crate::plan::body::Body;
use crate::plan::history::{History, MOST_EVENTS};
use crate::plan::running::{Running, Verdict};
use crate::process::Origin;

/// The plans that may be dropped before the layer gives up. Each one asks for a repetition twice as long.
const MOST_DROPPED: u32 = 12;

/// The rounds of search for one plan, which are always the same where they need less than the time.
const ROUNDS: u32 = 8;

/// Counts of a [`PlanMemoryResource`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PlanStatistics {
    /// The requests that got a slot of the plan.
    pub served: u64,
    /// The requests that upstream served while a plan was in use.
    pub missed: u64,
    /// The plans that were made.
    pub plans: u64,
    /// The plans that were dropped, because the program did not follow them or memory was short.
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

#[derive(Debug)]
struct State {
    history: History,
    running: Option<Running>,
    /// The allocations over which a part has to repeat.
    least_span: usize,
    /// The length of the history at which it is searched next.
    search_at: usize,
    has_given_up: bool,
    counts: PlanStatistics,
}

impl State {
    /// Whether the program is watched, and no plan serves it.
    fn is_learning(&self) -> bool {
        !self.has_given_up && self.running.as_ref().is_none_or(|running| running.is_retired)
    }
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
/// The layer is for a pool that grows: it takes a plan's memory only if that fits into what the pool held
/// before, as far as the pool has statistics.
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
    misuses: AtomicU64,
    process: Origin,
}

impl<R: DeviceMemoryResource> PlanMemoryResource<R> {
    /// Puts the layer on `upstream`.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) for a time of more than an hour, and
    /// for a repetition over no or more than 262144 allocations.
    pub fn new(upstream: R, options: PlanOptions) -> Result<Self> {
        let options = options.checked()?;
        let least_span = options.repeat as usize;
        let state = State {
            history: History::default(),
            running: None,
            least_span,
            search_at: 2 * least_span,
            has_given_up: false,
            counts: PlanStatistics::default(),
        };
        Ok(Self {
            upstream,
            options,
            state: Mutex::new(state),
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

    /// Serves a request from the plan; `None` if upstream serves it.
    fn serve(&self, state: &mut State, layout: Layout, bytes: u64, stream: StreamRef) -> Option<DevicePtr> {
        let id = stream.id();
        let running = state.running.as_mut().filter(|running| !running.is_retired)?;
        let at = running.locate(bytes, id);
        let lane = at.and_then(|at| running.lane_of(at));
        if let Some(lane) = lane
            && running.lanes[lane].base.is_none()
        {
            match self.take(running, lane, stream) {
                Ok(base) => running.lanes[lane].base = Some(base),
                Err(why) => {
                    self.drop_plan(state, why);
                    return None;
                }
            }
        }
        let is_planned = lane.is_some();
        let served = at.filter(|_| is_planned).and_then(|at| running.claim(at, layout.bytes()));
        // Requests that the plan leaves to upstream are no misses.
        let is_miss = at.is_none() || is_planned && served.is_none();
        match served {
            Some(_) => state.counts.served += 1,
            None => state.counts.missed += 1,
        }
        if running.judge(is_miss) == Verdict::Dropped {
            self.drop_plan(state, "the program does not follow it");
        }
        served
    }

    /// Takes the memory of a lane from upstream, if the whole plan fits into what upstream held before it.
    fn take(&self, running: &Running, lane: usize, stream: StreamRef) -> Result<DevicePtr, &'static str> {
        if let (Some(limit), Some(known)) = (running.limit_bytes, self.upstream.statistics()) {
            let missing = running.body.bytes() - running.bytes().0;
            if known.bytes_in_use.saturating_add(missing) > limit {
                return Err("it needs more memory than upstream did");
            }
        }
        let layout = Layout::new(running.body.lanes[lane].bytes);
        self.upstream.allocate(layout, stream).map_err(|_| "there is no memory for it")
    }

    /// Ends a plan: the program is watched again from now on, or not any more.
    fn drop_plan(&self, state: &mut State, why: &str) {
        let Some(running) = state.running.as_mut().filter(|running| !running.is_retired) else { return };
        running.is_retired = true;
        state.counts.dropped += 1;
        state.least_span *= 2;
        tracing::info!(target: "millpond::plan", stack = %self, why, "dropped a plan");
        self.learn_anew(state);
        if state.counts.dropped >= u64::from(MOST_DROPPED) {
            self.give_up(state, "too many plans were dropped");
        }
    }

    fn learn_anew(&self, state: &mut State) {
        state.history.clear();
        state.search_at = 2 * state.least_span;
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
            let started = Instant::now();
            let options = Options { time: self.options.time, rounds: ROUNDS, seed: 0, threads: 1 };
            if let Some(body) = Body::plan(steps, &options) {
                let (allocations, bytes) = (body.slots.len(), body.bytes());
                let duration = started.elapsed();
                tracing::info!(
                    target: "millpond::plan", stack = %self, allocations, bytes, ?duration, "made a plan"
                );
                state.counts.plans += 1;
                let known = self.upstream.statistics().map(|known| known.peak_bytes_reserved);
                state.running = Some(Running::new(body, known.filter(|bytes| *bytes > 0)));
                state.history.clear();
                return;
            }
        }
        if length >= MOST_EVENTS {
            self.give_up(state, "no part repeats");
            self.note_end(state);
        }
    }

    /// Gives back the memory of lanes without blocks that belongs to the caller's stream, once the plan is
    /// dropped.
    fn release_retired(&self, state: &mut State, stream: StreamRef) {
        let Some(running) = state.running.as_mut().filter(|running| running.is_retired) else { return };
        for lane in 0..running.lanes.len() {
            if let Some((base, bytes)) = running.take_idle(lane, Some(stream.id())) {
                // SAFETY: the lane came from upstream with this layout, once. Its blocks were freed on this
                // stream.
                unsafe { self.upstream.deallocate(base, Layout::new(bytes), stream) };
            }
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
        if let Some(running) = &mut state.running
            && running.bytes().1 > 0
            && self.has_waited()
        {
            for lane in 0..running.lanes.len() {
                if let Some((base, bytes)) = running.take_idle(lane, None) {
                    // SAFETY: the lane came from upstream with this layout, once, no block of it is in use,
                    // and all work of the device is done.
                    unsafe { self.upstream.deallocate(base, Layout::new(bytes), StreamRef::LEGACY) };
                    released += bytes;
                }
            }
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
                let released = {
                    let mut state = self.state.lock();
                    let released = self.release_idle(&mut state);
                    if released > 0 {
                        self.drop_plan(&mut state, "upstream is out of memory");
                    }
                    self.note_end(&mut state);
                    released
                };
                if released == 0 { Err(error) } else { self.upstream.allocate(layout, stream) }
            }
            other => other,
        }
    }

    fn refuse(&self, kind: MisuseKind, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        self.misuses.fetch_add(1, Ordering::Relaxed);
        misuse::report(&Misuse { kind, ptr, bytes: layout.bytes(), stream, resource: self.to_string() });
    }
}

impl<R: DeviceMemoryResource> fmt::Display for PlanMemoryResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+plan{}", self.upstream, self.options)
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
        let Some(bytes) = bytes.filter(|_| is_watched) else {
            return self.allocate_upstream(layout, stream).map_err(|error| error.in_stack(self));
        };
        let mut state = self.state.lock();
        if let Some(ptr) = self.serve(&mut state, layout, bytes, stream) {
            return Ok(ptr);
        }
        self.release_retired(&mut state, stream);
        drop(state);
        let ptr = self.allocate_upstream(layout, stream).map_err(|error| error.in_stack(self))?;
        let mut state = self.state.lock();
        if state.is_learning() {
            state.history.allocated(ptr, bytes, stream.id());
            if state.history.len() >= state.search_at.min(MOST_EVENTS) {
                self.search(&mut state);
            }
        }
        Ok(ptr)
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        if ptr.is_null() {
            return;
        }
        if !self.is_bypassed.load(Ordering::Acquire) {
            let mut state = self.state.lock();
            if let Some(running) = &mut state.running
                && let Some(lane) = running.lane_at(ptr)
            {
                if let Err(kind) = running.free(lane, ptr, layout.bytes(), stream.id()) {
                    drop(state);
                    return self.refuse(kind, ptr, layout, stream);
                }
                if running.is_retired && !self.driver().health().is_lost() {
                    self.release_retired(&mut state, stream);
                }
                return;
            }
            if state.is_learning() {
                state.history.freed(ptr, stream.id());
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
        let to_upstream = self.release_idle(&mut self.state.lock());
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
