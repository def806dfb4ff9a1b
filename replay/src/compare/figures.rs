//! The figures of a replay.

use millpond_core::{FreeCounts, LadderCounts};
use millpond_driver::{CallCounts, CallKind, DeviceSpec};
use millpond_engine::Result;
use millpond_engine::{AskedAgain, Failure};
use serde::Serialize;

/// One stack, and its result.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct StackReport {
    /// The stack as text.
    pub spec: String,
    /// The result.
    #[serde(flatten)]
    pub result: StackResult,
}

/// The result of a stack.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
#[non_exhaustive]
pub enum StackResult {
    /// It replayed the log.
    Ran(Box<StackFigures>),
    /// It was left out.
    Skipped {
        /// The reason.
        reason: String,
    },
    /// It could not be built, or broke.
    Failed {
        /// The reason.
        error: String,
        /// Whether another text for the stack would help.
        #[serde(skip)]
        is_bad_input: bool,
    },
}

/// The figures of a stack, in bytes and nanoseconds.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct StackFigures {
    /// Operations in one pass.
    pub operations: u64,
    /// Allocations that failed in the first pass.
    pub failures: u64,
    /// Allocations that failed in all passes together.
    pub failures_all_passes: u64,
    /// The first failed allocation.
    pub first_failure: Option<Failure>,
    /// The outcome of the requests that had failed when the log was written; `None` if there are none. A
    /// separate replay asks for them, so they change no other figure.
    pub asked_again: Option<AskedAgain>,
    /// Deallocations that the stack refused in all passes together. Each is a bug.
    pub misuses_all_passes: u64,
    /// The most bytes taken from the driver at one time, up to the end of the first pass.
    pub peak_reserved_bytes_first: u64,
    /// The most bytes taken from the driver at one time in the last pass.
    pub peak_reserved_bytes_last: u64,
    /// The most bytes that the log has live at one time.
    pub peak_live_bytes: u64,
    /// The peak up to the end of the first pass over the log's peak of live bytes; `None` if nothing is live.
    pub reserved_over_live_first: Option<f64>,
    /// The same for the last pass.
    pub reserved_over_live_last: Option<f64>,
    /// The peak up to the end of the first pass, over the least memory for any allocator whose streams share
    /// none; `None` if nothing is live.
    pub reserved_over_apart_first: Option<f64>,
    /// The largest free block in bytes after the last operation of the last pass, if the stack keeps
    /// statistics.
    pub largest_free_block_bytes: Option<u64>,
    /// Bytes that the stack's pools took beyond their slack in all passes together, if the stack keeps
    /// statistics. See [`ResourceStatistics::bytes_beyond_slack`](millpond_core::ResourceStatistics).
    pub bytes_beyond_slack: Option<u64>,
    /// Time per operation in the first pass, in which a stack grows: the stack's own time and the driver's,
    /// which is virtual on a simulated device. `None` if the driver's time is unknown, because a driver call
    /// has no measured time, or because threads that replay at once share the virtual clock.
    pub ns_per_op_first: Option<f64>,
    /// The same for the best pass, which has the least total time.
    pub ns_per_op_best: Option<f64>,
    /// Time per operation in the first pass, outside of the driver: the stack's own work on this machine. If
    /// threads replay at once, it includes the driver's time.
    pub own_ns_per_op_first: f64,
    /// The same for the best pass.
    pub own_ns_per_op_best: f64,
    /// The driver calls.
    pub driver: DriverFigures,
    /// The requests that each step of the reuse ladder served in the first pass, if the stack keeps
    /// statistics.
    pub ladder: Option<LadderCounts>,
    /// How blocks were freed in the first pass, if the stack keeps statistics.
    pub frees: Option<FreeCounts>,
    /// The figures of each pass.
    pub passes: Vec<PassFigures>,
}

/// The figures of one pass.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct PassFigures {
    /// The most bytes taken from the driver at one time: in the first pass, since before the stack was built;
    /// in later passes, since the pass began.
    pub peak_taken_bytes: u64,
    /// The stack's own time and the driver's, in nanoseconds. `None` if the driver's time is unknown, as for
    /// [`ns_per_op_first`](StackFigures::ns_per_op_first).
    pub ns: Option<u64>,
    /// The driver calls.
    pub driver_calls: u64,
    /// Allocations that failed.
    pub failures: u64,
}

impl StackFigures {
    /// Returns whether a request of the log failed, or failed again.
    pub fn failed_a_row(&self) -> bool {
        let again = self.asked_again.as_ref().is_some_and(|asked| asked.served < asked.requests);
        again || self.failures_all_passes > 0
    }

    /// Returns the larger peak of the first and the last pass, in bytes.
    pub(crate) fn peak(&self) -> u64 {
        self.peak_reserved_bytes_first.max(self.peak_reserved_bytes_last)
    }

    /// Returns whether the stack uses device memory. A stack of host memory serves blocks but takes no device
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
    /// Calls in the best pass, which has the least time per operation.
    pub calls_best_pass: u64,
    /// Calls from building the stack to the end of the last pass.
    pub calls_all_passes: u64,
    /// Calls that failed in the first pass.
    pub failures: u64,
    /// Time in calls in the first pass; virtual on a simulated device.
    pub ns_first_pass: u64,
    /// Time in calls in the best pass; virtual on a simulated device.
    pub ns_best_pass: u64,
    /// Kinds of calls whose time on the simulated device was not measured; the times leave them out.
    pub unmeasured: Vec<CallKind>,
    /// Calls, failures and wall time by kind of call, in the first pass.
    pub by_kind: CallCounts,
}

/// Returns the kinds of these calls that cost nothing on the simulated device because they were not measured.
pub(super) fn unmeasured(device: &DeviceSpec, counts: &CallCounts) -> Result<Vec<CallKind>> {
    let Some(profile) = device.profile()? else { return Ok(Vec::new()) };
    let kinds = counts.iter().map(|(kind, _)| kind);
    Ok(kinds.filter(|kind| profile.call_ns(*kind).is_none()).collect())
}
