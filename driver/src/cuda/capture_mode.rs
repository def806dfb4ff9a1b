//! The calling thread's capture mode.

use millpond_core::driver::{CaptureMode, DriverResult};

use super::abi;
use super::functions::Functions;

/// Sets the calling thread's mode and returns the previous one.
pub(super) fn exchange_mode(functions: &Functions, mode: CaptureMode) -> DriverResult<CaptureMode> {
    let mut mode = abi::capture_mode(mode);
    // SAFETY: the call replaces `mode` with the mode that the thread had.
    unsafe { functions.thread_exchange_stream_capture_mode(&raw mut mode) }?;
    Ok(abi::capture_mode_from(mode))
}
