//! Prints reports: a table, JSON, or CSV with a row for each pass.

use std::io::{self, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use millpond_core::format_bytes;
use millpond_engine::csv_to_io;
use millpond_engine::text::{file_cell, number_of, plain, write_json};
use serde::Serialize;

use super::{CaseFigures, PassFigures, Report, SubjectReport, SubjectResult};

/// A function that prints a report each time it is called. If printing fails, it returns the error.
pub type Reporter<'a> = Box<dyn FnMut(&Report) -> io::Result<()> + 'a>;

/// Prints tables to `out`, for people.
pub fn table<'a>(mut out: impl Write + 'a) -> Reporter<'a> {
    let mut reported = 0;
    Box::new(move |report| {
        reported += 1;
        tables(report, reported == 1, &mut out)
    })
}

/// Prints JSON to `out`: one object per log, each on its own line.
pub fn json<'a>(mut out: impl Write + 'a) -> Reporter<'a> {
    Box::new(move |report| {
        write_json(&mut out, report)?;
        out.write_all(b"\n")?;
        out.flush()
    })
}

/// Prints CSV to `out`: a header, and one row for each pass of each stack of each log.
pub fn csv<'a>(out: impl Write + 'a) -> Reporter<'a> {
    let mut out = csv::Writer::from_writer(out);
    Box::new(move |report| {
        for (case, stack, pass, figures) in rows(report) {
            out.serialize(Row::new(report, case, stack, pass, figures)).map_err(csv_to_io)?;
        }
        out.flush()
    })
}

const HEADER: [&str; 8] = [
    "stack",
    "end, ms",
    "/ none",
    "taken, MiB",
    "/ least",
    "/ live",
    "waits between\nstreams",
    "waits of\nthe host",
];

const LEGEND: &str = "\
for each pass: end, the time until all streams finish; taken, the most memory taken from the device
/ none: end / the same pass's end without an allocator; / least: taken / the least memory that needs no wait;
/ live: the last pass's taken / the log's peak live";

fn tables(report: &Report, is_first: bool, out: &mut impl Write) -> io::Result<()> {
    if !is_first {
        writeln!(out)?;
    }
    let live = format_bytes(report.peak_live_bytes);
    let operations = number_of(report.operations, "operation");
    let (file, streams) = (plain(&report.log.file), number_of(report.log.streams as u64, "stream"));
    writeln!(out, "{file}: {operations}, {streams}, peak live {live}")?;
    let (spec, name, seed) = (&report.device.spec, &report.device.name, report.seed);
    writeln!(out, "with work in flight on {spec} ({name}), seed {seed}")?;
    if let Some(bytes) = report.capacity_bytes {
        let bytes = format_bytes(bytes);
        writeln!(out, "each stack can use {bytes} of device memory; this program keeps the rest allocated")?;
    }
    for case in &report.cases {
        let ms = |ns: u64| format!("{:.1} ms", ns as f64 / 1e6);
        let (busiest, all) = (ms(case.busiest_stream_ns), ms(case.all_streams_ns));
        let least = format_bytes(case.least_bytes_without_waits);
        let CaseFigures { kernels, host, .. } = case;
        writeln!(
            out,
            "\nkernels of {kernels}, in all {busiest} on the busiest stream and {all} on all streams; \
             host {host}"
        )?;
        writeln!(out, "least memory that needs no wait: {least}")?;
        writeln!(out, "{}", table_of(case, report))?;
    }
    writeln!(out, "{LEGEND}")?;
    for note in notes(report) {
        writeln!(out, "note: {}", plain(&note))?;
    }
    out.flush()
}

fn table_of(case: &CaseFigures, report: &Report) -> Table {
    let none = case.stacks.first().map_or(&[][..], SubjectReport::passes);
    let counts_failures = report.capacity_bytes.is_some();
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(HEADER.into_iter().chain(counts_failures.then_some("failures")));
    for (index, stack) in case.stacks.iter().enumerate() {
        let passes = stack.passes();
        let each = |figure: &dyn Fn(usize, &PassFigures) -> Option<String>| {
            let figures = passes.iter().enumerate().map(|(number, pass)| figure(number, pass));
            let figures: Option<Vec<String>> = figures.collect();
            figures.filter(|figures| !figures.is_empty()).map_or("-".to_owned(), |figures| figures.join(", "))
        };
        let takes = index > 0; // the first is `none`
        let taken = |pass: &PassFigures| if takes { Some(pass.peak_taken_bytes) } else { None };
        let last = passes.last().and_then(taken);
        let least = case.least_bytes_without_waits;
        let mut row = vec![
            stack.spec.clone(),
            each(&|_, pass| Some(format!("{:.1}", pass.end_ns as f64 / 1e6))),
            each(&|number, pass| ratio(pass.end_ns, none.get(number)?.end_ns)),
            each(&|_, pass| taken(pass).map(|bytes| (bytes >> 20).to_string())),
            each(&|_, pass| taken(pass).and_then(|bytes| ratio(bytes, least))),
            last.and_then(|bytes| ratio(bytes, report.peak_live_bytes)).unwrap_or("-".to_owned()),
            each(&|_, pass| pass.stream_waits.map(|waits| waits.to_string())),
            each(&|_, pass| pass.host_waits.map(|waits| waits.to_string())),
        ];
        if counts_failures {
            row.push(each(&|_, pass| takes.then(|| pass.failures.to_string())));
        }
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn ratio(figure: u64, by: u64) -> Option<String> {
    (by > 0).then(|| format!("{:.3}", figure as f64 / by as f64))
}

fn notes(report: &Report) -> Vec<String> {
    let mut notes = report.log.notes();
    if report.device.simulated {
        let host = report.host_ns as f64 / 1e3;
        notes.push(format!(
            "the device is simulated: times are virtual, and the host needs {host} µs for each allocation"
        ));
    }
    for case in &report.cases {
        for stack in &case.stacks {
            if let SubjectResult::Failed { error } = &stack.result {
                let (spec, CaseFigures { kernels, host, .. }) = (&stack.spec, case);
                let error = error.lines().next().unwrap_or_default();
                notes.push(format!("{spec} failed with kernels of {kernels}, host {host}: {error}"));
            }
        }
    }
    notes
}

/// Returns one row for each pass. If a stack failed, returns one row without figures.
fn rows(
    report: &Report,
) -> impl Iterator<Item = (&CaseFigures, &SubjectReport, usize, Option<&PassFigures>)> {
    report.cases.iter().flat_map(|case| {
        case.stacks.iter().flat_map(move |stack| {
            let passes = stack.passes();
            (0..passes.len().max(1)).map(move |pass| (case, stack, pass, passes.get(pass)))
        })
    })
}

/// A row. Its columns are the fields of the JSON, without nesting. A cell is empty if there is no figure.
#[derive(Serialize)]
struct Row<'a> {
    file: String,
    device: &'a str,
    simulated: bool,
    seed: u64,
    host_ns_each: u64,
    operations: u64,
    peak_live_bytes: u64,
    capacity_bytes: Option<u64>,
    shortest_ns: u32,
    longest_ns: u32,
    host: &'static str,
    busiest_stream_ns: u64,
    all_streams_ns: u64,
    least_bytes_without_waits: u64,
    spec: &'a str,
    status: &'static str,
    error: Option<&'a str>,
    /// The number of the pass, counted from 1.
    pass: usize,
    end_ns: Option<u64>,
    host_ns: Option<u64>,
    peak_taken_bytes: Option<u64>,
    failures: Option<u64>,
    stream_waits: Option<u64>,
    host_waits: Option<u64>,
    driver_calls: Option<u64>,
    /// The driver calls by kind, as in `mem_alloc=3;mem_free=3`.
    driver_calls_by_kind: Option<String>,
}

impl<'a> Row<'a> {
    fn new(
        report: &'a Report,
        case: &CaseFigures,
        stack: &'a SubjectReport,
        pass: usize,
        figures: Option<&PassFigures>,
    ) -> Self {
        let (status, error) = match &stack.result {
            SubjectResult::Ran { .. } => ("ran", None),
            SubjectResult::Failed { error } => ("failed", error.lines().next()),
        };
        let by_kind = |figures: &PassFigures| {
            let kinds = figures.by_kind.iter().map(|(kind, counts)| format!("{kind}={}", counts.calls));
            kinds.collect::<Vec<_>>().join(";")
        };
        Self {
            file: file_cell(&report.log.file),
            device: &report.device.spec,
            simulated: report.device.simulated,
            seed: report.seed,
            host_ns_each: report.host_ns,
            operations: report.operations,
            peak_live_bytes: report.peak_live_bytes,
            capacity_bytes: report.capacity_bytes,
            shortest_ns: case.kernels.shortest_ns,
            longest_ns: case.kernels.longest_ns,
            host: case.host.name(),
            busiest_stream_ns: case.busiest_stream_ns,
            all_streams_ns: case.all_streams_ns,
            least_bytes_without_waits: case.least_bytes_without_waits,
            spec: &stack.spec,
            status,
            error,
            pass: pass + 1,
            end_ns: figures.map(|figures| figures.end_ns),
            host_ns: figures.map(|figures| figures.host_ns),
            peak_taken_bytes: figures.map(|figures| figures.peak_taken_bytes),
            failures: figures.map(|figures| figures.failures),
            stream_waits: figures.and_then(|figures| figures.stream_waits),
            host_waits: figures.and_then(|figures| figures.host_waits),
            driver_calls: figures.and_then(|figures| figures.driver_calls),
            driver_calls_by_kind: figures.map(by_kind),
        }
    }
}
