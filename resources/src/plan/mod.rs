//! A layer that learns the part of a program that repeats, and places its blocks as a plan says.
//!
//! `history` watches the program, and `repetition` finds what repeats; `body` has a slot for each of its
//! allocations, and checks that slots are free; `running` follows the program through one or more bodies.
//! `docs/plan.md` says when the layer is worth it.

#[cfg(test)]
mod background_tests;
#[cfg(test)]
mod bodies_tests;
mod body;
#[cfg(test)]
mod changes_tests;
mod draft;
mod file;
#[cfg(test)]
mod file_tests;
mod gaps;
mod history;
mod lane;
mod layer;
mod learning;
mod marks;
#[cfg(all(test, millpond_loom))]
mod models;
mod notes;
mod options;
#[cfg(test)]
mod order_tests;
#[cfg(test)]
mod recovery_tests;
mod repetition;
#[cfg(test)]
mod resting_tests;
mod returning;
mod running;
mod serving;
mod sharing;
#[cfg(test)]
mod sharing_limits_tests;
#[cfg(test)]
mod sharing_tests;
mod state;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod upstream_tests;

use std::fmt;

use millpond_core::misuse::{self, Misuse, MisuseKind};
use millpond_core::{
    ALLOCATION_ALIGNMENT, Accessibility, BlockInfo, DeviceMemoryResource, DevicePtr, DriverHandle,
    LayerMemory, Layout, MemoryInfo, ReportsMemory, ResourceStatistics, Result, StreamRef, Traits,
    find_trait, is_same,
};

pub(crate) use crate::plan::layer::ENTRY;
pub use crate::plan::layer::PlanLayer;
pub use crate::plan::options::PlanOptions;
pub use crate::plan::state::PlanStatistics;

use crate::capture_scopes::CaptureScopes;
use crate::debug_as_text::debug_as_text;
use crate::plan::state::State;
use crate::pool::Pool;
use crate::process::Origin;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};
use crate::upstream::{Returned, trim_upstream};

/// Learns the part of a program that repeats, and places its blocks as a plan says.
///
/// At first upstream serves every request. Once the sizes and streams of the requests have repeated, and the
/// lives of their blocks with them, the layer plans the part that repeats ([`millpond_planning`]), takes the
/// memory for it from upstream, once for each stream, and serves each request from its slot of the plan. A
/// slot is handed out only if no block has any of its bytes, whatever the program does. A request that
/// differs goes upstream, and the layer finds its place again. While the program does something else, the
/// layer learns that, too, and serves up to eight such bodies from the same memory, in any order. If more
/// than a quarter of the requests miss in two bodies in a row, the plan is set aside and its memory goes
/// back. Where nothing repeats, the layer leaves the program alone for a while. It gives up if that is so
/// again, or if its plans are often of no use. A thread of its own makes the plans, and upstream serves
/// meanwhile.
///
/// Each stream has memory of its own, or with [`PlanOptions::share`] shares some with the others if the pool
/// held less than that. Bytes pass to another stream when an event behind their last free has passed. The
/// layer waits for the device only before memory is out, in `trim` and when it is dropped. The calls of all
/// threads together are one program: where threads race, nothing repeats, and the layer gives up.
///
/// It is for a pool that grows: what it learns has to fit into what the pool held before, if that counts it.
///
/// ```
/// use millpond_core::{DeviceMemoryResourceExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::{CudaMemoryResource, PlanLayer, PoolLayer};
///
/// let device = SimDevice::new(SimConfig::h200());
/// let pool = CudaMemoryResource::new(device).layer(PoolLayer::new())?;
/// // A step of a real program takes longer than planning it; this one ends before.
/// let stack = pool.layer(PlanLayer::new().background(false))?;
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
/// assert_eq!(stack.to_string(), "cuda+pool+plan:background=off");
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct PlanMemoryResource<R: DeviceMemoryResource> {
    upstream: R,
    options: PlanOptions,
    state: Mutex<State>,
    /// Whether the layer gave up or rests, and holds nothing: no call needs its lock, unless upstream is out
    /// of memory.
    is_bypassed: AtomicBool,
    /// The requests for which it still rests; 0 if it does not.
    rest: AtomicU32,
    /// Whether there are plans that requests may be served from.
    has_plans: AtomicBool,
    /// Whether a layer below serves captures from scopes of its own.
    has_scopes: bool,
    /// Whether a pool below makes blocks of free bytes that are not in one piece.
    maps_pages: bool,
    /// How often lanes were given back.
    given_back: AtomicU64,
    /// The threads that are giving lanes back.
    giving: AtomicU32,
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
        let state = file::begin(&upstream, &options)?;
        let has_scopes = find_trait::<dyn CaptureScopes>(&upstream).is_some();
        let maps_pages = find_trait::<dyn Pool>(&upstream).is_some_and(Pool::maps_pages);
        Ok(Self {
            has_scopes,
            maps_pages,
            given_back: AtomicU64::new(0),
            giving: AtomicU32::new(0),
            upstream,
            options,
            is_bypassed: AtomicBool::new(false),
            rest: AtomicU32::new(0),
            has_plans: AtomicBool::new(state.running.is_some()),
            state: Mutex::new(state),
            misuses: AtomicU64::new(0),
            process: Origin::here(),
        })
    }

    /// Returns the counts so far.
    pub fn plan_statistics(&self) -> PlanStatistics {
        let counts = self.locked(|state| {
            let mut counts = PlanStatistics { has_given_up: state.has_given_up, ..state.counts };
            counts.held_bytes = state.bytes().0;
            if let Some(running) = &state.running {
                counts.body_allocations = running.body.slots.len() as u64;
                counts.plan_bytes = running.body.bytes();
            }
            counts
        });
        counts.unwrap_or_default()
    }

    /// Whether a stream is open in a scope below: its requests, and those of streams that join its capture,
    /// are the scope's, so the plan serves none.
    fn is_beside_captures(&self) -> bool {
        self.has_scopes
            && find_trait::<dyn CaptureScopes>(&self.upstream).is_some_and(|scopes| scopes.open_streams() > 0)
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

debug_as_text!(PlanMemoryResource<R: DeviceMemoryResource>);

// SAFETY: blocks are those of upstream, or slots of lanes that came from upstream. Slots whose blocks are in
// use do not overlap (`Body::claim`), are as large as their requests, and start at multiples of 256. A lane
// belongs to the stream it was allocated on, and a slot is free again only after a deallocation on that
// stream, or when an event that was recorded behind one on another stream has passed (`Lane::end_waits`), so
// a request on the stream is ordered after all earlier uses. In a lane that streams share a slot is handed to
// a stream only if its bytes were last freed there, or behind such an event (`Sharing::is_free_for`). A lane
// goes back on its stream with all other streams' work done, or on any stream when its own stream's work is
// done, too (`Lane::may_leave`).
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for PlanMemoryResource<R> {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        if layout.bytes() == 0 {
            return Ok(DevicePtr::NULL);
        }
        let bytes = layout.rounded_bytes().filter(|_| layout.alignment() <= ALLOCATION_ALIGNMENT);
        let is_awake = !self.is_bypassed.load(Ordering::Acquire) || self.ends_rest() && self.wake();
        let is_watched = is_awake && !self.driver().health().is_lost();
        let is_open = !self.is_beside_captures();
        let Some(bytes) = bytes.filter(|_| is_watched && is_open) else {
            let served = self.allocate_upstream(layout, stream, is_open);
            return served.map_err(|error| error.in_stack(self));
        };
        if self.has_plans.load(Ordering::Acquire)
            && let Some(ptr) = self.serve_planned(layout, bytes, stream)
        {
            return Ok(ptr);
        }
        let served = self.allocate_upstream(layout, stream, is_open);
        let ptr = served.map_err(|error| error.in_stack(self))?;
        self.watch(ptr, bytes, stream);
        Ok(ptr)
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        if ptr.is_null() {
            return;
        }
        if !self.is_bypassed.load(Ordering::Acquire) {
            match self.free_planned(ptr, layout, stream) {
                Some(Ok(())) => return,
                Some(Err(kind)) => return self.refuse(kind, ptr, layout, stream),
                None => {}
            }
            return misuse::undo_if_refused(
                ptr,
                // SAFETY: the caller's promises; the block is none of a lane, so it came from upstream.
                || unsafe { self.upstream.deallocate(ptr, layout, stream) },
                || self.not_freed_beside(layout),
            );
        }
        // SAFETY: as above.
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
        let idle = self.locked(|state| state.bytes().1).unwrap_or(0);
        Ok(MemoryInfo { free: (info.free + idle).min(info.total), ..info })
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    /// `true`: a slot is free for its stream alone, or behind work that is done.
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

    /// Gives lanes without blocks back if that is needed beside what upstream can give. The plan takes them
    /// again when a request needs them.
    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        let mut returned = Returned::from_iter([self.upstream.trim(keep_bytes)]);
        let to_upstream = self.trim_lanes(keep_bytes);
        if to_upstream > 0 {
            returned.add(trim_upstream(&self.upstream, to_upstream, keep_bytes));
        }
        returned.bytes().map_err(|error| error.in_stack(self))
    }

    fn provide(&self, traits: &mut Traits) {
        traits.add::<Self, dyn ReportsMemory>(|it| it);
        // SAFETY: threads may share all parts but the upstream.
        unsafe { traits.share_over(&[&self.upstream]) };
    }
}

impl<R: DeviceMemoryResource> ReportsMemory for PlanMemoryResource<R> {
    fn layer_memory(&self) -> LayerMemory {
        let mut memory = LayerMemory::default();
        memory.reclaimable_after_sync_bytes = self.locked(|state| state.bytes().1).filter(|bytes| *bytes > 0);
        memory
    }

    fn block_at(&self, ptr: DevicePtr) -> Option<BlockInfo> {
        let bytes = self.locked(|state| {
            state.plans().find_map(|plan| Some(plan.block_at(plan.lane_at(ptr)?, ptr)?.1))
        })??;
        let mut block = BlockInfo::default();
        (block.address, block.bytes) = (ptr.address(), bytes);
        Some(block)
    }
}

impl<R: DeviceMemoryResource> Drop for PlanMemoryResource<R> {
    fn drop(&mut self) {
        self.end();
    }
}
