//! Replays a log through one stack.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use indicatif::ProgressBar;
use millpond_core::stack::{LayerSpec, LayerTable, Piece, StackSpec, Value};
use millpond_core::{AnyResource, DeviceMemoryResource, Driver, DriverHandle, ErrorKind, ResourceStatistics};
use millpond_driver::{CallCounts, CountingDriver};
use millpond_engine::program::Program;
use millpond_engine::{self as engine, AskedAgain, Outcome, Threads, Watch};
use millpond_engine::{Error, Result};

use super::figures::unmeasured;
use super::layers::is_millponds;
use super::misuse::MisuseCounter;
use super::{DriverFigures, PassFigures, Settings, StackFigures, StackResult};

/// Builds one stack, replays the log through it, and drops it.
pub(super) fn stack(
    program: &Program,
    spec: &StackSpec,
    table: &LayerTable,
    settings: &Settings,
    bar: &ProgressBar,
    misuses: &MisuseCounter,
) -> StackResult {
    let run = AssertUnwindSafe(|| {
        misuses.begin();
        let mut figures = build_and_replay(program, spec, table, settings, bar)?;
        figures.misuses_all_passes = misuses.count();
        Ok(figures)
    });
    let result = catch_unwind(run).unwrap_or_else(|panic| Err(Error::panicked(&*panic)));
    match result {
        Ok(figures) => StackResult::Ran(Box::new(figures)),
        Err(error) => {
            // The report already names the stack.
            let text = error.to_string().replace(&format!(" in `{spec}`"), "");
            StackResult::Failed { error: text, is_bad_input: is_bad_input(&error) }
        }
    }
}

fn is_bad_input(error: &Error) -> bool {
    let kind = if let Error::Stack(error) = error { Some(error.kind()) } else { None };
    matches!(kind, Some(ErrorKind::InvalidStack | ErrorKind::InvalidArgument | ErrorKind::Io))
}

fn build_and_replay(
    program: &Program,
    spec: &StackSpec,
    table: &LayerTable,
    settings: &Settings,
    bar: &ProgressBar,
) -> Result<StackFigures> {
    let device = settings.device.open_new()?;
    let counting = CountingDriver::new(device.clone());
    let before = Moment::now(&counting);
    let resource = spec.build(table, &(counting.clone() as DriverHandle))?;
    let mut watch = StackWatch::new(&counting, &resource, &before, settings, bar);
    let outcome = engine::replay(program, &resource, &device, settings.options, &mut watch)?;
    let mut figures = watch.figures(program, outcome);
    drop(resource);
    if let Some((asked, peak)) = ask_again(program, spec, table, settings)? {
        (figures.asked_again, figures.peak_reserved_bytes_asked_again) = (Some(asked), Some(peak));
    }
    figures.driver.unmeasured = unmeasured(&settings.device, &figures.driver.by_kind)?;
    let shares_a_clock = settings.options.threads == Threads::Free && device.device().is_sim();
    if shares_a_clock || is_elsewhere(spec) || !figures.driver.unmeasured.is_empty() {
        (figures.ns_per_op_first, figures.ns_per_op_best) = (None, None);
        figures.passes.iter_mut().for_each(|pass| pass.ns = None);
    }
    Ok(figures)
}

/// Returns whether the stack's allocator runs in another process.
fn is_elsewhere(spec: &StackSpec) -> bool {
    spec.layers().iter().any(|layer| layer.name == "pytorch")
}

/// Repeats the requests that had failed when the log was written. Returns their outcome, and the most bytes
/// allocated from the driver at one time. This is a separate replay: a stack that grows for these requests
/// has other figures afterwards. It omits the `logging` layers, because they write the log of the main
/// replay.
fn ask_again(
    program: &Program,
    spec: &StackSpec,
    table: &LayerTable,
    settings: &Settings,
) -> Result<Option<(AskedAgain, u64)>> {
    if program.summary().failed_requests == 0 {
        return Ok(None);
    }
    let device = settings.device.open_new()?;
    // A program may have its own layer with the name `logging`.
    let has_millponds = table.get("logging").is_ok_and(is_millponds);
    let spec = if has_millponds { &without_logging(spec)? } else { spec };
    let counting = CountingDriver::new(device.clone());
    let resource = spec.build(table, &(counting.clone() as DriverHandle))?;
    let options = settings.options.passes(1).ask_again(true);
    let outcome = engine::replay(program, &resource, &device, options, &mut ())?;
    Ok(outcome.asked_again.map(|asked| (asked, counting.peak_bytes_held())))
}

/// Returns the same stack without its `logging` layers, including layers inside parentheses.
fn without_logging(spec: &StackSpec) -> millpond_core::Result<StackSpec> {
    let piece = |piece: &Piece| match piece {
        Piece::Text(text) => Ok(Piece::Text(text.clone())),
        Piece::Stack(stack) => without_logging(stack).map(Piece::Stack),
    };
    let layer = |layer: &LayerSpec| {
        let params = layer.params.iter().map(|(key, value)| {
            Ok((key.clone(), value.pieces().iter().map(piece).collect::<millpond_core::Result<Value>>()?))
        });
        Ok(LayerSpec { name: layer.name.clone(), params: params.collect::<millpond_core::Result<_>>()? })
    };
    let layers = spec.layers().iter().filter(|layer| layer.name != "logging").map(layer);
    StackSpec::new(layers.collect::<millpond_core::Result<_>>()?)
}

/// The driver calls up to a moment.
#[derive(Clone, Debug)]
struct Moment {
    counts: CallCounts,
    virtual_ns: Option<u64>,
}

impl Moment {
    fn now(driver: &CountingDriver) -> Self {
        Self { counts: driver.counts(), virtual_ns: driver.virtual_time_ns() }
    }

    /// Returns the driver calls between `earlier` and this moment.
    fn since(&self, earlier: &Self) -> Span {
        let counts = self.counts.since(&earlier.counts);
        let virtual_ns = self.virtual_ns.zip(earlier.virtual_ns).map(|(now, then)| now.saturating_sub(then));
        Span { ns: virtual_ns.unwrap_or_else(|| counts.total_wall_ns()), counts, ..Span::default() }
    }
}

#[derive(Clone, Default, Debug)]
struct Span {
    counts: CallCounts,
    /// The time on the virtual clock, if there is one. The clock also advances for the replay's own calls,
    /// which make and synchronise streams. These calls are outside the measured spans.
    ns: u64,
    /// The time outside of the driver. If threads replay at once, this is the whole time.
    own_ns: u64,
    /// The time inside and outside of the driver.
    total_ns: u64,
    /// The most bytes allocated from the driver at one time.
    peak_bytes: u64,
}

/// Reads the driver's counts and the resource's statistics at the end of each pass.
struct StackWatch<'a> {
    driver: &'a Arc<CountingDriver>,
    resource: &'a AnyResource,
    bar: &'a ProgressBar,
    built: Span,
    /// Whether threads replay at once.
    at_once: bool,
    pass_began: Moment,
    passes: Vec<Span>,
    calls: u64,
    /// The statistics after the first pass.
    first_statistics: Option<ResourceStatistics>,
    /// The statistics after the last pass.
    statistics: Option<ResourceStatistics>,
}

impl<'a> StackWatch<'a> {
    fn new(
        driver: &'a Arc<CountingDriver>,
        resource: &'a AnyResource,
        before: &Moment,
        settings: &Settings,
        bar: &'a ProgressBar,
    ) -> Self {
        let now = Moment::now(driver);
        Self {
            driver,
            resource,
            bar,
            built: now.since(before),
            at_once: settings.options.threads == Threads::Free,
            calls: now.counts.total_calls(),
            pass_began: now,
            passes: Vec::new(),
            first_statistics: None,
            statistics: None,
        }
    }

    fn figures(self, program: &Program, outcome: Outcome) -> StackFigures {
        let log = program.summary();
        let operations = log.operations;
        let per_op = |ns: u64| ns as f64 / operations.max(1) as f64;
        let over = |least: u64, bytes: u64| (least > 0).then(|| bytes as f64 / least as f64);
        let over_live = |bytes: u64| over(log.peak_live_bytes, bytes);
        let best = self.passes.iter().min_by_key(|pass| pass.total_ns).cloned().unwrap_or_default();
        let first = self.passes.first().cloned().unwrap_or_default();
        let last = self.passes.last().cloned().unwrap_or_default();
        let passes = self.passes.iter().zip(&outcome.pass_failures).map(|(pass, failures)| PassFigures {
            peak_taken_bytes: pass.peak_bytes,
            ns: Some(pass.total_ns),
            driver_calls: pass.counts.total_calls(),
            failures: *failures,
        });
        StackFigures {
            operations,
            passes: passes.collect(),
            failures: outcome.pass_failures.first().copied().unwrap_or(0),
            failures_all_passes: outcome.failures,
            first_failure: outcome.first_failure,
            asked_again: None,
            misuses_all_passes: 0,
            peak_reserved_bytes_first: first.peak_bytes,
            peak_reserved_bytes_last: last.peak_bytes,
            peak_reserved_bytes_asked_again: None,
            peak_live_bytes: log.peak_live_bytes,
            peak_needed_bytes: log.peak_needed_bytes,
            reserved_over_live_first: over_live(first.peak_bytes),
            reserved_over_live_last: over_live(last.peak_bytes),
            reserved_over_apart_first: over(log.peak_live_bytes_apart, first.peak_bytes),
            largest_free_block_bytes: self.statistics.map(|statistics| statistics.largest_free_block),
            bytes_beyond_slack: self.statistics.map(|statistics| statistics.bytes_beyond_slack),
            ns_per_op_first: Some(per_op(first.total_ns)),
            ns_per_op_best: Some(per_op(best.total_ns)),
            own_ns_per_op_first: per_op(first.own_ns),
            own_ns_per_op_best: per_op(best.own_ns),
            driver: DriverFigures {
                calls_building: self.built.counts.total_calls(),
                calls_first_pass: first.counts.total_calls(),
                calls_best_pass: best.counts.total_calls(),
                calls_all_passes: self.calls,
                failures: first.counts.iter().map(|(_, counts)| counts.failures).sum(),
                ns_first_pass: first.ns,
                ns_best_pass: best.ns,
                unmeasured: Vec::new(),
                by_kind: first.counts,
            },
            ladder: self.first_statistics.map(|statistics| statistics.ladder),
            frees: self.first_statistics.map(|statistics| statistics.frees),
        }
    }
}

impl Watch for StackWatch<'_> {
    fn advanced(&mut self, operations: usize) {
        self.bar.inc(operations as u64);
    }

    fn pass_begins(&mut self) {
        if !self.passes.is_empty() {
            self.driver.reset_peak();
        }
        self.pass_began = Moment::now(self.driver);
    }

    fn pass_ended(&mut self, nanoseconds: u64) {
        let now = Moment::now(self.driver);
        let span = now.since(&self.pass_began);
        let (own_ns, total_ns) = if self.at_once {
            // Driver time is a sum over all threads, so it cannot be subtracted from elapsed time.
            (nanoseconds, nanoseconds)
        } else {
            let own_ns = nanoseconds.saturating_sub(span.counts.total_wall_ns());
            (own_ns, own_ns + span.ns)
        };
        self.passes.push(Span { own_ns, total_ns, peak_bytes: self.driver.peak_bytes_held(), ..span });
        self.calls = now.counts.total_calls();
        self.statistics = self.resource.statistics().filter(ResourceStatistics::are_of_resource);
        if self.passes.len() == 1 {
            self.first_statistics = self.statistics;
        }
    }
}
