//! Memory of another library, through the CUDA array interface.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments::{instance, read, wrong};
use crate::device::attribute;

/// Describes the values of an interface's entry `typestr`.
const TYPE: &str = "a text such as \"<f4\"";

/// Contiguous memory that an object offers.
pub(crate) struct CudaArray {
    pub(crate) address: usize,
    pub(crate) bytes: u64,
    /// The stream that a consumer has to wait for, if the object names one.
    pub(crate) stream: Option<usize>,
}

impl CudaArray {
    /// Reads `__cuda_array_interface__` of the argument `name`, a one-dimensional array.
    pub(crate) fn of(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        let interface = attribute(object, "__cuda_array_interface__")?.ok_or_else(|| {
            wrong::<PyValueError>(object, name, "a buffer, or an array with `__cuda_array_interface__`")
        })?;
        let whole = format!("{name}.__cuda_array_interface__");
        let interface = instance::<PyDict>(&interface, &whole, "a dict")?;
        let get = |key| -> PyResult<Bound<'_, PyAny>> {
            Ok(interface.get_item(key)?.unwrap_or_else(|| object.py().None().into_bound(object.py())))
        };
        let named = |key| format!("{whole}[{key:?}]");
        let shape: Vec<u64> = read(&get("shape")?, &named("shape"), "a tuple of numbers")?;
        let kind: String = read(&get("typestr")?, &named("typestr"), TYPE)?;
        let item: u64 = kind.get(2..).and_then(|bytes| bytes.parse().ok()).ok_or_else(|| {
            let why = format!("`{}` must be {TYPE}, not {kind:?}", named("typestr"));
            PyValueError::new_err(why)
        })?;
        let is_not_flat = || wrong::<PyValueError>(object, name, "one-dimensional and contiguous");
        let [length] = shape[..] else { return Err(is_not_flat()) };
        let allowed = "a tuple of numbers, or None";
        let strides: Option<Vec<i64>> = read(&get("strides")?, &named("strides"), allowed)?;
        if strides.is_some_and(|strides| strides != [item as i64]) {
            return Err(is_not_flat());
        }
        let allowed = "a pair: the address, and whether the memory is read-only";
        let (address, _): (usize, bool) = read(&get("data")?, &named("data"), allowed)?;
        let stream = read(&get("stream")?, &named("stream"), "the handle of a stream, or None")?;
        // A size that overflows is too large for any buffer.
        Ok(Self { address, bytes: length.saturating_mul(item), stream })
    }
}
