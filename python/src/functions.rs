//! The Python functions behind callback resources and failure handlers.

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::api::Raw;
use crate::arguments::read;
use crate::device::{Stream, StreamHandle};
use crate::error::{Raised, keep_raised};
use crate::gil;

/// The functions of one resource, which keeps them as its context.
pub(crate) type Functions = Vec<Py<PyAny>>;

/// Makes a context of Python functions. `end_functions` frees it.
pub(crate) fn context_of(functions: impl Into<Functions>) -> Raw {
    Box::into_raw(Box::new(functions.into())).cast()
}

/// Returns the Python functions of a context.
///
/// # Safety
/// [`context_of`] made the context, and it was not freed.
pub(crate) unsafe fn context<'a>(context: Raw) -> &'a Functions {
    // SAFETY: the caller's promise.
    unsafe { &*context.cast::<Functions>() }
}

fn stream_object(py: Python<'_>, stream: Raw) -> PyResult<Bound<'_, Stream>> {
    Bound::new(py, Stream(StreamHandle::foreign(stream.addr(), None)))
}

pub(crate) extern "C" fn call_allocate(functions: Raw, bytes: u64, _alignment: u64, stream: Raw) -> Raw {
    let call = |py: Python<'_>| -> PyResult<usize> {
        // SAFETY: `context_of` made the context, with two functions.
        let functions: &Functions = unsafe { context(functions) };
        let answer = functions[0].call1(py, (bytes, stream_object(py, stream)?))?;
        read(answer.bind(py), "allocate_func(size, stream)", "the address of the memory as a number")
    };
    // If the interpreter is at its end, the answer is null.
    let answer = gil::attached(|py| {
        call(py).unwrap_or_else(|error| {
            keep_raised(py, Raised::by_allocate(py, error));
            0
        })
    });
    std::ptr::without_provenance_mut(answer.unwrap_or(0))
}

pub(crate) extern "C" fn call_deallocate(functions: Raw, ptr: Raw, bytes: u64, _alignment: u64, stream: Raw) {
    gil::attached(|py| {
        // SAFETY: `context_of` made the context, with two functions.
        let functions: &Functions = unsafe { context(functions) };
        let call = || -> PyResult<()> {
            functions[1].call1(py, (ptr.addr(), bytes, stream_object(py, stream)?)).map(drop)
        };
        if let Err(error) = call() {
            tell_of(py, error, &functions[1]);
        }
    });
}

pub(crate) extern "C" fn call_back(functions: Raw, bytes: u64) {
    gil::attached(|py| {
        // SAFETY: `context_of` made the context, with one function.
        let functions: &Functions = unsafe { context(functions) };
        if let Err(error) = functions[0].call1(py, (bytes,)) {
            tell_of(py, error, &functions[0]);
        }
    });
}

/// Passes on the exception of a function whose caller cannot fail.
fn tell_of(py: Python<'_>, error: PyErr, function: &Py<PyAny>) {
    if error.is_instance_of::<PyKeyboardInterrupt>(py) {
        // Ctrl-C is raised again when Python continues.
        // SAFETY: this thread holds the GIL.
        return unsafe { ffi::PyErr_SetInterrupt() };
    }
    // As in a finaliser, the exception goes to Python's hook.
    error.write_unraisable(py, Some(function.bind(py)));
}

pub(crate) extern "C" fn call_failure(handle: Raw, bytes: u64) -> bool {
    let answer = gil::attached(|py| {
        // SAFETY: `context_of` made the context, with one function.
        let handle: &Functions = unsafe { context(handle) };
        handle[0].call1(py, (bytes,)).and_then(|answer| answer.bind(py).is_truthy()).unwrap_or_else(|error| {
            keep_raised(py, Raised::Cause(error));
            false
        })
    });
    answer.unwrap_or(false)
}

/// Frees the functions of a context. At the interpreter's end they stay.
pub(crate) extern "C" fn end_functions(functions: Raw) {
    gil::attached(|_| {
        // SAFETY: `context_of` made the context, which ends here.
        drop(unsafe { Box::from_raw(functions.cast::<Functions>()) });
    });
}
