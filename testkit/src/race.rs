//! Many threads over one resource on the simulated device, with too little memory.
//!
//! Programs are deterministic, and so never interleave inside a call of the resource. Here each thread has a
//! stream, and all want the same few sizes, so that blocks are taken from other streams while those free and
//! allocate. The oracles are the same; which of them a wrong resource breaks depends on the run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millpond_core::driver::StreamFlags;
use millpond_core::{AnyResource, DeviceMemoryResource, DevicePtr, Driver, DriverHandle, Layout, StreamRef};
use millpond_driver::sim::{Access, Schedule, SimConfig, SimDevice};

use crate::conformance::{Decay, Subject};
use crate::program::{StatisticsCheck, Summary};
use crate::{Checked, Rng, misuse_recorder, text_of};

/// How many threads there are and what they do.
#[derive(Clone, Debug)]
pub struct Race {
    /// Threads, each with a stream of its own.
    pub threads: u64,
    /// Operations of each thread.
    pub operations: u64,
    /// In how many rounds: after each the threads end, and others go on with their blocks and streams.
    pub rounds: u64,
    /// The capacity of the device in bytes.
    pub capacity_bytes: u64,
    /// What each thread's choices, and the device's, start from.
    pub seed: u64,
}

impl Race {
    /// Eight threads on a device of 8 MiB.
    pub const fn new(seed: u64, operations: u64) -> Self {
        Self { threads: 8, operations, rounds: 4, capacity_bytes: 8 << 20, seed }
    }

    /// Runs the race.
    ///
    /// # Errors
    /// What went wrong, as text.
    pub fn run(&self, subject: &Subject) -> Result<Summary, String> {
        let config = SimConfig::with_capacity(self.capacity_bytes);
        let device = SimDevice::new(config.schedule(Schedule::Seeded(self.seed)));
        let driver: DriverHandle = Arc::clone(&device) as DriverHandle;
        let resource = subject.build(&driver).map_err(|error| error.to_string())?;
        let resource = Checked::new(resource, Some(Arc::clone(&device)));
        let runners = (0..self.threads).map(|index| Runner::new(self, index, &device, &resource, subject));
        let mut runners = runners.collect::<Result<Vec<_>, _>>()?;
        for round in 1..=self.rounds {
            let upto = self.operations * round / self.rounds;
            run_round(&mut runners, upto, round == self.rounds)?;
            if let Some(fault) = resource.take_faults().first() {
                return Err(fault.to_string());
            }
            if let Some(inspect) = subject.inspect {
                let inspect = AssertUnwindSafe(|| inspect(resource.inner()));
                catch_unwind(inspect).map_err(|panic| text_of(&*panic))?;
            }
        }
        let mut summary = Summary::default();
        runners.into_iter().for_each(|runner| summary += runner.summary);
        let statistics = resource.statistics().filter(|_| subject.statistics != StatisticsCheck::None);
        let counted = statistics.map(|s| (s.blocks_in_use, s.bytes_in_use, s.deallocations == s.allocations));
        drop(resource);
        if counted.is_some_and(|counted| counted != (0, 0, true)) {
            return Err(format!("after the last free the statistics are {statistics:?}"));
        }
        match (device.take_violations().first(), device.live_allocations()) {
            (Some(violation), _) => Err(violation.to_string()),
            (None, 0) => Ok(Summary { programs: 1, ..summary }),
            (None, left) => Err(format!("{left} allocations are left")),
        }
    }
}

/// Lets each runner go on until it has done so many operations, on a thread of its own.
fn run_round(runners: &mut [Runner<'_>], upto: u64, is_last: bool) -> Result<(), String> {
    let stop = AtomicBool::new(false);
    let stop = &stop;
    let results = std::thread::scope(|scope| {
        let start = |runner| scope.spawn(move || Runner::run_until(runner, upto, is_last, stop));
        let threads: Vec<_> = runners.iter_mut().map(start).collect();
        threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
    });
    results.into_iter().try_for_each(|result| result.map_err(|panic| text_of(&*panic))?)
}

/// What one thread at a time does.
struct Runner<'a> {
    rng: Rng,
    stream: StreamRef,
    device: &'a SimDevice,
    resource: &'a Checked<AnyResource>,
    decay: Option<Decay>,
    unit: u64,
    live: Vec<(DevicePtr, Layout)>,
    summary: Summary,
}

impl<'a> Runner<'a> {
    fn new(
        race: &Race,
        index: u64,
        device: &'a SimDevice,
        resource: &'a Checked<AnyResource>,
        subject: &Subject,
    ) -> Result<Self, String> {
        let stream = device.stream_create(StreamFlags::NON_BLOCKING).map_err(|error| error.to_string())?;
        let rng = Rng::new(race.seed ^ (index << 40));
        // Together the threads want about twice what there is.
        let unit = (race.capacity_bytes / race.threads / 8).min(subject.largest_bytes / 4).max(1);
        let (live, summary) = (Vec::new(), Summary::default());
        Ok(Self { rng, stream, device, resource, decay: subject.decay, unit, live, summary })
    }

    fn run_until(&mut self, upto: u64, is_last: bool, stop: &AtomicBool) -> Result<(), String> {
        let (result, misuses) = misuse_recorder::record(|| self.run(upto, is_last, stop));
        if result.is_err() || !misuses.is_empty() {
            stop.store(true, Ordering::Relaxed);
        }
        match misuses.first() {
            Some(misuse) => Err(misuse.to_string()),
            None => result,
        }
    }

    fn run(&mut self, upto: u64, is_last: bool, stop: &AtomicBool) -> Result<(), String> {
        let stream = self.stream;
        while self.summary.operations < upto && !stop.load(Ordering::Relaxed) {
            self.summary.operations += 1;
            if let Some(decay) = self.decay
                && self.rng.percent(2)
            {
                self.device.advance(1_000_000_000);
                let now = Duration::from_nanos(self.device.virtual_time_ns());
                decay(self.resource.inner(), now).map_err(|error| error.to_string())?;
            }
            if self.live.len() < 8 && self.rng.percent(60) {
                self.allocate(stream)?;
            } else {
                self.free_one(stream);
            }
            if let Some(violation) = self.device.take_violations().first() {
                return Err(violation.to_string());
            }
        }
        if !is_last {
            return Ok(());
        }
        while !self.live.is_empty() {
            self.free_one(stream);
        }
        // SAFETY: nobody else knows the stream, and this thread is done with it.
        unsafe { self.device.stream_destroy(stream) }.map_err(|error| error.to_string())
    }

    fn allocate(&mut self, stream: StreamRef) -> Result<(), String> {
        let layout = Layout::new(self.unit * self.rng.between(1, 4));
        match self.resource.allocate(layout, stream) {
            Ok(ptr) => {
                let tag = ptr.address() ^ stream.id().get();
                self.device.launch(stream, &[Access::write(ptr, layout.bytes(), tag)]);
                self.device.launch(stream, &[Access::check(ptr, layout.bytes(), tag)]);
                self.live.push((ptr, layout));
                self.summary.allocations += 1;
                Ok(())
            }
            Err(error) if error.is_out_of_memory() => {
                self.summary.out_of_memory += 1;
                self.free_one(stream);
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn free_one(&mut self, stream: StreamRef) {
        if self.live.is_empty() {
            return;
        }
        let (ptr, layout) = self.live.swap_remove(self.rng.below(self.live.len() as u64) as usize);
        // SAFETY: the block came from this resource with this layout, is given back once, and was used on
        // this stream only.
        unsafe { self.resource.deallocate(ptr, layout, stream) }
    }
}
