//! Numbers the devices whose rows share a log.

use millpond_core::DeviceId;
use parking_lot::RwLock;

/// The devices of a log, by a number that fits in a record.
#[derive(Default, Debug)]
pub(super) struct Devices(RwLock<Vec<DeviceId>>);

impl Devices {
    /// Returns the number of a device; `None` if there are 65536 others already.
    pub(super) fn number(&self, device: DeviceId) -> Option<u16> {
        let mut known = self.0.write();
        let number = known.iter().position(|known| *known == device).unwrap_or(known.len());
        let small = u16::try_from(number).ok()?;
        if number == known.len() {
            known.push(device);
        }
        Some(small)
    }

    /// Returns all devices, in the order of their numbers.
    pub(super) fn all(&self) -> Vec<DeviceId> {
        self.0.read().clone()
    }
}
