//! The result of a replay.

use super::AskedAgain;

/// The first failed allocation.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Failure {
    /// The line of the allocation in the log.
    pub line: u64,
    /// The error as text. If it has several lines, the first line is a summary.
    pub error: String,
    /// The stack's out-of-memory report, if the stack made one.
    pub report: Option<Box<millpond_core::OutOfMemoryReport>>,
}

impl Failure {
    /// Returns a failure without a report, for the allocation at a line of the log.
    pub fn new(line: u64, error: impl Into<String>) -> Self {
        Self { line, error: error.into(), report: None }
    }

    /// Returns the first line of the error.
    pub fn first_line(&self) -> &str {
        self.error.lines().next().unwrap_or_default()
    }
}

/// The result of a replay.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// The nanoseconds of each pass.
    pub pass_ns: Vec<u64>,
    /// The number of failed allocations in each pass.
    pub pass_failures: Vec<u64>,
    /// The number of failed allocations in all passes. The replay skips the frees of their blocks.
    pub failures: u64,
    /// The first failed allocation.
    pub first_failure: Option<Failure>,
    /// The outcome of the requests that had failed when the log was written, summed over all passes. `None`
    /// if they were not repeated.
    pub asked_again: Option<AskedAgain>,
}
