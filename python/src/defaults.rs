//! The default resource of each device, as Python sees it.

use pyo3::prelude::*;

use crate::api::api;
use crate::device::Device;
use crate::error::check;
use crate::handle::{ResourceHandle, take_recent_default};
use crate::resource::Resource;

/// Returns the default resource of a device. None means the current device.
#[pyfunction]
#[pyo3(signature = (device=None))]
pub(crate) fn default_resource(py: Python<'_>, device: Option<&Device>) -> PyResult<Resource> {
    let device = device.map(|device| device.0.clone());
    let handle = py.detach(|| match device {
        Some(device) => ResourceHandle::of_device(&device),
        None => ResourceHandle::current(),
    })?;
    Ok(Resource::of(handle))
}

/// Restores the initial default resource of a device.
#[pyfunction]
pub(crate) fn reset_default_resource(py: Python<'_>, device: &Device) -> PyResult<()> {
    let reset = py.detach(|| {
        // SAFETY: the device's handle is live.
        let reset = check(unsafe { (api().reset_per_device_resource)(device.0.0) });
        drop(take_recent_default());
        reset
    });
    Ok(reset?)
}
