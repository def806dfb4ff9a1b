//! Plans access of other devices to mapped memory, and finds the physical memory of a block.

use millpond_core::DeviceId;
#[cfg(unix)]
use millpond_core::driver::PhysicalHandle;

use crate::store::pages::access::Admission;
use crate::store::pages::state::Pages;

impl Pages {
    /// Plans access to mapped memory for the devices that have none; `None` if there is nothing to do. No
    /// other task is under way, and no release is planned until the admission is committed or aborted.
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
        // A growth that is planned meanwhile maps memory outside these ranges.
        let planned = self.backing.begin_to_admit(&devices);
        Some(Admission { planned, devices, refused: Vec::new(), ranges, is_asked })
    }

    /// Commits an admission that was run.
    pub(crate) fn commit_admission(&mut self, admission: &Admission) {
        self.abort_admission(admission);
        self.backing.admit(&admission.devices);
        self.backing.refuse(&admission.refused);
    }

    /// Ends an admission whose run failed.
    pub(crate) fn abort_admission(&mut self, admission: &Admission) {
        self.backing.withdraw(&admission.planned);
    }

    /// Returns all mapped addresses, of the primary mapping and of aliases, as ranges without gaps: address
    /// and bytes.
    fn mapped_ranges(&self) -> Vec<(u64, u64)> {
        let primaries = self.handles.iter().map(|(_, handle)| (handle.primary, handle.bytes));
        let mut all: Vec<(u64, u64)> = primaries.chain(self.aliases.mapped()).collect();
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

    /// Returns the parts of handles that hold the bytes of a block, in order.
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

/// A part of a block: `bytes` of a handle from `offset` on.
#[cfg(unix)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) physical: PhysicalHandle,
    pub(crate) handle_bytes: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

#[cfg(test)]
mod tests {
    use millpond_driver::sim::{SimConfig, SimDevice};

    use super::*;
    use crate::tuning::Policy;

    const BYTES: u64 = 64 << 20;

    fn with_mapped_memory() -> Pages {
        let device = SimDevice::new(SimConfig::h200());
        let mut pages = Pages::new(2 << 20, 1 << 30, u64::MAX, Policy::default());
        let mut plan = pages.plan_reserve(BYTES, u64::MAX).expect("no maximum");
        plan.work.make_calls(&*device).expect("the device has room");
        pages.add_handles(&plan);
        pages
    }

    #[test]
    fn handles_that_lie_side_by_side_get_access_by_one_call() {
        let mut pages = with_mapped_memory();
        assert!(pages.handles.iter().count() > 1);
        let admission = pages.plan_admission(&[DeviceId::sim(1)], true).expect("there is mapped memory");
        let bytes: Vec<u64> = admission.ranges.iter().map(|(_, bytes)| *bytes).collect();
        assert_eq!(bytes, [BYTES]);
    }

    /// Memory that is mapped during an admission is also for the new devices, unless the driver refuses them.
    #[test]
    fn devices_have_access_to_new_memory_from_the_plan_on() {
        let mut pages = with_mapped_memory();
        let devices = [1, 2].map(DeviceId::sim);
        let admission = pages.plan_admission(&devices, false).expect("there is mapped memory");
        assert_eq!(pages.backing.peers(), devices);
        pages.abort_admission(&admission);
        assert_eq!(pages.backing.peers(), []);
        let mut admission = pages.plan_admission(&devices, false).expect("they were not refused");
        admission.devices.retain(|device| *device == devices[1]);
        admission.refused.push(devices[0]);
        assert_eq!(pages.backing.peers(), devices);
        pages.commit_admission(&admission);
        assert_eq!(pages.backing.peers(), [devices[1]]);
        // A user may ask for access that a device has.
        let admission = pages.plan_admission(&devices[1..], true).expect("the user asks");
        pages.commit_admission(&admission);
        assert_eq!(pages.backing.peers(), [devices[1]]);
        // If the driver refuses that, the device keeps the access that it had.
        let admission = pages.plan_admission(&devices, true).expect("the user asks for both");
        pages.abort_admission(&admission);
        assert_eq!(pages.backing.peers(), [devices[1]]);
        assert!(pages.plan_admission(&devices, false).is_none(), "one has access, the other was refused");
    }
}
