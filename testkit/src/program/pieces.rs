//! The graphs of a program: the ranges of memory that each uses.

use millpond_core::DevicePtr;

use super::op::Block;
use super::scope::ScopeId;

/// The most graphs that a program keeps.
pub(super) const MOST: usize = 4;

/// Who has a range of a graph after the free of its block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kept {
    /// Anyone: the graph is not launched any more.
    No,
    /// The graphs of the block's scope, and other blocks of the scope.
    ByScope,
    /// The graph alone, until the scope ends.
    Alone,
}

/// A range that a graph uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) block: Block,
    pub(super) ptr: DevicePtr,
    pub(super) bytes: u64,
    /// The scope of the block.
    pub(super) scope: Option<ScopeId>,
    pub(super) kept: Kept,
    pub(super) is_written: bool,
}

/// The graphs of a program, the last at the end.
#[derive(Clone, Default, Debug)]
pub(super) struct Graphs(Vec<Vec<Piece>>);

impl Graphs {
    pub(super) fn add(&mut self, pieces: Vec<Piece>) {
        self.0.push(pieces);
        if self.0.len() > MOST {
            self.0.remove(0);
        }
    }

    /// The graph that was captured `back` captures before the last.
    pub(super) fn back(&self, back: u8) -> Option<&[Piece]> {
        let at = self.0.len().checked_sub(usize::from(back) + 1)?;
        self.0.get(at).map(Vec::as_slice)
    }
}
