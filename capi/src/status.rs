//! The status of a call, and the error of the last one that failed.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use millpond_core::driver::call;
use millpond_core::{DeviceMemoryResource, DriverError, DriverHandle, Error, ErrorKind, Result, StreamRef};

use crate::first_call::start_log;
use crate::process::{check_process, notice_forks};

/// The outcome of a call.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// The call did what it says.
    Ok = 0,
    /// There is no free block of that size, even after waiting for the device.
    OutOfMemory = 1,
    /// An argument is invalid in any state of memory.
    InvalidArgument = 2,
    /// The text of a stack cannot be read, or names something that does not exist.
    InvalidStack = 3,
    /// There is no CUDA driver, or no such device.
    NoDevice = 4,
    /// The driver or the device cannot do it.
    Unsupported = 5,
    /// The driver reported an error.
    Driver = 6,
    /// An earlier error of the driver cannot be recovered from, or the device's context was reset.
    Poisoned = 7,
    /// Reading or writing a file failed.
    Io = 8,
    /// A fault of millpond itself. Please report it.
    Internal = 9,
    /// Another thread's call is in a resource that lets one thread in at a time, and does not end.
    Busy = 10,
}

/// The error of the last call that failed on this thread.
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

/// The text as C reads it: a NUL inside becomes a space.
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
    // At the end of a thread its error may be gone already.
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
    let text = text.or_else(|| panic.downcast_ref().map(String::as_str)).unwrap_or("a panic without a text");
    let message = c_string(&format!("a fault of millpond, please report it: {text}"));
    let _ = LAST.try_with(|slot| slot.replace(LastError { message, ..LastError::default() }));
}

/// Runs the body of a call of the ABI: remembers its error, and lets no panic out.
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

/// The same for a call that uses a device. A forked child cannot: it has no device of its own, and of the
/// locks that other threads held at the fork, none is ever released.
pub(crate) fn guarded_here(body: impl FnOnce() -> Result<()>) -> Status {
    guarded(|| {
        check_process()?;
        body()
    })
}

/// The same for a call that cannot fail.
pub(crate) fn guarded_or<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        remember_panic(&*panic);
        otherwise
    })
}

pub(crate) fn missing(what: &str) -> Error {
    Error::invalid_argument(format!("{what} is a null pointer"))
}

/// The value behind a handle.
///
/// # Safety
/// The handle is null, or one of this library's that was not freed.
pub(crate) unsafe fn borrowed<'a, T>(handle: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.ok_or_else(|| missing(what))
}

/// Writes a result where the caller wants it.
///
/// # Safety
/// `out` is null, or may be written.
pub(crate) unsafe fn put<T>(out: *mut T, value: T) -> Result<()> {
    if out.is_null() {
        return Err(missing("the place for a result"));
    }
    // SAFETY: the caller's promise.
    unsafe { out.write(value) };
    Ok(())
}

/// Hands a value out as a handle.
///
/// # Safety
/// As for [`put`].
pub(crate) unsafe fn put_handle<T>(out: *mut *mut T, value: T) -> Result<()> {
    if out.is_null() {
        return Err(missing("the place for a result"));
    }
    notice_forks();
    // SAFETY: the caller's promise.
    unsafe { out.write(Box::into_raw(Box::new(value))) };
    Ok(())
}

/// Ends a handle.
///
/// # Safety
/// The handle is null, or one of [`put_handle`]'s that ends here.
pub(crate) unsafe fn end<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: the caller's promise.
        guarded_or((), || drop(unsafe { Box::from_raw(handle) }));
    }
}

/// The caller's text.
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

/// A stream as C passes it.
pub(crate) fn stream_of(driver: &DriverHandle, stream: *mut c_void) -> Result<StreamRef> {
    let handle = stream.addr() as u64;
    if handle <= StreamRef::PER_THREAD.handle() {
        return Ok(StreamRef::from_raw_parts(handle, 0));
    }
    // SAFETY: by the rules of the ABI the stream is alive during the call; resources ask before they use a
    // stream of an earlier call.
    call(&**driver, |driver| unsafe { driver.stream_ref(handle) }).map_err(|error| {
        match error.driver_error().is_some_and(|error| error.code() == DriverError::INVALID_HANDLE) {
            true => Error::invalid_argument(format!(
                "{} has no stream {handle:#x}: it has ended, or it is another device's; keep a stream until \
                 its last use, and use one of the memory's device",
                driver.device()
            )),
            false => error,
        }
    })
}

/// A default stream as C passes it; others are identified by the driver.
pub(crate) fn default_stream(stream: *mut c_void) -> Option<StreamRef> {
    let handle = stream.addr() as u64;
    (handle <= StreamRef::PER_THREAD.handle()).then(|| StreamRef::from_raw_parts(handle, 0))
}

/// The same on the device of a resource.
pub(crate) fn stream_on(resource: &dyn DeviceMemoryResource, stream: *mut c_void) -> Result<StreamRef> {
    stream_of(resource.driver(), stream)
}

/// Hands out a text, which the caller ends with `millpond_string_free`.
///
/// # Safety
/// As for [`put`].
pub(crate) unsafe fn put_text(out: *mut *mut c_char, text: &str) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { put(out, c_string(text).into_raw()) }
}

/// Ends a text that this library handed out. Does nothing for null.
///
/// # Safety
/// `text` is null, or from a function of this library that says so, and ends here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_string_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// The version of this interface. It grows by 1 with each change that breaks programs; functions may be added
/// without one.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_abi_version() -> u32 {
    0
}

/// The version of the library, as `0.1.0`. Never freed.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// What was wrong at the last failing call on this thread, and what to do about it. Valid until the thread's
/// next failing call.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_error_message() -> *const c_char {
    LAST.try_with(|last| last.borrow().message.as_ptr()).unwrap_or(c"".as_ptr())
}

/// The code of the driver (`CUresult`) at the last failing call on this thread; 0 if it was no error of the
/// driver.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_error_driver_code() -> i32 {
    LAST.try_with(|last| last.borrow().driver_code).unwrap_or_default()
}

fn report_with(choose: impl FnOnce(&(CString, CString)) -> *const c_char) -> *const c_char {
    LAST.try_with(|last| last.borrow().report.as_ref().map_or(std::ptr::null(), choose))
        .unwrap_or(std::ptr::null())
}

/// The state of memory at the last failing call on this thread, and what would have helped, as text. Null if
/// the call did not run out of memory, or nothing is known. Valid until the thread's next failing call.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_error_report() -> *const c_char {
    report_with(|report| report.0.as_ptr())
}

/// The same as JSON.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_error_report_json() -> *const c_char {
    report_with(|report| report.1.as_ptr())
}
