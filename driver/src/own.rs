//! Devices behind the program's own drivers.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use millpond_core::{DeviceId, Driver, DriverHandle, Error, ErrorKind, Result};
use parking_lot::Mutex;

static OWN_DEVICES: Mutex<BTreeMap<DeviceId, Weak<dyn Driver>>> = Mutex::new(BTreeMap::new());

/// Registers a [driver of your own](Driver#a-driver-of-your-own) for its [`device`](Driver::device). Then
/// [`open`](crate::open) and the default resource of the device find the driver, and the name `own:0`
/// ([`DeviceSpec::Own`](crate::DeviceSpec::Own)) stands for it.
///
/// The registration ends when the last clone of the handle is dropped. To replace a driver after a reset,
/// register the new driver.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) if the id of the device is not a [`DeviceId::own`].
pub fn register(driver: &DriverHandle) -> Result<()> {
    let device = driver.device();
    if device != DeviceId::own(device.ordinal()) {
        let why = "a program's own driver needs a device of the kind `own`, such as own:0";
        return Err(Error::invalid_argument(why).on_device(device));
    }
    let mut devices = OWN_DEVICES.lock();
    devices.retain(|_, driver| driver.strong_count() > 0);
    devices.insert(device, Arc::downgrade(driver));
    Ok(())
}

/// The driver registered for a device.
pub(crate) fn find(device: DeviceId) -> Result<DriverHandle> {
    let found = OWN_DEVICES.lock().get(&device).and_then(Weak::upgrade);
    found.ok_or_else(|| {
        let why = "no driver is registered for this device; a registration ends when the last handle to the \
                   driver is dropped, so keep a handle";
        Error::new(ErrorKind::NoDevice, why).on_device(device)
    })
}
