//! The status of a call, and the last error of each thread.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use millpond_core::driver::call;
use millpond_core::{DeviceMemoryResource, DriverError, DriverHandle, Error, ErrorKind, Result, StreamRef};

use crate::first_call::start_log;
use crate::process::{check_process, notice_forks};

/// The outcome of a call.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::exhaustive_enums, reason = "the C interface fixes it")]
pub enum Status {
    /// The call succeeded.
    Ok = 0,
    /// No free block is large enough, even after waiting for the device.
    OutOfMemory = 1,
    /// An argument is invalid. More free memory would not help.
    InvalidArgument = 2,
    /// The text of a stack is malformed, or names a layer or an option that does not exist.
    InvalidStack = 3,
    /// There is no CUDA driver, or no such device.
    NoDevice = 4,
    /// The driver or the device does not support the operation.
    Unsupported = 5,
    /// The driver reported an error.
    Driver = 6,
    /// The driver cannot recover from an earlier error, or the device's context was reset.
    Poisoned = 7,
    /// Reading or writing a file failed.
    Io = 8,
    /// A bug in millpond. Please report it.
    Internal = 9,
    /// Another thread's call holds a single-threaded resource, and does not end.
    Busy = 10,
}

/// The error of this thread's last failed call.
#[derive(Default)]
struct LastError {
    message: CString,
    report: Option<(CString, CString)>,
    driver_code: i32,
}

thread_local! {
    static LAST: RefCell<LastError> = RefCell::default();
}

fn status_of(error: &Error) -> Status {
    match error.kind() {
        ErrorKind::OutOfMemory => Status::OutOfMemory,
        ErrorKind::InvalidArgument => Status::InvalidArgument,
        ErrorKind::InvalidStack => Status::InvalidStack,
        ErrorKind::NoDevice => Status::NoDevice,
        ErrorKind::Unsupported => Status::Unsupported,
        ErrorKind::Poisoned => Status::Poisoned,
        ErrorKind::Io => Status::Io,
        ErrorKind::Busy => Status::Busy,
        _ => Status::Driver,
    }
}

/// Converts text for C: a NUL inside becomes a space.
pub(crate) fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

fn remember(error: &Error) {
    let report = error.out_of_memory_report().map(|report| {
        let json = serde_json::to_string(report).unwrap_or_default();
        (c_string(&report.to_string()), c_string(&json))
    });
    let driver_code = error.driver_error().map_or(0, |error| error.code());
    let last = LastError { message: c_string(&error.to_string()), report, driver_code };
    // At the end of a thread, its error may be gone already.
    let _ = LAST.try_with(|slot| slot.replace(last));
}

/// Puts `text` in front of the message of this thread's last error.
pub(crate) fn begin_last_message(text: &str) {
    let _ = LAST.try_with(|slot| {
        let mut last = slot.borrow_mut();
        last.message = c_string(&format!("{text}{}", last.message.to_string_lossy()));
    });
}

fn remember_panic(panic: &(dyn Any + Send)) {
    let text = panic.downcast_ref::<&str>().copied();
    let text =
        text.or_else(|| panic.downcast_ref().map(String::as_str)).unwrap_or("a panic without a message");
    let message = c_string(&format!("a bug in millpond, please report it: {text}"));
    let _ = LAST.try_with(|slot| slot.replace(LastError { message, ..LastError::default() }));
}

/// Runs the body of a call of the ABI. Stores the error of the call, and lets no panic out.
pub(crate) fn guarded(body: impl FnOnce() -> Result<()>) -> Status {
    let with_log = || {
        start_log();
        body()
    };
    match catch_unwind(AssertUnwindSafe(with_log)) {
        Ok(Ok(())) => Status::Ok,
        Ok(Err(error)) => {
            remember(&error);
            status_of(&error)
        }
        Err(panic) => {
            remember_panic(&*panic);
            Status::Internal
        }
    }
}

/// Works like `guarded`, for a call that uses a device. A forked child cannot make such a call: it has no
/// device of its own, and locks that other threads held at the fork are never released.
pub(crate) fn guarded_here(body: impl FnOnce() -> Result<()>) -> Status {
    guarded(|| {
        check_process()?;
        body()
    })
}

/// Works like `guarded`, for a call that cannot fail.
pub(crate) fn guarded_or<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        remember_panic(&*panic);
        otherwise
    })
}

pub(crate) fn missing(what: &str) -> Error {
    Error::invalid_argument(format!("{what} is a null pointer"))
}

/// Returns the value behind a handle.
///
/// # Safety
/// The handle is null, or is from this library and was not freed.
pub(crate) unsafe fn borrowed<'a, T>(handle: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.ok_or_else(|| missing(what))
}

/// Checks the caller's pointer for a result. A result that the caller must free is made after this check.
fn check_out<T>(out: *mut T) -> Result<()> {
    if out.is_null() { Err(missing("the pointer for a result")) } else { Ok(()) }
}

/// Writes a result through the caller's pointer.
///
/// # Safety
/// `out` is null or valid for writes.
pub(crate) unsafe fn put<T>(out: *mut T, value: T) -> Result<()> {
    check_out(out)?;
    // SAFETY: the caller's promise.
    unsafe { out.write(value) };
    Ok(())
}

/// Returns a value to the caller as a handle.
///
/// # Safety
/// The rules of [`put`] hold.
pub(crate) unsafe fn put_handle<T>(out: *mut *mut T, value: T) -> Result<()> {
    check_out(out)?;
    notice_forks();
    // SAFETY: the caller's promise.
    unsafe { out.write(Box::into_raw(Box::new(value))) };
    Ok(())
}

/// Frees a handle.
///
/// # Safety
/// The handle is null, or is from [`put_handle`] and is not used again.
pub(crate) unsafe fn end<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: the caller's promise.
        guarded_or((), || drop(unsafe { Box::from_raw(handle) }));
    }
}

/// Returns the caller's text.
///
/// # Safety
/// `text` is null, or a string that ends in NUL and lives as long as the result.
pub(crate) unsafe fn text_of<'a>(text: *const c_char, what: &str) -> Result<&'a str> {
    if text.is_null() {
        return Err(missing(what));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Error::invalid_argument(format!("{what} is not UTF-8")))
}

/// Converts a stream from C.
pub(crate) fn stream_of(driver: &DriverHandle, stream: *mut c_void) -> Result<StreamRef> {
    let handle = stream.addr() as u64;
    if handle <= StreamRef::PER_THREAD.handle() {
        return Ok(StreamRef::from_raw_parts(handle, 0));
    }
    // SAFETY: by the rules of the ABI, the stream is alive during the call. Resources check a stream of an
    // earlier call before they use it.
    call(&**driver, |driver| unsafe { driver.stream_ref(handle) }).map_err(|error| {
        match error.driver_error().is_some_and(|error| error.code() == DriverError::INVALID_HANDLE) {
            true => Error::invalid_argument(format!(
                "{} has no stream {handle:#x}: it was destroyed, or it belongs to another device; keep a \
                 stream until its last use, and use a stream of the memory's device",
                driver.device()
            )),
            false => error,
        }
    })
}

/// Converts a default stream from C. Returns `None` for other streams, which only the driver can identify.
pub(crate) fn default_stream(stream: *mut c_void) -> Option<StreamRef> {
    let handle = stream.addr() as u64;
    (handle <= StreamRef::PER_THREAD.handle()).then(|| StreamRef::from_raw_parts(handle, 0))
}

/// Works like `stream_of`, on the device of a resource.
pub(crate) fn stream_on(resource: &dyn DeviceMemoryResource, stream: *mut c_void) -> Result<StreamRef> {
    stream_of(resource.driver(), stream)
}

/// Returns a text to the caller, who frees it with `millpond_string_free`.
///
/// # Safety
/// The rules of [`put`] hold.
pub(crate) unsafe fn put_text(out: *mut *mut c_char, text: &str) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { put_c_string(out, c_string(text)) }
}

/// Works like [`put_text`].
///
/// # Safety
/// The rules of [`put`] hold.
pub(crate) unsafe fn put_c_string(out: *mut *mut c_char, text: CString) -> Result<()> {
    check_out(out)?;
    // SAFETY: the caller's promise.
    unsafe { put(out, text.into_raw()) }
}

/// Frees a text from this library. Does nothing for null.
///
/// # Safety
/// `text` is null, or comes from a function whose documentation names this function. `text` is not used
/// again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_string_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// Returns the version of this interface. It grows by 1 with each change that breaks programs. A new function
/// alone does not change it.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_abi_version() -> u32 {
    0
}

/// Returns the version of the library, such as `0.1.0`. Never free it.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Returns the reason of the last failed call on this thread, and advice. The text is valid until the
/// thread's next failing call.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_error_message() -> *const c_char {
    LAST.try_with(|last| last.borrow().message.as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the driver's code (`CUresult`) of the last failed call on this thread. Returns 0 if the driver
/// reported no error.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_error_driver_code() -> i32 {
    LAST.try_with(|last| last.borrow().driver_code).unwrap_or_default()
}

fn report_with(choose: impl FnOnce(&(CString, CString)) -> *const c_char) -> *const c_char {
    LAST.try_with(|last| last.borrow().report.as_ref().map_or(std::ptr::null(), choose))
        .unwrap_or(std::ptr::null())
}

/// Returns a report of the memory at the last failed call on this thread, and advice, as text. Returns null
/// if the call did not run out of memory, or if there is no report. The text is valid until the thread's next
/// failing call.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_error_report() -> *const c_char {
    report_with(|report| report.0.as_ptr())
}

/// Returns the report of `millpond_error_report` as JSON.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_error_report_json() -> *const c_char {
    report_with(|report| report.1.as_ptr())
}
