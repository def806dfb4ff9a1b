//! The functions of CUDA's runtime and of CUDA's driver, over the calling thread's driver.
//!
//! Each function does what CUDA documents for it. The runtime and the driver share the functions that differ
//! only in their names: such a function is generic over its [`Api`]. A null pointer for a result, or a handle
//! that does not exist, is an error and never a crash. Device addresses are pointers here, as in the runtime;
//! the driver's `CUdeviceptr` has the same 64 bits.

pub(crate) mod captures;
pub(crate) mod contexts;
pub(crate) mod copies;
pub(crate) mod device;
pub(crate) mod host;
mod host_functions;
pub(crate) mod memory;
pub(crate) mod nvml;
pub(crate) mod order;
pub(crate) mod pools;
pub(crate) mod sharing;
pub(crate) mod vmm;

use std::ffi::{c_int, c_void};

use millpond_core::driver::{AccessFlags, DriverResult, Event};
use millpond_core::{DeviceId, DevicePtr, Driver, DriverError, DriverHandle, StreamRef};

use crate::abi::{AccessDesc, Location};
use crate::current;
use crate::error::{code, note, place, refusal};

/// A stream, an event, a context or a pool in CUDA's calls.
pub(crate) type Handle = *mut c_void;

/// How a program calls: through CUDA's runtime or its driver, and which stream has the handle 0.
///
/// The runtime initialises the device on the first call, and keeps the last error of each thread. The driver
/// demands `cuInit` and a current context.
pub(crate) trait Api {
    const IS_RUNTIME: bool;
    const DEFAULT_STREAM: StreamRef = StreamRef::LEGACY;

    /// The driver of the calling thread's context.
    fn driver() -> DriverResult<DriverHandle> {
        if Self::IS_RUNTIME { current::driver_of_runtime() } else { current::driver() }
    }

    /// The driver of a device, which needs no current context.
    fn device(number: c_int) -> DriverResult<DriverHandle> {
        let driver = if Self::IS_RUNTIME { current::driver_of_runtime() } else { current::device() };
        driver.and_then(|driver| only(number, DriverError::INVALID_DEVICE).map(|()| driver))
    }

    /// The code for a result.
    fn code(result: DriverResult<()>) -> c_int {
        let code = code(&result);
        if Self::IS_RUNTIME {
            note(code);
        }
        code
    }

    /// Makes a call in the calling thread's context.
    fn run(call: impl FnOnce(&dyn Driver) -> DriverResult<()>) -> c_int {
        Self::code(Self::driver().and_then(|driver| call(&*driver)))
    }

    /// Makes a call in the calling thread's context, and writes its result.
    ///
    /// # Safety
    /// As for [`place`].
    unsafe fn answer<T>(result: *mut T, call: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> c_int {
        // SAFETY: the caller's promise.
        Self::code(Self::driver().and_then(|driver| unsafe { write(result, || call(&*driver)) }))
    }

    /// Makes a call that needs a device and no context, and writes its result.
    ///
    /// # Safety
    /// As for [`place`].
    unsafe fn answer_of<T>(
        device: c_int,
        result: *mut T,
        call: impl FnOnce(&dyn Driver) -> DriverResult<T>,
    ) -> c_int {
        // SAFETY: the caller's promise.
        Self::code(Self::device(device).and_then(|driver| unsafe { write(result, || call(&*driver)) }))
    }

    /// Makes a call that needs a device and no context.
    fn run_of(device: c_int, call: impl FnOnce(&dyn Driver) -> DriverResult<()>) -> c_int {
        Self::code(Self::device(device).and_then(|driver| call(&*driver)))
    }
}

/// CUDA's runtime.
pub(crate) struct Runtime;

/// CUDA's runtime for programs whose default stream is the thread's own (`_ptsz`, `_ptds`).
pub(crate) struct RuntimePerThread;

/// CUDA's driver.
pub(crate) struct Driving;

/// CUDA's driver for programs whose default stream is the thread's own (`_ptsz`, `_ptds`).
pub(crate) struct DrivingPerThread;

impl Api for Runtime {
    const IS_RUNTIME: bool = true;
}

impl Api for RuntimePerThread {
    const IS_RUNTIME: bool = true;
    const DEFAULT_STREAM: StreamRef = StreamRef::PER_THREAD;
}

impl Api for Driving {
    const IS_RUNTIME: bool = false;
}

impl Api for DrivingPerThread {
    const IS_RUNTIME: bool = false;
    const DEFAULT_STREAM: StreamRef = StreamRef::PER_THREAD;
}

/// Refuses a device other than the only one.
fn only(device: c_int, code: i32) -> DriverResult<()> {
    if device == 0 { Ok(()) } else { Err(refusal(code)) }
}

/// Writes the result of a call, which is not made if there is no place for the result.
///
/// # Safety
/// As for [`place`].
unsafe fn write<T>(result: *mut T, call: impl FnOnce() -> DriverResult<T>) -> DriverResult<()> {
    // SAFETY: the caller's promise.
    let result = unsafe { place(result) }?;
    result.write(call()?);
    Ok(())
}

/// Writes a result for which the program may pass a null pointer.
///
/// # Safety
/// As for [`place`].
unsafe fn write_if_wanted<T>(result: *mut T, value: T) {
    // SAFETY: the caller's promise.
    if let Ok(result) = unsafe { place(result) } {
        result.write(value);
    }
}

/// The stream of a call, after the functions of the host that are ordered before it.
fn stream<A: Api>(driver: &dyn Driver, named: Handle) -> DriverResult<StreamRef> {
    let stream = stream_now::<A>(driver, named)?;
    host_functions::wait_for_stream(driver, stream);
    Ok(stream)
}

/// The stream of a call that does not wait.
fn stream_now<A: Api>(driver: &dyn Driver, stream: Handle) -> DriverResult<StreamRef> {
    if stream.is_null() {
        return Ok(A::DEFAULT_STREAM);
    }
    // SAFETY: the caller of CUDA guarantees that the stream is alive; the driver refuses it if it is not.
    unsafe { driver.stream_ref(stream.addr() as u64) }
}

fn event(event: Handle) -> Event {
    Event(event.addr() as u64)
}

/// A handle or an address as CUDA's calls have it.
pub(crate) fn handle(number: u64) -> Handle {
    std::ptr::with_exposed_provenance_mut(number as usize)
}

fn device_ptr(ptr: *const c_void) -> DevicePtr {
    DevicePtr::new(ptr.expose_provenance() as u64)
}

/// Allocates memory. If `takes_zero` is true, 0 bytes are a null pointer and no call.
///
/// # Safety
/// As for [`place`].
unsafe fn allocate<A: Api>(
    result: *mut *mut c_void,
    bytes: usize,
    takes_zero: bool,
    call: impl FnOnce(&dyn Driver, u64) -> DriverResult<DevicePtr>,
) -> c_int {
    let allocate = |driver: &dyn Driver| match bytes {
        0 if takes_zero => Ok(std::ptr::null_mut()),
        _ => call(driver, bytes as u64).map(|ptr| handle(ptr.address())),
    };
    // SAFETY: the caller's promise.
    unsafe { A::answer(result, allocate) }
}

impl Location {
    /// The driver's device, if the location is that device.
    fn as_device(self, driver: &dyn Driver) -> DriverResult<DeviceId> {
        if (self.kind, self.id) == (1, 0) {
            return Ok(driver.device());
        }
        Err(refusal(if self.kind == 1 { DriverError::INVALID_DEVICE } else { DriverError::INVALID_VALUE }))
    }
}

/// Gives each of the described locations its access.
///
/// # Safety
/// `access` is null or points to this many descriptions.
unsafe fn for_each_access(
    (access, count): (*const AccessDesc, usize),
    mut set: impl FnMut(AccessFlags, Location) -> DriverResult<()>,
) -> DriverResult<()> {
    if access.is_null() || count == 0 {
        return Err(refusal(DriverError::INVALID_VALUE));
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(access, count) }.iter().try_for_each(|wanted| {
        let flags = match wanted.flags {
            0 => AccessFlags::None,
            1 => AccessFlags::Read,
            3 => AccessFlags::ReadWrite,
            _ => return Err(refusal(DriverError::INVALID_VALUE)),
        };
        set(flags, wanted.location)
    })
}
