//! The devices that an operation runs on.

use std::fmt;
use std::sync::Arc;

use millpond_core::driver::{CaptureMode, StreamFlags};
use millpond_core::{DevicePtr, DriverHandle, Result, StreamRef};
use millpond_driver::CallKind;
use millpond_driver::sim::{Access, FaultPlan, Schedule, SimConfig, SimDevice, SimMachine, Violation};

use super::kind::FaultKind;

const CAPACITY: u64 = 256 << 20;

/// The objects of a device that were created and are not ended yet.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[allow(clippy::exhaustive_structs)] // every device fills it
pub struct Live {
    /// Allocations, pinned and registered memory, reserved addresses, physical memory, open IPC handles, and
    /// pools.
    pub allocations: i64,
    /// Events.
    pub events: i64,
    /// Streams.
    pub streams: i64,
}

/// A device whose driver calls can be made to fail.
///
/// Only the calls of its [`driver`](Self::driver) count as driver calls and fail as planned. The other
/// methods are for tests.
pub trait FaultyDevice: fmt::Debug {
    /// Returns the driver of the device.
    fn driver(&self) -> DriverHandle;

    /// Makes one of the next calls fail: the call with this number, counted from 0. `None` makes no call
    /// fail. Restarts the counts of [`failed_calls`](Self::failed_calls) at 0.
    fn set_fault(&self, fault: Option<(u64, FaultKind)>);

    /// Returns the number of driver calls so far.
    fn calls(&self) -> u64;

    /// Returns how many calls of this kind have failed since [`set_fault`](Self::set_fault).
    fn failed_calls(&self, kind: CallKind) -> u64;

    /// Returns the name of the call that failed as planned, if the device knows it.
    fn failed_name(&self) -> Option<String>;

    /// Returns whether a planned failure lost the device.
    fn is_lost(&self) -> bool;

    /// Returns the number of living objects.
    fn live(&self) -> Live;

    /// Returns the broken rules that the device has found since the last call.
    fn take_violations(&self) -> Vec<Violation>;

    /// Makes the device the calling thread's current one.
    fn make_current(&self);

    /// Launches a kernel on the stream, which reads the memory.
    fn read(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef);

    /// Begins a capture in the global mode on the stream.
    ///
    /// # Errors
    /// The driver's errors.
    fn begin_capture(&self, stream: StreamRef) -> Result<()>;

    /// Ends the capture of the stream, and destroys the graph. A call may have ended the capture before.
    fn end_capture(&self, stream: StreamRef);
}

/// One device, or two of one machine that can access each other's memory, and their streams.
#[derive(Clone, Debug)]
pub struct Stage {
    devices: Vec<Arc<dyn FaultyDevice>>,
    streams: [StreamRef; 2],
    on_peer: Option<StreamRef>,
    /// The living objects of each device when the stage was new.
    at_first: Vec<Live>,
}

impl Stage {
    /// Creates two streams on the first device, and one on the second.
    ///
    /// # Errors
    /// The error of the driver that cannot create a stream.
    ///
    /// # Panics
    /// If there is no device.
    pub fn new(devices: Vec<Arc<dyn FaultyDevice>>) -> Result<Self> {
        let stream =
            |device: &Arc<dyn FaultyDevice>| device.driver().stream_create(StreamFlags::NON_BLOCKING);
        let streams = [stream(&devices[0])?, stream(&devices[0])?];
        let on_peer = devices.get(1).map(stream).transpose()?;
        let at_first = devices.iter().map(|device| device.live()).collect();
        Ok(Self { devices, streams, on_peer, at_first })
    }

    /// Creates two fresh simulated devices.
    ///
    /// # Panics
    /// If a device cannot create a stream.
    pub fn simulated() -> Self {
        let machine = SimMachine::new();
        let config = || SimConfig::with_capacity(CAPACITY).schedule(Schedule::Seeded(7));
        let devices = [(); 2].map(|()| Arc::new(machine.add_device(config())) as Arc<dyn FaultyDevice>);
        Self::new(devices.into()).unwrap_or_else(|error| panic!("cannot create a stream: {error}"))
    }

    /// Returns the device.
    pub fn device(&self) -> &dyn FaultyDevice {
        &*self.devices[0]
    }

    /// Returns the device's driver.
    pub fn driver(&self) -> DriverHandle {
        self.devices[0].driver()
    }

    /// Returns the other device's driver.
    ///
    /// # Panics
    /// If there is no other device.
    pub fn peer(&self) -> DriverHandle {
        self.devices.get(1).expect("the operation says that it needs a peer").driver()
    }

    /// Returns a stream of the device.
    pub fn a(&self) -> StreamRef {
        self.streams[0]
    }

    /// Returns another stream of the device.
    pub fn b(&self) -> StreamRef {
        self.streams[1]
    }

    /// Returns a stream of the other device.
    ///
    /// # Panics
    /// If there is no other device.
    pub fn on_peer(&self) -> StreamRef {
        self.on_peer.expect("the operation says that it needs a peer")
    }

    pub(super) fn at_first(&self) -> &[Live] {
        &self.at_first
    }

    pub(super) fn devices(&self) -> &[Arc<dyn FaultyDevice>] {
        &self.devices
    }
}

impl FaultyDevice for Arc<SimDevice> {
    fn driver(&self) -> DriverHandle {
        Self::clone(self)
    }

    fn set_fault(&self, fault: Option<(u64, FaultKind)>) {
        self.set_faults(fault.map_or_else(FaultPlan::none, |(call, kind)| kind.plan(call)));
    }

    fn calls(&self) -> u64 {
        self.driver_calls()
    }

    fn failed_calls(&self, kind: CallKind) -> u64 {
        SimDevice::failed_calls(self, kind)
    }

    fn failed_name(&self) -> Option<String> {
        None
    }

    fn is_lost(&self) -> bool {
        SimDevice::is_lost(self)
    }

    fn live(&self) -> Live {
        let [allocations, events, streams] =
            [self.live_allocations(), self.live_events(), self.live_streams()].map(|count| count as i64);
        Live { allocations, events, streams }
    }

    fn take_violations(&self) -> Vec<Violation> {
        SimDevice::take_violations(self)
    }

    fn make_current(&self) {
        SimDevice::make_current(self);
    }

    fn read(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        self.launch(stream, &[Access::read(ptr, bytes)]);
    }

    fn begin_capture(&self, stream: StreamRef) -> Result<()> {
        Ok(SimDevice::begin_capture(self, stream, CaptureMode::Global)?)
    }

    fn end_capture(&self, stream: StreamRef) {
        drop(SimDevice::end_capture(self, stream));
    }
}
