//! Which hole at home serves a request.

use millpond_core::{ALLOCATION_ALIGNMENT, align_up};

use super::{Found, Line, Pages, Place};
use crate::ordered::{Epoch, Owner, Request};
use crate::pool::chunk::ChunkId;

/// A hole at home that a block will be taken from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hole {
    pub(super) line: Line,
    pub(super) chunk: ChunkId,
    /// Of the hole.
    pub(super) bytes: u64,
    /// Of the block.
    pub(super) addr: u64,
}

impl Hole {
    /// The better of two comes first; whose they are does not matter.
    pub(super) fn rank(&self) -> impl Ord + use<> {
        (self.line == Line::Large, self.bytes, self.addr)
    }
}

impl Pages {
    /// The line that a request is served from.
    pub(super) fn line_of(&self, request: &Request) -> Line {
        let is_small = request.bytes < self.policy.small_bytes && request.alignment == ALLOCATION_ALIGNMENT;
        if is_small { Line::Small } else { Line::Large }
    }

    fn hole(&self, line: Line, chunk: ChunkId, request: &Request) -> Option<Hole> {
        let hole = self.heap(line).chunk(chunk);
        let addr = align_up(hole.addr, request.alignment)?;
        Some(Hole { line, chunk, bytes: hole.bytes, addr })
    }

    pub(super) fn found_at_home(&self, hole: Hole) -> Found {
        let chunk = self.heap(hole.line).chunk(hole.chunk);
        Found { bytes: hole.bytes, epoch: chunk.epoch(), owner: chunk.owner(), place: Place::Home(hole) }
    }

    /// The best hole of `owner` at home, by best fit. A small request breaks into the large line only where
    /// the pool may not grow.
    pub(super) fn find_at_home(&self, owner: Owner, upto: Epoch, request: &Request) -> Option<Hole> {
        let find = |line| {
            let chunk = self.heap(line).find(owner, upto, request)?;
            self.hole(line, chunk, request)
        };
        if self.line_of(request) == Line::Small {
            let small = find(Line::Small);
            if small.is_some() || (self.may_grow() && !self.is_short) {
                return small;
            }
        }
        // Before memory is out, a large request may have what is left of the small line's handles, too.
        find(Line::Large).or_else(|| if self.is_short { find(Line::Small) } else { None })
    }
}
