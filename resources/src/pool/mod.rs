//! The pool: best fit with coalescing over regions from upstream, in stream order.
//!
//! Read it in this order: [`PoolMemoryResource`] and its options; `heap` (which blocks there are), with
//! `chunk`,
//! `bins` and `region` below it; [`ordered`](crate::ordered) (for whom they are free).
//!
//! ```text
//!  upstream ──region──▶ ┌────────┬──────────────┬─────┬─────────────┐
//!                       │ in use │ free: A      │ use │ free: anyone│   chunks, in address order
//!                       └────────┴──────────────┴─────┴─────────────┘
//!                          A's free chunks by size  ──▶ bins of A
//!                          anyone's by size         ──▶ bins of ANYONE
//! ```

mod bins;
mod chunk;
mod heap;
mod options;
mod region;
mod report;
#[cfg(test)]
mod tests;

use std::fmt;

use millpond_core::{
    DeviceMemoryResource, DevicePtr, DriverHandle, Layout, MemoryInfo, ResourceStatistics, Result, StreamRef,
    is_same,
};

pub(crate) use options::ENTRY;
pub use options::{PoolLayer, PoolOptions};

use crate::ordered::{Ordered, Store};
use heap::Heap;

/// A pool: takes large regions from upstream and hands out blocks of them, in stream order.
///
/// A block given back on a stream is had again by that stream without any driver call. What happens when the
/// stream has none that fits is in [`ordered`](crate::ordered). The pool starts with
/// [`initial_bytes`](PoolOptions::initial_bytes) and grows in regions that double, up to an eighth of what it
/// holds; where upstream refuses, it asks for less, down to the request itself. Regions that are free from
/// end to end go back on [`trim`](DeviceMemoryResource::trim), and by themselves before the pool is out of
/// memory.
///
/// Requests are rounded up to 256 bytes; blocks are split exactly. A pointer that is not the start of a block
/// in use, or a layout of another size, is refused.
///
/// ```
/// use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::{CudaMemoryResource, PoolLayer};
///
/// let device = SimDevice::new(SimConfig::h200());
/// let pool = CudaMemoryResource::new(device).layer(PoolLayer::new().initial_bytes(64 << 20))?;
/// let ptr = pool.allocate_bytes(1000, StreamRef::LEGACY)?;
/// // SAFETY: the block came from this pool with this size, and nothing uses it.
/// unsafe { pool.deallocate_bytes(ptr, 1000, StreamRef::LEGACY) };
/// assert_eq!(pool.allocate_bytes(900, StreamRef::LEGACY)?, ptr); // the same block again
/// assert_eq!(pool.to_string(), "cuda+pool:initial=64MiB");
/// # Ok::<(), millpond_core::Error>(())
/// ```
#[derive(Debug)]
pub struct PoolMemoryResource<R: DeviceMemoryResource> {
    ordered: Ordered<R, Heap>,
    options: PoolOptions,
}

impl<R: DeviceMemoryResource> PoolMemoryResource<R> {
    /// A pool over `upstream`.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the initial size exceeds the
    /// maximum, or the maximum exceeds the device; [`OutOfMemory`](millpond_core::ErrorKind::OutOfMemory) if
    /// the initial size cannot be had; what the driver reports.
    pub fn new(upstream: R, options: PoolOptions) -> Result<Self> {
        let options = options.checked(&**upstream.driver())?;
        let pool = Self {
            ordered: Ordered::new(upstream, Heap::new(options.maximum_bytes), options.reuse),
            options,
        };
        if options.initial_bytes > 0 {
            pool.ordered
                .reserve(options.initial_bytes)
                .map_err(|error| error.context("taking the pool's initial size"))?;
        }
        Ok(pool)
    }

    /// Bytes held from upstream, in use and free.
    pub fn pool_bytes(&self) -> u64 {
        self.ordered.inspect(|heap| heap.totals().bytes_reserved)
    }

    /// How many streams the pool knows; those without free blocks are forgotten as others come.
    pub fn known_streams(&self) -> usize {
        self.ordered.streams()
    }

    /// The options, rounded.
    pub fn options(&self) -> PoolOptions {
        self.options
    }

    /// Walks the whole structure, in time proportional to its size.
    ///
    /// # Panics
    /// Where an invariant does not hold: that is a bug of the pool.
    pub fn validate(&self) {
        self.ordered.inspect(Store::validate);
    }
}

impl<R: DeviceMemoryResource> fmt::Display for PoolMemoryResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+pool{}", self.ordered.upstream(), self.options)
    }
}

// SAFETY: chunks are disjoint pieces of upstream's regions, aligned as asked for (`Heap::take`); a chunk is
// handed to a stream only if it belongs to it, or its owner's work is done or waited for (`Ordered`); regions
// go back to upstream only when all work on them is done.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for PoolMemoryResource<R> {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        self.ordered.allocate(layout, stream).map_err(|error| error.in_stack(self))
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        self.ordered.deallocate(ptr, layout, stream, self);
    }

    fn driver(&self) -> &DriverHandle {
        self.ordered.driver()
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        Some(self.ordered.upstream())
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.ordered.memory_info()
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    fn is_stream_ordered(&self) -> bool {
        true
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        Some(self.ordered.statistics())
    }

    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        self.ordered.trim(keep_bytes).map_err(|error| error.in_stack(self))
    }
}
