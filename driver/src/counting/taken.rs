//! Computes the device memory that a driver's user holds.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use millpond_core::DevicePtr;
use millpond_core::driver::{DriverResult, PhysicalHandle};
use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;

use crate::plain::{self, PAGE};

/// The bytes taken from the device, now and at the peak.
#[derive(Debug, Default)]
pub(super) struct Taken {
    now: AtomicU64,
    peak: AtomicU64,
    /// Plain, managed and stream-ordered allocations.
    blocks: DashMap<DevicePtr, Block, FxBuildHasher>,
    /// The number of plain blocks of up to 2 MiB in each page that holds one, by page number.
    shared_pages: DashMap<u64, u32, FxBuildHasher>,
    physical: Mutex<Physical>,
}

/// An allocation and its size in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Block {
    /// Plain memory, which takes whole pages.
    Plain(u64),
    /// Other memory, which counts with its requested size.
    Other(u64),
}

/// Tracks physical memory, which lives until it is released *and* unmapped. The driver may reuse a handle
/// before that, so each block has its own number.
#[derive(Debug, Default)]
struct Physical {
    next: u64,
    by_handle: HashMap<PhysicalHandle, u64>,
    blocks: HashMap<u64, PhysicalBlock>,
    mappings: BTreeMap<DevicePtr, u64>,
}

#[derive(Debug)]
struct PhysicalBlock {
    bytes: u64,
    mappings: u32,
    released: bool,
}

impl Taken {
    pub(super) fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    pub(super) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    pub(super) fn reset_peak(&self) {
        self.peak.store(self.now(), Ordering::Relaxed);
    }

    fn add(&self, bytes: u64) {
        let now = self.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(now, Ordering::Relaxed);
    }

    fn subtract(&self, bytes: u64) {
        self.now.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn allocated(&self, ptr: DevicePtr, block: Block) {
        self.blocks.insert(ptr, block);
        match block {
            Block::Plain(bytes) if plain::shares(bytes) => {
                let pages = plain::touched(ptr.address(), bytes, PAGE);
                let new = pages.filter(|page| {
                    let mut blocks = self.shared_pages.entry(*page).or_insert(0);
                    *blocks += 1;
                    *blocks == 1
                });
                self.add(new.count() as u64 * PAGE);
            }
            Block::Plain(bytes) => self.add(plain::own_pages(bytes)),
            Block::Other(bytes) => self.add(bytes),
        }
    }

    /// Removes and returns a block; `None` if this driver did not allocate it.
    pub(super) fn freeing(&self, ptr: DevicePtr) -> Option<Block> {
        let (_, block) = self.blocks.remove(&ptr)?;
        match block {
            Block::Plain(bytes) if plain::shares(bytes) => {
                let pages = plain::touched(ptr.address(), bytes, PAGE);
                let empty = pages.filter(|page| {
                    let last = |_: &u64, blocks: &mut u32| {
                        *blocks -= 1;
                        *blocks == 0
                    };
                    self.shared_pages.remove_if_mut(page, last).is_some()
                });
                self.subtract(empty.count() as u64 * PAGE);
            }
            Block::Plain(bytes) => self.subtract(plain::own_pages(bytes)),
            Block::Other(bytes) => self.subtract(bytes),
        }
        Some(block)
    }

    pub(super) fn created(&self, handle: PhysicalHandle, bytes: u64) {
        self.add(bytes);
        let mut physical = self.physical.lock();
        let id = physical.next;
        physical.next += 1;
        physical.by_handle.insert(handle, id);
        physical.blocks.insert(id, PhysicalBlock { bytes, mappings: 0, released: false });
    }

    pub(super) fn mapped(&self, ptr: DevicePtr, handle: PhysicalHandle) {
        let mut physical = self.physical.lock();
        if let Some(id) = physical.by_handle.get(&handle).copied() {
            physical.mappings.insert(ptr, id);
            physical.blocks.entry(id).and_modify(|block| block.mappings += 1);
        }
    }

    /// Removes the mappings in a range and makes the driver's call under one lock, because another thread may
    /// map there right after the call. If the call fails, restores the mappings.
    pub(super) fn unmap(
        &self,
        ptr: DevicePtr,
        bytes: u64,
        call: impl FnOnce() -> DriverResult<()>,
    ) -> DriverResult<()> {
        let gone: Vec<_> = {
            let mut physical = self.physical.lock();
            let starts: Vec<_> = physical.mappings.range(ptr..ptr.offset(bytes)).map(|(&at, _)| at).collect();
            starts.into_iter().filter_map(|at| physical.mappings.remove_entry(&at)).collect()
        };
        let answer = call();
        let mut physical = self.physical.lock();
        if answer.is_err() {
            physical.mappings.extend(gone);
            return answer;
        }
        for (_, id) in gone {
            physical.blocks.entry(id).and_modify(|block| block.mappings -= 1);
            self.end_if_unused(&mut physical, id);
        }
        answer
    }

    /// Does the same as [`unmap`](Self::unmap), for a handle.
    pub(super) fn release(
        &self,
        handle: PhysicalHandle,
        call: impl FnOnce() -> DriverResult<()>,
    ) -> DriverResult<()> {
        let id = self.physical.lock().by_handle.remove(&handle);
        let answer = call();
        let Some(id) = id else { return answer };
        let mut physical = self.physical.lock();
        if answer.is_err() {
            physical.by_handle.insert(handle, id);
        } else {
            physical.blocks.entry(id).and_modify(|block| block.released = true);
            self.end_if_unused(&mut physical, id);
        }
        answer
    }

    fn end_if_unused(&self, physical: &mut Physical, id: u64) {
        if physical.blocks.get(&id).is_some_and(|block| block.released && block.mappings == 0)
            && let Some(block) = physical.blocks.remove(&id)
        {
            self.subtract(block.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use millpond_core::driver::DriverError;

    use super::*;

    const PAGE: u64 = 2 << 20;

    fn page(number: u64) -> DevicePtr {
        DevicePtr::new(0x7000_0000_0000 + number * PAGE)
    }

    fn refused() -> DriverResult<()> {
        Err(DriverError::new(DriverError::INVALID_VALUE, "test"))
    }

    #[test]
    fn physical_memory_is_taken_until_it_is_released_and_mapped_nowhere() {
        let taken = Taken::default();
        let handle = PhysicalHandle(9);
        taken.created(handle, PAGE);
        taken.mapped(page(0), handle);
        taken.mapped(page(4), handle);
        taken.release(handle, || Ok(())).unwrap();
        assert_eq!(taken.now(), PAGE, "mapped twice");
        taken.unmap(page(0), PAGE, || Ok(())).unwrap();
        assert_eq!(taken.now(), PAGE, "mapped once");
        taken.unmap(page(4), PAGE, || Ok(())).unwrap();
        assert_eq!((taken.now(), taken.peak()), (0, PAGE));
    }

    #[test]
    fn unmapped_memory_is_taken_until_it_is_released() {
        let taken = Taken::default();
        let handle = PhysicalHandle(9);
        taken.created(handle, PAGE);
        taken.mapped(page(0), handle);
        taken.unmap(page(0), PAGE, || Ok(())).unwrap();
        assert_eq!(taken.now(), PAGE);
        taken.release(handle, || Ok(())).unwrap();
        assert_eq!(taken.now(), 0);
    }

    #[test]
    fn one_call_unmaps_every_mapping_in_its_range_and_no_other() {
        let taken = Taken::default();
        for number in 0..4 {
            let handle = PhysicalHandle(number);
            taken.created(handle, PAGE);
            taken.mapped(page(number), handle);
            taken.release(handle, || Ok(())).unwrap();
        }
        taken.unmap(page(1), 2 * PAGE, || Ok(())).unwrap();
        assert_eq!(taken.now(), 2 * PAGE);
        taken.unmap(page(0), 4 * PAGE, || Ok(())).unwrap();
        assert_eq!(taken.now(), 0);
    }

    #[test]
    fn a_handle_given_again_is_another_block() {
        let taken = Taken::default();
        let handle = PhysicalHandle(9);
        taken.created(handle, PAGE);
        taken.mapped(page(0), handle);
        taken.release(handle, || Ok(())).unwrap();
        taken.created(handle, 3 * PAGE);
        taken.unmap(page(0), PAGE, || Ok(())).unwrap();
        assert_eq!(taken.now(), 3 * PAGE);
        taken.release(handle, || Ok(())).unwrap();
        assert_eq!((taken.now(), taken.peak()), (0, 4 * PAGE));
    }

    #[test]
    fn a_plain_block_above_a_page_counts_by_its_size_and_a_smaller_one_by_its_pages() {
        let taken = Taken::default();
        let (small, large) = (page(0).offset(512), page(0).offset(1024));
        taken.allocated(large, Block::Plain(PAGE + 1));
        assert_eq!(taken.now(), 2 * PAGE, "the block is not at the start of a page");
        taken.allocated(small, Block::Plain(512));
        assert_eq!(taken.now(), 3 * PAGE);
        assert_eq!(taken.freeing(large), Some(Block::Plain(PAGE + 1)));
        assert_eq!(taken.now(), PAGE);
        assert_eq!((taken.freeing(small), taken.freeing(small)), (Some(Block::Plain(512)), None));
        assert_eq!(taken.now(), 0);
    }

    #[test]
    fn what_the_driver_refuses_changes_nothing() {
        let taken = Taken::default();
        let handle = PhysicalHandle(9);
        taken.created(handle, PAGE);
        taken.mapped(page(0), handle);
        taken.unmap(page(0), PAGE, refused).unwrap_err();
        taken.release(handle, refused).unwrap_err();
        taken.release(handle, || Ok(())).unwrap();
        assert_eq!(taken.now(), PAGE, "the mapping was forgotten");
        taken.unmap(page(0), PAGE, || Ok(())).unwrap();
        assert_eq!(taken.now(), 0);
    }
}
