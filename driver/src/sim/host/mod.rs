//! Memory that the host can see: managed memory and pinned memory. It is real, at the very address that the
//! driver gives out, and zero until written; the system commits its pages when they are touched.

mod chunks;

use millpond_core::DriverError;

use chunks::Chunks;

use super::answer::{Answer, Refusal};

/// The host memory that the simulator owns, by address.
#[derive(Debug, Default)]
pub(super) struct HostMemory {
    blocks: Chunks,
}

impl HostMemory {
    /// So many zero bytes, at a multiple of 4 KiB. Fresh each time: what the allocator of the process keeps
    /// it would have to clear, and so commit.
    pub(super) fn allocate(&mut self, bytes: u64) -> Answer<usize> {
        let refused =
            || Refusal::new(DriverError::OUT_OF_MEMORY, format!("the host has no {bytes} bytes in a row"));
        let bytes = usize::try_from(bytes).map_err(|_| refused())?;
        self.blocks.allocate(bytes).ok_or_else(refused)
    }

    /// Ends memory that [`allocate`](Self::allocate) gave.
    pub(super) fn free(&mut self, address: usize) {
        self.blocks.free(address);
    }
}
