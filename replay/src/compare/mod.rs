//! Replays one log through several stacks, and collects the figures of each stack. Each stack gets as fresh a
//! device as possible.
//!
//! On simulated devices, each stack gets a new device, and several stacks can replay a long log at the same
//! time. On a GPU, all stacks use the same GPU, and each stack is dropped before the next one is built.

mod figures;
mod layers;
mod misuse;
mod run;
mod settings;
mod side_by_side;

use std::cmp::Reverse;
use std::num::NonZeroUsize;
use std::thread;

use millpond_core::stack::LayerTable;
use serde::Serialize;

pub use figures::{DriverFigures, PassFigures, StackFigures, StackReport, StackResult};
pub(crate) use layers::has_model;
pub use layers::layers;
pub use settings::Settings;

use millpond_engine::program::{LogSummary, Program};
use millpond_engine::{Result, Threads};

use crate::lineup;
use crate::progress::Progress;
pub use millpond_engine::DeviceFigures;
use misuse::MisuseCounter;

/// If a log has at least this many operations, two stacks replay it at once. A shorter replay takes less than
/// a second, and its times are more accurate without another replay.
const LONG: u64 = 1 << 20;

/// The most stacks that replay a log at once. More of them would need more memory, and would not finish
/// sooner, because the slowest stack takes as long.
const MOST_AT_ONCE: usize = 2;

/// The results of one log with several stacks. The reports print them.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Comparison {
    /// The version of this format.
    pub version: u32,
    /// The device of the replays.
    pub device: DeviceFigures,
    /// The summary of the log.
    pub log: LogSummary,
    /// The order in which the log's threads ran: `as-logged`, `free` or `1`.
    pub thread_order: String,
    /// The number of times each stack replayed the log.
    pub passes: u32,
    /// How many stacks replayed the log at the same time.
    pub at_once: usize,
    /// The stacks with their results, in the requested order.
    pub stacks: Vec<StackReport>,
    /// Whether the table of layers has other layers than [`layers`].
    #[serde(skip)]
    pub has_own_layers: bool,
}

impl Comparison {
    /// The version of [`Comparison`] as JSON. It grows when a field is renamed, removed or changes its
    /// meaning. It does not grow for new fields.
    pub const VERSION: u32 = 2;
}

/// Replays `program` through each stack.
///
/// If a stack fails, the result contains the failure, and the other stacks still run.
///
/// # Errors
/// The device cannot be opened.
pub fn compare(
    program: &Program,
    settings: &Settings,
    table: &LayerTable,
    progress: &Progress,
) -> Result<Comparison> {
    let driver = settings.device.open_new()?;
    let device = DeviceFigures::new(&settings.device, &driver)?;
    drop(driver);
    let mut entries = match settings.stacks.as_slice() {
        [] => lineup::standard(program.summary(), &device),
        stacks => stacks.iter().cloned().map(lineup::Entry::Run).collect(),
    };
    entries.extend(settings.beside.iter().cloned().map(lineup::Entry::Run));
    let at_once = at_once(program.summary(), settings, device.simulated).min(entries.len());
    // Stacks that run at once share one bar.
    let shared = (at_once > 1).then(|| progress.stacks(entries.len(), program, settings.options.passes));
    let misuses = MisuseCounter::install(at_once > 1);
    let report = |entry: lineup::Entry| match entry {
        lineup::Entry::Run(spec) => {
            let bar = match &shared {
                Some(bar) => bar.clone(),
                None => progress.stack(&spec, program, settings.options.passes),
            };
            let result = run::stack(program, &spec, table, settings, &bar, &misuses);
            if shared.is_none() {
                bar.finish_and_clear();
            }
            StackReport { spec: spec.to_string(), result }
        }
        lineup::Entry::Skip { spec, reason } => {
            StackReport { spec: spec.to_string(), result: StackResult::Skipped { reason } }
        }
    };
    let stacks = if at_once > 1 {
        let (numbers, entries): (Vec<usize>, Vec<lineup::Entry>) = slowest_first(entries).into_iter().unzip();
        let reports = side_by_side::run(entries, at_once, report);
        let mut stacks: Vec<(usize, StackReport)> = numbers.into_iter().zip(reports).collect();
        stacks.sort_by_key(|(number, _)| *number);
        stacks.into_iter().map(|(_, report)| report).collect()
    } else {
        entries.into_iter().map(report).collect()
    };
    if let Some(bar) = shared {
        bar.finish_and_clear();
    }
    Ok(Comparison {
        version: Comparison::VERSION,
        stacks,
        at_once,
        device,
        log: program.summary().clone(),
        has_own_layers: !table.entries().iter().all(layers::is_millponds),
        thread_order: settings.options.threads.to_string(),
        passes: settings.options.passes,
    })
}

/// Returns how many stacks replay a log at once. The answer is one if the log's threads need the cores, or if
/// the stacks would share the memory of a GPU.
fn at_once(log: &LogSummary, settings: &Settings, is_simulated: bool) -> usize {
    if !is_simulated || settings.options.threads != Threads::One || log.operations < LONG {
        return 1;
    }
    thread::available_parallelism().map_or(1, NonZeroUsize::get).min(MOST_AT_ONCE)
}

/// Returns the stacks with their numbers, the slowest first. A stack that calls the driver for each operation
/// is slowest. If it came last, the other cores would wait for it.
fn slowest_first(entries: Vec<lineup::Entry>) -> Vec<(usize, lineup::Entry)> {
    let layers = |entry: &lineup::Entry| match entry {
        lineup::Entry::Run(spec) => spec.layers().len(),
        lineup::Entry::Skip { .. } => usize::MAX,
    };
    let mut numbered: Vec<(usize, lineup::Entry)> = entries.into_iter().enumerate().collect();
    numbered.sort_by_key(|(number, entry)| (layers(entry) > 1, Reverse(*number)));
    numbered
}

#[cfg(test)]
mod tests {
    use millpond_driver::DeviceSpec;
    use millpond_engine::Options;

    use super::*;

    #[test]
    fn long_logs_alone_are_replayed_side_by_side_and_only_on_simulated_devices() {
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let of = |operations, threads, is_simulated| {
            let mut log = LogSummary::default();
            log.operations = operations;
            let options = Options::default().threads(threads);
            at_once(&log, &Settings::new(DeviceSpec::SimH200, Vec::new()).options(options), is_simulated)
        };
        assert_eq!(of(LONG, Threads::One, true), cores.min(MOST_AT_ONCE));
        assert_eq!(of(LONG - 1, Threads::One, true), 1);
        assert_eq!(of(LONG, Threads::Free, true), 1);
        assert_eq!(of(LONG, Threads::One, false), 1);
    }

    #[test]
    fn stacks_that_call_the_driver_for_each_operation_begin() {
        let entry = |spec: &str| lineup::Entry::Run(spec.parse().unwrap());
        let entries = ["cuda", "cuda_async", "cuda+pool", "cuda+pool+binning"].map(entry).to_vec();
        let numbers: Vec<usize> = slowest_first(entries).into_iter().map(|(number, _)| number).collect();
        assert_eq!(numbers, [1, 0, 3, 2]);
    }
}
