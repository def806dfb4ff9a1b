//! The command line of `plan`.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use millpond_core::{ALLOCATION_ALIGNMENT, Error, parse_bytes, parse_memory};
use millpond_snapshot::placement::{self, Answer, Placement, Request, Sharing};

use super::import::{ReportFormat, SourceArgs};
use super::output;
use super::verdict::{Failure, Verdict};

/// Computes the least memory that any allocator needs for a file, and places its blocks
///
/// Reads the same files as `import`. Prints the least memory for two rules: memory is reused in the order of
/// the host's calls, or streams share no memory. Then prints a placement of the blocks, and its size divided
/// by the least memory. With --capacity, also answers whether the blocks fit into this capacity: yes (the
/// placement proves it), no (not with any allocator), or unknown. If the answer is not yes, the exit status
/// is 1.
#[derive(Clone, Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// Answer whether all blocks fit into this much memory, as in 40GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    capacity: Option<u64>,

    /// Whether a stream may reuse memory that another stream has freed
    #[arg(long, value_enum, default_value_t, value_name = "RULE")]
    streams: StreamRule,

    /// The alignment of each block in bytes
    #[arg(long, value_name = "SIZE", default_value = "256", value_parser = alignment)]
    alignment: u64,

    /// The seconds after which the search stops and keeps its best placement
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    time: u64,

    /// The seed of the search; another seed may find a lower placement
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Write the placement to this file. If the name ends in .plan, write a plan for the layer `plan`
    /// (cuda+pool+plan:file=FILE.plan). Otherwise write minimalloc's CSV: for each block, the positions of
    /// its allocation and its free, its size, and its offset
    #[arg(long, short = 'o', value_name = "FILE")]
    output: Option<PathBuf>,

    /// The format of the result
    #[arg(long, short = 'f', value_enum, default_value_t, value_name = "FORMAT")]
    format: ReportFormat,
}

/// Whether streams share addresses.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum)]
enum StreamRule {
    /// Never: a file does not tell where the program orders its streams
    #[default]
    Apart,
    /// In the order of the host's calls; this is right if the program orders its streams before each reuse
    HostOrder,
}

fn alignment(text: &str) -> Result<u64, String> {
    match parse_bytes(text) {
        Ok(0) => Err("an alignment must be at least 1".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns an error if a plan for the layer `plan` cannot follow the rules.
fn refuse_other_rules(args: &PlanArgs, output: &Path) -> Result<(), millpond_core::Error> {
    let shown = output.display();
    let refuse =
        |what| Err(millpond_core::Error::invalid_argument(format!("{shown}: a layer's plan {what}")));
    if args.streams == StreamRule::HostOrder {
        return refuse("always keeps streams apart; omit --streams");
    }
    if args.alignment != ALLOCATION_ALIGNMENT {
        return refuse("always aligns to 256 bytes; omit --alignment");
    }
    Ok(())
}

/// Imports a file, places its blocks, and prints or writes the placement.
pub(super) fn run(args: &PlanArgs, mut out: impl Write) -> Result<Verdict, Failure> {
    args.source.refuse_overwrite(args.output.as_deref())?;
    let recording = args.source.import()?;
    let sharing = match args.streams {
        StreamRule::Apart => Sharing::StreamSafe,
        StreamRule::HostOrder => Sharing::HostOrder,
    };
    let options = millpond_planning::Options::default().time(Duration::from_secs(args.time)).seed(args.seed);
    let request = Request::new(sharing).alignment(args.alignment).capacity(args.capacity).options(options);
    let as_plan = args.output.as_deref().filter(|output| output.extension() == Some(OsStr::new("plan")));
    let (placed, plan) = match as_plan {
        Some(output) => {
            refuse_other_rules(args, output)?;
            placement::for_layer(&recording, &request)?
        }
        None => {
            let named = |why| Error::invalid_argument(format!("{}: {why}", recording.file()));
            (Placement::of(&recording, &request).map_err(named)?, None)
        }
    };
    if let Some(output) = &args.output {
        let csv = if as_plan.is_none() { placed.csv().map(str::to_owned) } else { None };
        let content = plan.as_ref().map(ToString::to_string).or(csv);
        if let Some(content) = content {
            output::to_file(output, |file| file.write_all(content.as_bytes()))?;
        }
    }
    match args.format {
        ReportFormat::Text => {
            placement::print(&placed, &mut out)?;
            if let Some(plan) = &plan {
                placement::print_plan(plan, &mut out)?;
            }
        }
        ReportFormat::Json => {
            serde_json::to_writer(&mut out, &placed).map_err(io::Error::from)?;
            writeln!(out)?;
        }
    }
    Ok(match placed.answer {
        Some(Answer::Fits) | None => Verdict::Fine,
        Some(_) => Verdict::StackFailed,
    })
}
