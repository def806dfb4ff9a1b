use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use indicatif::ProgressBar;
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    AnyResource, DeviceMemoryResource, Driver, DriverHandle, ErrorKind, LadderCounts, ResourceStatistics,
};
use millpond_driver::{CallCounts, CountingDriver};

use super::figures::unmeasured;
use super::misuse::MisuseCounter;
use super::{DriverFigures, Settings, StackFigures, StackResult};
use crate::engine::{self, Outcome, Watch};
use crate::program::Program;
use crate::{Error, Result};

/// Builds one stack, replays the log through it, and drops it.
pub(super) fn stack(
    program: &Program,
    spec: &StackSpec,
    table: &LayerTable,
    settings: &Settings,
    bar: &ProgressBar,
) -> StackResult {
    let run = AssertUnwindSafe(|| build_and_replay(program, spec, table, settings, bar));
    let result = catch_unwind(run).unwrap_or_else(|panic| Err(Error::panicked(&*panic)));
    match result {
        Ok(figures) => StackResult::Ran(Box::new(figures)),
        Err(error) => {
            // The stack is named beside the error.
            let text = error.to_string().replace(&format!(" in `{spec}`"), "");
            StackResult::Failed { error: text, is_bad_input: is_bad_input(&error) }
        }
    }
}

fn is_bad_input(error: &Error) -> bool {
    let kind = if let Error::Stack(error) = error { Some(error.kind()) } else { None };
    matches!(kind, Some(ErrorKind::InvalidStack | ErrorKind::InvalidArgument))
}

fn build_and_replay(
    program: &Program,
    spec: &StackSpec,
    table: &LayerTable,
    settings: &Settings,
    bar: &ProgressBar,
) -> Result<StackFigures> {
    let device = settings.device.open()?;
    let counting = CountingDriver::new(device.clone());
    let misuse = MisuseCounter::install();
    let before = Moment::now(&counting);
    let resource = spec.build(table, &(counting.clone() as DriverHandle))?;
    let mut watch = StackWatch::new(&counting, &resource, before, bar);
    let outcome = engine::replay(program, &resource, &device, settings.options, &mut watch)?;
    let mut figures = watch.figures(program, outcome);
    drop(resource);
    figures.misuses_all_passes = misuse.count();
    figures.driver.unmeasured = unmeasured(settings.device, &figures.driver.by_kind);
    Ok(figures)
}

/// What the driver was asked so far.
#[derive(Clone, Debug)]
struct Moment {
    counts: CallCounts,
    virtual_ns: Option<u64>,
}

impl Moment {
    fn now(driver: &CountingDriver) -> Self {
        Self { counts: driver.counts(), virtual_ns: driver.virtual_time_ns() }
    }

    /// What was asked between `earlier` and this moment.
    fn since(&self, earlier: &Self) -> Span {
        let counts = self.counts.since(&earlier.counts);
        let virtual_ns = self.virtual_ns.zip(earlier.virtual_ns).map(|(now, then)| now.saturating_sub(then));
        Span { ns: virtual_ns.unwrap_or_else(|| counts.total_wall_ns()), counts }
    }
}

#[derive(Clone, Default, Debug)]
struct Span {
    counts: CallCounts,
    /// Virtual where there is a virtual clock. That runs for the replay's own calls too, which lie
    /// outside of the spans looked at: making streams and synchronising.
    ns: u64,
}

/// Looks at driver and resource at the ends of passes.
struct StackWatch<'a> {
    driver: &'a Arc<CountingDriver>,
    resource: &'a AnyResource,
    bar: &'a ProgressBar,
    built: Span,
    pass_began: Moment,
    passes: Vec<Span>,
    calls: u64,
    /// After the first pass.
    ladder: Option<LadderCounts>,
    /// After the last pass.
    statistics: Option<ResourceStatistics>,
}

impl<'a> StackWatch<'a> {
    fn new(
        driver: &'a Arc<CountingDriver>,
        resource: &'a AnyResource,
        before: Moment,
        bar: &'a ProgressBar,
    ) -> Self {
        let now = Moment::now(driver);
        Self {
            driver,
            resource,
            bar,
            built: now.since(&before),
            calls: now.counts.total_calls(),
            pass_began: now,
            passes: Vec::new(),
            ladder: None,
            statistics: None,
        }
    }

    fn figures(self, program: &Program, outcome: Outcome) -> StackFigures {
        let log = program.summary();
        let operations = log.operations;
        let peak_reserved_bytes = self.driver.peak_bytes_taken();
        let per_op = |ns: u64| ns as f64 / operations.max(1) as f64;
        let first_ns = outcome.pass_ns.first().copied().unwrap_or(0);
        let (best, best_ns) =
            outcome.pass_ns.iter().copied().enumerate().min_by_key(|(_, ns)| *ns).unwrap_or((0, 0));
        let pass = |index: usize| self.passes.get(index).cloned().unwrap_or_default();
        let (first_pass, best_pass) = (pass(0), pass(best));
        StackFigures {
            operations,
            failures: outcome.pass_failures.first().copied().unwrap_or(0),
            failures_all_passes: outcome.failures,
            first_failure: outcome.first_failure,
            misuses_all_passes: 0,
            peak_reserved_bytes,
            peak_live_bytes: log.peak_live_bytes,
            reserved_over_live: (log.peak_live_bytes > 0)
                .then(|| peak_reserved_bytes as f64 / log.peak_live_bytes as f64),
            largest_free_block_bytes: self.statistics.map(|statistics| statistics.largest_free_block),
            ns_per_op_first: per_op(first_ns),
            ns_per_op_best: per_op(best_ns),
            driver: DriverFigures {
                calls_building: self.built.counts.total_calls(),
                calls_first_pass: first_pass.counts.total_calls(),
                calls_best_pass: best_pass.counts.total_calls(),
                calls_all_passes: self.calls,
                failures: first_pass.counts.iter().map(|(_, counts)| counts.failures).sum(),
                ns_first_pass: first_pass.ns,
                ns_best_pass: best_pass.ns,
                unmeasured: Vec::new(),
                by_kind: first_pass.counts,
            },
            ladder: self.ladder,
        }
    }
}

impl Watch for StackWatch<'_> {
    fn advanced(&mut self, operations: usize) {
        self.bar.inc(operations as u64);
    }

    fn pass_begins(&mut self) {
        self.pass_began = Moment::now(self.driver);
    }

    fn pass_ended(&mut self, _nanoseconds: u64) {
        let now = Moment::now(self.driver);
        self.passes.push(now.since(&self.pass_began));
        self.calls = now.counts.total_calls();
        self.statistics = self.resource.statistics();
        if self.passes.len() == 1 {
            self.ladder = self.statistics.map(|statistics| statistics.ladder);
        }
    }
}
