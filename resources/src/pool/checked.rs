//! Tells a memory checker, such as NVIDIA's compute-sanitizer, about the memory of pools and the blocks in
//! it.
//!
//! Without this, a checker sees only the large pieces of memory that a pool takes, so that it misses accesses
//! past the end of a block, and accesses to a free block. If a checker is attached to the process, each pool
//! registers its memory as heaps of the checker, and each live block as a region, with the size of the
//! request. Such a pool caches no blocks for threads, so that each call comes here. Without a checker, the
//! calls that a cache serves cost nothing more.
//!
//! A checker knows only whole allocations of CUDA, so a pool with a checker maps no pages, unless it has
//! `pages=on`. It registers memory that it takes from `cuda`, `managed` or `pinned_host`, also through
//! adaptors. CUDA's own pools tell the checker themselves.
//!
//! The checker has one view of all addresses, so all pools of the process share one [`Checked`]. If a pool
//! takes memory from another pool, the memory stays in the heap of the lower pool, and the blocks of the
//! upper pool replace the block of the lower one.
//!
//! compute-sanitizer checks work against the regions of the time when the work was submitted. So a block ends
//! when it is freed, although earlier work of its stream may still use it. A captured graph is checked at
//! each launch. So a block that was allocated or freed on a capturing stream stays registered when it is
//! freed. It ends when a new block takes its address, or with its heap.

use std::collections::BTreeMap;
use std::iter;
use std::sync::{Arc, LazyLock};

use millpond_core::driver::{Driver, call, is_capturing};
use millpond_core::{
    DeviceId, DeviceMemoryResource, DevicePtr, DriverHandle, StreamRef, downcast, find_trait,
};
use millpond_driver::nvtx::{CheckedHeap, MemoryChecker};
use parking_lot::Mutex;

use crate::driver_memory::{CudaMemoryResource, ManagedMemoryResource, PinnedHostMemoryResource};
use crate::pool::Pool;

/// The memory of a pool, as the checker knows it.
pub(crate) struct Checked {
    checker: &'static MemoryChecker,
    device: DeviceId,
    driver: DriverHandle,
    /// Whether upstream's memory consists of allocations that the checker knows.
    takes_allocations: bool,
    /// The number of the pool.
    pool: u64,
}

static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Known {
    /// By address: each heap. Heaps do not overlap.
    heaps: BTreeMap<u64, Heap>,
    /// By address: each registered block. Blocks do not overlap.
    blocks: BTreeMap<u64, Block>,
}

struct Heap {
    bytes: u64,
    handle: CheckedHeap,
    /// The driver of the context in which the memory was taken.
    driver: DriverHandle,
    /// The pool that took the memory. A pool over that pool may hold a block at the same address.
    pool: u64,
}

struct Block {
    bytes: u64,
    /// The pool that serves it.
    pool: u64,
    /// The addresses of its regions: one in each heap that it lies in.
    regions: Vec<u64>,
    /// Whether a captured graph may use it.
    is_captured: bool,
}

impl Checked {
    /// Returns the view of the checker that is attached to this process, if there is one.
    pub(crate) fn over(upstream: &dyn DeviceMemoryResource, pool: u64) -> Option<Self> {
        let device = upstream.driver().device();
        let checker = MemoryChecker::attached(device)?;
        let base = iter::successors(Some(upstream), |resource| resource.upstream()).last()?;
        let is_known = downcast::<CudaMemoryResource>(base).is_some()
            || downcast::<ManagedMemoryResource>(base).is_some()
            || downcast::<PinnedHostMemoryResource>(base).is_some();
        let takes_allocations = is_known && find_trait::<dyn Pool>(upstream).is_none();
        Some(Self { checker, device, driver: upstream.driver().clone(), takes_allocations, pool })
    }

    /// Notes a region that the pool has taken, before the pool serves blocks from it.
    pub(crate) fn arrived(&self, base: DevicePtr, bytes: u64) {
        let address = base.address();
        forget_resets(address, bytes);
        let is_of_pool_below = KNOWN.lock().heap_of(address).is_some();
        if is_of_pool_below {
            return self.end_of_blocks(address, bytes);
        }
        // A layer below may have taken more, and returns a part.
        let is_whole = || {
            let found = call(&*self.driver, |driver| driver.mem_get_address_range(base));
            found.is_ok_and(|found| found == (base, bytes))
        };
        if self.takes_allocations
            && is_whole()
            && let Some(handle) = self.checker.register_heap(self.device, base, bytes)
        {
            let heap = Heap { bytes, handle, driver: self.driver.clone(), pool: self.pool };
            KNOWN.lock().heaps.insert(address, heap);
        }
    }

    /// Notes regions that the pool is about to return: base and bytes. No work uses them.
    pub(crate) fn leaving(&self, regions: &[(DevicePtr, u64)]) {
        if self.driver.was_reset() {
            return;
        }
        for (base, bytes) in regions {
            self.end_of_blocks(base.address(), *bytes);
            KNOWN.lock().heaps.retain(|start, heap| *start != base.address() || heap.pool != self.pool);
        }
    }

    /// Notes a new block. The caller has it for itself until this call returns.
    pub(crate) fn allocated(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        self.end_of_blocks(ptr.address(), bytes);
        let is_captured = is_captured(&*self.driver, stream);
        let parts = {
            let mut known = KNOWN.lock();
            let parts = known.parts(ptr.address(), bytes);
            if !parts.is_empty() {
                let regions = parts.iter().map(|(_, address, _)| *address).collect();
                known.blocks.insert(ptr.address(), Block { bytes, pool: self.pool, regions, is_captured });
            }
            parts
        };
        for (heap, address, bytes) in parts {
            self.checker.register(self.device, heap, DevicePtr::new(address), bytes);
        }
    }

    /// Notes that a block is about to be freed. A free of no such block changes nothing: the pool refuses it.
    pub(crate) fn freed(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        if self.driver.was_reset() {
            return;
        }
        let is_captured = is_captured(&*self.driver, stream);
        let is_last_use = |block: &mut Block| {
            let is_own = (block.bytes, block.pool) == (bytes, self.pool);
            block.is_captured |= is_captured && is_own;
            is_own && !block.is_captured
        };
        let is_known = KNOWN.lock().blocks.get_mut(&ptr.address()).is_some_and(is_last_use);
        if is_known {
            self.end_of_blocks(ptr.address(), 1);
        }
    }

    /// Unregisters the blocks in a range.
    fn end_of_blocks(&self, address: u64, bytes: u64) {
        let ended = KNOWN.lock().remove_blocks(address, bytes);
        for region in ended {
            self.checker.unregister(self.device, DevicePtr::new(region));
        }
    }
}

/// Forgets the heaps in a range that ended with their context, and the blocks in them. The checker has
/// forgotten them.
fn forget_resets(address: u64, bytes: u64) {
    let range = address..address + bytes;
    let is_in = |start: &u64, heap: &Heap| *start < range.end && range.start < start + heap.bytes;
    let drivers: Vec<DriverHandle> = {
        let known = KNOWN.lock();
        let there = known.heaps.iter().filter(|(start, heap)| is_in(start, heap));
        there.map(|(_, heap)| heap.driver.clone()).collect()
    };
    // No lock is held while the driver is asked.
    let lost: Vec<DriverHandle> = drivers.into_iter().filter(|driver| driver.was_reset()).collect();
    let mut known = KNOWN.lock();
    let mut ended = Vec::new();
    known.heaps.retain(|start, heap| {
        let is_lost = is_in(start, heap) && lost.iter().any(|driver| Arc::ptr_eq(driver, &heap.driver));
        ended.extend(is_lost.then_some((*start, heap.bytes)));
        !is_lost
    });
    for (start, bytes) in ended {
        known.remove_blocks(start, bytes);
    }
}

fn is_captured(driver: &dyn Driver, stream: StreamRef) -> bool {
    is_capturing(driver, stream).unwrap_or(true)
}

impl Known {
    /// Returns the heap that holds an address, and its end.
    fn heap_of(&self, address: u64) -> Option<(CheckedHeap, u64)> {
        let (start, heap) = self.heaps.range(..=address).next_back()?;
        (address - start < heap.bytes).then_some((heap.handle, start + heap.bytes))
    }

    /// Divides a range into its parts in heaps: heap, address and bytes of each.
    fn parts(&self, address: u64, bytes: u64) -> Vec<(CheckedHeap, u64, u64)> {
        let (mut at, end, mut parts) = (address, address + bytes, Vec::new());
        while at < end
            && let Some((heap, end_of_heap)) = self.heap_of(at)
        {
            let until = end.min(end_of_heap);
            parts.push((heap, at, until - at));
            at = until;
        }
        parts
    }

    /// Removes the blocks that overlap a range. Returns their regions.
    fn remove_blocks(&mut self, address: u64, bytes: u64) -> Vec<u64> {
        let end = address + bytes;
        let before = self.blocks.range(..address).next_back();
        let first = before.filter(|(start, block)| *start + block.bytes > address).map(|(start, _)| *start);
        let within = self.blocks.range(address..end).map(|(start, _)| *start);
        let ended: Vec<u64> = first.into_iter().chain(within).collect();
        ended.iter().filter_map(|start| self.blocks.remove(start)).flat_map(|block| block.regions).collect()
    }
}
