//! The command line of `import`.

use std::io::{self, Cursor, Read, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use millpond_core::format_bytes;
use millpond_engine::log::{self, LogError};
use millpond_engine::text::{STANDARD_INPUT, bytes_among, number_of, plain, write_json};
use millpond_planning::MinimallocCsv;
use millpond_snapshot::import::{self, Options};
use millpond_snapshot::placement;
use millpond_snapshot::recording::{Recording, Source, StateCheck, Sums, Unknown};
use serde::Serialize;

use super::input::{HEAD_BYTES, is_stream};
use super::progress::ProgressArgs;
use super::sizes::memory;
use super::verdict::{Failure, Verdict};
use super::{output, overwrite, suggest};
use crate::progress::Progress;

/// zstd's own limit for the memory of a decompressor: the binary logarithm of the bytes.
const ZSTD_WINDOW_LOG: u32 = 27;

/// Reads a file that another program wrote, prints its contents, and can convert the file to a log
///
/// Reads files with a history of allocations: PyTorch memory snapshots (from PyTorch 2.0 or later, or the
/// HTML pages of PyTorch's viewer), torch.profiler traces, minimalloc's CSV, SQLite exports from Nsight
/// Systems, and allocation logs.
///
/// Also reads files that show the memory at one moment: texts with PyTorch's out-of-memory message or RMM's
/// error, allocator dumps of TensorFlow or XLA, compute-sanitizer's leak reports, and JAX's device memory
/// profiles.
///
/// Files may be compressed with gzip or zstd. The command recognises a file by its content, not by its name.
/// It never runs code from a file, so you can import a file that you do not trust. The report lists the
/// contents of the file, and the data that the file lacks.
#[derive(Clone, Debug, Args)]
pub(crate) struct ImportArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// Write the file's events as a log to this path: RMM's columns first, then further columns. The log is
    /// compressed if the path ends in .gz or .zst. `-` is the standard output
    #[arg(long, short = 'o', value_name = "LOG.csv")]
    output: Option<PathBuf>,

    /// The format of the report
    #[arg(long, short = 'f', value_enum, default_value_t, value_name = "FORMAT")]
    format: ReportFormat,
}

/// The file to import, and how to read it.
#[derive(Clone, Debug, Args)]
pub(super) struct SourceArgs {
    /// The file; `-` is the standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The number of the device whose events are read [default: the device of a snapshot on which a request
    /// failed, or else the busiest one; the first device of a log]
    #[arg(long, value_name = "N")]
    device: Option<u32>,

    /// The most memory that reading may use, in addition to the size of the file
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = memory)]
    memory: u64,

    #[command(flatten)]
    progress: ProgressArgs,
}

impl SourceArgs {
    /// Imports the file.
    pub(super) fn import(&self) -> millpond_engine::Result<Recording> {
        self.import_also(&self.file)
    }

    /// Imports another file with the same options.
    pub(super) fn import_also(&self, file: &Path) -> millpond_engine::Result<Recording> {
        let options = Options::default().device(self.device).memory(self.memory);
        let is_input = is_stream(file);
        let name = if is_input { STANDARD_INPUT.to_owned() } else { file.display().to_string() };
        let progress = self.progress();
        let bar = progress.waiting();
        progress.step(&bar, &format!("reading {name}"));
        let recording = if is_input {
            import::read(&name, io::stdin(), &options).map_err(Into::into)
        } else {
            suggest::existing(file)
                .map_err(millpond_engine::Error::from)
                .and_then(|()| Ok(import::open(file, &options)?))
        };
        bar.finish_and_clear();
        recording
    }

    /// Imports the file. If it is minimalloc's CSV, also returns its rows.
    pub(super) fn import_with_rows(&self) -> millpond_engine::Result<(Recording, Option<MinimallocCsv>)> {
        let is_input = is_stream(&self.file);
        let name = if is_input { STANDARD_INPUT.to_owned() } else { self.file.display().to_string() };
        let fail = |why: String| millpond_engine::Error::from(LogError::new(&name, 0, why));
        let unread = |error: io::Error| fail(format!("cannot be read ({error})"));
        let mut file: Box<dyn Read + Send> = if is_input {
            Box::new(io::stdin())
        } else {
            suggest::existing(&self.file)?;
            Box::new(log::open_file(&self.file)?)
        };
        let mut bytes = Vec::new();
        (&mut file).take(HEAD_BYTES).read_to_end(&mut bytes).map_err(unread)?;
        let options = Options::default().device(self.device).memory(self.memory);
        if !import::is_minimalloc(&bytes) {
            let recording = match is_input {
                true => import::read(&name, Cursor::new(bytes).chain(file), &options)?,
                false => self.import()?,
            };
            return Ok((recording, None));
        }
        file.read_to_end(&mut bytes).map_err(unread)?;
        // The input's own size is not counted, as for a file.
        let memory = self.memory.saturating_add(bytes.len() as u64);
        let recording = import::read(&name, bytes.as_slice(), &options.memory(memory))?;
        let text = log::unpack_bytes(bytes.as_slice(), ZSTD_WINDOW_LOG).map_err(unread)?;
        let text = io::read_to_string(text.take(memory)).map_err(unread)?;
        let rows = MinimallocCsv::parse(text.trim_start_matches('\u{feff}'));
        Ok((recording, Some(rows.map_err(|error| fail(error.to_string()))?)))
    }

    /// Returns the progress display of the command.
    pub(super) fn progress(&self) -> Progress {
        self.progress.usual()
    }

    /// Returns the file's path.
    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Returns an error if the output is the imported file.
    pub(super) fn refuse_overwrite(&self, output: Option<&Path>) -> Result<(), Failure> {
        Ok(output.map_or(Ok(()), |output| overwrite::refuse_import(output, &self.file))?)
    }
}

/// The formats of a report about a recording.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum)]
pub(crate) enum ReportFormat {
    /// Text for people
    #[default]
    Text,
    /// One JSON object, on one line
    Json,
}

/// The JSON that `import` prints.
#[derive(Serialize)]
struct Report<'a> {
    version: u32,
    file: &'a str,
    #[serde(flatten)]
    source: &'a Source,
    device: Option<u32>,
    is_simulated: bool,
    settings: &'a [(String, String)],
    #[serde(flatten)]
    sums: &'a Sums,
    state_check: Option<&'a StateCheck>,
    /// Whether the events lead to the state in the file; null if the file holds no state.
    is_equal_to_state: Option<bool>,
    /// The fewest bytes that any allocator needs if the host orders the streams; null if the number needs
    /// more than 64 bits.
    bound_host_order: Option<u64>,
    /// The fewest bytes that any allocator needs if streams share no memory; null if the number needs more
    /// than 64 bits.
    bound_stream_safe: Option<u64>,
    not_known: &'a [Unknown],
}

/// Imports a file, prints the report, and writes the log.
pub(super) fn run(args: &ImportArgs, mut out: impl Write) -> Result<Verdict, Failure> {
    let output = args.output.as_deref();
    args.source.refuse_overwrite(output)?;
    let recording = args.source.import()?;
    match output {
        Some(path) if is_stream(path) => {
            recording.write_csv(&mut out)?;
            return Ok(Verdict::Fine);
        }
        Some(path) => write(&recording, path)?,
        None => {}
    }
    match args.format {
        ReportFormat::Json => json(&recording, &mut out)?,
        ReportFormat::Text => text(&recording, output, &mut out)?,
    }
    Ok(Verdict::Fine)
}

/// Writes the log. If the path ends in `.gz` or `.zst`, the log is compressed.
fn write(recording: &Recording, path: &Path) -> Result<(), Failure> {
    output::to_file(path, |file| match path.extension().and_then(|ending| ending.to_str()) {
        Some("gz") => {
            let mut packed = flate2::write::GzEncoder::new(file, flate2::Compression::default());
            recording.write_csv(&mut packed)?;
            packed.finish()?.flush()
        }
        Some("zst") => {
            let mut packed = zstd::Encoder::new(file, 0)?;
            recording.write_csv(&mut packed)?;
            packed.finish()?.flush()
        }
        _ => recording.write_csv(file),
    })
}

fn json(recording: &Recording, out: &mut impl Write) -> io::Result<()> {
    let bounds = placement::bounds(recording);
    let report = Report {
        version: 2,
        file: recording.file(),
        source: recording.source(),
        device: recording.device(),
        is_simulated: recording.is_simulated(),
        settings: recording.settings(),
        sums: &recording.sums(),
        state_check: recording.check(),
        is_equal_to_state: recording.check().map(StateCheck::is_equal),
        bound_host_order: bounds.map(|bounds| bounds.host_order),
        bound_stream_safe: bounds.map(|bounds| bounds.stream_safe),
        not_known: recording.unknowns(),
    };
    write_json(&mut *out, &report)?;
    writeln!(out)
}

/// Describes the failed requests. A program may have repeated a request that failed.
fn failures(sums: &Sums) -> String {
    let requests = number_of(sums.failed_requests, "failed request");
    if sums.failures == sums.failed_requests {
        requests
    } else {
        format!("{requests} ({})", number_of(sums.failures, "attempt"))
    }
}

/// Describes the number of events. If the file has only sums, only the failed requests were events.
fn counts(sums: &Sums, sums_only: bool) -> String {
    let (allocations, frees) = (number_of(sums.allocations, "allocation"), number_of(sums.frees, "free"));
    match sums_only {
        true => failures(sums),
        false => format!("{}: {allocations}, {frees}, {}", sums.events, failures(sums)),
    }
}

/// Describes the call stacks of `events` events.
fn stacks(recording: &Recording, events: u64) -> String {
    let (stacks, frames) = recording.stack_counts();
    let (events, frames) = (number_of(events, "event"), number_of(frames as u64, "frame"));
    let stacks = number_of(stacks as u64, "different stack");
    format!("{events} with a call stack; {stacks} with {frames}")
}

fn text(recording: &Recording, output: Option<&Path>, out: &mut impl Write) -> io::Result<()> {
    let (sums, bounds) = (recording.sums(), placement::bounds(recording));
    let device = recording.device_name().map_or(String::new(), |device| format!(", device {device}"));
    let head = format!("{}: {}{device}", recording.file(), recording.source().format);
    writeln!(out, "{}", plain(&head))?;
    let sums_only = recording.has_sums_only();
    let mut line = |name: &str, text: String| writeln!(out, "  {name:<12}{}", plain(&text));
    line("events", counts(&sums, sums_only))?;
    if sums.blocks_before > 0 {
        let bytes = format_bytes(sums.bytes_before);
        let blocks = number_of(sums.blocks_before, "block");
        line("before", format!("{blocks} ({bytes}) live when recording began"))?;
    }
    let peak = format_bytes(sums.peak_live_bytes);
    let least = if recording.begins_late() { "at least " } else { "" };
    let at = if sums_only { String::new() } else { format!(" at event {}", sums.peak_event + 1) };
    line("peak", format!("{least}{peak} live{at}"))?;
    if let (Some(end), Some(peak)) = (sums.reserved_bytes, sums.peak_reserved_bytes) {
        let both = [peak, end];
        let [peak, end] = both.map(|bytes| bytes_among(bytes, &both));
        line("reserved", format!("{peak} at most, {end} at the end"))?;
    }
    if let Some(bounds) = bounds {
        let failed = if sums.failed_requests > 0 { ", with the failed requests" } else { "" };
        line("least", format!("any allocator needs {bounds}{failed}"))?;
    }
    let live = format_bytes(sums.live_bytes);
    let live = match sums_only {
        true => live,
        false => format!("{} ({live})", number_of(sums.live_blocks, "block")),
    };
    line("at the end", format!("{live} live"))?;
    match recording.check() {
        Some(check) if check.is_equal() => {
            line(
                "check",
                "the live blocks at the end are exactly the blocks in the file's state".to_owned(),
            )?;
        }
        Some(check) => {
            let first = check.first.as_deref().unwrap_or("counts differ");
            line("check", format!("THE EVENTS CONTRADICT THE FILE'S STATE; first difference: {first}"))?;
        }
        None => {}
    }
    if sums.held_blocks > 0 {
        line("held", format!("{} waited for other streams", number_of(sums.held_blocks, "free")))?;
    }
    if !sums_only {
        line("streams", sums.streams.to_string())?;
    }
    line("stacks", stacks(recording, sums.with_stack))?;
    for (name, value) in &recording.source().details {
        line("file", format!("{name}: {value}"))?;
    }
    for (name, value) in recording.settings().iter().filter(|(_, value)| !value.is_empty()) {
        line("setting", format!("{name} = {value}"))?;
    }
    if let Some(output) = output {
        line("written", output.display().to_string())?;
    }
    if !recording.unknowns().is_empty() {
        writeln!(out, "not known:")?;
    }
    for unknown in recording.unknowns() {
        writeln!(out, "  {}", plain(&unknown.text))?;
    }
    Ok(())
}
