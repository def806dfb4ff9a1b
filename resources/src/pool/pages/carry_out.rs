use std::sync::Arc;

use millpond_core::DevicePtr;
use millpond_core::driver::{Driver, DriverResult, PhysicalHandle};

use super::Line;
use super::backing::Backing;
use super::handles::HandleId;

/// Where addresses come from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Addresses {
    /// They are reserved already, from here on.
    At(u64),
    /// So many bytes are to be reserved.
    Reserve(u64),
    /// So many are to be reserved for each line, the small one below the large one: so which of two homes is
    /// the lower does not depend on the driver. For the upper or the lower line.
    ReserveBoth { bytes: u64, is_upper: bool },
}

/// Where the upper of two lines starts in a reservation of so many bytes, from its base.
pub(super) fn upper_line(bytes: u64, granularity: u64) -> u64 {
    bytes / 2 / granularity * granularity
}

/// A new handle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Created {
    pub(super) physical: PhysicalHandle,
    pub(super) bytes: u64,
    is_home: bool,
}

/// A part of a view that is to be mapped.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// A handle that there is already.
    Old { id: HandleId, physical: PhysicalHandle, bytes: u64 },
    /// All new handles.
    New,
}

/// What a plan asks of the driver, and how far it has come.
#[derive(Debug)]
pub(super) struct Work {
    backing: Arc<Backing>,
    pub(super) granularity: u64,
    /// Sizes of the new handles in bytes, and where their homes are.
    pub(super) sizes: Vec<u64>,
    pub(super) homes: Addresses,
    /// What is mapped in a view, and where.
    pub(super) sources: Vec<Source>,
    pub(super) view: Addresses,
    pub(super) created: Vec<Created>,
    /// Mappings made in the view: address, handle, bytes.
    viewed: Vec<(u64, PhysicalHandle, u64)>,
    /// What was reserved: base and bytes.
    pub(super) reserved_homes: Option<(u64, u64)>,
    pub(super) reserved_view: Option<(u64, u64)>,
    /// What could not be undone.
    pub(super) left: Vec<Retired>,
}

/// Physical memory, or mappings, on the way back to the driver.
#[derive(Debug)]
pub(super) struct Retired {
    /// What is to be released when it is unmapped.
    pub(super) physical: Option<PhysicalHandle>,
    /// Bytes of the handle that count as taken from the driver; 0 where only mappings go.
    pub(super) bytes: u64,
    /// Mappings to end: address and bytes.
    pub(super) mappings: Vec<(u64, u64)>,
    /// The home's addresses, free when all is done.
    pub(super) home: Option<(Line, u64)>,
}

impl Retired {
    pub(super) fn is_done(&self) -> bool {
        self.physical.is_none() && self.mappings.is_empty()
    }

    /// Goes as far as the driver lets it; called again, it goes on from there.
    pub(super) fn carry_out(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        while let Some((addr, bytes)) = self.mappings.last().copied() {
            // SAFETY: the mapping was made by this pool, whoever retired it knows that all work on it is
            // done, and no table names it any longer.
            unsafe { driver.mem_unmap(DevicePtr::new(addr), bytes)? };
            self.mappings.pop();
        }
        if let Some(physical) = self.physical {
            // SAFETY: the handle is this pool's, and mapped nowhere.
            unsafe { driver.mem_release(physical)? };
            self.physical = None;
        }
        Ok(())
    }
}

/// Reserves addresses: what was asked for, or less, but at least so many bytes and a guard.
fn reserve(driver: &dyn Driver, bytes: u64, least: u64, granularity: u64) -> DriverResult<(u64, u64)> {
    // The driver may put one reservation behind another; a block should not lie in two.
    let (mut bytes, least) = (bytes.max(least + granularity), least + granularity);
    loop {
        match driver.mem_address_reserve(bytes, granularity) {
            Ok(base) => return Ok((base.address(), bytes)),
            // Another pool, or another process's limit, left less room: take what there is.
            Err(error) if error.is_out_of_memory() && bytes / 2 >= least => {
                bytes = (bytes / 2).next_multiple_of(granularity);
            }
            Err(error) => return Err(error),
        }
    }
}

impl Work {
    pub(super) fn new(backing: &Arc<Backing>, granularity: u64, sizes: Vec<u64>, homes: Addresses) -> Self {
        Self {
            backing: Arc::clone(backing),
            granularity,
            sizes,
            homes,
            sources: Vec::new(),
            view: Addresses::At(0),
            created: Vec::new(),
            viewed: Vec::new(),
            reserved_homes: None,
            reserved_view: None,
            left: Vec::new(),
        }
    }

    /// Bytes of new memory.
    pub(super) fn new_bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }

    /// Makes the new handles one.
    pub(super) fn take_at_once(&mut self) {
        let new = self.new_bytes();
        self.sizes.clear();
        self.sizes.extend((new > 0).then_some(new));
    }

    /// Driver calls that map handles in a view and make them accessible.
    pub(super) fn view_calls(&self) -> u64 {
        let of = |source: &Source| match source {
            Source::Old { .. } => 1,
            Source::New => self.sizes.len() as u64,
        };
        self.sources.iter().map(of).sum::<u64>() + u64::from(!self.sources.is_empty())
    }

    /// Bytes that are mapped in the view.
    pub(super) fn view_bytes(&self) -> u64 {
        let bytes = |source: &Source| match source {
            Source::Old { bytes, .. } => *bytes,
            Source::New => self.new_bytes(),
        };
        self.sources.iter().map(bytes).sum()
    }

    /// Where the first new home is, as far as it is known.
    pub(super) fn homes_at(&self) -> Option<u64> {
        match self.homes {
            Addresses::At(base) => Some(base),
            Addresses::Reserve(_) | Addresses::ReserveBoth { is_upper: false, .. } => {
                self.reserved_homes.map(|(base, _)| base)
            }
            Addresses::ReserveBoth { is_upper: true, .. } => {
                self.reserved_homes.map(|(base, bytes)| base + upper_line(bytes, self.granularity))
            }
        }
    }

    /// Where the first new mapping in the view is, as far as it is known.
    pub(super) fn view_at(&self) -> Option<u64> {
        match self.view {
            Addresses::At(base) => Some(base),
            _ => self.reserved_view.map(|(base, _)| base),
        }
    }

    /// Bytes of addresses for a new view that wants `slot`: all of a reservation that turned out smaller.
    pub(super) fn slot_bytes(&self, slot: u64) -> u64 {
        self.reserved_view.map_or(slot, |(_, bytes)| slot.min(bytes - self.granularity))
    }

    /// Makes the driver calls. Where one fails, those before it are undone.
    pub(super) fn carry_out(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        let outcome = self.make_homes(driver).and_then(|()| self.make_view(driver));
        if let Err(error) = &outcome {
            self.undo(driver, error.is_sticky());
        }
        outcome
    }

    fn make_homes(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        if self.sizes.is_empty() {
            return Ok(());
        }
        let new = self.new_bytes();
        let wanted = match self.homes {
            Addresses::At(_) => None,
            Addresses::Reserve(bytes) => Some((bytes, new)),
            Addresses::ReserveBoth { bytes, .. } => Some((bytes * 2, (new + self.granularity) * 2)),
        };
        if let Some((bytes, least)) = wanted {
            self.reserved_homes = Some(reserve(driver, bytes, least, self.granularity)?);
        }
        self.create(driver)?;
        let base = self.homes_at().expect("there are addresses by now");
        let mut addr = base;
        for Created { physical, bytes, is_home } in &mut self.created {
            // SAFETY: the addresses are reserved, kept for these handles, and nothing is mapped there.
            unsafe { driver.mem_map(DevicePtr::new(addr), *bytes, *physical)? };
            *is_home = true;
            addr += *bytes;
        }
        // SAFETY: all of it was mapped just now, without a gap.
        unsafe { self.backing.grant(driver, base, addr - base) }
    }

    /// Creates all handles before any is mapped: where a rival took the memory, what has to be undone is
    /// little. A handle that is refused is tried as smaller ones only while the driver has enough.
    fn create(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        let mut pending: Vec<u64> = self.sizes.iter().rev().copied().collect();
        let mut left = self.new_bytes();
        while let Some(bytes) = pending.pop() {
            let has_enough = || driver.mem_get_info().is_ok_and(|info| info.free >= left);
            match driver.mem_create(bytes, self.backing.props) {
                Ok(physical) => {
                    self.created.push(Created { physical, bytes, is_home: false });
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

    fn make_view(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        if self.sources.is_empty() {
            return Ok(());
        }
        let base = match self.view {
            Addresses::At(base) => base,
            Addresses::Reserve(bytes) | Addresses::ReserveBoth { bytes, .. } => {
                let reserved = reserve(driver, bytes, self.view_bytes(), self.granularity)?;
                self.reserved_view.insert(reserved).0
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
            // SAFETY: as above; the plan keeps a piece of every handle, so none is released meanwhile.
            unsafe { driver.mem_map(DevicePtr::new(addr), bytes, physical)? };
            self.viewed.push((addr, physical, bytes));
            addr += bytes;
        }
        // SAFETY: all of it was mapped just now, without a gap.
        unsafe { self.backing.grant(driver, base, addr - base) }
    }

    /// Ends what was mapped and created. Reservations stay: they serve the next time.
    fn undo(&mut self, driver: &dyn Driver, is_lost: bool) {
        let mut home = self.homes_at().unwrap_or(0);
        let mut retired = Vec::new();
        for new in std::mem::take(&mut self.created) {
            let mappings = if new.is_home { vec![(home, new.bytes)] } else { Vec::new() };
            home += new.bytes;
            retired.push(Retired { physical: Some(new.physical), bytes: new.bytes, mappings, home: None });
        }
        for (addr, physical, bytes) in std::mem::take(&mut self.viewed) {
            match retired.iter_mut().find(|retired| retired.physical == Some(physical)) {
                Some(new) => new.mappings.push((addr, bytes)),
                None => retired.push(Retired {
                    physical: None,
                    bytes: 0,
                    mappings: vec![(addr, bytes)],
                    home: None,
                }),
            }
        }
        for mut retired in retired {
            if is_lost || retired.carry_out(driver).is_err() {
                self.left.push(retired);
            }
        }
    }
}
