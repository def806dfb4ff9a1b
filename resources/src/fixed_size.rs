//! Allocates blocks of one size, from a pool in which all blocks have this size.

use std::fmt;
use std::sync::Arc;

use millpond_core::stack::{LayerEntry, LayerKind};
use millpond_core::{
    ALLOCATION_ALIGNMENT, BlockInfo, ByteSize, DeviceMemoryResource, DevicePtr, Error, FailureTally, Layer,
    LayerMemory, Layout, MemoryMap, ReportsMemory, ResourceStatistics, Result, StreamRef, Traits, align_up,
    format_bytes, forward_to_upstream, parse_block_bytes,
};

use crate::debug_as_text::debug_as_text;
use crate::heap::size_class::BlockSize;
use crate::pool::{Decay, FixedBlocks, PagesMode, PoolMemoryResource, PoolOptions};

/// Builds `fixed_size` from text.
pub(crate) const ENTRY: LayerEntry = LayerEntry {
    name: "fixed_size",
    about: "blocks of one size, in stream order; larger requests fail",
    params: &[
        ("block_size", "the size of a block in bytes (default 1MiB)"),
        ("blocks", "the most blocks that the resource allocates from upstream at once (default 128)"),
        ("preallocate", "blocks that the resource allocates when it is built (default 0)"),
    ],
    kind: LayerKind::ReadLayer(|params| {
        let defaults = FixedSizeOptions::default();
        let options = FixedSizeOptions {
            block_bytes: params.get_with("block_size", parse_block_bytes)?.unwrap_or(defaults.block_bytes),
            blocks_per_region: params.get("blocks")?.unwrap_or(defaults.blocks_per_region),
            preallocated_blocks: params.get("preallocate")?.unwrap_or(defaults.preallocated_blocks),
        };
        let options = options.checked()?;
        Ok(Box::new(move |upstream, _| Ok(Arc::new(FixedSizeMemoryResource::new(upstream, options)?))))
    }),
};

/// Options of a [`FixedSizeMemoryResource`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FixedSizeOptions {
    /// The size of a block in bytes, rounded up to a multiple of 256 (default 1 MiB).
    pub block_bytes: u64,
    /// The most blocks that the resource allocates from upstream at once (default 128). While few blocks are
    /// live, the resource allocates fewer blocks at once.
    pub blocks_per_region: u64,
    /// The number of blocks that the resource allocates when it is built (default 0).
    pub preallocated_blocks: u64,
}

impl Default for FixedSizeOptions {
    fn default() -> Self {
        Self { block_bytes: 1 << 20, blocks_per_region: 128, preallocated_blocks: 0 }
    }
}

impl FixedSizeOptions {
    millpond_core::setters! { block_bytes: u64, blocks_per_region: u64, preallocated_blocks: u64 }

    fn checked(self) -> Result<Self> {
        let whole = align_up(self.block_bytes, ALLOCATION_ALIGNMENT).filter(|bytes| *bytes > 0);
        let blocks = self.blocks_per_region.max(self.preallocated_blocks);
        let block_bytes = whole.filter(|bytes| bytes.checked_mul(blocks).is_some_and(|sum| sum <= 1 << 56));
        match block_bytes {
            Some(block_bytes) if self.blocks_per_region > 0 => Ok(Self { block_bytes, ..self }),
            _ => Err(Error::invalid_argument(format!(
                "cannot make {} blocks of {} bytes; write for example block_size=1MiB,blocks=128",
                blocks, self.block_bytes
            ))),
        }
    }
}

/// Prints the options as parameters of a stack's text. Options with their default value are left out.
impl fmt::Display for FixedSizeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let defaults = Self::default();
        let mut separator = ':';
        if self.block_bytes != defaults.block_bytes {
            write!(f, "{separator}block_size={}", ByteSize::Bytes(self.block_bytes))?;
            separator = ',';
        }
        if self.blocks_per_region != defaults.blocks_per_region {
            write!(f, "{separator}blocks={}", self.blocks_per_region)?;
            separator = ',';
        }
        if self.preallocated_blocks != defaults.preallocated_blocks {
            write!(f, "{separator}preallocate={}", self.preallocated_blocks)?;
        }
        Ok(())
    }
}

/// Puts a [`FixedSizeMemoryResource`] on top of a resource.
///
#[doc = include_str!("../layers/fixed_size.md")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct FixedSizeLayer(FixedSizeOptions);

impl FixedSizeLayer {
    /// Creates a layer for blocks of 1 MiB.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the size of a block in bytes.
    pub fn block_bytes(mut self, bytes: u64) -> Self {
        self.0.block_bytes = bytes;
        self
    }

    /// Sets the largest number of blocks that the resource allocates from upstream at once.
    pub fn blocks_per_region(mut self, blocks: u64) -> Self {
        self.0.blocks_per_region = blocks;
        self
    }

    /// Sets the number of blocks that the resource allocates when it is built.
    pub fn preallocated_blocks(mut self, blocks: u64) -> Self {
        self.0.preallocated_blocks = blocks;
        self
    }
}

impl<R: DeviceMemoryResource> Layer<R> for FixedSizeLayer {
    type Resource = FixedSizeMemoryResource<R>;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        FixedSizeMemoryResource::new(upstream, self.0)
    }
}

/// Allocates blocks of one size, in stream order. Each thread caches freed blocks if the block size is at
/// most 1 MiB.
///
/// A request of up to [`block_bytes`](FixedSizeOptions::block_bytes) gets a whole block. A larger request
/// fails with [`OutOfMemory`](millpond_core::ErrorKind::OutOfMemory), so a layer above can pass the request
/// to another resource. A request with an alignment above 256 bytes fails with
/// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument). For several block sizes, use a
/// [`BinningMemoryResource`](crate::BinningMemoryResource).
///
/// ```
/// use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::{CudaMemoryResource, FixedSizeLayer};
///
/// let device = SimDevice::new(SimConfig::h200());
/// let blocks = CudaMemoryResource::new(device).layer(FixedSizeLayer::new().block_bytes(4096))?;
/// assert!(blocks.allocate_bytes(4096, StreamRef::LEGACY).is_ok());
/// assert!(blocks.allocate_bytes(4097, StreamRef::LEGACY).is_err());
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct FixedSizeMemoryResource<R: DeviceMemoryResource> {
    /// A pool in which all blocks have one size.
    pool: PoolMemoryResource<R>,
    options: FixedSizeOptions,
}

impl<R: DeviceMemoryResource> FixedSizeMemoryResource<R> {
    /// Builds a resource whose blocks come from `upstream`.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the block size or the number of
    /// blocks is 0, or is larger than any device; [`OutOfMemory`](millpond_core::ErrorKind::OutOfMemory) if
    /// the upstream refuses the preallocated blocks.
    pub fn new(upstream: R, options: FixedSizeOptions) -> Result<Self> {
        let options = options.checked()?;
        let FixedSizeOptions { block_bytes, blocks_per_region, preallocated_blocks } = options;
        let of_pool = PoolOptions {
            initial_bytes: block_bytes * preallocated_blocks,
            pages: PagesMode::Off,
            decay: Decay::Off,
            ..PoolOptions::default()
        };
        let fixed = FixedBlocks { block_bytes, blocks_per_region };
        let layer = format!("fixed_size{options}");
        let pool = PoolMemoryResource::build(upstream, of_pool, Some(fixed), layer)?;
        Ok(Self { pool, options })
    }

    /// Returns the size of a block in bytes.
    pub fn block_bytes(&self) -> u64 {
        self.options.block_bytes
    }

    /// Checks all invariants of the resource. The time is proportional to the number of blocks. No other
    /// thread may call the resource during the check.
    ///
    /// # Panics
    /// Panics if an invariant does not hold. This is a bug of the resource.
    pub fn validate(&self) {
        self.pool.validate();
    }

    /// Returns the pool that holds the blocks.
    pub(crate) fn pool(&self) -> &PoolMemoryResource<R> {
        &self.pool
    }

    fn block_size(&self, layout: Layout) -> BlockSize {
        if layout.bytes() == 0 { BlockSize::of(0) } else { BlockSize::fixed(self.options.block_bytes) }
    }

    fn check(&self, layout: Layout, stream: StreamRef) -> Result<()> {
        let error = if layout.bytes() > self.options.block_bytes {
            // The error is out of memory, so that a layer above can fall back on another resource.
            let block = format_bytes(self.options.block_bytes);
            let why =
                format!("each block has only {block}; raise block_size, or use binning for several sizes");
            Error::impossible(why, layout, stream)
        } else if layout.bytes() > 0 && layout.alignment() > ALLOCATION_ALIGNMENT {
            Error::invalid_argument(format!(
                "blocks are aligned to {ALLOCATION_ALIGNMENT} bytes; for larger alignments, use a pool"
            ))
        } else {
            return Ok(());
        };
        Err(error.for_request(layout, stream).on_device(self.driver().device()).in_stack(self))
    }
}

impl<R: DeviceMemoryResource> fmt::Display for FixedSizeMemoryResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pool.fmt(f)
    }
}

debug_as_text!(FixedSizeMemoryResource<R: DeviceMemoryResource>);

// SAFETY: the blocks are the pool's, each at least as large as the request.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for FixedSizeMemoryResource<R> {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        self.check(layout, stream).map_err(|error| self.pool.failed(error))?;
        self.pool.allocate_block(layout, stream, self.block_size(layout))
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        self.pool.deallocate_block(ptr, layout, stream, self.block_size(layout));
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        self.pool.upstream()
    }

    fn is_stream_ordered(&self) -> bool {
        true
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        let statistics = self.pool.statistics()?;
        // The pool counts adjacent free blocks as one.
        let blocks = statistics.bytes_reserved / self.options.block_bytes;
        // Each thread counts its own blocks. Between two threads' updates, a block may count as in use twice.
        let blocks_free = blocks.saturating_sub(statistics.blocks_in_use);
        let largest_free_block = if blocks_free > 0 { self.options.block_bytes } else { 0 };
        Some(statistics.blocks_free(blocks_free).largest_free_block(largest_free_block))
    }

    fn provide(&self, traits: &mut Traits) {
        traits.add::<Self, FailureTally>(|it| it.pool.failures()).add::<Self, dyn ReportsMemory>(|it| it);
        // SAFETY: threads may share all parts except the pool.
        unsafe { traits.share_over(&[&self.pool]) };
    }

    forward_to_upstream!(
        self.pool,
        except allocate, deallocate, upstream, is_stream_ordered, statistics, provide
    );
}

impl<R: DeviceMemoryResource> ReportsMemory for FixedSizeMemoryResource<R> {
    fn layer_memory(&self) -> LayerMemory {
        let mut memory = self.pool.layer_memory();
        memory.statistics = self.statistics();
        memory
    }

    fn layer_figures(&self) -> LayerMemory {
        let mut memory = self.pool.layer_figures();
        memory.statistics = self.statistics();
        memory
    }

    fn block_at(&self, ptr: DevicePtr) -> Option<BlockInfo> {
        self.pool.block_at(ptr)
    }

    fn memory_map(&self) -> Option<MemoryMap> {
        self.pool.memory_map()
    }
}
