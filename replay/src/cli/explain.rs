//! The command line of `explain`.

use std::io::Write;

use clap::Args;
use millpond_core::{Error, format_bytes, parse_bytes};
use millpond_snapshot::explain;

use super::import::{ReportFormat, SourceArgs};
use super::verdict::{Failure, Verdict};

/// Explains what uses the memory and how to need less: at the peak, at failed requests, and at the end
///
/// Reads the same files as `import`. First prints each problem, with its evidence and with settings to paste.
/// Then prints how much memory is in use, held for other streams, lost to rounding, or free, and how much
/// live blocks pin. Last, prints the call stacks whose blocks hold the memory.
#[derive(Clone, Debug, Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// The size of the memory of the device on which the program ran, as in 80GiB; with this option, the
    /// explanation also shows how much memory is used outside of the allocator
    #[arg(long, value_name = "SIZE", value_parser = device_memory)]
    device_memory: Option<u64>,

    /// Show all frames of each call stack, and the kind of each frame; without this option, only the lines of
    /// your own code are shown
    #[arg(long)]
    stacks: bool,

    /// The format of the explanation
    #[arg(long, short = 'f', value_enum, default_value_t, value_name = "FORMAT")]
    format: ReportFormat,
}

/// No device has less memory than this. If the user writes less, the user most likely forgot the unit.
const SMALLEST_DEVICE: u64 = 1 << 20;

fn device_memory(text: &str) -> Result<u64, Error> {
    let bytes = parse_bytes(text)?;
    if bytes < SMALLEST_DEVICE {
        let size = format_bytes(bytes);
        let why = format!("`{text}` is {size}, which is less than any device has; add the unit, as in 80GiB");
        return Err(Error::invalid_argument(why));
    }
    Ok(bytes)
}

/// Imports a file and explains it. The text has colours if `is_coloured`.
pub(super) fn run(args: &ExplainArgs, is_coloured: bool, mut out: impl Write) -> Result<Verdict, Failure> {
    let recording = args.source.import()?;
    let explanation = explain::explain(&recording, args.device_memory);
    if let Some(bytes) = args.device_memory {
        explanation.check_device_bytes(bytes).map_err(|why| {
            Error::invalid_argument(format!("--device-memory: {}: {why}", recording.file()))
        })?;
    }
    match args.format {
        ReportFormat::Text => {
            let style = explain::Style::new(is_coloured).with_all_frames(args.stacks);
            explain::print(&explanation, style, &mut out)?;
        }
        ReportFormat::Json => {
            serde_json::to_writer(&mut out, &explanation).map_err(std::io::Error::from)?;
            writeln!(out)?;
        }
    }
    Ok(Verdict::Fine)
}
