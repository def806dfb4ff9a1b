//! Compares the live blocks at the end of a recording with the state in its file.

use serde::Serialize;

/// The result of comparing the blocks that are live after the last event with the state in the file.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
#[non_exhaustive]
pub struct StateCheck {
    /// The number of live blocks in the state.
    pub state_blocks: u64,
    /// The requested bytes of the live blocks in the state.
    pub state_bytes: u64,
    /// The number of blocks that are live both after the last event and in the state, at the same address
    /// with the same size.
    pub equal_blocks: u64,
    /// The number of blocks in the state that are not live after the last event.
    pub missing_blocks: u64,
    /// The number of blocks that are live after the last event but not in the state.
    pub extra_blocks: u64,
    /// The number of blocks whose size in the state differs from their size in the events.
    pub other_sizes: u64,
    /// The number of blocks that wait for other streams only at the end of the events, or only in the state.
    pub other_phases: u64,
    /// The number of live blocks that overlapped another live block when they were allocated.
    pub overlaps: u64,
    /// The number of frees of addresses where no block was live.
    pub unknown_frees: u64,
    /// The number of allocations at addresses where a block was live.
    pub double_allocations: u64,
    /// The first difference, as a sentence; `None` if there is no difference.
    pub first: Option<String>,
}

impl StateCheck {
    /// Returns whether the recording ends in the state of the file, and never contradicts itself.
    pub fn is_equal(&self) -> bool {
        let differences = self.missing_blocks + self.extra_blocks + self.other_sizes + self.other_phases;
        let contradictions = self.overlaps + self.unknown_frees + self.double_allocations;
        self.state_blocks == self.equal_blocks && differences + contradictions == 0
    }

    /// Returns the counts in the order of the fields.
    pub(crate) fn counts(&self) -> [u64; 10] {
        [
            self.state_blocks,
            self.state_bytes,
            self.equal_blocks,
            self.missing_blocks,
            self.extra_blocks,
            self.other_sizes,
            self.other_phases,
            self.overlaps,
            self.unknown_frees,
            self.double_allocations,
        ]
    }

    /// Returns the check with these counts, in the order of the fields.
    pub(crate) fn from_counts(counts: [u64; 10], first: Option<String>) -> Self {
        let [state_blocks, state_bytes, equal_blocks, missing_blocks, extra_blocks, rest @ ..] = counts;
        let [other_sizes, other_phases, overlaps, unknown_frees, double_allocations] = rest;
        Self {
            state_blocks,
            state_bytes,
            equal_blocks,
            missing_blocks,
            extra_blocks,
            other_sizes,
            other_phases,
            overlaps,
            unknown_frees,
            double_allocations,
            first,
        }
    }
}
