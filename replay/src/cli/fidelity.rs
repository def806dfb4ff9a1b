//! The command line of `fidelity`.

use std::io::{self, Write};

use clap::Args;
use millpond_core::parse_memory;
use millpond_snapshot::fidelity::{self, Fidelity};

use super::import::{ReportFormat, SourceArgs};
use super::verdict::{Failure, Verdict};

/// Measures how well the model `torch` predicts a memory snapshot of PyTorch, address by address
///
/// The snapshot's requests drive the model with the snapshot's settings. Prints how many blocks the model
/// puts where PyTorch put them, how many segments it takes and gives back as PyTorch did, and the first
/// difference: how far `--stack torch` and `tune` can be trusted for this program.
#[derive(Clone, Debug, Args)]
pub(crate) struct FidelityArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// What set_per_process_memory_fraction allowed, as in 40GiB, which a snapshot does not say: needed for
    /// garbage_collection_threshold [default: memory ends where the snapshot shows it]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    limit: Option<u64>,

    /// How the result is printed
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
            serde_json::to_writer(&mut out, &fidelity).map_err(io::Error::from)?;
            writeln!(out)?;
        }
    }
    Ok(Verdict::Fine)
}
