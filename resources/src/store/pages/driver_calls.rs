//! The driver calls of plans and releases, made without the pool's lock, and undone if one fails.

use std::sync::Arc;

use millpond_core::DevicePtr;
use millpond_core::driver::{Driver, DriverResult, PhysicalHandle};

use crate::store::pages::access::Backing;
use crate::store::pages::handles::{AddressRange, HandleId};

/// Where the addresses of new mappings come from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Addresses {
    /// Already reserved, from this address on.
    At(u64),
    /// A new reservation of this many bytes.
    Reserve(u64),
    /// A new reservation of `bytes` for each address range, the small one below the large one. So the order
    /// of primary mappings does not depend on the driver. The mappings are in the upper or the lower half.
    ReserveBoth { bytes: u64, is_upper: bool },
}

/// Returns where the upper of two address ranges starts in a reservation of `bytes`, from its base.
pub(super) fn upper_range(bytes: u64, granularity: u64) -> u64 {
    bytes / 2 / granularity * granularity
}

/// A new handle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Created {
    pub(super) physical: PhysicalHandle,
    pub(super) bytes: u64,
    is_primary: bool,
}

/// A part of an alias that a plan maps.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// An existing handle.
    Old { id: HandleId, physical: PhysicalHandle, bytes: u64 },
    /// All new handles.
    New,
}

/// The driver calls of a plan, and those made so far.
#[derive(Debug)]
pub(crate) struct Work {
    backing: Arc<Backing>,
    pub(super) granularity: u64,
    /// Sizes of the new handles in bytes, and the addresses of their primary mappings.
    pub(super) sizes: Vec<u64>,
    /// Calls of the budget that the plan spent on more and smaller handles; an aborted plan gives them back.
    pub(super) spent_calls: u64,
    pub(super) primaries: Addresses,
    /// The handles to map in an alias, and their addresses there.
    pub(super) sources: Vec<Source>,
    pub(super) alias: Addresses,
    pub(super) created: Vec<Created>,
    /// Mappings made in the alias: address and bytes.
    aliased: Vec<(u64, u64)>,
    /// Reservations made: base and bytes.
    pub(super) reserved_primaries: Option<(u64, u64)>,
    pub(super) reserved_alias: Option<(u64, u64)>,
    /// Handles and mappings that could not be undone.
    pub(super) left: Vec<Retired>,
}

/// A handle, or only mappings, to return to the driver.
#[derive(Debug)]
pub(super) struct Retired {
    /// The handle to release once it is unmapped.
    pub(super) physical: Option<PhysicalHandle>,
    /// Bytes of the handle that count as taken from the driver; 0 if only mappings end.
    pub(super) bytes: u64,
    /// Mappings to end: address and bytes.
    pub(super) mappings: Vec<(u64, u64)>,
    /// The address of the primary mapping, which becomes free at the end.
    pub(super) primary: Option<(AddressRange, u64)>,
}

impl Retired {
    pub(super) fn is_done(&self) -> bool {
        self.physical.is_none() && self.mappings.is_empty()
    }

    /// Unmaps and releases until the driver fails; the next call continues from there.
    pub(super) fn make_calls(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        while let Some((addr, bytes)) = self.mappings.last().copied() {
            // SAFETY: this pool made the mapping, all work on it is done, and no table holds it any longer.
            unsafe { driver.mem_unmap(DevicePtr::new(addr), bytes)? };
            self.mappings.pop();
        }
        if let Some(physical) = self.physical {
            // SAFETY: this pool created the handle, which is mapped nowhere.
            unsafe { driver.mem_release(physical)? };
            self.physical = None;
        }
        Ok(())
    }
}

/// Reserves `bytes` of addresses, or fewer, but at least `least` and a guard.
fn reserve(driver: &dyn Driver, bytes: u64, least: u64, granularity: u64) -> DriverResult<(u64, u64)> {
    // The driver may place one reservation directly after another; the guard prevents a block that spans two.
    let (mut bytes, least) = (bytes.max(least + granularity), least + granularity);
    loop {
        match driver.mem_address_reserve(bytes, granularity) {
            Ok(base) => return Ok((base.address(), bytes)),
            // Other reservations or the process's limit leave less room: try half.
            Err(error) if error.is_out_of_memory() && bytes / 2 >= least => {
                bytes = (bytes / 2).next_multiple_of(granularity);
            }
            Err(error) => return Err(error),
        }
    }
}

impl Work {
    pub(super) fn new(
        backing: &Arc<Backing>,
        granularity: u64,
        (sizes, spent_calls): (Vec<u64>, u64),
        primaries: Addresses,
    ) -> Self {
        Self {
            backing: Arc::clone(backing),
            granularity,
            sizes,
            spent_calls,
            primaries,
            sources: Vec::new(),
            alias: Addresses::At(0),
            created: Vec::new(),
            aliased: Vec::new(),
            reserved_primaries: None,
            reserved_alias: None,
            left: Vec::new(),
        }
    }

    /// Returns the bytes of new memory.
    pub(crate) fn new_bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }

    /// Changes the plan to create the new memory as one handle.
    pub(crate) fn take_at_once(&mut self) {
        let new = self.new_bytes();
        self.sizes.clear();
        self.sizes.extend((new > 0).then_some(new));
    }

    /// Returns the number of driver calls that map handles in an alias and make them accessible.
    pub(super) fn alias_calls(&self) -> u64 {
        let calls = |source: &Source| match source {
            Source::Old { .. } => 1,
            Source::New => self.sizes.len() as u64,
        };
        self.sources.iter().map(calls).sum::<u64>() + u64::from(!self.sources.is_empty())
    }

    /// Returns the bytes to map in the alias.
    pub(super) fn alias_bytes(&self) -> u64 {
        let bytes = |source: &Source| match source {
            Source::Old { bytes, .. } => *bytes,
            Source::New => self.new_bytes(),
        };
        self.sources.iter().map(bytes).sum()
    }

    /// Returns the address of the first new primary mapping, if it is known yet.
    pub(super) fn primaries_at(&self) -> Option<u64> {
        match self.primaries {
            Addresses::At(base) => Some(base),
            Addresses::Reserve(_) | Addresses::ReserveBoth { is_upper: false, .. } => {
                self.reserved_primaries.map(|(base, _)| base)
            }
            Addresses::ReserveBoth { is_upper: true, .. } => {
                self.reserved_primaries.map(|(base, bytes)| base + upper_range(bytes, self.granularity))
            }
        }
    }

    /// Returns the address and bytes of the new primary mappings, after the run.
    pub(crate) fn new_primaries(&self) -> Option<(u64, u64)> {
        self.primaries_at().map(|base| (base, self.new_bytes())).filter(|(_, bytes)| *bytes > 0)
    }

    /// Returns the address of the first new mapping in the alias, if it is known yet.
    pub(super) fn alias_at(&self) -> Option<u64> {
        match self.alias {
            Addresses::At(base) => Some(base),
            _ => self.reserved_alias.map(|(base, _)| base),
        }
    }

    /// Returns the bytes of addresses for a new alias that asks for `slot`: fewer if the reservation is
    /// smaller.
    pub(super) fn slot_bytes(&self, slot: u64) -> u64 {
        self.reserved_alias.map_or(slot, |(_, bytes)| slot.min(bytes - self.granularity))
    }

    /// Makes the driver calls. If one fails, those before it are undone.
    ///
    /// # Errors
    /// The driver's error. If the driver refuses a handle although it has enough memory, the plan first tries
    /// smaller handles.
    pub(crate) fn make_calls(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        let outcome = self.map_primaries(driver).and_then(|()| self.map_alias(driver));
        if let Err(error) = &outcome {
            self.undo(driver, error.is_sticky());
        }
        outcome
    }

    fn map_primaries(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        if self.sizes.is_empty() {
            return Ok(());
        }
        let new = self.new_bytes();
        let wanted = match self.primaries {
            Addresses::At(_) => None,
            Addresses::Reserve(bytes) => Some((bytes, new)),
            Addresses::ReserveBoth { bytes, .. } => Some((bytes * 2, (new + self.granularity) * 2)),
        };
        if let Some((bytes, least)) = wanted {
            self.reserved_primaries = Some(reserve(driver, bytes, least, self.granularity)?);
        }
        self.create(driver)?;
        let base = self.primaries_at().expect("there are addresses by now");
        let mut addr = base;
        for Created { physical, bytes, is_primary } in &mut self.created {
            // SAFETY: the addresses are reserved and kept for these handles, and nothing is mapped there.
            unsafe { driver.mem_map(DevicePtr::new(addr), *bytes, *physical)? };
            *is_primary = true;
            addr += *bytes;
        }
        // SAFETY: this function mapped the whole range just now, without a gap.
        unsafe { self.backing.grant(driver, base, addr - base) }
    }

    /// Creates all handles before it maps any, so that little has to be undone if another process took the
    /// memory. If the driver refuses a handle although it has enough memory, the plan tries two halves.
    fn create(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        let mut pending: Vec<u64> = self.sizes.iter().rev().copied().collect();
        let mut left = self.new_bytes();
        while let Some(bytes) = pending.pop() {
            let has_enough = || driver.mem_get_info().is_ok_and(|info| info.free >= left);
            match driver.mem_create(bytes, self.backing.props) {
                Ok(physical) => {
                    self.created.push(Created { physical, bytes, is_primary: false });
                    left -= bytes;
                }
                Err(error) if error.is_out_of_memory() && bytes > self.granularity && has_enough() => {
                    let half = (bytes / 2).next_multiple_of(self.granularity);
                    pending.extend([bytes - half, half]);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn map_alias(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        if self.sources.is_empty() {
            return Ok(());
        }
        let base = match self.alias {
            Addresses::At(base) => base,
            Addresses::Reserve(bytes) | Addresses::ReserveBoth { bytes, .. } => {
                let reserved = reserve(driver, bytes, self.alias_bytes(), self.granularity)?;
                self.reserved_alias.insert(reserved).0
            }
        };
        let mut addr = base;
        let mut maps = Vec::new();
        for source in &self.sources {
            match source {
                Source::Old { physical, bytes, .. } => maps.push((*physical, *bytes)),
                Source::New => maps.extend(self.created.iter().map(|new| (new.physical, new.bytes))),
            }
        }
        for (physical, bytes) in maps {
            // SAFETY: as in `map_primaries`; the plan keeps a piece of every handle, so none is released.
            unsafe { driver.mem_map(DevicePtr::new(addr), bytes, physical)? };
            self.aliased.push((addr, bytes));
            addr += bytes;
        }
        // SAFETY: this function mapped the whole range just now, without a gap.
        unsafe { self.backing.grant(driver, base, addr - base) }
    }

    /// Unmaps and releases everything mapped and created. Reservations stay for the next plan.
    pub(crate) fn undo(&mut self, driver: &dyn Driver, is_lost: bool) {
        let mut primary = self.primaries_at().unwrap_or(0);
        // Aliases end first, so a handle is released only when it is mapped nowhere.
        for mapping in std::mem::take(&mut self.aliased) {
            self.left.push(Retired { physical: None, bytes: 0, mappings: vec![mapping], primary: None });
        }
        for new in std::mem::take(&mut self.created) {
            let mappings = if new.is_primary { vec![(primary, new.bytes)] } else { Vec::new() };
            primary += new.bytes;
            self.left.push(Retired {
                physical: Some(new.physical),
                bytes: new.bytes,
                mappings,
                primary: None,
            });
        }
        // All are kept before the calls are made: a driver that panics loses nothing.
        if !is_lost {
            self.left.retain_mut(|retired| retired.make_calls(driver).is_err());
        }
    }
}

#[cfg(test)]
mod tests {
    use millpond_core::driver::DriverError;
    use millpond_driver::CallKind;
    use millpond_driver::sim::{FaultPlan, SimConfig, SimDevice};

    use super::*;

    /// A handle that the driver refuses is created as two halves, as long as the device has all the missing
    /// memory.
    #[test]
    fn a_refused_handle_is_halved_while_the_device_has_enough() {
        const MIB: u64 = 1 << 20;
        for (capacity, refused, created) in [
            (16, 0, Some(&[4, 4, 8][..])),
            (16, 1, Some(&[8, 4, 4])),
            // The device has too little from the start, so the last handle is refused.
            (14, 2, None),
        ] {
            let device = SimDevice::new(SimConfig::with_capacity(capacity * MIB));
            let backing = Arc::<Backing>::default();
            let mut work = Work::new(&backing, 2 * MIB, (vec![8 * MIB; 2], 0), Addresses::At(1 << 40));
            device.set_faults(FaultPlan::nth_of(CallKind::MemCreate, refused, DriverError::OUT_OF_MEMORY));
            let outcome = work.create(&*device);
            let sizes: Vec<u64> = work.created.iter().map(|it| it.bytes / MIB).collect();
            assert_eq!(outcome.ok().map(|()| &sizes[..]), created, "{capacity} MiB, call {refused} refused");
        }
    }

    /// Where addresses run short, the pool asks for half as many, but never for fewer than it needs.
    #[test]
    fn a_refused_reservation_is_halved_down_to_what_is_needed() {
        const UNIT: u64 = 2 << 20;
        // The reservation needs 3 + 1 units, and asks for 16, 8, and 4 of them.
        for (refused, reserved) in [(0, Some(16)), (1, Some(8)), (2, Some(4)), (3, None)] {
            let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
            let faults = (0..refused).fold(FaultPlan::none(), |faults, n| {
                faults.and(FaultPlan::nth_of(CallKind::MemAddressReserve, n, DriverError::OUT_OF_MEMORY))
            });
            device.set_faults(faults);
            let bytes = reserve(&*device, 16 * UNIT, 3 * UNIT, UNIT).map(|(_, bytes)| bytes / UNIT);
            assert_eq!(bytes.ok(), reserved, "{refused} refused");
        }
    }

    #[test]
    fn new_mappings_are_reported_if_there_are_any() {
        let backing = Arc::<Backing>::default();
        for (sizes, mapped) in [(vec![], None), (vec![2 << 20; 3], Some((1 << 40, 6 << 20)))] {
            let work = Work::new(&backing, 2 << 20, (sizes, 0), Addresses::At(1 << 40));
            assert_eq!(work.new_primaries(), mapped);
        }
    }

    /// One call maps each handle, and one more makes all of them accessible. Without an alias there is no
    /// call.
    #[test]
    fn an_alias_takes_a_call_for_each_handle_and_one_more() {
        const UNIT: u64 = 2 << 20;
        let backing = Arc::<Backing>::default();
        let old = Source::Old { id: 0, physical: PhysicalHandle(0), bytes: UNIT };
        for (sources, calls) in [(vec![], 0), (vec![old; 2], 3), (vec![old, Source::New], 5)] {
            let mut work = Work::new(&backing, UNIT, (vec![UNIT; 3], 0), Addresses::At(1 << 40));
            work.sources = sources;
            assert_eq!(work.alias_calls(), calls);
        }
    }
}
