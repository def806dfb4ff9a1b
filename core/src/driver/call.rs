//! Calls a driver and records the loss of its device.

use super::{Driver, DriverResult};
use crate::{Error, Result};

/// Calls the driver, unless an earlier error lost the device, and notes an error in the device's
/// [`Health`](super::Health).
///
/// # Errors
/// [`ErrorKind::Poisoned`](crate::ErrorKind::Poisoned) for a device that is lost, and what the driver
/// reports.
pub fn call<T>(driver: &dyn Driver, body: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> Result<T> {
    let health = driver.health();
    let outcome = if health.is_lost() {
        Err(health.error())
    } else {
        body(driver).map_err(|error| {
            health.note(&error);
            Error::from(error)
        })
    };
    outcome.map_err(|error| error.on_device(driver.device()))
}

/// Calls the driver, and notes in the device's [`Health`](super::Health) if it is lost. The caller handles
/// the error.
///
/// # Errors
/// What the driver reports.
pub fn ask<T>(driver: &dyn Driver, body: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> DriverResult<T> {
    body(driver).inspect_err(|error| driver.health().note(error))
}
