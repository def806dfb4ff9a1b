//! Keeps a thread's driver calls from ending CUDA graph captures.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{CaptureMode, Driver, DriverError, DriverResult, Event, ask};
use crate::{DeviceId, StreamRef};

thread_local! {
    /// The device whose guard is the outermost that is in effect on this thread.
    static RELAXED: Cell<Option<DeviceId>> = const { Cell::new(None) };
}

/// While it lives, the calling thread's driver calls leave the captures of graphs alone, those of other
/// threads and its own.
///
/// It exchanges the thread's [`CaptureMode`] for [`Relaxed`](CaptureMode::Relaxed), and puts back what was
/// there (`cuThreadExchangeStreamCaptureMode`, 15 ns for both on an H200). Inside another guard for the same
/// device it makes no call. A resource holds one around each slow path, and none around the fast one.
///
/// Some calls conflict with a capture by necessity, and no mode helps: waiting for the whole context, waiting
/// for a stream that captures or asking it, the same with an event that was recorded in a capture, any use of
/// the legacy default stream while a blocking stream captures, and making a capturing stream wait for an
/// event from outside.
#[must_use = "captures are left alone only while the guard lives"]
pub struct CaptureModeGuard<'a> {
    driver: &'a dyn Driver,
    /// The mode to restore; `None` inside another guard, and with a driver that has no modes.
    previous: Option<(CaptureMode, Option<DeviceId>)>,
    /// A mode belongs to its thread.
    _not_send: PhantomData<*const ()>,
}

impl<'a> CaptureModeGuard<'a> {
    /// Makes the calling thread's mode relaxed until the guard is dropped.
    ///
    /// Skips drivers without modes, and devices that are lost.
    pub fn relaxed(driver: &'a dyn Driver) -> Self {
        let device = driver.device();
        let outer = RELAXED.try_with(Cell::get).ok().flatten();
        let is_needed = outer != Some(device) && !driver.health().is_lost();
        let previous = if is_needed { exchange(driver, CaptureMode::Relaxed) } else { None };
        let previous = previous.map(|mode| (mode, outer));
        if previous.is_some() {
            let _ = RELAXED.try_with(|relaxed| relaxed.set(Some(device)));
        }
        Self { driver, previous, _not_send: PhantomData }
    }
}

impl Drop for CaptureModeGuard<'_> {
    fn drop(&mut self) {
        if let Some((mode, outer)) = self.previous {
            let _ = RELAXED.try_with(|relaxed| relaxed.set(outer));
            // A driver that took the relaxed mode takes the old one, unless it was lost meanwhile. If it
            // panics, the caller still gets its block, and a panic under way does not end the process.
            let exchanged = catch_unwind(AssertUnwindSafe(|| exchange(self.driver, mode)));
            // The end of what was panicked with may panic, too.
            exchanged.map_or_else(std::mem::forget, drop);
        }
    }
}

/// Sets the calling thread's mode and returns the previous one. Notes in the device's health that it is lost.
fn exchange(driver: &dyn Driver, mode: CaptureMode) -> Option<CaptureMode> {
    let exchanged = driver.thread_exchange_stream_capture_mode(mode);
    exchanged.inspect_err(|error| driver.health().note(error)).ok()
}

/// Whether work that is submitted to the stream now would be a part of a graph, or end its capture.
///
/// # Errors
/// What the driver reports, but for a refusal because of a capture, and if it knows no captures.
pub fn is_capturing(driver: &dyn Driver, stream: StreamRef) -> DriverResult<bool> {
    match ask(driver, |driver| driver.stream_is_capturing(stream)) {
        Err(error) if error.is_capture_refusal() => Ok(true),
        Err(error) if error.is_unsupported() => Ok(false),
        answer => answer,
    }
}

/// Records the event on a stream that is certainly alive, unless the stream captures a graph; returns whether
/// it did.
///
/// # Errors
/// What the driver reports; [`DriverError::CAPTURED_EVENT`] if a capture began during the call.
pub fn record_unless_capturing(driver: &dyn Driver, event: Event, stream: StreamRef) -> DriverResult<bool> {
    if is_capturing(driver, stream)? {
        return Ok(false);
    }
    driver.event_record(event, stream)?;
    // If a capture began before the record, the record is a part of it.
    if is_capturing(driver, stream)? {
        return Err(DriverError::new(DriverError::CAPTURED_EVENT, "cuEventRecord"));
    }
    Ok(true)
}

impl fmt::Debug for CaptureModeGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureModeGuard").field("previous", &self.previous).finish_non_exhaustive()
    }
}
