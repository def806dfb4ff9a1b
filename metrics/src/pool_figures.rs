//! The figures of the driver's pools.

use millpond_core::{DeviceMemoryResource, downcast};
use millpond_resources::memory_pool::MemoryPool;
use millpond_resources::{CudaAsyncMemoryResource, CudaAsyncPinnedMemoryResource};

/// The figures of a driver's pool below stacks, in bytes. The stacks keep no figures of reserved memory.
pub(crate) struct PoolFigures {
    used: u64,
    used_peak: u64,
    pub(crate) reserved: u64,
    pub(crate) reserved_peak: u64,
    /// Whether a stack counts live memory itself.
    is_counted: bool,
}

impl PoolFigures {
    /// Returns the figures of a base that has its own pool. `is_counted`: whether a stack counts live memory.
    pub(crate) fn of(base: &dyn DeviceMemoryResource, is_counted: bool) -> Option<Self> {
        let pool = own_pool(base)?;
        Some(Self {
            used: pool.used_bytes().ok()?,
            used_peak: pool.used_high().ok()?,
            reserved: pool.reserved_bytes().ok()?,
            reserved_peak: pool.reserved_high().ok()?,
            is_counted,
        })
    }

    pub(crate) fn live(&self) -> Option<u64> {
        (!self.is_counted).then_some(self.used)
    }

    pub(crate) fn peak(&self) -> Option<u64> {
        (!self.is_counted).then_some(self.used_peak)
    }
}

/// Returns the driver's pool from which no other resource allocates.
fn own_pool(base: &dyn DeviceMemoryResource) -> Option<&MemoryPool> {
    let pool = downcast::<CudaAsyncMemoryResource>(base).map(CudaAsyncMemoryResource::pool);
    pool.or_else(|| downcast::<CudaAsyncPinnedMemoryResource>(base).map(CudaAsyncPinnedMemoryResource::pool))
}
