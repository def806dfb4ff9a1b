//! Counts of the rows and blocks in a log.

use serde::Serialize;

use super::sparkline::Sparkline;
use crate::log::{ChosenDevice, Flaws};
use crate::text::number_of;

/// A summary of the contents of a log. Sizes are in bytes, as requested.
#[derive(Clone, Default, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct LogSummary {
    /// The name of the log.
    pub file: String,
    /// The format of an imported file, for instance `PyTorch memory snapshot`; `None` if the file is a log.
    pub imported_from: Option<String>,
    /// The stack that models the allocator of the recorded program; `None` if the importer knows no model.
    pub recorded_with: Option<String>,
    /// The number of private memory pools of the recorded program, for instance of CUDA graphs. A replay
    /// merges them with the default pool, so it needs less memory than the program does.
    pub private_pools: usize,
    /// The most bytes that the program's allocator could have on its device when a request failed; `None` if
    /// the file does not tell. The device has at least this many bytes.
    pub available_bytes: Option<u64>,
    /// The data that the file lacks, as the importer found out, in one sentence each.
    pub not_known: Vec<String>,
    /// The number of rows, without the header and without skipped rows.
    pub events: u64,
    /// The number of operations in a replay: rows that allocate a block, and rows that free a known block.
    pub operations: u64,
    /// The number of different streams.
    pub streams: usize,
    /// The number of different threads.
    pub threads: usize,
    /// The number of different devices, if the log has them. Only the rows of the first one count.
    pub devices: usize,
    /// The number of rows of the other devices, which are left out.
    pub other_device_rows: u64,
    /// The highest sum of the sizes of live blocks, in bytes.
    pub peak_live_bytes: u64,
    /// The live bytes over the log.
    #[serde(skip)]
    pub live: Sparkline,
    /// The sum of the peaks of live bytes of all streams. If streams share no memory, every allocator needs
    /// at least this many bytes. A block counts for the stream that allocated it.
    pub peak_live_bytes_apart: u64,
    /// The most bytes of live blocks and of a request that failed at the same time. No device with less
    /// memory can serve the log and its failed requests.
    pub peak_needed_bytes: u64,
    /// The most live blocks at one time.
    pub peak_live_blocks: u64,
    /// The largest allocation in bytes, without the requests that failed.
    pub largest_request_bytes: u64,
    /// The largest request in bytes, including the requests that failed.
    pub largest_wanted_bytes: u64,
    /// Whether the log has columns that only millpond writes.
    #[serde(skip)]
    pub is_of_millpond: bool,
    /// The number of rows with the action `allocate failure`.
    pub failed_allocations: u64,
    /// The number of requests in the rows `allocate failure`. All failures before a success of the same size,
    /// thread and stream are one request.
    pub failed_requests: u64,
    /// The contradictions in the log, and the data that it lacks.
    #[serde(flatten)]
    pub flaws: Flaws,
    /// The number of blocks that the log never frees.
    pub leaked_blocks: u64,
    /// The bytes of the blocks that the log never frees.
    pub leaked_bytes: u64,
    /// The number of rows whose sequence number is not above the sequence number of the previous row.
    pub out_of_sequence: u64,
    /// The number of bad rows that were skipped.
    pub skipped_rows: u64,
    /// The error of the first bad row that was skipped.
    pub first_skipped_row: Option<String>,
    /// The mean duration of a call when the log was written, in nanoseconds, if the log has durations.
    pub logged_ns_per_op: Option<f64>,
}

impl LogSummary {
    /// Returns whether a request failed, and live memory grew until the end of the log although the program
    /// freed at least half of its blocks. Another allocator only delays such a failure.
    pub fn fails_by_growth(&self) -> bool {
        // Each operation allocates or frees a block, and the blocks that are never freed are known.
        self.failed_requests > 0
            && self.live.grows()
            && self.leaked_blocks.saturating_mul(3) <= self.operations
    }

    /// Returns remarks for people who read the figures. Each remark is one line.
    pub fn notes(&self) -> Vec<String> {
        let first_skipped = self.first_skipped_row.as_deref().unwrap_or_default();
        let leaked = millpond_core::format_bytes(self.leaked_bytes);
        let requests = number_of(self.failed_requests, "request");
        let lines = [
            (self.skipped_rows, "bad row", format!("skipped; the first: {first_skipped}")),
            (
                self.leaked_blocks,
                "block",
                format!("never freed in the log ({leaked}); each pass frees such blocks at its end"),
            ),
            (
                self.failed_allocations,
                "allocation",
                format!("failed when the log was written ({requests}); the replay repeats such requests"),
            ),
            (self.out_of_sequence, "row", "out of sequence; the replay keeps the file's order".to_owned()),
        ];
        let lines = lines.into_iter().filter(|(count, ..)| *count > 0);
        let lines = lines.map(|(count, noun, text)| format!("{} {text}", number_of(count, noun)));
        let flaws = self.flaws.sentences().into_iter().map(|(_, text)| text);
        let others = Some(self.other_device_rows).filter(|rows| *rows > 0).map(ChosenDevice::sentence);
        // Only a log has `rest_missing`. An imported file has this gap first in `not_known`.
        let not_known = self.not_known.iter().map(|text| format!("not known: {text}"));
        not_known.chain(flaws).chain(lines).chain(others).collect()
    }
}
