//! The command line of `tune`.

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use millpond_core::parse_memory;
use millpond_core::stack::LayerTable;
use millpond_snapshot::tune::{self, Request};

use super::import::{ReportFormat, SourceArgs};
use super::verdict::{Failure, Verdict};

/// Finds the settings with which a file needs the least memory, and the line that selects them
///
/// Reads what `import` reads. Replays a memory snapshot of PyTorch through models of its allocator with all
/// useful settings, and any other file through models of RMM's resources, on simulated GPUs of different
/// sizes; both through millpond's pool, too. Prints the smallest memory in which each serves every request,
/// beside the least that any allocator needs, with the stalls, driver calls and their time there. The exit
/// status is 1 if none fits into --capacity.
#[derive(Clone, Debug, Args)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// The memory that is available, as in 40GiB: the best is then the one with the fewest stalls in it
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    capacity: Option<u64>,

    /// The seconds after which no further replay begins
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    time: u64,

    /// How the result is printed
    #[arg(long, short = 'f', value_enum, default_value_t, value_name = "FORMAT")]
    format: ReportFormat,
}

/// Imports a file, tries the candidates, and prints them.
pub(super) fn run(args: &TuneArgs, table: &LayerTable, mut out: impl Write) -> Result<Verdict, Failure> {
    let recording = args.source.import()?;
    let request = Request { capacity: args.capacity, time: Duration::from_secs(args.time) };
    let progress = args.source.progress();
    let bar = progress.waiting();
    let tuned = tune::tune(&recording, &request, table, &mut |stack| progress.step(&bar, stack));
    bar.finish_and_clear();
    let tuned = tuned?;
    match args.format {
        ReportFormat::Text => tune::print(&tuned, &mut out)?,
        ReportFormat::Json => {
            serde_json::to_writer(&mut out, &tuned).map_err(io::Error::from)?;
            writeln!(out)?;
        }
    }
    Ok(if tuned.best.is_some() { Verdict::Fine } else { Verdict::StackFailed })
}
