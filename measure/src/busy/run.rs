//! The passes of one subject.

use std::panic::{AssertUnwindSafe, catch_unwind};

use millpond_core::driver::{Event, EventFlags};
use millpond_core::stack::LayerTable;
use millpond_core::{DevicePtr, DriverHandle, StreamRef};
use millpond_engine::{Error, Result};

use super::Settings;
use super::allocator::Allocator;
use super::capacity::Reservation;
use super::device::Device;
use super::figures::{PassFigures, SubjectResult};
use super::host::Host;
use super::lanes::Lanes;
use super::plan::{Plan, Step};
use super::subject::Subject;

/// Builds the subject on a fresh device, runs all passes, and drops it.
pub(super) fn subject(
    plan: &Plan,
    subject: &Subject,
    host: Host,
    settings: &Settings,
    table: &LayerTable,
) -> SubjectResult {
    let run = AssertUnwindSafe(|| -> Result<Vec<PassFigures>> {
        let device = Device::open(&settings.device, settings.host_ns)?;
        let mut run = Run::new(plan, subject, host, device, settings, table)?;
        (0..settings.passes).map(|_| run.pass()).collect()
    });
    match catch_unwind(run).unwrap_or_else(|panic| Err(Error::panicked(&*panic))) {
        Ok(passes) => SubjectResult::Ran { passes },
        Err(error) => SubjectResult::Failed { error: error.to_string() },
    }
}

/// A subject during its run. The fields are dropped in this order.
struct Run<'a> {
    plan: &'a Plan,
    host: Host,
    /// The live blocks with their layouts, by slot.
    blocks: Vec<Option<(DevicePtr, Step)>>,
    allocator: Allocator,
    uses: Uses,
    reserved: Option<Reservation>,
    lanes: Lanes,
    device: Device,
    /// The number of failed allocations in this pass.
    failures: u64,
}

impl<'a> Run<'a> {
    fn new(
        plan: &'a Plan,
        subject: &Subject,
        host: Host,
        device: Device,
        settings: &Settings,
        table: &LayerTable,
    ) -> Result<Self> {
        let driver = device.driver().clone();
        let left = settings.capacity.map(|capacity| capacity.bytes(plan.peak_live_bytes()));
        // The order matters: memory that streams use must not count as the subject's memory.
        Ok(Self {
            plan,
            host,
            blocks: vec![None; plan.slots()],
            lanes: Lanes::create(&driver, plan.streams(), host)?,
            reserved: left.map(|left| Reservation::but(left, &driver)).transpose()?,
            failures: 0,
            allocator: Allocator::build(subject, table, &driver)?,
            uses: Uses { events: vec![None; plan.slots()], driver },
            device,
        })
    }

    fn pass(&mut self) -> Result<PassFigures> {
        let plan = self.plan;
        self.allocator.begin_pass()?;
        self.failures = 0;
        let begin = self.device.now_ns();
        for step in plan.steps() {
            if step.allocates() { self.allocate(step)? } else { self.free(step)? }
        }
        let host_ns = self.device.now_ns() - begin;
        self.lanes.synchronize()?;
        let end_ns = self.device.now_ns() - begin;
        let figures = self.allocator.figures()?;
        self.free_the_rest()?;
        self.device.check_order()?;
        Ok(PassFigures { end_ns, host_ns, failures: self.failures, ..figures })
    }

    #[inline]
    fn allocate(&mut self, step: &Step) -> Result<()> {
        self.lanes.before(step.stream)?;
        let stream = self.lanes.stream(step.stream);
        let ptr = match self.allocator.allocate(step.layout(), stream) {
            Err(Error::Stack(error)) if self.reserved.is_some() && error.is_out_of_memory() => {
                self.failures += 1;
                None
            }
            result => result?,
        };
        if let Some(ptr) = ptr {
            self.device.lend(ptr, step.bytes, stream);
            self.blocks[step.slot as usize] = Some((ptr, *step));
        }
        self.device.launch(stream, ptr.map(|ptr| (ptr, step.bytes)), step.kernel_ns)?;
        if !step.stays {
            self.uses.note(step.slot, stream)?;
        }
        self.lanes.after(step.stream, self.host)?;
        if self.host == Host::Sync {
            self.device.waited();
        }
        Ok(())
    }

    #[inline]
    fn free(&mut self, step: &Step) -> Result<()> {
        let stream = self.lanes.stream(step.stream);
        if !step.stays {
            self.uses.order(step.slot, stream)?;
        }
        let Some((ptr, of)) = self.blocks[step.slot as usize].take() else { return Ok(()) };
        self.device.give_back(ptr, of.bytes, stream);
        // SAFETY: the slot held the block, which was allocated with this layout, and no longer holds it. The
        // only kernel on the block was launched on this stream, or this stream waits for the kernel.
        unsafe { self.allocator.free(ptr, of.layout(), stream) }
    }

    /// Frees the blocks that the log leaves live, each on its own stream, and waits for all streams.
    fn free_the_rest(&mut self) -> Result<()> {
        for slot in 0..self.blocks.len() {
            if let Some((_, of)) = self.blocks[slot] {
                self.free(&Step { stays: true, ..of })?;
            }
        }
        self.lanes.synchronize()
    }
}

impl Drop for Run<'_> {
    /// After an error or a panic, blocks are still live and kernels still run.
    fn drop(&mut self) {
        if let Err(error) = self.free_the_rest() {
            tracing::warn!(target: "millpond::replay", %error, "blocks were not freed");
        }
    }
}

/// The kernels on blocks that another stream frees. The other stream has to wait for the kernel, as it did in
/// the program that wrote the log.
struct Uses {
    driver: DriverHandle,
    /// The events of the kernels, by slot.
    events: Vec<Option<Event>>,
}

impl Uses {
    fn note(&mut self, slot: u32, stream: StreamRef) -> Result<()> {
        let event = &mut self.events[slot as usize];
        let event = match event {
            Some(event) => *event,
            None => {
                let new = self.driver.event_create(EventFlags::default());
                *event.insert(new.map_err(millpond_core::Error::from)?)
            }
        };
        Ok(self.driver.event_record(event, stream).map_err(millpond_core::Error::from)?)
    }

    fn order(&self, slot: u32, stream: StreamRef) -> Result<()> {
        let Some(event) = self.events[slot as usize] else { return Ok(()) };
        Ok(self.driver.stream_wait_event(stream, event).map_err(millpond_core::Error::from)?)
    }
}

impl Drop for Uses {
    fn drop(&mut self) {
        for event in self.events.drain(..).flatten() {
            // SAFETY: the event is ours, and nothing names it after this.
            if let Err(error) = unsafe { self.driver.event_destroy(event) } {
                tracing::warn!(target: "millpond::replay", %error, "an event was not destroyed");
            }
        }
    }
}
