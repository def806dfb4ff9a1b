//! Replays a candidate at a capacity, and searches for the smallest capacity that suffices.

use std::time::Instant;

use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{Driver, DriverHandle, ErrorKind};
use millpond_driver::{CallCounts, CallKind, CountingDriver, DeviceSpec};
use millpond_engine::program::Program;
use millpond_engine::{self as engine, Options, Threads};
use millpond_engine::{Error, Result};
use serde::Serialize;

/// The calls that wait for the device's work.
const STALLS: [CallKind; 5] = [
    CallKind::MemFree,
    CallKind::MemFreeHost,
    CallKind::Synchronize,
    CallKind::StreamSynchronize,
    CallKind::EventSynchronize,
];

/// Returns the number of calls that wait for the device's work.
pub fn stalls(counts: &CallCounts) -> u64 {
    counts.iter().filter(|(kind, _)| STALLS.contains(kind)).map(|(_, counts)| counts.calls).sum()
}

/// Capacities are multiples of this number of bytes, which is the page of the driver.
pub(super) const PAGE: u64 = 2 << 20;

/// Capacities differ by at least 1/`STEP` of the lower bound.
const STEP: u64 = 256;

/// How many steps above the smallest capacity are replayed, too. They are needed because a request can fail
/// again with more memory.
const ABOVE: u64 = 3;

/// The most bytes of memory of a simulated device in this search.
pub(super) const MOST: u64 = 1 << 44;

/// The cost of a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Cost {
    /// The most bytes that the stack reserved from the driver at one time.
    pub peak_bytes: u64,
    /// The number of calls that wait for the device: cudaFree, and the synchronising calls.
    pub stalls: u64,
    /// The number of all driver calls.
    pub driver_calls: u64,
    /// The time in the driver calls on the simulated H200, in nanoseconds.
    pub driver_ns: u64,
}

/// The smallest capacity at which a candidate serves every request, and the replays near this capacity.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Smallest {
    /// The smallest capacity in bytes.
    pub bytes: u64,
    /// The cost of the replay at this capacity.
    pub cost: Cost,
    /// Larger capacities that were also replayed, and that served every request.
    pub also_served: Vec<u64>,
    /// The largest capacity below `bytes` at which a request failed. `None` if no smaller capacity was tried,
    /// because `bytes` is the least that any allocator needs, in pages of 2 MiB.
    pub failed_below: Option<u64>,
}

/// Replays a program at different capacities.
pub(super) struct Attempts<'a> {
    pub(super) program: &'a Program,
    pub(super) table: &'a LayerTable,
    /// The fewest bytes that any allocator needs.
    pub(super) bound: u64,
    /// The time at which the search stops; `None` for no deadline.
    pub(super) until: Option<Instant>,
}

/// The reason why a candidate has no result.
pub(super) enum Stopped {
    /// The time was over before the search was finished.
    TimedOut,
    /// A request failed at every capacity that was tried.
    NeverServed,
    Failed(Error),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Attempts<'_> {
    /// Returns the distance between two capacities.
    pub(super) fn step(&self) -> u64 {
        (self.bound / STEP).next_multiple_of(PAGE).max(PAGE)
    }

    /// Replays on a device with this many bytes. Returns `None` if a request fails.
    pub(super) fn at(&self, stack: &StackSpec, capacity: u64) -> std::result::Result<Option<Cost>, Stopped> {
        if self.until.is_some_and(|until| Instant::now() >= until) {
            return Err(Stopped::TimedOut);
        }
        Ok(self.replay(stack, capacity)?)
    }

    /// Replays on a device with practically unlimited memory.
    pub(super) fn without_limit(&self, stack: &StackSpec) -> std::result::Result<Option<Cost>, Stopped> {
        self.at(stack, MOST)
    }

    fn replay(&self, stack: &StackSpec, capacity: u64) -> Result<Option<Cost>> {
        let device = DeviceSpec::SimCapacity(capacity).open()?;
        let counting = CountingDriver::new(DriverHandle::clone(&device));
        let before = counting.virtual_time_ns().unwrap_or(0);
        let resource = match stack.build(self.table, &(counting.clone() as DriverHandle)) {
            Ok(resource) => resource,
            Err(error) if error.kind() == ErrorKind::OutOfMemory => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut end = End { counting: &counting, before, cost: None };
        let ask_again = self.program.summary().failed_requests > 0;
        let options = Options::default().threads(Threads::One).ask_again(ask_again).until_failure(true);
        let outcome = engine::replay(self.program, &resource, &device, options, &mut end)?;
        let is_served = outcome.asked_again.is_none_or(|asked| asked.served == asked.requests);
        Ok(end.cost.filter(|_| outcome.failures == 0 && is_served))
    }

    /// Finds the smallest capacity that suffices by bisection. Then replays the capacities above it.
    pub(super) fn smallest(&self, stack: &StackSpec) -> std::result::Result<Smallest, Stopped> {
        let (step, least) = (self.step(), self.bound.next_multiple_of(PAGE).max(PAGE));
        let capacity = |steps: u64| least + steps * step;
        // These numbers are steps above the lower bound: the largest that failed, and the smallest that
        // served every request.
        let (mut failed, mut served, mut distance) = (None, 0, 1);
        let mut cost = loop {
            if capacity(served) > MOST {
                return Err(Stopped::NeverServed);
            }
            match self.at(stack, capacity(served))? {
                Some(cost) => break cost,
                None => failed = Some(served),
            }
            served += distance;
            distance *= 2;
        };
        while failed.map_or(0, |failed| failed + 1) < served {
            let middle = failed.map_or(0, |failed| failed + 1).midpoint(served);
            match self.at(stack, capacity(middle))? {
                Some(found) => (served, cost) = (middle, found),
                None => failed = Some(middle),
            }
        }
        // A request can fail again with more memory. If it fails at a larger capacity, the search continues
        // above that capacity.
        let mut above = 1;
        while above <= ABOVE {
            match self.at(stack, capacity(served + above))? {
                Some(_) => above += 1,
                None => {
                    failed = Some(served + above);
                    served += above + 1;
                    cost = loop {
                        match self.at(stack, capacity(served))? {
                            Some(cost) => break cost,
                            None if capacity(served) > MOST => return Err(Stopped::NeverServed),
                            None => failed = Some(served),
                        }
                        served += 1;
                    };
                    above = 1;
                }
            }
        }
        Ok(Smallest {
            bytes: capacity(served),
            cost,
            also_served: (1..=ABOVE).map(|above| capacity(served + above)).collect(),
            failed_below: failed.map(capacity),
        })
    }
}

/// Reads the counts at the end of the pass.
struct End<'a> {
    counting: &'a std::sync::Arc<CountingDriver>,
    before: u64,
    cost: Option<Cost>,
}

impl engine::Watch for End<'_> {
    fn pass_ended(&mut self, _nanoseconds: u64) {
        let counts = self.counting.counts();
        let now = self.counting.virtual_time_ns().unwrap_or(0);
        self.cost = Some(Cost {
            peak_bytes: self.counting.peak_bytes_held(),
            stalls: stalls(&counts),
            driver_calls: counts.total_calls(),
            driver_ns: now.saturating_sub(self.before),
        });
    }
}
