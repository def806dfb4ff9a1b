//! Replays one copy, pass after pass in one stack, on its own simulated device.

use std::time::Instant;

use clap::ValueEnum;
use millpond_core::driver::StreamFlags;
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{AnyResource, DevicePtr, Driver, DriverHandle, StreamRef};
use millpond_driver::{CountingDriver, DeviceSpec};
use millpond_engine::Result;
use millpond_engine::program::OpKind;

use super::copy::{Log, Step};
use super::random::Random;

/// The work of a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Mode {
    /// Each pass replays the copy
    Repeat,
    /// Each pass after the first changes each distinct size by a further few percent
    Drift,
    /// Odd passes replay the log, even passes the next log of the command line
    Alternate,
    /// Each pass ends at a point drawn from the middle 80 % of the log
    Cut,
    /// Each pass changes the sizes of one in a hundred allocations, each by its own factor
    Resize,
    /// Every other pass, at random, leaves out a stretch of a fiftieth of the log
    Skip,
    /// Each pass replays the log or the next log of the command line, at random
    Random,
}

/// The share of allocations that [`Mode::Resize`] changes.
const RESIZED: f64 = 0.01;

/// The share of the log that [`Mode::Skip`] leaves out.
const SKIPPED: f64 = 0.02;

/// How passes are replayed.
#[derive(Clone, Debug)]
pub(crate) struct Passes {
    pub(crate) mode: Mode,
    pub(crate) count: u32,
    /// How far a size moves from pass to pass with [`Mode::Drift`].
    pub(crate) drift: f64,
}

/// The figures of a pass, in bytes and nanoseconds.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(crate) struct Pass {
    /// The most bytes taken from the driver at one time so far.
    pub(crate) peak_taken: u64,
    /// The most bytes live at one time so far.
    pub(crate) peak_live: u64,
    pub(crate) calls: u64,
    pub(crate) operations: u64,
    pub(crate) failures: u64,
    /// The stack's own time on this machine and the driver's virtual time.
    pub(crate) ns: u64,
    /// The stack's own time.
    pub(crate) own_ns: u64,
}

impl Pass {
    /// Returns bytes taken over bytes live; 1 if nothing was live.
    pub(crate) fn ratio(&self) -> f64 {
        if self.peak_live == 0 { 1.0 } else { self.peak_taken as f64 / self.peak_live as f64 }
    }

    /// Returns the driver calls per 1000 operations.
    pub(crate) fn calls_per_1000(&self) -> f64 {
        self.calls as f64 * 1000.0 / self.operations.max(1) as f64
    }

    pub(crate) fn ns_per_op(&self) -> f64 {
        self.ns as f64 / self.operations.max(1) as f64
    }
}

/// Runs all passes over `logs`: one log, or two that alternate.
pub(crate) fn run(
    mut logs: Vec<Log>,
    stack: &StackSpec,
    table: &LayerTable,
    device: &DeviceSpec,
    passes: &Passes,
    random: &mut Random,
) -> Result<Vec<Pass>> {
    let device = device.open()?;
    let counting = CountingDriver::new(device.clone());
    let streams = streams(&logs, &device)?;
    let resource = stack.build(table, &(counting.clone() as DriverHandle))?;
    let (mut done, mut so_far) = (Vec::new(), Pass::default());
    for number in 0..passes.count as usize {
        let which = match passes.mode {
            Mode::Random => usize::from(random.unit() < 0.5),
            _ => number % logs.len(),
        };
        let log = &mut logs[which];
        if passes.mode == Mode::Drift && number > 0 {
            log.change_sizes(passes.drift, random);
        }
        let changed = match passes.mode {
            Mode::Resize => Some(log.resized(RESIZED, random)),
            Mode::Skip if random.unit() < 0.5 => Some(log.without_stretch(SKIPPED, random)),
            _ => None,
        };
        let log = changed.as_ref().unwrap_or(log);
        let end = match passes.mode {
            Mode::Cut => (log.steps.len() as f64 * (0.1 + 0.8 * random.unit())) as usize,
            _ => log.steps.len(),
        };
        let lanes: Vec<StreamRef> = log.streams.iter().map(|stream| of(&streams, *stream)).collect();
        let mut replay =
            Replay { log, resource: &resource, lanes, blocks: vec![None; log.slots], failures: 0 };
        counting.reset_peak();
        let (before, virtual_before) = (counting.counts(), counting.virtual_time_ns());
        let clock = Instant::now();
        log.steps[..end].iter().for_each(|step| replay.execute(step));
        let wall_ns = clock.elapsed().as_nanos() as u64;
        let counts = counting.counts().since(&before);
        let virtual_ns = counting.virtual_time_ns().zip(virtual_before).map_or(0, |(now, then)| now - then);
        let own_ns = wall_ns.saturating_sub(counts.total_wall_ns());
        so_far = Pass {
            peak_taken: so_far.peak_taken.max(counting.peak_bytes_taken()),
            peak_live: so_far.peak_live.max(log.peak_live(end)),
            calls: counts.total_calls(),
            operations: end as u64,
            failures: replay.failures,
            ns: own_ns + virtual_ns,
            own_ns,
        };
        done.push(so_far);
        replay.free_the_rest(end);
        device.synchronize().map_err(millpond_core::Error::from)?;
    }
    Ok(done)
}

/// Makes as many streams as the log with the most streams needs; logs that alternate share them.
fn streams(logs: &[Log], device: &DriverHandle) -> Result<Vec<StreamRef>> {
    let count = logs.iter().flat_map(|log| &log.streams).flatten().max().map_or(0, |last| last + 1);
    let made = (0..count).map(|_| device.stream_create(StreamFlags::NON_BLOCKING));
    Ok(made.collect::<std::result::Result<_, _>>().map_err(millpond_core::Error::from)?)
}

fn of(streams: &[StreamRef], stream: Option<u32>) -> StreamRef {
    stream.map_or(StreamRef::LEGACY, |number| streams[number as usize])
}

/// One pass over one log.
struct Replay<'a> {
    log: &'a Log,
    resource: &'a AnyResource,
    lanes: Vec<StreamRef>,
    /// By slot; `None` if the slot is empty or its allocation failed.
    blocks: Vec<Option<DevicePtr>>,
    failures: u64,
}

impl Replay<'_> {
    #[inline]
    fn execute(&mut self, step: &Step) {
        let (layout, stream) = (self.log.layout(step), self.lanes[step.lane as usize]);
        match step.kind {
            OpKind::Allocate | OpKind::AllocateNothing => match self.resource.allocate(layout, stream) {
                Ok(block) if step.kind == OpKind::Allocate => self.blocks[step.slot as usize] = Some(block),
                Ok(_) => {}
                Err(_) => self.failures += 1,
            },
            OpKind::Free => {
                if let Some(block) = self.blocks[step.slot as usize].take() {
                    // SAFETY: the block came from `allocate` of this resource with the same layout, and the
                    // slot no longer holds it; no work uses it.
                    unsafe { self.resource.deallocate(block, layout, stream) };
                }
            }
            // SAFETY: deallocating null is allowed and does nothing.
            OpKind::FreeNothing => unsafe { self.resource.deallocate(DevicePtr::NULL, layout, stream) },
            OpKind::AskAgain => {}
        }
    }

    /// Frees the blocks that are live after the first `end` operations, on their streams and in the order of
    /// their allocations.
    fn free_the_rest(&mut self, end: usize) {
        let mut last = vec![None; self.log.slots];
        for (at, step) in self.log.steps[..end].iter().enumerate() {
            if step.kind == OpKind::Allocate {
                last[step.slot as usize] = Some(at);
            }
        }
        let mut left: Vec<usize> = last.into_iter().flatten().collect();
        left.sort_unstable();
        for at in left {
            self.execute(&Step { kind: OpKind::Free, ..self.log.steps[at] });
        }
    }
}
