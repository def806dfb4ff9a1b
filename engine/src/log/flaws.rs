//! The contradictions in a log, and the data that it lacks. All commands count them in the same way.

use serde::Serialize;

use crate::text::{number_of, readable_bytes};

/// The contradictions in a log, and the data that it lacks. Sizes are in bytes; lines count from 1.
///
/// ```
/// use millpond_engine::log::Flaws;
/// assert!(Flaws::default().sentences().is_empty());
/// ```
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Flaws {
    /// The number of frees of addresses that no earlier row named. The freed blocks are older than the log.
    pub unknown_frees: u64,
    /// The line of the first free of an address that no earlier row named.
    pub first_unknown_free_line: Option<u64>,
    /// The total size of the blocks that are older than the log, in bytes. The program had allocated at least
    /// this many bytes before the log began.
    pub bytes_before: u64,
    /// The number of frees of addresses that were already free. A replay skips these rows.
    pub repeated_frees: u64,
    /// The line of the first free of an address that was already free.
    pub first_repeated_free_line: Option<u64>,
    /// The number of allocations at an address that was still live. A replay frees the older block first.
    pub duplicate_allocations: u64,
    /// The line of the first allocation at an address that was still live.
    pub first_duplicate_allocation_line: Option<u64>,
    /// The number of frees whose size differs from the size of the allocation.
    pub size_mismatches: u64,
    /// The line of the first free whose size differs.
    pub first_size_mismatch_line: Option<u64>,
    /// The reason why reading ended before the end of the log.
    pub rest_missing: Option<String>,
}

impl Flaws {
    /// The code for a log that begins late.
    pub const BEGAN_LATE: &'static str = "began_late";
    /// The code for a log that frees a block twice.
    pub const REPEATED_FREES: &'static str = "repeated_frees";
    /// The code for a log that allocates at a live address.
    pub const DUPLICATE_ALLOCATIONS: &'static str = "duplicate_allocations";
    /// The code for a log that frees a block with another size.
    pub const SIZE_MISMATCHES: &'static str = "size_mismatches";
    /// The code for a log that is truncated.
    pub const REST_MISSING: &'static str = "rest_missing";

    /// Returns each flaw as a code for programs, and as a sentence for people.
    pub fn sentences(&self) -> Vec<(&'static str, String)> {
        let at = |line: Option<u64>| line.map_or(String::new(), |line| format!(" (first at line {line})"));
        let rest = self.rest_missing.iter();
        let rest = rest.map(|why| (Self::REST_MISSING, format!("the rest of the file is missing: {why}")));
        let before = readable_bytes(self.bytes_before);
        let counted = [
            (
                Self::BEGAN_LATE,
                self.unknown_frees,
                format!(
                    "the log begins late: it frees {}, in all at least {before}, that it never allocates{}; \
                     such blocks count as live from the start",
                    number_of(self.unknown_frees, "block"),
                    at(self.first_unknown_free_line)
                ),
            ),
            (
                Self::REPEATED_FREES,
                self.repeated_frees,
                format!(
                    "{} named a block that was already free{}; the replay skips such frees",
                    number_of(self.repeated_frees, "free"),
                    at(self.first_repeated_free_line)
                ),
            ),
            (
                Self::DUPLICATE_ALLOCATIONS,
                self.duplicate_allocations,
                format!(
                    "{} returned the address of a live block{}; the log lacks a free, so a replay frees the \
                     older block there",
                    number_of(self.duplicate_allocations, "allocation"),
                    at(self.first_duplicate_allocation_line)
                ),
            ),
            (
                Self::SIZE_MISMATCHES,
                self.size_mismatches,
                format!(
                    "{} had another size than the allocation{}; the replay uses the allocation's size",
                    number_of(self.size_mismatches, "free"),
                    at(self.first_size_mismatch_line)
                ),
            ),
        ];
        let counted = counted.into_iter().filter(|(_, count, _)| *count > 0);
        rest.chain(counted.map(|(code, _, text)| (code, text))).collect()
    }
}
