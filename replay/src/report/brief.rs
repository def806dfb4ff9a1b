//! The short table: it shows what each stack costs, and whether to use the stack.

use std::io::{self, Write};

use comfy_table::CellAlignment;
use millpond_engine::text::{counted, thousands};

use super::advice::{self, Advice};
use super::cells::Cell::{Bytes, Text};
use super::cells::{self, Column, ns_per_op, ratio, table_of};
use super::ran::Ran;
use crate::compare::{Comparison, StackFigures, StackReport, has_model};

/// The most stacks that the table shows.
const MOST_ROWS: usize = 8;

const LEGEND: &str = "\
peak taken: the most memory held from the driver at one time; taken / live: peak taken / peak live
ns/op: time per operation, in the stack and the driver; --details explains the figures
a stack calls the driver too often if it makes at least one driver call for two operations";

/// The lines below the legend if requests had failed when the log was written.
const WITH_FAILED: &str = "\
peak taken and peak live include the requests that failed when the log was written
in such a log memory counts more than calls, so only `cuda` can call the driver too often";

const PEAK: [Column; 2] = [
    ("peak taken", Bytes(StackFigures::peak)),
    ("taken / live", Text(|figures| ratio(figures.over_live(figures.peak())))),
];

/// The columns that are added if there is one pass.
const ONCE: [Column; 2] = [
    ("ns/op", Text(|figures| ns_per_op(figures.ns_per_op_first))),
    ("driver calls", Text(|figures| thousands(figures.driver.calls_first_pass))),
];

/// The columns that are added if there are several passes.
const REPEATED: [Column; 4] = [
    ("ns/op\nfirst pass", Text(|figures| ns_per_op(figures.ns_per_op_first))),
    ("ns/op\nbest pass", Text(|figures| ns_per_op(figures.ns_per_op_best))),
    ("driver calls\nfirst pass", Text(|figures| thousands(figures.driver.calls_first_pass))),
    ("driver calls\nbest pass", Text(|figures| thousands(figures.driver.calls_best_pass))),
];

/// Prints the table, with at most eight stacks.
pub(super) fn write(
    out: &mut impl Write,
    comparison: &Comparison,
    ran: &Ran<'_>,
    advice: Option<&Advice<'_>>,
) -> io::Result<()> {
    let further: &[Column] = if comparison.passes > 1 { &REPEATED } else { &ONCE };
    let columns = [&PEAK[..], further].concat();
    let header = std::iter::once("stack").chain(columns.iter().map(|(head, _)| *head)).chain(["verdict"]);
    let advised = advice.and_then(|advice| advice.stack);
    let best = advised.and_then(|spec| ran.iter().find(|(stack, _)| stack.spec == spec));
    let best = best.map(|(_, figures)| *figures);
    let shown = shown(ran, advised);
    let mut rows = cells::rows(&columns, &shown);
    for (row, (stack, figures)) in rows.iter_mut().zip(&shown) {
        row.push(match advised == Some(stack.spec.as_str()) {
            true => "use this one".to_owned(),
            false => verdict(stack, figures, best, comparison.log.available_bytes),
        });
    }
    let mut table = table_of(header.collect(), rows);
    if let Some(column) = table.column_iter_mut().last() {
        column.set_cell_alignment(CellAlignment::Left);
    }
    writeln!(out, "\n{table}")?;
    if shown.len() < ran.len() {
        let more = (ran.len() - shown.len()) as u64;
        writeln!(out, "--details also shows {}", counted(more, "more stack"))?;
    }
    writeln!(out, "{LEGEND}")?;
    if comparison.log.failed_requests > 0 {
        writeln!(out, "{WITH_FAILED}")?;
    }
    Ok(())
}

/// Returns the advised stack, and the stacks that served the log with the least memory. They are in the order
/// of the replay.
fn shown<'a>(ran: &'a Ran<'a>, advised: Option<&str>) -> Vec<(&'a StackReport, &'a StackFigures)> {
    let mut order: Vec<usize> = (0..ran.len()).collect();
    order.sort_by_key(|&at| {
        let (stack, figures) = ran[at];
        (advised != Some(stack.spec.as_str()), figures.failed_a_row(), figures.peak())
    });
    order.truncate(MOST_ROWS);
    order.sort_unstable();
    order.into_iter().map(|at| ran[at]).collect()
}

/// Returns why the program should not use a stack, or the advantage of the stack.
fn verdict(
    stack: &StackReport,
    figures: &StackFigures,
    best: Option<&StackFigures>,
    available_bytes: Option<u64>,
) -> String {
    if figures.misuses_all_passes > 0 {
        return "has a bug: see the note".to_owned();
    }
    if figures.failures_all_passes > 0 {
        return counted(figures.failures_all_passes, "failed allocation");
    }
    if let Some(asked) = figures.asked_again.as_ref().filter(|asked| asked.served < asked.requests) {
        let failed = thousands(asked.requests - asked.served);
        return format!("{failed} of {} failed again", counted(asked.requests, "request"));
    }
    if has_model(&stack.spec) {
        let is_original = stack.spec.starts_with("pytorch");
        return if is_original { "PyTorch itself, for comparison" } else { "a model, for comparison" }
            .to_owned();
    }
    if advice::is_managed(&stack.spec) {
        return "pages move on demand: slow".to_owned();
    }
    if available_bytes.is_some_and(|most| figures.peak() > most) {
        return "too large for the program's device".to_owned();
    }
    // If a request failed, memory counts, and calls do not.
    if !advice::spares(figures) && (figures.asked_again.is_none() || stack.spec == advice::PLAIN) {
        return "calls the driver too often".to_owned();
    }
    let Some(best) = best else { return "served the log".to_owned() };
    let more = figures.peak() as f64 / best.peak().max(1) as f64;
    let dearer = |figure: fn(&StackFigures) -> f64| figure(figures) > figure(best) * advice::SAME_COST;
    if more > advice::SAME_PEAK {
        format!("takes {:.0} % more memory", (more - 1.0) * 100.0)
    } else if figures.asked_again.is_some() && dearer(|figures| advice::stalls(figures) as f64) {
        "waits for the device more often".to_owned()
    } else if dearer(|figures| figures.driver.calls_first_pass as f64) {
        "makes more calls".to_owned()
    } else if dearer(|figures| figures.ns_per_op_first.unwrap_or(0.0)) {
        "slower".to_owned()
    } else {
        "as good".to_owned()
    }
}
