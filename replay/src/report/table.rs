//! For people: a headline for the log, a table with a row for each stack, and what else should be known.

use std::io::{self, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use millpond_core::{LadderCounts, format_bytes};

use super::Reporter;
use crate::compare::{Comparison, StackFigures, StackReport, StackResult};

const HEADER: [&str; 11] = [
    "stack",
    "failures",
    "peak taken",
    "taken / live",
    "largest free",
    "ns/op first",
    "ns/op best",
    "driver calls",
    "in best pass",
    "driver time",
    "reuse*",
];

const LADDER_NOTE: &str = "* own stream / ordered / completed / waited / grown / reclaimed / out of memory";

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
        writeln!(out, "{}\n", headline(comparison))?;
        let ran: Vec<(&StackReport, &StackFigures)> = comparison.stacks.iter().filter_map(figures).collect();
        if !ran.is_empty() {
            writeln!(out, "{}", table(&ran))?;
            if ran.iter().any(|(_, figures)| figures.ladder.is_some()) {
                writeln!(out, "{LADDER_NOTE}")?;
            }
            write_driver_calls(out, &ran)?;
        }
        write_notes(out, comparison)?;
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
    let Comparison { device, log, thread_order, passes, .. } = comparison;
    let order = match thread_order.as_str() {
        "1" => "on one thread".to_owned(),
        order => format!("threads {order}"),
    };
    format!(
        "{}: {} events, {}, {}, peak live {}\nreplayed {}, {order}, on {} ({}, {})",
        log.file,
        thousands(log.events),
        counted(log.streams, "stream"),
        counted(log.threads, "thread"),
        format_bytes(log.peak_live_bytes),
        if *passes == 1 { "once".to_owned() } else { format!("{passes} times") },
        device.spec,
        device.name,
        format_bytes(device.total_bytes),
    )
}

fn table(ran: &[(&StackReport, &StackFigures)]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(HEADER);
    for (stack, figures) in ran {
        table.add_row([
            stack.spec.clone(),
            thousands(figures.failures),
            format_bytes(figures.peak_reserved_bytes),
            figures.reserved_over_live.map_or("-".to_owned(), |ratio| format!("{ratio:.3}")),
            figures.largest_free_block_bytes.map_or("-".to_owned(), format_bytes),
            format!("{:.0}", figures.ns_per_op_first),
            format!("{:.0}", figures.ns_per_op_best),
            thousands(figures.driver.calls),
            thousands(figures.driver.calls_best_pass),
            nanoseconds(figures.driver.ns),
            figures.ladder.map_or("-".to_owned(), ladder),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn write_driver_calls(out: &mut impl Write, ran: &[(&StackReport, &StackFigures)]) -> io::Result<()> {
    writeln!(out, "\ndriver calls by kind")?;
    let width = ran.iter().map(|(stack, _)| stack.spec.len()).max().unwrap_or(0);
    for (stack, figures) in ran {
        let kinds = figures.driver.by_kind.iter();
        let kinds: Vec<String> =
            kinds.map(|(kind, counts)| format!("{kind} {}", thousands(counts.calls))).collect();
        let kinds = if kinds.is_empty() { "none".to_owned() } else { kinds.join(", ") };
        writeln!(out, "  {:width$}  {kinds}", stack.spec)?;
    }
    Ok(())
}

/// What is wrong, or should be known, one line each.
fn write_notes(out: &mut impl Write, comparison: &Comparison) -> io::Result<()> {
    let mut notes = comparison.log.notes();
    if let Some(ns) = comparison.log.logged_ns_per_op {
        notes.push(format!("when the log was written, a call took {ns:.0} ns"));
    }
    if comparison.device.simulated {
        let note = "the device is simulated: ns/op is this machine's time, driver time is virtual";
        notes.push(note.to_owned());
    }
    for StackReport { spec, result } in &comparison.stacks {
        match result {
            StackResult::Skipped { reason } => notes.push(format!("{spec} was left out: {reason}")),
            StackResult::Failed { error, .. } => notes.push(format!("{spec} failed: {error}")),
            StackResult::Ran(figures) => {
                if let Some(first) = &figures.first_failure {
                    let (count, line) = (figures.failures, first.line);
                    notes.push(format!(
                        "{spec}: failures: {count}, the first at line {line}: {}",
                        first.error
                    ));
                }
                let unmeasured: Vec<&str> =
                    figures.driver.unmeasured.iter().map(|kind| kind.name()).collect();
                if !unmeasured.is_empty() {
                    let calls = unmeasured.join(", ");
                    notes.push(format!("{spec}: driver time lacks {calls}, which nobody has measured"));
                }
                if figures.misuses > 0 {
                    notes.push(format!("{spec}: refused deallocations, a bug: {}", figures.misuses));
                }
            }
        }
    }
    writeln!(out)?;
    notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))
}

fn counted(count: usize, noun: &str) -> String {
    format!("{} {noun}{}", thousands(count as u64), if count == 1 { "" } else { "s" })
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
