//! The device that kernels run on: a GPU, or a simulated device with a virtual clock.

use std::sync::Arc;
use std::time::Instant;

use millpond_core::{DevicePtr, DriverHandle, Error, StreamRef};
use millpond_driver::DeviceSpec;
use millpond_driver::cuda::{CudaDriver, Function};
use millpond_driver::sim::{Access, SimDevice};
use millpond_engine::Result;

/// The nanoseconds that a simulated device needs between two kernels of a stream. On an H200, 60,354 kernels
/// of 5 to 25 µs ran on one stream. Each of them took 1.3 µs in addition to its run time. With 36,045
/// kernels, it was 1.4 µs.
const BETWEEN_KERNELS_NS: u64 = 1_300;

/// The additional nanoseconds that a host loses on a simulated device when it waits for its last kernel. On
/// an idle stream, the kernel starts later, and the host learns later that it has ended. On an H200, a host
/// waited after each of 8000 launches. Each launch took 9.0 µs in addition to the run time of the kernel, 4.4
/// µs of them for the launch itself.
const WAKING_NS: u64 = 3_400;

/// The PTX of the kernel for a GPU. `busy.hpp` in `benches/peers` has the same text.
pub(super) const SPIN: &str = include_str!("spin.ptx");

/// A device that runs kernels of any duration.
#[derive(Debug)]
pub(super) struct Device {
    driver: DriverHandle,
    begin: Instant,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Cuda { spin: Function },
    Sim { device: Arc<SimDevice>, host_ns: u64 },
}

impl Device {
    /// Opens the device. A simulated device is new, and each launch takes `host_ns` nanoseconds of the host's
    /// time.
    pub(super) fn open(spec: &DeviceSpec, host_ns: u64) -> Result<Self> {
        let driver = spec.open_new()?;
        let kind = match SimDevice::find(driver.device()) {
            Some(device) => Kind::Sim { device, host_ns },
            None => {
                let cuda = CudaDriver::open(driver.device().ordinal())?;
                Kind::Cuda { spin: cuda.load_ptx(SPIN)?.function("spin")? }
            }
        };
        Ok(Self { driver, begin: Instant::now(), kind })
    }

    pub(super) fn driver(&self) -> &DriverHandle {
        &self.driver
    }

    /// Returns the nanoseconds since a fixed moment. They are virtual on a simulated device.
    pub(super) fn now_ns(&self) -> u64 {
        match &self.kind {
            Kind::Cuda { .. } => self.begin.elapsed().as_nanos() as u64,
            Kind::Sim { device, .. } => device.virtual_time_ns(),
        }
    }

    /// Launches a kernel that runs for `ns` nanoseconds. On a simulated device, the kernel also reads the
    /// block.
    pub(super) fn launch(&self, stream: StreamRef, block: Option<(DevicePtr, u64)>, ns: u32) -> Result<()> {
        match &self.kind {
            Kind::Cuda { spin } => {
                let mut ns = u64::from(ns);
                // SAFETY: the kernel takes one number, and touches no memory; the stream is the run's own.
                unsafe { spin.launch([1; 3], [1; 3], 0, stream, &mut [(&raw mut ns).cast()]) }?;
            }
            Kind::Sim { device, host_ns } => {
                device.advance(*host_ns);
                let read = block.map(|(ptr, bytes)| Access::read(ptr, bytes));
                device.launch_for(stream, read.as_slice(), u64::from(ns) + BETWEEN_KERNELS_NS);
            }
        }
        Ok(())
    }

    /// Adds the time that the host loses when it waits for its last kernel.
    pub(super) fn waited(&self) {
        if let Kind::Sim { device, .. } = &self.kind {
            device.advance(WAKING_NS);
        }
    }

    /// Reports a block that the subject allocated. A simulated device then checks the stream's use of the
    /// block.
    pub(super) fn lend(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        if let Kind::Sim { device, .. } = &self.kind {
            device.lend(ptr, bytes, stream);
        }
    }

    /// Reports a block that is about to return to the subject.
    pub(super) fn give_back(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        if let Kind::Sim { device, .. } = &self.kind {
            device.give_back(ptr, bytes, stream);
        }
    }

    /// If the simulated device found violations of stream order, returns them as an error.
    ///
    /// # Errors
    /// The first violation, which is a bug in the stack.
    pub(super) fn check_order(&self) -> Result<()> {
        let Kind::Sim { device, .. } = &self.kind else { return Ok(()) };
        match device.take_violations().as_slice() {
            [] => Ok(()),
            [first, ..] => Err(Error::invalid_argument(format!("stream order was violated: {first}")).into()),
        }
    }
}
