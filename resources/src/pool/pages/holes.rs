use millpond_core::{ALLOCATION_ALIGNMENT, align_up};

use super::{Found, Line, Pages, Place};
use crate::ordered::{Epoch, Owner, Request};
use crate::pool::bins::Wanted;
use crate::pool::chunk::{Chunk, ChunkId};

/// How many holes are compared at most.
const HOLES_SCAN: usize = 64;

/// A request of at least this part of the most that was in use weighs: where it goes decides what is left
/// for others.
const WEIGHTY_SHARE: u64 = 64;

/// A hole so much larger than the request is as bad as a part of a handle that is broken, over this.
const EXCESS_SHARE: u64 = 16;

/// A hole at home that a block will be taken from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hole {
    pub(super) line: Line,
    pub(super) chunk: ChunkId,
    /// Of the hole.
    pub(super) bytes: u64,
    /// Of the block.
    pub(super) addr: u64,
    /// Whether it is more than a hole inside a handle that just fits.
    is_more: bool,
    /// Of holes for one request, the one that costs least is best.
    cost: u64,
}

impl Hole {
    /// The better of two comes first; whose they are does not matter.
    pub(super) fn rank(&self) -> impl Ord + use<> {
        (self.line == Line::Large, self.is_more, self.cost, self.addr)
    }
}

impl Pages {
    /// The line that a request is served from.
    pub(super) fn line_of(&self, request: &Request) -> Line {
        let is_small = request.bytes < self.policy.small_bytes && request.alignment == ALLOCATION_ALIGNMENT;
        if is_small { Line::Small } else { Line::Large }
    }

    fn hole(&self, line: Line, chunk: ChunkId, request: &Request, is_more: bool) -> Option<Hole> {
        let hole = self.heap(line).chunk(chunk);
        let addr = align_up(hole.addr, request.alignment)?;
        Some(Hole { line, chunk, bytes: hole.bytes, addr, is_more, cost: hole.bytes })
    }

    pub(super) fn found_at_home(&self, hole: Hole) -> Found {
        let chunk = self.heap(hole.line).chunk(hole.chunk);
        Found { bytes: hole.bytes, epoch: chunk.epoch(), owner: chunk.owner(), place: Place::Home(hole) }
    }

    /// The best hole of `owner` at home: best fit, but for three things.
    ///
    /// A hole inside a handle, which is good for nothing else, goes before a somewhat smaller one that
    /// touches a border. For a request that weighs, a few holes are compared by what they leave. A small
    /// request breaks into the large line only where the pool may not grow.
    pub(super) fn find_at_home(&self, owner: Owner, upto: Epoch, request: &Request) -> Option<Hole> {
        if self.line_of(request) == Line::Small {
            if let Some(chunk) = self.heap(Line::Small).find(owner, upto, request) {
                return self.hole(Line::Small, chunk, request, false);
            }
            if self.may_grow() && !self.is_short {
                return None;
            }
        }
        let Some(best) = self.large().find(owner, upto, request) else {
            // What is left of the small line's handles, before memory is out.
            let left =
                if self.is_short { self.heap(Line::Small).find(owner, upto, request)? } else { return None };
            return self.hole(Line::Small, left, request, false);
        };
        let hole = self.large().chunk(best);
        let is_inside = || hole.bytes <= self.policy.inside_upto(request.bytes) && !self.is_at_border(hole);
        if self.is_calm || hole.bytes == request.bytes || is_inside() {
            return self.hole(Line::Large, best, request, false);
        }
        if let Some(inside) = self.find_inside(owner, upto, request) {
            return self.hole(Line::Large, inside, request, false);
        }
        let weighs =
            request.bytes >= self.peak_live / WEIGHTY_SHARE && request.alignment == ALLOCATION_ALIGNMENT;
        let weighed = if weighs { self.weigh(owner, upto, request) } else { None };
        weighed.or_else(|| self.hole(Line::Large, best, request, true))
    }

    /// Whether a hole touches the border of a handle.
    fn is_at_border(&self, hole: &Chunk) -> bool {
        self.handles.has_border(hole.addr, hole.addr + hole.bytes)
    }

    /// Holes of the large line that serve a request, by bins, the smallest first.
    fn holes_for(
        &self,
        owner: Owner,
        upto: Epoch,
        request: &Request,
    ) -> impl Iterator<Item = (ChunkId, &Chunk)> {
        let wanted = Wanted { bytes: request.bytes, alignment: request.alignment, upto };
        let holes = self.large().free_from(owner, request.bytes);
        holes.take(HOLES_SCAN).filter(move |(_, hole)| wanted.accepts(hole.addr, hole.bytes, hole.epoch()))
    }

    /// The smallest hole inside a handle that is not much larger than the request.
    fn find_inside(&self, owner: Owner, upto: Epoch, request: &Request) -> Option<ChunkId> {
        let most = self.policy.inside_upto(request.bytes);
        self.holes_for(owner, upto, request)
            .take_while(|(_, hole)| hole.bytes <= most)
            .filter(|(_, hole)| !self.is_at_border(hole))
            .min_by_key(|(_, hole)| (hole.bytes, hole.addr))
            .map(|(id, _)| id)
    }

    /// The hole, and the end of it, that leaves least of what is free in parts of handles.
    fn weigh(&self, owner: Owner, upto: Epoch, request: &Request) -> Option<Hole> {
        let weighed = self.holes_for(owner, upto, request).map(|(chunk, hole)| {
            let (start, end) = (hole.addr, hole.addr + hole.bytes);
            let right = self.in_parts(start + request.bytes, end);
            let left = self.in_parts(start, end - request.bytes);
            let more = right.min(left).saturating_sub(self.in_parts(start, end));
            let cost = more + (hole.bytes - request.bytes) / EXCESS_SHARE;
            let addr = if left < right { end - request.bytes } else { start };
            Hole { line: Line::Large, chunk, bytes: hole.bytes, addr, is_more: true, cost }
        });
        weighed.min_by_key(|hole| (hole.cost, hole.addr))
    }

    /// Bytes of free memory at home, between two addresses, that are not whole handles.
    fn in_parts(&self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        let (Some(first), Some(last)) = (self.handles.at(start), self.handles.at(end - 1)) else { return 0 };
        let (first, last) = (self.handles.get(first), self.handles.get(last));
        let from = if first.home == start { start } else { first.end() };
        let to = if last.end() == end { end } else { last.home };
        (end - start) - to.saturating_sub(from)
    }
}
