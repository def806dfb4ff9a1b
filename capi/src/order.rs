//! Orders the work of streams, for buffers whose owner is written in another language.
//!
//! A buffer belongs to one stream, and is freed in the order of this stream. Before work on another stream
//! uses the buffer, call `millpond_stream_follow` to make that stream wait for the buffer's stream. After you
//! submit the work, call `millpond_stream_follow` again, to make the buffer's stream wait for the other
//! stream.

use std::ffi::c_void;

use millpond_core::driver::{CaptureModeGuard, DriverResult, Event, EventFlags, call};
use millpond_core::{Driver, DriverHandle, Error, ErrorKind, Result, StreamRef};

use crate::device::{Device, with_device};
use crate::status::{Status, put, stream_of};

/// Calls `body` with an event, and destroys the event afterwards. A wait that was submitted does not need the
/// event any longer.
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

/// Makes later work of `stream` wait for the work submitted to `other`.
fn order(driver: &DriverHandle, stream: StreamRef, other: StreamRef) -> Result<()> {
    if stream == other {
        return Ok(());
    }
    with_event(driver, |driver, event| {
        driver.event_record(event, other)?;
        driver.stream_wait_event(stream, event)
    })
}

/// Waits for all work on the device, without ending a capture.
fn wait_for_device(driver: &DriverHandle) -> Result<()> {
    let _captures = CaptureModeGuard::relaxed(&**driver);
    if call(&**driver, |driver| driver.synchronize_beside_captures())? {
        return Ok(());
    }
    let why = "cannot wait for the device while a graph is captured; end the capture first";
    Err(Error::invalid_argument(why))
}

/// Returns whether the stream captures a graph. While a blocking stream captures, the driver cannot answer
/// for the legacy default stream. In that case, neither stream may wait for the other.
fn captures(driver: &DriverHandle, stream: StreamRef) -> bool {
    call(&**driver, |driver| driver.stream_is_capturing(stream)).unwrap_or(true)
}

/// Makes later work of `stream` wait for the work submitted to `other`.
///
/// # Safety
/// `device` is a handle from this library; both streams are alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_wait(
    device: *const Device,
    stream: *mut c_void,
    other: *mut c_void,
) -> Status {
    with_device(device, |driver| order(driver, stream_of(driver, stream)?, stream_of(driver, other)?))
}

/// Waits for all work on the device, like `millpond_device_synchronize`, without ending a capture.
///
/// # Safety
/// `device` is a handle from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_wait(device: *const Device) -> Status {
    with_device(device, wait_for_device)
}

/// Waits for all work that was submitted to the stream, like `millpond_stream_synchronize`, without ending a
/// capture. If the stream captures a graph, the call waits for the device instead. This completes all work
/// from before the capture; captured work does not run yet.
///
/// # Safety
/// `device` is a handle from this library; the stream is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_synchronize_beside_captures(
    device: *const Device,
    stream: *mut c_void,
) -> Status {
    with_device(device, |driver| {
        let stream = stream_of(driver, stream)?;
        if captures(driver, stream) {
            return wait_for_device(driver);
        }
        call(&**driver, |driver| driver.stream_synchronize(stream))
    })
}

/// Writes the identity of a stream, by which `millpond_stream_follow_if_alive` recognises the stream later.
///
/// # Safety
/// `device` is a handle from this library; the stream is alive; `id` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_id(
    device: *const Device,
    stream: *mut c_void,
    id: *mut u64,
) -> Status {
    // SAFETY: the caller's promise.
    with_device(device, |driver| unsafe { put(id, stream_of(driver, stream)?.id().get()) })
}

/// Makes later work of `stream` wait for the work submitted to `other`, like `millpond_stream_wait`. If the
/// driver refuses, the host waits for `other`. If one of the two streams captures a graph, the host waits for
/// the device. This completes all work from before the capture; captured work does not run yet. If both
/// streams belong to one capture, the graph also gets the order. The call ends no capture.
///
/// # Safety
/// `device` is a handle from this library; both streams are alive.
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
            // The graph's order says nothing about work before and after the capture.
            (Ok(one), Ok(two)) if one == two => {
                order(driver, stream, other).and_then(|()| wait_for_device(driver))
            }
            // This also covers a legacy default stream while a blocking stream captures.
            _ => wait_for_device(driver),
        }
    })
}

/// Works like `millpond_stream_follow`, but `other` may have been destroyed since an earlier call. `id` is
/// the identity that `millpond_stream_id` wrote for `other` at that time. The host waits for the device in
/// two cases: the library does not know whether `other` is alive, or one of the two streams captures a graph.
/// The call ends no capture.
///
/// # Safety
/// `device` is a handle from this library; `stream` is alive.
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
        // Waiting for work outside of a capture invalidates the capture. The driver itself checks streams
        // that may have been destroyed.
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
