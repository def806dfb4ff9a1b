//! Calls a driver, and records whether the call lost the device.

use super::{DeviceAttribute, Driver, DriverError, DriverResult};
use crate::{Error, Result};

/// Calls the driver through `body`, unless an earlier error lost the device. If `body` fails, records the
/// error in the device's [`Health`](super::Health).
///
/// # Errors
/// [`ErrorKind::Poisoned`](crate::ErrorKind::Poisoned) if the device is lost; otherwise the driver's errors.
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

/// Returns whether an attribute of the device is 1. If the driver does not know the attribute, the result is
/// `false`.
///
/// # Errors
/// An error if the device is [lost](Error::is_sticky).
pub fn has_attribute(driver: &dyn Driver, attribute: DeviceAttribute) -> Result<bool> {
    match call(driver, |driver| driver.attribute(attribute)) {
        Err(error) if error.is_sticky() => Err(error),
        answer => Ok(matches!(answer, Ok(1))),
    }
}

/// Calls the driver through `body`, even if the device is lost, but not in a [forked child](crate::process).
/// If the error of `body` means that the device is lost, records the loss in the device's
/// [`Health`](super::Health). The caller handles the error.
///
/// # Errors
/// The driver's errors; `CUDA_ERROR_NOT_INITIALIZED` in a forked child.
pub fn ask<T>(driver: &dyn Driver, body: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> DriverResult<T> {
    if driver.health().is_elsewhere() {
        let why = "this process was forked from one that uses the device";
        return Err(DriverError::new(DriverError::NOT_INITIALIZED, "fork").with_detail(why));
    }
    body(driver).inspect_err(|error| driver.health().note(error))
}
