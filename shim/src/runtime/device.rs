//! Devices, versions and errors.

use std::ffi::{c_char, c_int};

use millpond_core::driver::{DeviceAttribute, DriverResult};
use millpond_core::{Driver, DriverError};

use crate::current::driver;
use crate::error::{code, invalid_value, last, place, take_last, texts};

/// The version of the runtime whose functions these are: 13.0.
const VERSION: c_int = 13_000;

/// Refuses a device other than the thread's only one.
fn only(device: c_int, call: &'static str) -> DriverResult<()> {
    if device == 0 { Ok(()) } else { Err(DriverError::new(DriverError::INVALID_DEVICE, call)) }
}

pub(crate) unsafe extern "C" fn cudaGetDeviceCount(count: *mut c_int) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    let count = unsafe { place(count, "cudaGetDeviceCount") };
    code(count.and_then(|count| {
        driver()?;
        count.write(1);
        Ok(())
    }))
}

pub(crate) unsafe extern "C" fn cudaGetDevice(device: *mut c_int) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    let device = unsafe { place(device, "cudaGetDevice") };
    code(device.and_then(|device| {
        driver()?;
        device.write(0);
        Ok(())
    }))
}

pub(crate) unsafe extern "C" fn cudaSetDevice(device: c_int) -> c_int {
    code(driver().and_then(|_| only(device, "cudaSetDevice")))
}

pub(crate) unsafe extern "C" fn cudaDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    device: c_int,
) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    let value = unsafe { place(value, "cudaDeviceGetAttribute") };
    code(value.and_then(|value| {
        let driver = driver()?;
        only(device, "cudaDeviceGetAttribute")?;
        value.write(answer(&*driver, attribute)?);
        Ok(())
    }))
}

/// CUDA 13.0 has attributes up to this number.
const LAST_ATTRIBUTE: c_int = 150;

/// The value of an attribute by CUDA's number; 0 for one that the driver does not know.
fn answer(driver: &dyn Driver, attribute: c_int) -> DriverResult<c_int> {
    let known = match attribute {
        16 => DeviceAttribute::MultiprocessorCount,
        18 => DeviceAttribute::Integrated,
        19 => DeviceAttribute::CanMapHostMemory,
        75 => DeviceAttribute::ComputeCapabilityMajor,
        76 => DeviceAttribute::ComputeCapabilityMinor,
        88 => DeviceAttribute::PageableMemoryAccess,
        89 => DeviceAttribute::ConcurrentManagedAccess,
        115 => DeviceAttribute::MemoryPoolsSupported,
        119 => DeviceAttribute::MemPoolSupportedHandleTypes,
        1..=LAST_ATTRIBUTE => return Ok(0),
        _ => return Err(invalid_value("cudaDeviceGetAttribute")),
    };
    driver.attribute(known).map(|value| value as c_int)
}

pub(crate) unsafe extern "C" fn cudaDeviceSynchronize() -> c_int {
    code(driver().and_then(|driver| driver.synchronize()))
}

pub(crate) unsafe extern "C" fn cudaRuntimeGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    let version = unsafe { place(version, "cudaRuntimeGetVersion") };
    code(version.map(|version| {
        version.write(VERSION);
    }))
}

pub(crate) unsafe extern "C" fn cudaDriverGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    let version = unsafe { place(version, "cudaDriverGetVersion") };
    code(version.and_then(|version| {
        // A simulated device has no version, and implements the newest.
        version.write(driver()?.version()?.max(VERSION));
        Ok(())
    }))
}

pub(crate) unsafe extern "C" fn cudaGetLastError() -> c_int {
    take_last()
}

pub(crate) unsafe extern "C" fn cudaPeekAtLastError() -> c_int {
    last()
}

pub(crate) unsafe extern "C" fn cudaGetErrorName(error: c_int) -> *const c_char {
    texts(error).0.as_ptr()
}

pub(crate) unsafe extern "C" fn cudaGetErrorString(error: c_int) -> *const c_char {
    texts(error).1.as_ptr()
}
