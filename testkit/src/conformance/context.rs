//! The device, the resource and the streams that a body uses.

use std::ops::Deref;
use std::sync::Arc;

use millpond_core::driver::{
    DriverResult, Event, EventFlags, HostPtr, MemAllocationType, MemLocation, StreamFlags,
};
use millpond_core::{
    Accessibility, AnyResource, DeviceMemoryResource, DevicePtr, Driver, DriverHandle, Layout, StreamRef,
};
use millpond_driver::sim::{Access, Schedule, SimConfig, SimDevice, ViolationKind};

use super::Subject;
use crate::Checked;

/// The argument of a body: the subject and a device.
pub(super) struct Context<'a> {
    pub(super) subject: &'a Subject,
    pub(super) driver: DriverHandle,
    pub(super) sim: Option<Arc<SimDevice>>,
    used_at_start: Option<u64>,
}

impl<'a> Context<'a> {
    pub(super) fn on_sim(subject: &'a Subject) -> Self {
        Self::on_sim_of(subject, subject.device_bytes)
    }

    /// Another simulated device, whose state at the end is not checked; `None` if the body runs on a given
    /// driver.
    pub(super) fn apart(&self, bytes: u64) -> Option<(Self, Arc<SimDevice>)> {
        self.sim.as_ref()?;
        let context = Self::on_sim_of(self.subject, bytes);
        let device = context.sim.clone()?;
        Some((context, device))
    }

    fn on_sim_of(subject: &'a Subject, bytes: u64) -> Self {
        let config = SimConfig::with_capacity(bytes).seed(1).schedule(Schedule::Seeded(1));
        let device = SimDevice::new(config);
        Self { subject, driver: Arc::clone(&device) as DriverHandle, sim: Some(device), used_at_start: None }
    }

    pub(super) fn on_driver(subject: &'a Subject, driver: &DriverHandle) -> Self {
        let context = Self { subject, driver: Arc::clone(driver), sim: None, used_at_start: None };
        Self { used_at_start: context.used_bytes(), ..context }
    }

    /// Builds the subject with the checks on top.
    pub(super) fn build(&self) -> Tested {
        let resource = self.subject.build(&self.driver);
        let resource = resource.unwrap_or_else(|error| panic!("cannot build the resource: {error}"));
        Tested { resource: Checked::new(resource, self.sim.clone()) }
    }

    /// Creates the body's own stream, independent of the legacy default stream.
    pub(super) fn stream(&self) -> OwnStream {
        self.stream_with(StreamFlags::NON_BLOCKING)
    }

    pub(super) fn stream_with(&self, flags: StreamFlags) -> OwnStream {
        let stream = self.driver.stream_create(flags);
        let stream = stream.unwrap_or_else(|error| panic!("cannot create a stream: {error}"));
        OwnStream { stream, driver: Arc::clone(&self.driver) }
    }

    /// Orders the next work of `after` after all present work of `before`.
    pub(super) fn order(&self, before: StreamRef, after: StreamRef) {
        let event = OwnEvent::new(&self.driver);
        event.record(before);
        event.make_wait(after);
    }

    /// On the simulated device, writes a tag into a block and checks it. If the device cannot reach the
    /// memory, the host writes to the whole block.
    pub(super) fn touch(&self, block: Block, stream: StreamRef) {
        if block.is_on_host() {
            return block.fill_on_host(stream.id().get() as u8);
        }
        let Some(sim) = &self.sim else { return };
        let (bytes, tag) = (block.layout.bytes(), block.ptr.address() ^ stream.id().get());
        sim.launch(stream, &[Access::write(block.ptr, bytes, tag)]);
        sim.launch(stream, &[Access::check(block.ptr, bytes, tag)]);
    }

    /// The size to request: `bytes`, or the subject's maximum if that is less.
    pub(super) fn clip(&self, bytes: u64) -> u64 {
        bytes.min(self.subject.largest_bytes)
    }

    /// The bytes of the device that are in use; `None` if other programs may use the device.
    pub(super) fn used_bytes(&self) -> Option<u64> {
        match &self.sim {
            Some(sim) => Some(sim.live_bytes()),
            None if self.subject.is_alone => {
                let memory = self.driver.mem_get_info().unwrap_or_else(|error| panic!("{error}"));
                Some(memory.total - memory.free)
            }
            None => None,
        }
    }

    /// Checks that no memory is left and, on the simulated device, that no rule was broken.
    pub(super) fn check_at_end(&self) {
        let Some(sim) = &self.sim else {
            return assert_eq!(self.used_bytes(), self.used_at_start, "bytes of the device at the end");
        };
        if let Some(violation) = sim.take_violations().first() {
            panic!("{violation}{}", remedy(violation.kind));
        }
        if self.subject.shares_pools {
            trim_default_pools(sim).unwrap_or_else(|error| panic!("{error}"));
        }
        assert_eq!(
            (sim.live_bytes(), sim.live_allocations()),
            (0, 0),
            "bytes and allocations left at the end"
        );
        assert_eq!((sim.live_events(), sim.live_streams()), (0, 0), "events and streams left at the end");
    }
}

/// The remedy for a broken rule, if a layer's author usually needs one.
fn remedy(kind: ViolationKind) -> &'static str {
    match kind {
        ViolationKind::StreamOrder | ViolationKind::TagMismatch => {
            ". A layer submits its work to the stream of the call, before it passes a freed block on, and \
             returns `true` from `is_stream_ordered`. A resource makes a stream wait for earlier uses of a \
             block"
        }
        _ => "",
    }
}

/// Makes the driver's default pools return their free memory.
fn trim_default_pools(sim: &SimDevice) -> DriverResult<()> {
    sim.synchronize()?;
    let managed = sim.mem_get_default_mem_pool(MemLocation::Device, MemAllocationType::Managed)?;
    [sim.device_get_default_mem_pool()?, managed]
        .into_iter()
        .try_for_each(|pool| sim.mem_pool_trim_to(pool, 0))
}

/// A block that a body uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) ptr: DevicePtr,
    pub(super) layout: Layout,
    pub(super) stream: StreamRef,
    pub(super) reach: Accessibility,
}

impl Block {
    /// Whether only the host can reach the block.
    pub(super) fn is_on_host(&self) -> bool {
        !self.reach.device
    }

    /// Writes the first bytes of a block that the host can reach.
    pub(super) fn write_on_host(&self, data: &[u8]) {
        // SAFETY: the block is live and holds the bytes; bodies use it on one thread at a time.
        unsafe { self.on_host().copy_from_nonoverlapping(data.as_ptr(), data.len()) }
    }

    /// Writes to every byte of a block that the host can reach.
    fn fill_on_host(&self, value: u8) {
        // SAFETY: as in `write_on_host`.
        unsafe { self.on_host().write_bytes(value, self.layout.bytes() as usize) }
    }

    /// Reads `data.len()` bytes from `offset` of a block that the host can reach.
    pub(super) fn read_on_host(&self, offset: u64, data: &mut [u8]) {
        // SAFETY: as in `write_on_host`.
        unsafe { self.on_host().add(offset as usize).copy_to_nonoverlapping(data.as_mut_ptr(), data.len()) }
    }

    fn on_host(&self) -> *mut u8 {
        HostPtr(self.ptr.address() as usize).as_mut_ptr()
    }
}

/// The resource under test, with checks on top. Dropping it evaluates the checks.
pub(super) struct Tested {
    resource: Checked<AnyResource>,
}

impl Tested {
    /// Allocates a block; panics on an error.
    pub(super) fn get(&self, bytes: u64, stream: StreamRef) -> Block {
        self.get_layout(Layout::new(bytes), stream)
    }

    pub(super) fn get_layout(&self, layout: Layout, stream: StreamRef) -> Block {
        match self.resource.allocate(layout, stream) {
            Ok(ptr) => self.block(ptr, layout, stream),
            Err(error) => panic!("cannot allocate {layout:?}: {error}"),
        }
    }

    /// A block that the body itself allocated.
    pub(super) fn block(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) -> Block {
        Block { ptr, layout, stream, reach: self.resource.accessibility() }
    }

    /// Frees a block on the stream that it was allocated for.
    pub(super) fn put(&self, block: Block) {
        self.put_on(block, block.stream);
    }

    /// Frees a block. The body must first order `stream` after all uses of the block.
    pub(super) fn put_on(&self, block: Block, stream: StreamRef) {
        // SAFETY: bodies pass each block from `get` once, ordered as the contract requires.
        unsafe { self.resource.deallocate(block.ptr, block.layout, stream) }
    }
}

impl Deref for Tested {
    type Target = Checked<AnyResource>;

    fn deref(&self) -> &Self::Target {
        &self.resource
    }
}

impl Drop for Tested {
    fn drop(&mut self) {
        if let Some(fault) = self.resource.take_faults().first().filter(|_| !std::thread::panicking()) {
            panic!("{fault}");
        }
    }
}

/// A stream that its drop destroys.
pub(super) struct OwnStream {
    stream: StreamRef,
    driver: DriverHandle,
}

impl Deref for OwnStream {
    type Target = StreamRef;

    fn deref(&self) -> &StreamRef {
        &self.stream
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        // SAFETY: this value owns the stream, and bodies do not use it after the drop.
        let result = unsafe { self.driver.stream_destroy(self.stream) };
        // A body that tests errors may have poisoned the device.
        drop(result);
    }
}

/// An event that its drop destroys.
pub(super) struct OwnEvent {
    event: Event,
    driver: DriverHandle,
}

impl OwnEvent {
    pub(super) fn new(driver: &DriverHandle) -> Self {
        let event = driver.event_create(EventFlags::default());
        let event = event.unwrap_or_else(|error| panic!("cannot create an event: {error}"));
        Self { event, driver: Arc::clone(driver) }
    }

    pub(super) fn record(&self, stream: StreamRef) {
        let recorded = self.driver.event_record(self.event, stream);
        recorded.unwrap_or_else(|error| panic!("cannot record the event: {error}"));
    }

    pub(super) fn make_wait(&self, stream: StreamRef) {
        let waiting = self.driver.stream_wait_event(stream, self.event);
        waiting.unwrap_or_else(|error| panic!("cannot make the stream wait: {error}"));
    }
}

impl Drop for OwnEvent {
    fn drop(&mut self) {
        // SAFETY: this value owns the event; submitted waits keep their meaning.
        drop(unsafe { self.driver.event_destroy(self.event) });
    }
}
