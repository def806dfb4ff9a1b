//! The device of a run, as reports show it.

use millpond_core::DriverHandle;
use millpond_driver::DeviceSpec;
use serde::Serialize;

use crate::Result;

/// The device on which logs are replayed.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct DeviceFigures {
    /// The text of the device, as the option `--device` takes it.
    pub spec: String,
    /// The device's name, for people.
    pub name: String,
    /// Whether the device is simulated. On a simulated device, the time in driver calls is virtual, but the
    /// time per operation is real time on this machine.
    pub simulated: bool,
    /// The memory of the device in bytes.
    pub total_bytes: u64,
    /// The free bytes of the device before the first stack was built.
    pub free_bytes: u64,
}

impl DeviceFigures {
    /// Returns the figures of the device that `spec` opened as `driver`.
    ///
    /// # Errors
    /// The driver cannot report the free memory.
    pub fn new(spec: &DeviceSpec, driver: &DriverHandle) -> Result<Self> {
        let memory = driver.mem_get_info().map_err(millpond_core::Error::from)?;
        Ok(Self {
            spec: spec.to_string(),
            name: driver.name(),
            simulated: driver.device().is_sim(),
            total_bytes: memory.total,
            free_bytes: memory.free,
        })
    }
}
