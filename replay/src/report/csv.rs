//! Prints CSV: a header, and one row per stack and log. The columns are the fields of the JSON, without
//! nesting. If there is no figure, the cell is empty. If there is an error, the cell holds only its first
//! line.

use std::io::{self, Write};

use millpond_engine::Failure;
use millpond_engine::text::{file_cell, plain};
use serde::Serialize;

use super::Reporter;
use crate::compare::{Comparison, StackReport, StackResult};

pub(super) struct CsvReporter<W: Write> {
    out: ::csv::Writer<W>,
}

impl<W: Write> CsvReporter<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out: ::csv::Writer::from_writer(out) }
    }
}

impl<W: Write> Reporter for CsvReporter<W> {
    fn report(&mut self, comparison: &Comparison) -> io::Result<()> {
        for stack in &comparison.stacks {
            self.out.serialize(Row::new(comparison, stack)).map_err(millpond_engine::csv_to_io)?;
        }
        self.out.flush()
    }
}

#[derive(Default, Serialize)]
struct Row<'a> {
    file: String,
    events: u64,
    streams: usize,
    threads: usize,
    peak_live_bytes: u64,
    peak_live_bytes_apart: u64,
    peak_needed_bytes: u64,
    device: String,
    simulated: bool,
    thread_order: &'a str,
    passes: u32,
    spec: &'a str,
    status: &'static str,
    reason: Option<&'a str>,
    operations: u64,
    failures: Option<u64>,
    failures_all_passes: Option<u64>,
    first_failure_line: Option<u64>,
    first_failure: Option<&'a str>,
    asked_again: Option<u64>,
    asked_again_served: Option<u64>,
    /// How many bytes were missing for the first request that failed again.
    asked_again_missing_bytes: Option<u64>,
    misuses_all_passes: Option<u64>,
    peak_reserved_bytes_first: Option<u64>,
    peak_reserved_bytes_last: Option<u64>,
    peak_reserved_bytes_asked_again: Option<u64>,
    reserved_over_live_first: Option<f64>,
    reserved_over_live_last: Option<f64>,
    reserved_over_apart_first: Option<f64>,
    largest_free_block_bytes: Option<u64>,
    bytes_beyond_slack: Option<u64>,
    ns_per_op_first: Option<f64>,
    ns_per_op_best: Option<f64>,
    own_ns_per_op_first: Option<f64>,
    own_ns_per_op_best: Option<f64>,
    driver_calls_building: Option<u64>,
    driver_calls_first_pass: Option<u64>,
    driver_calls_best_pass: Option<u64>,
    driver_calls_all_passes: Option<u64>,
    driver_failures: Option<u64>,
    driver_ns_first_pass: Option<u64>,
    driver_ns_best_pass: Option<u64>,
    /// The driver calls of the first pass by kind, as in `mem_alloc=3;mem_free=3`.
    driver_calls_by_kind: Option<String>,
    own_stream: Option<u64>,
    ordered: Option<u64>,
    completed: Option<u64>,
    waited: Option<u64>,
    grow: Option<u64>,
    reclaim: Option<u64>,
    out_of_memory: Option<u64>,
}

impl<'a> Row<'a> {
    fn new(comparison: &'a Comparison, stack: &'a StackReport) -> Self {
        let log = &comparison.log;
        let mut row = Self {
            file: file_cell(&log.file),
            events: log.events,
            operations: log.operations,
            streams: log.streams,
            threads: log.threads,
            peak_live_bytes: log.peak_live_bytes,
            peak_live_bytes_apart: log.peak_live_bytes_apart,
            peak_needed_bytes: log.peak_needed_bytes,
            device: plain(&comparison.device.spec),
            simulated: comparison.device.simulated,
            thread_order: &comparison.thread_order,
            passes: comparison.passes,
            spec: &stack.spec,
            ..Self::default()
        };
        row.fill(&stack.result);
        row
    }

    fn fill(&mut self, result: &'a StackResult) {
        let figures = match result {
            StackResult::Ran(figures) => figures,
            StackResult::Skipped { reason } => {
                (self.status, self.reason) = ("skipped", Some(reason.as_str()));
                return;
            }
            StackResult::Failed { error, .. } => {
                (self.status, self.reason) = ("failed", error.lines().next());
                return;
            }
        };
        self.status = "ran";
        self.failures = Some(figures.failures);
        self.failures_all_passes = Some(figures.failures_all_passes);
        self.first_failure_line = figures.first_failure.as_ref().map(|failure| failure.line);
        self.first_failure = figures.first_failure.as_ref().map(Failure::first_line);
        if let Some(asked) = &figures.asked_again {
            self.asked_again = Some(asked.requests);
            self.asked_again_served = Some(asked.served);
            self.asked_again_missing_bytes = asked.unserved.first().map(|unserved| unserved.missing_bytes);
        }
        self.misuses_all_passes = Some(figures.misuses_all_passes);
        self.peak_reserved_bytes_first = Some(figures.peak_reserved_bytes_first);
        self.peak_reserved_bytes_last = Some(figures.peak_reserved_bytes_last);
        self.peak_reserved_bytes_asked_again = figures.peak_reserved_bytes_asked_again;
        self.reserved_over_live_first = figures.reserved_over_live_first;
        self.reserved_over_live_last = figures.reserved_over_live_last;
        self.reserved_over_apart_first = figures.reserved_over_apart_first;
        self.largest_free_block_bytes = figures.largest_free_block_bytes;
        self.bytes_beyond_slack = figures.bytes_beyond_slack;
        self.ns_per_op_first = figures.ns_per_op_first;
        self.ns_per_op_best = figures.ns_per_op_best;
        self.own_ns_per_op_first = Some(figures.own_ns_per_op_first);
        self.own_ns_per_op_best = Some(figures.own_ns_per_op_best);
        self.driver_calls_building = Some(figures.driver.calls_building);
        self.driver_calls_first_pass = Some(figures.driver.calls_first_pass);
        self.driver_calls_best_pass = Some(figures.driver.calls_best_pass);
        self.driver_calls_all_passes = Some(figures.driver.calls_all_passes);
        self.driver_failures = Some(figures.driver.failures);
        self.driver_ns_first_pass = Some(figures.driver.ns_first_pass);
        self.driver_ns_best_pass = Some(figures.driver.ns_best_pass);
        let kinds = figures.driver.by_kind.iter().map(|(kind, counts)| format!("{kind}={}", counts.calls));
        self.driver_calls_by_kind = Some(kinds.collect::<Vec<_>>().join(";"));
        if let Some(ladder) = figures.ladder {
            self.own_stream = Some(ladder.own_stream);
            self.ordered = Some(ladder.ordered);
            self.completed = Some(ladder.completed);
            self.waited = Some(ladder.waited);
            self.grow = Some(ladder.grow);
            self.reclaim = Some(ladder.reclaim);
            self.out_of_memory = Some(ladder.out_of_memory);
        }
    }
}
