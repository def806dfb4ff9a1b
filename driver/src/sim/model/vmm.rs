//! Virtual memory management: addresses, physical memory, and mappings between them.

use std::collections::{BTreeMap, BTreeSet};

use millpond_core::DeviceId;
use millpond_core::driver::{PhysicalHandle, PhysicalProps};
use rustc_hash::FxHashMap;

use super::answer::{Answer, Refusal, not_empty};
use super::space::GRANULARITY;

pub(crate) const FIRST_HANDLE: u64 = 0x54_0000_0000;

/// The addresses that one page table of the device serves, in bytes. The first mapping there costs more.
pub(crate) const TABLE_REACH: u64 = 512 << 20;

#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) bytes: u64,
    pub(crate) place: u64,
    pub(crate) mappings: u32,
    /// The number of unreleased handles: the first one, and its imports.
    pub(crate) holders: u32,
    pub(crate) props: PhysicalProps,
}

/// Reservations and physical memory.
#[derive(Debug, Default)]
pub(crate) struct VirtualMemory {
    /// Reserved ranges: start and bytes.
    pub(crate) reserved: BTreeMap<u64, u64>,
    /// The physical memory, by its first handle.
    pub(crate) physical: FxHashMap<u64, Physical>,
    /// The first handle of each unreleased handle's memory.
    pub(crate) handles: FxHashMap<u64, u64>,
    /// The numbers of the page tables that exist and whose addresses are still reserved.
    pub(crate) tables: BTreeSet<u64>,
    pub(crate) created: u64,
    /// The other devices that may use a mapping, by its start.
    pub(crate) peers: FxHashMap<u64, Vec<DeviceId>>,
}

impl VirtualMemory {
    /// The number of reservations and pieces of physical memory that were not freed.
    pub(crate) fn live(&self) -> usize {
        self.reserved.len() + self.physical.len()
    }

    pub(crate) fn is_reserved(&self, start: u64, bytes: u64) -> bool {
        let found = self.reserved.range(..=start).next_back();
        found.is_some_and(|(&from, &length)| start - from < length && bytes <= length - (start - from))
    }

    /// The memory behind an unreleased handle, and its first handle.
    pub(crate) fn held(&mut self, handle: PhysicalHandle) -> Answer<(PhysicalHandle, &mut Physical)> {
        let unknown = || Refusal::invalid_value(format!("no physical memory has the handle {:#x}", handle.0));
        let first = *self.handles.get(&handle.0).ok_or_else(unknown)?;
        let physical = self.physical.get_mut(&first).ok_or_else(unknown)?;
        Ok((PhysicalHandle(first), physical))
    }

    /// Another handle of the memory with this first handle; `None` if the memory was released.
    pub(crate) fn hold_again(&mut self, first: PhysicalHandle) -> Option<PhysicalHandle> {
        self.physical.get_mut(&first.0)?.holders += 1;
        Some(self.new_handle(Some(first)))
    }

    pub(crate) fn new_handle(&mut self, of: Option<PhysicalHandle>) -> PhysicalHandle {
        let handle = PhysicalHandle(FIRST_HANDLE + self.created);
        self.created += 1;
        self.handles.insert(handle.0, of.unwrap_or(handle).0);
        handle
    }

    /// Whether another device may use the mapping that starts here.
    pub(crate) fn may_use(&self, start: u64, device: DeviceId) -> bool {
        self.peers.get(&start).is_some_and(|peers| peers.contains(&device))
    }
}

pub(crate) fn whole_pages(bytes: u64) -> Answer<()> {
    not_empty(bytes)?;
    if bytes.is_multiple_of(GRANULARITY) {
        return Ok(());
    }
    Err(Refusal::invalid_value(format!("{bytes} bytes are not a multiple of the granularity, {GRANULARITY}")))
}
