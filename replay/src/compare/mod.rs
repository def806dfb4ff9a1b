//! Replays one log through several stacks, each on as fresh a device as possible, and collects the figures.
//!
//! Each stack gets a new simulated device. All stacks share a GPU; each is dropped before the next is built.

mod figures;
mod layers;
mod misuse;
mod run;
mod settings;

use millpond_core::stack::LayerTable;
use serde::Serialize;

pub use figures::{DriverFigures, PassFigures, StackFigures, StackReport, StackResult};
pub use layers::layers;
pub use settings::Settings;

use millpond_engine::Result;
use millpond_engine::program::{LogSummary, Program};

use crate::lineup;
use crate::progress::Progress;
pub use millpond_engine::DeviceFigures;

/// The results of one log with several stacks, which the reports print.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Comparison {
    /// The version of this format.
    pub version: u32,
    /// The device.
    pub device: DeviceFigures,
    /// The log.
    pub log: LogSummary,
    /// The order of the threads: `as-logged`, `free` or `1`.
    pub thread_order: String,
    /// The number of times each stack replayed the log.
    pub passes: u32,
    /// The stacks, in the requested order.
    pub stacks: Vec<StackReport>,
    /// Whether the table has other layers than [`layers`].
    #[serde(skip)]
    pub has_own_layers: bool,
}

impl Comparison {
    /// The version of [`Comparison`] as JSON. It grows when a field is renamed, removed or changes its
    /// meaning, but not for new fields.
    pub const VERSION: u32 = 2;
}

/// Replays `program` through each stack.
///
/// A stack that fails becomes part of the result; the other stacks still run.
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
    let entries = match settings.stacks.as_slice() {
        [] => lineup::standard(program.summary(), &device),
        stacks => stacks.iter().cloned().map(lineup::Entry::Run).collect(),
    };
    let stacks = entries.into_iter().map(|entry| match entry {
        lineup::Entry::Run(spec) => {
            let bar = progress.stack(&spec, program, settings.options.passes);
            let result = run::stack(program, &spec, table, settings, &bar);
            bar.finish_and_clear();
            StackReport { spec: spec.to_string(), result }
        }
        lineup::Entry::Skip { spec, reason } => {
            StackReport { spec: spec.to_string(), result: StackResult::Skipped { reason } }
        }
    });
    Ok(Comparison {
        version: Comparison::VERSION,
        stacks: stacks.collect(),
        device,
        log: program.summary().clone(),
        has_own_layers: !table.entries().iter().all(layers::is_millponds),
        thread_order: settings.options.threads.to_string(),
        passes: settings.options.passes,
    })
}
