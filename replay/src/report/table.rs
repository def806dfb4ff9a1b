//! Prints tables for people. First comes a headline for the log, then a line with advice, then a table with a
//! row for each stack, then remarks. With details, all figures are printed.

use std::io::{self, Write};

use comfy_table::Table;
use millpond_core::{LadderCounts, format_bytes};
use millpond_engine::text::{counted, plain, plain_lines, thousands};

use super::cells::Cell::{Bytes, Text};
use super::cells::{self, Column, ns_per_op, ratio, table_of};
use super::ran::{Ran, figures};
use super::{Reporter, advice, brief};
use crate::compare::{Comparison, StackFigures, StackReport, StackResult};

const LEGEND: &str = "\
peak taken: the most memory held from the driver at one time; taken / live: peak taken / peak live
ns/op: time per operation, in the stack and the driver; calls: driver calls; failures: failed allocations";

const APART_LEGEND: &str =
    "taken / apart: peak taken / the least memory for any allocator whose streams share no memory";

const ASKED_AGAIN_LEGEND: &str = "\
failed then, served now: rows `allocate failure` of the log that the stack serves in the replay
peak taken and peak live include these requests; taken / apart, the last pass and all other figures do not";

/// CUDA does not document how its pools divide memory; docs/book/src/benchmarks.md shows how much they take.
const DRIVER_POOL_NOTE: &str = "cuda_async: the simulated driver's pools are a model; with CUDA's pools, \
    taken / live may differ by a few tenths";

const DETAILS_HEADER: [&str; 5] =
    ["stack", "largest\nfree", "own ns/op\nfirst pass", "driver time\nfirst pass", "reuse in\nfirst pass*"];

const LADDER_NOTE: &str = "* own stream / ordered / completed / waited / grown / reclaimed / out of memory";

/// Lines of driver calls are broken at this width in characters.
const LINE_WIDTH: usize = 100;

/// Two stacks are equally fast if their times differ by less than this ratio.
const NOISE: f64 = 1.1;

pub(super) struct TableReporter<W> {
    out: W,
    has_details: bool,
    reported: usize,
}

impl<W> TableReporter<W> {
    pub(super) fn new(out: W, has_details: bool) -> Self {
        Self { out, has_details, reported: 0 }
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
        let advice = advice::of(comparison);
        if let Some(advice) = &advice {
            writeln!(out, "{}\n", advice.text)?;
        }
        let ran: Vec<(&StackReport, &StackFigures)> = comparison.stacks.iter().filter_map(figures).collect();
        if !ran.is_empty() {
            writeln!(out, "{}", how_replayed(comparison))?;
            if self.has_details {
                write_details(out, comparison, &ran)?;
            } else {
                brief::write(out, comparison, &ran, advice.as_ref())?;
            }
        }
        write_notes(out, comparison, &ran)?;
        if let Some(winners) = winners(&ran).filter(|_| self.has_details) {
            writeln!(out, "\n{winners}")?;
        }
        out.flush()
    }
}

/// Prints the figures for authors of allocators.
fn write_details(out: &mut impl Write, comparison: &Comparison, ran: &Ran<'_>) -> io::Result<()> {
    let live = comparison.log.live.text(LINE_WIDTH - "live bytes ".len());
    if !live.is_empty() {
        writeln!(out, "live bytes {live}")?;
    }
    writeln!(out, "\n{}\n{LEGEND}", table(comparison, ran))?;
    if comparison.log.streams > 1 {
        writeln!(out, "{APART_LEGEND}")?;
    }
    if comparison.log.failed_requests > 0 {
        writeln!(out, "{ASKED_AGAIN_LEGEND}")?;
    }
    writeln!(out, "\n{}", details(ran))?;
    if ran.iter().any(|(_, figures)| figures.ladder.is_some()) {
        writeln!(out, "{LADDER_NOTE}")?;
    }
    write_driver_calls(out, ran)
}

fn headline(comparison: &Comparison) -> String {
    let log = &comparison.log;
    let failed = match log.failed_requests {
        0 => String::new(),
        failed => format!(" with {}", counted(failed, "failed request")),
    };
    format!(
        "{}: {}, {}, {}, peak live {}{failed}",
        plain(&log.file),
        counted(log.events, "event"),
        counted(log.streams as u64, "stream"),
        counted(log.threads as u64, "thread"),
        format_bytes(log.peak_needed_bytes),
    )
}

fn how_replayed(comparison: &Comparison) -> String {
    let Comparison { thread_order, passes, at_once, log, .. } = comparison;
    let order = match thread_order.as_str() {
        "1" if log.threads > 1 => {
            let threads = counted(log.threads as u64, "thread");
            format!("on one thread (the log has {threads}: --threads as-logged)")
        }
        "1" => "on one thread".to_owned(),
        order => format!("threads {order}"),
    };
    let times = if *passes == 1 { "once".to_owned() } else { format!("{passes} times") };
    let stacks = if *at_once > 1 { format!(", {at_once} stacks at a time") } else { String::new() };
    format!("replayed {times}, {order}{stacks}, on {}", device(comparison))
}

/// Returns the device's text, name and size, without repetitions.
fn device(comparison: &Comparison) -> String {
    let (spec, size) = (&comparison.device.spec, format_bytes(comparison.device.total_bytes));
    let name = comparison.device.name.replace(&format!(" with {size}"), "");
    if spec.contains(&size) { format!("{spec} ({name})") } else { format!("{spec} ({name}, {size})") }
}

/// The columns if there is one pass.
const ONCE: [Column; 5] = [
    ("peak\ntaken", Bytes(StackFigures::first_peak)),
    ("taken\n/ live", Text(|figures| ratio(figures.over_live(figures.first_peak())))),
    ("ns/op", Text(|figures| ns_per_op(figures.ns_per_op_first))),
    ("driver\ncalls", Text(|figures| thousands(figures.driver.calls_first_pass))),
    ("failures", Text(|figures| thousands(figures.failures))),
];

/// The columns if there are several passes.
const REPEATED: [Column; 9] = [
    ("peak taken\nfirst pass", Bytes(StackFigures::first_peak)),
    ("/ live", Text(|figures| ratio(figures.over_live(figures.first_peak())))),
    ("peak taken\nlast pass", Bytes(|figures| figures.peak_reserved_bytes_last)),
    ("/ live", Text(|figures| ratio(figures.reserved_over_live_last))),
    ("ns/op\nfirst", Text(|figures| ns_per_op(figures.ns_per_op_first))),
    ("ns/op\nbest", Text(|figures| ns_per_op(figures.ns_per_op_best))),
    ("calls in\nfirst pass", Text(|figures| thousands(figures.driver.calls_first_pass))),
    ("calls in\nbest pass", Text(|figures| thousands(figures.driver.calls_best_pass))),
    ("failures\nfirst pass", Text(|figures| thousands(figures.failures))),
];

/// The column that is added for logs with several streams.
const APART: Column = ("taken\n/ apart", Text(|figures| ratio(figures.reserved_over_apart_first)));

/// The column that is added for logs with failed requests.
const ASKED_AGAIN: Column = (
    "failed then,\nserved now",
    Text(|figures| {
        figures.asked_again.as_ref().map_or("-".to_owned(), |asked| {
            format!("{} of {}", thousands(asked.served), thousands(asked.requests))
        })
    }),
);

fn table(comparison: &Comparison, ran: &Ran<'_>) -> Table {
    let mut columns = if comparison.passes > 1 { REPEATED.to_vec() } else { ONCE.to_vec() };
    if comparison.log.streams > 1 {
        columns.insert(2, APART);
    }
    if comparison.log.failed_requests > 0 {
        columns.push(ASKED_AGAIN);
    }
    let header = std::iter::once("stack").chain(columns.iter().map(|(head, _)| *head)).collect();
    table_of(header, cells::rows(&columns, ran))
}

fn details(ran: &Ran<'_>) -> Table {
    let rows = ran.iter().map(|(stack, figures)| {
        let is_measured = figures.driver.unmeasured.is_empty();
        vec![
            stack.spec.clone(),
            figures.largest_free_block_bytes.map_or("-".to_owned(), format_bytes),
            format!("{:.0}", figures.own_ns_per_op_first),
            if is_measured { nanoseconds(figures.driver.ns_first_pass) } else { "-".to_owned() },
            figures.ladder.map_or("-".to_owned(), ladder),
        ]
    });
    table_of(DETAILS_HEADER.to_vec(), rows)
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

/// Joins the texts with commas, in lines of at most `width` characters if possible.
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

/// Writes problems and remarks, one line each. Failed stacks are reported as errors, not here.
fn write_notes(out: &mut impl Write, comparison: &Comparison, ran: &Ran<'_>) -> io::Result<()> {
    let mut notes: Vec<String> = comparison.log.notes().iter().map(|note| plain(note)).collect();
    if let Some(ns) = comparison.log.logged_ns_per_op {
        notes.push(format!("when the log was written, a call took {ns:.0} ns on average"));
    }
    if comparison.device.simulated && !ran.is_empty() {
        let note = "the device is simulated: driver time is virtual, and a stack's own time is real";
        notes.push(note.to_owned());
        if ran.iter().any(|(stack, _)| stack.spec.starts_with("cuda_async")) {
            notes.push(DRIVER_POOL_NOTE.to_owned());
        }
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
    notes.iter().try_for_each(|note| writeln!(out, "note: {}", plain_lines(note)))
}

fn add_notes(notes: &mut Vec<String>, spec: &str, figures: &StackFigures) {
    if let Some(first) = &figures.first_failure {
        let (count, all, line) = (figures.failures, figures.failures_all_passes, first.line);
        let all = if all == count { String::new() } else { format!(" ({} in all passes)", thousands(all)) };
        // The note already names the stack.
        let error = first.error.replace(&format!(" in `{spec}`"), "");
        let failures = counted(count, "failure");
        notes.push(format!("{spec}: {failures}{all}, the first at line {line}: {error}"));
    }
    if let Some(asked) = &figures.asked_again
        && let Some(first) = asked.unserved.first()
    {
        let failed = counted(asked.requests - asked.served, "request");
        notes.push(format!("{spec}: {failed} failed again, the first for {}", first.in_words()));
    }
    let unmeasured: Vec<&str> = figures.driver.unmeasured.iter().map(|kind| kind.name()).collect();
    if !unmeasured.is_empty() {
        let calls = unmeasured.join(", ");
        notes.push(format!("{spec}: no driver time, because the cost of {calls} was not measured"));
    }
    if figures.misuses_all_passes > 0 {
        let refused = counted(figures.misuses_all_passes, "refused deallocation");
        notes.push(format!("{spec}: {refused} in all passes; each one is a bug"));
    }
}

/// Names the stacks with the least memory and the least time, including all that tie. Times tie if their
/// difference is within noise. A stack does not count if it failed on the log, or on a request that had
/// failed when the log was written. A stack that took no device memory does not count either, because its
/// blocks are host memory.
fn winners(ran: &Ran<'_>) -> Option<String> {
    let ran: Vec<_> = ran.iter().filter(|(_, figures)| figures.is_of_device()).collect();
    let served: Vec<_> = ran.iter().filter(|(_, figures)| !figures.failed_a_row()).collect();
    let is_idle = ran.iter().all(|(_, figures)| figures.operations == 0);
    if ran.len() < 2 || served.is_empty() || is_idle {
        return None;
    }
    let names = |is_best: &dyn Fn(&StackFigures) -> bool| {
        let names = served.iter().filter(|(_, figures)| is_best(figures));
        names.map(|(stack, _)| stack.spec.as_str()).collect::<Vec<_>>().join(", ")
    };
    let smallest = served.iter().map(|(_, figures)| figures.first_peak()).min().unwrap_or(0);
    let least_memory = names(&|figures| figures.first_peak() == smallest);
    let over_live = served.iter().filter_map(|(_, figures)| figures.over_live(figures.first_peak()));
    let taken = over_live.min_by(f64::total_cmp).map(|ratio| format!("{ratio:.3} × live"));
    let taken = taken.unwrap_or_else(|| format_bytes(smallest));
    let only = if served.len() < ran.len() { "among the stacks without failures, " } else { "" };
    let memory = format!("{only}least memory: {least_memory} ({taken})");
    let fastest = served.iter().filter_map(|(_, figures)| figures.ns_per_op_best).min_by(f64::total_cmp);
    let Some(fastest) = fastest else { return Some(memory) };
    let least_time = names(&|figures| figures.ns_per_op_best.is_some_and(|ns| ns <= fastest * NOISE));
    Some(format!("{memory}; least time: {least_time} ({fastest:.0} ns/op)"))
}

fn ladder(counts: LadderCounts) -> String {
    let LadderCounts { own_stream, ordered, completed, waited, grow, reclaim, out_of_memory, .. } = counts;
    format!("{own_stream}/{ordered}/{completed}/{waited}/{grow}/{reclaim}/{out_of_memory}")
}

fn nanoseconds(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{:.0} µs", ns as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.0} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}
