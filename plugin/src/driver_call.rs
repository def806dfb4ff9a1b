use millpond_core::driver::{Driver, DriverResult};
use millpond_core::{Error, ErrorKind, Result};

/// Calls the driver, unless an earlier error lost the device, and notes an error in the device's health.
///
/// # Errors
/// [`ErrorKind::Poisoned`] for a device that is lost, and what the driver reports.
pub(crate) fn call<T>(driver: &dyn Driver, body: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> Result<T> {
    let health = driver.health();
    let outcome = if health.is_lost() {
        Err(Error::new(
            ErrorKind::Poisoned,
            "an earlier driver error lost the device for this process; restart the process",
        ))
    } else {
        body(driver).map_err(|error| {
            health.note(&error);
            Error::from(error)
        })
    };
    outcome.map_err(|error| error.on_device(driver.device()))
}
