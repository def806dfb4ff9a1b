//! The layer `plan` as a memory resource.

use std::fmt;
use std::path::PathBuf;

use millpond_core::misuse::{self, Misuse, MisuseKind};
use millpond_core::process::Origin;
use millpond_core::stack::{FilePath, LayerSpec};
use millpond_core::{
    ALLOCATION_ALIGNMENT, BlockInfo, DeviceMemoryResource, DevicePtr, FailureTally, LayerMemory, Layout,
    MemoryInfo, MemoryMap, ReportsMemory, ResourceStatistics, Result, ScopesBelow, StreamRef, Traits,
    debug_as_text, find_trait, forward_to_upstream, trim_upstream,
};

use millpond_planning::ProgramPlan;

use crate::file;
use crate::state::{PlanStatistics, State};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};

/// Serves a program from a prepared plan of its allocations.
///
/// The layer suits a program that makes the same requests in each run, or in each step. First, record the
/// program once (`logging:file=LOG`). Then `millpond-replay plan LOG -o FILE.plan` makes the plan
/// ([`millpond_planning`]). The plan gives each allocation a slot: a fixed range in the plan's memory.
///
/// While the program runs, the layer compares the program's requests with the plan, one after another. It
/// allocates memory from upstream once for each stream, and serves each request from the request's slot.
/// Whatever the program does, the layer uses a slot only if no live block overlaps the slot. If a request
/// differs from the plan, upstream serves the request. The layer then searches for the program's position in
/// the plan. After the last request of the plan, the layer expects the program to begin again. The layer
/// counts the requests that differ from the plan. If they are more than a quarter in two passes in a row, the
/// layer drops the plan and returns the plan's memory. Upstream then serves all requests.
///
/// A block may be freed on a stream other than the stream of its allocation. Its slot then stays in use until
/// the device has passed an event after the free. The layer waits for the device in three cases only: in
/// `trim`, when the layer is dropped, and before a request fails for lack of memory. The layer treats the
/// calls of all threads as one program. If the order of the threads' calls changes from run to run, the calls
/// do not match the plan.
///
/// ```
/// use millpond_core::{DeviceMemoryResourceExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_plan::{PlanLayer, ProgramPlan};
/// use millpond_resources::{CudaMemoryResource, PoolLayer};
///
/// let log = "07".repeat(32);
/// let plan = format!(
///     "millpond plan 1\nlog sha256:{log}\nalignment 256\nstreams 1\nlane 1536\nbound 1536\n\
///      ratio 1.00000\nbeside 0\nallocations 2\nbytes stream life offset\n1024 0 2 0\n512 0 1 1024\n"
/// );
/// let plan = ProgramPlan::read(plan.as_bytes())?; // `PlanLayer::file` reads it from a file
/// let device = SimDevice::new(SimConfig::h200());
/// let pool = CudaMemoryResource::new(device).layer(PoolLayer::new())?;
/// let stack = pool.layer(PlanLayer::from_plan(plan))?;
/// stack.allocate_bytes(1000, StreamRef::LEGACY)?;
/// assert_eq!(stack.plan_statistics().served, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PlanMemoryResource<R: DeviceMemoryResource> {
    pub(crate) upstream: R,
    /// The plan's file, if the plan was read from one.
    file: Option<PathBuf>,
    pub(crate) state: Mutex<State>,
    /// Whether the layer has a plan, or the memory of a dropped plan. If it has neither, calls need the lock
    /// only if upstream is out of memory.
    pub(crate) has_plan: AtomicBool,
    /// Whether a layer below serves captures from its own scopes.
    pub(crate) has_scopes: bool,
    /// How often lanes were returned to upstream.
    pub(crate) given_back: AtomicU64,
    /// The number of threads that are returning lanes now.
    pub(crate) giving: AtomicU32,
    pub(crate) misuses: AtomicU64,
    failures: FailureTally,
    /// The process that made the layer. A forked child does not change the layer.
    process: Origin,
}

impl<R: DeviceMemoryResource> PlanMemoryResource<R> {
    /// Puts the layer on `upstream`, and reads the plan from a file. A relative path is relative to the
    /// current directory of the process.
    ///
    /// # Errors
    /// Returns [`Io`](millpond_core::ErrorKind::Io) if the file cannot be opened. Returns
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the file holds no plan, or if the
    /// plan's alignment is not 256.
    pub fn open(upstream: R, file: impl Into<PathBuf>) -> Result<Self> {
        let path = file.into();
        let plan = file::read(&path)?;
        let mut this = Self::new(upstream, &plan)
            .map_err(|error| error.context(format_args!("the plan {}", path.display())))?;
        this.file = Some(path);
        Ok(this)
    }

    /// Puts the layer with this plan on `upstream`. If the device has less free memory than the plan needs,
    /// the layer logs a warning and ignores the plan. Upstream then serves all requests.
    ///
    /// # Errors
    /// Returns [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the plan's alignment is not
    /// 256.
    pub fn new(upstream: R, plan: &ProgramPlan) -> Result<Self> {
        let state = State::new(file::follow(&upstream, plan)?);
        Ok(Self {
            has_scopes: find_trait::<dyn ScopesBelow>(&upstream).is_some(),
            has_plan: AtomicBool::new(state.plan.is_some()),
            given_back: AtomicU64::new(0),
            giving: AtomicU32::new(0),
            upstream,
            file: None,
            state: Mutex::new(state),
            misuses: AtomicU64::new(0),
            failures: FailureTally::default(),
            process: Origin::here(),
        })
    }

    /// Returns the counts so far.
    pub fn plan_statistics(&self) -> PlanStatistics {
        self.locked(|state| state.statistics()).unwrap_or_default()
    }

    /// Returns whether a stream is open in a scope below. The scope serves the requests of this stream and of
    /// all streams that join its capture. So the plan serves none of these requests.
    fn is_beside_captures(&self) -> bool {
        self.has_scopes
            && find_trait::<dyn ScopesBelow>(&self.upstream).is_some_and(|scopes| scopes.open_streams() > 0)
    }

    /// Returns whether this is a forked child of the process that made the layer.
    pub(crate) fn is_forked(&self) -> bool {
        self.process.is_elsewhere()
    }

    fn refuse(&self, kind: MisuseKind, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        self.misuses.fetch_add(1, Ordering::Relaxed);
        misuse::report(&Misuse::new(kind, ptr, layout.bytes(), stream, self));
    }
}

impl<R: DeviceMemoryResource> fmt::Display for PlanMemoryResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut layer = LayerSpec::new("plan");
        if let Some(path) = &self.file {
            // A path that no stack text can hold is printed for people.
            let text = FilePath::literal(path).and_then(|path| path.to_text());
            layer = layer.with("file", text.unwrap_or_else(|_| path.display().to_string()));
        }
        write!(f, "{}+{layer}", self.upstream)
    }
}

debug_as_text!(PlanMemoryResource<R: DeviceMemoryResource>);

// SAFETY: blocks come from upstream, or are slots of lanes that came from upstream. Slots with live blocks do
// not overlap (`Slots::claim`), are as large as their requests, and start at multiples of 256. A lane belongs
// to the stream it was allocated on. A slot becomes free after a deallocation on that stream, or after a
// deallocation on another stream whose event has passed (`Lane::end_waits`). So a request on the stream is
// ordered after all earlier uses. A lane goes back on its stream after all other streams' work is done, or on
// any stream after its own stream's work is done too (`Lane::may_leave`).
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for PlanMemoryResource<R> {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        if layout.bytes() == 0 {
            return Ok(DevicePtr::NULL);
        }
        let bytes = layout.rounded_bytes().filter(|_| layout.alignment() <= ALLOCATION_ALIGNMENT);
        let is_followed = self.has_plan.load(Ordering::Acquire) && !self.driver().health().is_lost();
        let is_open = !self.is_beside_captures();
        if let Some(bytes) = bytes.filter(|_| is_followed && is_open)
            && let Some(ptr) = self.serve_planned(layout, bytes, stream)
        {
            return Ok(ptr);
        }
        self.allocate_upstream(layout, stream, is_open)
            .map_err(|error| self.failures.noted(error).in_stack(self))
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        if ptr.is_null() {
            return;
        }
        if self.has_plan.load(Ordering::Acquire) {
            match self.free_planned(ptr, layout, stream) {
                Some(Ok(())) => return,
                Some(Err(kind)) => return self.refuse(kind, ptr, layout, stream),
                None => {}
            }
            return misuse::undo_if_refused(
                ptr,
                // SAFETY: the caller's promises; the block lies in no lane, so it came from upstream.
                || unsafe { self.upstream.deallocate(ptr, layout, stream) },
                || self.not_freed_beside(layout),
            );
        }
        // SAFETY: as above.
        unsafe { self.upstream.deallocate(ptr, layout, stream) }
    }

    /// Returns the memory information of upstream. `free` also counts the plan's memory of streams without
    /// live blocks, because trimming returns this memory.
    fn memory_info(&self) -> Result<MemoryInfo> {
        let info = self.upstream.memory_info().map_err(|error| error.in_stack(self))?;
        let idle = self.locked(|state| state.held().1).unwrap_or(0);
        Ok(MemoryInfo { free: (info.free + idle).min(info.total), ..info })
    }

    /// Always `true`: another stream gets a slot only after the work on the slot is done.
    fn is_stream_ordered(&self) -> bool {
        true
    }

    /// Returns the statistics of upstream. They count the plan's memory of one stream as one live block.
    /// [`plan_statistics`](PlanMemoryResource::plan_statistics) returns the counts of this layer.
    fn statistics(&self) -> Option<ResourceStatistics> {
        let known = self.upstream.statistics();
        match self.misuses.load(Ordering::Relaxed) {
            0 => known,
            misuses => Some(known.unwrap_or_default().with_more_misuses(misuses)),
        }
    }

    /// Trims upstream. If that is not enough, also returns the plan's memory of streams without live blocks.
    /// When a request needs this memory, the layer allocates it again.
    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        let released = self.upstream.trim(keep_bytes);
        let of_lanes = match self.trim_lanes(keep_bytes) {
            0 => Ok(0),
            to_upstream => trim_upstream(&self.upstream, to_upstream, keep_bytes),
        };
        released.and_then(|bytes| Ok(bytes + of_lanes?)).map_err(|error| error.in_stack(self))
    }

    fn provide(&self, traits: &mut Traits) {
        traits.add::<Self, FailureTally>(|it| &it.failures).add::<Self, dyn ReportsMemory>(|it| it);
        // SAFETY: threads may share all parts except the upstream.
        unsafe { traits.share_over(&[&self.upstream]) };
    }

    forward_to_upstream!(
        except allocate, deallocate, memory_info, is_stream_ordered, statistics, trim, provide
    );
}

impl<R: DeviceMemoryResource> ReportsMemory for PlanMemoryResource<R> {
    fn layer_memory(&self) -> LayerMemory {
        let mut memory = LayerMemory::default();
        memory.reclaimable_after_sync_bytes = self.locked(|state| state.held().1).filter(|bytes| *bytes > 0);
        memory
    }

    fn block_at(&self, ptr: DevicePtr) -> Option<BlockInfo> {
        let bytes = self.locked(|state| {
            let plan = state.plan.as_ref()?;
            let (lane, offset) = plan.lane_at(ptr)?;
            Some(plan.block_at(lane, offset)?.1)
        })??;
        let mut block = BlockInfo::default();
        (block.address, block.bytes) = (ptr.address(), bytes);
        Some(block)
    }

    fn memory_map(&self) -> Option<MemoryMap> {
        let segments = self.locked(|state| state.plan.as_ref().map(|plan| plan.segments()))??;
        Some(MemoryMap::new(segments, None))
    }
}

impl<R: DeviceMemoryResource> Drop for PlanMemoryResource<R> {
    fn drop(&mut self) {
        self.end();
    }
}
