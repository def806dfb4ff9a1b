//! Plain and managed memory, and questions about addresses.

use std::ffi::{c_int, c_uint, c_void};

use millpond_core::driver::{DriverResult, MemAdvice, MemoryKind};
use millpond_core::{Driver, DriverError, StreamRef};

use super::{
    Api, Driving, Handle, Runtime, allocate, device_ptr, handle, host_functions, stream, write_if_wanted,
};
use crate::abi::{Location, PointerAttributes};
use crate::current;
use crate::error::{place, refusal};

/// The pitch of `cuMemAllocPitch` is a multiple of this number of bytes.
const PITCH_BYTES: usize = 512;

pub(crate) unsafe extern "C" fn alloc<A: Api>(ptr: *mut *mut c_void, bytes: usize) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    unsafe { allocate::<A>(ptr, bytes, A::IS_RUNTIME, |driver, bytes| driver.mem_alloc(bytes)) }
}

pub(crate) unsafe extern "C" fn alloc_pitch(
    ptr: *mut *mut c_void,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> c_int {
    Driving::run(|driver| {
        let row = width.checked_next_multiple_of(PITCH_BYTES).filter(|_| matches!(element, 4 | 8 | 16));
        let invalid = || refusal(DriverError::INVALID_VALUE);
        let row = row.ok_or_else(invalid)?;
        let bytes = row.checked_mul(height).ok_or_else(|| refusal(DriverError::OUT_OF_MEMORY))?;
        // SAFETY: CUDA's contract for the arguments.
        let (ptr, pitch) = unsafe { (place(ptr)?, place(pitch)?) };
        ptr.write(handle(driver.mem_alloc(bytes as u64)?.address()));
        pitch.write(row);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn alloc_managed<A: Api>(
    ptr: *mut *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> c_int {
    let alloc = |driver: &dyn Driver, bytes| match flags {
        1 | 2 => driver.mem_alloc_managed(bytes),
        _ => Err(refusal(DriverError::INVALID_VALUE)),
    };
    // SAFETY: CUDA's contract for the arguments.
    unsafe { allocate::<A>(ptr, bytes, A::IS_RUNTIME, alloc) }
}

pub(crate) unsafe extern "C" fn free<A: Api>(ptr: *mut c_void) -> c_int {
    A::code(match A::driver() {
        Err(error) if error.code() == DriverError::INVALID_CONTEXT => free_without_context(ptr, error),
        Ok(_) if ptr.is_null() => Ok(()),
        Ok(driver) => {
            host_functions::wait_for_device(&*driver);
            // SAFETY: the caller of CUDA gives up the memory.
            unsafe { driver.mem_free(device_ptr(ptr)) }
        }
        Err(error) => Err(error),
    })
}

/// While no context is current, CUDA frees the blocks of pools, and knows which addresses are none.
fn free_without_context(ptr: *mut c_void, error: DriverError) -> DriverResult<()> {
    let (driver, ptr) = (current::device()?, device_ptr(ptr));
    let is_of_pool = || Ok(driver.was_reset() || driver.pointer_mem_pool(ptr)?.is_some());
    match ptr.is_null() {
        true => Ok(()),
        false if is_of_pool()? => {
            host_functions::wait_for_stream(&*driver, StreamRef::LEGACY);
            // SAFETY: the caller of CUDA gives up the memory.
            unsafe { driver.mem_free_async(ptr, StreamRef::LEGACY) }
        }
        false if driver.pointer_kind(ptr)? == MemoryKind::Unknown => Err(refusal(DriverError::INVALID_VALUE)),
        false => Err(error),
    }
}

/// CUDA takes null pointers here, and answers the rest.
pub(crate) unsafe extern "C" fn get_info<A: Api>(free: *mut usize, total: *mut usize) -> c_int {
    A::run(|driver| {
        let info = driver.mem_get_info()?;
        // SAFETY: CUDA's contract for the arguments.
        unsafe {
            write_if_wanted(free, info.free as usize);
            write_if_wanted(total, info.total as usize);
        }
        Ok(())
    })
}

/// The program may pass a null pointer for each result.
pub(crate) unsafe extern "C" fn get_address_range(
    base: *mut *mut c_void,
    bytes: *mut usize,
    ptr: *mut c_void,
) -> c_int {
    Driving::run(|driver| {
        let (start, length) = driver.mem_get_address_range(device_ptr(ptr))?;
        // SAFETY: CUDA's contract for the arguments.
        unsafe {
            write_if_wanted(base, handle(start.address()));
            write_if_wanted(bytes, length as usize);
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn get_attributes_of_runtime(
    attributes: *mut PointerAttributes,
    ptr: *const c_void,
) -> c_int {
    let find = |driver: &dyn Driver| {
        let host = ptr.cast_mut();
        let (kind, host_pointer) = match driver.pointer_kind(device_ptr(ptr))? {
            MemoryKind::Host => (1, host),
            MemoryKind::Device => (2, std::ptr::null_mut()),
            MemoryKind::Managed => (3, host),
            _ => (0, host),
        };
        let device_pointer = if kind == 0 { std::ptr::null_mut() } else { host };
        Ok(PointerAttributes { kind, device: 0, device_pointer, host_pointer })
    };
    // SAFETY: the caller passes null or `cudaPointerAttributes`, which begins with these fields.
    unsafe { Runtime::answer(attributes, find) }
}

/// The value of an attribute of `cuPointerGetAttribute`, with its size in bytes.
fn attribute(driver: &dyn Driver, number: c_int, ptr: *const c_void) -> DriverResult<(u64, usize)> {
    let invalid = || refusal(DriverError::INVALID_VALUE);
    let address = device_ptr(ptr);
    let kind = driver.pointer_kind(address)?;
    let is_host = matches!(kind, MemoryKind::Host | MemoryKind::Managed);
    if kind == MemoryKind::Unknown {
        return Err(invalid());
    }
    let int = size_of::<c_int>();
    let range = || driver.mem_get_address_range(address);
    Ok(match number {
        1 => (current::top().unwrap_or(0), 8),
        // Managed memory counts as memory of the device.
        2 => (if kind == MemoryKind::Host { 1 } else { 2 }, int),
        3 => (address.address(), 8),
        4 if is_host => (address.address(), 8),
        // A buffer has the number of its address.
        7 => (range().map_or(address, |(start, _)| start).address(), 8),
        8 => (u64::from(kind == MemoryKind::Managed), 1),
        9 => (0, int),
        11 => (range()?.0.address(), 8),
        12 => (range()?.1, 8),
        13 => (1, 1),
        17 => (driver.pointer_mem_pool(address)?.map_or(0, |pool| pool.0), 8),
        10 => (u64::from(kind == MemoryKind::Device), 1),
        6 | 15 => (0, 1),
        14 => (0, 8),
        16 => (3, 8),
        _ => return Err(invalid()),
    })
}

/// Writes the last bytes of a number.
///
/// # Safety
/// There is room for `size` bytes at `place`, at most 8.
unsafe fn write_bytes(place: *mut c_void, (value, size): (u64, usize)) {
    let bytes = value.to_le_bytes();
    // SAFETY: the caller's promise.
    unsafe { bytes.as_ptr().copy_to(place.cast(), size) };
}

pub(crate) unsafe extern "C" fn get_attribute(
    value: *mut c_void,
    number: c_int,
    ptr: *const c_void,
) -> c_int {
    Driving::run_of(0, |driver| {
        if value.is_null() {
            return Err(refusal(DriverError::INVALID_VALUE));
        }
        // SAFETY: the place is not null, and the caller passes the attribute's type.
        unsafe { write_bytes(value, attribute(driver, number, ptr)?) };
        Ok(())
    })
}

/// An attribute that the address does not have gets zeros, if its size is known; otherwise nothing.
pub(crate) unsafe extern "C" fn get_attributes(
    count: c_uint,
    numbers: *const c_int,
    values: *const *mut c_void,
    ptr: *const c_void,
) -> c_int {
    Driving::run_of(0, |driver| {
        if numbers.is_null() || values.is_null() || count == 0 {
            return Err(refusal(DriverError::INVALID_VALUE));
        }
        for at in 0..count as usize {
            // SAFETY: CUDA's contract: both arrays have `count` elements.
            let (number, value) = unsafe { (*numbers.add(at), *values.add(at)) };
            let found = match attribute(driver, number, ptr) {
                Ok(found) => found,
                Err(error) if error.code() != DriverError::INVALID_VALUE => return Err(error),
                Err(_) => match number {
                    1 | 3 | 4 | 7 | 11 | 12 | 14 | 16 | 17 => (0, 8),
                    2 => (0, 4),
                    // Measured on an H100 with driver 580.159 on 2026-11-26.
                    9 => (-2_i64 as u64, 4),
                    6 | 8 | 10 | 13 | 15 => (0, 1),
                    _ => return Err(refusal(DriverError::INVALID_VALUE)),
                },
            };
            if value.is_null() {
                return Err(refusal(DriverError::INVALID_VALUE));
            }
            // SAFETY: as for `get_attribute`.
            unsafe { write_bytes(value, found) };
        }
        Ok(())
    })
}

/// Whether memory goes to the host: `CUmemLocation` names a host or the device.
fn is_to_host(location: Location) -> DriverResult<bool> {
    match (location.kind, location.id) {
        (1, 0) => Ok(false),
        (2..=4, _) => Ok(true),
        (1, _) => Err(refusal(DriverError::INVALID_DEVICE)),
        _ => Err(refusal(DriverError::INVALID_VALUE)),
    }
}

/// The location that CUDA 12 names by the number of a device; -1 is the host.
fn location(device: c_int) -> Location {
    if device == -1 { Location { kind: 2, id: 0 } } else { Location { kind: 1, id: device } }
}

pub(crate) unsafe extern "C" fn prefetch_v1<A: Api>(
    ptr: *mut c_void,
    bytes: usize,
    device: c_int,
    on: Handle,
) -> c_int {
    // SAFETY: the caller's promises are the same.
    unsafe { prefetch::<A>(ptr, bytes, location(device), 0, on) }
}

pub(crate) unsafe extern "C" fn prefetch<A: Api>(
    ptr: *mut c_void,
    bytes: usize,
    to: Location,
    flags: c_uint,
    on: Handle,
) -> c_int {
    A::run(|driver| {
        let to_host = is_to_host(to)?;
        if flags != 0 || bytes == 0 {
            return Err(refusal(DriverError::INVALID_VALUE));
        }
        let stream = stream::<A>(driver, on)?;
        // SAFETY: the caller guarantees that the range is valid and ordered after other work.
        unsafe { driver.mem_prefetch_async(device_ptr(ptr), bytes as u64, to_host, stream) }
    })
}

pub(crate) unsafe extern "C" fn advise_v1(
    ptr: *mut c_void,
    bytes: usize,
    advice: c_int,
    device: c_int,
) -> c_int {
    // SAFETY: the caller's promises are the same.
    unsafe { advise(ptr, bytes, advice, location(device)) }
}

/// The simulated device only checks the range, so that taking advice back is like giving it.
pub(crate) unsafe extern "C" fn advise(ptr: *mut c_void, bytes: usize, advice: c_int, at: Location) -> c_int {
    Driving::run(|driver| {
        let advice = match advice {
            1 | 2 => MemAdvice::ReadMostly,
            3 | 4 if is_to_host(at)? => MemAdvice::PreferHost,
            3 | 4 => MemAdvice::PreferDevice,
            5 | 6 => MemAdvice::AccessedByDevice,
            _ => return Err(refusal(DriverError::INVALID_VALUE)),
        };
        // SAFETY: the caller guarantees that the range is valid.
        unsafe { driver.mem_advise(device_ptr(ptr), bytes as u64, advice) }
    })
}
