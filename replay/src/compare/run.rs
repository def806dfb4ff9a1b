use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use indicatif::ProgressBar;
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{AnyResource, DeviceMemoryResource, Driver, DriverHandle, ErrorKind, ResourceStatistics};
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
        Err(error) => StackResult::Failed { error: error.to_string(), is_bad_input: is_bad_input(&error) },
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
    figures.misuses = misuse.count();
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
        Span { calls: counts.total_calls(), ns: virtual_ns.unwrap_or_else(|| counts.total_wall_ns()) }
    }
}

#[derive(Clone, Copy, Default, Debug)]
struct Span {
    calls: u64,
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
    counts: CallCounts,
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
            counts: now.counts.clone(),
            pass_began: now,
            passes: Vec::new(),
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
        let pass = |index: usize| self.passes.get(index).copied().unwrap_or_default();
        StackFigures {
            operations,
            failures: outcome.failures,
            first_failure: outcome.first_failure,
            misuses: 0,
            peak_reserved_bytes,
            peak_live_bytes: log.peak_live_bytes,
            reserved_over_live: (log.peak_live_bytes > 0)
                .then(|| peak_reserved_bytes as f64 / log.peak_live_bytes as f64),
            largest_free_block_bytes: self.statistics.map(|statistics| statistics.largest_free_block),
            ns_per_op_first: per_op(first_ns),
            ns_per_op_best: per_op(best_ns),
            driver: DriverFigures {
                calls: self.counts.total_calls(),
                calls_first_pass: pass(0).calls,
                calls_best_pass: pass(best).calls,
                failures: self.counts.iter().map(|(_, counts)| counts.failures).sum(),
                ns: self.built.ns + self.passes.iter().map(|pass| pass.ns).sum::<u64>(),
                ns_first_pass: pass(0).ns,
                unmeasured: Vec::new(),
                by_kind: self.counts,
            },
            ladder: self.statistics.map(|statistics| statistics.ladder),
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
        self.counts = now.counts;
        self.statistics = self.resource.statistics();
    }
}
