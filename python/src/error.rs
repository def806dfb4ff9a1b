//! Failures of the library as Python's exceptions.

use std::cell::RefCell;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::{PyBaseException, PyException, PyMemoryError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::api::api;
use crate::gil;

/// What went wrong, taken from the library on the thread that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    status: i32,
    message: String,
    code: i32,
    report: Option<(String, String)>,
}

impl Failure {
    /// An argument that no call of the library's may get.
    pub(crate) fn refused(message: String) -> Self {
        Self { status: 2, message, code: 0, report: None }
    }

    /// What an object asks for that this version of millpond cannot do.
    pub(crate) fn unsupported(message: String) -> Self {
        Self { status: 5, message, code: 0, report: None }
    }

    /// Whether CUDA refused an argument as invalid, as an address of the host where it wants the device's.
    pub(crate) fn is_invalid_value(&self) -> bool {
        self.code == 1
    }

    /// Whether the device is lost, so that it runs no work any more.
    pub(crate) fn is_lost(&self) -> bool {
        self.status == 7
    }

    /// Whether the driver or the library refused the request itself, whatever the state of memory.
    pub(crate) fn is_refusal(&self) -> bool {
        // Invalid argument, unsupported, and CUDA's invalid value, device, and not supported.
        matches!(self.status, 2 | 5) || matches!(self.code, 1 | 101 | 801)
    }
}

/// What a callback of the program's raised.
#[derive(Debug)]
pub(crate) enum Raised {
    /// The cause of the call's own exception.
    Cause(PyErr),
    /// It is raised, and the call's own exception is not.
    Instead(PyErr),
}

impl Raised {
    /// What a function that allocates raised: memory that is out is the cause of the same, and anything else
    /// becomes the `RuntimeError` that RMM makes of it.
    pub(crate) fn by_allocate(py: Python<'_>, error: PyErr) -> Self {
        if error.is_instance_of::<PyMemoryError>(py) {
            return Self::Cause(error);
        }
        // `KeyboardInterrupt`, `SystemExit` and a cancelled task end the program's work, whatever failed. A
        // bare `BaseException` is none of them.
        let is_end = !error.is_instance_of::<PyException>(py)
            && !error.get_type(py).is(py.get_type::<PyBaseException>());
        if error.is_instance_of::<PyRuntimeError>(py) || is_end {
            return Self::Instead(error);
        }
        let made = PyRuntimeError::new_err(error.value(py).to_string());
        made.set_cause(py, Some(error));
        Self::Instead(made)
    }
}

thread_local! {
    /// What a callback raised, for the call that made it.
    static RAISED: RefCell<Option<Raised>> = const { RefCell::new(None) };
    /// The exception that ends the program's work, or that a signal handler raised while a call waited.
    static INTERRUPT: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Whether a callback ever raised: most programs have none, and their calls look no further.
static ANY_RAISED: AtomicBool = AtomicBool::new(false);

/// Keeps a callback's exception until the call fails that made it. An exception that is no error
/// (`KeyboardInterrupt`, `SystemExit`) is raised even if the call is served.
pub(crate) fn keep_raised(py: Python<'_>, raised: Raised) {
    let (Raised::Cause(error) | Raised::Instead(error)) = &raised;
    if error.is_instance_of::<PyException>(py) {
        let _ = RAISED.try_with(|slot| slot.replace(Some(raised)));
        ANY_RAISED.store(true, Ordering::Relaxed);
    } else {
        let _ = INTERRUPT.try_with(|slot| slot.replace(Some(error.clone_ref(py))));
    }
}

/// Whether this may be the thread on which Python handles signals: the first one. Others need no lock of
/// Python's.
fn handles_signals() -> bool {
    #[cfg(target_os = "linux")]
    // SAFETY: both functions ask for nothing.
    unsafe {
        libc::syscall(libc::SYS_gettid) == libc::c_long::from(libc::getpid())
    }
    #[cfg(not(target_os = "linux"))]
    true
}

/// Lets Python handle the signals that came, as a wait of the library's asks. Whether a handler raised, as
/// Ctrl-C does, so that the wait ends.
pub(crate) extern "C" fn is_interrupted() -> bool {
    if INTERRUPT.try_with(|slot| slot.borrow().is_some()).unwrap_or(false) {
        return true;
    }
    if !handles_signals() {
        return false;
    }
    let raised = gil::attached(|py| py.check_signals().err()).flatten();
    raised.is_some_and(|raised| INTERRUPT.try_with(|slot| slot.replace(Some(raised))).is_ok())
}

/// Raises the exception of a signal handler that ran in a call that succeeded nevertheless.
pub(crate) fn raise_interrupt(_py: Python<'_>) -> PyResult<()> {
    taken_interrupt().map_or(Ok(()), Err)
}

fn taken_interrupt() -> Option<PyErr> {
    INTERRUPT.try_with(RefCell::take).ok().flatten()
}

/// Forgets what callbacks raised: the call that made them was served in another way.
#[cold]
fn forget_raised() {
    let is_kept = RAISED.try_with(|slot| slot.borrow().is_some()).unwrap_or(false);
    if is_kept {
        // At the interpreter's end it stays.
        gil::attached(|_| drop(RAISED.try_with(RefCell::take)));
    }
}

/// Makes a status a result; without a need for the GIL.
#[inline]
pub(crate) fn check(status: i32) -> Result<(), Failure> {
    if status != 0 {
        return Err(last_failure(status));
    }
    if ANY_RAISED.load(Ordering::Relaxed) {
        forget_raised();
    }
    Ok(())
}

fn text(text: *const c_char) -> Option<String> {
    // SAFETY: the library's text is null, or lives until the thread's next failing call.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

#[cold]
fn last_failure(status: i32) -> Failure {
    // SAFETY: these functions ask for nothing.
    unsafe {
        let report = text((api().error_report)()).zip(text((api().error_report_json)()));
        Failure {
            status,
            message: text((api().error_message)()).unwrap_or_default(),
            code: (api().error_driver_code)(),
            report,
        }
    }
}

impl From<Failure> for PyErr {
    #[cold]
    fn from(failure: Failure) -> Self {
        static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        Python::attach(|py| {
            if let Some(interrupt) = taken_interrupt() {
                return interrupt;
            }
            let cause = match RAISED.try_with(RefCell::take).ok().flatten() {
                Some(Raised::Instead(error)) => return error,
                Some(Raised::Cause(error)) => Some(error),
                None => None,
            };
            let make = || -> PyResult<Py<PyAny>> {
                Ok(py.import("millpond._errors")?.getattr("from_status")?.unbind())
            };
            let made = MAKE.get_or_try_init(py, make).and_then(|make| {
                let (text, json) = failure.report.unzip();
                let raised = cause.as_ref().map(|error| error.to_string());
                make.bind(py).call1((failure.status, failure.message, failure.code, text, json, raised))
            });
            let error = match made {
                Ok(error) => Self::from_value(error),
                // Ctrl-C while Python makes the exception, for instance.
                Err(error) => return error,
            };
            error.set_cause(py, cause);
            error
        })
    }
}
