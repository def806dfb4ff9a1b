//! The command line of `plan`.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use millpond_core::{ALLOCATION_ALIGNMENT, AnyResource, DriverHandle, Error, Layer, parse_bytes};
use millpond_driver::{CountingDriver, DeviceSpec};
use millpond_engine::program::Limits;
use millpond_engine::text::{bytes_among, write_json};
use millpond_engine::{self as engine, Options};
use millpond_plan::PlanLayer;
use millpond_planning::{MinimallocCsv, ProblemError, ProgramPlan};
use millpond_resources::{CudaMemoryResource, PoolLayer};
use millpond_snapshot::placement::{self, Answer, Placement, Request, Sharing};
use millpond_snapshot::recording::Recording;

use super::import::{ReportFormat, SourceArgs};
use super::input::is_stream;
use super::output;
use super::sizes::memory;
use super::verdict::{self, Failure, Verdict};

/// The memory of the simulated device on which a plan is tried: practically unlimited.
const DEVICE_BYTES: u64 = 1 << 44;

/// Computes the least memory that any allocator needs for a file's requests, and places their blocks
///
/// Reads the same files as `import`. Prints the least memory under two rules: memory is reused in the order
/// of the host's calls, or streams share no memory. Then prints a placement, which is an address for each
/// block, and its size divided by the least memory. With --capacity, also answers whether the blocks fit into
/// this capacity: yes (the placement proves it), no (the answer names the rule under which they do not fit),
/// or unknown. If the answer is not yes, the exit status is 1.
#[derive(Clone, Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// Answer whether all blocks fit into this much memory, as in 40GiB
    #[arg(long, visible_alias = "device-memory", value_name = "SIZE", value_parser = memory)]
    capacity: Option<u64>,

    /// Whether a stream may reuse memory that another stream has freed
    #[arg(long, value_enum, default_value_t, value_name = "RULE")]
    streams: StreamRule,

    /// The alignment of each block in bytes [default: 256; for minimalloc's CSV, the alignment in the file,
    /// or else 1]
    #[arg(long, value_name = "SIZE", value_parser = alignment)]
    alignment: Option<u64>,

    /// The seconds after which the search stops and keeps its best placement; reading the file counts, too
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    time: u64,

    /// The seed of the search; another seed may find a lower placement
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Write the placement to this file. A name that ends in .plan gets a plan for the layer `plan`
    /// (cuda+pool+plan:file=FILE.plan). No plan is written if the pool needs less memory without it. Any
    /// other name gets minimalloc's CSV: for each block, the positions of its allocation and its free in the
    /// file, its size, and its offset. If the file itself is minimalloc's CSV, its rows are written with
    /// offsets. If the file lacks some allocations or frees, nothing is written. `-` is the standard output;
    /// the result then goes to the standard error
    #[arg(long, short = 'o', value_name = "FILE")]
    output: Option<PathBuf>,

    /// The format of the result
    #[arg(long, short = 'f', value_enum, default_value_t, value_name = "FORMAT")]
    format: ReportFormat,
}

/// Whether streams share addresses.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum)]
enum StreamRule {
    /// Never: a file does not show in which order the program's streams run
    #[default]
    Apart,
    /// In the order of the host's calls; this is correct if the program orders its streams before each reuse
    HostOrder,
}

fn alignment(text: &str) -> Result<u64, String> {
    match parse_bytes(text) {
        Ok(0) => Err("an alignment must be at least 1 byte".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(error.message().to_owned()),
    }
}

/// Returns an error if a plan for the layer `plan` cannot follow the rules of the command line.
fn refuse_other_rules(args: &PlanArgs, output: &Path) -> Result<(), millpond_core::Error> {
    let shown = output.display();
    let refuse = |what| {
        Err(millpond_core::Error::invalid_argument(format!("{shown}: a plan for the layer `plan` {what}")))
    };
    if args.streams == StreamRule::HostOrder {
        return refuse("always keeps streams apart; omit --streams");
    }
    if args.alignment.is_some_and(|bytes| bytes != ALLOCATION_ALIGNMENT) {
        return refuse("always aligns to 256 bytes; omit --alignment");
    }
    Ok(())
}

/// Returns an error if the recording lacks some allocations or frees. A plan would lack them, too.
fn refuse_incomplete(recording: &Recording) -> Result<(), Error> {
    let Some(missing) = recording.missing_part() else { return Ok(()) };
    let (file, what) = (recording.file(), &missing.text);
    let why = "a plan needs all allocations and frees of the program";
    Err(Error::invalid_argument(format!("{file}: no plan is written, because {why}: {what}")))
}

/// The most bytes that the pool reserves for a recording, without and with a plan.
struct Peaks {
    pool: u64,
    planned: u64,
}

impl Peaks {
    /// Replays a recording without and with a plan; `None` if a request fails.
    fn of(recording: &Recording, plan: &ProgramPlan) -> millpond_engine::Result<Option<Self>> {
        let program = recording.program(Limits::default())?;
        let peak = |layer: Option<PlanLayer>| -> millpond_engine::Result<Option<u64>> {
            let device = DeviceSpec::SimCapacity(DEVICE_BYTES).open_new()?;
            let counting = CountingDriver::new(device.clone());
            let upstream = CudaMemoryResource::new(counting.clone() as DriverHandle);
            let pool: AnyResource = Arc::new(PoolLayer::new().layer(upstream)?);
            let resource: AnyResource = match layer {
                Some(layer) => Arc::new(layer.layer(pool)?),
                None => pool,
            };
            let outcome = engine::replay(&program, &resource, &device, Options::default(), &mut ())?;
            Ok((outcome.failures == 0).then(|| counting.peak_bytes_held()))
        };
        let Some(pool) = peak(None)? else { return Ok(None) };
        let planned = peak(Some(PlanLayer::from_plan(plan.clone())))?;
        Ok(planned.map(|planned| Self { pool, planned }))
    }
}

/// Writes the placement or the plan; for `-`, to `out`. If the pool needs less memory without the plan,
/// writes nothing and returns the reason.
fn write(
    output: &Path,
    out: impl Write,
    recording: &Recording,
    placed: &Placement,
    plan: Option<&ProgramPlan>,
    rows: Option<&MinimallocCsv>,
) -> Result<Option<String>, Failure> {
    if let Some(plan) = plan
        && let Some(Peaks { pool, planned }) = Peaks::of(recording, plan)?
        && pool < planned
    {
        let (both, shown) = ([pool, planned], output.display());
        let [pool, planned] = both.map(|bytes| bytes_among(bytes, &both));
        return Ok(Some(format!(
            "{shown}: no plan is written, because for this file cuda+pool needs {pool} without a plan, and \
             {planned} with the plan; use cuda+pool"
        )));
    }
    let content = match (plan, rows) {
        (Some(plan), _) => Some(plan.to_string()),
        (None, Some(rows)) => placed.rows(rows),
        (None, None) => placed.csv(),
    };
    if let Some(content) = content {
        output::write(Some(output), out, |file| file.write_all(content.as_bytes()))?;
    }
    Ok(None)
}

/// Imports a file, places its blocks, and prints or writes the placement.
pub(super) fn run(args: &PlanArgs, mut out: impl Write) -> Result<Verdict, Failure> {
    let began = Instant::now();
    args.source.refuse_overwrite(args.output.as_deref())?;
    let (recording, rows) = args.source.import_with_rows()?;
    recording
        .require_blocks()
        .map_err(|why| Error::invalid_argument(format!("{}: {why}", recording.file())))?;
    if args.output.is_some() {
        refuse_incomplete(&recording)?;
    }
    let sharing = match args.streams {
        StreamRule::Apart => Sharing::StreamSafe,
        StreamRule::HostOrder => Sharing::HostOrder,
    };
    let named = |why: ProblemError| Error::invalid_argument(format!("{}: {why}", recording.file()));
    let of_file = || rows.as_ref().map_or(Ok(ALLOCATION_ALIGNMENT), MinimallocCsv::alignment);
    let alignment = args.alignment.map_or_else(of_file, Ok).map_err(named)?;
    let time = Duration::from_secs(args.time).saturating_sub(began.elapsed());
    let options = millpond_planning::Options::default().time(time).seed(args.seed);
    let request = Request::new(sharing).capacity(args.capacity).options(options);
    let as_plan = args.output.as_deref().filter(|output| output.extension() == Some(OsStr::new("plan")));
    let (placed, plan) = match (as_plan, &rows) {
        (Some(output), _) => {
            refuse_other_rules(args, output)?;
            placement::for_layer(&recording, &request)?
        }
        (None, Some(rows)) => {
            let request = request.alignment(alignment);
            (Placement::of_minimalloc(&recording, rows, &request).map_err(named)?, None)
        }
        (None, None) => (Placement::of(&recording, &request.alignment(alignment)).map_err(named)?, None),
    };
    // If no placement fits into the capacity, nothing is written.
    let output = args.output.as_deref().filter(|_| placed.height.is_some());
    let write = |output| write(output, &mut out, &recording, &placed, plan.as_ref(), rows.as_ref());
    let refusal = output.map(write).transpose()?.flatten();
    let mut out: Box<dyn Write> = match &args.output {
        Some(output) if is_stream(output) => Box::new(io::stderr().lock()),
        _ => Box::new(out),
    };
    match args.format {
        ReportFormat::Text => {
            placement::print(&placed, &mut out)?;
            if let Some(plan) = plan.as_ref().filter(|_| refusal.is_none()) {
                placement::print_plan(plan, &mut out)?;
            }
        }
        ReportFormat::Json => {
            write_json(&mut out, &placed)?;
            writeln!(out)?;
        }
    }
    if let Some(refusal) = &refusal {
        out.flush()?;
        verdict::report(refusal);
    }
    Ok(match placed.answer {
        _ if refusal.is_some() => Verdict::StackFailed,
        Some(Answer::Fits) | None => Verdict::Fine,
        Some(_) => Verdict::StackFailed,
    })
}
