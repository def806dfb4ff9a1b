//! The functions of CUDA's runtime, over the calling thread's driver.
//!
//! Each function does what CUDA documents for it. A null pointer for a result, or a handle that does not
//! exist, is an error and never a crash. The streams 0 and 1 are the legacy default stream, and stream 2 is
//! the calling thread's default stream.
#![allow(non_snake_case, reason = "the functions have CUDA's names")]

pub(crate) mod device;
pub(crate) mod memory;
pub(crate) mod order;
pub(crate) mod pools;

use std::ffi::c_void;
use std::mem::MaybeUninit;

use millpond_core::driver::{DriverResult, Event};
use millpond_core::{DevicePtr, Driver, StreamRef};

/// A stream, an event or a pool in CUDA's calls.
pub(crate) type Handle = *mut c_void;

/// The stream of a call.
fn stream(driver: &dyn Driver, stream: Handle) -> DriverResult<StreamRef> {
    // SAFETY: the caller of CUDA guarantees that the stream is alive; the driver refuses it if it is not.
    unsafe { driver.stream_ref(stream.addr() as u64) }
}

fn event(event: Handle) -> Event {
    Event(event.addr() as u64)
}

/// A handle or an address as CUDA's calls have it.
fn handle(number: u64) -> Handle {
    std::ptr::with_exposed_provenance_mut(number as usize)
}

fn device_ptr(ptr: *const c_void) -> DevicePtr {
    DevicePtr::new(ptr.expose_provenance() as u64)
}

/// Allocates memory; 0 bytes are a null pointer and no call.
fn allocated(
    place: &mut MaybeUninit<*mut c_void>,
    bytes: usize,
    allocate: impl FnOnce(u64) -> DriverResult<DevicePtr>,
) -> DriverResult<()> {
    place.write(std::ptr::null_mut());
    if bytes > 0 {
        place.write(handle(allocate(bytes as u64)?.address()));
    }
    Ok(())
}
