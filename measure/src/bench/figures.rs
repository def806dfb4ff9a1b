//! The figures of a benchmark.

use millpond_engine::DeviceFigures;
use serde::Serialize;

/// The name of the entry that allocates CPU memory with mimalloc, without a stack.
pub const MIMALLOC: &str = "mimalloc";

/// The results of a benchmark.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The version of this format.
    pub version: u32,
    /// The device.
    pub device: DeviceFigures,
    /// The number of threads that this machine runs at once.
    pub cpus: usize,
    /// The seed of the plans.
    pub seed: u64,
    /// Whether the run did few steps.
    pub quick: bool,
    /// The workloads that ran.
    pub results: Vec<Figures>,
    /// The workloads that did not run.
    pub not_run: Vec<NotRun>,
    /// Remarks for readers of the figures.
    pub notes: Vec<String>,
}

/// One workload on one stack.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Subjected {
    /// The workload.
    pub workload: &'static str,
    /// The stack as text, or [`MIMALLOC`].
    pub stack: String,
    /// The number of threads.
    pub threads: usize,
    /// The number of streams of all threads together.
    pub streams: usize,
    /// The number of blocks that each thread keeps live; 1 for the workload `pair`.
    pub live: usize,
    /// The percentage of fragmenting blocks that were freed first; 0 for other workloads.
    pub freed_percent: u32,
    /// The size of the block in bytes, for the workload `pair`. For other workloads, the bytes of all live
    /// blocks at the plan's peak.
    pub bytes: u64,
    /// The sizes of blocks, for people.
    #[serde(skip)]
    pub sizes: String,
}

/// The figures of one workload on one stack.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Figures {
    /// The workload and the stack.
    #[serde(flatten)]
    pub of: Subjected,
    /// The number of measured steps.
    pub steps: u64,
    /// Mean nanoseconds of a step on its thread.
    pub ns_per_step: f64,
    /// The 99th percentile, in nanoseconds.
    pub p99_ns: u64,
    /// The steps per second of all threads together.
    pub steps_per_second: f64,
    /// Mean nanoseconds of an allocation before the first step, including growth; `None` for the workload
    /// `pair`.
    pub ns_per_fill: Option<f64>,
    /// The most bytes taken from the driver, if the stack reports them.
    pub reserved_bytes: Option<u64>,
}

/// A workload that gave no figures.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct NotRun {
    /// The workload and the stack.
    #[serde(flatten)]
    pub of: Subjected,
    /// Whether it failed, or was not tried.
    pub status: Status,
    /// The reason.
    pub reason: String,
}

/// The reason why there are no figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Status {
    /// The workload does not fit, or preparing took too long.
    Skipped,
    /// The stack needs more memory for it than the device has.
    OutOfMemory,
    /// The stack could not be built, or broke.
    Failed,
}

impl Report {
    /// The version of the JSON form. It grows when a field is renamed, removed or changes its meaning.
    pub const VERSION: u32 = 1;
}
