//! Finds a free extent in the primary mapping that serves a request.

use millpond_core::{ALLOCATION_ALIGNMENT, align_up};

use crate::block_map::ChunkId;
use crate::heap::request::Request;
use crate::store::pages::handles::AddressRange;
use crate::store::pages::state::Pages;
use crate::stream_order::{Epoch, Owner};
use crate::tuning::DEVICE_PAGE;

/// A free extent in the primary mapping that a block will be taken from.
#[derive(Clone, Copy, Debug)]
pub(super) struct FreeExtent {
    pub(super) range: AddressRange,
    pub(super) chunk: ChunkId,
    /// Bytes of the free extent.
    pub(super) bytes: u64,
    /// The address of the block in it.
    pub(super) addr: u64,
}

impl FreeExtent {
    /// Returns a key by which the better of two extents is the smaller, whatever their owners.
    pub(super) fn rank(&self) -> impl Ord + use<> {
        (self.range == AddressRange::Large, self.bytes, self.addr)
    }
}

impl Pages {
    /// Returns the address range that serves a request.
    pub(super) fn range_of(&self, request: &Request) -> AddressRange {
        let is_small = request.bytes < DEVICE_PAGE && request.alignment == ALLOCATION_ALIGNMENT;
        if is_small { AddressRange::Small } else { AddressRange::Large }
    }

    fn extent(&self, range: AddressRange, chunk: ChunkId, request: &Request) -> Option<FreeExtent> {
        let extent = self.heap(range).chunk(chunk);
        let addr = align_up(extent.addr, request.alignment)?;
        Some(FreeExtent { range, chunk, bytes: extent.bytes, addr })
    }

    /// Finds the best free extent of `owner` in the primary mapping. A small request takes one of the large
    /// address range only where the pool may not grow.
    pub(super) fn find_in_primary(&self, owner: Owner, upto: Epoch, request: &Request) -> Option<FreeExtent> {
        let find = |range| {
            let chunk = self.heap(range).find(owner, upto, request)?;
            self.extent(range, chunk, request)
        };
        if self.range_of(request) == AddressRange::Small {
            let small = find(AddressRange::Small);
            if small.is_some() || (self.may_grow() && !self.is_short) {
                return small;
            }
        }
        // Before an out-of-memory error, a large request may use free handles of the small address range.
        find(AddressRange::Large).or_else(|| if self.is_short { find(AddressRange::Small) } else { None })
    }
}
