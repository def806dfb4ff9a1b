//! Runs operations against a resource on a simulated device, as a careful caller would.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use millpond_core::driver::{CaptureModeGuard, StreamFlags};
use millpond_core::{
    ALLOCATION_ALIGNMENT, Accessibility, DeviceMemoryResource, DevicePtr, Driver, DriverHandle, ErrorKind,
    Layout, StreamRef,
};
use millpond_driver::sim::{Access, FaultPlan, Schedule, SimConfig, SimDevice, SimMachine};
use parking_lot::Mutex;

use super::broken::{Broken, Checks, unexpected};
use super::execution::{Ending, Execution, Live, StreamState, Uses};
use super::op::{Block, Event, Op, Stream};
use super::session::Session;
use super::{Build, Config, Failure, FailureKind, Summary, oracle};
use crate::guest::{self, Guest};
use crate::{misuse_recorder, text_of, watch};

/// Builds the resource on each fresh device, runs `body` and checks the end. A panic is a failure too.
pub(super) fn guarded(
    seed: u64,
    config: &Config,
    build: &Build<'_>,
    body: impl FnOnce(&mut Session) -> Checks,
) -> Result<Summary, Box<Failure>> {
    let done = Arc::new(Mutex::new(Vec::new()));
    let _watched = watch::program(seed, &config.subject);
    let _listening = config.guests.then(guest::listen);
    let run = AssertUnwindSafe(|| run(seed, config, build, body, &done));
    let (result, misuses) = misuse_recorder::record(|| catch_unwind(run));
    let result = match (result, misuses.first()) {
        (Err(panic), _) => Err(Broken::new(FailureKind::Panic, text_of(&*panic))),
        (Ok(Ok(_)), Some(misuse)) => Err(Broken::new(FailureKind::Misuse, misuse)),
        (Ok(result), _) => result,
    };
    result.map_err(|Broken { kind, message }| {
        let operations = std::mem::take(&mut *done.lock());
        Box::new(Failure {
            kind,
            message,
            seed,
            schedule: seed,
            operations_found: operations.len(),
            operations,
            subject: config.subject.clone(),
            command: config.command.clone(),
        })
    })
}

fn run(
    seed: u64,
    config: &Config,
    build: &Build<'_>,
    body: impl FnOnce(&mut Session) -> Checks,
    done: &Arc<Mutex<Vec<Op>>>,
) -> Result<Summary, Broken> {
    let sim = SimConfig::with_capacity(config.capacity_bytes).seed(seed).schedule(Schedule::Seeded(seed));
    let devices: Vec<Arc<SimDevice>> = if config.devices > 1 {
        let machine = SimMachine::new();
        (0..config.devices).map(|_| machine.add_device(sim.clone())).collect()
    } else {
        vec![SimDevice::new(sim)]
    };
    let shape = Arc::new(config.clone());
    let mut executions = Vec::new();
    for (device, number) in devices.iter().zip(0..) {
        let driver: DriverHandle = Arc::clone(device) as DriverHandle;
        let resource = build(&driver).map_err(|error| Broken::new(FailureKind::Build, error))?;
        let mut execution =
            Execution::new(Arc::clone(&shape), number, Arc::clone(device), resource, Arc::clone(done));
        if config.guests {
            let stream = device.stream_create(StreamFlags::NON_BLOCKING).map_err(unexpected)?;
            let resource = Arc::clone(&execution.resource);
            let largest = config.largest_bytes;
            execution.guest = Some(Guest::new(Arc::clone(device), resource, stream, largest, seed));
        }
        executions.push(execution);
    }
    let mut session = Session::new(executions);
    body(&mut session).inspect_err(|_| session.end_captures())?;
    let executions = session.finish()?;
    let mut total = Summary { programs: 1, ..Summary::default() };
    for execution in executions {
        total += execution.end()?;
    }
    Ok(total)
}

impl Execution {
    /// Carries an operation out, or skips it if a careful caller would not do it now. Then checks every
    /// oracle.
    pub(super) fn step(&mut self, op: Op) -> Checks {
        if !self.is_legal(op) {
            return Ok(());
        }
        watch::step();
        let _guest = self.guest.as_ref().map(|guest| {
            guest.keep_to_own_stream(!self.captures.live.is_empty());
            guest.enter()
        });
        self.done.lock().push(op);
        self.summary.operations += 1;
        self.summary.on_other_devices += u64::from(self.number > 0);
        self.summary.on_other_threads += u64::from(self.thread > 0);
        let result = self.carry_out(op);
        // A violation on the device explains an error that follows from it, so it is reported first.
        oracle::after_call(self)?;
        result?;
        if self.ending.is_some() {
            return Ok(());
        }
        oracle::after_step(self)
    }

    /// Drops the resource and checks the device afterwards.
    fn end(self) -> Result<Summary, Broken> {
        let Self { config, device, resource, summary, ending, guest, scopes, mut streams, .. } = self;
        drop((guest, scopes));
        let calls = device.driver_calls();
        drop(resource);
        if config.habits.ends_before_streams {
            destroy_streams(&device, &mut streams)?;
        }
        match ending {
            None | Some(Ending::Reset) => oracle::nothing_left(&device, config.habits)?,
            Some(Ending::Lost) if device.driver_calls() != calls => {
                let made = device.driver_calls() - calls;
                let text = format!("{made} driver calls when a resource of a lost device is dropped");
                return Err(Broken::new(FailureKind::Outlived, text));
            }
            Some(Ending::Lost | Ending::Unnoticed) => oracle::no_violation(&device, config.habits)?,
        }
        Ok(summary)
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
                Err(error) => Err(unexpected(error)),
            },
            Op::PassTime { ms } => {
                self.device.advance(ms * 1_000_000);
                let now = Duration::from_nanos(self.device.virtual_time_ns());
                let _watch = watch::call("decay");
                let decay = self.config.decay.map_or(Ok(()), |decay| decay(self.resource.inner(), now));
                decay.map_err(unexpected)
            }
            Op::BeginCapture { stream, mode } => self.begin_capture(stream, mode),
            Op::EndCapture { stream } => self.end_capture(stream),
            Op::OpenScope { scope, stream } => self.open_scope(scope, stream),
            Op::CloseScope { stream } => {
                self.close_scope(stream);
                Ok(())
            }
            Op::DropScope { scope } => {
                self.drop_scope(scope);
                Ok(())
            }
            Op::LaunchGraph { back, stream } => self.launch_graph(back, stream),
            Op::Misuse { block, stream, mistake } => self.misuse(block, stream, mistake),
            Op::ResetContext => self.reset_context(),
            Op::LoseDevice => self.lose_device(),
            _ => self.order_op(op),
        }
    }

    fn allocate(&mut self, block: Block, stream: Stream, bytes: u64, alignment: u64) -> Checks {
        let handle = self.stream(stream)?;
        let layout = Layout::with_alignment(bytes, alignment).map_err(unexpected)?;
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
                oracle::has_report(self, &error)?;
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
        let (scope, born) = (self.scope_of(stream), self.captures.of(stream));
        let mut uses = Uses::default();
        if born.is_some() {
            // Work outside the capture comes after the stream's clock there.
            uses.all.join(self.order.outside(stream));
            uses.written = uses.all.clone();
        }
        let (captured, position) = (Vec::new(), self.live.len());
        let (tag, is_known) = (0, false);
        let mut live = Live { ptr, layout, stream, tag, is_known, uses, captured, born, position, scope };
        live.uses_mut(born).note(self.order.submit(stream), true);
        if let Some(scope) = scope {
            self.scopes.work_mut(scope).all.join(&live.uses.all);
        }
        self.live.push(block);
        self.blocks.insert(block, live);
        self.write(block, stream)
    }

    fn write(&mut self, block: Block, stream: Stream) -> Checks {
        let handle = self.stream(stream)?;
        let reach = self.resource.accessibility();
        let (point, capture) = (self.order.submit(stream), self.captures.of(stream));
        let Some(live) = self.blocks.get_mut(&block) else { return Ok(()) };
        live.uses_mut(capture).note(point, true);
        if capture.is_none() {
            live.tag += 1;
            live.is_known = true;
        }
        let tag = u64::from(block) << 32 | live.tag;
        launch(&self.device, handle, live, reach, |ptr, bytes| match capture {
            None => Access::write(ptr, bytes, tag),
            // Captured work changes no bytes.
            Some(_) => Access::read(ptr, bytes),
        });
        self.note_use(block, stream, point, true);
        Ok(())
    }

    fn read(&mut self, block: Block, stream: Stream) -> Checks {
        let handle = self.stream(stream)?;
        let reach = self.resource.accessibility();
        let (point, capture) = (self.order.submit(stream), self.captures.of(stream));
        let Some(live) = self.blocks.get_mut(&block) else { return Ok(()) };
        live.uses_mut(capture).note(point, false);
        let is_checked = capture.is_none() && live.is_known;
        let tag = u64::from(block) << 32 | live.tag;
        launch(&self.device, handle, live, reach, |ptr, bytes| match is_checked {
            true => Access::check(ptr, bytes, tag),
            false => Access::read(ptr, bytes),
        });
        self.note_use(block, stream, point, false);
        Ok(())
    }

    pub(super) fn deallocate(&mut self, block: Block, stream: Stream) -> Checks {
        self.read(block, stream)?;
        let handle = self.stream(stream)?;
        if let Some(capture) = self.captures.of(stream) {
            self.note_captured_free(capture, block, stream);
        }
        let Some(live) = self.blocks.remove(&block) else { return Ok(()) };
        self.live.swap_remove(live.position);
        if let Some(moved) = self.live.get(live.position).and_then(|moved| self.blocks.get_mut(moved)) {
            moved.position = live.position;
        }
        self.summary.cross_stream_frees += u64::from(stream != live.stream);
        // SAFETY: the block came from this resource with this layout and was just removed from the live ones.
        // All its uses are ordered before the stream's next work; otherwise the operation would be illegal.
        unsafe { self.resource.deallocate(live.ptr, live.layout, handle) };
        Ok(())
    }

    pub(super) fn record(&mut self, event: Event, stream: Stream) -> Checks {
        let (stream_handle, event_handle) = (self.stream(stream)?, self.event(event).map_err(unexpected)?);
        self.device.event_record(event_handle, stream_handle).map_err(unexpected)?;
        self.order.record(event, stream);
        self.captures.note_record(event, stream);
        Ok(())
    }

    pub(super) fn wait(&mut self, stream: Stream, event: Event) -> Checks {
        let (stream_handle, event_handle) = (self.stream(stream)?, self.event(event).map_err(unexpected)?);
        self.device.stream_wait_event(stream_handle, event_handle).map_err(unexpected)?;
        if self.captures.note_wait(stream, event) {
            self.order.join_capture(stream);
        }
        self.order.wait(stream, event);
        Ok(())
    }

    /// Carries out the operations that only affect order. The caller's own calls leave captures alone.
    fn order_op(&mut self, op: Op) -> Checks {
        let device = Arc::clone(&self.device);
        let _captures = (!self.captures.live.is_empty()).then(|| CaptureModeGuard::relaxed(&*device));
        match op {
            Op::Record { event, stream } => self.record(event, stream)?,
            Op::Wait { stream, event } => self.wait(stream, event)?,
            Op::QueryEvent { event } => {
                let handle = self.event(event).map_err(unexpected)?;
                if self.device.event_query(handle).map_err(unexpected)? {
                    self.order.host_saw_event(event);
                }
            }
            Op::SyncEvent { event } => {
                let handle = self.event(event).map_err(unexpected)?;
                self.device.event_synchronize(handle).map_err(unexpected)?;
                self.order.host_saw_event(event);
            }
            Op::SyncStream { stream } => {
                let handle = self.stream(stream)?;
                self.device.stream_synchronize(handle).map_err(unexpected)?;
                self.order.host_saw_stream(stream);
            }
            Op::SyncDevice => {
                self.device.synchronize().map_err(unexpected)?;
                self.order.host_saw_device();
            }
            Op::DestroyStream { stream } => {
                let handle = self.stream(stream)?;
                // SAFETY: the program never names the stream again.
                unsafe { self.device.stream_destroy(handle) }.map_err(unexpected)?;
                self.streams[usize::from(stream)] = StreamState::Dead;
                self.summary.streams_destroyed += 1;
            }
            // Other functions carry out the rest.
            _ => {}
        }
        Ok(())
    }

    /// Waits for the device, frees every block, and runs the oracles again.
    pub(super) fn finish(&mut self) -> Checks {
        self.summary.guest_calls = self.guest.as_ref().map_or(0, |guest| guest.calls());
        if self.ending.is_some() {
            return self.finish_early();
        }
        let _guest = self.guest.as_ref().map(Guest::enter);
        self.device.synchronize().map_err(unexpected)?;
        self.order.host_saw_device();
        while let Some(&block) = self.live.last() {
            self.deallocate(block, self.last_stream(block))?;
        }
        self.scopes.clear();
        if let Some(guest) = self.guest.take() {
            guest.leave();
            guest.free_all();
            // SAFETY: the guest does nothing any more.
            unsafe { self.device.stream_destroy(guest.stream()) }.map_err(unexpected)?;
        }
        oracle::at_end(self)?;
        if !self.config.habits.ends_before_streams {
            destroy_streams(&self.device, &mut self.streams)?;
        }
        for handle in self.events.iter_mut().filter_map(Option::take) {
            // SAFETY: the program has ended, and the event is not named again.
            unsafe { self.device.event_destroy(handle) }.map_err(unexpected)?;
        }
        Ok(())
    }
}

/// Destroys the streams that a program created and did not destroy.
fn destroy_streams(device: &SimDevice, streams: &mut Vec<StreamState>) -> Checks {
    let mut alive = std::mem::take(streams).into_iter().filter_map(|state| match state {
        StreamState::Alive(stream) if stream.handle() > StreamRef::PER_THREAD.handle() => Some(stream),
        _ => None,
    });
    // SAFETY: the program has ended, and the streams are not named again.
    alive.try_for_each(|stream| unsafe { device.stream_destroy(stream) }).map_err(unexpected)
}

/// Touches a whole block on a stream, if the device can reach it.
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
