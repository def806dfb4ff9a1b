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
    /// The device of the benchmark.
    pub device: DeviceFigures,
    /// The number of threads that this machine can run at once.
    pub cpus: usize,
    /// The seed of the random plans.
    pub seed: u64,
    /// Whether the run did only few steps.
    pub quick: bool,
    /// The results of the workloads that ran.
    pub results: Vec<Figures>,
    /// The workloads that did not run.
    pub not_run: Vec<NotRun>,
    /// Remarks for people who read the figures.
    pub notes: Vec<String>,
}

/// One workload on one stack, without its figures.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Subjected {
    /// The name of the workload.
    pub workload: &'static str,
    /// The stack as text, or [`MIMALLOC`].
    pub stack: String,
    /// The number of threads.
    pub threads: usize,
    /// The number of streams of all threads together.
    pub streams: usize,
    /// The number of blocks that each thread keeps live; 1 for the workload `pair`.
    pub live: usize,
    /// The percentage of the fragmenting blocks that were freed before the first step; 0 for workloads
    /// without such blocks.
    pub freed_percent: u32,
    /// The size of the block in bytes, for the workload `pair`. For other workloads, the most bytes of live
    /// blocks in the plan.
    pub bytes: u64,
    /// The sizes of the blocks, as text for people.
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
    /// The mean nanoseconds of a step on the thread that does the step.
    pub ns_per_step: f64,
    /// The 99th percentile of a step's time, in nanoseconds.
    pub p99_ns: u64,
    /// The steps per second of all threads together.
    pub steps_per_second: f64,
    /// The mean nanoseconds of an allocation before the first step. It includes the growth of the stack.
    /// `None` for the workload `pair`.
    pub ns_per_fill: Option<f64>,
    /// The most bytes reserved from the driver; `None` if the stack does not report them.
    pub reserved_bytes: Option<u64>,
}

/// Why the workload gave no figures.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct NotRun {
    /// The workload and the stack.
    #[serde(flatten)]
    pub of: Subjected,
    /// Whether it failed, or was not tried.
    pub status: Status,
    /// The reason, as text for people.
    pub reason: String,
}

/// The reason why a workload gave no figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Status {
    /// The workload does not fit into the memory, or preparing it took too long.
    Skipped,
    /// The workload needs more memory on this stack than the device has.
    OutOfMemory,
    /// The stack could not be built, or the run broke off.
    Failed,
}

impl Report {
    /// The version of the JSON form. It grows when a field is renamed, removed or changes its meaning.
    pub const VERSION: u32 = 1;
}
