//! Devices, versions and errors.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr::null;

use millpond_core::driver::{DeviceAttribute, DriverResult};
use millpond_core::{Driver, DriverError};

use super::{Api, Driving, Runtime, host_functions, only, write};
use crate::abi::DeviceProperties;
use crate::contexts::PRIMARY;
use crate::current;
use crate::error::{last, place, refusal, take_last, texts};

/// The version of CUDA whose functions these are: 13.0.
pub(crate) const VERSION: c_int = 13_000;

pub(crate) unsafe extern "C" fn get_count<A: Api>(count: *mut c_int) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    unsafe { A::answer_of(0, count, |_| Ok(1)) }
}

/// The only device's identity.
const UUID: [u8; 16] = *b"millpond sim:000";

/// The handle of a device is its ordinal.
pub(crate) unsafe extern "C" fn get(device: *mut c_int, ordinal: c_int) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    unsafe { Driving::answer_of(ordinal, device, |_| Ok(ordinal)) }
}

pub(crate) unsafe extern "C" fn get_of_thread(device: *mut c_int) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    unsafe { Runtime::answer(device, |_| Ok(0)) }
}

/// The primary context of the device becomes current.
pub(crate) unsafe extern "C" fn set_of_thread(device: c_int) -> c_int {
    Runtime::run_of(device, |_| {
        if !current::has_entered() {
            current::pop();
            current::push(PRIMARY);
        }
        Ok(())
    })
}

/// Writes as much of a text as fits, and its end, into a place of `length` bytes.
///
/// # Safety
/// `place` is null or has `length` bytes, which nothing else uses during the call.
unsafe fn write_cut(place: *mut c_char, length: c_int, text: &str) -> DriverResult<()> {
    let room = usize::try_from(length).ok().and_then(|length| length.checked_sub(1));
    let room = room.filter(|_| !place.is_null()).ok_or_else(|| refusal(DriverError::INVALID_VALUE))?;
    let bytes = &text.as_bytes()[..text.len().min(room)];
    // SAFETY: the place has one byte more than `room`, by the caller's promise.
    unsafe {
        bytes.as_ptr().copy_to(place.cast(), bytes.len());
        place.add(bytes.len()).write(0);
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn get_name(name: *mut c_char, length: c_int, device: c_int) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    Driving::run_of(device, |driver| unsafe { write_cut(name, length, &driver.name()) })
}

/// Writes the address, which has 12 characters. The number of a device's bus is the device's number.
pub(crate) unsafe extern "C" fn get_pci_bus_id<A: Api>(
    address: *mut c_char,
    length: c_int,
    device: c_int,
) -> c_int {
    A::run_of(device, |_| {
        let text = format!("0000:{device:02X}:00.0");
        if usize::try_from(length).is_ok_and(|length| length <= text.len()) {
            return Err(refusal(DriverError::INVALID_VALUE));
        }
        // SAFETY: CUDA's contract for the arguments.
        unsafe { write_cut(address, length, &text) }
    })
}

/// The bus in a PCI address such as `00000000:01:00.0`, whose domain may be missing.
pub(super) fn bus(address: &str) -> Option<c_int> {
    let mut parts = address.rsplit(':');
    let (_device, bus) = (parts.next()?, parts.next()?);
    c_int::from_str_radix(bus, 16).ok()
}

pub(crate) unsafe extern "C" fn get_by_pci_bus_id<A: Api>(
    device: *mut c_int,
    address: *const c_char,
) -> c_int {
    let find = |_: &dyn Driver| {
        // SAFETY: CUDA's contract makes the address null or a text.
        let text = (!address.is_null()).then(|| unsafe { CStr::from_ptr(address) }.to_str().ok()).flatten();
        let bus = text.and_then(bus).ok_or_else(|| refusal(DriverError::INVALID_VALUE))?;
        only(bus, DriverError::INVALID_DEVICE).map(|()| bus)
    };
    // SAFETY: CUDA's contract for the arguments.
    unsafe { A::answer_of(0, device, find) }
}

pub(crate) unsafe extern "C" fn get_uuid(uuid: *mut [u8; 16], device: c_int) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    unsafe { Driving::answer_of(device, uuid, |_| Ok(UUID)) }
}

pub(crate) unsafe extern "C" fn get_total_memory(bytes: *mut usize, device: c_int) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    unsafe { Driving::answer_of(device, bytes, |driver| Ok(driver.mem_get_info()?.total as usize)) }
}

pub(crate) unsafe extern "C" fn get_attribute<A: Api>(
    value: *mut c_int,
    attribute: c_int,
    device: c_int,
) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    unsafe { A::answer_of(device, value, |driver| answer(driver, attribute)) }
}

/// No other device can use the memory of the only one, which does not count as its own peer.
pub(crate) unsafe extern "C" fn can_access_peer<A: Api>(
    can: *mut c_int,
    device: c_int,
    peer: c_int,
) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    unsafe { A::answer_of(device, can, |_| only(peer, DriverError::INVALID_DEVICE).map(|()| 0)) }
}

/// The device has no peer, and is not its own.
pub(crate) unsafe extern "C" fn enable_peer_access(_device: c_int, _flags: c_uint) -> c_int {
    Runtime::run(|_| Err(refusal(DriverError::INVALID_DEVICE)))
}

pub(crate) unsafe extern "C" fn get_properties(properties: *mut DeviceProperties, device: c_int) -> c_int {
    let find = |driver: &dyn Driver| {
        let attribute = |known| driver.attribute(known).map(|value| value as c_int);
        let mut name = [0; 256];
        let text = driver.name();
        let length = text.len().min(name.len() - 1);
        name[..length].copy_from_slice(&text.as_bytes()[..length]);
        let mut found = DeviceProperties::OF_EVERY_GPU;
        (found.name, found.uuid) = (name, UUID);
        found.total_bytes = driver.mem_get_info()?.total as usize;
        found.major = attribute(DeviceAttribute::ComputeCapabilityMajor)?;
        found.minor = attribute(DeviceAttribute::ComputeCapabilityMinor)?;
        found.multiprocessors = attribute(DeviceAttribute::MultiprocessorCount)?;
        found.integrated = attribute(DeviceAttribute::Integrated)?;
        found.can_map_host_memory = attribute(DeviceAttribute::CanMapHostMemory)?;
        Ok(found)
    };
    // SAFETY: CUDA's contract for the arguments.
    unsafe { Runtime::answer_of(device, properties, find) }
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
        102 => DeviceAttribute::VirtualMemoryManagementSupported,
        103 => DeviceAttribute::PosixFdHandlesSupported,
        110 => DeviceAttribute::RdmaOfPhysicalMemorySupported,
        115 => DeviceAttribute::MemoryPoolsSupported,
        119 => DeviceAttribute::MemPoolSupportedHandleTypes,
        125 => DeviceAttribute::IpcEventSupported,
        // Every device of CUDA 13 has unified addresses and managed memory.
        41 | 83 => return Ok(1),
        1..=LAST_ATTRIBUTE => return Ok(0),
        _ => return Err(refusal(DriverError::INVALID_VALUE)),
    };
    driver.attribute(known).map(|value| value as c_int)
}

pub(crate) unsafe extern "C" fn synchronize<A: Api>() -> c_int {
    A::run(|driver| {
        host_functions::wait_for_device(driver);
        driver.synchronize()
    })
}

pub(crate) unsafe extern "C" fn get_runtime_version(version: *mut c_int) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    Runtime::code(unsafe { write(version, || Ok(VERSION)) })
}

/// Works before `cuInit`. A simulated device has no version, and implements the newest.
pub(crate) unsafe extern "C" fn get_driver_version<A: Api>(version: *mut c_int) -> c_int {
    let entered = || current::device().and_then(|driver| driver.version()).unwrap_or(0);
    // SAFETY: CUDA's contract for the arguments.
    A::code(unsafe { write(version, || Ok(entered().max(VERSION))) })
}

pub(crate) unsafe extern "C" fn get_last_error() -> c_int {
    take_last()
}

pub(crate) unsafe extern "C" fn peek_at_last_error() -> c_int {
    last()
}

pub(crate) unsafe extern "C" fn get_runtime_error_name(error: c_int) -> *const c_char {
    texts(error).map_or(c"unrecognized error code", |texts| texts.runtime).as_ptr()
}

pub(crate) unsafe extern "C" fn get_runtime_error_string(error: c_int) -> *const c_char {
    texts(error).map_or(c"unrecognized error code", |texts| texts.text).as_ptr()
}

/// Writes one of a code's texts, or a null pointer if there is no such code.
///
/// # Safety
/// As for [`place`].
unsafe fn write_text(text: *mut *const c_char, found: Option<&'static CStr>) -> c_int {
    // SAFETY: the caller's promise.
    let written = unsafe { place(text) }.and_then(|place| {
        place.write(found.map_or(null(), CStr::as_ptr));
        found.map(drop).ok_or_else(|| refusal(DriverError::INVALID_VALUE))
    });
    Driving::code(written)
}

pub(crate) unsafe extern "C" fn get_driver_error_name(error: c_int, name: *mut *const c_char) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    unsafe { write_text(name, texts(error).and_then(|texts| texts.driver)) }
}

pub(crate) unsafe extern "C" fn get_driver_error_string(error: c_int, text: *mut *const c_char) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    unsafe { write_text(text, texts(error).map(|texts| texts.text)) }
}
