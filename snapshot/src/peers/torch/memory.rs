//! Reserves memory from the driver as PyTorch does.

use millpond_core::driver::{AccessFlags, PhysicalHandle, PhysicalProps};
use millpond_core::{DevicePtr, Driver, DriverError};
use rustc_hash::FxHashMap;

use super::model::Memory;

/// The memory that was reserved from the driver. Sizes are in bytes.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    segments: FxHashMap<u64, u64>,
    reservations: FxHashMap<u64, u64>,
    pages: FxHashMap<u64, (PhysicalHandle, u64)>,
}

impl Taken {
    /// Returns the size of the page at an address.
    pub(crate) fn page_at(&self, address: u64) -> Option<u64> {
        self.pages.get(&address).map(|(_, bytes)| *bytes)
    }
}

/// The driver, for the duration of one call.
pub(crate) struct DriverMemory<'a> {
    pub(crate) driver: &'a dyn Driver,
    pub(crate) taken: &'a mut Taken,
    /// Waits for the held blocks.
    pub(crate) wait: &'a mut dyn FnMut() -> Vec<u64>,
    /// The first error that is not an out-of-memory error.
    pub(crate) error: Option<DriverError>,
}

impl DriverMemory<'_> {
    fn note<T>(&mut self, result: Result<T, DriverError>) -> Option<T> {
        result
            .map_err(|error| {
                if !error.is_out_of_memory() {
                    self.error.get_or_insert(error);
                }
            })
            .ok()
    }

    /// Creates one page and maps it at an address.
    fn map_page(&mut self, address: u64, page: u64) -> Option<()> {
        let handle = self.note(self.driver.mem_create(page, PhysicalProps::default()))?;
        // SAFETY: the range is reserved, and has no memory; the handle is new and of this size.
        let mapped = unsafe { self.driver.mem_map(DevicePtr::new(address), page, handle) };
        if self.note(mapped).is_none() {
            // SAFETY: the handle is ours, and is mapped nowhere.
            let released = unsafe { self.driver.mem_release(handle) };
            self.note(released);
            return None;
        }
        self.taken.pages.insert(address, (handle, page));
        Some(())
    }

    fn unmap_page(&mut self, address: u64) {
        let Some((handle, page)) = self.taken.pages.remove(&address) else { return };
        // SAFETY: the mapping is ours, no block is in it, and the device has finished its work.
        let unmapped = unsafe { self.driver.mem_unmap(DevicePtr::new(address), page) };
        // SAFETY: the handle is ours, and is not used again.
        let released = unsafe { self.driver.mem_release(handle) };
        self.note(unmapped);
        self.note(released);
    }

    /// Returns all memory to the driver.
    pub(crate) fn release_all(&mut self) {
        for (address, bytes) in std::mem::take(&mut self.taken.segments) {
            self.free(address, bytes);
        }
        if !self.taken.pages.is_empty() {
            let waited = self.driver.synchronize();
            self.note(waited);
        }
        let pages: Vec<u64> = self.taken.pages.keys().copied().collect();
        pages.into_iter().for_each(|address| self.unmap_page(address));
        for (address, bytes) in std::mem::take(&mut self.taken.reservations) {
            self.unreserve(address, bytes);
        }
    }
}

impl Memory for DriverMemory<'_> {
    fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let address = self.note(self.driver.mem_alloc(bytes))?.address();
        self.taken.segments.insert(address, bytes);
        Some(address)
    }

    fn free(&mut self, address: u64, _bytes: u64) {
        self.taken.segments.remove(&address);
        // SAFETY: the segment is ours, and no block is in it; the driver waits for work that used it.
        let freed = unsafe { self.driver.mem_free(DevicePtr::new(address)) };
        self.note(freed);
    }

    fn reserve(&mut self, page: u64) -> Option<(u64, u64)> {
        let total = self.note(self.driver.mem_get_info())?.total;
        let bytes = total.checked_add(total / 8)?.checked_next_multiple_of(page)?;
        let address = self.note(self.driver.mem_address_reserve(bytes, 0))?.address();
        self.taken.reservations.insert(address, bytes);
        Some((address, bytes))
    }

    fn map(&mut self, address: u64, bytes: u64, page: u64) -> bool {
        let pages = || (address..address + bytes).step_by(page as usize);
        let is_mapped = pages().all(|at| self.map_page(at, page).is_some());
        let devices = [self.driver.device()];
        let ptr = DevicePtr::new(address);
        // SAFETY: the whole range was mapped above.
        let access = |driver: &dyn Driver| unsafe {
            driver.mem_set_access(ptr, bytes, AccessFlags::ReadWrite, &devices)
        };
        if is_mapped && self.note(access(self.driver)).is_some() {
            return true;
        }
        pages().for_each(|at| self.unmap_page(at));
        false
    }

    fn unmap(&mut self, address: u64, bytes: u64, page: u64) {
        let waited = self.driver.synchronize();
        self.note(waited);
        (address..address + bytes).step_by(page as usize).for_each(|at| self.unmap_page(at));
    }

    fn unreserve(&mut self, address: u64, bytes: u64) {
        self.taken.reservations.remove(&address);
        // SAFETY: the reservation is ours and has no memory.
        let freed = unsafe { self.driver.mem_address_free(DevicePtr::new(address), bytes) };
        self.note(freed);
    }

    fn wait(&mut self) -> Vec<u64> {
        (self.wait)()
    }
}
