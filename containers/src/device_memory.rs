//! The free memory of the current device, and prefetches of managed memory.

use millpond_core::driver::{DeviceAttribute, MemoryInfo, MemoryKind, call, has_attribute};
use millpond_core::{ByteSize, DevicePtr, Driver, DriverError, Error, Result, StreamRef};

/// Returns the free and total bytes of the calling thread's current device.
///
/// # Errors
/// The driver's errors, and [`NoDevice`](millpond_core::ErrorKind::NoDevice) if there is no current device.
///
/// ```
/// use millpond_containers::{available_device_memory, percent_of_free_device_memory};
/// use millpond_driver::sim::{SimConfig, SimDevice};
///
/// let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
/// device.make_current();
/// assert_eq!(available_device_memory()?.total, 1 << 30);
/// assert_eq!(percent_of_free_device_memory(50.0)?, 1 << 29);
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub fn available_device_memory() -> Result<MemoryInfo> {
    call(&*millpond_driver::current()?, |driver| driver.mem_get_info())
}

/// Returns a percentage of the current device's free memory, in bytes, rounded down to a multiple of 256. For
/// example, use the result as the initial size of a pool.
///
/// # Errors
/// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if `percent` is not between 0 and 100, and
/// the errors of [`available_device_memory`].
pub fn percent_of_free_device_memory(percent: f64) -> Result<u64> {
    if !(0.0..=100.0).contains(&percent) {
        return Err(Error::invalid_argument(format!(
            "{percent} is not a percentage of free memory; use one from 0 to 100"
        )));
    }
    ByteSize::PercentOfFree(percent).resolve(&*millpond_driver::current()?)
}

/// The destination of a prefetch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum PrefetchTo {
    /// The memory of the driver's device.
    Device,
    /// The memory of the host.
    Host,
}

/// Moves a range of managed memory to the device or to the host, in the order of `stream`. If the device can
/// access system memory, the range may also be system memory. Returns whether the move was submitted.
///
/// The result is `false` for an empty range and for other kinds of memory. It is also `false` if host and
/// device cannot use managed memory at the same time.
///
/// # Errors
/// The driver's errors.
///
/// # Safety
/// The range is memory that the driver's device can use, from this call until `stream` has done the move.
pub unsafe fn prefetch(
    driver: &dyn Driver,
    ptr: DevicePtr,
    bytes: u64,
    to: PrefetchTo,
    stream: impl Into<StreamRef>,
) -> Result<bool> {
    let stream = stream.into();
    if bytes == 0 || !has_attribute(driver, DeviceAttribute::ConcurrentManagedAccess)? {
        return Ok(false);
    }
    let submitted = call(driver, |driver| {
        // SAFETY: the caller's promise.
        unsafe { driver.mem_prefetch_async(ptr, bytes, to == PrefetchTo::Host, stream) }
    });
    let is_refusal = |error: &Error| {
        let invalid = error.driver_error().is_some_and(|error| error.code() == DriverError::INVALID_VALUE);
        let kind = || call(driver, |driver| driver.pointer_kind(ptr));
        invalid && !matches!(kind(), Ok(MemoryKind::Managed))
    };
    match submitted {
        Ok(()) => Ok(true),
        Err(error) if is_refusal(&error) => Ok(false),
        Err(error) => Err(error),
    }
}
