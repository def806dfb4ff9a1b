//! Memory that the host can see: managed, pinned and pageable memory. It is real memory at the address that
//! the driver returns, and zero until written. The system commits a page on the first access.

mod chunks;

use millpond_core::{DriverError, Layout, MemoryInfo};
use rustc_hash::FxHashMap;

use chunks::{ALIGNMENT, Chunks};

use super::answer::{Answer, Refusal};

/// The host memory that the simulator owns, by address.
#[derive(Debug)]
pub(crate) struct HostMemory {
    blocks: Chunks,
    /// The start of each block with an alignment above one page, by its address.
    aligned: FxHashMap<usize, usize>,
    taken: u64,
    device_bytes: u64,
}

/// The simulated host's memory as a multiple of the device's.
const HOST_OVER_DEVICE: u64 = 2;

impl HostMemory {
    /// The memory of a host whose device has `device_bytes`.
    pub(crate) fn beside(device_bytes: u64) -> Self {
        Self { blocks: Chunks::default(), aligned: FxHashMap::default(), taken: 0, device_bytes }
    }

    /// Allocates pinned memory, up to the host's memory.
    pub(crate) fn allocate_pinned(&mut self, bytes: u64) -> Answer<usize> {
        self.allocate(bytes, self.device_bytes.saturating_mul(HOST_OVER_DEVICE))
    }

    /// Allocates pageable memory. Pageable and pinned memory together are limited to the host's memory.
    pub(crate) fn allocate_pageable(&mut self, layout: Layout) -> Answer<usize> {
        let over = if layout.alignment() > ALIGNMENT as u64 { layout.alignment() } else { 0 };
        let start = self.allocate_pinned(layout.bytes().saturating_add(over))?;
        if over == 0 {
            return Ok(start);
        }
        let aligned = start.next_multiple_of(over as usize);
        self.aligned.insert(aligned, start);
        Ok(aligned)
    }

    /// The host's free and total bytes.
    pub(crate) fn info(&self) -> MemoryInfo {
        let total = self.device_bytes.saturating_mul(HOST_OVER_DEVICE);
        MemoryInfo { free: total.saturating_sub(self.taken), total }
    }

    /// Allocates managed memory, up to the memory of host and device together.
    pub(crate) fn allocate_managed(&mut self, bytes: u64) -> Answer<usize> {
        self.allocate(bytes, self.device_bytes.saturating_mul(HOST_OVER_DEVICE + 1))
    }

    /// Allocates `bytes` zero bytes at a multiple of 4 KiB; the total stays within `most`. The memory is
    /// fresh each time. Memory reused by the process's allocator would have to be cleared, and so committed.
    fn allocate(&mut self, bytes: u64, most: u64) -> Answer<usize> {
        let refused = || {
            let text =
                format!("{bytes} bytes of host memory requested; {} of {most} bytes are in use", self.taken);
            Refusal::new(DriverError::OUT_OF_MEMORY, text)
        };
        let rounded = bytes.checked_next_multiple_of(ALIGNMENT as u64);
        let taken = rounded.and_then(|rounded| self.taken.checked_add(rounded));
        let taken = taken.filter(|taken| *taken <= most).ok_or_else(refused)?;
        let size = usize::try_from(bytes).map_err(|_| refused())?;
        let address = self.blocks.allocate(size).ok_or_else(refused)?;
        self.taken = taken;
        Ok(address)
    }

    /// Frees memory of the host.
    pub(crate) fn free(&mut self, address: usize) {
        let address = self.aligned.remove(&address).unwrap_or(address);
        self.taken -= self.blocks.free(address).unwrap_or(0) as u64;
    }
}
