//! Contiguous host memory that a Python object offers.

use std::mem::MaybeUninit;

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::arguments::wrong;

/// The bytes of an object with the buffer protocol, held until this value ends.
pub(crate) struct HostBytes<'py> {
    buffer: Box<ffi::Py_buffer>,
    pub(crate) bytes: usize,
    /// The field proves that the GIL is held when this value ends.
    _py: Python<'py>,
}

// SAFETY: only the address and the size are used without the GIL; the buffer ends where `_py` is valid.
unsafe impl Sync for HostBytes<'_> {}
// SAFETY: as above.
unsafe impl Send for HostBytes<'_> {}

impl<'py> HostBytes<'py> {
    /// Opens the bytes of the argument `name` for reading.
    pub(crate) fn readable(object: &Bound<'py, PyAny>, name: &str) -> PyResult<Self> {
        Self::with(object, ffi::PyBUF_SIMPLE).map_err(|error| explained(error, object, name, "contiguous"))
    }

    /// Opens the bytes of the argument `name` for writing.
    pub(crate) fn writable(object: &Bound<'py, PyAny>, name: &str) -> PyResult<Self> {
        Self::with(object, ffi::PyBUF_WRITABLE)
            .map_err(|error| explained(error, object, name, "contiguous and writable"))
    }

    fn with(object: &Bound<'py, PyAny>, flags: i32) -> PyResult<Self> {
        let mut buffer = Box::new(MaybeUninit::<ffi::Py_buffer>::zeroed());
        // SAFETY: the object is live, and the buffer may be filled.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), buffer.as_mut_ptr(), flags) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: all bits zero are a buffer, and Python has filled it.
        let buffer = unsafe { Box::from_raw(Box::into_raw(buffer).cast::<ffi::Py_buffer>()) };
        let bytes = usize::try_from(buffer.len).unwrap_or_default();
        Ok(Self { buffer, bytes, _py: object.py() })
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.buffer.buf.cast()
    }
}

impl Drop for HostBytes<'_> {
    fn drop(&mut self) {
        // SAFETY: Python has filled the buffer, and it is released once.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.buffer) };
    }
}

/// Names the argument in the error of an object whose bytes cannot be used. `properties` describes the bytes
/// that the argument needs.
fn explained(error: PyErr, object: &Bound<'_, PyAny>, name: &str, properties: &str) -> PyErr {
    let py = object.py();
    let kind = error.get_type(py);
    if kind.is(py.get_type::<PyTypeError>()) {
        let allowed = "an object with the buffer protocol, such as bytes or a NumPy array";
        return wrong::<PyTypeError>(object, name, allowed);
    }
    // Python's own types raise `BufferError`, and NumPy raises `ValueError`. All other errors, such as an
    // error of the driver, stay.
    if kind.is(py.get_type::<PyBufferError>()) || kind.is(py.get_type::<PyValueError>()) {
        return wrong::<PyValueError>(object, name, &format!("{properties} ({})", error.value(py)));
    }
    error
}
