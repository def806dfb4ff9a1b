//! Opens devices and finds the current one.

use millpond_core::{DeviceId, DriverHandle, Error, ErrorKind, Result};

use crate::cuda::{self, CudaDriver};
use crate::environment::{DEVICE_VARIABLE, Environment, RANK_VARIABLE};
use crate::{DeviceSpec, own, sim, thread_device};

/// Returns the driver of a device. Each call returns the same driver, until the device's context is reset.
/// After a reset, the next call returns a new driver. If a CUDA device has no context yet, the call creates
/// the context.
///
/// ```
/// use millpond_core::{DeviceId, Driver};
/// use millpond_driver::sim::{SimConfig, SimDevice};
///
/// let device = SimDevice::new(SimConfig::h200());
/// assert_eq!(millpond_driver::open(device.device())?.device(), device.device());
/// assert!(millpond_driver::open(DeviceId::cuda(1000)).unwrap_err().is_no_device());
/// # Ok::<(), millpond_core::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::NoDevice`] in two cases: if there is no such CUDA device, or if the last handle to a
/// simulated or own device was dropped. The driver's errors if the driver refuses to create the context.
pub fn open(device: DeviceId) -> Result<DriverHandle> {
    if device.is_cuda() { Ok(CudaDriver::open(device.ordinal())?) } else { find(device) }
}

/// Returns the same driver as [`open`], without creating the context of a CUDA device. The first call that
/// works on the device creates the context, as for [`CudaDriver::find`].
///
/// # Errors
/// [`ErrorKind::NoDevice`] in the same cases as for [`open`].
pub fn find(device: DeviceId) -> Result<DriverHandle> {
    if device.is_cuda() {
        return Ok(CudaDriver::find(device.ordinal())?);
    }
    if device.is_sim() {
        let found: DriverHandle = sim::find(device).ok_or_else(|| no_such(device))?;
        return Ok(found);
    }
    own::find(device)
}

fn no_such(device: DeviceId) -> Error {
    Error::new(
        ErrorKind::NoDevice,
        "this process has no such simulated device; a simulated device lives only until its last handle is \
         dropped, so keep the object that opened it",
    )
    .on_device(device)
}

/// Returns the calling thread's current device. The first of the following devices that exists is the result:
///
/// 1. the device that a [`CurrentDeviceGuard`](crate::CurrentDeviceGuard) or `SimDevice::make_current` has
///    selected on this thread;
/// 2. the device of CUDA's current context;
/// 3. the [default device](DeviceSpec::default_device) of the process;
/// 4. the simulated device with the lowest number, if CUDA cannot be used and no default device was opened.
///
/// The call creates no context on any device.
///
/// # Errors
/// [`ErrorKind::NoDevice`] if there is no device. Without CUDA, first call
/// `DeviceSpec::default_device().open()`, and keep the simulated device that it returns.
/// [`InvalidArgument`](ErrorKind::InvalidArgument) if the value of `MILLPOND_DEVICE` names no device.
pub fn current_device() -> Result<DeviceId> {
    if let Some(device) = thread_device::get() {
        return Ok(device);
    }
    if let Some(ordinal) = cuda::current_ordinal() {
        return Ok(DeviceId::cuda(ordinal));
    }
    if let Some(device) = DeviceSpec::default_id()? {
        return Ok(device);
    }
    sim::first().map_or_else(|| cuda::availability().map(|()| DeviceId::cuda(0)).map_err(no_current), Ok)
}

fn no_current(error: Error) -> Error {
    error.context(
        "no device is open; open the default device first (`default_device` of `DeviceSpec`); without CUDA, \
         it is simulated",
    )
}

/// Returns the driver of the calling thread's [current device](current_device), without creating the device's
/// context.
///
/// # Errors
/// The errors of [`current_device`] and of [`find`].
pub fn current() -> Result<DriverHandle> {
    let device = current_device()?;
    find(device).map_err(|error| {
        let environment = Environment::get();
        if !error.is_no_device() || !device.is_cuda() || cuda::current_ordinal().is_some() {
            return error;
        }
        match (&environment.device, environment.rank) {
            (Some(_), _) => error.context(DEVICE_VARIABLE),
            (None, Some(_)) if cuda::is_available() => error.context(format_args!(
                "{RANK_VARIABLE} names the device; set {DEVICE_VARIABLE} to name another"
            )),
            _ => error,
        }
    })
}

#[cfg(test)]
mod tests {
    use millpond_core::Driver;

    use super::*;
    use crate::sim::{SimConfig, SimDevice};

    #[test]
    fn a_simulated_device_is_found_while_it_lives() {
        let first = SimDevice::new(SimConfig::h200());
        let second = SimDevice::new(SimConfig::a100());
        assert_ne!(first.device(), second.device());
        assert_eq!(open(first.device()).unwrap().name(), first.name());
        assert_eq!(open(second.device()).unwrap().name(), second.name());
        assert_eq!(SimDevice::find(first.device()).unwrap().device(), first.device());
        let id = first.device();
        drop(first);
        let error = open(id).unwrap_err();
        assert_eq!((error.kind(), error.device()), (ErrorKind::NoDevice, Some(id)));
        assert!(open(second.device()).is_ok() && SimDevice::find(id).is_none());
    }

    #[test]
    fn the_current_device_is_the_threads() {
        let device = SimDevice::new(SimConfig::h200());
        device.make_current();
        assert_eq!(current_device().unwrap(), device.device());
        assert_eq!(current().unwrap().device(), device.device());
        // Another thread sees CUDA's current device, or the first simulated one.
        let elsewhere = std::thread::spawn(current_device).join().unwrap().unwrap();
        assert_eq!(elsewhere.is_sim(), cuda::availability().is_err());
        thread_device::replace(None);
        // Other tests create and drop devices meanwhile.
        assert_eq!(current_device().unwrap().is_sim(), elsewhere.is_sim());
    }

    #[test]
    fn an_error_without_a_current_device_says_how_to_get_one() {
        let error = no_current(Error::new(ErrorKind::NoDevice, "why")).to_string();
        assert!(
            error.contains("open the default device first (`default_device` of `DeviceSpec`)"),
            "{error}"
        );
    }

    #[test]
    fn numbers_are_not_given_twice() {
        let ids: Vec<_> = (0..8).map(|_| SimDevice::new(SimConfig::h200()).device()).collect();
        for (i, id) in ids.iter().enumerate() {
            assert!(id.is_sim() && !ids[..i].contains(id), "{id}");
        }
    }
}
