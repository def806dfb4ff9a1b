use super::plan::Refused;
use super::{Line, Pages};
use crate::ordered::{Owner, Request};

/// What a report needs to know of pages where memory is out.
impl Pages {
    /// Bytes of new memory with which the request would be served, with as much as can be of what is free.
    pub(in crate::pool) fn needed(&mut self, owner: Owner, request: &Request, is_span: bool) -> u64 {
        match self.plan(owner, request, is_span, 0, 0) {
            Ok(plan) => {
                self.abandon(plan);
                0
            }
            Err(Refused { needed, .. }) => needed,
        }
    }

    /// Bytes of new memory that serve the request whatever is free.
    pub(in crate::pool) fn needed_alone(&self, request: &Request) -> u64 {
        let is_aligned = request.alignment <= self.granularity;
        self.whole_granules(if is_aligned { request.bytes } else { request.padded_bytes() })
    }

    /// All handles at home: where each starts, and its bytes.
    pub(in crate::pool) fn homes(&self) -> impl Iterator<Item = (u64, u64)> {
        self.handles.iter().map(|(_, handle)| (handle.home, handle.bytes))
    }

    /// Whether what is free for one stream and for anyone joins when a block beside it is given back: of the
    /// heap of large blocks, but not of that of spans.
    pub(in crate::pool) fn joins_with_anyones(heap: usize) -> bool {
        heap == Line::Large as usize
    }
}
