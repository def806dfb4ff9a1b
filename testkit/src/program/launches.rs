//! Launches of a program's captured graphs; each launch is one piece of work on a stream.
//!
//! A graph uses the same addresses at each launch. When a careful caller launches it, each of its blocks is
//! either handed out or belongs to a scope for captured graphs that has not ended. A scope's graphs never run
//! at the same time, and never at the same time as other work that uses the scope's blocks.

use millpond_core::{DeviceMemoryResource, DevicePtr};
use millpond_driver::sim::Access;

use super::FailureKind;
use super::broken::{Broken, Checks};
use super::capture::CaptureId;
use super::execution::Execution;
use super::op::{Block, Stream};
use super::order::Point;
use super::pieces::{Kept, MOST, Piece};

impl Execution {
    /// Records a use of a block for its scope, or for the graph that is being captured.
    pub(super) fn note_use(&mut self, block: Block, stream: Stream, point: Point, is_written: bool) {
        match self.captures.of(stream) {
            Some(id) => self.note_piece(id, block, stream, is_written),
            None => {
                let scope = self.blocks.get(&block).and_then(|live| live.scope);
                if let Some(scope) = scope {
                    self.scopes.work_mut(scope).all.add(point);
                }
            }
        }
    }

    /// Records that a capture uses a block. If the block's scope serves the stream, the block's range stays
    /// with the scope's graphs.
    fn note_piece(&mut self, id: CaptureId, block: Block, stream: Stream, is_written: bool) {
        let serving = self.scope_of(stream);
        let Some(live) = self.blocks.get(&block).filter(|live| live.layout.bytes() > 0) else { return };
        let (ptr, bytes, scope) = (live.ptr, live.layout.bytes(), live.scope);
        let kept = if scope.is_some() && scope == serving { Kept::ByScope } else { Kept::No };
        let Some(capture) = self.captures.live.iter_mut().find(|capture| capture.id == id) else { return };
        match capture.pieces.iter_mut().find(|piece| piece.block == block) {
            Some(piece) => {
                piece.kept = if piece.kept == Kept::No { kept } else { piece.kept };
                piece.is_written |= is_written;
            }
            None => capture.pieces.push(Piece { block, ptr, bytes, scope, kept, is_written }),
        }
    }

    /// Records that a capture frees a block. The capturing stream's own scope keeps it for all its graphs;
    /// another scope keeps it for this graph only, unless it is a private pool of PyTorch.
    pub(super) fn note_captured_free(&mut self, id: CaptureId, block: Block, stream: Stream) {
        let serving = self.scope_of(stream);
        let foreign = if self.config.habits.captures_in_scopes { Kept::No } else { Kept::Alone };
        let capture = self.captures.live.iter_mut().find(|capture| capture.id == id);
        let mut pieces = capture.into_iter().flat_map(|capture| &mut capture.pieces);
        if let Some(piece) = pieces.find(|piece| piece.block == block) {
            piece.kept = match piece.scope {
                None => Kept::No,
                scope if scope == serving => Kept::ByScope,
                Some(_) => foreign,
            };
        }
    }

    /// The last graph that has work and whose memory is still valid.
    pub(super) fn whole_graph(&self) -> Option<u8> {
        let has_work = |back: u8| self.graphs.back(back).is_some_and(|graph| !graph.is_empty());
        (0..MOST as u8).find(|back| has_work(*back) && self.is_whole(*back))
    }

    fn is_whole(&self, back: u8) -> bool {
        let is_there = |piece: &Piece| {
            self.blocks.contains_key(&piece.block)
                || (piece.kept != Kept::No && piece.scope.is_some_and(|scope| self.scopes.has(scope)))
        };
        self.graphs.back(back).is_some_and(|graph| graph.iter().all(is_there))
    }

    pub(super) fn can_launch(&self, back: u8, stream: Stream) -> bool {
        self.is_whole(back)
            && self.can_name(stream)
            && !self.captures.is_capturing(stream)
            && self.missing_for_launch(back, stream).is_none()
    }

    /// A stream that `stream` must wait for before it may launch the graph.
    pub(super) fn missing_for_launch(&self, back: u8, stream: Stream) -> Option<Stream> {
        self.graphs.back(back)?.iter().find_map(|piece| {
            let of_block = self.blocks.get(&piece.block).map(|live| &live.uses.all);
            let of_scope = piece.scope.and_then(|scope| self.scopes.work(scope)).map(|work| &work.all);
            [of_block, of_scope].into_iter().flatten().find_map(|work| self.order.missing(stream, work))
        })
    }

    pub(super) fn launch_graph(&mut self, back: u8, stream: Stream) -> Checks {
        let Some(pieces) = self.graphs.back(back).map(<[Piece]>::to_vec) else { return Ok(()) };
        self.check_ranges(&pieces)?;
        let handle = self.stream(stream)?;
        let (point, reach) = (self.order.submit(stream), self.resource.accessibility());
        let mut accesses = Vec::new();
        for piece in &pieces {
            let Piece { block, ptr, bytes, is_written, .. } = *piece;
            let mut tag = u64::MAX - u64::from(block);
            let end = ptr.offset(bytes);
            // Later blocks of the scope may overlap the range.
            for (other, live) in &mut self.blocks {
                if live.ptr < end && ptr < live.ptr.offset(live.layout.bytes()) {
                    live.uses.note(point, is_written);
                    if is_written {
                        live.tag += 1;
                        live.is_known = *other == block;
                    }
                    if *other == block {
                        tag = u64::from(block) << 32 | live.tag;
                    }
                }
            }
            accesses.push(if is_written { Access::write(ptr, bytes, tag) } else { Access::read(ptr, bytes) });
            if let Some(scope) = piece.scope {
                let work = self.scopes.work_mut(scope);
                work.all.add(point);
                work.launched.add(point);
            }
        }
        if reach.device {
            self.device.launch(handle, &accesses);
        }
        self.summary.launches += 1;
        Ok(())
    }

    /// Checks that a graph uses only its own memory or memory of its scope's blocks.
    fn check_ranges(&self, pieces: &[Piece]) -> Checks {
        let other = self.resource.shadow(|shadow| {
            shadow.live().find_map(|(ptr, layout)| {
                let breaks = |piece: &&Piece| {
                    let meets = ptr < piece.ptr.offset(piece.bytes) && piece.ptr < ptr.offset(layout.bytes());
                    meets && !self.shares(piece, ptr)
                };
                pieces.iter().find(breaks).map(|piece| (ptr, *piece))
            })
        });
        let Some((ptr, piece)) = other else { return Ok(()) };
        let text = format!("{ptr} is handed out, but a graph uses {} bytes at {}", piece.bytes, piece.ptr);
        Err(Broken::new(FailureKind::Shadow, text))
    }

    /// Whether the live block at `ptr` may overlap the piece.
    fn shares(&self, piece: &Piece, ptr: DevicePtr) -> bool {
        let found = self.blocks.iter().find(|(_, live)| live.ptr == ptr);
        found.is_some_and(|(block, live)| {
            *block == piece.block || (piece.kept == Kept::ByScope && live.scope == piece.scope)
        })
    }
}
