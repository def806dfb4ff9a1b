//! The extension module `millpond._native`: Python classes over libmillpond's functions.
//!
//! The module holds no pool. It loads the library at import, and the library owns all pools of the process.
//! Every call that may reach the driver releases the GIL, and no state relies on the GIL.

mod api;
mod arguments;
mod block;
mod buffer;
mod cupy;
mod defaults;
mod device;
mod dlpack;
mod error;
mod frames;
mod from_dlpack;
mod functions;
mod gil;
mod handle;
mod history;
mod host;
mod interface;
mod layers;
mod memory_pool;
mod methods;
mod metrics;
mod oracle;
mod place;
mod resource;
mod tensor;
mod view;

use std::ffi::CStr;
use std::path::PathBuf;

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

/// Loads libmillpond from a file. The package calls it at import.
#[pyfunction]
fn load(path: PathBuf) -> PyResult<()> {
    api::load(&path, error::is_interrupted).map_err(PyImportError::new_err)?;
    // SAFETY: both functions live as long as this module, which Python never unloads, and do not unwind.
    unsafe { (api::api().set_stack_source)(frames::capture, frames::frames) };
    Ok(())
}

/// Returns the version of the library.
#[pyfunction]
fn version() -> String {
    // SAFETY: the text lives as long as the library.
    unsafe { CStr::from_ptr((api::api().version)()) }.to_string_lossy().into_owned()
}

#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(load, module)?)?;
    module.add_function(wrap_pyfunction!(version, module)?)?;
    module.add_function(wrap_pyfunction!(methods::to_device, module)?)?;
    module.add_function(wrap_pyfunction!(device::as_stream, module)?)?;
    module.add_function(wrap_pyfunction!(from_dlpack::from_dlpack, module)?)?;
    module.add_function(wrap_pyfunction!(defaults::default_resource, module)?)?;
    module.add_function(wrap_pyfunction!(defaults::reset_default_resource, module)?)?;
    module.add_function(wrap_pyfunction!(oracle::_oracle_device, module)?)?;
    module.add_function(wrap_pyfunction!(oracle::_oracle_capture, module)?)?;
    module.add_function(wrap_pyfunction!(oracle::_oracle_violations, module)?)?;
    module.add_function(wrap_pyfunction!(oracle::_oracle_mistakes, module)?)?;
    module.add_function(wrap_pyfunction!(layers::build_layer_file, module)?)?;
    module.add_function(wrap_pyfunction!(layers::layer_below, module)?)?;
    module.add_function(wrap_pyfunction!(layers::layer_name, module)?)?;
    module.add_function(wrap_pyfunction!(layers::layer_table, module)?)?;
    module.add_function(wrap_pyfunction!(layers::log_file, module)?)?;
    module.add_function(wrap_pyfunction!(layers::layer_bins, module)?)?;
    module.add_function(wrap_pyfunction!(layers::parse_size, module)?)?;
    module.add_function(wrap_pyfunction!(layers::budget_on_call_back, module)?)?;
    module.add_function(wrap_pyfunction!(memory_pool::graph_memory, module)?)?;
    module.add_function(wrap_pyfunction!(memory_pool::graph_memory_reset_highs, module)?)?;
    module.add_function(wrap_pyfunction!(memory_pool::graph_memory_trim, module)?)?;
    module.add_function(wrap_pyfunction!(metrics::register_metrics, module)?)?;
    module.add_function(wrap_pyfunction!(metrics::metrics_text, module)?)?;
    module.add_function(wrap_pyfunction!(metrics::metrics_json, module)?)?;
    module.add_function(wrap_pyfunction!(history::record_history, module)?)?;
    module.add_function(wrap_pyfunction!(history::stop_history, module)?)?;
    module.add_function(wrap_pyfunction!(history::pickled_snapshot, module)?)?;
    module.add_class::<device::Device>()?;
    module.add_class::<device::Stream>()?;
    module.add_class::<resource::Resource>()?;
    module.add_class::<buffer::DeviceBuffer>()?;
    module.add_class::<memory_pool::PoolHandle>()?;
    module.add_class::<memory_pool::ImportedHandle>()?;
    module.add_class::<cupy::CupyFunctions>()?;
    Ok(())
}
