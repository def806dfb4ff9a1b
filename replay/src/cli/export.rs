//! The command line of `export`.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use millpond_snapshot::export::Format;

use super::import::SourceArgs;
use super::output;
use super::verdict::{Failure, Verdict};

/// Converts a file for other tools: speedscope, flame graphs, Perfetto, spreadsheets
///
/// Reads the same files as `import`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// The format of the file
    #[arg(long, short = 'f', value_enum, value_name = "FORMAT")]
    format: ExportFormat,

    /// For `speedscope` and `folded`: write the call stacks of the blocks that are live after this event,
    /// counted from 1 [default: the event that reached the peak]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    event: Option<u64>,

    /// The file to write; `-` is the standard output [default: -]
    #[arg(long, short = 'o', value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The formats of other tools.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum ExportFormat {
    /// JSON for speedscope: how many bytes each call stack holds after an event
    Speedscope,
    /// Text for flamegraph.pl and inferno: how many bytes each call stack holds after an event
    Folded,
    /// The same text as `folded`, but with all frames of each call stack
    AllFrames,
    /// JSON for Perfetto and chrome://tracing: live bytes, reserved bytes, failed requests, and phases of the
    /// program
    Perfetto,
    /// CSV with live and reserved bytes after each event
    Series,
}

impl From<ExportFormat> for Format {
    fn from(format: ExportFormat) -> Self {
        match format {
            ExportFormat::Speedscope => Self::Speedscope,
            ExportFormat::Folded => Self::Folded,
            ExportFormat::AllFrames => Self::AllFrames,
            ExportFormat::Perfetto => Self::Perfetto,
            ExportFormat::Series => Self::Series,
        }
    }
}

/// Imports a file and writes it in the chosen format.
pub(super) fn run(args: &ExportArgs, out: impl Write) -> Result<Verdict, Failure> {
    args.source.refuse_overwrite(args.output.as_deref())?;
    let recording = args.source.import()?;
    let event = args.event.map(|event| usize::try_from(event - 1).unwrap_or(usize::MAX));
    let format = Format::from(args.format);
    output::write(args.output.as_deref(), out, |mut out| format.write(&recording, event, &mut out))?;
    Ok(Verdict::Fine)
}
