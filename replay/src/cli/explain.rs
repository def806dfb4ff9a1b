//! The command line of `explain`.

use std::io::Write;

use clap::Args;
use millpond_engine::text::write_json;
use millpond_snapshot::explain;

use super::import::{ReportFormat, SourceArgs};
use super::sizes::DeviceMemoryArgs;
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

    #[command(flatten)]
    device: DeviceMemoryArgs,

    /// Show all frames of each call stack, and the kind of each frame; without this option, only the lines of
    /// your own code are shown
    #[arg(long)]
    stacks: bool,

    /// The format of the explanation
    #[arg(long, short = 'f', value_enum, default_value_t, value_name = "FORMAT")]
    format: ReportFormat,
}

/// Imports a file and explains it. The text has colours if `is_coloured`.
pub(super) fn run(args: &ExplainArgs, is_coloured: bool, mut out: impl Write) -> Result<Verdict, Failure> {
    let recording = args.source.import()?;
    let explanation = args.device.explain(&recording)?;
    match args.format {
        ReportFormat::Text => {
            let style = explain::Style::new(is_coloured).with_all_frames(args.stacks);
            explain::print(&explanation, style, &mut out)?;
        }
        ReportFormat::Json => {
            write_json(&mut out, &explanation)?;
            writeln!(out)?;
        }
    }
    Ok(Verdict::Fine)
}
