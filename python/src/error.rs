//! Failures of the library as Python's exceptions.

use std::cell::RefCell;
use std::ffi::{CStr, c_char};

use pyo3::exceptions::{PyMemoryError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::api::api;

/// What went wrong, taken from the library on the thread that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    status: i32,
    message: String,
    code: i32,
    report: Option<(String, String)>,
}

impl Failure {
    /// Says what the failure is about.
    pub(crate) fn context(self, what: &str) -> Self {
        Self { message: format!("{what}: {}", self.message), ..self }
    }

    /// Whether the driver or the library refused the request itself, whatever the state of memory.
    pub(crate) fn is_refusal(&self) -> bool {
        // Invalid argument, unsupported, and CUDA's invalid value, device, and not supported.
        matches!(self.status, 2 | 5) || matches!(self.code, 1 | 101 | 801)
    }
}

thread_local! {
    /// What a callback of the program's raised, for the call that made it.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Keeps what a callback raised until the call fails that made it.
pub(crate) fn keep_raised(error: PyErr) {
    let _ = RAISED.try_with(|slot| slot.replace(Some(error)));
}

/// Makes a status a result; without a need for the GIL.
#[inline]
pub(crate) fn check(status: i32) -> Result<(), Failure> {
    if status == 0 { Ok(()) } else { Err(last_failure(status)) }
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
            let raised = RAISED.try_with(|slot| slot.take()).ok().flatten();
            if let Some(raised) = &raised
                && !raised.is_instance_of::<PyMemoryError>(py)
            {
                return raised.clone_ref(py);
            }
            let make = || -> PyResult<Py<PyAny>> {
                Ok(py.import("millpond._errors")?.getattr("from_status")?.unbind())
            };
            let made = MAKE.get_or_try_init(py, make).and_then(|make| {
                let (text, json) = failure.report.unzip();
                make.bind(py).call1((failure.status, failure.message, failure.code, text, json))
            });
            let error = match made {
                Ok(error) => Self::from_value(error),
                Err(_) => PyRuntimeError::new_err(format!("error {} of libmillpond", failure.status)),
            };
            error.set_cause(py, raised);
            error
        })
    }
}
