//! The types that the slow path and the heaps exchange.

use millpond_core::{DevicePtr, LiveBlock};

use crate::stream_order::Owner;

/// A block that needed no driver call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ready {
    /// A block that the requesting stream owned.
    Own(DevicePtr),
    /// An unowned block.
    Unowned(DevicePtr),
}

impl Ready {
    pub(crate) fn ptr(self) -> DevicePtr {
        match self {
            Self::Own(ptr) | Self::Unowned(ptr) => ptr,
        }
    }
}

/// How much to reclaim from the threads' caches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reclaim {
    /// The last large blocks only.
    Large,
    /// All blocks, if they are many enough to be worth a flush.
    All,
    /// All blocks.
    Everything,
}

/// The sizes in bytes of a new region from upstream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Growth {
    /// The size to try first.
    pub(crate) preferred: u64,
    /// The smallest size that serves the request.
    pub(crate) least: u64,
    /// Sizes in between are multiples of this.
    pub(crate) unit: u64,
}

impl Growth {
    /// Returns the next size to try after `bytes` were refused.
    pub(crate) fn after_refusal(&self, bytes: u64) -> Option<u64> {
        (bytes > self.least).then(|| {
            let half = (bytes / 2).next_multiple_of(self.unit);
            if half < bytes { half.max(self.least) } else { self.least }
        })
    }
}

/// The sizes and counts of a pool.
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
    /// Allocations without the pool's lock that took a block of their own stream.
    pub(crate) own_stream: u64,
    /// Allocations without the pool's lock that took an unowned block.
    pub(crate) completed: u64,
}

/// The circumstances of a request that could not be served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// The requesting stream.
    pub(crate) owner: Owner,
    /// Whether that stream captures a graph: then the pool does not wait for other streams.
    pub(crate) is_capturing: bool,
    /// The device's free bytes, if the pool takes memory from the device and returns it there.
    pub(crate) device_free: Option<u64>,
    /// The bytes of a page, if the pool could map pages and takes regions instead.
    pub(crate) page_bytes: Option<u64>,
}

/// The free blocks of an owner.
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
    /// The bytes of new memory that would serve the request together with its stream's free blocks.
    pub(crate) needed: u64,
    /// The most bytes that the pool may hold.
    pub(crate) maximum_bytes: Option<u64>,
    /// The bytes of the device's pages that hold the pool's memory.
    pub(crate) device_pages: u64,
    pub(crate) free: Vec<FreeOf>,
    /// Whether the free blocks would serve the request if all were unowned.
    pub(crate) merging_suffices: bool,
    /// Blocks in use without which the request could be served, if there are any such blocks.
    pub(crate) in_the_way: Vec<LiveBlock>,
    /// The number of free pages that would serve the request if the pool mapped pages.
    pub(crate) pages: Option<u64>,
    /// See [`OutOfMemoryReport::map`](millpond_core::OutOfMemoryReport::map).
    pub(crate) map: Option<String>,
}

/// Why the pool takes new memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// To serve a request.
    Serve,
    /// To hold it for later requests.
    Reserve,
}

/// How the pool tries to take new memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Try {
    /// In the sizes that are best for later requests.
    Preferred,
    /// As a region of at most this many bytes, since a larger one was refused.
    AtMost(u64),
    /// As pages from one driver call, after another process took some of the free memory: so one of two
    /// rivals succeeds. The number is how often it may be repeated.
    AtOnce(u32),
    /// No new memory: stitches free pages only.
    FreeOnly,
}

impl Try {
    /// Returns what to try after this was refused; `smaller` is the next smaller size of a region.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// After each refusal a region is tried in half its size, down to the least and no further.
    #[test]
    fn refused_sizes_become_smaller_down_to_the_least() {
        let sizes = |preferred, least, unit| {
            let growth = Growth { preferred, least, unit };
            std::iter::successors(Some(preferred), |bytes| growth.after_refusal(*bytes)).collect::<Vec<u64>>()
        };
        assert_eq!(sizes(64, 10, 8), [64, 32, 16, 10]);
        assert_eq!(sizes(24, 3, 8), [24, 16, 8, 3], "half of one unit is a unit again");
        assert_eq!(sizes(8, 8, 8), [8]);
        assert_eq!(sizes(20, 20, 8), [20]);
    }

    /// Pages are tried at once after a refusal, twice, and then free ones alone; a region in smaller sizes,
    /// as long as there are any.
    #[test]
    fn a_refused_growth_is_tried_again_in_other_ways() {
        let tries = |smaller: fn(Try) -> Option<Option<u64>>| {
            let next = |this: &Try| this.after(smaller(*this));
            std::iter::successors(Some(Try::Preferred), next).take(9).collect::<Vec<Try>>()
        };
        let pages = [Try::Preferred, Try::AtOnce(1), Try::AtOnce(0), Try::FreeOnly];
        assert_eq!(tries(|_| None), pages);
        let regions = tries(|this| match this {
            Try::AtMost(4) => Some(None),
            Try::AtMost(bytes) => Some(Some(bytes / 2)),
            _ => Some(Some(16)),
        });
        assert_eq!(regions, [Try::Preferred, Try::AtMost(16), Try::AtMost(8), Try::AtMost(4)]);
        assert_eq!(Try::AtMost(8).after(None), None, "the pool no longer plans a region");
    }
}
