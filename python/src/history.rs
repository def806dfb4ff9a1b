//! Snapshots of memory, and the history of events for them.

use std::ptr::{null_mut, slice_from_raw_parts};

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::api::{Raw, api};
use crate::error::{Failure, check};
use crate::resource::Resource;

/// Records the last events of this process; see `millpond_record_history`.
#[pyfunction]
pub(crate) fn record_history(
    py: Python<'_>,
    events: usize,
    stacks: i32,
    skipped: u32,
    is_new: bool,
) -> PyResult<()> {
    // SAFETY: the function takes numbers.
    Ok(py.detach(|| check(unsafe { (api().record_history)(events, stacks, skipped, is_new) }))?)
}

/// Stops the history, and discards it.
#[pyfunction]
pub(crate) fn stop_history(py: Python<'_>) -> PyResult<()> {
    // SAFETY: the function takes nothing.
    Ok(py.detach(|| check(unsafe { (api().stop_history)() }))?)
}

/// Returns a snapshot as a pickle: of one resource, or of all memory that the frameworks use.
#[pyfunction]
#[pyo3(signature = (resource=None))]
pub(crate) fn pickled_snapshot<'py>(
    py: Python<'py>,
    resource: Option<&Bound<'_, Resource>>,
) -> PyResult<Bound<'py, PyBytes>> {
    struct Pickle(*mut u8, usize);
    // SAFETY: the bytes belong to this value.
    unsafe impl Send for Pickle {}

    impl Drop for Pickle {
        fn drop(&mut self) {
            // SAFETY: the library allocated them with this size.
            unsafe { (api().bytes_free)(self.0, self.1) };
        }
    }

    let handle = resource.map(|resource| resource.get().handle()).transpose()?;
    let pickle = py.detach(|| {
        let raw: Raw = handle.as_ref().map_or(null_mut(), |handle| handle.raw);
        let mut pickle = Pickle(null_mut(), 0);
        // SAFETY: the handle is null or live, and the results may be written.
        check(unsafe { (api().memory_snapshot)(raw, &raw mut pickle.0, &raw mut pickle.1) })?;
        Ok::<_, Failure>(pickle)
    })?;
    // SAFETY: the library wrote this many bytes.
    Ok(PyBytes::new(py, unsafe { &*slice_from_raw_parts(pickle.0, pickle.1) }))
}
