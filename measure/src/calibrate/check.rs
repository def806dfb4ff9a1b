//! Compares the driver time and the memory of replays on a device with replays on a simulated device.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{Driver as _, DriverHandle, Error, ErrorKind, format_bytes};
use millpond_driver::sim::{Profile, SimConfig, SimDevice};
use millpond_driver::{CallCounts, CallKind, CountingDriver};
use millpond_engine::Result;
use millpond_engine::program::Program;
use millpond_engine::text::number_of;
use millpond_engine::{self as engine, Options, Watch};

/// The stacks whose driver time is compared if the user names none: a pool over pages, and a pool over
/// regions.
pub const STACKS: [&str; 2] = ["cuda+pool", "cuda+pool:pages=off"];

/// The stack whose memory is compared: the driver serves all requests of a log.
const PLAIN: &str = "cuda";

/// The most kinds of calls that are printed. They are the kinds with the most time.
const MOST_KINDS: usize = 6;

/// How far simulated driver time may differ from the fastest run, as a share of that run. With an H200's own
/// profile, the simulated time was 0.96 to 1.10 times the time of the fastest of 21 runs, depending on the
/// log (2026-11-22).
pub const TIME_TOLERANCE: f64 = 0.15;

/// How far counted bytes may differ from the decrease of the device's free memory, as a share of the
/// decrease. [`CountingDriver`] counts the bytes by rules. For six logs on an H200, the difference was at
/// most 0.7 %.
pub const MEMORY_TOLERANCE: f64 = 0.01;

/// The device, stacks and passes of a comparison.
#[derive(Debug)]
#[non_exhaustive]
pub struct Check<'a> {
    /// The device to compare with.
    pub device: &'a DriverHandle,
    /// The profile of the simulated device.
    pub profile: &'a Profile,
    /// The stacks to compare. If there are none, these are [`STACKS`].
    pub stacks: &'a [StackSpec],
    /// How many times each stack replays a log on the device. The fastest run counts, because a profile
    /// describes the fastest state of its host.
    pub runs: usize,
    /// The table of every layer that a stack's text can name.
    pub table: &'a LayerTable,
}

/// The figures of the first pass of a log through a new stack.
pub(super) struct Pass {
    /// The nanoseconds in driver calls.
    ns: u64,
    /// The number of calls and their nanoseconds, by kind.
    pub(super) by_kind: Vec<(CallKind, u64, u64)>,
    /// The most bytes reserved, counted by the rule of pages.
    peak: u64,
}

/// The results of comparing several logs and stacks.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Outcome {
    /// The largest difference of simulated driver time from the fastest run, as a share of that run.
    pub worst_time: f64,
    /// The largest difference of counted bytes from the decrease of the device's free memory, as a share of
    /// the decrease.
    pub worst_memory: f64,
    /// The comparisons that failed: the log, the stack, and the reason.
    pub failures: Vec<String>,
}

impl Outcome {
    /// Returns whether all logs were compared, and all differences are within [`TIME_TOLERANCE`] and
    /// [`MEMORY_TOLERANCE`].
    pub fn is_within_tolerance(&self) -> bool {
        self.failures.is_empty() && self.worst_time <= TIME_TOLERANCE && self.worst_memory <= MEMORY_TOLERANCE
    }
}

impl<'a> Check<'a> {
    /// Returns a check of the standard stacks on a device, with one run each.
    pub const fn new(device: &'a DriverHandle, profile: &'a Profile, table: &'a LayerTable) -> Self {
        Self { device, profile, stacks: &[], runs: 1, table }
    }

    millpond_core::setters! { stacks: &'a [StackSpec], runs: usize }

    /// Compares one log, and prints the result. If a stack fails, `outcome` records the failure, and the
    /// other stacks are still compared.
    ///
    /// # Errors
    /// `out` cannot be written.
    pub fn log(&self, program: &Program, outcome: &mut Outcome, out: &mut dyn Write) -> io::Result<()> {
        let name = program.summary().file.as_str();
        let usual = STACKS.iter().filter_map(|text| text.parse().ok());
        let stacks = if self.stacks.is_empty() { usual.collect() } else { self.stacks.to_vec() };
        let mut print = |spec: &dyn fmt::Display, compared: Result<String>| match compared {
            Ok(text) => write!(out, "{name}, {spec}: {text}"),
            Err(error) => {
                outcome.failures.push(format!("{name}, {spec}: {error}"));
                Ok(())
            }
        };
        for spec in &stacks {
            print(spec, self.time(program, spec, &mut outcome.worst_time))?;
        }
        print(&PLAIN, self.memory(program, &mut outcome.worst_memory))
    }

    /// Returns the lines about driver time.
    fn time(&self, program: &Program, spec: &StackSpec, worst: &mut f64) -> Result<String> {
        let simulated = self.simulated(program, spec)?;
        let runs = (0..self.runs.max(1)).map(|_| self.on_device(program, spec));
        let mut runs = runs.collect::<Result<Vec<_>>>()?;
        runs.sort_by_key(|pass| pass.ns);
        let (fastest, median, slowest) = (&runs[0], &runs[runs.len() / 2], &runs[runs.len() - 1]);
        let ratio = simulated.ns as f64 / fastest.ns.max(1) as f64;
        farther(worst, ratio);
        let mut text = format!(
            "driver time {} in the fastest run, {} in the median run, {} in the slowest run; simulated {}, \
             which is {ratio:.3} of the fastest run\n",
            ms(fastest.ns),
            ms(median.ns),
            ms(slowest.ns),
            ms(simulated.ns)
        );
        let mut kinds = fastest.by_kind.clone();
        kinds.sort_by_key(|(_, _, ns)| std::cmp::Reverse(*ns));
        for (kind, calls, ns) in kinds.into_iter().take(MOST_KINDS) {
            let there = simulated.by_kind.iter().find(|(of, ..)| *of == kind);
            let (sim_calls, sim_ns) = there.map_or((0, 0), |(_, calls, ns)| (*calls, *ns));
            let each = |ns: u64, calls: u64| ns / calls.max(1);
            text += &format!(
                "    {kind}: {}, {}, {} ns each; simulated {}, {}, {} ns each\n",
                number_of(calls, "call"),
                ms(ns),
                each(ns, calls),
                number_of(sim_calls, "call"),
                ms(sim_ns),
                each(sim_ns, sim_calls)
            );
        }
        Ok(text)
    }

    /// Replays the log once through plain memory, and queries the device's free memory. Returns the line
    /// about memory.
    fn memory(&self, program: &Program, worst: &mut f64) -> Result<String> {
        let spec: StackSpec = PLAIN.parse()?;
        let counting = CountingDriver::new(Arc::clone(self.device));
        counting.probe_device().map_err(Error::from)?;
        let real = replay(program, &spec, self.table, &counting, self.device, None)?;
        let (gone, simulated) = (counting.probed_peak_bytes(), self.simulated(program, &spec)?.peak);
        let ratio = real.peak as f64 / gone.max(1) as f64;
        farther(worst, ratio);
        farther(worst, simulated as f64 / gone.max(1) as f64);
        let live = program.summary().peak_live_bytes;
        Ok(format!(
            "peak live memory {}; taken from the device {}; counted {}, which is {ratio:.4} of the taken \
             memory; simulated {}, which is {:.4} of the taken memory\n",
            format_bytes(live),
            format_bytes(gone),
            format_bytes(real.peak),
            format_bytes(simulated),
            simulated as f64 / gone.max(1) as f64
        ))
    }

    pub(super) fn on_device(&self, program: &Program, spec: &StackSpec) -> Result<Pass> {
        let counting = CountingDriver::new(Arc::clone(self.device));
        replay(program, spec, self.table, &counting, self.device, None)
    }

    /// Replays the log on a new simulated device, whose time is virtual.
    pub(super) fn simulated(&self, program: &Program, spec: &StackSpec) -> Result<Pass> {
        let device = SimDevice::new(SimConfig::new(self.profile.clone()));
        let counting = CountingDriver::new(device.clone());
        let handle: DriverHandle = device.clone();
        replay(program, spec, self.table, &counting, &handle, Some(&device))
    }
}

/// Reads the driver's counts when the pass begins and ends.
struct FirstPass<'a> {
    driver: &'a CountingDriver,
    /// The simulated device, if calls cost virtual time.
    simulated: Option<&'a SimDevice>,
    before: Moment,
    during: Moment,
}

/// The number of calls, their virtual time, and the numbers for each kind.
#[derive(Default)]
struct Moment {
    counts: CallCounts,
    virtual_ns: Option<u64>,
    costs: Vec<(CallKind, u64)>,
}

impl FirstPass<'_> {
    fn now(&self) -> Moment {
        Moment {
            counts: self.driver.counts(),
            virtual_ns: self.driver.virtual_time_ns(),
            costs: self.simulated.map_or(Vec::new(), SimDevice::call_costs),
        }
    }
}

impl Watch for FirstPass<'_> {
    fn pass_begins(&mut self) {
        self.before = self.now();
    }

    fn pass_ended(&mut self, _nanoseconds: u64) {
        let (before, now) = (&self.before, self.now());
        let costs =
            now.costs.iter().zip(&before.costs).map(|((kind, now), (_, before))| (*kind, now - before));
        self.during = Moment {
            counts: now.counts.since(&before.counts),
            virtual_ns: now.virtual_ns.zip(before.virtual_ns).map(|(now, before)| now - before),
            costs: costs.collect(),
        };
    }
}

fn replay(
    program: &Program,
    spec: &StackSpec,
    table: &LayerTable,
    counting: &Arc<CountingDriver>,
    device: &DriverHandle,
    simulated: Option<&SimDevice>,
) -> Result<Pass> {
    let resource = spec.build(table, &(Arc::clone(counting) as DriverHandle))?;
    let mut watch =
        FirstPass { driver: counting, simulated, before: Moment::default(), during: Moment::default() };
    let outcome = engine::replay(program, &resource, device, Options::default(), &mut watch)?;
    if let Some(failure) = outcome.first_failure {
        let device = if simulated.is_some() { "the simulated device" } else { "the device" };
        let text = format!(
            "{} failed on {device}, the first at line {}: {}",
            number_of(outcome.failures, "row"),
            failure.line,
            failure.first_line()
        );
        return Err(Error::new(ErrorKind::OutOfMemory, text).into());
    }
    let Moment { counts, virtual_ns, costs } = watch.during;
    let by_kind = counts.iter().map(|(kind, counts)| {
        let virtual_ns = costs.iter().find(|(of, _)| *of == kind).map(|(_, ns)| *ns);
        (kind, counts.calls, virtual_ns.unwrap_or(counts.wall_ns))
    });
    let ns = virtual_ns.unwrap_or_else(|| counts.total_wall_ns());
    Ok(Pass { ns, by_kind: by_kind.collect(), peak: counting.peak_bytes_taken() })
}

fn farther(worst: &mut f64, ratio: f64) {
    *worst = worst.max((ratio - 1.0).abs());
}

fn ms(ns: u64) -> String {
    format!("{:.2} ms", ns as f64 / 1e6)
}
