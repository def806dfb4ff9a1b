//! Memory of another library, through the CUDA array interface.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::device::attribute;

/// Contiguous memory that an object offers.
pub(crate) struct CudaArray {
    pub(crate) address: usize,
    pub(crate) bytes: u64,
    /// The stream that a consumer has to wait for, if the object names one.
    pub(crate) stream: Option<usize>,
}

impl CudaArray {
    /// Reads `__cuda_array_interface__` of a one-dimensional array.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let interface = attribute(object, "__cuda_array_interface__")?
            .ok_or_else(|| PyValueError::new_err("the source needs a `__cuda_array_interface__`"))?;
        let shape: Vec<u64> = interface.get_item("shape")?.extract()?;
        let kind: String = interface.get_item("typestr")?.extract()?;
        let item: u64 = kind
            .get(2..)
            .and_then(|bytes| bytes.parse().ok())
            .ok_or_else(|| PyValueError::new_err(format!("the type `{kind}` is unknown")))?;
        let is_not_flat = || PyValueError::new_err("only one-dimensional contiguous memory can be copied");
        let [length] = shape[..] else { return Err(is_not_flat()) };
        let get = |name| -> PyResult<Option<Bound<'_, PyAny>>> {
            Ok(interface.cast::<PyDict>()?.get_item(name)?.filter(|value| !value.is_none()))
        };
        if let Some(strides) = get("strides")?
            && strides.extract::<Vec<i64>>()? != [item as i64]
        {
            return Err(is_not_flat());
        }
        let (address, _): (usize, bool) = interface.get_item("data")?.extract()?;
        let stream = get("stream")?.map(|stream| stream.extract::<usize>()).transpose()?;
        // A size that overflows is too large for any buffer.
        Ok(Self { address, bytes: length.saturating_mul(item), stream })
    }
}
