//! The figures of a report. The [module](super) explains each of them.

use millpond_core::LadderCounts;
use millpond_driver::CallCounts;
use millpond_engine::DeviceFigures;
use millpond_engine::program::LogSummary;
use serde::Serialize;

use super::{Host, Kernels};

/// The results of replaying one log with kernels running.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The version of this format.
    pub version: u32,
    /// The device of the replay.
    pub device: DeviceFigures,
    /// The summary of the log.
    pub log: LogSummary,
    /// The seed of the random durations.
    pub seed: u64,
    /// The time that the host takes for an allocation on a simulated device, in nanoseconds.
    pub host_ns: u64,
    /// The number of operations in one pass.
    pub operations: u64,
    /// The most bytes that are live at one time in these operations.
    pub peak_live_bytes: u64,
    /// How many bytes of the device were left to each subject; `None` if all bytes were.
    pub capacity_bytes: Option<u64>,
    /// The figures for each combination of a range of durations and a mode of the host.
    pub cases: Vec<CaseFigures>,
}

impl Report {
    /// The version of the JSON form. It grows when a field is renamed, removed or changes its meaning.
    pub const VERSION: u32 = 1;
}

/// The figures for one range of durations, with one mode of the host.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct CaseFigures {
    /// The range of the kernels' durations.
    pub kernels: Kernels,
    /// The mode of the host: how far it ran ahead of the device.
    pub host: Host,
    /// The sum of the durations of all kernels on the busiest stream, in nanoseconds.
    pub busiest_stream_ns: u64,
    /// The sum of the durations of all kernels, in nanoseconds.
    pub all_streams_ns: u64,
    /// The least memory in bytes with which no stream has to wait for another stream.
    pub least_bytes_without_waits: u64,
    /// The results of the subjects. The first one is the run without an allocator.
    pub stacks: Vec<SubjectReport>,
}

/// A stack, and its result.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SubjectReport {
    /// The stack as text, or `none`, or `async`.
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
    /// The stack served every allocation, or its failed allocations were counted.
    Ran {
        /// The figures of each pass.
        passes: Vec<PassFigures>,
    },
    /// The stack could not be built, an allocation failed, or the run broke off.
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

    /// Returns the figures of each pass. The result is empty if the stack failed.
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
    /// The nanoseconds from the first operation to the end of all streams. They are virtual on a simulated
    /// device.
    pub end_ns: u64,
    /// The nanoseconds from the first operation until the last operation returns on the host.
    pub host_ns: u64,
    /// The most bytes reserved from the device at one time.
    pub peak_taken_bytes: u64,
    /// The number of failed allocations.
    pub failures: u64,
    /// How many waits between streams the stack inserted; `None` if the stack does not report them.
    pub stream_waits: Option<u64>,
    /// How many calls of the stack made the host wait; `None` if the stack does not report them.
    pub host_waits: Option<u64>,
    /// The number of all driver calls of the stack; `None` if they were not counted.
    pub driver_calls: Option<u64>,
    /// The driver calls of the stack, by kind.
    pub by_kind: CallCounts,
    /// How many requests each level of the reuse ladder served; `None` if the stack keeps no statistics.
    pub ladder: Option<LadderCounts>,
}
