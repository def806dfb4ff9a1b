//! Figures of paged memory for the out-of-memory report.

use millpond_core::ALLOCATION_ALIGNMENT;

use crate::backing::paged::handles::AddressRange;
use crate::backing::paged::pages::Pages;
use crate::backing::paged::plan::Refused;
use crate::heap::request::Request;
use crate::stream_order::Owner;

impl Pages {
    /// Returns the bytes of new memory that the request needs beside the free bytes that it can use.
    pub(crate) fn needed(&mut self, owner: Owner, request: &Request, is_span: bool) -> u64 {
        match self.plan(owner, request, is_span, 0, 0) {
            Ok(plan) => {
                self.abort(plan);
                0
            }
            Err(Refused { needed, .. }) => needed,
        }
    }

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
        is_plain.then_some(self.policy.least_piece)
    }

    /// Returns whether chunks of one stream and unowned ones join when a block beside them is freed: in the
    /// heap of large blocks, but not in that of spans.
    pub(crate) fn joins_with_unowned(heap: usize) -> bool {
        heap == AddressRange::Large as usize
    }

    #[cfg(test)]
    pub(crate) fn raise_maximum(&mut self, bytes: u64) {
        self.maximum_bytes += bytes;
    }
}

#[cfg(test)]
mod tests {
    use millpond_core::Layout;

    use super::*;
    use crate::tuning::Policy;

    /// Large requests are stitched, unless their alignment is larger than a block's.
    #[test]
    fn a_large_request_begins_or_ends_with_a_piece() {
        const MIB: u64 = 1 << 20;
        let policy = Policy::default();
        let pages = Pages::new(2 * MIB, 1 << 30, u64::MAX, policy);
        for (bytes, alignment, is_stitched) in [
            (policy.small_bytes - 256, 256, false),
            (policy.small_bytes, 256, true),
            (8 * MIB, 256, true),
            (8 * MIB, 512, false),
            (1000, 512, false),
        ] {
            let layout = Layout::with_alignment(bytes, alignment).expect("a power of two");
            let least = pages.least_piece(&Request::new(layout).expect("not too large"));
            assert_eq!(least, is_stitched.then_some(policy.least_piece), "{bytes}, aligned to {alignment}");
        }
    }
}
