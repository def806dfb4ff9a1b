use millpond_core::ALLOCATION_ALIGNMENT;

use crate::backing::paged::plan::Refused;
use crate::backing::paged::{AddressRange, Pages};
use crate::heap::request::Request;
use crate::stream_order::Owner;

/// What a report needs to know of pages where memory is out.
impl Pages {
    /// Bytes of new memory with which the request would be served, with as much as can be of what is free.
    pub(crate) fn needed(&mut self, owner: Owner, request: &Request, is_span: bool) -> u64 {
        match self.plan(owner, request, is_span, 0, 0) {
            Ok(plan) => {
                self.abort(plan);
                0
            }
            Err(Refused { needed, .. }) => needed,
        }
    }

    /// Bytes of new memory that serve the request whatever is free.
    pub(crate) fn needed_alone(&self, request: &Request) -> u64 {
        let is_aligned = request.alignment <= self.granularity;
        self.whole_granules(if is_aligned { request.bytes } else { request.padded_bytes() })
    }

    /// All handles in the primary mapping: where each starts, its bytes, and whether a block may begin or end
    /// in it.
    pub(crate) fn primaries(&self) -> impl Iterator<Item = (u64, u64, bool)> {
        self.handles
            .iter()
            .map(|(_, handle)| (handle.primary, handle.bytes, handle.range == AddressRange::Large))
    }

    /// How large the free end of a handle must be for a block to begin or end in it; `None` for a request
    /// that is not stitched.
    pub(crate) fn least_piece(&self, request: &Request) -> Option<u64> {
        let is_plain =
            request.alignment == ALLOCATION_ALIGNMENT && self.range_of(request) == AddressRange::Large;
        is_plain.then_some(self.policy.least_piece)
    }

    /// Whether what is free for one stream and for anyone joins when a block beside it is given back: of the
    /// heap of large blocks, but not of that of spans.
    pub(crate) fn joins_with_unowned(heap: usize) -> bool {
        heap == AddressRange::Large as usize
    }

    #[cfg(test)]
    pub(crate) fn raise_maximum(&mut self, bytes: u64) {
        self.maximum_bytes += bytes;
    }
}
