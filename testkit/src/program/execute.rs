//! Runs operations against a resource on a simulated device, as a careful caller would.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use millpond_core::{
    ALLOCATION_ALIGNMENT, Accessibility, DeviceMemoryResource, DevicePtr, Driver, DriverHandle, ErrorKind,
    Layout, StreamRef,
};
use millpond_driver::sim::{Access, FaultPlan, Schedule, SimConfig, SimDevice};

use super::broken::{Broken, Checks};
use super::execution::{Execution, Live, StreamState};
use super::op::{Block, Op, Stream};
use super::order::Clock;
use super::{Build, Config, Failure, FailureKind, Summary, oracle};
use crate::{misuse_recorder, text_of};

/// Builds the resource on a fresh device, runs `body`, and checks the end; a panic is a failure too.
pub(super) fn guarded(
    seed: u64,
    config: &Config,
    build: &Build<'_>,
    body: impl FnOnce(&mut Execution<'_>) -> Checks,
) -> Result<Summary, Box<Failure>> {
    let mut done = Vec::new();
    let run = AssertUnwindSafe(|| run(seed, config, build, body, &mut done));
    let (result, misuses) = misuse_recorder::record(|| catch_unwind(run));
    let result = match (result, misuses.first()) {
        (Err(panic), _) => Err(Broken::new(FailureKind::Panic, text_of(&*panic))),
        (Ok(Ok(_)), Some(misuse)) => Err(Broken::new(FailureKind::Misuse, misuse)),
        (Ok(result), _) => result,
    };
    result.map_err(|Broken { kind, message }| {
        Box::new(Failure {
            kind,
            message,
            seed,
            schedule: seed,
            operations_found: done.len(),
            operations: done,
            subject: config.subject.clone(),
            command: config.command.clone(),
        })
    })
}

fn run(
    seed: u64,
    config: &Config,
    build: &Build<'_>,
    body: impl FnOnce(&mut Execution<'_>) -> Checks,
    done: &mut Vec<Op>,
) -> Result<Summary, Broken> {
    let sim = SimConfig::with_capacity(config.capacity_bytes).seed(seed).schedule(Schedule::Seeded(seed));
    let device = SimDevice::new(sim);
    let driver: DriverHandle = Arc::clone(&device) as DriverHandle;
    let resource = build(&driver).map_err(|error| Broken::new(FailureKind::Build, error))?;
    let mut execution = Execution::new(config, Arc::clone(&device), resource, done);
    let result = body(&mut execution).and_then(|()| execution.finish());
    let Execution { resource, summary, .. } = execution;
    result?;
    drop(resource);
    oracle::nothing_left(&device)?;
    Ok(Summary { programs: 1, ..summary })
}

impl Execution<'_> {
    /// Carries an operation out, or skips it if a careful caller would not do it now; then looks at every
    /// oracle.
    pub(super) fn step(&mut self, op: Op) -> Checks {
        if !self.is_legal(op) {
            return Ok(());
        }
        self.done.push(op);
        self.summary.operations += 1;
        let result = self.carry_out(op);
        // What the device saw explains an error that followed from it.
        oracle::after_call(self)?;
        result?;
        oracle::after_step(self)
    }

    fn carry_out(&mut self, op: Op) -> Checks {
        match op {
            Op::Allocate { block, stream, bytes, alignment } => {
                self.allocate(block, stream, bytes, alignment)
            }
            Op::Deallocate { block, stream } => self.deallocate(block, stream),
            Op::Read { block, stream } => self.read(block, stream),
            Op::Write { block, stream } => self.write(block, stream),
            Op::FailCall { kind, nth, code } => {
                self.fault = Some(FaultPlan::nth_of(kind, nth.into(), code));
                Ok(())
            }
            Op::Trim { keep_bytes } => match self.resource.trim(keep_bytes) {
                Ok(_) => Ok(()),
                Err(error) => Err(Broken::new(FailureKind::UnexpectedError, error)),
            },
            Op::PassTime { ms } => {
                self.device.advance(ms * 1_000_000);
                let now = Duration::from_nanos(self.device.virtual_time_ns());
                let decay = self.config.decay.map_or(Ok(()), |decay| decay(self.resource.inner(), now));
                decay.map_err(|error| Broken::new(FailureKind::UnexpectedError, error))
            }
            _ => self.order_op(op).map_err(|error| Broken::new(FailureKind::UnexpectedError, error)),
        }
    }

    fn allocate(&mut self, block: Block, stream: Stream, bytes: u64, alignment: u64) -> Checks {
        let handle = self.stream(stream)?;
        let layout = Layout::with_alignment(bytes, alignment)
            .map_err(|error| Broken::new(FailureKind::UnexpectedError, error))?;
        self.next_block = block + 1;
        let fault = self.fault.take();
        let may_fail = fault.is_some();
        if let Some(fault) = fault {
            self.device.set_faults(fault);
            self.summary.faults += 1;
        }
        let result = self.resource.allocate(layout, handle);
        if may_fail {
            self.device.set_faults(FaultPlan::none());
        }
        let ptr = match result {
            Ok(ptr) => ptr,
            // The driver call failed, so the request may fail with any error.
            Err(_) if may_fail => return Ok(()),
            Err(error) if error.is_out_of_memory() => {
                self.summary.out_of_memory += 1;
                return oracle::out_of_memory_is_true(self, block, layout, handle);
            }
            Err(error)
                if layout.alignment() > ALLOCATION_ALIGNMENT
                    && matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::InvalidArgument) =>
            {
                self.summary.refused_alignments += 1;
                return Ok(());
            }
            Err(error) => return Err(Broken::new(FailureKind::UnexpectedError, error)),
        };
        self.summary.allocations += 1;
        let mut used = Clock::default();
        used.add(self.order.submit(stream));
        let written = used.clone();
        let live = Live { ptr, layout, stream, tag: 0, written, used, position: self.live.len() };
        self.live.push(block);
        self.blocks.insert(block, live);
        self.write(block, stream)
    }

    fn write(&mut self, block: Block, stream: Stream) -> Checks {
        let handle = self.stream(stream)?;
        let reach = self.resource.accessibility();
        let point = self.order.submit(stream);
        let Some(live) = self.blocks.get_mut(&block) else { return Ok(()) };
        live.tag += 1;
        live.used.add(point);
        live.written = live.used.clone();
        let tag = u64::from(block) << 32 | live.tag;
        launch(&self.device, handle, live, reach, |ptr, bytes| Access::write(ptr, bytes, tag));
        Ok(())
    }

    fn read(&mut self, block: Block, stream: Stream) -> Checks {
        let handle = self.stream(stream)?;
        let reach = self.resource.accessibility();
        let point = self.order.submit(stream);
        let Some(live) = self.blocks.get_mut(&block) else { return Ok(()) };
        live.used.add(point);
        let tag = u64::from(block) << 32 | live.tag;
        launch(&self.device, handle, live, reach, |ptr, bytes| Access::check(ptr, bytes, tag));
        Ok(())
    }

    fn deallocate(&mut self, block: Block, stream: Stream) -> Checks {
        self.read(block, stream)?;
        let handle = self.stream(stream)?;
        let Some(live) = self.blocks.remove(&block) else { return Ok(()) };
        self.live.swap_remove(live.position);
        if let Some(moved) = self.live.get(live.position).and_then(|moved| self.blocks.get_mut(moved)) {
            moved.position = live.position;
        }
        self.summary.cross_stream_frees += u64::from(stream != live.stream);
        // SAFETY: the block came from this resource with this layout and was just taken out of the live
        // ones; all its uses are ordered before the stream's next work, or the operation were not legal.
        unsafe { self.resource.deallocate(live.ptr, live.layout, handle) };
        Ok(())
    }

    /// The operations that are about order only.
    fn order_op(&mut self, op: Op) -> Result<(), Box<dyn std::error::Error>> {
        let broken = |broken: Broken| broken.message;
        match op {
            Op::Record { event, stream } => {
                let (stream_handle, event_handle) =
                    (self.stream(stream).map_err(broken)?, self.event(event)?);
                self.device.event_record(event_handle, stream_handle)?;
                self.order.record(event, stream);
            }
            Op::Wait { stream, event } => {
                let (stream_handle, event_handle) =
                    (self.stream(stream).map_err(broken)?, self.event(event)?);
                self.device.stream_wait_event(stream_handle, event_handle)?;
                self.order.wait(stream, event);
            }
            Op::QueryEvent { event } => {
                let handle = self.event(event)?;
                if self.device.event_query(handle)? {
                    self.order.host_saw_event(event);
                }
            }
            Op::SyncEvent { event } => {
                let handle = self.event(event)?;
                self.device.event_synchronize(handle)?;
                self.order.host_saw_event(event);
            }
            Op::SyncStream { stream } => {
                let handle = self.stream(stream).map_err(broken)?;
                self.device.stream_synchronize(handle)?;
                self.order.host_saw_stream(stream);
            }
            Op::SyncDevice => {
                self.device.synchronize()?;
                self.order.host_saw_device();
            }
            Op::DestroyStream { stream } => {
                let handle = self.stream(stream).map_err(broken)?;
                // SAFETY: the program never names the stream again.
                unsafe { self.device.stream_destroy(handle)? };
                self.streams[usize::from(stream)] = StreamState::Dead;
                self.summary.streams_destroyed += 1;
            }
            Op::Allocate { .. }
            | Op::Deallocate { .. }
            | Op::Read { .. }
            | Op::Write { .. }
            | Op::PassTime { .. }
            | Op::FailCall { .. }
            | Op::Trim { .. } => {}
        }
        Ok(())
    }

    /// Waits for the device, frees every block and runs the oracles again.
    fn finish(&mut self) -> Checks {
        let unexpected = |error: millpond_core::DriverError| Broken::new(FailureKind::UnexpectedError, error);
        self.device.synchronize().map_err(unexpected)?;
        self.order.host_saw_device();
        while let Some(&block) = self.live.last() {
            self.deallocate(block, 0)?;
        }
        oracle::at_end(self)?;
        for index in 2..self.streams.len() as Stream {
            if let StreamState::Alive(handle) = self.stream_state(index) {
                // SAFETY: the program has ended, and the stream is not named again.
                unsafe { self.device.stream_destroy(handle) }.map_err(unexpected)?;
            }
        }
        for handle in self.events.iter_mut().filter_map(Option::take) {
            // SAFETY: the program has ended, and the event is not named again.
            unsafe { self.device.event_destroy(handle) }.map_err(unexpected)?;
        }
        Ok(())
    }
}

/// Touches the whole of a block on a stream, if the device reaches it.
fn launch(
    device: &SimDevice,
    stream: StreamRef,
    live: &Live,
    reach: Accessibility,
    access: impl Fn(DevicePtr, u64) -> Access,
) {
    if live.layout.bytes() > 0 && reach.device {
        device.launch(stream, &[access(live.ptr, live.layout.bytes())]);
    }
}
