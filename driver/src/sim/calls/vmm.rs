//! The calls of virtual memory management.

use millpond_core::driver::{AccessFlags, PhysicalHandle, PhysicalProps};
use millpond_core::{DeviceId, DevicePtr};

use crate::plain;
use crate::sim::model::answer::{Answer, Refusal};
use crate::sim::model::space::{GRANULARITY, Purpose};
use crate::sim::model::vmm::{Physical, TABLE_REACH, whole_pages};
use crate::sim::state::State;

impl State {
    pub(crate) fn mem_address_reserve(&mut self, bytes: u64, alignment: u64) -> Answer<DevicePtr> {
        whole_pages(bytes)?;
        if alignment != 0 && !alignment.is_power_of_two() {
            return Err(Refusal::invalid_value(format!("alignment {alignment} is not a power of two")));
        }
        let start = self.space.reserve(bytes, alignment)?;
        self.vmm.reserved.insert(start, bytes);
        self.note(start);
        Ok(DevicePtr::new(start))
    }

    pub(crate) fn mem_address_free(&mut self, ptr: DevicePtr, bytes: u64) -> Answer<()> {
        let start = ptr.address();
        if self.vmm.reserved.get(&start) != Some(&bytes) {
            return Err(self.unknown_pointer(ptr, "cuMemAddressFree"));
        }
        if self.space.within(start..start + bytes).next().is_some() {
            return Err(Refusal::invalid_value("the range still has a mapping; unmap it first"));
        }
        self.vmm.reserved.remove(&start);
        let gone = plain::touched(start, bytes, TABLE_REACH);
        self.vmm.tables.retain(|table| !gone.contains(table));
        self.space.unreserve(start, bytes);
        Ok(())
    }

    pub(crate) fn mem_create(&mut self, bytes: u64, props: PhysicalProps) -> Answer<PhysicalHandle> {
        whole_pages(bytes)?;
        self.charge(bytes)?;
        self.pass(self.profile.mem_create_ns(bytes));
        let place = self.space.new_physical(bytes);
        let handle = self.vmm.new_handle(None);
        self.vmm.physical.insert(handle.0, Physical { bytes, place, mappings: 0, holders: 1, props });
        self.note(handle.0);
        Ok(handle)
    }

    pub(crate) fn mem_release(&mut self, handle: PhysicalHandle) -> Answer<()> {
        let Ok((first, physical)) = self.vmm.held(handle) else {
            return Err(self.unknown_pointer(DevicePtr::new(handle.0), "cuMemRelease"));
        };
        physical.holders -= 1;
        let bytes = physical.bytes;
        self.vmm.handles.remove(&handle.0);
        self.pass(self.profile.mem_release_ns(bytes));
        self.end_physical(first);
        Ok(())
    }

    /// Destroys physical memory that is released and has no mappings.
    fn end_physical(&mut self, handle: PhysicalHandle) {
        let over = self.vmm.physical.get(&handle.0).is_some_and(|p| p.holders == 0 && p.mappings == 0);
        if let Some(physical) = over.then(|| self.vmm.physical.remove(&handle.0)).flatten() {
            let range = physical.place..physical.place + physical.bytes;
            // Uses through mappings were checked when they were unmapped.
            self.oracle.retire(range.clone(), |_| true);
            self.effects.contents.forget(range);
            self.space.credit(physical.bytes);
        }
    }

    pub(crate) fn mem_map(&mut self, ptr: DevicePtr, bytes: u64, handle: PhysicalHandle) -> Answer<()> {
        whole_pages(bytes)?;
        let start = ptr.address();
        let (first, physical) = self.vmm.held(handle)?;
        let (size, place) = (physical.bytes, physical.place);
        if bytes != size {
            return Err(Refusal::not_supported(format!(
                "map the whole handle of {size} bytes; parts cannot be mapped"
            )));
        }
        if !start.is_multiple_of(GRANULARITY) || !self.vmm.is_reserved(start, bytes) {
            return Err(Refusal::invalid_value(format!("{bytes} bytes at {ptr} are not in one reservation")));
        }
        if self.space.within(start..start + bytes).next().is_some() {
            return Err(Refusal::invalid_value("the range already has a mapping"));
        }
        self.vmm.held(handle)?.1.mappings += 1;
        self.space.map(start, bytes, place, 0, Purpose::Virtual(first));
        Ok(())
    }

    /// The starts of the mappings that make up a range completely, without gaps.
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

    pub(crate) fn mem_unmap(&mut self, ptr: DevicePtr, bytes: u64) -> Answer<()> {
        let starts = self.whole_mappings(ptr, bytes)?;
        for start in starts {
            let Some(mapping) = self.space.unmap(start) else { continue };
            self.vmm.peers.remove(&start);
            self.pass(self.profile.unmap_mapping_ns(mapping.end - start));
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

    /// `me` is this state's device.
    pub(crate) fn mem_set_access(
        &mut self,
        ptr: DevicePtr,
        bytes: u64,
        access: AccessFlags,
        devices: &[DeviceId],
        me: DeviceId,
    ) -> Answer<()> {
        let starts = self.whole_mappings(ptr, bytes)?;
        let mut ns = 0;
        for start in starts {
            let Some(mapping) = self.space.at_mut(start) else { continue };
            if devices.contains(&me) {
                mapping.accessible = access != AccessFlags::None;
            }
            let (bytes, purpose) = (mapping.end - start, mapping.purpose);
            let is_second = matches!(purpose, Purpose::Virtual(handle)
                if self.vmm.physical.get(&handle.0).is_some_and(|physical| physical.mappings > 1));
            let tables = plain::touched(start, bytes, TABLE_REACH);
            let new = tables.filter(|table| self.vmm.tables.insert(*table)).count();
            ns += self.profile.set_access_mapping_ns(bytes, is_second, new as u64);
            for device in devices.iter().filter(|device| **device != me) {
                let peers = self.vmm.peers.entry(start).or_default();
                peers.retain(|peer| peer != device);
                if access != AccessFlags::None {
                    peers.push(*device);
                }
            }
        }
        self.pass(ns * devices.len() as u64);
        Ok(())
    }
}
