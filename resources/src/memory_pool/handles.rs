//! The handles with which other processes import a pool: which the device supports, and what fabric handles
//! need.

use millpond_core::driver::{
    DeviceAttribute, Driver, HandleTypes, MemAllocationType, MemLocation, MemPoolProps, call,
};
use millpond_core::{DriverError, Error, ErrorKind, Result};

/// Refuses handles that the device does not support for pools. If the driver does not say, making the pool
/// decides.
pub(super) fn check(driver: &dyn Driver, props: MemPoolProps) -> Result<()> {
    let unsupported = |why: &str| Err(Error::new(ErrorKind::Unsupported, why).on_device(driver.device()));
    if props.handles.is_none() {
        return Ok(());
    }
    if props.kind == MemAllocationType::Managed {
        return unsupported(
            "pools of managed memory cannot be exported; leave out the handles, or use device memory",
        );
    }
    if props.location == MemLocation::Host {
        return unsupported(
            "pools of host memory on any NUMA node cannot be exported; leave out the handles, or name a NUMA \
             node, as in `numa=0`",
        );
    }
    match call(driver, |driver| driver.attribute(DeviceAttribute::MemPoolSupportedHandleTypes)) {
        Ok(bits) => {
            let supported = HandleTypes::from_bits(bits as u32);
            if supported.contains(props.handles) {
                return Ok(());
            }
            let lacks_fabric = props.handles.contains(HandleTypes::FABRIC);
            unsupported(if lacks_fabric && supported.contains(HandleTypes::POSIX_FD) {
                FABRIC_NEEDS
            } else {
                "the device does not support pools with these handles; choose another kind of handle, or none"
            })
        }
        Err(error) if error.is_sticky() => Err(error),
        Err(_) => Ok(()),
    }
}

const FABRIC_NEEDS: &str = "fabric handles need a GPU of compute capability 9.0 or later, and a channel of \
 IMEX that exporter and importer may open; create \
 /dev/nvidia-caps-imex-channels/channel0 as CUDA's documentation of \
 cuMemPoolCreate says, or make the pool with file descriptors alone (handles=fd)";

/// Adds the reason and the remedy if the driver refused a fabric handle because of the IMEX channel.
pub(super) fn explain(error: Error, driver: &dyn Driver) -> Error {
    if error.driver_error().is_none_or(|error| error.code() != DriverError::NOT_PERMITTED) {
        return error;
    }
    Error::new(ErrorKind::Unsupported, FABRIC_NEEDS).on_device(driver.device()).caused_by(error)
}
