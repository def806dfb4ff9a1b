//! The codes that CUDA's calls return, and the last error of each thread.

use std::cell::Cell;
use std::error::Error;
use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::path::Path;

use millpond_core::DriverError;
use millpond_core::driver::DriverResult;

/// `cudaSuccess`.
const SUCCESS: c_int = 0;

thread_local! {
    static LAST: Cell<c_int> = const { Cell::new(SUCCESS) };
}

/// The code for a result. CUDA's runtime and its driver have equal codes.
pub(crate) fn code(result: &DriverResult<()>) -> c_int {
    match result {
        Ok(()) => SUCCESS,
        Err(error) if error.is_unsupported() => DriverError::NOT_SUPPORTED,
        Err(error) if error.code() < 0 => DriverError::NO_DEVICE,
        Err(error) => error.code(),
    }
}

/// Makes the code of a failed call the thread's last error. Work that is not ready is no error: measured with
/// CUDA 13.0 on an H100.
pub(crate) fn note(code: c_int) {
    if code != SUCCESS && code != DriverError::NOT_READY {
        LAST.try_with(|last| last.set(code)).unwrap_or_default();
    }
}

/// Takes the thread's last error.
pub(crate) fn take_last() -> c_int {
    LAST.try_with(|last| last.replace(SUCCESS)).unwrap_or(SUCCESS)
}

/// The thread's last error.
pub(crate) fn last() -> c_int {
    LAST.try_with(Cell::get).unwrap_or(SUCCESS)
}

/// The problem with a library, with the linker's reason, which `libloading` keeps out of its own text.
pub(crate) fn problem(file: &Path, error: &libloading::Error) -> String {
    let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    format!("{}: {reason}", file.display())
}

/// An error with this code. Programs see only the code, so the error names no function.
pub(crate) fn refusal(code: i32) -> DriverError {
    DriverError::new(code, "a call of CUDA")
}

/// The place for a result of a call; a null pointer is an invalid argument.
///
/// # Safety
/// `place` is null or points to writable memory for a `T`, during the call.
pub(crate) unsafe fn place<'a, T>(place: *mut T) -> DriverResult<&'a mut MaybeUninit<T>> {
    // SAFETY: the caller guarantees that the memory is writable; `MaybeUninit` may be uninitialised.
    unsafe { place.cast::<MaybeUninit<T>>().as_mut() }.ok_or_else(|| refusal(DriverError::INVALID_VALUE))
}

/// A code's names in CUDA's runtime and driver, and its text.
pub(crate) struct Texts {
    code: c_int,
    pub(crate) runtime: &'static CStr,
    /// `None` for a code that only the runtime has.
    pub(crate) driver: Option<&'static CStr>,
    pub(crate) text: &'static CStr,
}

/// Declares the codes. The driver's names have a common start.
macro_rules! texts {
    (@driver) => { None };
    (@driver $driver:literal) => { Some(joined(concat!("CUDA_", $driver, "\0"))) };
    ($($code:literal $runtime:literal $($driver:literal)?: $text:literal;)*) => {
        &[$(Texts {
            code: $code,
            runtime: joined(concat!("cuda", $runtime, "\0")),
            driver: texts!(@driver $($driver)?),
            text: joined(concat!($text, "\0")),
        },)*]
    };
}

/// A text with its end.
const fn joined(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the texts have no NUL"),
    }
}

const TEXTS: &[Texts] = texts! {
    0 "Success" "SUCCESS": "no error";
    1 "ErrorInvalidValue" "ERROR_INVALID_VALUE": "invalid argument";
    2 "ErrorMemoryAllocation" "ERROR_OUT_OF_MEMORY": "out of memory";
    3 "ErrorInitializationError" "ERROR_NOT_INITIALIZED": "initialization error";
    4 "ErrorCudartUnloading" "ERROR_DEINITIALIZED": "driver shutting down";
    21 "ErrorInvalidMemcpyDirection": "invalid copy direction for memcpy";
    100 "ErrorNoDevice" "ERROR_NO_DEVICE": "no CUDA-capable device is detected";
    101 "ErrorInvalidDevice" "ERROR_INVALID_DEVICE": "invalid device ordinal";
    201 "ErrorDeviceUninitialized" "ERROR_INVALID_CONTEXT": "invalid device context";
    214 "ErrorECCUncorrectable" "ERROR_ECC_UNCORRECTABLE": "uncorrectable ECC error encountered";
    400 "ErrorInvalidResourceHandle" "ERROR_INVALID_HANDLE": "invalid resource handle";
    401 "ErrorIllegalState" "ERROR_ILLEGAL_STATE": "the operation cannot be performed in the present state";
    500 "ErrorSymbolNotFound" "ERROR_NOT_FOUND": "named symbol not found";
    600 "ErrorNotReady" "ERROR_NOT_READY": "device not ready";
    700 "ErrorIllegalAddress" "ERROR_ILLEGAL_ADDRESS": "an illegal memory access was encountered";
    709 "ErrorContextIsDestroyed" "ERROR_CONTEXT_IS_DESTROYED": "context is destroyed";
    712 "ErrorHostMemoryAlreadyRegistered" "ERROR_HOST_MEMORY_ALREADY_REGISTERED":
        "part or all of the requested memory range is already mapped";
    713 "ErrorHostMemoryNotRegistered" "ERROR_HOST_MEMORY_NOT_REGISTERED":
        "pointer does not correspond to a registered memory region";
    800 "ErrorNotPermitted" "ERROR_NOT_PERMITTED": "operation not permitted";
    801 "ErrorNotSupported" "ERROR_NOT_SUPPORTED": "operation not supported";
    900 "ErrorStreamCaptureUnsupported" "ERROR_STREAM_CAPTURE_UNSUPPORTED":
        "operation not permitted when stream is capturing";
    901 "ErrorStreamCaptureInvalidated" "ERROR_STREAM_CAPTURE_INVALIDATED":
        "operation failed due to a previous error during capture";
    903 "ErrorStreamCaptureUnmatched" "ERROR_STREAM_CAPTURE_UNMATCHED":
        "capture was not ended in the same stream as it began";
    904 "ErrorStreamCaptureUnjoined" "ERROR_STREAM_CAPTURE_UNJOINED": "capturing stream has unjoined work";
    905 "ErrorStreamCaptureIsolation" "ERROR_STREAM_CAPTURE_ISOLATION":
        "dependency created on uncaptured work in another stream";
    906 "ErrorStreamCaptureImplicit" "ERROR_STREAM_CAPTURE_IMPLICIT":
        "operation would make the legacy stream depend on a capture";
    907 "ErrorCapturedEvent" "ERROR_CAPTURED_EVENT":
        "operation not permitted on an event last recorded in a capture";
    908 "ErrorStreamCaptureWrongThread" "ERROR_STREAM_CAPTURE_WRONG_THREAD":
        "attempt to terminate a thread-local capture sequence from another thread";
    999 "ErrorUnknown" "ERROR_UNKNOWN": "unknown error";
};

/// The names and the text of a code.
pub(crate) fn texts(code: c_int) -> Option<&'static Texts> {
    TEXTS.iter().find(|texts| texts.code == code)
}
