//! How physical memory is made, and which devices may use it.

use std::sync::Arc;

#[cfg(unix)]
use millpond_core::driver::PhysicalHandle;
use millpond_core::driver::{AccessFlags, Driver, DriverError, DriverResult, PhysicalProps};
use millpond_core::{DeviceId, DevicePtr};
use parking_lot::Mutex;

use crate::backing::paged::Pages;

/// How a pool's physical memory is made, and which devices may use it besides the pool's own.
#[derive(Debug, Default)]
pub(crate) struct Backing {
    pub(crate) props: PhysicalProps,
    /// Whether devices get access by themselves; else a peer was asked for by name, and mapping fails where
    /// the driver refuses it.
    is_open: bool,
    peers: Mutex<PeerTable>,
}

#[derive(Debug, Default)]
struct PeerTable {
    /// They have access to all that is mapped.
    admitted: Vec<DeviceId>,
    /// The driver refused them once; they are not tried again unless somebody asks.
    refused: Vec<DeviceId>,
}

impl Backing {
    /// For these devices; and, if it `is_open`, for those that come.
    pub(crate) fn new(props: PhysicalProps, peers: Vec<DeviceId>, is_open: bool) -> Self {
        Self { props, is_open, peers: Mutex::new(PeerTable { admitted: peers, refused: Vec::new() }) }
    }

    /// Whether devices get access by themselves.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// The other devices that have access.
    pub(crate) fn peers(&self) -> Vec<DeviceId> {
        self.peers.lock().admitted.clone()
    }

    /// Those of `active` that have no access, and were not refused it.
    fn newcomers(&self, active: &[DeviceId]) -> Vec<DeviceId> {
        let peers = self.peers.lock();
        let is_new = |device: &&DeviceId| !peers.admitted.contains(device) && !peers.refused.contains(device);
        active.iter().filter(is_new).copied().collect()
    }

    fn admit(&self, devices: &[DeviceId]) {
        let mut peers = self.peers.lock();
        peers.refused.retain(|device| !devices.contains(device));
        peers.admitted.retain(|device| !devices.contains(device));
        peers.admitted.extend(devices);
    }

    fn refuse(&self, devices: &[DeviceId]) {
        let mut peers = self.peers.lock();
        peers.admitted.retain(|device| !devices.contains(device));
        peers.refused.extend(devices);
    }

    /// Lets the pool's device and its peers use what was just mapped. A peer that the driver refuses, and
    /// that nobody asked for by name, is a peer no longer.
    ///
    /// # Safety
    /// All of the range is mapped by this pool, without a gap.
    ///
    /// # Errors
    /// What the driver reports.
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
        "a device gets no access to the pool's memory; copies to and from it work by cuMemcpyPeer only"
    );
}

/// Access for other devices to all that is mapped.
#[derive(Debug)]
pub(crate) struct Admission {
    devices: Vec<DeviceId>,
    /// Devices that the driver refused.
    refused: Vec<DeviceId>,
    /// What is mapped without a gap: address and bytes.
    ranges: Vec<(u64, u64)>,
    /// Whether somebody asked for it, and hears of the error.
    is_asked: bool,
}

impl Admission {
    /// Makes the driver calls. Where nobody asked for a device by name, one that the driver refuses is left
    /// out, and one for which memory ran short is left for another time.
    ///
    /// # Errors
    /// What the driver reports; of devices that nobody asked for, only that this one is lost.
    pub(crate) fn run(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        match self.set_access(driver, &self.devices) {
            Err(error) if !self.is_asked && !error.is_sticky() => {}
            outcome => return outcome,
        }
        // The error does not say which device it is about.
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
            // SAFETY: all of it is this pool's and mapped; whoever would unmap it holds the lock that the
            // caller holds.
            unsafe { driver.mem_set_access(DevicePtr::new(*base), *bytes, AccessFlags::ReadWrite, devices) }
        })
    }
}

impl Pages {
    /// Says how new memory is made, and who may use it.
    pub(crate) fn set_backing(&mut self, backing: Backing) {
        self.backing = Arc::new(backing);
    }

    pub(crate) fn backing(&self) -> &Backing {
        &self.backing
    }

    /// Plans access for devices that have none to what is mapped; `None` where there is nothing to do.
    pub(crate) fn plan_admission(&mut self, devices: &[DeviceId], is_asked: bool) -> Option<Admission> {
        let devices = if is_asked { devices.to_vec() } else { self.backing.newcomers(devices) };
        if devices.is_empty() {
            return None;
        }
        let ranges = self.mapped_ranges();
        if ranges.is_empty() {
            self.backing.admit(&devices);
            return None;
        }
        Some(Admission { devices, refused: Vec::new(), ranges, is_asked })
    }

    /// Ends an admission that was run.
    pub(crate) fn commit_admission(&mut self, admission: &Admission) {
        let Admission { devices, refused, .. } = admission;
        self.backing.admit(devices);
        self.backing.refuse(refused);
        tracing::debug!(
            target: "millpond::pool", ?devices, ?refused, "devices have access to the pool's memory"
        );
    }

    /// All that is mapped, in the primary mapping and in aliases, as ranges without gaps: address and bytes.
    fn mapped_ranges(&self) -> Vec<(u64, u64)> {
        let primaries = self.handles.iter().map(|(_, handle)| (handle.primary, handle.bytes));
        let in_views = self.aliases.mapped();
        let mut all: Vec<(u64, u64)> = primaries.chain(in_views).collect();
        all.sort_unstable();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (base, bytes) in all {
            match ranges.last_mut() {
                Some((start, length)) if *start + *length == base => *length += bytes,
                _ => ranges.push((base, bytes)),
            }
        }
        ranges
    }

    /// The memory behind the bytes of a block, in order: handle, its bytes, and which of them.
    #[cfg(unix)]
    pub(crate) fn physical_of(&self, addr: u64, bytes: u64) -> Vec<Part> {
        let end = addr + bytes;
        let part = |(handle, start): (u32, u64)| {
            let handle = self.handles.get(handle);
            let (from, to) = (addr.max(start), end.min(start + handle.bytes));
            Part {
                physical: handle.physical,
                handle_bytes: handle.bytes,
                offset: from - start,
                bytes: to - from,
            }
        };
        if self.aliases.at(addr).is_some() {
            let mut parts = Vec::new();
            let mut at = addr;
            while let Some((id, start)) = self.aliases.at(at).filter(|_| at < end) {
                at = start + self.handles.get(id).bytes;
                parts.push(part((id, start)));
            }
            return parts;
        }
        self.handles.within(addr, end).map(|(id, handle)| part((id, handle.primary))).collect()
    }
}

/// A part of a block: some bytes of a handle.
#[cfg(unix)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) physical: PhysicalHandle,
    pub(crate) handle_bytes: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}
