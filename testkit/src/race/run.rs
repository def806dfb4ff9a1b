//! Runs a race in rounds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use millpond_core::{DeviceMemoryResource, Driver, DriverHandle, StreamRef};
use millpond_driver::sim::{Observer, Schedule, SimConfig, SimDevice};

use super::Race;
use super::hand_over::HandOver;
use super::runner::Runner;
use crate::conformance::Subject;
use crate::program::{StatisticsCheck, Summary};
use crate::{Checked, Rng, text_of};

/// How long a thread pauses.
const PAUSE: Duration = Duration::from_micros(20);

impl Race {
    /// Runs the race.
    ///
    /// # Errors
    /// Returns the failure as text.
    pub fn run(&self, subject: &Subject) -> Result<Summary, String> {
        let config = SimConfig::with_capacity(self.capacity_bytes);
        let device = SimDevice::new(config.schedule(Schedule::Seeded(self.seed)));
        let driver: DriverHandle = Arc::clone(&device) as DriverHandle;
        let resource = subject.build(&driver).map_err(|error| error.to_string())?;
        let resource = Checked::new(resource, Some(Arc::clone(&device)));
        let hand_over = HandOver::default();
        if self.pauses {
            device.observe_calls(Some(pauses(self.seed)));
        }
        let new = |index| Runner::new(self, index, &device, &resource, subject, &hand_over);
        let runners = (0..self.threads).map(new);
        let mut runners = runners.collect::<Result<Vec<_>, _>>()?;
        for round in 1..=self.rounds {
            let upto = self.operations * round / self.rounds;
            run_round(&mut runners, upto)?;
            if let Some(fault) = resource.take_faults().first() {
                return Err(fault.to_string());
            }
            if let Some(inspect) = subject.inspect {
                let inspect = AssertUnwindSafe(|| inspect(resource.inner()));
                catch_unwind(inspect).map_err(|panic| text_of(&*panic))?;
            }
        }
        let mut streams = Vec::new();
        for runner in &mut runners {
            streams.extend(runner.finish()?);
        }
        let mut summary = Summary::default();
        runners.into_iter().for_each(|runner| summary += runner.summary);
        let statistics = resource.statistics().filter(|_| subject.statistics != StatisticsCheck::None);
        let counted = statistics.map(|s| (s.blocks_in_use, s.bytes_in_use, s.deallocations == s.allocations));
        let destroy = |streams: Vec<StreamRef>| {
            // SAFETY: the threads have ended, and all blocks were freed.
            let mut ended = streams.into_iter().map(|stream| unsafe { device.stream_destroy(stream) });
            ended.try_for_each(|ended| ended.map_err(|error| error.to_string()))
        };
        let (before, after) = match self.habits.ends_before_streams {
            true => (Vec::new(), streams),
            false => (streams, Vec::new()),
        };
        destroy(before)?;
        drop(resource);
        destroy(after)?;
        if counted.is_some_and(|counted| counted != (0, 0, true)) {
            return Err(format!("after the last free the statistics are {statistics:?}"));
        }
        match (self.habits.unexplained(&device.take_violations()), device.live_allocations()) {
            (Some(violation), _) => Err(violation.to_string()),
            (None, 0) => Ok(Summary { programs: 1, ..summary }),
            (None, left) => Err(format!("{left} allocations are left")),
        }
    }
}

/// An observer that lets other threads run before one driver call in four.
fn pauses(seed: u64) -> Observer {
    let calls = AtomicU64::new(seed);
    Arc::new(move |_| {
        let call = calls.fetch_add(1, Ordering::Relaxed);
        if Rng::new(call).below(4) == 0 {
            std::thread::sleep(PAUSE);
        }
    })
}

/// Runs each runner on its own thread until it has done `upto` operations.
fn run_round(runners: &mut [Runner<'_>], upto: u64) -> Result<(), String> {
    let stop = AtomicBool::new(false);
    let stop = &stop;
    let results = std::thread::scope(|scope| {
        let start = |runner| scope.spawn(move || Runner::run_until(runner, upto, stop));
        let threads: Vec<_> = runners.iter_mut().map(start).collect();
        threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
    });
    results.into_iter().try_for_each(|result| result.map_err(|panic| text_of(&*panic))?)
}
