//! The command line of `explain`.

use std::io::Write;

use clap::Args;
use millpond_core::{Error, format_bytes, parse_bytes};
use millpond_snapshot::explain;

use super::import::{ReportFormat, SourceArgs};
use super::verdict::{Failure, Verdict};

/// Explains where memory is, and what would help: at the peak, at failed requests, at the end
///
/// Reads what `import` reads. Prints what is wrong with its evidence and lines to paste, where the memory is
/// (in use, held for streams, rounded away, free, pinned by live blocks), and which stacks hold it.
#[derive(Clone, Debug, Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// The size of the device, to say what is outside of the allocator, as in 80GiB
    #[arg(long, value_name = "SIZE", value_parser = device_memory)]
    device_memory: Option<u64>,

    /// How the explanation is printed
    #[arg(long, short = 'f', value_enum, default_value_t, value_name = "FORMAT")]
    format: ReportFormat,
}

/// Below this there is no device: a forgotten unit, most likely.
const SMALLEST_DEVICE: u64 = 1 << 20;

fn device_memory(text: &str) -> Result<u64, Error> {
    let bytes = parse_bytes(text)?;
    if bytes < SMALLEST_DEVICE {
        let size = format_bytes(bytes);
        let why = format!("`{text}` is {size}, less than any device has; write the unit, as in 80GiB");
        return Err(Error::invalid_argument(why));
    }
    Ok(bytes)
}

/// Imports a file and explains it; a text is in colours if `is_coloured`.
pub(super) fn run(args: &ExplainArgs, is_coloured: bool, mut out: impl Write) -> Result<Verdict, Failure> {
    let recording = args.source.import()?;
    let explanation = explain::explain(&recording, args.device_memory);
    match args.format {
        ReportFormat::Text => explain::print(&explanation, is_coloured, &mut out)?,
        ReportFormat::Json => {
            serde_json::to_writer(&mut out, &explanation).map_err(std::io::Error::from)?;
            writeln!(out)?;
        }
    }
    Ok(Verdict::Fine)
}
