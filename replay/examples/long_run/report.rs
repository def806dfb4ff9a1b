//! The figures over all copies, and their reports.

use std::io::{self, Write};

use clap::ValueEnum;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use millpond_engine::text::write_json;
use serde::Serialize;

use super::beside::Beside;
use super::run::Pass;

/// Memory is reported after these passes, and after the last one.
const MARKS: [usize; 4] = [1, 5, 20, 60];

/// A figure over all copies.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) mean: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    /// The sample's standard deviation; 0 for a single copy.
    pub(crate) deviation: f64,
}

impl Spread {
    fn of(figures: Vec<f64>) -> Self {
        let count = figures.len() as f64;
        let mean = figures.iter().sum::<f64>() / count;
        let squares: f64 = figures.iter().map(|figure| (figure - mean).powi(2)).sum();
        Self {
            mean,
            min: figures.iter().copied().fold(f64::INFINITY, f64::min),
            max: figures.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            deviation: if count > 1.0 { (squares / (count - 1.0)).sqrt() } else { 0.0 },
        }
    }
}

/// Bytes taken over bytes live after a pass.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Mark {
    pub(crate) pass: usize,
    #[serde(flatten)]
    pub(crate) ratio: Spread,
}

/// The means of one pass.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Point {
    pub(crate) pass: usize,
    pub(crate) taken_over_live: f64,
    pub(crate) calls_per_1000: f64,
    pub(crate) ns_per_op: f64,
}

/// One log in one stack, or the mean of all logs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Row {
    /// `all` for the mean of all logs.
    pub(crate) log: String,
    pub(crate) stack: String,
    pub(crate) copies: usize,
    pub(crate) passes: usize,
    /// Allocations that failed, in all passes of all copies.
    pub(crate) failures: u64,
    pub(crate) taken_over_live: Vec<Mark>,
    pub(crate) calls_per_1000_last: Spread,
    /// The driver calls in the pass with the fewest.
    pub(crate) calls_per_1000_best: Spread,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) curve: Vec<Point>,
}

impl Row {
    /// Makes a row from one log's runs, or from all logs' runs; each run holds the passes of one copy. Over
    /// several logs, it takes the geometric mean of a copy's ratios, and the arithmetic mean of its calls.
    pub(crate) fn new(log: &str, stack: &str, logs: &[&[Vec<Pass>]], curve: bool) -> Self {
        let copies = logs.iter().map(|runs| runs.len()).min().unwrap_or(0);
        let runs = || logs.iter().flat_map(|runs| runs.iter());
        let passes = runs().map(Vec::len).min().unwrap_or(0);
        let spread = |of: &dyn Fn(&[Pass]) -> f64| {
            let mean = |copy: usize| logs.iter().map(|runs| of(&runs[copy])).sum::<f64>() / logs.len() as f64;
            Spread::of((0..copies).map(mean).collect())
        };
        let ratio = |pass: usize| {
            let geometric = |copy: usize| {
                let logarithms = logs.iter().map(|runs| runs[copy][pass - 1].ratio().ln());
                (logarithms.sum::<f64>() / logs.len() as f64).exp()
            };
            Spread::of((0..copies).map(geometric).collect())
        };
        let calls = |pass: usize| spread(&|run| run[pass - 1].calls_per_1000());
        let fewest = |run: &[Pass]| run.iter().map(Pass::calls_per_1000).fold(f64::INFINITY, f64::min);
        let point = |pass: usize| Point {
            pass,
            taken_over_live: ratio(pass).mean,
            calls_per_1000: calls(pass).mean,
            ns_per_op: spread(&|run| run[pass - 1].ns_per_op()).mean,
        };
        Self {
            log: log.to_owned(),
            stack: stack.to_owned(),
            copies,
            passes,
            failures: runs().flatten().map(|pass| pass.failures).sum(),
            taken_over_live: marks(passes).map(|pass| Mark { pass, ratio: ratio(pass) }).collect(),
            calls_per_1000_last: calls(passes),
            calls_per_1000_best: spread(&fewest),
            curve: if curve { (1..=passes).map(point).collect() } else { Vec::new() },
        }
    }
}

/// Returns the passes after which memory is reported.
fn marks(passes: usize) -> impl Iterator<Item = usize> {
    MARKS.into_iter().filter(move |mark| *mark < passes).chain([passes])
}

/// The formats of the rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Format {
    /// A table for people
    Table,
    /// One object per log and stack, and one for all logs, each on its own line
    Json,
    /// One row per log, stack and reported pass
    Csv,
}

pub(crate) fn print(rows: &[Row], beside: &[Beside], format: Format, mut out: impl Write) -> io::Result<()> {
    match format {
        Format::Table => {
            writeln!(out, "{}", summary(rows))?;
            if !beside.is_empty() {
                writeln!(out, "\n{}", beside_table(beside))?;
            }
            if rows.iter().any(|row| !row.curve.is_empty()) {
                writeln!(out, "\n{}", curves(rows))?;
            }
        }
        Format::Json => {
            for row in rows {
                write_json(&mut out, row)?;
                writeln!(out)?;
            }
            for row in beside {
                write_json(&mut out, row)?;
                writeln!(out)?;
            }
        }
        Format::Csv => csv(rows, &mut out)?,
    }
    out.flush()
}

/// Makes the table of mean, minimum .. maximum and standard deviation over the copies, for each reported
/// pass.
fn summary(rows: &[Row]) -> Table {
    let passes = rows.first().map_or(0, |row| row.passes);
    let mut header = vec!["log".to_owned(), "stack".to_owned()];
    header.extend(marks(passes).map(|pass| format!("taken / live, pass {pass}")));
    header.extend(["calls / 1000, last", "calls / 1000, best", "failures"].map(str::to_owned));
    let cells = rows.iter().map(|row| {
        let ratios = row.taken_over_live.iter().map(|mark| in_words(&mark.ratio, 4));
        let calls = [&row.calls_per_1000_last, &row.calls_per_1000_best].map(|calls| in_words(calls, 1));
        let names = [row.log.clone(), row.stack.clone()];
        names.into_iter().chain(ratios).chain(calls).chain([row.failures.to_string()]).collect()
    });
    table(header, cells)
}

/// Makes a table with a line for each pass, with the figures of each row.
fn curves(rows: &[Row]) -> Table {
    let header = ["log", "stack", "pass", "taken / live", "calls / 1000", "ns / op"].map(str::to_owned);
    let cells = rows.iter().flat_map(|row| {
        row.curve.iter().map(|point| {
            let figures = [
                point.pass.to_string(),
                format!("{:.4}", point.taken_over_live),
                format!("{:.1}", point.calls_per_1000),
                format!("{:.0}", point.ns_per_op),
            ];
            [row.log.clone(), row.stack.clone()].into_iter().chain(figures).collect()
        })
    });
    table(header.to_vec(), cells)
}

/// Makes the table that compares each stack with the first one.
fn beside_table(rows: &[Beside]) -> Table {
    let header = [
        "log",
        "stack",
        "taken / first stack's, mean",
        "most",
        "own ns / op - first's",
        "with the driver's",
        "calls / 1000 - first's",
    ];
    let cells = rows.iter().map(|row| {
        vec![
            row.log.clone(),
            row.stack.clone(),
            format!("{:.4}", row.taken_over_first),
            format!("{:.4}", row.most_taken_over_first),
            format!("{:+.1}", row.own_ns_over_first),
            format!("{:+.1}", row.ns_over_first),
            format!("{:+.1}", row.calls_per_1000_over_first),
        ]
    });
    table(header.map(str::to_owned).to_vec(), cells)
}

fn table(header: Vec<String>, rows: impl Iterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header).add_rows(rows);
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn in_words(spread: &Spread, digits: usize) -> String {
    let Spread { mean, min, max, deviation } = spread;
    format!("{mean:.digits$} ({min:.digits$}..{max:.digits$}, ±{deviation:.digits$})")
}

/// Writes CSV; with curves, a row for each pass.
fn csv(rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    if rows.iter().any(|row| !row.curve.is_empty()) {
        writeln!(out, "log,stack,copies,pass,taken_over_live,calls_per_1000,ns_per_op")?;
        for row in rows {
            for Point { pass, taken_over_live, calls_per_1000, ns_per_op } in &row.curve {
                let Row { log, stack, copies, .. } = row;
                writeln!(
                    out,
                    "{log},{stack:?},{copies},{pass},{taken_over_live},{calls_per_1000},{ns_per_op}"
                )?;
            }
        }
        return Ok(());
    }
    writeln!(
        out,
        "log,stack,copies,passes,failures,pass,taken_over_live,min,max,deviation,calls_per_1000_last,\
         calls_per_1000_best"
    )?;
    for row in rows {
        for Mark { pass, ratio: Spread { mean, min, max, deviation } } in &row.taken_over_live {
            let Row { log, stack, copies, passes, failures, .. } = row;
            let (last, best) = (row.calls_per_1000_last.mean, row.calls_per_1000_best.mean);
            write!(out, "{log},{stack:?},{copies},{passes},{failures},{pass},")?;
            writeln!(out, "{mean},{min},{max},{deviation},{last},{best}")?;
        }
    }
    Ok(())
}
