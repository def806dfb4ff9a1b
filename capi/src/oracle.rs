//! The checks of a simulated device, for the tests of the Python package. This module is not part of the C
//! interface.

use std::ffi::{c_char, c_void};
use std::fmt;
use std::sync::Arc;

use millpond_core::driver::{CaptureMode, call};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, DriverHandle, Error, Layout,
    Result, StreamRef, downcast, forward_to_upstream,
};
use millpond_driver::sim::{Schedule, SimConfig, SimDevice};

use crate::device::{Device, with_device};
use crate::resource::{Resource, with_resource};
use crate::status::{Status, guarded_here, put_handle, put_text, stream_of};

/// Tells a simulated device about each block that the resource below allocates or frees, so that the device
/// checks their order.
#[derive(Debug)]
struct Watched {
    upstream: AnyResource,
    device: Arc<SimDevice>,
}

// SAFETY: every call goes to the upstream with the same arguments, so its contract holds.
#[deny(clippy::missing_trait_methods)]
unsafe impl DeviceMemoryResource for Watched {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let ptr = self.upstream.allocate(layout, stream)?;
        self.device.lend(ptr, layout.bytes(), stream);
        Ok(ptr)
    }

    /// Tells the device before the free: after the free, another thread may get the block at once.
    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        self.device.give_back(ptr, layout.bytes(), stream);
        // SAFETY: the caller's promises hold for the upstream, where the block came from.
        unsafe { self.upstream.deallocate(ptr, layout, stream) }
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        downcast::<Self>(other).is_some_and(|other| self.upstream.is_equal(&other.upstream))
    }

    forward_to_upstream!(except allocate, deallocate, is_equal);
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.upstream.fmt(f)
    }
}

fn simulated(driver: &DriverHandle) -> Result<Arc<SimDevice>> {
    SimDevice::find(driver.device()).ok_or_else(|| Error::invalid_argument("the device is not simulated"))
}

/// Opens a simulated device. A random adversary with this seed chooses when the device's work is done.
///
/// # Safety
/// `device` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_oracle_device(bytes: u64, seed: u64, device: *mut *mut Device) -> Status {
    let config = SimConfig::with_capacity(bytes).schedule(Schedule::Seeded(seed));
    // SAFETY: the caller's promise.
    guarded_here(|| unsafe { put_handle(device, Device(SimDevice::new(config))) })
}

/// Adds the checks of the simulated device to one of its resources.
///
/// # Safety
/// `upstream` is a handle from this library; `resource` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_oracle_watch(
    upstream: *const Resource,
    resource: *mut *mut Resource,
) -> Status {
    with_resource(upstream, |upstream| {
        let watched = Watched { upstream: upstream.clone(), device: simulated(upstream.driver())? };
        // SAFETY: the caller's promise.
        unsafe { put_handle(resource, Resource::new(watched.into_any())) }
    })
}

/// Begins or ends a capture on a stream of a simulated device.
///
/// # Safety
/// `device` is a handle from this library; the stream is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_oracle_capture(
    device: *const Device,
    stream: *mut c_void,
    begins: bool,
) -> Status {
    with_device(device, |driver| {
        let (sim, stream) = (simulated(driver)?, stream_of(driver, stream)?);
        call(&**driver, |_| match begins {
            true => sim.begin_capture(stream, CaptureMode::Relaxed),
            false => sim.end_capture(stream),
        })
    })
}

/// Returns the violations that a simulated device has found since the last call, one on each line.
///
/// # Safety
/// `device` is a handle from this library; `text` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_oracle_violations(device: *const Device, text: *mut *mut c_char) -> Status {
    with_device(device, |driver| {
        let found = simulated(driver)?.take_violations();
        let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
        // SAFETY: the caller's promise.
        unsafe { put_text(text, &lines.join("\n")) }
    })
}
