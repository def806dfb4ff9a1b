//! The options `peers` and `share`: which other devices and processes may use a pool's memory.

use std::fmt;
use std::str::FromStr;

use millpond_core::driver::call;
use millpond_core::{DeviceId, Driver, Error, Result};

/// Selects the other devices of the machine that may access a pool's memory, if the pool maps pages.
///
/// Another device can access mapped memory only if the mapping gives access to that device. Enabling peer
/// access (`cudaDeviceEnablePeerAccess`) is not enough. For each device that has access, each mapping takes
/// the time of one more `cuMemSetAccess`.
///
/// In the text of a stack: `peers=auto` (the default), `peers=none`, or device numbers such as `peers=0/1`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Peers {
    /// All devices that can access the memory, if their primary contexts are active when the pool maps the
    /// memory. If the context of a device becomes active later, the device gets access at the pool's next
    /// call that needs the driver. [`add_peer`](crate::PoolMemoryResource::add_peer) gives access earlier.
    #[default]
    Auto,
    /// No devices, except devices that are passed to [`add_peer`](crate::PoolMemoryResource::add_peer).
    None,
    /// The devices in the list, even if their contexts are not active. The list may contain the pool's own
    /// device.
    Only(PeerList),
}

/// A list of at most 16 device numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PeerList {
    ordinals: [u32; Self::MOST],
    count: usize,
}

impl PeerList {
    const MOST: usize = 16;

    /// Creates a list of these devices.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if there are more than 16 devices.
    pub fn new(ordinals: &[u32]) -> Result<Self> {
        let mut list = Self { count: ordinals.len(), ..Self::default() };
        match list.ordinals.get_mut(..ordinals.len()) {
            Some(places) => places.copy_from_slice(ordinals),
            None => return Err(Error::invalid_argument("a pool has at most 16 peers; name fewer")),
        }
        Ok(list)
    }

    /// Returns the numbers of the devices.
    pub fn ordinals(&self) -> &[u32] {
        &self.ordinals[..self.count]
    }
}

impl Peers {
    /// Returns the named devices, without the driver's own.
    pub(super) fn named(&self, driver: &dyn Driver) -> Result<Vec<DeviceId>> {
        let Self::Only(list) = self else { return Ok(Vec::new()) };
        let own = driver.device();
        let ids = list.ordinals().iter().filter_map(|ordinal| DeviceId::of_kind(own.kind(), *ordinal));
        let others: Vec<DeviceId> = ids.filter(|device| *device != own).collect();
        for device in &others {
            check(*device, driver)?;
        }
        Ok(others)
    }
}

/// Fails unless `device` can use memory of the driver's device.
pub(super) fn check(device: DeviceId, driver: &dyn Driver) -> Result<()> {
    if call(driver, |driver| driver.can_be_accessed_by(device))? {
        return Ok(());
    }
    Err(Error::invalid_argument(format!(
        "{device} cannot use memory of {own}: {device} does not exist, or there is no direct path between \
         the two (cuDeviceCanAccessPeer); name other devices, or copy with cuMemcpyPeer, which needs no \
         access",
        own = driver.device()
    )))
}

impl FromStr for Peers {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.trim() {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            list => {
                let ordinals: std::result::Result<Vec<u32>, _> =
                    list.split('/').map(|ordinal| ordinal.trim().parse()).collect();
                let ordinals = ordinals.map_err(|_| {
                    let wrong =
                        format!("`peers` must be auto, none, or device numbers such as 0/1, not `{list}`");
                    Error::invalid_argument(wrong)
                })?;
                Ok(Self::Only(PeerList::new(&ordinals)?))
            }
        }
    }
}

impl fmt::Display for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::None => f.write_str("none"),
            Self::Only(list) => {
                let ordinals: Vec<String> = list.ordinals().iter().map(u32::to_string).collect();
                f.write_str(&ordinals.join("/"))
            }
        }
    }
}

/// Selects whether a pool's blocks can be exported to other processes.
///
/// In the text of a stack: `share=none` (the default), `share=fd`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Share {
    /// Blocks cannot be exported.
    #[default]
    None,
    /// [`export_block`](crate::PoolMemoryResource::export_block) can export blocks as POSIX file descriptors.
    /// The pool must map pages.
    Fd,
}

impl FromStr for Share {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.trim() {
            "none" => Ok(Self::None),
            "fd" => Ok(Self::Fd),
            other => Err(Error::invalid_argument(format!("`share` must be none or fd, not `{other}`"))),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Fd => "fd",
        })
    }
}
