//! The access of devices and of the host to a pool's memory.

use millpond_core::driver::{AccessFlags, AccessLocation, Driver, MemoryKind, call};
use millpond_core::{DevicePtr, DriverError, Error, Result};

use super::MemoryPool;

/// The access of devices and of the host. The host always accesses host memory, and never device memory. Only
/// a pool of managed memory lets the program set the host's access.
impl MemoryPool {
    /// Returns the access of a device, or of the host, to the pool's memory.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) for a place that the driver does not
    /// know, and the driver's errors.
    pub fn access(&self, from: impl Into<AccessLocation>) -> Result<AccessFlags> {
        let from = from.into();
        let found = self.call(|driver| driver.mem_pool_get_access(self.raw(), from));
        found.map_err(|error| self.explain(error, AccessFlags::None, &[from]))
    }

    /// Sets the access of other devices, or of the host, to the pool's memory, including memory that the pool
    /// allocates later.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) for a device that cannot access this
    /// device's memory, and for an access that the driver refuses to the host. Also the driver's errors.
    pub fn set_access<L>(&self, access: AccessFlags, from: &[L]) -> Result<()>
    where
        L: Into<AccessLocation> + Copy,
    {
        let from: Vec<AccessLocation> = from.iter().map(|from| (*from).into()).collect();
        let set = self.call(|driver| driver.mem_pool_set_access(self.raw(), access, &from));
        set.map_err(|error| self.explain(error, access, &from))
    }

    /// Adds the reason and the remedy to the driver's refusal of a place.
    fn explain(&self, error: Error, access: AccessFlags, from: &[AccessLocation]) -> Error {
        let own = self.driver().device();
        let code = error.driver_error().map(DriverError::code);
        let host = from.iter().find(|from| from.device().is_none());
        let why = match (host, code) {
            (_, Some(DriverError::NOT_SUPPORTED)) if access == AccessFlags::Read => {
                "the driver has no access for reading only; set read and write access, or none".to_owned()
            }
            (Some(AccessLocation::HostNumaCurrent), Some(DriverError::INVALID_VALUE)) => {
                "the driver takes no current NUMA node; name the host, or a node by its number".to_owned()
            }
            (Some(host), Some(DriverError::INVALID_VALUE | DriverError::NOT_SUPPORTED)) => format!(
                "the driver refuses this access of {host} to the pool; the host always accesses pools of \
                 host memory, and never pools of device memory"
            ),
            (None, Some(DriverError::INVALID_DEVICE)) if from.contains(&own.into()) => {
                format!("{own} always accesses its own memory; name other devices")
            }
            (None, Some(DriverError::INVALID_DEVICE)) => format!(
                "one of the devices cannot access memory of {own}; name only devices that \
                 cuDeviceCanAccessPeer allows"
            ),
            _ => return error,
        };
        Error::invalid_argument(why).on_device(own).caused_by(error)
    }
}

/// Adds the reason and the remedy if the driver refused an operation because the device cannot access one of
/// these addresses: memory of a pool on the host or on another device, before the device got access.
#[cold]
#[must_use]
pub fn explain_access(error: Error, driver: &dyn Driver, addresses: &[DevicePtr]) -> Error {
    if error.driver_error().is_none_or(|error| error.code() != DriverError::INVALID_VALUE) {
        return error;
    }
    let device = driver.device();
    let is_closed = |address: &DevicePtr| {
        call(driver, |driver| {
            let Some(pool) = driver.pointer_mem_pool(*address)? else { return Ok(false) };
            // Managed memory works without access.
            if driver.pointer_kind(*address)? == MemoryKind::Managed {
                return Ok(false);
            }
            Ok(driver.mem_pool_get_access(pool, device.into())? == AccessFlags::None)
        })
        .unwrap_or(false)
    };
    match addresses.iter().find(|address| !address.is_null() && is_closed(address)) {
        None => error,
        Some(address) => Error::invalid_argument(format!(
            "{device} has no access to the pool of the memory at {address}; give the pool's memory to the \
             device first, with `set_access`"
        ))
        .on_device(device)
        .caused_by(error),
    }
}
