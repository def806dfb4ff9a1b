//! Checks of a new pool's options, whose failures in the driver would name no reason.

use millpond_core::driver::{DeviceAttribute, call, has_attribute};
use millpond_core::{DriverError, DriverHandle, Error, ErrorKind, Result, format_bytes};

use super::options::CudaAsyncOptions;

/// Refuses a device without pools. Other devices of the machine may have them.
pub(super) fn check_pools(driver: &DriverHandle) -> Result<()> {
    if !has_attribute(&**driver, DeviceAttribute::MemoryPoolsSupported)? {
        let message = "the device has no stream-ordered memory pools; use cuda+pool";
        return Err(Error::new(ErrorKind::Unsupported, message).on_device(driver.device()));
    }
    Ok(())
}

/// Refuses an initial size above the maximum, and a maximum of 0, which would mean none to CUDA.
pub(super) fn check_initial_and_maximum(driver: &DriverHandle, options: &CudaAsyncOptions) -> Result<()> {
    if options.maximum_bytes == Some(0) {
        let why =
            "a pool with a maximum of 0 could hold nothing; raise `max`, or leave it out for no maximum";
        return Err(Error::invalid_argument(why).on_device(driver.device()));
    }
    let Some(most) = options.maximum_bytes.filter(|most| options.initial_bytes > *most) else {
        return Ok(());
    };
    let (initial, most) = (format_bytes(options.initial_bytes), format_bytes(most));
    let message = format!("the initial size of {initial} exceeds the maximum of {most}; raise `max`");
    Err(Error::invalid_argument(message).on_device(driver.device()))
}

/// Returns whether the driver refused the properties of a new pool.
pub(super) fn is_refused(error: &Error) -> bool {
    let code = error.driver_error().map(DriverError::code);
    matches!(code, Some(DriverError::INVALID_VALUE | DriverError::NOT_SUPPORTED))
}

/// Refuses more bytes than the device has: the driver's error would name no reason.
pub(super) fn check_initial(driver: &DriverHandle, bytes: u64) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let total = call(&**driver, |driver| driver.mem_get_info())?.total;
    if bytes <= total {
        return Ok(());
    }
    let (initial, total) = (format_bytes(bytes), format_bytes(total));
    let message =
        format!("the initial size of {initial} exceeds the device's memory of {total}; lower `initial`");
    Err(Error::new(ErrorKind::OutOfMemory, message).on_device(driver.device()))
}
