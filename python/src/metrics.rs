//! The metrics of stacks, as text and as JSON.

use std::ffi::{CString, c_char};
use std::ptr::{null, null_mut};

use pyo3::prelude::*;

use crate::api::{api, c_argument, take_text};
use crate::error::{Failure, check};
use crate::resource::Resource;

/// Shows a stack in metrics under a name.
#[pyfunction]
pub(crate) fn register_metrics(py: Python<'_>, resource: &Bound<'_, Resource>, name: &str) -> PyResult<()> {
    let (handle, name) = (resource.get().handle()?, c_argument(name)?);
    // SAFETY: the handle is live, and the name ends in NUL.
    py.detach(|| check(unsafe { (api().metrics_register)(handle.raw, name.as_ptr()) }))?;
    Ok(())
}

/// Returns all metrics in the OpenMetrics format.
#[pyfunction]
pub(crate) fn metrics_text(py: Python<'_>) -> PyResult<String> {
    // SAFETY: the result may be written.
    written(py, |text| unsafe { (api().metrics_text)(text) })
}

/// Returns one metric, or all, as JSON.
#[pyfunction]
#[pyo3(signature = (name=None))]
pub(crate) fn metrics_json(py: Python<'_>, name: Option<&str>) -> PyResult<String> {
    let name: Option<CString> = name.map(c_argument).transpose()?;
    // SAFETY: the name is null or ends in NUL, and the result may be written.
    written(py, |text| unsafe {
        (api().metrics_json)(name.as_ref().map_or(null(), |name| name.as_ptr()), text)
    })
}

/// Calls the library without the GIL, because a scrape may end a resource with functions in Python.
fn written(py: Python<'_>, call: impl Fn(*mut *mut c_char) -> i32 + Sync) -> PyResult<String> {
    let text = py.detach(|| {
        let mut text = null_mut();
        check(call(&raw mut text))?;
        Ok::<_, Failure>(take_text(text))
    })?;
    Ok(text)
}
