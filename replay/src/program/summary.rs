use serde::Serialize;

/// What a log holds. Sizes in bytes, as requested.
#[derive(Clone, Default, PartialEq, Debug, Serialize)]
pub struct LogSummary {
    /// The log, as it was named.
    pub file: String,
    /// Rows, without the header and without skipped ones.
    pub events: u64,
    /// Operations that a replay does: rows that allocate or free something known.
    pub operations: u64,
    /// Different streams.
    pub streams: usize,
    /// Different threads.
    pub threads: usize,
    /// Different devices, where the log says; a replay uses one.
    pub devices: usize,
    /// The highest sum of the sizes of live blocks.
    pub peak_live_bytes: u64,
    /// The highest number of live blocks.
    pub peak_live_blocks: u64,
    /// The largest request.
    pub largest_request_bytes: u64,
    /// `allocate failure` rows.
    pub failed_allocations: u64,
    /// Frees of addresses that no earlier row allocated.
    pub unknown_frees: u64,
    /// The line of the first of them.
    pub first_unknown_free_line: Option<u64>,
    /// Allocations at an address that was still live.
    pub duplicate_allocations: u64,
    /// The line of the first of them.
    pub first_duplicate_allocation_line: Option<u64>,
    /// Frees with another size than the allocation.
    pub size_mismatches: u64,
    /// The line of the first of them.
    pub first_size_mismatch_line: Option<u64>,
    /// Blocks that are never freed.
    pub leaked_blocks: u64,
    /// The bytes in them.
    pub leaked_bytes: u64,
    /// Rows whose sequence number is not above the one before.
    pub out_of_sequence: u64,
    /// Bad rows that were left out.
    pub skipped_rows: u64,
    /// What was wrong with the first of them.
    pub first_skipped_row: Option<String>,
    /// The mean of what calls took when the log was written, in nanoseconds, where the log says.
    pub logged_ns_per_op: Option<f64>,
}

impl LogSummary {
    /// What a reader of the figures should know of the log: one line of text each.
    pub fn notes(&self) -> Vec<String> {
        let at = |line: Option<u64>| line.map_or(String::new(), |line| format!(" (first at line {line})"));
        let mut notes = Vec::new();
        let mut note = |count: u64, text: String| {
            if count > 0 {
                notes.push(text);
            }
        };
        note(self.skipped_rows, {
            let first = self.first_skipped_row.as_deref().unwrap_or_default();
            format!("{} bad rows were skipped; the first: {first}", self.skipped_rows)
        });
        note(
            self.unknown_frees,
            format!(
                "{} frees of unknown pointers were left out{}; the log may have been started late",
                self.unknown_frees,
                at(self.first_unknown_free_line)
            ),
        );
        note(
            self.duplicate_allocations,
            format!(
                "{} allocations at addresses still live{}; the older block counts as leaked",
                self.duplicate_allocations,
                at(self.first_duplicate_allocation_line)
            ),
        );
        note(
            self.size_mismatches,
            format!(
                "{} frees with another size than the allocation{}; the allocation's size is used",
                self.size_mismatches,
                at(self.first_size_mismatch_line)
            ),
        );
        note(
            self.leaked_blocks,
            format!(
                "{} blocks ({}) are never freed in the log; each pass frees them at its end",
                self.leaked_blocks,
                millpond_core::format_bytes(self.leaked_bytes)
            ),
        );
        note(
            self.failed_allocations,
            format!("{} allocations had failed when the log was written; they are left out", self.failed_allocations),
        );
        note(
            self.out_of_sequence,
            format!("{} rows are out of sequence; they are replayed in the order of the file", self.out_of_sequence),
        );
        note(
            u64::from(self.devices > 1),
            format!("the log is of {} devices; all are replayed on one", self.devices),
        );
        notes
    }
}
