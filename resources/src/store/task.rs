//! Tasks of a store that call the driver or upstream. They are planned and committed under the pool's lock,
//! and run without it.

use millpond_core::driver::{Driver, DriverResult};
use millpond_core::segments::SegmentAction;
use millpond_core::{DevicePtr, Error, MemoryInfo};

use crate::block_map::ChunkId;
use crate::heap::request::{Cursor, Request};
use crate::store::pages::{Admission, Plan, Release};
use crate::stream_order::{ANY_STREAM, Epoch, Owner};

/// A change of the pool's memory that needs calls of the driver or upstream.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a task is made once a growth and lives as long as its calls")]
#[must_use = "a task keeps memory until it is committed or aborted"]
pub(crate) enum Task {
    /// Maps pages.
    Map { plan: Plan, purpose: Purpose },
    /// Takes a region from upstream.
    Region(NewRegion),
    /// Unmaps pages, and releases them to the driver.
    Release(Release),
    /// Returns free regions to upstream.
    Return(ReturnedRegions),
    /// Gives other devices access.
    Admit(Admission),
}

/// Why there is no memory for a request.
#[derive(Debug)]
pub(crate) enum NoMemory {
    /// The pool's maximum does not allow new memory.
    OwnLimit,
    /// The device or upstream has too little. Holds its error, if it was asked for memory.
    Below(Option<Error>),
    /// The request exceeds all memory that could become free. Holds the device's answer, if it was asked.
    Impossible(Option<MemoryInfo>),
}

/// The purpose of new memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// A large block.
    Block(Request),
    /// A span of this many bytes, for a small block.
    Span(Request, u64),
    /// Requests that come later.
    Reserve { bytes: u64 },
}

/// The inputs of a growth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    pub(crate) owner: Owner,
    pub(crate) purpose: Purpose,
    pub(crate) how: Try,
    /// The most bytes of new memory.
    pub(crate) most_new: u64,
    /// The live bytes, and the number of allocations and deallocations so far.
    pub(crate) live_bytes: u64,
    pub(crate) operations: u64,
}

/// How the pool tries to take new memory. After a refusal, pages are tried in the [next](Try::next_way) way,
/// and regions [at most](Try::AtMost) in half the size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Try {
    /// In the sizes that are best for later requests.
    Preferred,
    /// As a region of at most this many bytes, since a larger one was refused. `Regions::plan` reads this.
    AtMost(u64),
    /// As pages from one driver call, after another process took some of the free memory: so one of two
    /// rivals succeeds. The number says how often this may be repeated. `Central::promise` reads this, and
    /// `Reading::most_new`. If the driver refuses the one handle too, the call halves it
    /// (`Work::create`).
    AtOnce(u32),
    /// No new memory: stitches free pages only. `State::plan` reads this, and allows no new bytes.
    FreeOnly,
}

/// Which unowned memory a task returns.
#[derive(Debug)]
pub(crate) enum Returning<'a> {
    /// A part of the memory beyond `keep_bytes`, with about `most_calls` driver calls.
    Free { keep_bytes: u64, most_calls: usize },
    /// The next free extent, while the pool holds more than `keep_bytes`. Regions do not return in steps.
    Step { keep_bytes: u64, at: &'a mut Cursor },
    /// The pages beyond the target. The check of all streams took `calls_of_look` driver calls.
    Excess { calls_of_look: u64 },
    /// Mappings that a growth left behind.
    Mappings,
}

/// A region that the pool takes from upstream.
#[derive(Debug)]
pub(crate) struct NewRegion {
    pub(crate) bytes: u64,
    /// The bytes to try next if upstream refuses.
    pub(crate) smaller: Option<u64>,
    pub(crate) purpose: Purpose,
    /// Its address, once upstream has allocated it.
    pub(crate) base: DevicePtr,
    /// The stream that owns it, and its epoch.
    pub(crate) owner: (Owner, Epoch),
}

/// Regions that the pool returns to upstream.
#[derive(Debug)]
pub(crate) struct ReturnedRegions {
    pub(crate) bytes: u64,
    /// Base and bytes of the regions that upstream does not have yet.
    pub(crate) left: Vec<(DevicePtr, u64)>,
}

/// A span for small blocks: a block of the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewSpan {
    pub(crate) chunk: ChunkId,
    /// The number of its region; 0 over pages, whose addresses alone give the order.
    pub(crate) region: u32,
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    /// The latest epoch in which any of its bytes was freed.
    pub(crate) epoch: Epoch,
}

/// The result of a committed task.
#[derive(Debug)]
pub(crate) enum Committed {
    /// A block, to be inserted into the block map at its address.
    Block {
        chunk: ChunkId,
        addr: u64,
        request: Request,
    },
    /// A span, for an arena.
    Span(NewSpan, Request),
    /// Memory of an owner, from which the request may be taken now.
    Memory(Owner, Option<Request>),
    Nothing,
}

impl Purpose {
    /// Returns the request that is to be served.
    pub(crate) fn request(&self) -> Option<Request> {
        match self {
            Self::Block(request) | Self::Span(request, _) => Some(*request),
            Self::Reserve { .. } => None,
        }
    }
}

impl Try {
    /// Returns the next way to take pages, if there is one.
    pub(crate) fn next_way(self) -> Option<Self> {
        match self {
            Self::Preferred => Some(Self::AtOnce(1)),
            Self::AtOnce(0) => Some(Self::FreeOnly),
            Self::AtOnce(again) => Some(Self::AtOnce(again - 1)),
            Self::FreeOnly | Self::AtMost(_) => None,
        }
    }
}

impl NewRegion {
    pub(crate) fn new(bytes: u64, smaller: Option<u64>, purpose: Purpose) -> Self {
        Self { bytes, smaller, purpose, base: DevicePtr::NULL, owner: (ANY_STREAM, 0) }
    }
}

impl Task {
    /// Returns whether the task takes memory.
    pub(crate) fn is_growth(&self) -> bool {
        matches!(self, Self::Map { .. } | Self::Region(_))
    }

    pub(crate) fn is_region(&self) -> bool {
        matches!(self, Self::Region(_))
    }

    pub(crate) fn is_admission(&self) -> bool {
        matches!(self, Self::Admit(_))
    }

    /// Returns whether a shutdown has no memory to return.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Return(regions) if regions.bytes == 0)
    }

    /// Returns the bytes of new memory that the task takes.
    pub(crate) fn new_bytes(&self) -> u64 {
        match self {
            Self::Map { plan, .. } => plan.work.new_bytes(),
            Self::Region(region) => region.bytes,
            Self::Release(_) | Self::Return(_) | Self::Admit(_) => 0,
        }
    }

    /// Returns how to try again after this growth was refused in the way `how`: with a smaller region, or
    /// with pages in the next way.
    pub(crate) fn after_refusal(&self, how: Try) -> Option<Try> {
        match self {
            Self::Region(region) => region.smaller.map(Try::AtMost),
            _ => how.next_way(),
        }
    }

    /// Returns the bytes that the task's run returned to the driver or to upstream.
    pub(crate) fn released_bytes(&self) -> u64 {
        match self {
            Self::Release(release) => release.released_bytes(),
            Self::Return(regions) if regions.left.is_empty() => regions.bytes,
            _ => 0,
        }
    }

    /// Returns the memory that the task's run took or returned: action, address and bytes. Regions are told
    /// apart by the caller, who returns them.
    pub(crate) fn changes(&self) -> Vec<(SegmentAction, u64, u64)> {
        match self {
            Self::Map { plan, .. } => {
                let primaries = plan.work.new_primaries();
                primaries.map(|(addr, bytes)| (SegmentAction::Map, addr, bytes)).into_iter().collect()
            }
            Self::Region(region) => vec![(SegmentAction::Allocate, region.base.address(), region.bytes)],
            Self::Release(release) => {
                release.released().map(|(addr, bytes)| (SegmentAction::Unmap, addr, bytes)).collect()
            }
            Self::Return(_) | Self::Admit(_) => Vec::new(),
        }
    }

    /// Returns the regions that upstream does not have yet: base and bytes.
    pub(crate) fn regions_left(&self) -> &[(DevicePtr, u64)] {
        if let Self::Return(regions) = self { &regions.left } else { &[] }
    }

    /// Changes the task to take its new pages in one driver call.
    pub(crate) fn take_at_once(&mut self) {
        if let Self::Map { plan, .. } = self {
            plan.work.take_at_once();
        }
    }

    /// Makes the task's driver calls. It does not call upstream: the caller takes regions there and returns
    /// them.
    pub(crate) fn make_calls(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        match self {
            Self::Map { plan, .. } => plan.work.make_calls(driver),
            Self::Release(release) => release.make_calls(driver),
            Self::Admit(admission) => admission.make_calls(driver),
            Self::Region(_) | Self::Return(_) => Ok(()),
        }
    }

    /// Undoes the driver calls of a run that did not return. The caller handles regions.
    pub(crate) fn undo(&mut self, driver: &dyn Driver) {
        if let Self::Map { plan, .. } = self {
            plan.work.undo(driver, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After a refusal, pages are tried twice in one driver call, and then only free pages are stitched. A
    /// region is tried in smaller sizes, while there are any.
    #[test]
    fn a_refused_growth_is_tried_again_in_other_ways() {
        let ways = std::iter::successors(Some(Try::Preferred), |how| how.next_way());
        let pages = [Try::Preferred, Try::AtOnce(1), Try::AtOnce(0), Try::FreeOnly];
        assert_eq!(ways.collect::<Vec<Try>>(), pages);
        for (how, smaller, next) in [
            (Try::Preferred, Some(16), Some(Try::AtMost(16))),
            (Try::AtMost(16), Some(8), Some(Try::AtMost(8))),
            (Try::AtMost(8), None, None),
        ] {
            let region = NewRegion::new(64, smaller, Purpose::Reserve { bytes: 64 });
            assert_eq!(Task::Region(region).after_refusal(how), next);
        }
        assert_eq!(Try::AtMost(8).next_way(), None, "the pool no longer plans a region");
    }
}
