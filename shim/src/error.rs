//! The codes that CUDA's calls return, and the last error of each thread.

use std::cell::Cell;
use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;

use millpond_core::DriverError;
use millpond_core::driver::DriverResult;

/// `cudaSuccess`.
const SUCCESS: c_int = 0;

/// `cudaErrorUnknown`.
const UNKNOWN: c_int = 999;

thread_local! {
    static LAST: Cell<c_int> = const { Cell::new(SUCCESS) };
}

/// The code for a result, which becomes the thread's last error if the call failed. CUDA's runtime and its
/// driver have equal codes. Work that is not ready is no error: measured with CUDA 13.0 on an H100.
pub(crate) fn code(result: DriverResult<()>) -> c_int {
    let code = match result {
        Ok(()) => return SUCCESS,
        Err(error) if error.is_unsupported() => DriverError::NOT_SUPPORTED,
        Err(error) if error.code() < 0 => DriverError::NO_DEVICE,
        Err(error) => error.code(),
    };
    if code != DriverError::NOT_READY {
        LAST.try_with(|last| last.set(code)).unwrap_or_default();
    }
    code
}

/// Takes the thread's last error.
pub(crate) fn take_last() -> c_int {
    LAST.try_with(|last| last.replace(SUCCESS)).unwrap_or(SUCCESS)
}

/// The thread's last error.
pub(crate) fn last() -> c_int {
    LAST.try_with(Cell::get).unwrap_or(SUCCESS)
}

/// The error of a call with an argument that it cannot take.
pub(crate) fn invalid_value(call: &'static str) -> DriverError {
    DriverError::new(DriverError::INVALID_VALUE, call)
}

/// The place for a result of a call; a null pointer is an invalid argument.
///
/// # Safety
/// `place` is null or points to writable memory for a `T`, during the call.
pub(crate) unsafe fn place<'a, T>(place: *mut T, call: &'static str) -> DriverResult<&'a mut MaybeUninit<T>> {
    // SAFETY: the caller guarantees that the memory is writable; `MaybeUninit` may be uninitialised.
    unsafe { place.cast::<MaybeUninit<T>>().as_mut() }.ok_or_else(|| invalid_value(call))
}

/// CUDA's names and texts of the codes.
const TEXTS: [(c_int, &CStr, &CStr); 23] = [
    (SUCCESS, c"cudaSuccess", c"no error"),
    (1, c"cudaErrorInvalidValue", c"invalid argument"),
    (2, c"cudaErrorMemoryAllocation", c"out of memory"),
    (3, c"cudaErrorInitializationError", c"initialization error"),
    (4, c"cudaErrorCudartUnloading", c"driver shutting down"),
    (21, c"cudaErrorInvalidMemcpyDirection", c"invalid copy direction for memcpy"),
    (100, c"cudaErrorNoDevice", c"no CUDA-capable device is detected"),
    (101, c"cudaErrorInvalidDevice", c"invalid device ordinal"),
    (201, c"cudaErrorDeviceUninitialized", c"invalid device context"),
    (400, c"cudaErrorInvalidResourceHandle", c"invalid resource handle"),
    (401, c"cudaErrorIllegalState", c"the operation cannot be performed in the present state"),
    (500, c"cudaErrorSymbolNotFound", c"named symbol not found"),
    (600, c"cudaErrorNotReady", c"device not ready"),
    (700, c"cudaErrorIllegalAddress", c"an illegal memory access was encountered"),
    (709, c"cudaErrorContextIsDestroyed", c"context is destroyed"),
    (800, c"cudaErrorNotPermitted", c"operation not permitted"),
    (801, c"cudaErrorNotSupported", c"operation not supported"),
    (900, c"cudaErrorStreamCaptureUnsupported", c"operation not permitted when stream is capturing"),
    (901, c"cudaErrorStreamCaptureInvalidated", c"operation failed due to a previous error during capture"),
    (903, c"cudaErrorStreamCaptureUnmatched", c"capture was not ended in the same stream as it began"),
    (906, c"cudaErrorStreamCaptureImplicit", c"operation would make the legacy stream depend on a capture"),
    (907, c"cudaErrorCapturedEvent", c"operation not permitted on an event last recorded in a capture"),
    (UNKNOWN, c"cudaErrorUnknown", c"unknown error"),
];

/// The name and the text of a code.
pub(crate) fn texts(code: c_int) -> (&'static CStr, &'static CStr) {
    let found = TEXTS.iter().find(|(known, _, _)| *known == code);
    found.map_or((c"unrecognized error code", c"unrecognized error code"), |(_, name, text)| (name, text))
}
