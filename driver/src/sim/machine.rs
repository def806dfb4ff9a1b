//! Several devices in one machine, which can use each other's memory as in CUDA.

use std::fmt;
use std::sync::Arc;

use millpond_core::driver::{AccessFlags, DriverError, DriverResult};
use millpond_core::{DeviceId, DevicePtr, StreamRef};

use super::config::SimConfig;
use super::device::{Devices, Shared, SimDevice};
use super::model::access::{Access, Action};
use super::model::answer::{Answer, Refusal};
use super::model::memory::Pieces;
use super::model::space::{MOST_DEVICES, Purpose, slice_of};
use super::model::violation::ViolationKind;
use super::model::work::Operation;
use super::state::State;
use crate::CallKind;

/// A machine with several simulated devices.
///
/// The addresses of the devices do not overlap. A device treats an address of another device as CUDA does:
/// - **Physical memory**: a device can use mapped memory if the program gave the device access to the
///   mapping.
/// - **Plain memory**: any device can copy it. A device can fill it, or use it in kernels, only after the
///   program has [enabled peer access](SimDevice::enable_peer_access).
/// - **Pools of the driver**: a device can use a pool's memory if the program gave the device access to the
///   pool.
/// - [`copy_peer`](SimDevice::copy_peer) copies from any device to any other device.
///
/// All other uses fail with `CUDA_ERROR_INVALID_VALUE`. If work uses another device's memory, the work runs
/// at once when it is submitted, after the earlier work of its stream. The order of work is checked only
/// within one device.
///
/// ```
/// use millpond_core::Driver;
/// use millpond_driver::sim::{SimConfig, SimMachine};
///
/// let machine = SimMachine::new();
/// let [first, second] = [(); 2].map(|()| machine.add_device(SimConfig::h200()));
/// assert_eq!(first.active_peers()?, [second.device()]);
/// # Ok::<(), millpond_core::DriverError>(())
/// ```
#[derive(Clone, Default)]
pub struct SimMachine {
    devices: Devices,
}

/// How memory is used, which decides whether another device may use it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Kernel,
    Copy,
    PeerCopy,
}

impl SimMachine {
    /// Creates a machine without devices.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a device to the machine. The context of the device is active from now on.
    ///
    /// # Panics
    /// Panics if the machine already has 16 devices.
    pub fn add_device(&self, config: SimConfig) -> Arc<SimDevice> {
        let mut devices = self.devices.lock();
        let index = devices.len();
        assert!(index < MOST_DEVICES, "a simulated machine has at most {MOST_DEVICES} devices");
        let shared = SimDevice::build(config, Some((Arc::clone(&self.devices), index)));
        devices.push(Arc::downgrade(&shared));
        shared.open()
    }
}

/// The living devices of a machine, except the one with this index.
fn others(devices: &Devices, index: usize) -> Vec<Arc<Shared>> {
    let devices = devices.lock();
    let others = devices.iter().enumerate().filter(|(at, _)| *at != index);
    others.filter_map(|(_, device)| device.upgrade()).collect()
}

impl fmt::Debug for SimMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimMachine").field("devices", &self.devices.lock().len()).finish()
    }
}

impl Shared {
    /// The memory behind another device's addresses, if `by` may use it in this way.
    fn reach(&self, ptr: DevicePtr, bytes: u64, by: &SimDevice, how: How) -> Answer<Pieces> {
        let enabled = by.lock().peers_enabled.contains(&self.id);
        let state = self.state.lock();
        let refused = |why: &str| Err(Refusal::invalid_value(format!("{bytes} bytes at {ptr}: {why}")));
        let Some(pieces) = state.space.translate(ptr.address(), bytes) else {
            return refused("not in one accessible allocation");
        };
        let range = ptr.address()..ptr.address() + bytes;
        let may_use = |start: u64, purpose: Purpose| match (purpose, how) {
            (_, How::PeerCopy) | (Purpose::Plain, How::Copy) => true,
            (Purpose::Plain, How::Kernel) => enabled,
            (Purpose::Pool(pool), _) => state
                .pools
                .of_mapping(pool)
                .is_some_and(|pool| pool.access_of(by.shared.id) != AccessFlags::None),
            (Purpose::Virtual(_), _) => state.vmm.may_use(start, by.shared.id),
            _ => false,
        };
        if !state.space.within(range).all(|(start, mapping)| may_use(start, mapping.purpose)) {
            return refused(&format!("memory of {} that {} has no access to", self.id, by.shared.id));
        }
        Ok(pieces)
    }
}

impl State {
    fn read_all(&self, pieces: &Pieces) -> Vec<u8> {
        let mut bytes = Vec::new();
        for piece in pieces {
            let from = bytes.len();
            bytes.resize(from + piece.bytes as usize, 0);
            self.effects.contents.read(piece, 0, &mut bytes[from..]);
        }
        bytes
    }

    fn write_all(&mut self, pieces: &Pieces, mut bytes: &[u8]) {
        for piece in pieces {
            let (now, rest) = bytes.split_at(piece.bytes as usize);
            self.effects.contents.write(piece, 0, now);
            bytes = rest;
        }
    }

    /// Lets a stream finish, orders this device's part of a copy after it, and returns the memory of these
    /// ranges.
    fn take_turn(
        &mut self,
        stream: StreamRef,
        call: &str,
        bytes: u64,
        ranges: &[Option<DevicePtr>],
    ) -> Answer<Vec<Option<Pieces>>> {
        let slot = self.stream_slot(stream, call)?;
        self.work.finish(self.order.end(slot), &mut self.effects);
        let place = self.place(slot);
        let mut found = Vec::new();
        for range in ranges {
            let outside = || Refusal::invalid_value("a range does not lie in one accessible allocation");
            found.push(match range {
                Some(ptr) => Some(self.access(*ptr, bytes, place.0).ok_or_else(outside)?),
                None => None,
            });
        }
        let duration = self.profile.copy_ns(bytes);
        self.submit(place, Operation::Nothing, duration);
        Ok(found)
    }
}

/// Calls that use other devices of the machine.
impl SimDevice {
    /// Lets kernels and fills of this device use the plain memory of the device `peer`
    /// (`cuCtxEnablePeerAccess`).
    pub fn enable_peer_access(&self, peer: &Self) {
        self.lock().peers_enabled.insert(peer.shared.id);
    }

    /// Copies between any two devices of the machine, on a stream of this device (`cuMemcpyPeerAsync`). The
    /// copy works even if neither device can access the other's memory.
    ///
    /// # Errors
    /// An error if a range does not lie in one allocation.
    pub fn copy_peer(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        self.copy_between(dst, src, bytes, stream, How::PeerCopy, "cuMemcpyPeerAsync")
    }

    /// Does the same from a named device to this one.
    pub(super) fn copy_from_peer(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        src_device: DeviceId,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        let peers = self.shared.machine.as_ref().map(|(machine, index)| others(machine, *index));
        let is_peer = peers.is_some_and(|peers| peers.iter().any(|peer| peer.id == src_device));
        if !is_peer && src_device != self.shared.id {
            let error = DriverError::new(DriverError::INVALID_DEVICE, "cuMemcpyPeerAsync");
            return Err(error.with_detail(format!("{src_device} is not a device of this machine")));
        }
        self.copy_peer(dst, src, bytes, stream)
    }

    /// The machine's other device that owns this address.
    fn owner_of(&self, ptr: DevicePtr) -> Option<Arc<Shared>> {
        let (machine, own) = self.shared.machine.as_ref()?;
        let index = slice_of(ptr.address()).filter(|index| index != own)?;
        machine.lock().get(index)?.upgrade()
    }

    /// Whether another device owns any of these addresses.
    pub(super) fn is_foreign(&self, ptrs: &[DevicePtr]) -> bool {
        self.shared.machine.is_some() && ptrs.iter().any(|ptr| self.owner_of(*ptr).is_some())
    }

    pub(super) fn fill_foreign(
        &self,
        dst: DevicePtr,
        value: u8,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        let name = "cuMemsetD8Async";
        let Some(owner) = self.owner_of(dst) else { return Ok(()) };
        let found = owner.reach(dst, bytes, self, How::Kernel);
        let pieces = self.call(CallKind::Fill, name, |state| {
            state.take_turn(stream, name, bytes, &[])?;
            found
        })?;
        let mut state = owner.state.lock();
        pieces.iter().for_each(|piece| state.effects.contents.fill(piece, value));
        Ok(())
    }

    pub(super) fn copy_foreign(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        self.copy_between(dst, src, bytes, stream, How::Copy, "cuMemcpyDtoDAsync")
    }

    fn copy_between(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamRef,
        how: How,
        name: &'static str,
    ) -> DriverResult<()> {
        if bytes == 0 {
            return Ok(());
        }
        let reach = |ptr: DevicePtr| {
            let owner = self.owner_of(ptr)?;
            let pieces = owner.reach(ptr, bytes, self, how);
            Some(pieces.map(|pieces| (owner, pieces)))
        };
        let (to, from) = (reach(dst), reach(src));
        let (to, from, own) = self.call(CallKind::Copy, name, |state| {
            let (to, from) = (to.transpose()?, from.transpose()?);
            let ranges = [to.is_none().then_some(dst), from.is_none().then_some(src)];
            let own = state.take_turn(stream, name, bytes, &ranges)?;
            Ok((to, from, own))
        })?;
        let data = match (&from, &own[1]) {
            (Some((owner, pieces)), _) => owner.state.lock().read_all(pieces),
            (None, Some(pieces)) => self.lock().read_all(pieces),
            (None, None) => return Ok(()),
        };
        match (&to, &own[0]) {
            (Some((owner, pieces)), _) => owner.state.lock().write_all(pieces, &data),
            (None, Some(pieces)) => self.lock().write_all(pieces, &data),
            (None, None) => {}
        }
        Ok(())
    }

    /// A kernel's access to another device's memory.
    pub(super) fn launch_foreign(&self, stream: StreamRef, access: &Access) {
        let Some(owner) = self.owner_of(access.ptr) else { return };
        let found = owner.reach(access.ptr, access.bytes, self, How::Kernel);
        {
            let mut state = self.lock();
            let turn = state.take_turn(stream, "a launch", access.bytes, &[]);
            if let Err(refusal) = turn.and_then(|_| found.as_ref().map(drop).map_err(Clone::clone)) {
                let error = refusal.named("a launch");
                state.violation(ViolationKind::OutOfBounds, || error.to_string());
                return;
            }
        }
        let Ok(pieces) = found else { return };
        let mut state = owner.state.lock();
        for piece in &pieces {
            match access.action {
                Action::Read => {}
                Action::Write(tag) => state.effects.contents.write_pattern(piece, tag),
                Action::Check(tag) => {
                    if let Err((offset, bytes)) = state.effects.contents.check(piece, tag) {
                        state.violation(ViolationKind::TagMismatch, || {
                            format!(
                                "found {bytes:#x} instead of tag {tag:#x}, {offset} bytes after {}",
                                access.ptr
                            )
                        });
                    }
                }
            }
        }
    }

    /// The machine's other devices that can use this one's memory.
    fn reachable_by(&self) -> Vec<Arc<Shared>> {
        match &self.shared.machine {
            Some((machine, index)) if self.shared.has_peers => {
                others(machine, *index).into_iter().filter(|other| other.has_peers).collect()
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn can_reach_from(&self, peer: DeviceId) -> bool {
        self.reachable_by().iter().any(|other| other.id == peer)
    }

    pub(super) fn peers_at_work(&self) -> Vec<DeviceId> {
        let others = self.reachable_by().into_iter();
        others.filter(|other| other.state.lock().is_context_active).map(|other| other.id).collect()
    }
}
