//! The devices behind drivers of the program's own.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use millpond_core::{DeviceId, Driver, DriverHandle, Error, ErrorKind, Result};
use parking_lot::Mutex;

static OWN_DEVICES: Mutex<BTreeMap<DeviceId, Weak<dyn Driver>>> = Mutex::new(BTreeMap::new());

/// Registers a [driver of your own](Driver#a-driver-of-your-own): while the handle or a clone of it lives,
/// [`open`](crate::open), per-device defaults and the name `own:0`
/// ([`DeviceSpec::Own`](crate::DeviceSpec::Own)) find it under its [`device`](Driver::device). A driver that
/// is opened after a reset takes the place of the earlier one.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) if the device is not a [`DeviceId::own`].
pub fn register(driver: &DriverHandle) -> Result<()> {
    let device = driver.device();
    if device != DeviceId::own(device.ordinal()) {
        let why = "the device of the program's own driver has to be of the kind `own`, as own:0";
        return Err(Error::invalid_argument(why).on_device(device));
    }
    let mut devices = OWN_DEVICES.lock();
    devices.retain(|_, driver| driver.strong_count() > 0);
    devices.insert(device, Arc::downgrade(driver));
    Ok(())
}

/// The driver that was registered for a device.
pub(crate) fn find(device: DeviceId) -> Result<DriverHandle> {
    let found = OWN_DEVICES.lock().get(&device).and_then(Weak::upgrade);
    found.ok_or_else(|| {
        let why = "no driver was registered for it, or no more: it ends with its last user, so keep it";
        Error::new(ErrorKind::NoDevice, why).on_device(device)
    })
}
