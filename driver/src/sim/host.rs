//! Memory that the host can see: managed memory and pinned memory. It is real, at the very address that the
//! driver gives out, and zero until written; the system commits its pages when they are touched.

use std::alloc::{Layout, alloc_zeroed, dealloc};

use millpond_core::DriverError;
use rustc_hash::FxHashMap;

use super::answer::{Answer, Refusal};

const PAGE: usize = 4096;

/// The host memory that the simulator owns, by address.
#[derive(Debug, Default)]
pub(super) struct HostMemory {
    blocks: FxHashMap<usize, Owned>,
}

/// Real memory; it ends with this value.
#[derive(Debug)]
struct Owned {
    start: usize,
    layout: Layout,
}

impl HostMemory {
    /// So many zero bytes, at a page's start.
    pub(super) fn allocate(&mut self, bytes: u64) -> Answer<usize> {
        let refused =
            || Refusal::new(DriverError::OUT_OF_MEMORY, format!("the host has no {bytes} bytes in a row"));
        // A larger alignment would make the allocator write the zeros, and so commit the pages.
        let padded =
            usize::try_from(bytes).ok().and_then(|bytes| bytes.checked_add(PAGE)).ok_or_else(refused)?;
        let layout = Layout::from_size_align(padded, align_of::<u64>()).map_err(|_| refused())?;
        // SAFETY: the size is at least a page.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            return Err(refused());
        }
        let start = start.expose_provenance();
        let address = start.next_multiple_of(PAGE);
        self.blocks.insert(address, Owned { start, layout });
        Ok(address)
    }

    /// Ends memory that [`allocate`](Self::allocate) gave.
    pub(super) fn free(&mut self, address: usize) {
        self.blocks.remove(&address);
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: `start` and `layout` are those of one `alloc_zeroed`, and nobody else frees them.
        unsafe { dealloc(std::ptr::with_exposed_provenance_mut(self.start), self.layout) }
    }
}
