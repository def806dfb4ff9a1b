//! A program's graphs: the memory ranges that each uses.

use millpond_core::DevicePtr;

use super::op::Block;
use super::scope::ScopeId;

/// How many graphs a program keeps at most.
pub(super) const MOST: usize = 4;

/// Who owns a graph's range after its block is freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kept {
    /// Anyone: the graph is never launched again.
    No,
    /// The graphs of the block's scope, and the scope's other blocks.
    ByScope,
    /// Only this graph, until the scope ends.
    Alone,
}

/// A range that a graph uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) block: Block,
    pub(super) ptr: DevicePtr,
    pub(super) bytes: u64,
    /// The block's scope.
    pub(super) scope: Option<ScopeId>,
    pub(super) kept: Kept,
    pub(super) is_written: bool,
}

/// A program's graphs, the most recent last.
#[derive(Clone, Default, Debug)]
pub(super) struct Graphs(Vec<Vec<Piece>>);

impl Graphs {
    pub(super) fn add(&mut self, pieces: Vec<Piece>) {
        self.0.push(pieces);
        if self.0.len() > MOST {
            self.0.remove(0);
        }
    }

    /// The graph that was captured `back` captures before the most recent one.
    pub(super) fn back(&self, back: u8) -> Option<&[Piece]> {
        let at = self.0.len().checked_sub(usize::from(back) + 1)?;
        self.0.get(at).map(Vec::as_slice)
    }
}
