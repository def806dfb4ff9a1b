//! The command line of `report`.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use millpond_core::Error;
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_driver::DeviceSpec;
use millpond_snapshot::placement::{Placement, Request, Sharing};
use millpond_snapshot::recording::Recording;
use millpond_snapshot::report::{Curve, Page};

use super::import::SourceArgs;
use super::input::{check, is_stream, refuse_two_readers};
use super::overwrite::Reads;
use super::sizes::DeviceMemoryArgs;
use super::verdict::{Failure, Verdict};
use super::{output, suggest};

/// The default of `--plan-time`: the most seconds of the search for a placement. A file with many events gets
/// no search, because making its problem alone takes as long for each million events.
const PLAN_TIME: u64 = 5;
const MANY_EVENTS: usize = 1_000_000;

/// Writes one HTML page about a file: the live memory over time, its addresses, and the call stacks that hold
/// it
///
/// Reads the same files as `import`. The page needs no other file and no network. It shows live and reserved
/// bytes over events or time, failed requests, blocks by address, bytes by call stack, sizes by lifetime, and
/// sums by code line. A flame graph shows the live memory at any moment. You can search the page, show only
/// one stack frame, and see which code lines keep memory between two events. The page also explains what uses
/// the memory and how to need less, as `explain` does, and shows a placement of the blocks, as `plan` does.
/// The page's element `summary` holds a summary as JSON.
///
/// If a file has more than 200,000 blocks, the page contains the largest of them, and sums of the others.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    source: SourceArgs,

    #[command(flatten)]
    device: DeviceMemoryArgs,

    /// The file of another run, to compare the first file with; `-` is the standard input
    #[arg(value_name = "FILE2")]
    other: Option<PathBuf>,

    /// The page to write; `-` is the standard output
    #[arg(long, short = 'o', value_name = "PAGE.html")]
    output: PathBuf,

    /// A stack of memory resources; can be given several times. The command replays the file through it on a
    /// simulated device, and the page also draws the stack's reserved bytes
    #[arg(long = "stack", short = 's', value_name = "SPEC")]
    stacks: Vec<StackSpec>,

    /// The simulated device on which the stacks are replayed, as in sim:24GiB
    #[arg(long, value_name = "DEVICE", default_value = "sim:h200", requires = "stacks",
          value_parser = suggest::device)]
    on: DeviceSpec,

    /// The seconds after which the search for a placement stops and keeps its best placement; 0 turns the
    /// search off [default: 5; for more than a million events, 0]
    #[arg(long, value_name = "SECONDS")]
    plan_time: Option<u64>,
}

/// Imports one or two files, and writes the page.
pub(super) fn run(args: &ReportArgs, table: &LayerTable, mut out: impl Write) -> Result<Verdict, Failure> {
    check(&args.stacks, table)?;
    let read = [Some(args.source.file()), args.other.as_deref()];
    refuse_two_readers(read.into_iter().flatten())?;
    for file in read.into_iter().flatten() {
        let files = [file.to_owned()];
        let reads = Reads::new(&files, &args.stacks, Some(&args.on));
        reads.refuse()?;
        reads.refuse_output("the page", &args.output)?;
    }
    let recording = args.source.import()?;
    recording
        .require_blocks()
        .map_err(|why| Error::invalid_argument(format!("{}: {why}", recording.file())))?;
    let other = args.other.as_deref().map(|path| args.source.import_also(path)).transpose()?;
    let explanation = args.device.explain(&recording)?;
    let plan_time = args.plan_time.unwrap_or(if recording.len() > MANY_EVENTS { 0 } else { PLAN_TIME });
    let placement = placement(&recording, plan_time)?;
    let curves = args.stacks.iter().map(|stack| Curve::of(&recording, stack, table, &args.on));
    let curves: Vec<Curve> = curves.collect::<millpond_engine::Result<_>>()?;
    let page = Page::new(&recording, &explanation)
        .other(other.as_ref())
        .placement(placement.as_ref())
        .curves(&curves);
    output::write(Some(&args.output), &mut out, |mut out| page.write(&mut out))?;
    if !is_stream(&args.output) {
        writeln!(out, "{}", args.output.display())?;
    }
    Ok(Verdict::Fine)
}

fn placement(recording: &Recording, seconds: u64) -> millpond_engine::Result<Option<Placement>> {
    if seconds == 0 {
        return Ok(None);
    }
    let options = millpond_planning::Options::default().time(Duration::from_secs(seconds));
    let request = Request::new(Sharing::StreamSafe).options(options);
    let placed = Placement::of(recording, &request);
    placed.map(Some).map_err(|why| {
        let text = format!("{}: {why}", recording.file());
        millpond_core::Error::invalid_argument(text).into()
    })
}
