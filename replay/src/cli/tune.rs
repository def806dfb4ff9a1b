//! The command line of `tune`.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use millpond_core::stack::LayerTable;
use millpond_engine::text::write_json;
use millpond_snapshot::tune::{self, Request};

use super::import::{ReportFormat, SourceArgs};
use super::sizes::memory;
use super::verdict::{Failure, Verdict};

/// Finds the allocator settings that serve a file's requests in the least memory, and prints the setting or
/// the code line to paste
///
/// Reads the same files as `import`, and replays the file on simulated GPUs of different sizes. The requests
/// of a PyTorch memory snapshot run through models of PyTorch's allocator, with all useful settings. The
/// requests of any other file run through `cuda`, `cuda_async`, and models of RMM's pool and arena. RMM's
/// binning resource has no model. In both cases, the requests also run through millpond's pool. `cuda` calls
/// the driver for each request, so it is the best only if no other candidate serves the file.
///
/// For each candidate, the command prints the smallest memory in which the candidate serves every request. It
/// also prints the number of stalls (calls that wait for the device) and of driver calls, and the time in
/// driver calls. At the end, it prints the least memory that any allocator needs. If no candidate fits into
/// --capacity, or into the memory that the program's device had for it when a request failed, the exit status
/// is 1. It is also 1 if the file has private memory pools (CUDA graphs): a replay merges them, so no setting
/// can be recommended.
#[derive(Clone, Debug, Args)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// The memory that is available, as in 40GiB; with this option, the best candidate is the one with the
    /// fewest stalls in this memory
    #[arg(long, visible_alias = "device-memory", value_name = "SIZE", value_parser = memory)]
    capacity: Option<u64>,

    /// The seconds after which the command starts no new replay
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    time: u64,

    /// The format of the result
    #[arg(long, short = 'f', value_enum, default_value_t, value_name = "FORMAT")]
    format: ReportFormat,
}

/// Imports a file, tries the candidates, and prints them.
pub(super) fn run(args: &TuneArgs, table: &LayerTable, mut out: impl Write) -> Result<Verdict, Failure> {
    let recording = args.source.import()?;
    let request = Request::default().capacity(args.capacity).time(Duration::from_secs(args.time));
    let progress = args.source.progress();
    let bar = progress.waiting();
    let tuned = tune::tune(&recording, &request, table, &mut |stack| progress.step(&bar, stack));
    bar.finish_and_clear();
    let tuned = tuned?;
    match args.format {
        ReportFormat::Text => tune::print(&tuned, &mut out)?,
        ReportFormat::Json => {
            write_json(&mut out, &tuned)?;
            writeln!(out)?;
        }
    }
    Ok(if tuned.best_of_all.is_some() { Verdict::Fine } else { Verdict::StackFailed })
}
