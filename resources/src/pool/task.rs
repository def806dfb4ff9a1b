//! The tasks of a pool at the driver or upstream: planned and committed under the pool's lock, run without
//! it.

use std::iter;
use std::sync::Arc;

use millpond_core::driver::{Driver, DriverResult};
use millpond_core::{ALLOCATION_ALIGNMENT, DeviceId, DevicePtr};

use crate::backing::paged::{Admission, Pages, Plan, Refused, Release};
use crate::backing::{Large, NewSpan};
use crate::block_map::{Block, NIL};
use crate::heap::request::Request;
use crate::pool::central::NoMemory;
use crate::pool::heaps::{Heaps, LARGE};
use crate::pool::protocol::{Growth, Purpose, Reclaim, Try};
use crate::pool::tasks_under_way::Kind;
use crate::stream_order::{ANY_STREAM, Epoch, Owner};
use crate::tuning::{ALLOCATIONS_PER_RELEASE, DEVICE_PAGE, PAGED_SPAN_BYTES};

/// A change of the pool's memory that needs calls of the driver or upstream.
#[derive(Debug)]
pub(crate) enum Task {
    /// Maps a large block.
    Block { plan: Plan, request: Request },
    /// Maps a span, and allocates a small block in it.
    Span { plan: Plan, request: Request, bytes: u64 },
    /// Maps free memory.
    Reserve(Plan),
    /// Takes a region from upstream.
    Region(NewRegion),
    /// Unmaps memory, and releases it to the driver.
    Release(Release),
    /// Returns free regions to upstream.
    Return(ReturnedRegions),
    /// Gives other devices access.
    Admit(Admission),
}

/// A region that the pool takes from upstream.
#[derive(Debug)]
pub(crate) struct NewRegion {
    pub(crate) bytes: u64,
    /// The bytes to try next if upstream refuses.
    smaller: Option<u64>,
    /// The request to allocate from it.
    request: Option<Request>,
    /// Its address, once upstream has allocated it.
    pub(crate) base: DevicePtr,
    /// The stream that owns it, and its epoch.
    pub(crate) owner: (Owner, Epoch),
}

/// Returns what a refused plan of pages lacked.
fn no_memory(pages: &Pages, refused: &Refused) -> NoMemory {
    if pages.is_at_limit(refused) { NoMemory::OwnLimit } else { NoMemory::Below(None) }
}

/// Regions that the pool returns to upstream.
#[derive(Debug)]
pub(crate) struct ReturnedRegions {
    bytes: u64,
    /// Base and bytes of those that upstream does not have yet.
    pub(crate) left: Vec<(DevicePtr, u64)>,
}

impl ReturnedRegions {
    fn new(regions: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let left: Vec<(DevicePtr, u64)> =
            regions.into_iter().map(|(base, bytes)| (DevicePtr::new(base), bytes)).collect();
        Self { bytes: left.iter().map(|(_, bytes)| bytes).sum(), left }
    }
}

impl Heaps {
    /// Plans a growth with at most `most_new` bytes of new memory.
    pub(crate) fn plan_growth(
        &mut self,
        owner: Owner,
        request: &Request,
        purpose: Purpose,
        this: Try,
        most_new: u64,
    ) -> Result<Task, NoMemory> {
        let task = match (&self.large, purpose) {
            (Large::Regions(_), _) => self.plan_region(request, purpose, this, most_new),
            (Large::Pages(_), Purpose::Serve) => self.plan_pages(owner, request, most_new),
            (Large::Pages(_), Purpose::Reserve) => self.plan_reserve(request.bytes, most_new),
        };
        task.map(|task| self.begin(task))
    }

    /// Notes that a task is under way, until its commit or abort.
    pub(super) fn begin(&mut self, task: Task) -> Task {
        self.tasks.begin(task.kind());
        task
    }

    fn plan_region(
        &self,
        request: &Request,
        purpose: Purpose,
        this: Try,
        most_new: u64,
    ) -> Result<Task, NoMemory> {
        let growth = match purpose {
            Purpose::Serve => self.growth(request).ok_or(NoMemory::OwnLimit)?,
            Purpose::Reserve => {
                let bytes = request.bytes;
                Growth { preferred: bytes, least: bytes, unit: ALLOCATION_ALIGNMENT }
            }
        };
        let mut bytes = match this {
            Try::AtMost(most) => most.clamp(growth.least, growth.preferred),
            _ => growth.preferred,
        };
        // The driver serves regions below a page from pages that it has.
        while bytes >= DEVICE_PAGE && bytes > most_new {
            bytes = growth.after_refusal(bytes).ok_or(NoMemory::Below(None))?;
        }
        Ok(Task::Region(NewRegion {
            bytes,
            smaller: growth.after_refusal(bytes),
            request: (purpose == Purpose::Serve).then_some(*request),
            base: DevicePtr::NULL,
            owner: (ANY_STREAM, 0),
        }))
    }

    fn plan_pages(&mut self, owner: Owner, request: &Request, most_new: u64) -> Result<Task, NoMemory> {
        let (live, operations) = self.live_bytes_and_operations();
        self.last_growth_at = operations;
        let span = self.is_small(request).then(|| {
            let arena = self.shared.arenas.lock(request.shard);
            self.span_wanted(&arena, request)
        });
        let Large::Pages(pages) = &mut self.large else { return Err(NoMemory::OwnLimit) };
        pages.note_operations(operations);
        let request = *request;
        match span {
            None => {
                let plan = pages.plan(owner, &request, false, live, most_new);
                plan.map(|plan| Task::Block { plan, request })
            }
            Some(bytes) => {
                let mut span_of = |bytes| {
                    let plan = pages.plan(ANY_STREAM, &Request { bytes, ..request }, true, live, most_new);
                    plan.map(|plan| Task::Span { plan, request, bytes })
                };
                let span = span_of(bytes);
                // Contending threads want larger ones, which need not fit.
                if bytes > PAGED_SPAN_BYTES { span.or_else(|_| span_of(PAGED_SPAN_BYTES)) } else { span }
            }
        }
        .map_err(|refused| no_memory(pages, &refused))
    }

    fn plan_reserve(&mut self, bytes: u64, most_new: u64) -> Result<Task, NoMemory> {
        let Large::Pages(pages) = &mut self.large else { return Err(NoMemory::OwnLimit) };
        let plan = pages.plan_reserve(bytes, most_new).map(Task::Reserve);
        plan.map_err(|refused| no_memory(pages, &refused))
    }

    /// Plans the return of some unowned memory, while the pool holds more than `keep_bytes`: of regions or
    /// handles, with about `most_calls` driver calls.
    pub(crate) fn plan_release(&mut self, keep_bytes: u64, most_calls: usize) -> Option<Task> {
        let task = match &mut self.large {
            large @ Large::Regions(_) => {
                let next =
                    || if large.bytes_reserved() > keep_bytes { large.remove_free_region() } else { None };
                let regions = ReturnedRegions::new(iter::from_fn(next).take(most_calls));
                (regions.bytes > 0).then_some(Task::Return(regions))
            }
            Large::Pages(pages) if self.tasks.may_release() => {
                pages.plan_release(keep_bytes, most_calls).map(Task::Release)
            }
            Large::Pages(_) => None,
        };
        task.map(|task| self.begin(task))
    }

    /// Returns whether the pool should release excess memory now.
    pub(crate) fn has_excess(&mut self) -> bool {
        let Large::Pages(pages) = &self.large else { return false };
        // Contending threads lose more by a flush of their caches than the memory is worth.
        if !pages.has_excess() || self.shared.arenas.are_contended() {
            return false;
        }
        self.allocations_with_excess = self.allocations_with_excess.wrapping_add(1);
        if !self.allocations_with_excess.is_multiple_of(ALLOCATIONS_PER_RELEASE) {
            return false;
        }
        let (calls, (_, operations)) = (self.calls_to_collect(), self.live_bytes_and_operations());
        let Large::Pages(pages) = &mut self.large else { return false };
        pages.may_spend(calls, operations)
    }

    pub(crate) fn plan_excess(&mut self) -> Option<Task> {
        self.reclaim(Reclaim::Everything);
        let calls = self.calls_to_collect();
        let Large::Pages(pages) = &mut self.large else { return None };
        let release = if self.tasks.may_release() { pages.plan_excess(calls) } else { None };
        release.map(|release| self.begin(Task::Release(release)))
    }

    /// Plans the removal of mappings that a growth left behind.
    pub(crate) fn plan_tidying(&mut self) -> Option<Task> {
        let Large::Pages(pages) = &mut self.large else { return None };
        let release = if self.tasks.may_release() { pages.plan_tidying() } else { None };
        release.map(|release| self.begin(Task::Release(release)))
    }

    pub(crate) fn plan_admission(&mut self, devices: &[DeviceId], is_asked: bool) -> Option<Task> {
        let Large::Pages(pages) = &mut self.large else { return None };
        pages.plan_admission(devices, is_asked).map(|admission| self.begin(Task::Admit(admission)))
    }

    /// Returns whether no task is under way.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Plans the release of all memory, in use or not.
    pub(crate) fn plan_shutdown(&mut self) -> Task {
        match &mut self.large {
            Large::Pages(pages) => {
                // Counted until the pool's parts are gone.
                self.tasks.begin(Kind::Return { bytes: pages.bytes_reserved() });
                Task::Release(pages.release_all())
            }
            Large::Regions(heap) => {
                let regions = heap.remove_all_regions().into_iter();
                Task::Return(ReturnedRegions::new(regions.map(|region| (region.base, region.bytes))))
            }
        }
    }
}

impl Task {
    /// Returns, for a region, the next smaller size to try, if there is one.
    pub(crate) fn smaller_region(&self) -> Option<Option<u64>> {
        match self {
            Self::Region(region) => Some(region.smaller),
            _ => None,
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Region(region) => Kind::Region { bytes: region.bytes },
            Self::Return(regions) => Kind::Return { bytes: regions.bytes },
            Self::Admit(_) => Kind::Admission,
            _ => Kind::Other,
        }
    }

    /// Returns the bytes of new memory that the task takes.
    pub(crate) fn new_bytes(&self) -> u64 {
        match self {
            Self::Block { plan, .. } | Self::Span { plan, .. } | Self::Reserve(plan) => plan.new_bytes(),
            Self::Region(region) => region.bytes,
            Self::Release(_) | Self::Return(_) | Self::Admit(_) => 0,
        }
    }

    /// Changes the task to take its new memory in one driver call.
    pub(crate) fn take_at_once(&mut self) {
        match self {
            Self::Block { plan, .. } | Self::Span { plan, .. } | Self::Reserve(plan) => plan.take_at_once(),
            Self::Region(_) | Self::Release(_) | Self::Return(_) | Self::Admit(_) => {}
        }
    }

    /// Makes the task's driver calls. Regions come from upstream and return there, which the caller calls.
    pub(crate) fn run(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        match self {
            Self::Block { plan, .. } | Self::Span { plan, .. } | Self::Reserve(plan) => plan.run(driver),
            Self::Region(_) | Self::Return(_) => Ok(()),
            Self::Release(release) => release.run(driver),
            Self::Admit(admission) => admission.run(driver),
        }
    }

    /// Undoes the driver calls of a run that did not return. A region is with the caller.
    pub(crate) fn undo(&mut self, driver: &dyn Driver) {
        match self {
            Self::Block { plan, .. } | Self::Span { plan, .. } | Self::Reserve(plan) => plan.undo(driver),
            Self::Region(_) | Self::Release(_) | Self::Return(_) | Self::Admit(_) => {}
        }
    }

    /// Notes in the heaps what the task has done; returns the block, if the task allocates one.
    pub(crate) fn commit(self, heaps: &mut Heaps) -> Option<DevicePtr> {
        heaps.tasks.end(self.kind());
        let shared = Arc::clone(&heaps.shared);
        if self.is_growth() {
            heaps.set_short(false);
        }
        if let Self::Region(region) = self {
            let (owner, epoch) = region.owner;
            heaps.add_region(region.base, region.bytes, owner, epoch);
            return heaps.take(owner, Epoch::MAX, &region.request?);
        }
        let Large::Pages(pages) = &mut heaps.large else { return None };
        match self {
            Self::Region(_) | Self::Return(_) => None,
            Self::Block { plan, request } => {
                let (chunk, addr) = pages.commit(plan);
                pages.insert_block(
                    &shared.block_map,
                    Block { chunk, ..shared.block_for(LARGE, NIL, &request) },
                    addr,
                );
                Some(DevicePtr::new(addr))
            }
            Self::Span { plan, request, bytes } => {
                let (chunk, base) = pages.commit(plan);
                pages.remove_block(chunk);
                let mut arena = shared.arenas.lock(request.shard);
                arena.add_span(&NewSpan { chunk, base, bytes, epoch: 0 }, ANY_STREAM);
                let chunk = arena.heap.find(ANY_STREAM, Epoch::MAX, &request)?;
                Some(shared.take(request.shard, &mut arena, chunk, &request))
            }
            Self::Reserve(plan) => {
                pages.commit_reserve(plan);
                None
            }
            Self::Release(release) => {
                pages.commit_release(release);
                None
            }
            Self::Admit(admission) => {
                pages.commit_admission(&admission);
                None
            }
        }
    }

    /// Undoes the plan of a task whose run failed, or that was not run.
    pub(crate) fn abort(self, heaps: &mut Heaps) {
        heaps.tasks.end(self.kind());
        let pages = match (&mut heaps.large, &self) {
            (Large::Pages(pages), _) => pages,
            (Large::Regions(heap), Self::Return(regions)) => {
                for (base, bytes) in &regions.left {
                    heap.add_region(base.address(), *bytes, ANY_STREAM, 0);
                }
                return;
            }
            (Large::Regions(_), _) => return,
        };
        match self {
            Self::Block { plan, .. } | Self::Span { plan, .. } | Self::Reserve(plan) => pages.abort(plan),
            Self::Release(release) => pages.commit_release(release),
            Self::Admit(admission) => pages.abort_admission(&admission),
            Self::Region(_) | Self::Return(_) => {}
        }
    }

    /// Returns the bytes that the task's run released to the driver.
    pub(crate) fn released_bytes(&self) -> u64 {
        match self {
            Self::Release(release) => release.released_bytes(),
            Self::Return(regions) if regions.left.is_empty() => regions.bytes,
            _ => 0,
        }
    }

    /// Returns whether a shutdown has no memory to return.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Return(regions) if regions.bytes == 0)
    }

    /// Returns whether the task takes memory.
    pub(crate) fn is_growth(&self) -> bool {
        !matches!(self, Self::Release(_) | Self::Return(_) | Self::Admit(_))
    }

    pub(crate) fn is_admission(&self) -> bool {
        matches!(self, Self::Admit(_))
    }
}
