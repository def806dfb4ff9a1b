//! Functions that the classes of layers use: the layer below, its name, a log's file, bins, sizes.

use std::borrow::Cow;
use std::ptr::null_mut;

use pyo3::prelude::*;

use crate::api::{CallBackFunction, api, c_argument, take_bytes, take_text};
use crate::error::{Failure, check};
use crate::functions::{call_back, context_of, end_functions};
use crate::handle::ResourceHandle;
use crate::resource::{Resource, Sendable, on};

/// Builds `made` from the text of layers, on top of a resource. The option `key` of the outermost layer gets
/// the file `path`.
#[pyfunction]
pub(crate) fn build_layer_file(
    py: Python<'_>,
    made: &Bound<'_, Resource>,
    upstream: &Bound<'_, Resource>,
    text: &str,
    key: &str,
    path: &[u8],
) -> PyResult<()> {
    let (text, key, path) = (c_argument(text)?, c_argument(key)?, c_argument(path)?);
    let upstream = upstream.get().handle()?;
    made.get().build(py, on(&upstream), |made| {
        let (text, key, path) = (text.as_ptr(), key.as_ptr(), path.as_ptr());
        // SAFETY: the handle is live, the texts are strings, and the result may be written.
        unsafe { (api().resource_layer_file)(upstream.raw, text, key, path, made) }
    })
}

/// Returns the resource below the outermost layer, or None.
#[pyfunction]
pub(crate) fn layer_below(py: Python<'_>, resource: &Bound<'_, Resource>) -> PyResult<Option<Resource>> {
    let handle = resource.get().handle()?;
    let below = py.detach(|| {
        let mut raw = null_mut();
        // SAFETY: the handle is live, and the result may be written.
        check(unsafe { (api().resource_upstream)(handle.raw, &raw mut raw) })?;
        Ok::<_, Failure>(ResourceHandle::owned(raw))
    })?;
    Ok(below.map(Resource::of))
}

/// Returns the name that the outermost layer has in the stack's text.
#[pyfunction]
pub(crate) fn layer_name(resource: &Bound<'_, Resource>) -> PyResult<String> {
    let (handle, mut name) = (resource.get().handle()?, null_mut());
    // SAFETY: the handle is live, and the result may be written.
    check(unsafe { (api().resource_name)(handle.raw, &raw mut name) })?;
    Ok(take_text(name))
}

/// Returns the path of the file that the outermost log writes, as bytes; None if this log has no file.
#[pyfunction]
pub(crate) fn log_file(resource: &Bound<'_, Resource>) -> PyResult<Option<Cow<'static, [u8]>>> {
    let (handle, mut path) = (resource.get().handle()?, null_mut());
    // SAFETY: the handle is live, and the result may be written.
    check(unsafe { (api().logging_file)(handle.raw, &raw mut path) })?;
    Ok(take_bytes(path).map(Cow::Owned))
}

/// Returns the bins of the outermost layer, as pairs: a size in bytes, and the resource that the program gave
/// for this bin, or None.
#[pyfunction]
pub(crate) fn layer_bins(resource: &Bound<'_, Resource>) -> PyResult<Vec<(u64, Option<Resource>)>> {
    let handle = resource.get().handle()?;
    let mut bins = Vec::new();
    loop {
        let (mut count, mut bytes, mut raw) = (0, 0, null_mut());
        let at = bins.len();
        // SAFETY: the handle is live, and the results may be written.
        check(unsafe { (api().binning_bin)(handle.raw, at, &raw mut count, &raw mut bytes, &raw mut raw) })?;
        if at >= count {
            return Ok(bins);
        }
        bins.push((bytes, ResourceHandle::owned(raw).map(Resource::of)));
    }
}

/// Returns the layers of a stack's text as JSON: an object of each layer's options.
#[pyfunction]
pub(crate) fn layer_table() -> PyResult<String> {
    let mut layers = null_mut();
    // SAFETY: the result may be written.
    check(unsafe { (api().layers_json)(&raw mut layers) })?;
    Ok(take_text(layers))
}

/// Sets the function that frees memory of the stack's outermost budget. `None` removes it.
#[pyfunction]
pub(crate) fn budget_on_call_back(
    py: Python<'_>,
    resource: &Bound<'_, Resource>,
    function: Option<Py<PyAny>>,
) -> PyResult<()> {
    let handle = resource.get().handle()?;
    let call = function.is_some().then_some(call_back as CallBackFunction);
    let context = Sendable(context_of(Vec::from_iter(function)));
    py.detach(|| {
        // SAFETY: the handle is live, and the function has this type. The library calls `end_functions` last.
        check(unsafe { (api().budget_on_call_back)(handle.raw, call, context.get(), end_functions) })
    })?;
    Ok(())
}

/// Reads a size from text. Returns a number of bytes, and a percentage of the free memory; one of them is 0.
#[pyfunction]
pub(crate) fn parse_size(size: &str) -> PyResult<(u64, f64)> {
    let (size, mut bytes, mut percent) = (c_argument(size)?, 0, 0.0);
    // SAFETY: the size is a string, and the results may be written.
    check(unsafe { (api().parse_size)(size.as_ptr(), &raw mut bytes, &raw mut percent) })?;
    Ok((bytes, percent))
}
