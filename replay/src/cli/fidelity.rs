//! The command line of `fidelity`.

use std::io::Write;

use clap::Args;
use millpond_engine::text::write_json;
use millpond_snapshot::fidelity::{self, Fidelity};

use super::import::{ReportFormat, SourceArgs};
use super::sizes::memory;
use super::verdict::{Failure, Verdict};

/// Measures how well the model `torch` predicts a PyTorch memory snapshot, address by address
///
/// The model `torch` simulates PyTorch's allocator. This command runs the snapshot's requests through the
/// model, with the snapshot's settings. It prints how many blocks the model places at PyTorch's addresses,
/// and the first difference. It also prints how many segments the model reserves and releases as PyTorch did.
/// (A segment is a piece of device memory that PyTorch's allocator reserves at once.) The result tells you
/// how far you can trust `--stack torch` and `tune` for this program.
#[derive(Clone, Debug, Args)]
pub(crate) struct FidelityArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// The memory limit of the process, as in 40GiB, if the process called set_per_process_memory_fraction. A
    /// snapshot does not contain this limit, and the setting garbage_collection_threshold depends on it
    /// [default: no limit; if the snapshot shows that the driver refused PyTorch a segment, it also refuses
    /// the model]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    limit: Option<u64>,

    /// The format of the result
    #[arg(long, short = 'f', value_enum, default_value_t, value_name = "FORMAT")]
    format: ReportFormat,
}

/// Imports a file, compares it with the model, and prints the result.
pub(super) fn run(args: &FidelityArgs, mut out: impl Write) -> Result<Verdict, Failure> {
    let recording = args.source.import()?;
    let fidelity = Fidelity::of(&recording, args.limit).map_err(|why| {
        Failure::from(millpond_core::Error::invalid_argument(format!("{}: {why}", recording.file())))
    })?;
    match args.format {
        ReportFormat::Text => fidelity::print(&fidelity, &mut out)?,
        ReportFormat::Json => {
            write_json(&mut out, &fidelity)?;
            writeln!(out)?;
        }
    }
    Ok(Verdict::Fine)
}
