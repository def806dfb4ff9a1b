//! Aligns blocks to more than 256 bytes.

pub(crate) mod layer;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use millpond_core::stack::LayerSpec;
use millpond_core::{
    ALLOCATION_ALIGNMENT, ByteSize, DeviceMemoryResource, DevicePtr, Error, ErrorKind, Layout,
    ResourceStatistics, Result, StreamRef, Traits, align_up, debug_as_text, forward_to_upstream, is_same,
    misuse,
};

pub use layer::AlignedLayer;

use crate::rare_blocks::{RareBlocks, Removed};

/// Starts the blocks of requests from a threshold on at multiples of an alignment.
///
/// A request keeps its own alignment where that is the larger one. The upstream is asked for the aligned
/// block, which the resources of millpond hand out without waste. From an upstream that refuses alignments
/// above 256, the adaptor takes as many bytes more as the alignment may need, hands out an address inside the
/// block, and remembers where the block begins; every later request then goes that way at once.
///
/// ```
/// use millpond_adaptors::AlignedLayer;
/// use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::CudaMemoryResource;
///
/// let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
/// let stack = cuda.layer(AlignedLayer::new(4096).threshold_bytes(64 << 10))?;
/// assert_eq!(stack.to_string(), "cuda+aligned:alignment=4KiB,threshold=64KiB");
/// let block = stack.allocate_bytes(100_000, StreamRef::LEGACY)?;
/// assert!(block.is_aligned_to(4096));
/// # // SAFETY: the block is live, unused, and given back with its size.
/// # unsafe { stack.deallocate_bytes(block, 100_000, StreamRef::LEGACY) };
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct AlignedResourceAdaptor<R> {
    upstream: R,
    alignment: u64,
    threshold_bytes: u64,
    /// The upstream's blocks whose address is not the one that was handed out.
    shifted: RareBlocks<DevicePtr>,
    /// Whether the upstream refused an alignment that a larger block then served.
    upstream_refuses: AtomicBool,
}

impl<R: DeviceMemoryResource> AlignedResourceAdaptor<R> {
    fn new(upstream: R, alignment: u64, threshold_bytes: u64) -> Self {
        let (shifted, upstream_refuses) = (RareBlocks::new(), AtomicBool::new(false));
        Self { upstream, alignment, threshold_bytes, shifted, upstream_refuses }
    }

    /// The alignment in bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// The smallest request in bytes that is aligned.
    pub fn threshold_bytes(&self) -> u64 {
        self.threshold_bytes
    }

    /// The layout that a request gets.
    fn aligned(&self, layout: Layout) -> Result<Layout> {
        if layout.bytes() < self.threshold_bytes {
            return Ok(layout);
        }
        Layout::with_alignment(layout.bytes(), layout.alignment().max(self.alignment))
    }

    /// Allocates a block that is large enough to hold an aligned one.
    #[cold]
    fn allocate_inside(&self, aligned: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let padded = padded(aligned).ok_or_else(|| Error::request_too_large(aligned, stream))?;
        let base = self.upstream.allocate(padded, stream)?;
        let Some(start) = align_up(base.address(), aligned.alignment()) else {
            // SAFETY: the block was allocated just now with this layout, and nothing used it.
            unsafe { self.upstream.deallocate(base, padded, stream) };
            return Err(Error::request_too_large(aligned, stream));
        };
        self.shifted.insert(DevicePtr::new(start), aligned.bytes(), base);
        Ok(DevicePtr::new(start))
    }
}

/// A layout at 256 bytes that holds an aligned block wherever it starts; `None` if no memory is that large.
fn padded(aligned: Layout) -> Option<Layout> {
    let bytes = align_up(aligned.bytes(), aligned.alignment())?;
    bytes.checked_add(aligned.alignment() - ALLOCATION_ALIGNMENT).map(Layout::new)
}

// SAFETY: each block is the upstream's, or lies inside one of the upstream's that has no other user; both
// calls compute the same layout from that of the request.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for AlignedResourceAdaptor<R> {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let allocate = || {
            let aligned = self.aligned(layout)?;
            if layout.bytes() == 0 || aligned.alignment() == ALLOCATION_ALIGNMENT {
                return self.upstream.allocate(aligned, stream);
            }
            if self.upstream_refuses.load(Ordering::Relaxed) {
                return self.allocate_inside(aligned, stream);
            }
            match self.upstream.allocate(aligned, stream) {
                Err(error) if is_refusal(error.kind()) => {
                    // Layers above act on a lack of memory, not on the refusal.
                    let says_more = |inside: &Error| inside.is_out_of_memory() || inside.is_sticky();
                    let ptr = self
                        .allocate_inside(aligned, stream)
                        .map_err(|inside| if says_more(&inside) { inside } else { error })?;
                    self.upstream_refuses.store(true, Ordering::Relaxed);
                    Ok(ptr)
                }
                other => other,
            }
        };
        allocate().map_err(|error| error.for_request(layout, stream).in_stack(self))
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        let aligned = self.aligned(layout).unwrap_or(layout);
        match self.shifted.remove(ptr, layout, stream, self) {
            // SAFETY: the caller's promises hold for the upstream, where the block came from.
            Removed::NotHere => unsafe { self.upstream.deallocate(ptr, aligned, stream) },
            Removed::Here(base) => {
                let padded = padded(aligned).unwrap_or(aligned);
                // SAFETY: the upstream's block has no other user, and was allocated with this layout.
                misuse::renamed(ptr, base, || unsafe { self.upstream.deallocate(base, padded, stream) });
            }
            Removed::Refused => {}
        }
    }

    /// Only to itself: another adaptor does not know where shifted blocks begin.
    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        self.shifted.add_misuses(self.upstream.statistics())
    }

    fn provide(&self, traits: &mut Traits) {
        // SAFETY: threads may share all parts but the upstream.
        unsafe { traits.share_over(&[&self.upstream]) };
    }

    forward_to_upstream!(except allocate, deallocate, is_equal, statistics, provide);
}

/// Whether an upstream refuses a request that it may serve at another alignment.
fn is_refusal(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unsupported | ErrorKind::InvalidArgument)
}

impl<R: fmt::Display> fmt::Display for AlignedResourceAdaptor<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes: u64| ByteSize::Bytes(bytes).to_string();
        let mut layer = LayerSpec::new("aligned");
        if self.alignment != ALLOCATION_ALIGNMENT {
            layer = layer.with("alignment", size(self.alignment));
        }
        if self.threshold_bytes != 0 {
            layer = layer.with("threshold", size(self.threshold_bytes));
        }
        write!(f, "{}+{layer}", self.upstream)
    }
}

debug_as_text!(AlignedResourceAdaptor<R: fmt::Display>);
