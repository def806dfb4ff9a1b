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
/// Reads what `import` reads. Prints the least in host order and with streams apart, a placement with its
/// ratio to the least, and whether a capacity suffices: yes with the placement as proof, no for any
/// allocator, or unknown. The exit status is 1 unless it does.
#[derive(Clone, Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// Whether all blocks fit into this many bytes, as in 40GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    capacity: Option<u64>,

    /// Whether a stream may take what another one used
    #[arg(long, value_enum, default_value_t, value_name = "RULE")]
    streams: StreamRule,

    /// The alignment of each block
    #[arg(long, value_name = "SIZE", default_value = "256", value_parser = alignment)]
    alignment: u64,

    /// The seconds after which the search ends with its best placement
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    time: u64,

    /// The seed of the search, of which another may find a lower placement
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Write the placement. A name that ends in .plan: a plan for the layer `plan`
    /// (cuda+pool+plan:file=FILE.plan). Else minimalloc's CSV: the position of each block's allocation and
    /// free, its size and its offset
    #[arg(long, short = 'o', value_name = "FILE")]
    output: Option<PathBuf>,

    /// How the result is printed
    #[arg(long, short = 'f', value_enum, default_value_t, value_name = "FORMAT")]
    format: ReportFormat,
}

/// Whether streams share addresses.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum)]
enum StreamRule {
    /// Never, since a file does not say where the program orders its streams
    #[default]
    Apart,
    /// In the order of the host's calls: right for a program that orders streams before each reuse
    HostOrder,
}

fn alignment(text: &str) -> Result<u64, String> {
    match parse_bytes(text) {
        Ok(0) => Err("an alignment is at least 1".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

/// Refuses rules that a plan of the layer cannot have.
fn refuse_other_rules(args: &PlanArgs, output: &Path) -> Result<(), millpond_core::Error> {
    let shown = output.display();
    let refuse =
        |what| Err(millpond_core::Error::invalid_argument(format!("{shown} would be a plan {what}")));
    if args.streams == StreamRule::HostOrder {
        return refuse("of the layer `plan`, whose streams are always apart; leave --streams out");
    }
    if args.alignment != ALLOCATION_ALIGNMENT {
        return refuse("of the layer `plan`, whose alignment is 256; leave --alignment out");
    }
    Ok(())
}

/// Imports a file, places its blocks, and prints or writes the placement.
pub(super) fn run(args: &PlanArgs, mut out: impl Write) -> Result<Verdict, Failure> {
    args.source.refuse_overwrite(args.output.as_deref())?;
    let recording = args.source.import()?;
    let request = Request {
        sharing: match args.streams {
            StreamRule::Apart => Sharing::StreamSafe,
            StreamRule::HostOrder => Sharing::HostOrder,
        },
        alignment: args.alignment,
        capacity: args.capacity,
        options: millpond_planning::Options {
            time: Duration::from_secs(args.time),
            seed: args.seed,
            ..millpond_planning::Options::default()
        },
    };
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
        Some(Answer::Impossible | Answer::Unknown) => Verdict::StackFailed,
        Some(Answer::Fits) | None => Verdict::Fine,
    })
}
