//! Copies and fills.

use std::ffi::{c_int, c_uchar, c_uint, c_ushort, c_void};
use std::ptr::null_mut;

use millpond_core::driver::{DriverResult, MemoryKind};
use millpond_core::{Driver, DriverError, StreamRef};

use super::{Api, Driving, Handle, device_ptr, only, stream};
use crate::error::refusal;

/// `cudaErrorInvalidMemcpyDirection`.
const INVALID_DIRECTION: i32 = 21;

/// CUDA's numbers of the directions. Bit 0 says that the destination is on the device, bit 1 that the source
/// is. The last number leaves both to the pointers.
const TO_DEVICE: c_int = 1;
const TO_HOST: c_int = 2;
const ON_DEVICE: c_int = 3;
const BY_POINTERS: c_int = 4;

/// Whether the device's memory holds this address.
fn is_of_device(driver: &dyn Driver, ptr: *const c_void) -> DriverResult<bool> {
    let kind = driver.pointer_kind(device_ptr(ptr))?;
    Ok(matches!(kind, MemoryKind::Device | MemoryKind::Managed))
}

/// Copies between two ranges.
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
        0..=ON_DEVICE => (kind & TO_HOST != 0, kind & TO_DEVICE != 0),
        BY_POINTERS => (is_of_device(driver, src)?, is_of_device(driver, dst)?),
        _ => return Err(refusal(INVALID_DIRECTION)),
    };
    if dst.is_null() || src.is_null() {
        return Err(refusal(DriverError::INVALID_VALUE));
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

pub(crate) unsafe extern "C" fn copy_now<A: Api>(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    kind: c_int,
) -> c_int {
    A::run(|driver| {
        // SAFETY: the caller promises the same as for `cudaMemcpyAsync`.
        unsafe { copy(driver, (dst, src), bytes, kind, stream::<A>(driver, null_mut())?) }?;
        driver.stream_synchronize(A::DEFAULT_STREAM)
    })
}

pub(crate) unsafe extern "C" fn copy_async<A: Api>(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    kind: c_int,
    on: Handle,
) -> c_int {
    A::run(|driver| {
        let stream = stream::<A>(driver, on)?;
        // SAFETY: the caller's promises are the same.
        unsafe { copy(driver, (dst, src), bytes, kind, stream) }
    })
}

/// Declares the driver's copies, whose names say the direction.
macro_rules! directed {
    ($($now:ident, $later:ident = $kind:ident;)*) => {$(
        pub(crate) unsafe extern "C" fn $now<A: Api>(
            dst: *mut c_void,
            src: *const c_void,
            bytes: usize,
        ) -> c_int {
            // SAFETY: the caller's promises are the same.
            unsafe { copy_now::<A>(dst, src, bytes, $kind) }
        }

        pub(crate) unsafe extern "C" fn $later<A: Api>(
            dst: *mut c_void,
            src: *const c_void,
            bytes: usize,
            on: Handle,
        ) -> c_int {
            // SAFETY: the caller's promises are the same.
            unsafe { copy_async::<A>(dst, src, bytes, $kind, on) }
        }
    )*};
}

directed! {
    copy_by_pointers_now, copy_by_pointers = BY_POINTERS;
    copy_to_device_now, copy_to_device = TO_DEVICE;
    copy_to_host_now, copy_to_host = TO_HOST;
    copy_on_device_now, copy_on_device = ON_DEVICE;
}

pub(crate) unsafe extern "C" fn copy_between<A: Api>(
    dst: *mut c_void,
    dst_device: c_int,
    src: *const c_void,
    src_device: c_int,
    bytes: usize,
    on: Handle,
) -> c_int {
    A::run(|driver| {
        only(dst_device, DriverError::INVALID_DEVICE)?;
        only(src_device, DriverError::INVALID_DEVICE)?;
        let stream = stream::<A>(driver, on)?;
        // SAFETY: the caller's promises are the same.
        unsafe { copy(driver, (dst, src), bytes, ON_DEVICE, stream) }
    })
}

/// Both contexts belong to the only device.
pub(crate) unsafe extern "C" fn copy_peer<A: Api>(
    dst: *mut c_void,
    dst_context: Handle,
    src: *const c_void,
    src_context: Handle,
    bytes: usize,
    on: Handle,
) -> c_int {
    A::run(|driver| {
        if dst_context.is_null() || src_context.is_null() {
            return Err(refusal(DriverError::INVALID_CONTEXT));
        }
        let stream = stream::<A>(driver, on)?;
        // SAFETY: the caller's promises are the same.
        unsafe { copy(driver, (dst, src), bytes, ON_DEVICE, stream) }
    })
}

/// Fills a range with a pattern, which begins with the first of `pattern`'s bytes.
///
/// # Safety
/// The range is valid and ordered after other work.
unsafe fn fill<const N: usize>(
    driver: &dyn Driver,
    ptr: *mut c_void,
    pattern: [u8; N],
    count: usize,
    stream: StreamRef,
) -> DriverResult<()> {
    let invalid = || refusal(DriverError::INVALID_VALUE);
    let bytes = count.checked_mul(N).filter(|_| ptr.addr().is_multiple_of(N)).ok_or_else(invalid)?;
    if count == 0 {
        return Ok(());
    }
    let (start, length) = (device_ptr(ptr), bytes as u64);
    if pattern.iter().all(|byte| *byte == pattern[0]) {
        // SAFETY: the caller's promise.
        return unsafe { driver.memset_d8_async(start, pattern[0], length, stream) };
    }
    // The trait fills only with bytes. The driver reads pageable memory before its call returns.
    let source = pattern.repeat(count);
    // SAFETY: the caller's promise for the range; the source has as many bytes.
    unsafe { driver.memcpy_htod_async(start, source.as_ptr(), length, stream) }
}

/// Declares the fills with values of one width: without and with a stream. CUDA's fills without a stream do
/// not wait either.
macro_rules! fills {
    ($($now:ident, $later:ident($value:ty as $width:ty);)*) => {$(
        pub(crate) unsafe extern "C" fn $now<A: Api>(ptr: *mut c_void, value: $value, count: usize) -> c_int {
            // SAFETY: the caller's promises are the same.
            unsafe { $later::<A>(ptr, value, count, std::ptr::null_mut()) }
        }

        pub(crate) unsafe extern "C" fn $later<A: Api>(
            ptr: *mut c_void,
            value: $value,
            count: usize,
            on: Handle,
        ) -> c_int {
            A::run(|driver| {
                let stream = stream::<A>(driver, on)?;
                // SAFETY: the caller guarantees that the range is valid and ordered after other work.
                unsafe { fill(driver, ptr, (value as $width).to_le_bytes(), count, stream) }
            })
        }
    )*};
}

fills! {
    fill_ints_now, fill_ints(c_int as u8);
    fill_bytes_now, fill_bytes(c_uchar as u8);
    fill_shorts_now, fill_shorts(c_ushort as u16);
    fill_words_now, fill_words(c_uint as u32);
}

/// A fill of rows; each row begins `pitch` bytes after the row before.
pub(crate) unsafe extern "C" fn fill_rows(
    ptr: *mut c_void,
    pitch: usize,
    value: c_uchar,
    width: usize,
    height: usize,
) -> c_int {
    Driving::run(|driver| {
        let stream = stream::<Driving>(driver, null_mut())?;
        (0..height).try_for_each(|row| {
            let start = ptr.wrapping_byte_add(row * pitch);
            // SAFETY: the caller guarantees that the rows are valid and ordered after other work.
            unsafe { fill(driver, start, [value], width, stream) }
        })
    })
}
