//! The figures of a report; the [module](super) explains each.

use millpond_core::LadderCounts;
use millpond_driver::CallCounts;
use millpond_engine::DeviceFigures;
use millpond_engine::program::LogSummary;
use serde::Serialize;

use super::{Host, Kernels};

/// The results for one log with work in flight.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The version of this format.
    pub version: u32,
    /// The device.
    pub device: DeviceFigures,
    /// The log.
    pub log: LogSummary,
    /// The seed of the durations.
    pub seed: u64,
    /// How long an allocation takes the host on a simulated device, in nanoseconds.
    pub host_ns: u64,
    /// The operations of one pass.
    pub operations: u64,
    /// The most bytes that these operations have live at one time.
    pub peak_live_bytes: u64,
    /// The bytes of the device that were left to each subject; `None` for all.
    pub capacity_bytes: Option<u64>,
    /// The figures for each combination of a range of kernels and a host.
    pub cases: Vec<CaseFigures>,
}

impl Report {
    /// The version of the JSON form. It grows when a field is renamed, removed or changes its meaning.
    pub const VERSION: u32 = 1;
}

/// One range of kernels, with one host.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct CaseFigures {
    /// The range of the durations.
    pub kernels: Kernels,
    /// How far ahead the host ran.
    pub host: Host,
    /// The sum of the durations of the busiest stream's kernels, in nanoseconds.
    pub busiest_stream_ns: u64,
    /// The sum of the durations of all kernels, in nanoseconds.
    pub all_streams_ns: u64,
    /// The least memory in bytes that needs no wait between streams.
    pub least_bytes_without_waits: u64,
    /// The results without an allocator, then the results of the requested subjects.
    pub stacks: Vec<SubjectReport>,
}

/// One stack, and its result.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SubjectReport {
    /// The stack as text, `none` or `async`.
    pub spec: String,
    /// The result.
    #[serde(flatten)]
    pub result: SubjectResult,
}

/// The result of a stack.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
#[non_exhaustive]
pub enum SubjectResult {
    /// It served every allocation, or counted its failures.
    Ran {
        /// The figures of each pass.
        passes: Vec<PassFigures>,
    },
    /// It could not be built, an allocation failed, or it broke.
    Failed {
        /// The reason.
        error: String,
    },
}

impl SubjectReport {
    /// Returns the number of failed allocations in all passes.
    pub fn failures(&self) -> u64 {
        self.passes().iter().map(|pass| pass.failures).sum()
    }

    /// Returns the figures of each pass; empty if it failed.
    pub fn passes(&self) -> &[PassFigures] {
        match &self.result {
            SubjectResult::Ran { passes } => passes,
            SubjectResult::Failed { .. } => &[],
        }
    }
}

/// The figures of one pass.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct PassFigures {
    /// Nanoseconds from the first operation to the end of all streams; virtual on a simulated device.
    pub end_ns: u64,
    /// Nanoseconds to the return of the last operation on the host.
    pub host_ns: u64,
    /// The most bytes taken from the device at one time.
    pub peak_taken_bytes: u64,
    /// The failed allocations.
    pub failures: u64,
    /// The waits between streams that the stack inserted; `None` if it does not report them.
    pub stream_waits: Option<u64>,
    /// The calls of the stack that made the host wait; `None` if it does not report them.
    pub host_waits: Option<u64>,
    /// All driver calls of the stack; `None` if they were not counted.
    pub driver_calls: Option<u64>,
    /// The driver calls of the stack, by kind.
    pub by_kind: CallCounts,
    /// The requests that each step of the reuse ladder served, if the stack keeps statistics.
    pub ladder: Option<LadderCounts>,
}
