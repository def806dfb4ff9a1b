//! Prints the figures of a benchmark.

use std::fmt;
use std::io::{self, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use millpond_core::format_bytes;
use millpond_engine::text::{number_of, write_json};

use super::{Figures, MIMALLOC, NotRun, Report, Status, Subjected};

/// The format of a report.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum Format {
    /// Text for people.
    #[default]
    Table,
    /// One JSON object.
    Json,
}

/// Prints a report.
///
/// # Errors
/// The report cannot be written.
pub fn print(report: &Report, format: Format, mut out: impl Write) -> io::Result<()> {
    match format {
        Format::Json => {
            write_json(&mut out, report)?;
            out.write_all(b"\n")?;
        }
        Format::Table => {
            let device = &report.device;
            let total = format_bytes(device.total_bytes);
            let (spec, name, cpus, seed) = (&device.spec, &device.name, report.cpus, report.seed);
            writeln!(out, "on {spec} ({name}, {total}), {cpus} CPUs, seed {seed}\n")?;
            writeln!(out, "{}\n", table(report))?;
            for note in notes(report) {
                writeln!(out, "note: {note}")?;
            }
        }
    }
    out.flush()
}

const HEADER: [&str; 12] = [
    "workload",
    "threads",
    "streams",
    "live",
    "sizes",
    "stack",
    "ns/step",
    "/ mimalloc",
    "p99 ns",
    "million steps/s",
    "ns/fill",
    "taken / live",
];
/// The columns with names, which are aligned to the left.
const LEFT: [usize; 3] = [0, 4, 5];

fn table(report: &Report) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(HEADER);
    for figures in &report.results {
        let of = &figures.of;
        table.add_row([
            of.workload.to_owned(),
            of.threads.to_string(),
            of.streams.to_string(),
            of.live.to_string(),
            of.sizes.clone(),
            of.stack.clone(),
            format!("{:.1}", figures.ns_per_step),
            ratio(figures, report).map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
            figures.p99_ns.to_string(),
            format!("{:.3}", figures.steps_per_second / 1e6),
            figures.ns_per_fill.map_or("-".to_owned(), |ns| format!("{ns:.1}")),
            figures.taken_over_live().map_or("-".to_owned(), |ratio| format!("{ratio:.3}")),
        ]);
    }
    for column in (0..HEADER.len()).filter(|column| !LEFT.contains(column)) {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

impl Figures {
    /// Returns the peak of reserved bytes divided by the peak of live bytes. The ratio says little about the
    /// workload `pair`, which is too short.
    fn taken_over_live(&self) -> Option<f64> {
        let is_churn = self.of.live > 1;
        self.reserved_bytes.filter(|_| is_churn).map(|taken| taken as f64 / self.of.bytes.max(1) as f64)
    }
}

/// Returns the time of a step divided by mimalloc's time on the same workload.
fn ratio(figures: &Figures, report: &Report) -> Option<f64> {
    let same = |other: &&Figures| {
        let key = |of: &Subjected| (of.workload, of.threads, of.streams, of.live, of.freed_percent, of.bytes);
        other.of.stack == MIMALLOC && key(&other.of) == key(&figures.of)
    };
    let limit = report.results.iter().find(same)?;
    (limit.ns_per_step > 0.0).then(|| figures.ns_per_step / limit.ns_per_step)
}

fn notes(report: &Report) -> Vec<String> {
    let mut notes = report.notes.clone();
    if report.device.simulated {
        notes.push(
            "the device is simulated: times are real times of this machine, including the simulation"
                .to_owned(),
        );
    }
    let busy = report.results.iter().map(|figures| figures.of.threads).max().unwrap_or(0);
    if busy > report.cpus {
        notes.push(format!("{busy} threads shared {}", number_of(report.cpus as u64, "CPU")));
    }
    if report.quick {
        notes.push("--quick measures few steps, so the figures are rough".to_owned());
    }
    notes.extend(report.not_run.iter().map(|NotRun { of, status, reason }| {
        let status = match status {
            Status::Skipped => "was skipped",
            Status::OutOfMemory => "ran out of memory",
            Status::Failed => "failed",
        };
        // The further lines of the reason, with the memory map, are only in the JSON.
        format!("{of} {status}: {}", reason.lines().next().unwrap_or_default())
    }));
    notes
}

impl fmt::Display for Subjected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workload, stack, threads, streams, live, sizes, .. } = self;
        let threads = number_of(*threads as u64, "thread");
        let streams = number_of(*streams as u64, "stream");
        let live = number_of(*live as u64, "live block");
        write!(f, "{workload} with {threads}, {streams}, {live} per thread, {sizes}, on {stack}")
    }
}
