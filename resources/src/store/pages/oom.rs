//! Figures of paged memory for the out-of-memory report.

use millpond_core::ALLOCATION_ALIGNMENT;

use crate::heap::request::Request;
use crate::store::pages::handles::AddressRange;
use crate::store::pages::state::Pages;
use crate::tuning::LEAST_PIECE;

impl Pages {
    /// Returns the bytes of new memory that serve the request without any free bytes.
    pub(crate) fn needed_alone(&self, request: &Request) -> u64 {
        let is_aligned = request.alignment <= self.granularity;
        self.whole_granules(if is_aligned { request.bytes } else { request.padded_bytes() })
    }

    /// Returns all handles in the primary mapping: address, bytes, and whether a stitched block may begin or
    /// end in it.
    pub(crate) fn primaries(&self) -> impl Iterator<Item = (u64, u64, bool)> {
        self.handles
            .iter()
            .map(|(_, handle)| (handle.primary, handle.bytes, handle.range == AddressRange::Large))
    }

    /// Returns the least bytes at the free end of a handle with which a stitched block may begin or end;
    /// `None` for a request that is never stitched.
    pub(crate) fn least_piece(&self, request: &Request) -> Option<u64> {
        let is_plain =
            request.alignment == ALLOCATION_ALIGNMENT && self.range_of(request) == AddressRange::Large;
        is_plain.then_some(LEAST_PIECE)
    }

    /// Returns whether chunks of one stream and unowned ones join when a block beside them is freed: in the
    /// heap of large blocks, but not in that of spans.
    pub(crate) fn joins_with_unowned(heap: usize) -> bool {
        heap == AddressRange::Large as usize
    }
}
