//! Repeats the reservations of the other process with this process's driver.

use std::collections::BTreeMap;

use millpond_core::Driver;
use millpond_core::driver::DriverResult;

use crate::peers::torch::memory::{DriverMemory, Taken};
use crate::peers::torch::model::Memory;

/// The size of the pages of small blocks in bytes.
const SMALL_PAGE: u64 = 2 << 20;

/// What happened to a segment of the other process. Sizes are in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Allocated { address: u64, bytes: u64 },
    Released { address: u64 },
    Mapped { address: u64, bytes: u64 },
    Unmapped { address: u64, bytes: u64 },
}

/// A segment, or the addresses of a growing segment, in both processes.
#[derive(Clone, Copy, Debug)]
struct Range {
    ours: u64,
    bytes: u64,
    /// How many bytes have memory.
    mapped: u64,
}

/// The segments in both processes.
#[derive(Debug)]
pub(super) struct Mirror {
    taken: Taken,
    /// The ranges by their addresses in the other process.
    ranges: BTreeMap<u64, Range>,
    /// The size of the pages of large blocks.
    large_page: u64,
}

impl Mirror {
    pub(super) fn new(large_page: u64) -> Self {
        Self { taken: Taken::default(), ranges: BTreeMap::new(), large_page }
    }

    /// Returns the address in this process.
    pub(super) fn address_of(&self, theirs: u64) -> Option<u64> {
        let (start, range) = self.range_at(theirs)?;
        Some(range.ours + (theirs - start))
    }

    fn range_at(&self, theirs: u64) -> Option<(u64, Range)> {
        let (&start, &range) = self.ranges.range(..=theirs).next_back()?;
        (theirs - start < range.bytes).then_some((start, range))
    }

    /// Repeats a change. Returns whether this process's driver had the memory for it.
    pub(super) fn repeat(&mut self, driver: &dyn Driver, change: Change) -> DriverResult<bool> {
        let mut taken = std::mem::take(&mut self.taken);
        let mut memory = DriverMemory { driver, taken: &mut taken, wait: &mut Vec::new, error: None };
        let is_done = self.repeat_with(&mut memory, change).is_some();
        let result = memory.error.map_or(Ok(is_done), Err);
        self.taken = taken;
        result
    }

    fn repeat_with(&mut self, memory: &mut DriverMemory<'_>, change: Change) -> Option<()> {
        match change {
            Change::Allocated { address, bytes } => {
                let ours = memory.allocate(bytes)?;
                self.ranges.insert(address, Range { ours, bytes, mapped: bytes });
            }
            Change::Released { address } => {
                let range = self.ranges.remove(&address)?;
                memory.free(range.ours, range.bytes);
            }
            Change::Mapped { address, bytes } => {
                let page = if bytes.is_multiple_of(self.large_page) { self.large_page } else { SMALL_PAGE };
                let (start, mut range) = match self.range_at(address) {
                    Some(found) => found,
                    // A new segment grows from its start.
                    None => {
                        let (ours, bytes) = memory.reserve(page)?;
                        (address, Range { ours, bytes, mapped: 0 })
                    }
                };
                if !memory.map(range.ours + (address - start), bytes, page) {
                    return None;
                }
                range.mapped += bytes;
                self.ranges.insert(start, range);
            }
            Change::Unmapped { address, bytes } => {
                let (start, mut range) = self.range_at(address)?;
                let ours = range.ours + (address - start);
                let page = memory.taken.page_at(ours)?;
                memory.unmap(ours, bytes, page);
                range.mapped = range.mapped.checked_sub(bytes)?;
                if range.mapped == 0 {
                    memory.unreserve(range.ours, range.bytes);
                    self.ranges.remove(&start);
                } else {
                    self.ranges.insert(start, range);
                }
            }
        }
        Some(())
    }

    /// Returns all memory to this process's driver.
    pub(super) fn release_all(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        let wait = &mut Vec::new;
        let mut memory = DriverMemory { driver, taken: &mut self.taken, wait, error: None };
        memory.release_all();
        memory.error.map_or(Ok(()), Err)
    }
}
