//! Allocates and frees plain, managed and host memory.

use std::ops::Range;

use millpond_core::driver::{HostPtr, MemoryKind};
use millpond_core::{DevicePtr, DriverError, Layout};

use crate::sim::model::answer::{Answer, Refusal, not_empty};
use crate::sim::model::space::{Mapping, Purpose};
use crate::sim::model::violation::ViolationKind;
use crate::sim::state::State;

impl State {
    pub(crate) fn mem_alloc(&mut self, bytes: u64) -> Answer<DevicePtr> {
        not_empty(bytes)?;
        let (start, pages_bytes) = self.taking(|space| space.allocate_plain(bytes))?;
        let physical = self.space.new_physical(bytes);
        self.space.map(start, bytes, physical, 0, Purpose::Plain);
        self.pass(self.profile.mem_alloc_ns(bytes, pages_bytes));
        self.note(start);
        Ok(DevicePtr::new(start))
    }

    pub(crate) fn mem_alloc_managed(&mut self, bytes: u64) -> Answer<DevicePtr> {
        not_empty(bytes)?;
        let host = self.host.allocate_managed(bytes)?;
        self.space.add_live(bytes);
        self.pass(self.profile.mem_alloc_managed_ns(bytes));
        let physical = self.space.new_physical(bytes);
        self.space.map(host as u64, bytes, physical, host, Purpose::Managed);
        Ok(DevicePtr::new(host as u64))
    }

    pub(crate) fn mem_free(&mut self, ptr: DevicePtr) -> Answer<()> {
        if ptr.is_null() {
            return Ok(());
        }
        let is_own = |purpose| matches!(purpose, Purpose::Plain | Purpose::Managed);
        if let Some(mapping) = self.space.unmap_if(ptr.address(), is_own) {
            self.synchronize();
            self.end_allocation(ptr, &mapping, "cuMemFree");
            return Ok(());
        }
        match self.space.at(ptr.address()).map(|mapping| mapping.purpose) {
            Some(Purpose::Pool(_)) => {
                self.synchronize();
                self.end_pooled(ptr, None)?;
                self.trim_pools();
                Ok(())
            }
            Some(Purpose::Imported(pool)) => {
                self.synchronize();
                self.end_imported(ptr, pool, None, "cuMemFree")
            }
            _ => Err(self.unknown_pointer(ptr, "cuMemFree")),
        }
    }

    /// Frees plain or managed memory that is already unmapped and whose work is done.
    fn end_allocation(&mut self, ptr: DevicePtr, mapping: &Mapping, call: &str) {
        let bytes = mapping.end - ptr.address();
        if self.openings.is_open(mapping.generation) {
            self.violation(ViolationKind::EarlyReturn, || {
                format!("{call}: the allocation at {ptr} is still open through an IPC handle")
            });
        }
        self.retire(ptr, mapping, call);
        if mapping.host == 0 {
            let pages_bytes = self.space.free_plain(ptr.address(), bytes);
            self.pass(self.profile.mem_free_ns(bytes, pages_bytes));
        } else {
            self.host.free(mapping.host);
            self.space.remove_live(bytes);
            self.pass(self.profile.mem_free_managed_ns(bytes));
        }
    }

    /// Ends the history and contents of memory that nothing uses any more.
    pub(crate) fn retire(&mut self, ptr: DevicePtr, mapping: &Mapping, call: &str) {
        let range = mapping.piece(ptr.address()).range();
        let kind = self.oracle.retire(range.clone(), |epoch| self.order.host_knows(epoch));
        self.report_return(kind, ptr, range.end - range.start, call);
        self.effects.contents.forget(range);
    }

    pub(crate) fn report_return(
        &mut self,
        kind: Option<ViolationKind>,
        ptr: DevicePtr,
        bytes: u64,
        call: &str,
    ) {
        if let Some(kind) = kind {
            let what = match kind {
                ViolationKind::LentReturned => "while a block in this range is handed out",
                _ => "although a use of this range on some stream is not ordered before the call",
            };
            self.violation(kind, || format!("{call} releases {bytes} bytes at {ptr} {what}"));
        }
    }

    #[cold]
    pub(crate) fn unknown_pointer(&mut self, ptr: DevicePtr, call: &str) -> Refusal {
        self.violation(ViolationKind::UnknownPointer, || {
            format!("{call} was given {ptr}, but no live allocation that it can free starts there")
        });
        Refusal::invalid_value(format!("no allocation starts at {ptr}"))
    }

    pub(crate) fn mem_get_address_range(&self, ptr: DevicePtr) -> Answer<(DevicePtr, u64)> {
        let (start, mapping) = self
            .space
            .holding(ptr.address())
            .ok_or_else(|| Refusal::new(DriverError::NOT_FOUND, format!("{ptr} is in no allocation")))?;
        Ok((DevicePtr::new(start), mapping.end - start))
    }

    pub(crate) fn pointer_kind(&self, ptr: DevicePtr) -> MemoryKind {
        match self.space.holding(ptr.address()).map(|(_, mapping)| mapping.purpose) {
            None => MemoryKind::Unknown,
            Some(Purpose::Managed) => MemoryKind::Managed,
            Some(Purpose::Host { .. }) => MemoryKind::Host,
            Some(Purpose::Pageable) => MemoryKind::Unknown,
            Some(Purpose::Pool(pool) | Purpose::Imported(pool)) => match self.pools.of_mapping(pool) {
                Some(pool) if pool.is_managed() => MemoryKind::Managed,
                Some(pool) if pool.is_on_host() => MemoryKind::Host,
                _ => MemoryKind::Device,
            },
            Some(_) => MemoryKind::Device,
        }
    }

    /// Checks that the range is managed memory, or pageable memory that the device can reach, as
    /// `cuMemAdvise` and `cuMemPrefetchAsync` require.
    pub(crate) fn check_managed(&self, ptr: DevicePtr, bytes: u64) -> Answer<()> {
        match self.space.holding(ptr.address()) {
            Some((start, mapping))
                if self.pointer_kind(ptr) == MemoryKind::Managed || mapping.purpose == Purpose::Pageable =>
            {
                let room = mapping.end - start - (ptr.address() - start);
                if bytes <= room {
                    Ok(())
                } else {
                    Err(Refusal::invalid_value("the range does not lie in one allocation"))
                }
            }
            _ => Err(Refusal::invalid_value(format!("{ptr} is not managed memory"))),
        }
    }

    // --- Host memory ---

    pub(crate) fn mem_host_alloc(&mut self, bytes: u64) -> Answer<HostPtr> {
        not_empty(bytes)?;
        let address = self.host.allocate_pinned(bytes)?;
        self.space.add_live(bytes);
        self.pass(self.profile.mem_host_alloc_ns(bytes));
        self.add_host(address, bytes, false);
        Ok(HostPtr(address))
    }

    /// Allocates pageable memory, and maps it if the device can reach it.
    pub(crate) fn pageable_alloc(&mut self, layout: Layout) -> Answer<HostPtr> {
        not_empty(layout.bytes())?;
        let address = self.host.allocate_pageable(layout)?;
        self.space.add_live(layout.bytes());
        if self.pageable_access {
            let physical = self.space.new_physical(layout.bytes());
            self.space.map(address as u64, layout.bytes(), physical, address, Purpose::Pageable);
        }
        Ok(HostPtr(address))
    }

    /// Frees pageable memory. The device does not wait. Work that uses the memory and is not known to be done
    /// is a violation.
    pub(crate) fn pageable_free(&mut self, ptr: HostPtr, layout: Layout) {
        if let Some(mapping) = self.space.unmap_if(ptr.0 as u64, |purpose| purpose == Purpose::Pageable) {
            // A lost device does no more work.
            if !self.faults.is_lost() {
                self.retire(DevicePtr::new(ptr.0 as u64), &mapping, "free");
            }
            // The rest of that work still writes to the memory, so it must stay mapped until then.
            self.synchronize();
        }
        self.host.free(ptr.0);
        self.space.remove_live(layout.bytes());
    }

    fn add_host(&mut self, address: usize, bytes: u64, registered: bool) {
        let physical = self.space.new_physical(bytes);
        self.space.map(address as u64, bytes, physical, address, Purpose::Host { registered });
    }

    pub(crate) fn mem_free_host(&mut self, ptr: HostPtr) -> Answer<()> {
        let bytes = self.end_host(ptr, false, "cuMemFreeHost")?;
        self.host.free(ptr.0);
        self.space.remove_live(bytes);
        self.pass(self.profile.mem_free_host_ns(bytes));
        Ok(())
    }

    pub(crate) fn mem_host_register(&mut self, ptr: HostPtr, bytes: u64) -> Answer<()> {
        not_empty(bytes)?;
        let range = host_range(ptr, bytes)?;
        if self.space.within(range).next().is_some() {
            return Err(Refusal::new(
                DriverError::HOST_MEMORY_ALREADY_REGISTERED,
                "a part of the range is already pinned",
            ));
        }
        self.add_host(ptr.0, bytes, true);
        Ok(())
    }

    pub(crate) fn mem_host_unregister(&mut self, ptr: HostPtr) -> Answer<()> {
        self.end_host(ptr, true, "cuMemHostUnregister").map(drop)
    }

    /// Frees pinned memory when all work is done, and returns its size in bytes.
    fn end_host(&mut self, ptr: HostPtr, registered: bool, call: &str) -> Answer<u64> {
        let start = DevicePtr::new(ptr.0 as u64);
        match self.space.at(start.address()).map(|mapping| mapping.purpose) {
            Some(Purpose::Host { registered: found }) if found == registered => {}
            _ if registered => {
                let text = format!("{start} was not registered");
                return Err(Refusal::new(DriverError::HOST_MEMORY_NOT_REGISTERED, text));
            }
            _ => return Err(self.unknown_pointer(start, call)),
        }
        self.synchronize();
        let Some(mapping) = self.space.unmap(start.address()) else { return Ok(0) };
        self.retire(start, &mapping, call);
        Ok(mapping.end - start.address())
    }

    pub(crate) fn mem_host_get_device_pointer(&self, ptr: HostPtr) -> Answer<DevicePtr> {
        match self.space.holding(ptr.0 as u64) {
            Some((_, mapping)) if mapping.host != 0 => Ok(DevicePtr::new(ptr.0 as u64)),
            _ => Err(Refusal::invalid_value("the memory is not pinned")),
        }
    }
}

fn host_range(ptr: HostPtr, bytes: u64) -> Answer<Range<u64>> {
    let end = (ptr.0 as u64).checked_add(bytes).filter(|_| ptr.0 != 0);
    Ok(ptr.0 as u64..end.ok_or_else(|| {
        Refusal::invalid_value("the range has a null address, or is larger than the address space")
    })?)
}
