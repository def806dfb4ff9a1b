//! Measures the cost of allocations on synthetic workloads. mimalloc, an allocator of CPU memory, runs the
//! same steps. Its time is a lower bound for the bookkeeping of an allocator.
//!
//! # Workloads
//! A step allocates one block and frees one block. Sizes are log-uniform: every doubling is equally likely.
//!
//! | workload | does | a step |
//! |---|---|---|
//! | `pair` | one size: 256 B, 4 KiB, 64 KiB, 1 MiB, 64 MiB | allocate, free the same |
//! | `churn` | keeps 10^2, 10^3, 10^4, 10^5, 10^6 blocks of 256 B to 1 MiB live | free any, allocate |
//! | `churn_large` | keeps 2000 blocks of 1 to 64 MiB live | the same |
//! | `streams` | one thread keeps 10^4 blocks live on 1, 4, 16, 64, 256 streams, drawn at random | the same |
//! | `fragmented` | keeps 4000 blocks of 64 KiB to 4 MiB live in a fragmented heap | the same |
//! | `threads_own_stream` | T threads, 1000 blocks of 256 B to 1 MiB each, a stream each | the same |
//! | `threads_one_stream` | the same, all on one stream | the same |
//! | `cross_thread_free` | the same; T threads pass their blocks on | free a neighbour's, allocate |
//!
//! A block is freed on the stream that allocated it. To fragment a heap, the workload allocates 20,000 blocks
//! of 256 B to 1 MiB. Then it frees 0, 25, 50, 75 or 90 % of these blocks at random. The other blocks stay
//! live.
//!
//! # Method
//! - All random choices are made in advance, as a plan. Each stack gets the same plan, and so do the other
//!   programs in `benches/peers`. A plan depends only on the seed, so a run can be repeated.
//! - Each stack is built for each workload, and dropped after it. Before the clock starts, blocks are
//!   allocated, and each block is replaced four times on average. So the clock measures the steady state. If
//!   that takes longer than 4 seconds, the clock starts earlier. `ns_per_fill` is the cost of the first
//!   blocks, while the stack grows.
//! - Every 16th step is timed alone, and the 99th percentile is taken over these steps. The time of reading
//!   the clock is measured on empty steps, and subtracted.
//! - `ns_per_step` is the mean on the thread that does the step. It includes access to the list of live
//!   blocks. `steps_per_second` counts the steps of all threads, from the first start to the last end.
//! - In `cross_thread_free`, each thread allocates on its own stream, and its neighbour frees the block.
//!   After each 1000 steps, the threads wait for each other and hand over their blocks. This wait is not
//!   measured.
//! - No kernel runs, and no step writes to memory, because the allocator is measured, not the device.
//! - If a workload takes too long, it ends early, and its figures cover fewer steps.
//!
//! # JSON
//! ```text
//! version                1; grows when a field is renamed, removed or changes its meaning
//! device                 spec, name, simulated, total_bytes, free_bytes
//! cpus, seed, quick      of this run
//! results[]              one for each workload and stack that ran, in the order of running
//!   workload             as in the table above
//!   stack                the stack as text, or "mimalloc"
//!   threads              how many
//!   streams              of all threads together
//!   live                 blocks that each thread keeps live; 1 for a pair
//!   freed_percent        of the blocks that fragment the heap; 0 for other workloads
//!   bytes                of the block for a pair, else of all live blocks at the plan's peak
//!   steps                how many were measured
//!   ns_per_step          mean nanoseconds of a step on its thread
//!   p99_ns               99th percentile of the steps that were timed alone
//!   steps_per_second     of all threads together
//!   ns_per_fill          mean nanoseconds of an allocation before the first step, with growth; null
//!                        for a pair
//!   reserved_bytes       the most bytes taken from the driver; null if the stack does not report them
//! not_run[]              workload, stack, threads, streams, live, freed_percent, bytes, status ("skipped",
//!                        "out_of_memory" or "failed"), reason
//! notes[]                remarks for readers of the figures
//! ```

mod barrier;
mod effort;
mod figures;
mod measure;
#[cfg(feature = "mimalloc")]
mod memory;
#[cfg(test)]
mod peers;
pub(crate) mod plan;
mod report;
mod run;
mod setback;
mod streams;
mod subject;
#[cfg(test)]
mod tests;
mod workload;

use std::time::Instant;

use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{AnyResource, DeviceMemoryResourceExt, DriverHandle, StreamRef, format_bytes};
use millpond_driver::DeviceSpec;
use millpond_driver::sim::{SimConfig, SimDevice};

pub use figures::{Figures, MIMALLOC, NotRun, Report, Status, Subjected};
pub use report::{Format, print};
pub use workload::Workload;

use millpond_engine::DeviceFigures;
use millpond_engine::Result;

use effort::Effort;
use plan::Plan;
use run::{Churn, Timing};
use setback::{Attempt, Setback};
use streams::Streams;
use subject::Subject;
use workload::Case;

/// The settings of a benchmark: the device, the stacks and the workloads.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The device of the benchmark. A simulated device gets as much memory as each workload needs.
    pub device: DeviceSpec,
    /// The stacks to measure.
    pub stacks: Vec<StackSpec>,
    /// The workloads to run. If there are none, all workloads run.
    pub workloads: Vec<Workload>,
    /// The numbers of threads for workloads with several threads. If there are none, these are 1, 2, 4, 8 and
    /// 16, or only 2 if `quick` is set.
    pub threads: Vec<usize>,
    /// The seed of the random plans.
    pub seed: u64,
    /// Whether to do only few steps. The run then ends within 30 seconds, and the figures are rough.
    pub quick: bool,
}

impl Settings {
    /// Returns the settings of a full run of all workloads.
    pub fn new(device: DeviceSpec, stacks: Vec<StackSpec>) -> Self {
        Self { device, stacks, workloads: Vec::new(), threads: Vec::new(), seed: 42, quick: false }
    }

    millpond_core::setters! { workloads: Vec<Workload>, threads: Vec<usize>, seed: u64, quick: bool }
}

/// Runs the workloads. Before each workload, calls `watch` with its name.
///
/// # Errors
/// The device cannot be opened.
pub fn bench(settings: &Settings, table: &LayerTable, watch: &mut dyn FnMut(&str)) -> Result<Report> {
    let device = DeviceFigures::new(&settings.device, &settings.device.open_new()?)?;
    let report = Report {
        version: Report::VERSION,
        device,
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        seed: settings.seed,
        quick: settings.quick,
        results: Vec::new(),
        not_run: Vec::new(),
        notes: Vec::new(),
    };
    let effort = if settings.quick { Effort::QUICK } else { Effort::FULL };
    let mut bench = Bench { settings, table, effort, report };
    if !cfg!(feature = "mimalloc") {
        bench.note("mimalloc is missing: this program was built without the feature `mimalloc`".to_owned());
    }
    let default_threads: &[usize] = if settings.quick { &[2] } else { &[1, 2, 4, 8, 16] };
    let threads = if settings.threads.is_empty() { default_threads } else { &settings.threads };
    let all = Workload::ALL.to_vec();
    let workloads = if settings.workloads.is_empty() { &all } else { &settings.workloads };
    let begin = Instant::now();
    for case in workloads.iter().flat_map(|workload| workload.cases(threads)) {
        let plans = case.plans(settings.seed, &effort);
        #[cfg(feature = "mimalloc")]
        bench.mimalloc(case, &plans, watch);
        for stack in &settings.stacks {
            if settings.quick && begin.elapsed() > Effort::QUICK_ENOUGH {
                bench.effort.preparing = Effort::HASTE;
            }
            bench.stack(case, &plans, stack, watch);
        }
    }
    Ok(bench.report)
}

/// A run in progress.
struct Bench<'a> {
    settings: &'a Settings,
    table: &'a LayerTable,
    effort: Effort,
    report: Report,
}

impl Bench<'_> {
    fn note(&mut self, note: String) {
        if !self.report.notes.contains(&note) {
            self.report.notes.push(note);
        }
    }

    #[cfg(feature = "mimalloc")]
    fn mimalloc(&mut self, case: Case, plans: &[Plan], watch: &mut dyn FnMut(&str)) {
        let of = subjected(case, plans, MIMALLOC.to_owned());
        if let Some(reason) = memory::too_little_for(of.bytes) {
            return self.finish(of, Err(Setback::skipped(reason)));
        }
        watch(&of.to_string());
        // mimalloc has no streams, so one stream stands for all streams.
        let streams = vec![StreamRef::LEGACY; case.streams];
        let timing = self.measure(&subject::Mimalloc, case, plans, streams);
        self.finish(of, timing.map(|timing| (timing, None)));
    }

    fn stack(&mut self, case: Case, plans: &[Plan], stack: &StackSpec, watch: &mut dyn FnMut(&str)) {
        let of = subjected(case, plans, stack.to_string());
        watch(&of.to_string());
        let timing = self.build_and_measure(case, plans, stack, of.bytes);
        self.finish(of, timing);
    }

    fn build_and_measure(
        &mut self,
        case: Case,
        plans: &[Plan],
        stack: &StackSpec,
        bytes: u64,
    ) -> Attempt<(Timing, Option<u64>)> {
        let driver = self.roomy_device(case, bytes)?;
        let streams = Streams::create(&driver, case.streams)?;
        let resource = stack.build(self.table, &driver)?;
        let timing = self.measure(&resource, case, plans, streams.all().to_vec())?;
        Ok((timing, reserved_bytes(&resource)))
    }

    /// Returns the device, if it has enough memory. A simulated device gets more memory if it has too little.
    fn roomy_device(&mut self, case: Case, bytes: u64) -> Attempt<DriverHandle> {
        /// How many times the live bytes a stack may need. Bins round small blocks up to large ones.
        const ROOM: u64 = 4;
        let (device, live) = (&self.settings.device, format_bytes(bytes));
        let driver = device.open_new()?;
        let free = driver.mem_get_info().map_err(millpond_core::Error::from)?.free;
        if !device.is_sim() {
            let why = || format!("{live} are live at once, but the device has {} free", format_bytes(free));
            return if bytes <= free { Ok(driver) } else { Err(Setback::skipped(why())) };
        }
        let wanted = bytes.saturating_mul(ROOM);
        if wanted <= free {
            return Ok(driver);
        }
        let Some(profile) = device.profile()? else { return Ok(driver) };
        let larger = wanted.next_power_of_two();
        let (workload, size) = (case.workload, format_bytes(larger));
        let text =
            format!("{workload} with {live} live ran on sim:{size}, because {device} has too little memory");
        self.note(text);
        Ok(SimDevice::new(SimConfig::new(profile.resized(larger))))
    }

    fn measure<S: Subject>(
        &self,
        subject: &S,
        case: Case,
        plans: &[Plan],
        streams: Vec<StreamRef>,
    ) -> Attempt<Timing> {
        if case.workload == Workload::Pair {
            let bytes = case.sizes.largest.into();
            return run::pairs(subject, streams[0], bytes, self.effort.steps, &self.effort);
        }
        let hands_over = case.workload == Workload::CrossThreadFree;
        Churn::new(subject, plans, streams, hands_over, self.effort).run()
    }

    fn finish(&mut self, of: Subjected, outcome: Attempt<(Timing, Option<u64>)>) {
        match outcome {
            Ok((mut timing, reserved_bytes)) => self.report.results.push(Figures {
                of,
                steps: timing.steps(),
                ns_per_step: timing.ns_per_step(),
                p99_ns: timing.p99_ns(),
                steps_per_second: timing.steps_per_second(),
                ns_per_fill: timing.ns_per_fill(),
                reserved_bytes,
            }),
            Err(Setback { status, reason }) => self.report.not_run.push(NotRun { of, status, reason }),
        }
    }
}

/// Returns the peak of reserved bytes of the lowest layer that keeps statistics. The memory of this layer
/// comes from the driver.
fn reserved_bytes(resource: &AnyResource) -> Option<u64> {
    let peaks = resource.stack().filter_map(|layer| layer.statistics());
    peaks.last().map(|statistics| statistics.peak_bytes_reserved)
}

fn subjected(case: Case, plans: &[Plan], stack: String) -> Subjected {
    Subjected {
        workload: case.workload.name(),
        stack,
        threads: case.threads,
        streams: case.streams,
        live: case.live,
        freed_percent: case.freed_percent,
        bytes: case.bytes(plans),
        sizes: case.about(),
    }
}
