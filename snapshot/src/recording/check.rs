//! Compares the end of a recording with the state in its file.

use serde::Serialize;

/// Compares the blocks that are live after the last event with the state in the file.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
#[non_exhaustive]
pub struct StateCheck {
    /// The live blocks of the state.
    pub state_blocks: u64,
    /// Their requested bytes.
    pub state_bytes: u64,
    /// Blocks that are live after the last event and in the state, at the same address with the same size.
    pub equal_blocks: u64,
    /// Blocks in the state that are not live after the last event.
    pub missing_blocks: u64,
    /// Blocks that are live after the last event but not in the state.
    pub extra_blocks: u64,
    /// Blocks that have another size in the state.
    pub other_sizes: u64,
    /// Blocks that wait for other streams at the end of the events or in the state, but not in both.
    pub other_phases: u64,
    /// Live blocks that overlapped another live block when they were allocated.
    pub overlaps: u64,
    /// Frees of addresses where no block was live.
    pub unknown_frees: u64,
    /// Allocations at addresses where a block was live.
    pub double_allocations: u64,
    /// The first difference as a sentence, if there is one.
    pub first: Option<String>,
}

impl StateCheck {
    /// Returns whether the recording ends in the state of the file, and contradicts itself nowhere.
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
