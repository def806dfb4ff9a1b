//! Failures of the library as Python exceptions.

use std::cell::RefCell;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::{PyBaseException, PyException, PyMemoryError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::api::api;
use crate::gil;

/// A failure of the library, read on the thread that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    status: i32,
    message: String,
    code: i32,
    report: Option<(String, String)>,
}

impl Failure {
    /// Makes the failure for an argument that must not reach the library.
    pub(crate) fn refused(message: String) -> Self {
        Self { status: 2, message, code: 0, report: None }
    }

    /// Makes the failure for a request that this version of millpond cannot serve.
    pub(crate) fn unsupported(message: String) -> Self {
        Self { status: 5, message, code: 0, report: None }
    }

    /// Returns whether the device is lost and runs no more work.
    pub(crate) fn is_lost(&self) -> bool {
        self.status == 7
    }

    /// Returns whether the driver or the library refused the request itself. More free memory would not help.
    pub(crate) fn is_refusal(&self) -> bool {
        // The statuses: invalid argument, unsupported. CUDA's codes: invalid value, invalid device, not
        // supported.
        matches!(self.status, 2 | 5) || matches!(self.code, 1 | 101 | 801)
    }
}

/// An exception that the program's callback raised.
#[derive(Debug)]
pub(crate) enum Raised {
    /// The exception becomes the cause of the exception that the call raises.
    Cause(PyErr),
    /// The call raises this exception instead of its own.
    Instead(PyErr),
}

impl Raised {
    /// Classifies an exception of a function that allocates. An out-of-memory error becomes the cause of
    /// millpond's own error. Any other exception becomes a `RuntimeError`, as in RMM.
    pub(crate) fn by_allocate(py: Python<'_>, error: PyErr) -> Self {
        if error.is_instance_of::<PyMemoryError>(py) {
            return Self::Cause(error);
        }
        // `KeyboardInterrupt`, `SystemExit` and a cancelled task end the program's work, whatever failed. A
        // bare `BaseException` does not.
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
    /// The exception of a callback, kept for the call that ran the callback.
    static RAISED: RefCell<Option<Raised>> = const { RefCell::new(None) };
    /// An exception that ends the program's work, or that a signal handler raised during a wait.
    static INTERRUPT: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Whether a callback has ever raised an exception. In most programs no callback does, and then their calls
/// check nothing more.
static ANY_RAISED: AtomicBool = AtomicBool::new(false);

/// Keeps a callback's exception until the call that ran the callback fails. An exception that is not an error
/// (`KeyboardInterrupt`, `SystemExit`) is raised even if the call succeeds.
pub(crate) fn keep_raised(py: Python<'_>, raised: Raised) {
    let (Raised::Cause(error) | Raised::Instead(error)) = &raised;
    if error.is_instance_of::<PyException>(py) {
        let _ = RAISED.try_with(|slot| slot.replace(Some(raised)));
        ANY_RAISED.store(true, Ordering::Relaxed);
    } else {
        let _ = INTERRUPT.try_with(|slot| slot.replace(Some(error.clone_ref(py))));
    }
}

/// Returns whether this may be the main thread, which handles Python's signals. Other threads need not take
/// the GIL for a check of signals.
fn handles_signals() -> bool {
    #[cfg(target_os = "linux")]
    // SAFETY: both functions take no arguments and have no preconditions.
    unsafe {
        libc::syscall(libc::SYS_gettid) == libc::c_long::from(libc::getpid())
    }
    #[cfg(not(target_os = "linux"))]
    true
}

/// Lets Python handle pending signals during a wait of the library. Returns whether a handler raised an
/// exception, as for Ctrl-C, so that the wait must end.
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

/// Raises the exception of a signal handler that ran during a call that still succeeded.
pub(crate) fn raise_interrupt(_py: Python<'_>) -> PyResult<()> {
    taken_interrupt().map_or(Ok(()), Err)
}

fn taken_interrupt() -> Option<PyErr> {
    INTERRUPT.try_with(RefCell::take).ok().flatten()
}

/// If a call fails in one way and then succeeds in another way, drops the exceptions of its callbacks.
#[cold]
fn forget_raised() {
    let is_kept = RAISED.try_with(|slot| slot.borrow().is_some()).unwrap_or(false);
    if is_kept {
        // At the interpreter's end the exception stays.
        gil::attached(|_| drop(RAISED.try_with(RefCell::take)));
    }
}

/// Turns a status into a result. The caller need not hold the GIL.
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
    // SAFETY: the library's text is null, or valid until the thread's next failing call.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

#[cold]
fn last_failure(status: i32) -> Failure {
    // SAFETY: these functions have no preconditions.
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
                // For instance, Ctrl-C while Python makes the exception.
                Err(error) => return error,
            };
            error.set_cause(py, cause);
            error
        })
    }
}
