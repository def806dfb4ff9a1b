//! For people: a headline for the log, a table with a row for each stack, and what else should be known.

use std::io::{self, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use millpond_core::{LadderCounts, format_bytes};

use super::Reporter;
use crate::compare::{Comparison, StackFigures, StackReport, StackResult};

const HEADER: [&str; 7] = [
    "stack",
    "peak\ntaken",
    "taken\n/ live",
    "ns/op\nbest",
    "calls in\nfirst pass",
    "calls in\nbest pass",
    "failures",
];

const LEGEND: &str = "\
peak taken: most bytes held from the driver at a time; taken / live: that / the log's peak live
calls: of the driver; failures: allocations that failed in the first pass";

const DETAILS_HEADER: [&str; 5] =
    ["stack", "largest\nfree", "ns/op\nfirst", "driver time\nfirst pass", "reuse in\nfirst pass*"];

const LADDER_NOTE: &str = "* own stream / ordered / completed / waited / grown / reclaimed / out of memory";

/// Lines of calls are broken where they get longer.
const LINE_WIDTH: usize = 100;

type Ran<'a> = [(&'a StackReport, &'a StackFigures)];

pub(super) struct TableReporter<W> {
    out: W,
    reported: usize,
}

impl<W> TableReporter<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, reported: 0 }
    }
}

impl<W: Write> Reporter for TableReporter<W> {
    fn report(&mut self, comparison: &Comparison) -> io::Result<()> {
        let out = &mut self.out;
        if self.reported > 0 {
            writeln!(out)?;
        }
        self.reported += 1;
        writeln!(out, "{}", headline(comparison))?;
        let ran: Vec<(&StackReport, &StackFigures)> = comparison.stacks.iter().filter_map(figures).collect();
        if !ran.is_empty() {
            writeln!(out, "{}\n\n{}\n{LEGEND}\n", how_replayed(comparison), table(&ran))?;
            writeln!(out, "{}", details(&ran))?;
            if ran.iter().any(|(_, figures)| figures.ladder.is_some()) {
                writeln!(out, "{LADDER_NOTE}")?;
            }
            write_driver_calls(out, &ran)?;
        }
        write_notes(out, comparison, &ran)?;
        if let Some(winners) = winners(&ran) {
            writeln!(out, "\n{winners}")?;
        }
        out.flush()
    }
}

fn figures(stack: &StackReport) -> Option<(&StackReport, &StackFigures)> {
    match &stack.result {
        StackResult::Ran(figures) => Some((stack, figures)),
        StackResult::Skipped { .. } | StackResult::Failed { .. } => None,
    }
}

fn headline(comparison: &Comparison) -> String {
    let log = &comparison.log;
    format!(
        "{}: {}, {}, {}, peak live {}",
        log.file,
        counted(log.events, "event"),
        counted(log.streams as u64, "stream"),
        counted(log.threads as u64, "thread"),
        format_bytes(log.peak_live_bytes),
    )
}

fn how_replayed(comparison: &Comparison) -> String {
    let Comparison { device, thread_order, passes, .. } = comparison;
    let order = match thread_order.as_str() {
        "1" => "on one thread".to_owned(),
        order => format!("threads {order}"),
    };
    let times = if *passes == 1 { "once".to_owned() } else { format!("{passes} times") };
    let memory = format_bytes(device.total_bytes);
    format!("replayed {times}, {order}, on {} ({}, {memory})", device.spec, device.name)
}

fn table(ran: &Ran<'_>) -> Table {
    let rows = ran.iter().map(|(stack, figures)| {
        [
            stack.spec.clone(),
            format_bytes(figures.peak_reserved_bytes),
            figures.reserved_over_live.map_or("-".to_owned(), |ratio| format!("{ratio:.3}")),
            format!("{:.0}", figures.ns_per_op_best),
            thousands(figures.driver.calls_first_pass),
            thousands(figures.driver.calls_best_pass),
            thousands(figures.failures),
        ]
    });
    table_of(HEADER, rows)
}

fn details(ran: &Ran<'_>) -> Table {
    let rows = ran.iter().map(|(stack, figures)| {
        let is_measured = figures.driver.unmeasured.is_empty();
        [
            stack.spec.clone(),
            figures.largest_free_block_bytes.map_or("-".to_owned(), format_bytes),
            format!("{:.0}", figures.ns_per_op_first),
            if is_measured { nanoseconds(figures.driver.ns_first_pass) } else { "-".to_owned() },
            figures.ladder.map_or("-".to_owned(), ladder),
        ]
    });
    table_of(DETAILS_HEADER, rows)
}

fn table_of<const N: usize>(header: [&str; N], rows: impl Iterator<Item = [String; N]>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    table.add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn write_driver_calls(out: &mut impl Write, ran: &Ran<'_>) -> io::Result<()> {
    writeln!(out, "\ndriver calls by kind, first pass")?;
    let width = ran.iter().map(|(stack, _)| stack.spec.len()).max().unwrap_or(0);
    for (stack, figures) in ran {
        let mut kinds: Vec<String> = figures
            .driver
            .by_kind
            .iter()
            .map(|(kind, counts)| format!("{kind} {}", thousands(counts.calls)))
            .collect();
        if kinds.is_empty() {
            kinds.push("none".to_owned());
        }
        if figures.driver.calls_building > 0 {
            kinds.push(format!("and {} to build the stack", thousands(figures.driver.calls_building)));
        }
        for (index, line) in broken(&kinds, LINE_WIDTH.saturating_sub(width + 4)).iter().enumerate() {
            let spec = if index == 0 { stack.spec.as_str() } else { "" };
            writeln!(out, "  {spec:width$}  {line}")?;
        }
    }
    Ok(())
}

/// The parts with commas between them, in lines of so many characters where that can be.
fn broken(parts: &[String], width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for (index, part) in parts.iter().enumerate() {
        let part = if index + 1 < parts.len() { format!("{part},") } else { part.clone() };
        match lines.last_mut() {
            Some(line) if line.is_empty() => *line = part,
            Some(line) if line.len() + 1 + part.len() <= width => *line = format!("{line} {part}"),
            _ => lines.push(part),
        }
    }
    lines
}

/// What is wrong, or should be known, one line each. Stacks that failed are errors, said elsewhere.
fn write_notes(out: &mut impl Write, comparison: &Comparison, ran: &Ran<'_>) -> io::Result<()> {
    let mut notes = comparison.log.notes();
    if let Some(ns) = comparison.log.logged_ns_per_op {
        notes.push(format!("when the log was written, a call took {ns:.0} ns"));
    }
    if comparison.device.simulated && !ran.is_empty() {
        let note = "the device is simulated: ns/op is this machine's time, driver time is virtual";
        notes.push(note.to_owned());
    }
    for StackReport { spec, result } in &comparison.stacks {
        match result {
            StackResult::Skipped { reason } => notes.push(format!("{spec} was left out: {reason}")),
            StackResult::Failed { .. } => {}
            StackResult::Ran(figures) => add_notes(&mut notes, spec, figures),
        }
    }
    if !notes.is_empty() {
        writeln!(out)?;
    }
    notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))
}

fn add_notes(notes: &mut Vec<String>, spec: &str, figures: &StackFigures) {
    if let Some(first) = &figures.first_failure {
        let (count, all, line) = (figures.failures, figures.failures_all_passes, first.line);
        let all = if all == count { String::new() } else { format!(" ({} in all passes)", thousands(all)) };
        // The stack is named already.
        let error = first.error.replace(&format!(" in `{spec}`"), "");
        let count = thousands(count);
        notes.push(format!("{spec}: failures: {count}{all}, the first at line {line}: {error}"));
    }
    let unmeasured: Vec<&str> = figures.driver.unmeasured.iter().map(|kind| kind.name()).collect();
    if !unmeasured.is_empty() {
        let calls = unmeasured.join(", ");
        notes.push(format!("{spec}: no driver time, as nobody has measured what {calls} takes"));
    }
    if figures.misuses_all_passes > 0 {
        let count = thousands(figures.misuses_all_passes);
        notes.push(format!("{spec}: refused deallocations in all passes, a bug: {count}"));
    }
}

/// Which stacks took the least; all of those that share a first place. A stack that failed to serve the log
/// does not count.
fn winners(ran: &Ran<'_>) -> Option<String> {
    let served: Vec<_> = ran.iter().filter(|(_, figures)| figures.failures_all_passes == 0).collect();
    if ran.len() < 2 || served.is_empty() {
        return None;
    }
    let least = |key: fn(&StackFigures) -> u64| {
        let least = served.iter().map(|(_, figures)| key(figures)).min();
        let names = served.iter().filter(|(_, figures)| Some(key(figures)) == least);
        names.map(|(stack, _)| stack.spec.as_str()).collect::<Vec<_>>().join(", ")
    };
    let smallest = served.iter().map(|(_, figures)| figures.peak_reserved_bytes).min().unwrap_or(0);
    let ratio = served.iter().filter_map(|(_, figures)| figures.reserved_over_live).min_by(f64::total_cmp);
    let ratio = ratio.map_or(format_bytes(smallest), |ratio| format!("{ratio:.3} × live"));
    let fastest = served.iter().map(|(_, figures)| figures.ns_per_op_best).fold(f64::INFINITY, f64::min);
    let only = if served.len() < ran.len() { "among the stacks without failures, " } else { "" };
    Some(format!(
        "{only}least memory: {} ({ratio}); least time: {} ({fastest:.0} ns/op)",
        least(|figures| figures.peak_reserved_bytes),
        least(|figures| figures.ns_per_op_best.round() as u64),
    ))
}

fn counted(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", thousands(count), if count == 1 { "" } else { "s" })
}

fn ladder(counts: LadderCounts) -> String {
    let LadderCounts { own_stream, ordered, completed, waited, grow, reclaim, out_of_memory } = counts;
    format!("{own_stream}/{ordered}/{completed}/{waited}/{grow}/{reclaim}/{out_of_memory}")
}

/// `1234567` as `1,234,567`.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn nanoseconds(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{:.0} µs", ns as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.0} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}
