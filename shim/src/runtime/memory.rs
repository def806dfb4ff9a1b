//! Plain, managed and pinned memory, copies and fills.

use std::ffi::{c_int, c_uint, c_void};

use millpond_core::driver::{DriverResult, HostFlags, HostPtr, MemoryKind};
use millpond_core::{DevicePtr, Driver, DriverError, StreamRef};

use super::{Handle, allocated, device_ptr, handle, stream};
use crate::current::driver;
use crate::error::{code, invalid_value, place};

/// `cudaErrorInvalidMemcpyDirection`.
const INVALID_DIRECTION: i32 = 21;

pub(crate) unsafe extern "C" fn cudaMalloc(ptr: *mut *mut c_void, bytes: usize) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    let ptr = unsafe { place(ptr, "cudaMalloc") };
    code(ptr.and_then(|ptr| {
        let driver = driver()?;
        allocated(ptr, bytes, |bytes| driver.mem_alloc(bytes))
    }))
}

pub(crate) unsafe extern "C" fn cudaMallocManaged(
    ptr: *mut *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    let ptr = unsafe { place(ptr, "cudaMallocManaged") };
    code(ptr.and_then(|ptr| {
        if !(1..=2).contains(&flags) {
            return Err(invalid_value("cudaMallocManaged"));
        }
        let driver = driver()?;
        allocated(ptr, bytes, |bytes| driver.mem_alloc_managed(bytes))
    }))
}

pub(crate) unsafe extern "C" fn cudaFree(ptr: *mut c_void) -> c_int {
    code(driver().and_then(|driver| {
        if ptr.is_null() {
            return Ok(());
        }
        // SAFETY: the caller of CUDA gives up the memory.
        unsafe { driver.mem_free(device_ptr(ptr)) }
    }))
}

pub(crate) unsafe extern "C" fn cudaMallocHost(ptr: *mut *mut c_void, bytes: usize) -> c_int {
    // SAFETY: the caller's promises are the same.
    unsafe { cudaHostAlloc(ptr, bytes, 0) }
}

pub(crate) unsafe extern "C" fn cudaHostAlloc(ptr: *mut *mut c_void, bytes: usize, flags: c_uint) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    let ptr = unsafe { place(ptr, "cudaHostAlloc") };
    code(ptr.and_then(|ptr| {
        let driver = driver()?;
        let flags = HostFlags::default().portable(flags & 1 != 0).mapped(flags & 2 != 0);
        allocated(ptr, bytes, |bytes| {
            driver.mem_host_alloc(bytes, flags).map(|ptr| DevicePtr::new(ptr.0 as u64))
        })
    }))
}

pub(crate) unsafe extern "C" fn cudaFreeHost(ptr: *mut c_void) -> c_int {
    code(driver().and_then(|driver| {
        if ptr.is_null() {
            return Ok(());
        }
        // SAFETY: the caller of CUDA gives up the memory.
        unsafe { driver.mem_free_host(HostPtr(ptr.expose_provenance())) }
    }))
}

/// CUDA takes null pointers here, and answers the rest.
pub(crate) unsafe extern "C" fn cudaMemGetInfo(free: *mut usize, total: *mut usize) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    let places = unsafe { [place(free, "cudaMemGetInfo"), place(total, "cudaMemGetInfo")] };
    code(driver().and_then(|driver| driver.mem_get_info()).map(|info| {
        for (place, bytes) in places.into_iter().zip([info.free, info.total]) {
            place.into_iter().for_each(|place| _ = place.write(bytes as usize));
        }
    }))
}

/// The fields of `cudaPointerAttributes`.
#[repr(C)]
struct Attributes {
    kind: c_int,
    device: c_int,
    device_pointer: *mut c_void,
    host_pointer: *mut c_void,
}

pub(crate) unsafe extern "C" fn cudaPointerGetAttributes(
    attributes: *mut c_void,
    ptr: *const c_void,
) -> c_int {
    // SAFETY: the caller passes null or `cudaPointerAttributes`, which begins with these fields.
    let attributes = unsafe { place(attributes.cast::<Attributes>(), "cudaPointerGetAttributes") };
    code(attributes.and_then(|attributes| {
        let driver = driver()?;
        let host = ptr.cast_mut();
        let (kind, host_pointer) = match driver.pointer_kind(device_ptr(ptr))? {
            MemoryKind::Host => (1, host),
            MemoryKind::Device => (2, std::ptr::null_mut()),
            MemoryKind::Managed => (3, host),
            _ => (0, host),
        };
        let device_pointer = if kind == 0 { std::ptr::null_mut() } else { host };
        attributes.write(Attributes { kind, device: 0, device_pointer, host_pointer });
        Ok(())
    }))
}

/// Whether the device's memory holds this address.
fn is_of_device(driver: &dyn Driver, ptr: *const c_void) -> DriverResult<bool> {
    let kind = driver.pointer_kind(device_ptr(ptr))?;
    Ok(matches!(kind, MemoryKind::Device | MemoryKind::Managed))
}

/// Copies between two ranges. Bit 0 of CUDA's number says that the destination is on the device, bit 1 that
/// the source is. Number 4 leaves both to the pointers.
///
/// # Safety
/// As for `cudaMemcpyAsync`.
unsafe fn copy(
    driver: &dyn Driver,
    (dst, src): (*mut c_void, *const c_void),
    bytes: usize,
    kind: c_int,
    stream: StreamRef,
) -> DriverResult<()> {
    if bytes == 0 {
        return Ok(());
    }
    let (from_device, to_device) = match kind {
        0..=3 => (kind & 2 != 0, kind & 1 != 0),
        4 => (is_of_device(driver, src)?, is_of_device(driver, dst)?),
        _ => return Err(DriverError::new(INVALID_DIRECTION, "cudaMemcpyAsync")),
    };
    if dst.is_null() || src.is_null() {
        return Err(invalid_value("cudaMemcpyAsync"));
    }
    let length = bytes as u64;
    // SAFETY: the caller guarantees that both ranges are valid and ordered after other work.
    unsafe {
        match (from_device, to_device) {
            (false, false) => {
                driver.stream_synchronize(stream)?;
                src.cast::<u8>().copy_to(dst.cast(), bytes);
                Ok(())
            }
            (false, true) => driver.memcpy_htod_async(device_ptr(dst), src.cast(), length, stream),
            (true, false) => driver.memcpy_dtoh_async(dst.cast(), device_ptr(src), length, stream),
            (true, true) => driver.memcpy_dtod_async(device_ptr(dst), device_ptr(src), length, stream),
        }
    }
}

pub(crate) unsafe extern "C" fn cudaMemcpy(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    kind: c_int,
) -> c_int {
    code(driver().and_then(|driver| {
        // SAFETY: the caller promises the same as for `cudaMemcpyAsync`.
        unsafe { copy(&*driver, (dst, src), bytes, kind, StreamRef::LEGACY) }?;
        driver.stream_synchronize(StreamRef::LEGACY)
    }))
}

pub(crate) unsafe extern "C" fn cudaMemcpyAsync(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    kind: c_int,
    on: Handle,
) -> c_int {
    code(driver().and_then(|driver| {
        let stream = stream(&*driver, on)?;
        // SAFETY: the caller's promises are the same.
        unsafe { copy(&*driver, (dst, src), bytes, kind, stream) }
    }))
}

pub(crate) unsafe extern "C" fn cudaMemset(ptr: *mut c_void, value: c_int, bytes: usize) -> c_int {
    // SAFETY: the caller's promises are the same.
    unsafe { cudaMemsetAsync(ptr, value, bytes, handle(0)) }
}

pub(crate) unsafe extern "C" fn cudaMemsetAsync(
    ptr: *mut c_void,
    value: c_int,
    bytes: usize,
    on: Handle,
) -> c_int {
    code(driver().and_then(|driver| {
        let stream = stream(&*driver, on)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller guarantees that the range is valid and ordered after other work.
        unsafe { driver.memset_d8_async(device_ptr(ptr), value as u8, bytes as u64, stream) }
    }))
}
