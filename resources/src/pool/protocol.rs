//! What the slow path and the heaps say to each other.

use millpond_core::{DevicePtr, LiveBlock};

use crate::stream_order::Owner;

/// Whose block served a request without a driver call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ready {
    /// The requesting stream's own.
    Own(DevicePtr),
    /// Unowned.
    Unowned(DevicePtr),
}

impl Ready {
    pub(crate) fn ptr(self) -> DevicePtr {
        match self {
            Self::Own(ptr) | Self::Unowned(ptr) => ptr,
        }
    }
}

/// How much to take back from threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reclaim {
    /// The few large blocks.
    Large,
    /// All, if it is worth the work.
    All,
    /// All, however little.
    Everything,
}

/// How much to take from upstream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Growth {
    /// Bytes to try first.
    pub(crate) preferred: u64,
    /// Bytes without which it is no use.
    pub(crate) least: u64,
    /// Sizes in between are multiples of this.
    pub(crate) unit: u64,
}

impl Growth {
    /// The next size to try after `bytes` were refused.
    pub(crate) fn after_refusal(&self, bytes: u64) -> Option<u64> {
        (bytes > self.least).then(|| {
            let half = (bytes / 2).next_multiple_of(self.unit);
            if half < bytes { half.max(self.least) } else { self.least }
        })
    }
}

/// Sizes and counts of a pool, without the streams.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct PoolTotals {
    pub(crate) bytes_in_use: u64,
    pub(crate) bytes_requested: u64,
    pub(crate) peak_bytes_in_use: u64,
    pub(crate) bytes_reserved: u64,
    pub(crate) peak_bytes_reserved: u64,
    pub(crate) bytes_beyond_slack: u64,
    pub(crate) blocks_in_use: u64,
    pub(crate) blocks_free: u64,
    pub(crate) regions: u64,
    /// Accepted deallocations so far.
    pub(crate) deallocations: u64,
    /// Allocations that were served past the lock, from the stream's own blocks and from unowned.
    pub(crate) own_stream: u64,
    pub(crate) completed: u64,
}

/// Where a request stood that could not be served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// The stream that asked.
    pub(crate) owner: Owner,
    /// Whether it captures a graph: then nobody waits for other streams.
    pub(crate) is_capturing: bool,
    /// What the device has free, where memory that the pool gives back goes there, and comes from there.
    pub(crate) device_free: Option<u64>,
    /// The size of a page, where the pool could have mapped some instead of taking regions.
    pub(crate) page_bytes: Option<u64>,
}

/// What is free for an owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeOf {
    pub(crate) owner: Owner,
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    pub(crate) largest: u64,
}

/// Why a pool could not serve a request, and what would have helped.
#[derive(Debug, Default)]
pub(crate) struct Shortage {
    /// New memory with which the request would be served, beside what is free for its stream.
    pub(crate) needed: u64,
    /// The most that the pool may hold.
    pub(crate) maximum_bytes: Option<u64>,
    pub(crate) free: Vec<FreeOf>,
    /// Whether what is free would serve the request if it were all unowned.
    pub(crate) merging_suffices: bool,
    /// Blocks in use without which the request would be served; none if there are no such.
    pub(crate) in_the_way: Vec<LiveBlock>,
    /// Free pages that would have served it together: how many are needed.
    pub(crate) pages: Option<u64>,
    /// See [`OutOfMemoryReport::map`](millpond_core::OutOfMemoryReport::map).
    pub(crate) map: Option<String>,
}

/// What new memory is taken for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// To serve a request.
    Serve,
    /// To have it.
    Reserve,
}

/// How new memory is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Try {
    /// In the sizes that serve best later.
    Preferred,
    /// A region of at most this many bytes, since a larger one was refused.
    AtMost(u64),
    /// Pages in one driver call, after a rival took a part of what there was: then one of the two gets it,
    /// and not neither. This often again, if it is refused.
    AtOnce(u32),
    /// None: only pages that are free already.
    FreeOnly,
}

impl Try {
    /// What to try after this was refused; `smaller` is the next smaller region, over regions.
    pub(crate) fn after(self, smaller: Option<Option<u64>>) -> Option<Self> {
        match (self, smaller) {
            (Self::AtMost(_), None) => None,
            (_, Some(smaller)) => smaller.map(Self::AtMost),
            (Self::Preferred, None) => Some(Self::AtOnce(1)),
            (Self::AtOnce(again), None) if again > 0 => Some(Self::AtOnce(again - 1)),
            (Self::AtOnce(_), None) => Some(Self::FreeOnly),
            (Self::FreeOnly, None) => None,
        }
    }
}

/// Why a pool has no task that would bring a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lack {
    /// The pool may not hold as much as it would need.
    OwnLimit,
    /// It would need more new memory than it was told to plan with.
    NewMemory,
}
