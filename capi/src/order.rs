//! Orders streams after each other, for buffers whose owner speaks another language.
//!
//! A buffer has one stream, in whose order it goes back. Work on another stream is put between two calls of
//! `millpond_stream_follow`: that stream follows the buffer's, and then the buffer's follows that one.

use std::ffi::c_void;

use millpond_core::driver::{CaptureModeGuard, DriverResult, Event, EventFlags, call};
use millpond_core::{Driver, DriverHandle, Error, ErrorKind, Result, StreamRef};

use crate::device::{Device, with_device};
use crate::status::{Status, put, stream_of};

/// Calls `body` with an event that ends with the call; a submitted wait keeps the state that it needs.
fn with_event<T>(
    driver: &DriverHandle,
    body: impl FnOnce(&dyn Driver, Event) -> DriverResult<T>,
) -> Result<T> {
    call(&**driver, |driver| {
        let event = driver.event_create(EventFlags::default())?;
        let answer = body(driver, event);
        // SAFETY: the event is this function's own.
        let ended = unsafe { driver.event_destroy(event) };
        answer.and_then(|answer| ended.map(|()| answer))
    })
}

/// Makes the later work of `stream` wait for what was submitted to `other`.
fn order(driver: &DriverHandle, stream: StreamRef, other: StreamRef) -> Result<()> {
    if stream == other {
        return Ok(());
    }
    with_event(driver, |driver, event| {
        driver.event_record(event, other)?;
        driver.stream_wait_event(stream, event)
    })
}

/// Waits for all work on the device, and ends no capture of a graph.
fn wait_for_device(driver: &DriverHandle) -> Result<()> {
    let _captures = CaptureModeGuard::relaxed(&**driver);
    if call(&**driver, |driver| driver.synchronize_beside_captures())? {
        return Ok(());
    }
    let why = "the device cannot be waited for while a graph is captured; end the capture first";
    Err(Error::invalid_argument(why))
}

/// Whether the stream captures a graph. The driver cannot say it of the legacy default stream while a
/// blocking stream captures: then neither may be made to wait for the other.
fn captures(driver: &DriverHandle, stream: StreamRef) -> bool {
    call(&**driver, |driver| driver.stream_is_capturing(stream)).unwrap_or(true)
}

/// Makes the later work of `stream` wait for what was submitted to `other`.
///
/// # Safety
/// `device` is a handle of this library's; both streams are alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_wait(
    device: *const Device,
    stream: *mut c_void,
    other: *mut c_void,
) -> Status {
    with_device(device, |driver| order(driver, stream_of(driver, stream)?, stream_of(driver, other)?))
}

/// Waits for all work on the device, as `millpond_device_synchronize`, and ends no capture of a graph.
///
/// # Safety
/// `device` is a handle of this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_wait(device: *const Device) -> Status {
    with_device(device, wait_for_device)
}

/// The identity of a stream, by which `millpond_stream_follow_if_alive` knows it again.
///
/// # Safety
/// `device` is a handle of this library's; the stream is alive; `id` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_id(
    device: *const Device,
    stream: *mut c_void,
    id: *mut u64,
) -> Status {
    // SAFETY: the caller's promise.
    with_device(device, |driver| unsafe { put(id, stream_of(driver, stream)?.id().get()) })
}

/// Makes the later work of `stream` wait for what was submitted to `other`, as `millpond_stream_wait`. If the
/// driver refuses that, the host waits for `other`. If one of the two captures a graph to which the other
/// does not belong, the host waits for the device: work from before the capture runs, and captured work does
/// not yet. No capture ends by it.
///
/// # Safety
/// `device` is a handle of this library's; both streams are alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_follow(
    device: *const Device,
    stream: *mut c_void,
    other: *mut c_void,
) -> Status {
    with_device(device, |driver| {
        let (stream, other) = (stream_of(driver, stream)?, stream_of(driver, other)?);
        if stream == other {
            return Ok(());
        }
        let graph = |stream| match call(&**driver, |driver| driver.stream_capture_id(stream)) {
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(None),
            answer => answer,
        };
        match (graph(stream), graph(other)) {
            (Ok(None), Ok(None)) => order(driver, stream, other)
                .or_else(|_| call(&**driver, |driver| driver.stream_synchronize(other)))
                .or_else(|_| wait_for_device(driver)),
            (Ok(one), Ok(two)) if one == two => order(driver, stream, other),
            // Also if one is the legacy default stream, while a blocking stream captures.
            _ => wait_for_device(driver),
        }
    })
}

/// The same for a stream of an earlier call, which may have ended since: `id` is what `millpond_stream_id`
/// said of it then. If the stream is not known to live, or one of the two captures a graph, the host waits
/// for the device. No capture ends by it.
///
/// # Safety
/// `device` is a handle of this library's; `stream` is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_follow_if_alive(
    device: *const Device,
    stream: *mut c_void,
    other: *mut c_void,
    id: u64,
) -> Status {
    with_device(device, |driver| {
        let other = StreamRef::from_raw_parts(other.addr() as u64, id);
        let stream = stream_of(driver, stream)?;
        if stream == other {
            return Ok(());
        }
        // A wait for work outside of a capture ends it. The driver itself looks at streams that may be gone.
        if captures(driver, stream) || (other.is_per_thread() && captures(driver, other)) {
            return wait_for_device(driver);
        }
        let followed = with_event(driver, |driver, event| {
            let is_recorded = if other.is_per_thread() {
                driver.event_record(event, other).map(|()| true)
            } else {
                driver.event_record_if_alive(event, other)
            }?;
            if is_recorded {
                driver.stream_wait_event(stream, event)?;
            }
            Ok(is_recorded)
        });
        if followed.is_ok_and(|is_ordered| is_ordered) { Ok(()) } else { wait_for_device(driver) }
    })
}
