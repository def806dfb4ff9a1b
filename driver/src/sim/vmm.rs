//! Virtual memory management: addresses, physical memory, and mappings between them.

use std::collections::BTreeMap;

use millpond_core::DevicePtr;
use millpond_core::driver::{AccessFlags, PhysicalHandle};
use rustc_hash::FxHashMap;

use super::answer::{Answer, Refusal};
use super::plain::not_empty;
use super::space::{GRANULARITY, Purpose};
use super::state::State;

const FIRST_HANDLE: u64 = 0x54_0000_0000;

#[derive(Debug)]
struct Physical {
    bytes: u64,
    place: u64,
    mappings: u32,
    released: bool,
}

/// Reservations and physical memory.
#[derive(Debug, Default)]
pub(super) struct VirtualMemory {
    /// Reserved ranges: start and bytes.
    reserved: BTreeMap<u64, u64>,
    physical: FxHashMap<u64, Physical>,
    created: u64,
}

impl VirtualMemory {
    /// Reservations and physical memory that are not given back.
    pub(super) fn live(&self) -> usize {
        self.reserved.len() + self.physical.len()
    }

    fn is_reserved(&self, start: u64, bytes: u64) -> bool {
        let found = self.reserved.range(..=start).next_back();
        found.is_some_and(|(&from, &length)| start - from < length && bytes <= length - (start - from))
    }

    fn held(&mut self, handle: PhysicalHandle) -> Answer<&mut Physical> {
        match self.physical.get_mut(&handle.0) {
            Some(physical) if !physical.released => Ok(physical),
            _ => Err(Refusal::invalid_value(format!("there is no physical memory {:#x}", handle.0))),
        }
    }
}

fn whole_pages(bytes: u64) -> Answer<()> {
    not_empty(bytes)?;
    if bytes.is_multiple_of(GRANULARITY) {
        return Ok(());
    }
    Err(Refusal::invalid_value(format!("{bytes} bytes are no multiple of the granularity, {GRANULARITY}")))
}

impl State {
    pub(super) fn mem_address_reserve(&mut self, bytes: u64, alignment: u64) -> Answer<DevicePtr> {
        whole_pages(bytes)?;
        if alignment != 0 && !alignment.is_power_of_two() {
            return Err(Refusal::invalid_value(format!("alignment {alignment} is not a power of two")));
        }
        let start = self.space.reserve(bytes, alignment)?;
        self.vmm.reserved.insert(start, bytes);
        self.note(start);
        Ok(DevicePtr::new(start))
    }

    pub(super) fn mem_address_free(&mut self, ptr: DevicePtr, bytes: u64) -> Answer<()> {
        let start = ptr.address();
        if self.vmm.reserved.get(&start) != Some(&bytes) {
            return Err(self.unknown_pointer(ptr, "cuMemAddressFree"));
        }
        if self.space.within(start..start + bytes).next().is_some() {
            return Err(Refusal::invalid_value("something is mapped there; unmap it first"));
        }
        self.vmm.reserved.remove(&start);
        self.space.unreserve(start, bytes);
        Ok(())
    }

    pub(super) fn mem_create(&mut self, bytes: u64) -> Answer<PhysicalHandle> {
        whole_pages(bytes)?;
        self.space.charge(bytes)?;
        let place = self.space.new_physical(bytes);
        let handle = PhysicalHandle(FIRST_HANDLE + self.vmm.created);
        self.vmm.created += 1;
        self.vmm.physical.insert(handle.0, Physical { bytes, place, mappings: 0, released: false });
        self.note(handle.0);
        Ok(handle)
    }

    pub(super) fn mem_release(&mut self, handle: PhysicalHandle) -> Answer<()> {
        let Ok(physical) = self.vmm.held(handle) else {
            return Err(self.unknown_pointer(DevicePtr::new(handle.0), "cuMemRelease"));
        };
        physical.released = true;
        let bytes = physical.bytes;
        self.pass(self.profile.mem_release_ns(bytes));
        self.end_physical(handle);
        Ok(())
    }

    /// Ends physical memory that is released and mapped nowhere.
    fn end_physical(&mut self, handle: PhysicalHandle) {
        let over = self.vmm.physical.get(&handle.0).is_some_and(|p| p.released && p.mappings == 0);
        if let Some(physical) = over.then(|| self.vmm.physical.remove(&handle.0)).flatten() {
            let range = physical.place..physical.place + physical.bytes;
            // What was used was unmapped since, and checked there.
            self.oracle.retire(range.clone(), |_| true);
            self.effects.contents.forget(range);
            self.space.credit(physical.bytes);
        }
    }

    pub(super) fn mem_map(&mut self, ptr: DevicePtr, bytes: u64, handle: PhysicalHandle) -> Answer<()> {
        whole_pages(bytes)?;
        let start = ptr.address();
        let physical = self.vmm.held(handle)?;
        let (size, place) = (physical.bytes, physical.place);
        if bytes != size {
            return Err(Refusal::not_supported(format!(
                "only the whole handle of {size} bytes can be mapped"
            )));
        }
        if !start.is_multiple_of(GRANULARITY) || !self.vmm.is_reserved(start, bytes) {
            return Err(Refusal::invalid_value(format!("{bytes} bytes at {ptr} are not in one reservation")));
        }
        if self.space.within(start..start + bytes).next().is_some() {
            return Err(Refusal::invalid_value("something is mapped there already"));
        }
        self.vmm.held(handle)?.mappings += 1;
        self.space.map(start, bytes, place, 0, Purpose::Virtual(handle));
        Ok(())
    }

    /// The starts of the mappings that make up a range, whole and without gaps.
    fn whole_mappings(&self, ptr: DevicePtr, bytes: u64) -> Answer<Vec<u64>> {
        whole_pages(bytes)?;
        let wrong = || Refusal::invalid_value(format!("{bytes} bytes at {ptr} are not whole mappings"));
        let (mut at, end) = (ptr.address(), ptr.address().checked_add(bytes).ok_or_else(wrong)?);
        let mut starts = Vec::new();
        while at < end {
            let mapping = self.space.at(at).filter(|m| matches!(m.purpose, Purpose::Virtual(_)));
            starts.push(at);
            at = mapping.ok_or_else(wrong)?.end;
        }
        if at == end { Ok(starts) } else { Err(wrong()) }
    }

    pub(super) fn mem_unmap(&mut self, ptr: DevicePtr, bytes: u64) -> Answer<()> {
        let starts = self.whole_mappings(ptr, bytes)?;
        self.pass(self.profile.mem_unmap_ns(starts.len() as u64));
        for start in starts {
            let Some(mapping) = self.space.unmap(start) else { continue };
            let Purpose::Virtual(handle) = mapping.purpose else { continue };
            if let Some(physical) = self.vmm.physical.get_mut(&handle.0) {
                physical.mappings -= 1;
            }
            let piece = mapping.piece(start);
            let addresses = start..mapping.end;
            let kind = self.oracle.unmapped(&piece, addresses, |epoch| self.order.host_knows(epoch));
            self.report_return(kind, DevicePtr::new(start), mapping.end - start, "cuMemUnmap");
            self.end_physical(handle);
        }
        Ok(())
    }

    pub(super) fn mem_set_access(&mut self, ptr: DevicePtr, bytes: u64, access: AccessFlags) -> Answer<()> {
        let starts = self.whole_mappings(ptr, bytes)?;
        let is_only = |start: &u64| match self.space.at(*start).map(|mapping| mapping.purpose) {
            Some(Purpose::Virtual(handle)) => self.vmm.physical.get(&handle.0).is_none_or(|p| p.mappings < 2),
            _ => true,
        };
        let only = starts.iter().filter(|start| is_only(start)).count();
        self.pass(self.profile.mem_set_access_ns(only as u64, (starts.len() - only) as u64));
        for start in starts {
            if let Some(mapping) = self.space.at_mut(start) {
                mapping.accessible = access != AccessFlags::None;
            }
        }
        Ok(())
    }
}
