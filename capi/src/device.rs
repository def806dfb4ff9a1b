//! Devices: open and query them, use their streams, and copy memory.

use std::ffi::{c_char, c_void};

use millpond_core::driver::{DriverError, MemoryKind, StreamFlags, call};
use millpond_core::{DeviceId, DevicePtr, DriverHandle, Error, Result, StreamRef};
use millpond_driver::DeviceSpec;
use millpond_resources::memory_pool::explain_access;

use crate::status::{
    Status, borrowed, end, guarded, guarded_here, guarded_or, put, put_handle, put_text, stream_of, text_of,
};

/// A device. A simulated device lives as long as its handles, resources and blocks.
#[derive(Debug)]
pub struct Device(pub(crate) DriverHandle);

/// Opens a device: `cuda:0`, or a new simulated device, such as `sim:h200`, `sim:8GiB` or `sim:FILE.toml`.
/// Null opens the default device of the process, which is always the same one. The library chooses the
/// default device by the first rule that applies: `MILLPOND_DEVICE` names it; `LOCAL_RANK` selects it, if
/// CUDA sees several devices; `cuda:0`; a simulated H200. A handle alone uses no memory of a CUDA device. The
/// first stack or call on the device creates the device's context.
///
/// # Safety
/// `name` is null or a string; `device` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_open(name: *const c_char, device: *mut *mut Device) -> Status {
    guarded_here(|| {
        let spec = if name.is_null() {
            DeviceSpec::default_device()
        } else {
            // SAFETY: the caller's promise.
            unsafe { text_of(name, "the name of the device") }?.parse()?
        };
        // SAFETY: the caller's promise.
        unsafe { put_handle(device, Device(spec.find()?)) }
    })
}

/// Opens the device with this number: CUDA's `ordinal`, or the number of an open simulated device.
///
/// # Safety
/// `device` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_find(
    ordinal: u32,
    is_simulated: bool,
    device: *mut *mut Device,
) -> Status {
    let id = if is_simulated { DeviceId::sim(ordinal) } else { DeviceId::cuda(ordinal) };
    // SAFETY: the caller's promise.
    guarded_here(|| unsafe { put_handle(device, Device(millpond_driver::find(id)?)) })
}

/// Returns whether CUDA can be used. If it can, device numbers are CUDA's numbers, also in `millpond_malloc`.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_cuda_is_available() -> bool {
    guarded_or(false, millpond_driver::cuda::is_available)
}

/// Opens the device of a stream's context. For a default stream (0, 1 or 2), or without CUDA, opens the
/// calling thread's current device.
///
/// # Safety
/// The stream is alive; `device` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_device(stream: *mut c_void, device: *mut *mut Device) -> Status {
    guarded_here(|| {
        let handle = stream.addr() as u64;
        let known = match handle {
            0..=2 => None,
            // SAFETY: the caller's promise.
            _ => unsafe { millpond_driver::cuda::device_of_stream(handle) }?,
        };
        let driver = match known {
            Some(device) => millpond_driver::find(device)?,
            None => millpond_driver::current()?,
        };
        // SAFETY: the caller's promise.
        unsafe { put_handle(device, Device(driver)) }
    })
}

/// Opens the calling thread's current device: the device of CUDA's current context. If there is no such
/// context, opens the default device, as `millpond_device_open` does for null. If CUDA cannot be used, a
/// simulated device must be open.
///
/// # Safety
/// `device` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_current(device: *mut *mut Device) -> Status {
    // SAFETY: the caller's promise.
    guarded_here(|| unsafe { put_handle(device, Device(millpond_driver::current()?)) })
}

/// Frees a handle. Does nothing for null.
///
/// # Safety
/// `device` is null, or a handle from this library, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_free(device: *mut Device) {
    // SAFETY: the caller's promise.
    unsafe { end(device) }
}

/// Returns the number of the device, or -1 for null.
///
/// # Safety
/// `device` is null or a handle from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_ordinal(device: *const Device) -> i32 {
    // SAFETY: the caller's promise.
    let device = unsafe { device.as_ref() };
    guarded_or(-1, || device.map_or(-1, |device| device.0.device().ordinal() as i32))
}

/// Returns whether the device is simulated; `false` for null.
///
/// # Safety
/// `device` is null or a handle from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_is_simulated(device: *const Device) -> bool {
    // SAFETY: the caller's promise.
    let device = unsafe { device.as_ref() };
    guarded_or(false, || device.is_some_and(|device| device.0.device().is_sim()))
}

/// Writes the name of the device, such as `NVIDIA H200`, to `name`; free it with `millpond_string_free`.
///
/// # Safety
/// `device` is a handle from this library; `name` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_name(device: *const Device, name: *mut *mut c_char) -> Status {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { put_text(name, &borrowed(device, "the device")?.0.name()) })
}

/// Writes the free and total bytes of the device.
///
/// # Safety
/// `device` is a handle from this library; both numbers are valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_memory_info(
    device: *const Device,
    free_bytes: *mut u64,
    total_bytes: *mut u64,
) -> Status {
    // SAFETY: the caller's promise.
    with_device(device, |driver| unsafe {
        let info = call(&**driver, |driver| driver.mem_get_info())?;
        put(free_bytes, info.free)?;
        put(total_bytes, info.total)
    })
}

/// Waits for all work on the device.
///
/// # Safety
/// `device` is a handle from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_synchronize(device: *const Device) -> Status {
    with_device(device, |driver| call(&**driver, |driver| driver.synchronize()))
}

pub(crate) fn with_device(device: *const Device, body: impl FnOnce(&DriverHandle) -> Result<()>) -> Status {
    // SAFETY: every function of this module passes the caller's handle, as its own rules require.
    guarded_here(|| body(&unsafe { borrowed(device, "the device") }?.0))
}

// --- Streams ---

/// Makes a stream of the device. Destroy it with `millpond_stream_destroy`.
///
/// # Safety
/// `device` is a handle from this library; `stream` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_create(
    device: *const Device,
    is_non_blocking: bool,
    stream: *mut *mut c_void,
) -> Status {
    with_device(device, |driver| {
        let flags = if is_non_blocking { StreamFlags::NON_BLOCKING } else { StreamFlags::default() };
        let made = call(&**driver, |driver| driver.stream_create(flags))?;
        // SAFETY: the caller's promise.
        unsafe { put(stream, std::ptr::without_provenance_mut(made.handle() as usize)) }
    })
}

/// Destroys a stream. Work that was submitted to it still runs.
///
/// # Safety
/// `device` is a handle from this library; the stream is from `millpond_stream_create` with this device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_destroy(device: *const Device, stream: *mut c_void) -> Status {
    with_device(device, |driver| {
        let stream = stream_of(driver, stream)?;
        // SAFETY: the caller's promise.
        call(&**driver, |driver| unsafe { driver.stream_destroy(stream) })
    })
}

/// Waits for all work on a stream.
///
/// # Safety
/// `device` is a handle from this library; the stream is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_synchronize(device: *const Device, stream: *mut c_void) -> Status {
    with_device(device, |driver| {
        let stream = stream_of(driver, stream)?;
        call(&**driver, |driver| driver.stream_synchronize(stream))
    })
}

/// Sets `is_done` to whether all work of a stream is done.
///
/// # Safety
/// `device` is a handle from this library; the stream is alive; `is_done` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_query(
    device: *const Device,
    stream: *mut c_void,
    is_done: *mut bool,
) -> Status {
    with_device(device, |driver| {
        let stream = stream_of(driver, stream)?;
        // SAFETY: the caller's promise.
        unsafe { put(is_done, call(&**driver, |driver| driver.stream_query(stream))?) }
    })
}

// --- Copies ---

/// Copies from the host to the device in stream order.
///
/// # Safety
/// `device` is a handle from this library; the stream is alive; `bytes` bytes can be read from `source` until
/// the stream has finished the copy, and can be written to `target` in stream order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_copy_to_device(
    device: *const Device,
    target: *mut c_void,
    source: *const c_void,
    bytes: u64,
    stream: *mut c_void,
) -> Status {
    with_device(device, |driver| {
        let stream = stream_of(driver, stream)?;
        // SAFETY: the caller's promise.
        let copied = call(&**driver, |driver| unsafe {
            driver.memcpy_htod_async(device_ptr(target), source.cast(), bytes, stream)
        });
        copied.map_err(|error| explain_access(error, &**driver, &[device_ptr(target)]))
    })
}

/// Copies from the device to the host in stream order.
///
/// # Safety
/// The rules of `millpond_copy_to_device` hold, with host and device exchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_copy_to_host(
    device: *const Device,
    target: *mut c_void,
    source: *const c_void,
    bytes: u64,
    stream: *mut c_void,
) -> Status {
    with_device(device, |driver| {
        let stream = stream_of(driver, stream)?;
        // SAFETY: the caller's promise.
        let copied = call(&**driver, |driver| unsafe {
            driver.memcpy_dtoh_async(target.cast(), device_ptr(source.cast_mut()), bytes, stream)
        });
        copied.map_err(|error| explain_access(error, &**driver, &[device_ptr(source.cast_mut())]))
    })
}

/// Copies within the device in stream order.
///
/// # Safety
/// `device` is a handle from this library; the stream is alive; the ranges hold `bytes` bytes and can be used
/// in stream order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_copy_on_device(
    device: *const Device,
    target: *mut c_void,
    source: *const c_void,
    bytes: u64,
    stream: *mut c_void,
) -> Status {
    with_device(device, |driver| {
        let stream = stream_of(driver, stream)?;
        let (target, source) = (device_ptr(target), device_ptr(source.cast_mut()));
        // SAFETY: the caller's promise.
        let copied =
            call(&**driver, |driver| unsafe { driver.memcpy_dtod_async(target, source, bytes, stream) });
        copied.map_err(|error| explain_access(error, &**driver, &[target, source]))
    })
}

/// Copies to the device in stream order, from device memory or host memory. Like `cudaMemcpyDefault`, it
/// finds out which memory the source is. Memory that the driver does not know counts as host memory.
///
/// # Safety
/// As for `millpond_copy_on_device`. Pinned host memory stays as it is until the stream has finished the
/// copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_copy_from_anywhere(
    device: *const Device,
    target: *mut c_void,
    source: *const c_void,
    bytes: u64,
    stream: *mut c_void,
) -> Status {
    with_device(device, |driver| {
        let (stream, target, from) =
            (stream_of(driver, stream)?, device_ptr(target), device_ptr(source.cast_mut()));
        // SAFETY: the caller's promise.
        let copied = call(&**driver, |driver| unsafe {
            match driver.pointer_kind(from)? {
                MemoryKind::Unknown => driver.memcpy_htod_async(target, source.cast(), bytes, stream),
                _ => driver.memcpy_dtod_async(target, from, bytes, stream),
            }
        });
        copied.map_err(|error| explain_access(error, &**driver, &[target, from]))
    })
}

/// Copies from another device to this one in stream order, and waits for the copy. Neither device needs
/// access to the other's memory. If the devices belong to two machines, as simulated devices do, the bytes go
/// through host memory.
///
/// # Safety
/// Both devices are handles from this library; the stream belongs to `device` and is alive; the ranges hold
/// `bytes` bytes; the work on the source is done, and the target can be used in stream order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_copy_from_device(
    device: *const Device,
    target: *mut c_void,
    source_device: *const Device,
    source: *const c_void,
    bytes: u64,
    stream: *mut c_void,
) -> Status {
    with_device(device, |driver| {
        // SAFETY: the caller's promise.
        let from = &unsafe { borrowed(source_device, "the device of the source") }?.0;
        let (stream, target, source) =
            (stream_of(driver, stream)?, device_ptr(target), device_ptr(source.cast_mut()));
        // SAFETY: the caller's promise.
        let copied = call(&**driver, |driver| unsafe {
            driver.memcpy_peer_async(target, source, from.device(), bytes, stream)
        });
        let copied = match copied {
            Err(error) if is_of_another_machine(&error) => {
                // SAFETY: the caller's promise.
                unsafe { copy_through_host(driver, target, from, source, bytes, stream) }
            }
            answer => answer,
        };
        copied.and(call(&**driver, |driver| driver.stream_synchronize(stream)))
    })
}

fn is_of_another_machine(error: &Error) -> bool {
    error.driver_error().is_some_and(|error| error.code() == DriverError::INVALID_DEVICE)
}

/// # Safety
/// The rules of [`millpond_copy_from_device`] hold.
unsafe fn copy_through_host(
    driver: &DriverHandle,
    target: DevicePtr,
    from: &DriverHandle,
    source: DevicePtr,
    bytes: u64,
    stream: StreamRef,
) -> Result<()> {
    const PART: u64 = 1 << 20;
    let mut part = vec![0_u8; bytes.min(PART) as usize];
    for at in (0..bytes).step_by(PART as usize) {
        let now = PART.min(bytes - at);
        let (target, source) = (target.offset(at), source.offset(at));
        // SAFETY: the caller's promise; the host buffer holds that many bytes, and one copy at a time uses
        // it.
        unsafe {
            call(&**from, |from| {
                from.memcpy_dtoh_async(part.as_mut_ptr(), source, now, StreamRef::LEGACY)?;
                from.stream_synchronize(StreamRef::LEGACY)
            })?;
            call(&**driver, |driver| {
                driver.memcpy_htod_async(target, part.as_ptr(), now, stream)?;
                driver.stream_synchronize(stream)
            })?;
        }
    }
    Ok(())
}

/// Sets each byte of a range of the device's memory in stream order.
///
/// # Safety
/// The rules of `millpond_copy_on_device` hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_fill(
    device: *const Device,
    target: *mut c_void,
    value: u8,
    bytes: u64,
    stream: *mut c_void,
) -> Status {
    with_device(device, |driver| {
        let stream = stream_of(driver, stream)?;
        // SAFETY: the caller's promise.
        call(&**driver, |driver| unsafe { driver.memset_d8_async(device_ptr(target), value, bytes, stream) })
    })
}

/// Moves managed memory to the device or to the host in stream order. Fails for memory that is not managed.
///
/// # Safety
/// `device` is a handle from this library; the stream is alive; the range holds `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_prefetch(
    device: *const Device,
    target: *mut c_void,
    bytes: u64,
    to_host: bool,
    stream: *mut c_void,
) -> Status {
    with_device(device, |driver| {
        let stream = stream_of(driver, stream)?;
        let target = device_ptr(target);
        // SAFETY: the caller's promise.
        call(&**driver, |driver| unsafe { driver.mem_prefetch_async(target, bytes, to_host, stream) })
    })
}

pub(crate) fn device_ptr(ptr: *mut c_void) -> DevicePtr {
    DevicePtr::new(ptr.addr() as u64)
}

/// Returns the device with this number: a CUDA device, or a simulated device if CUDA cannot be used.
pub(crate) fn device_id(number: i32) -> Result<DeviceId> {
    let ordinal = u32::try_from(number);
    let ordinal = ordinal.map_err(|_| Error::invalid_argument(format!("there is no device {number}")))?;
    Ok(if millpond_driver::cuda::is_available() { DeviceId::cuda(ordinal) } else { DeviceId::sim(ordinal) })
}
