use std::sync::Arc;

use millpond_core::DevicePtr;
use millpond_core::driver::{Driver, DriverResult};

use super::chunk::NIL;
use super::directory::Block;
use super::heaps::{Heaps, LARGE};
use super::large::{Large, NewSpan};
use super::pages::{Admission, Plan, Release};
use crate::ordered::{ANYONE, Epoch, Request};

/// What the pool does at the driver by itself.
#[derive(Debug)]
pub(crate) enum PoolErrand {
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
    Release(Release),
    /// Access for other devices.
    Admit(Admission),
}

impl PoolErrand {
    pub(crate) fn new_bytes(&self) -> u64 {
        match self {
            Self::Block { plan, .. } | Self::Span { plan, .. } | Self::Reserve(plan) => plan.new_bytes(),
            Self::Release(_) | Self::Admit(_) => 0,
        }
    }

    pub(crate) fn take_at_once(&mut self) {
        match self {
            Self::Block { plan, .. } | Self::Span { plan, .. } | Self::Reserve(plan) => plan.take_at_once(),
            Self::Release(_) | Self::Admit(_) => {}
        }
    }

    pub(crate) fn carry_out(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        match self {
            Self::Block { plan, .. } | Self::Span { plan, .. } | Self::Reserve(plan) => {
                plan.carry_out(driver)
            }
            Self::Release(release) => release.carry_out(driver),
            Self::Admit(admission) => admission.carry_out(driver),
        }
    }

    pub(crate) fn finish(self, heaps: &mut Heaps) -> Option<DevicePtr> {
        let shared = Arc::clone(&heaps.shared);
        if !matches!(self, Self::Release(_) | Self::Admit(_)) {
            heaps.set_short(false);
        }
        let Large::Pages(pages) = &mut heaps.large else { return None };
        match self {
            Self::Block { plan, request } => {
                let (chunk, addr) = pages.commit(plan);
                pages.enter(&shared.directory, Block { chunk, ..shared.entered(LARGE, NIL, &request) }, addr);
                Some(DevicePtr::new(addr))
            }
            Self::Span { plan, request, bytes } => {
                let (chunk, base) = pages.commit(plan);
                pages.leave(chunk);
                let mut arena = shared.arenas.lock(request.shard);
                arena.add_span(&NewSpan { chunk, base, bytes, epoch: 0 }, ANYONE);
                let chunk = arena.heap.find(ANYONE, Epoch::MAX, &request)?;
                Some(shared.take(request.shard, &mut arena, chunk, &request))
            }
            Self::Reserve(plan) => {
                pages.commit_reserve(plan);
                None
            }
            Self::Release(release) => {
                pages.finish_release(release);
                None
            }
            Self::Admit(admission) => {
                pages.finish_admission(&admission);
                None
            }
        }
    }

    pub(crate) fn abandon(self, heaps: &mut Heaps) {
        let Large::Pages(pages) = &mut heaps.large else { return };
        match self {
            Self::Block { plan, .. } | Self::Span { plan, .. } | Self::Reserve(plan) => pages.abandon(plan),
            Self::Release(release) => pages.finish_release(release),
            Self::Admit(_) => {}
        }
    }

    pub(crate) fn released_bytes(&self) -> u64 {
        match self {
            Self::Release(release) => release.released_bytes(),
            _ => 0,
        }
    }
}
