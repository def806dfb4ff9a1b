//! The functions of NVML that PyTorch looks up before it maps memory.
//!
//! They return NVML's codes, which differ from CUDA's. The number of a device's bus is the device's number.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::device::{VERSION, bus};
use super::{Api, Driving, Handle, handle};
use crate::abi::{FabricInfo, ProcessInfo};
use crate::error::place;
use crate::{contexts, current};

/// `nvmlReturn_t`.
const SUCCESS: c_int = 0;
const UNINITIALIZED: c_int = 1;
const INVALID_ARGUMENT: c_int = 2;
const NOT_SUPPORTED: c_int = 3;
const NOT_FOUND: c_int = 6;
const INSUFFICIENT_SIZE: c_int = 7;

fn code(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(SUCCESS)
}

/// Writes a result, unless there is no place for it.
///
/// # Safety
/// As for [`place`].
unsafe fn write<T>(result: *mut T, value: T) -> Result<(), c_int> {
    // SAFETY: the caller's promise.
    unsafe { place(result) }.map_err(|_| INVALID_ARGUMENT)?.write(value);
    Ok(())
}

pub(crate) unsafe extern "C" fn init() -> c_int {
    match current::has_entered() || contexts::initialise().is_ok() {
        true => SUCCESS,
        false => UNINITIALIZED,
    }
}

/// The handle of a device is its number, counted from 1.
pub(crate) unsafe extern "C" fn get_by_bus(address: *const c_char, device: *mut Handle) -> c_int {
    if address.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the address is not null, and NVML's contract makes it a text.
    let bus = unsafe { CStr::from_ptr(address) }.to_str().ok().and_then(bus);
    let found = bus.filter(|bus| Driving::device(*bus).is_ok()).ok_or(NOT_FOUND);
    // SAFETY: NVML's contract for the arguments.
    code(found.and_then(|bus| unsafe { write(device, handle(bus as u64 + 1)) }))
}

/// A simulated device runs the work of this process only.
pub(crate) unsafe extern "C" fn get_processes(
    device: Handle,
    count: *mut c_uint,
    processes: *mut ProcessInfo,
) -> c_int {
    let find = || {
        // SAFETY: the caller passes null or a valid number, which nothing else uses during the call.
        let count = unsafe { count.as_mut() }.ok_or(INVALID_ARGUMENT)?;
        let number = device.addr().checked_sub(1).and_then(|number| c_int::try_from(number).ok());
        let driver = number.and_then(|number| Driving::device(number).ok()).ok_or(INVALID_ARGUMENT)?;
        if std::mem::replace(count, 1) == 0 {
            return Err(INSUFFICIENT_SIZE);
        }
        let used = driver.mem_get_info().map_or(0, |info| info.total - info.free);
        // SAFETY: NVML's contract: there is room for `count` processes, at least one.
        unsafe { write(processes, ProcessInfo { pid: std::process::id(), used_bytes: used }) }
    };
    code(find())
}

pub(crate) unsafe extern "C" fn get_driver_version(version: *mut c_int) -> c_int {
    // SAFETY: NVML's contract for the arguments.
    code(unsafe { write(version, VERSION) })
}

/// Simulated devices have no NVLink.
pub(crate) unsafe extern "C" fn get_link(_device: Handle, _link: c_uint, _info: *mut c_void) -> c_int {
    NOT_SUPPORTED
}

/// Simulated devices have no fabric.
pub(crate) unsafe extern "C" fn get_fabric(_device: Handle, info: *mut FabricInfo) -> c_int {
    // SAFETY: the caller passes null or the structure, which nothing else uses during the call.
    match unsafe { info.as_mut() } {
        Some(FabricInfo { state, .. }) => {
            *state = 0; // `NVML_GPU_FABRIC_STATE_NOT_SUPPORTED`
            SUCCESS
        }
        None => INVALID_ARGUMENT,
    }
}
