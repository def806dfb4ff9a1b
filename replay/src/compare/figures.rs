//! The figures of a replay.

use millpond_core::{FreeCounts, LadderCounts};
use millpond_driver::{CallCounts, CallKind, DeviceSpec};
use millpond_engine::Result;
use millpond_engine::{AskedAgain, Failure};
use serde::Serialize;

/// A stack, and the result of its replay.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct StackReport {
    /// The stack as text, as in `cuda+pool`.
    pub spec: String,
    /// The result of the replay.
    #[serde(flatten)]
    pub result: StackResult,
}

/// The result of replaying a log through a stack.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
#[non_exhaustive]
pub enum StackResult {
    /// The stack replayed the log.
    Ran(Box<StackFigures>),
    /// The stack was left out.
    Skipped {
        /// The reason.
        reason: String,
    },
    /// The stack could not be built, or the replay broke off.
    Failed {
        /// The reason.
        error: String,
        /// Whether the text of the stack is wrong, so that the user can correct it.
        #[serde(skip)]
        is_bad_input: bool,
    },
}

/// The figures of a stack, in bytes and nanoseconds.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct StackFigures {
    /// Operations (allocations and frees) in one pass. A pass is one replay of the log.
    pub operations: u64,
    /// Allocations that failed in the first pass.
    pub failures: u64,
    /// Allocations that failed in all passes together.
    pub failures_all_passes: u64,
    /// The first allocation that failed.
    pub first_failure: Option<Failure>,
    /// The outcome of the requests that had failed when the log was written; `None` if there are none. A
    /// separate replay repeats these requests, so they change only
    /// [`peak_reserved_bytes_asked_again`](Self::peak_reserved_bytes_asked_again).
    pub asked_again: Option<AskedAgain>,
    /// Deallocations that the stack refused in all passes together. Each refusal is a bug.
    pub misuses_all_passes: u64,
    /// The most bytes allocated from the driver at one time, up to the end of the first pass.
    pub peak_reserved_bytes_first: u64,
    /// The most bytes allocated from the driver at one time in the last pass.
    pub peak_reserved_bytes_last: u64,
    /// The most bytes allocated from the driver at one time in the separate replay, which also makes the
    /// requests that had failed when the log was written; `None` if there are no such requests.
    pub peak_reserved_bytes_asked_again: Option<u64>,
    /// The most bytes that the log has live at one time.
    pub peak_live_bytes: u64,
    /// The most bytes of the log's live blocks and of a request that failed at the same time when the log was
    /// written.
    pub peak_needed_bytes: u64,
    /// [`peak_reserved_bytes_first`](Self::peak_reserved_bytes_first) divided by
    /// [`peak_live_bytes`](Self::peak_live_bytes); `None` if no block is live.
    pub reserved_over_live_first: Option<f64>,
    /// [`peak_reserved_bytes_last`](Self::peak_reserved_bytes_last) divided by
    /// [`peak_live_bytes`](Self::peak_live_bytes); `None` if no block is live.
    pub reserved_over_live_last: Option<f64>,
    /// [`peak_reserved_bytes_first`](Self::peak_reserved_bytes_first) divided by the least memory that an
    /// allocator needs if its streams share no memory; `None` if no block is live.
    pub reserved_over_apart_first: Option<f64>,
    /// The bytes of the largest free block after the last operation of the last pass; `None` if the stack
    /// keeps no statistics.
    pub largest_free_block_bytes: Option<u64>,
    /// Bytes that the stack's pools allocated beyond their slack in all passes together; `None` if the stack
    /// keeps no statistics. See
    /// [`ResourceStatistics::bytes_beyond_slack`](millpond_core::ResourceStatistics).
    pub bytes_beyond_slack: Option<u64>,
    /// Time per operation in the first pass, in which a stack grows. It is the sum of the stack's own time
    /// and the driver's time, which is virtual on a simulated device. `None` if the driver's time is unknown:
    /// a driver call has no measured time, several threads that replay at once share the virtual clock, or
    /// the allocator runs in another process.
    pub ns_per_op_first: Option<f64>,
    /// Time per operation in the pass with the least total time. [`ns_per_op_first`](Self::ns_per_op_first)
    /// says which times count.
    pub ns_per_op_best: Option<f64>,
    /// Time per operation in the first pass, outside of the driver: the stack's own work on this machine. If
    /// threads replay at once, this includes the driver's time. For the layer `pytorch`, this includes the
    /// messages to its process.
    pub own_ns_per_op_first: f64,
    /// Time per operation outside of the driver, in the pass with the least total time. If threads replay at
    /// once, this includes the driver's time.
    pub own_ns_per_op_best: f64,
    /// The driver calls.
    pub driver: DriverFigures,
    /// How many requests each level of the reuse ladder served in the first pass; `None` if the stack keeps
    /// no statistics.
    pub ladder: Option<LadderCounts>,
    /// How blocks were freed in the first pass; `None` if the stack keeps no statistics.
    pub frees: Option<FreeCounts>,
    /// The figures of each pass.
    pub passes: Vec<PassFigures>,
}

/// The figures of one pass.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct PassFigures {
    /// The most bytes allocated from the driver at one time. For the first pass, the time begins before the
    /// stack is built. For each later pass, it begins with the pass.
    pub peak_taken_bytes: u64,
    /// The stack's own time and the driver's time together, in nanoseconds. `None` if the driver's time is
    /// unknown, as for [`ns_per_op_first`](StackFigures::ns_per_op_first).
    pub ns: Option<u64>,
    /// The driver calls.
    pub driver_calls: u64,
    /// Allocations that failed.
    pub failures: u64,
}

impl StackFigures {
    /// Returns whether an allocation of the log failed, or a request failed as it did when the log was
    /// written.
    pub fn failed_a_row(&self) -> bool {
        let again = self.asked_again.as_ref().is_some_and(|asked| asked.served < asked.requests);
        again || self.failures_all_passes > 0
    }

    /// Returns the peak of the first pass in bytes, with the requests that had failed when the log was
    /// written.
    pub(crate) fn first_peak(&self) -> u64 {
        self.peak_reserved_bytes_first.max(self.peak_reserved_bytes_asked_again.unwrap_or(0))
    }

    /// Returns the largest peak of the first and the last pass in bytes, with the requests that had failed
    /// when the log was written.
    pub(crate) fn peak(&self) -> u64 {
        self.first_peak().max(self.peak_reserved_bytes_last)
    }

    /// Returns a peak divided by the most live bytes, with the requests that had failed when the log was
    /// written. Returns `None` if no block is live.
    pub(crate) fn over_live(&self, peak: u64) -> Option<f64> {
        (self.peak_needed_bytes > 0).then(|| peak as f64 / self.peak_needed_bytes as f64)
    }

    /// Returns whether the stack uses device memory. A stack of host memory serves blocks but uses no device
    /// memory.
    pub fn is_of_device(&self) -> bool {
        self.peak_reserved_bytes_first > 0 || self.peak_live_bytes == 0 || self.failures_all_passes > 0
    }
}

/// The driver calls of a stack.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct DriverFigures {
    /// Calls while the stack was built.
    pub calls_building: u64,
    /// Calls in the first pass.
    pub calls_first_pass: u64,
    /// Calls in the pass with the least time per operation.
    pub calls_best_pass: u64,
    /// Calls from building the stack to the end of the last pass.
    pub calls_all_passes: u64,
    /// Calls that failed in the first pass.
    pub failures: u64,
    /// Nanoseconds in driver calls in the first pass; virtual on a simulated device.
    pub ns_first_pass: u64,
    /// Nanoseconds in driver calls in the pass with the least time per operation; virtual on a simulated
    /// device.
    pub ns_best_pass: u64,
    /// Kinds of calls whose time was not measured for the simulated device. The times leave these calls out.
    pub unmeasured: Vec<CallKind>,
    /// Calls, failures and wall time by kind of call, in the first pass.
    pub by_kind: CallCounts,
}

/// Returns which kinds of these calls cost nothing on the simulated device, because their time was not
/// measured.
pub(super) fn unmeasured(device: &DeviceSpec, counts: &CallCounts) -> Result<Vec<CallKind>> {
    let Some(profile) = device.profile()? else { return Ok(Vec::new()) };
    let kinds = counts.iter().map(|(kind, _)| kind);
    Ok(kinds.filter(|kind| profile.call_ns(*kind).is_none()).collect())
}
