//! Sizes in bytes as Python passes them.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

/// Reads a size. A size beyond 2^64 becomes the largest one. The resource then has no memory for it, and the
/// program gets the `MemoryError` of any request that is too large. A negative size raises `OverflowError`,
/// as in RMM.
pub(crate) fn size(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    object.extract().or_else(|error: PyErr| {
        if !error.is_instance_of::<PyOverflowError>(object.py()) {
            return Err(error);
        }
        match object.lt(0)? {
            true => Err(PyOverflowError::new_err(format!("a size cannot be negative: {object}"))),
            false => Ok(u64::MAX),
        }
    })
}
