//! The tables, as Markdown: a row for each case, a column for each allocator.

use std::fmt::Write as _;

use millpond_core::format_bytes;

use super::data::{Busy, Case, Data, Replay, distinct};

/// A figure of a case, and the workloads that it applies to.
struct Figure {
    title: &'static str,
    workloads: &'static [&'static str],
    of: fn(&Case) -> Option<f64>,
    digits: usize,
}

const ONE_THREAD: [&str; 5] = ["pair", "churn", "churn_large", "streams", "fragmented"];
const KEEP_BLOCKS: [&str; 4] = ["churn", "churn_large", "streams", "fragmented"];
const THREADS: [&str; 3] = ["threads_own_stream", "threads_one_stream", "cross_thread_free"];

const FIGURES: [Figure; 5] = [
    Figure { title: "Nanoseconds a step", workloads: &ONE_THREAD, of: |case| case.ns_per_step, digits: 0 },
    Figure {
        title: "The 99th percentile of steps, in nanoseconds",
        workloads: &ONE_THREAD,
        of: |case| case.p99_ns,
        digits: 0,
    },
    Figure {
        title: "Million steps a second, all threads together",
        workloads: &THREADS,
        of: Case::million_steps,
        digits: 1,
    },
    Figure {
        title: "Nanoseconds of an allocation before the first step: growth",
        workloads: &KEEP_BLOCKS,
        of: |case| case.ns_per_fill,
        digits: 0,
    },
    Figure {
        title: "Bytes taken from the driver by bytes live, each at its peak",
        workloads: &KEEP_BLOCKS,
        of: Case::taken_over_live,
        digits: 3,
    },
];

/// A figure of a log.
type OfLog = (&'static str, fn(&Replay) -> Option<f64>, usize);
const OF_LOGS: [OfLog; 5] = [
    ("Logs: nanoseconds an operation, first pass", |replay| replay.first_ns, 0),
    ("Logs: nanoseconds an operation, best pass", |replay| replay.best_ns, 0),
    ("Logs: bytes taken by bytes live, each at its peak, one pass", |replay| replay.taken_over_live, 3),
    ("Logs: bytes taken by bytes live, all passes", |replay| replay.taken_over_live_last, 3),
    ("Logs: driver calls in the best pass", |replay| replay.calls.map(|calls| calls as f64), 0),
];

/// A figure of a log with work in flight.
type OfBusy = (&'static str, fn(&Busy) -> Option<f64>, usize);
const MIB: f64 = 1_048_576.0;
const OF_BUSY: [OfBusy; 6] = [
    (
        "Work in flight: milliseconds to the end of all streams, first pass",
        |busy| busy.first_ns.map(|ns| ns / 1e6),
        1,
    ),
    ("Work in flight: milliseconds, last pass", |busy| busy.last_ns.map(|ns| ns / 1e6), 1),
    ("Work in flight: MiB taken, last pass", |busy| busy.taken_bytes.map(|bytes| bytes / MIB), 0),
    ("Work in flight: waits between streams, last pass", |busy| busy.stream_waits, 0),
    ("Work in flight: waits of the host, last pass", |busy| busy.host_waits, 0),
    ("Work in flight: allocations that failed, all passes", |busy| busy.failures, 0),
];

/// Returns all measurements as Markdown.
pub(crate) fn markdown(data: &Data) -> String {
    let mut text = String::new();
    for line in &data.about {
        let _ = writeln!(text, "{line}");
    }
    for Figure { title, workloads, of, digits } in &FIGURES {
        let rows: Vec<_> = (data.cases.iter())
            .filter(|case| workloads.contains(&case.workload.as_str()))
            .map(|case| (row_name(case), case.stack.as_str(), of(case)))
            .collect();
        text += &table(title, &rows, *digits);
    }
    for (title, of, digits) in OF_LOGS {
        let rows: Vec<_> = (data.replays.iter())
            .map(|replay| (replay.log.clone(), replay.stack.as_str(), of(replay)))
            .collect();
        text += &table(title, &rows, digits);
    }
    for (title, of, digits) in OF_BUSY {
        let rows: Vec<_> =
            data.busy.iter().map(|busy| (busy.row.clone(), busy.stack.as_str(), of(busy))).collect();
        text += &table(title, &rows, digits);
    }
    text + &not_run(data)
}

/// Makes a table; allocators without any figure have no column.
fn table(title: &str, rows: &[(String, &str, Option<f64>)], digits: usize) -> String {
    let known: Vec<_> = rows.iter().filter(|(_, _, figure)| figure.is_some()).collect();
    let columns = distinct(&known, |(_, stack, _)| *stack);
    if columns.is_empty() {
        return String::new();
    }
    let mut text =
        format!("\n**{title}**\n\n| | {} |\n|---|{}\n", columns.join(" | "), "---:|".repeat(columns.len()));
    for name in distinct(rows, |(name, _, _)| name.clone()) {
        let cell = |stack: &&str| {
            let found = rows.iter().find(|row| row.0 == name && row.1 == *stack);
            found.and_then(|row| row.2).map_or_else(|| "–".to_owned(), |figure| format!("{figure:.digits$}"))
        };
        let cells: Vec<String> = columns.iter().map(cell).collect();
        let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
    }
    text
}

fn row_name(case: &Case) -> String {
    let Case { workload, threads, streams, live, freed_percent, bytes, .. } = case;
    match workload.as_str() {
        "pair" => format!("pair, {}", format_bytes(*bytes)),
        "streams" => format!("streams, {streams}"),
        "fragmented" => format!("fragmented, {freed_percent} % freed"),
        _ if THREADS.contains(&workload.as_str()) => format!("{workload}, {threads}"),
        _ => format!("{workload}, {live} live"),
    }
}

/// Explains empty cells, in few lines.
fn not_run(data: &Data) -> String {
    let setbacks: Vec<_> = data.cases.iter().filter(|case| case.reason.is_some()).collect();
    let why = |case: &&Case| {
        let reason = case.reason.as_deref().unwrap_or_default();
        (case.stack.clone(), reason.lines().next().unwrap_or_default().to_owned())
    };
    let mut text = String::from("\n");
    for (stack, reason) in distinct(&setbacks, why) {
        let cases = setbacks.iter().filter(|case| why(case) == (stack.clone(), reason.clone()));
        let names: Vec<String> = cases.map(|case| row_name(case)).collect();
        let _ = writeln!(text, "- {stack}: {}: {reason}", names.join("; "));
    }
    text
}
