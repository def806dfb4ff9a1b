//! Decides how physical memory is created and which devices have access to it, and grants access.

use millpond_core::driver::{AccessFlags, Driver, DriverError, DriverResult, PhysicalProps};
use millpond_core::{DeviceId, DevicePtr};
use parking_lot::Mutex;

/// How a pool's physical memory is created, and which other devices have access to it.
#[derive(Debug, Default)]
pub(crate) struct Backing {
    pub(crate) props: PhysicalProps,
    /// Whether devices get access when they become active. If not, the user named the peers, and mapping
    /// fails if the driver refuses one.
    is_open: bool,
    peers: Mutex<PeerTable>,
}

#[derive(Debug, Default)]
struct PeerTable {
    /// They have access to all mapped memory.
    admitted: Vec<DeviceId>,
    /// The driver refused them once; they are tried again only if the user names them.
    refused: Vec<DeviceId>,
}

impl Backing {
    /// Returns a backing with these peers; if it `is_open`, other devices get access when they become active.
    pub(crate) fn new(props: PhysicalProps, peers: Vec<DeviceId>, is_open: bool) -> Self {
        Self { props, is_open, peers: Mutex::new(PeerTable { admitted: peers, refused: Vec::new() }) }
    }

    /// Returns whether devices get access when they become active.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Returns the other devices that have access.
    pub(crate) fn peers(&self) -> Vec<DeviceId> {
        self.peers.lock().admitted.clone()
    }

    /// Returns the devices of `active` that have no access and that the driver has not refused.
    pub(super) fn newcomers(&self, active: &[DeviceId]) -> Vec<DeviceId> {
        let peers = self.peers.lock();
        let is_new = |device: &&DeviceId| !peers.admitted.contains(device) && !peers.refused.contains(device);
        active.iter().filter(is_new).copied().collect()
    }

    /// From now on, new mappings also give access to these devices. Returns the devices that had no access.
    pub(super) fn begin_to_admit(&self, devices: &[DeviceId]) -> Vec<DeviceId> {
        let mut peers = self.peers.lock();
        let mut planned = devices.to_vec();
        planned.retain(|device| !peers.admitted.contains(device));
        peers.admitted.extend(&planned);
        planned
    }

    /// Undoes [`begin_to_admit`](Self::begin_to_admit) for devices that got no access.
    pub(super) fn withdraw(&self, devices: &[DeviceId]) {
        self.peers.lock().admitted.retain(|device| !devices.contains(device));
    }

    /// Notes that these devices have access to all mapped memory.
    pub(super) fn admit(&self, devices: &[DeviceId]) {
        let mut peers = self.peers.lock();
        peers.refused.retain(|device| !devices.contains(device));
        peers.admitted.retain(|device| !devices.contains(device));
        peers.admitted.extend(devices);
    }

    pub(super) fn refuse(&self, devices: &[DeviceId]) {
        let mut peers = self.peers.lock();
        peers.admitted.retain(|device| !devices.contains(device));
        peers.refused.extend(devices);
    }

    /// Gives the pool's device and its peers access to newly mapped memory. If the driver refuses a peer that
    /// the user did not name, the peer loses access.
    ///
    /// # Safety
    /// This pool mapped the whole range, without a gap.
    ///
    /// # Errors
    /// The driver's error.
    pub(super) unsafe fn grant(&self, driver: &dyn Driver, base: u64, bytes: u64) -> DriverResult<()> {
        // SAFETY: the caller's promise.
        let set = |devices: &[DeviceId]| unsafe {
            driver.mem_set_access(DevicePtr::new(base), bytes, AccessFlags::ReadWrite, devices)
        };
        let own = driver.device();
        let peers = self.peers();
        let all: Vec<DeviceId> = std::iter::once(own).chain(peers.iter().copied()).collect();
        let error = match set(&all) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if peers.is_empty() || !self.is_open || error.is_sticky() || error.is_out_of_memory() {
            return Err(error);
        }
        set(&[own])?;
        for peer in peers {
            match set(&[peer]) {
                Err(error) if error.is_sticky() || error.is_out_of_memory() => return Err(error),
                Err(error) => {
                    warn_refused(peer, &error);
                    self.refuse(&[peer]);
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }
}

fn warn_refused(peer: DeviceId, error: &DriverError) {
    tracing::warn!(
        target: "millpond::pool", %peer, %error,
        "a device gets no access to the pool's memory, and can copy it only with cuMemcpyPeer"
    );
}

/// Grants other devices access to all mapped memory. The pool unmaps nothing until the admission is
/// committed.
#[derive(Debug)]
pub(crate) struct Admission {
    /// The devices that are to get access and had none.
    pub(super) planned: Vec<DeviceId>,
    /// The devices that the driver has not refused so far.
    pub(super) devices: Vec<DeviceId>,
    /// Devices that the driver refused.
    pub(super) refused: Vec<DeviceId>,
    /// Mapped addresses without a gap: address and bytes.
    pub(super) ranges: Vec<(u64, u64)>,
    /// Whether the user named the devices. If so, the user gets the error.
    pub(super) is_asked: bool,
}

impl Admission {
    /// Makes the driver calls. If the user did not name the devices, a device that the driver refuses is left
    /// out. A device for which memory ran short is tried again later.
    ///
    /// # Errors
    /// The driver's error. If the user did not name the devices, only the loss of the pool's device is an
    /// error.
    pub(crate) fn make_calls(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        match self.set_access(driver, &self.devices) {
            Err(error) if !self.is_asked && !error.is_sticky() => {}
            outcome => return outcome,
        }
        // The error does not name the device.
        for device in std::mem::take(&mut self.devices) {
            match self.set_access(driver, &[device]) {
                Ok(()) => self.devices.push(device),
                Err(error) if error.is_sticky() => return Err(error),
                Err(error) if error.is_out_of_memory() => {}
                Err(error) => {
                    warn_refused(device, &error);
                    self.refused.push(device);
                }
            }
        }
        Ok(())
    }

    fn set_access(&self, driver: &dyn Driver, devices: &[DeviceId]) -> DriverResult<()> {
        self.ranges.iter().try_for_each(|(base, bytes)| {
            // SAFETY: this pool mapped the range, and unmaps nothing until the admission is committed.
            unsafe { driver.mem_set_access(DevicePtr::new(*base), *bytes, AccessFlags::ReadWrite, devices) }
        })
    }
}
