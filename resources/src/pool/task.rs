use std::sync::Arc;

use millpond_core::driver::{Driver, DriverResult};
use millpond_core::{ALLOCATION_ALIGNMENT, DevicePtr};

use crate::backing::paged::{Admission, Plan, Release};
use crate::backing::{Large, NewSpan};
use crate::block_map::Block;
use crate::block_map::NIL;
use crate::heap::request::Request;
use crate::pool::heaps::{Heaps, LARGE};
use crate::pool::protocol::{Growth, Lack, Purpose, Try};
use crate::stream_order::{ANY_STREAM, Epoch, Owner};
use crate::tuning::DEVICE_PAGE;

/// What the pool does at the driver by itself.
#[derive(Debug)]
pub(crate) enum Task {
    /// A large block.
    Block {
        plan: Plan,
        request: Request,
    },
    /// A span, and a small block in it.
    Span {
        plan: Plan,
        request: Request,
        bytes: u64,
    },
    /// Free memory.
    Reserve(Plan),
    /// A region from upstream.
    Region(NewRegion),
    Release(Release),
    /// Access for other devices.
    Admit(Admission),
}

/// A region that is taken from upstream.
#[derive(Debug)]
pub(crate) struct NewRegion {
    pub(crate) bytes: u64,
    /// Bytes to try next, if upstream refuses.
    smaller: Option<u64>,
    /// The request that it is to serve.
    request: Option<Request>,
    /// Where it starts, once it is taken.
    pub(crate) base: DevicePtr,
    /// The stream, and its epoch, for which it is ordered.
    pub(crate) owner: (Owner, Epoch),
}

impl Heaps {
    /// A growth with at most `most_new` bytes of new memory.
    pub(crate) fn plan_growth(
        &mut self,
        owner: Owner,
        request: &Request,
        purpose: Purpose,
        this: Try,
        most_new: u64,
    ) -> Result<Task, Lack> {
        match (&self.large, purpose) {
            (Large::Regions(_), _) => self.plan_region(request, purpose, this, most_new),
            (Large::Pages(_), Purpose::Serve) => self.plan_pages(owner, request, most_new),
            (Large::Pages(_), Purpose::Reserve) => self.plan_reserve(request.bytes, most_new),
        }
    }

    fn plan_region(
        &self,
        request: &Request,
        purpose: Purpose,
        this: Try,
        most_new: u64,
    ) -> Result<Task, Lack> {
        let growth = match purpose {
            Purpose::Serve => self.growth(request).ok_or(Lack::OwnLimit)?,
            Purpose::Reserve => {
                let bytes = request.bytes;
                Growth { preferred: bytes, least: bytes, unit: ALLOCATION_ALIGNMENT }
            }
        };
        let mut bytes = match this {
            Try::AtMost(most) => most.clamp(growth.least, growth.preferred),
            _ => growth.preferred,
        };
        // Small blocks may lie in pages that the driver has already.
        while bytes >= DEVICE_PAGE && bytes > most_new {
            bytes = growth.after_refusal(bytes).ok_or(Lack::NewMemory)?;
        }
        Ok(Task::Region(NewRegion {
            bytes,
            smaller: growth.after_refusal(bytes),
            request: (purpose == Purpose::Serve).then_some(*request),
            base: DevicePtr::NULL,
            owner: (ANY_STREAM, 0),
        }))
    }
}

impl Task {
    /// Over regions: the next smaller region to try, if there is one.
    pub(crate) fn smaller_region(&self) -> Option<Option<u64>> {
        match self {
            Self::Region(region) => Some(region.smaller),
            _ => None,
        }
    }

    pub(crate) fn new_bytes(&self) -> u64 {
        match self {
            Self::Block { plan, .. } | Self::Span { plan, .. } | Self::Reserve(plan) => plan.new_bytes(),
            Self::Region(region) => region.bytes,
            Self::Release(_) | Self::Admit(_) => 0,
        }
    }

    pub(crate) fn take_at_once(&mut self) {
        match self {
            Self::Block { plan, .. } | Self::Span { plan, .. } | Self::Reserve(plan) => plan.take_at_once(),
            Self::Region(_) | Self::Release(_) | Self::Admit(_) => {}
        }
    }

    pub(crate) fn run(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        match self {
            Self::Block { plan, .. } | Self::Span { plan, .. } | Self::Reserve(plan) => plan.run(driver),
            // Upstream is not the driver's to call.
            Self::Region(_) => Ok(()),
            Self::Release(release) => release.run(driver),
            Self::Admit(admission) => admission.run(driver),
        }
    }

    pub(crate) fn commit(self, heaps: &mut Heaps) -> Option<DevicePtr> {
        let shared = Arc::clone(&heaps.shared);
        if !matches!(self, Self::Release(_) | Self::Admit(_)) {
            heaps.set_short(false);
        }
        if let Self::Region(region) = self {
            let (owner, epoch) = region.owner;
            heaps.add_region(region.base, region.bytes, owner, epoch);
            return heaps.take(owner, Epoch::MAX, &region.request?);
        }
        let Large::Pages(pages) = &mut heaps.large else { return None };
        match self {
            Self::Region(_) => None,
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

    pub(crate) fn abort(self, heaps: &mut Heaps) {
        let Large::Pages(pages) = &mut heaps.large else { return };
        match self {
            Self::Block { plan, .. } | Self::Span { plan, .. } | Self::Reserve(plan) => pages.abort(plan),
            Self::Release(release) => pages.commit_release(release),
            Self::Region(_) | Self::Admit(_) => {}
        }
    }

    pub(crate) fn released_bytes(&self) -> u64 {
        match self {
            Self::Release(release) => release.released_bytes(),
            _ => 0,
        }
    }
}
