//! Many threads over one resource on the simulated device, with too little memory.
//!
//! Programs are deterministic, and so never interleave inside a call of the resource. Here each thread has a
//! stream, and all want the same few sizes, so that blocks are taken from other streams while those free and
//! allocate. The oracles are the same; which of them a wrong resource breaks depends on the run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use millpond_core::driver::StreamFlags;
use millpond_core::{AnyResource, DeviceMemoryResource, DevicePtr, Driver, DriverHandle, Layout, StreamRef};
use millpond_driver::sim::{Access, Schedule, SimConfig, SimDevice};

use crate::conformance::Subject;
use crate::program::{StatisticsCheck, Summary};
use crate::{Checked, Rng, misuse_recorder, text_of};

/// How many threads there are and what they do.
#[derive(Clone, Debug)]
pub struct Race {
    /// Threads, each with a stream of its own.
    pub threads: u64,
    /// Operations of each thread.
    pub operations: u64,
    /// The capacity of the device in bytes.
    pub capacity_bytes: u64,
    /// What each thread's choices, and the device's, start from.
    pub seed: u64,
}

impl Race {
    /// Eight threads on a device of 8 MiB.
    pub const fn new(seed: u64, operations: u64) -> Self {
        Self { threads: 8, operations, capacity_bytes: 8 << 20, seed }
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
        let stop = AtomicBool::new(false);
        let mut summary = Summary::default();
        let results = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|index| {
                    let runner = Runner::new(self, index, &device, &resource, subject);
                    scope.spawn(|| runner.run_until(&stop))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
        });
        for result in results {
            summary += result.map_err(|panic| text_of(&*panic))??;
        }
        if let Some(fault) = resource.take_faults().first() {
            return Err(fault.to_string());
        }
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

/// One thread.
struct Runner<'a> {
    rng: Rng,
    operations: u64,
    device: &'a SimDevice,
    resource: &'a Checked<AnyResource>,
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
    ) -> Self {
        let rng = Rng::new(race.seed ^ (index << 40));
        // Together the threads want about twice what there is.
        let unit = (race.capacity_bytes / race.threads / 8).min(subject.largest_bytes / 4).max(1);
        let (live, summary) = (Vec::new(), Summary::default());
        Self { rng, operations: race.operations, device, resource, unit, live, summary }
    }

    fn run_until(mut self, stop: &AtomicBool) -> Result<Summary, String> {
        let (result, misuses) = misuse_recorder::record(|| self.run(stop));
        if result.is_err() || !misuses.is_empty() {
            stop.store(true, Ordering::Relaxed);
        }
        match misuses.first() {
            Some(misuse) => Err(misuse.to_string()),
            None => result.map(|()| self.summary),
        }
    }

    fn run(&mut self, stop: &AtomicBool) -> Result<(), String> {
        let flags = StreamFlags::NON_BLOCKING;
        let stream = self.device.stream_create(flags).map_err(|error| error.to_string())?;
        while self.summary.operations < self.operations && !stop.load(Ordering::Relaxed) {
            self.summary.operations += 1;
            if self.live.len() < 8 && self.rng.percent(60) {
                self.allocate(stream)?;
            } else {
                self.free_one(stream);
            }
            if let Some(violation) = self.device.take_violations().first() {
                return Err(violation.to_string());
            }
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
