//! Counts of the rows and blocks of a log.

use serde::Serialize;

/// The contents of a log. Sizes in bytes, as requested.
#[derive(Clone, Default, PartialEq, Debug, Serialize)]
pub struct LogSummary {
    /// The name of the log.
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
    /// The requests in them: failures that a success of the same size, thread and stream follows are one.
    pub failed_requests: u64,
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
    /// The error of the first skipped row.
    pub first_skipped_row: Option<String>,
    /// Why reading ended before the log did, where bad rows were to be skipped.
    pub rest_missing: Option<String>,
    /// The mean of what calls took when the log was written, in nanoseconds, where the log says.
    pub logged_ns_per_op: Option<f64>,
}

impl LogSummary {
    fn requests(&self) -> String {
        let count = self.failed_requests;
        format!("{count} request{}", if count == 1 { "" } else { "s" })
    }

    /// Remarks about the log for readers of the figures: one line of text each.
    pub fn notes(&self) -> Vec<String> {
        let at = |line: Option<u64>| line.map_or(String::new(), |line| format!(" (first at line {line})"));
        let first_skipped = self.first_skipped_row.as_deref().unwrap_or_default();
        let leaked = millpond_core::format_bytes(self.leaked_bytes);
        let devices = if self.devices > 1 { self.devices as u64 } else { 0 };
        let lines = [
            (self.skipped_rows, "bad rows skipped", format!("; the first: {first_skipped}")),
            (
                self.unknown_frees,
                "frees of unknown pointers left out",
                format!("{}; was the log started late?", at(self.first_unknown_free_line)),
            ),
            (
                self.duplicate_allocations,
                "allocations at addresses still live",
                format!("{}; the older block counts as leaked", at(self.first_duplicate_allocation_line)),
            ),
            (
                self.size_mismatches,
                "frees with another size than the allocation",
                format!("{}; the allocation's is used", at(self.first_size_mismatch_line)),
            ),
            (
                self.leaked_blocks,
                "blocks never freed in the log",
                format!(" ({leaked}); each pass frees them at its end"),
            ),
            (
                self.failed_allocations,
                "allocations that failed when the log was written",
                format!(" ({}); each stack was asked for them at their place", self.requests()),
            ),
            (self.out_of_sequence, "rows out of sequence", "; replayed in the file's order".to_owned()),
            (devices, "devices in the log", "; all are replayed on one".to_owned()),
        ];
        let lines = lines.into_iter().filter(|(count, ..)| *count > 0);
        let lines = lines.map(|(count, what, more)| format!("{what}: {count}{more}"));
        let missing =
            self.rest_missing.iter().map(|why| format!("the rest of the file is missing, left out: {why}"));
        missing.chain(lines).collect()
    }
}
