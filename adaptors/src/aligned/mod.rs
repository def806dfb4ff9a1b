//! Aligns blocks to more than 256 bytes.

pub(crate) mod layer;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use millpond_core::stack::LayerSpec;
use millpond_core::{
    ALLOCATION_ALIGNMENT, ByteSize, DeviceMemoryResource, DevicePtr, Error, ErrorKind, FailureTally, Layout,
    ResourceStatistics, Result, StreamRef, Traits, align_up, debug_as_text, forward_to_upstream, is_same,
    misuse,
};

pub use layer::AlignedLayer;

use crate::rare_blocks::{RareBlocks, Removed};

/// Aligns blocks to more than 256 bytes. The adaptor leaves requests below a certain size, the threshold,
/// unchanged.
///
/// If a request asks for a larger alignment itself, the block gets the larger alignment. The adaptor asks its
/// upstream for an aligned block. Millpond's resources serve such a request without wasting memory.
///
/// Some upstreams refuse alignments above 256. After the first refusal, the adaptor requests larger blocks
/// from such an upstream. It returns an aligned address inside the larger block, and records where the block
/// begins.
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
/// # // SAFETY: the block is live, unused, and freed with its size.
/// # unsafe { stack.deallocate_bytes(block, 100_000, StreamRef::LEGACY) };
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct AlignedResourceAdaptor<R> {
    upstream: R,
    alignment: u64,
    threshold_bytes: u64,
    /// The upstream's blocks whose address differs from the address that the caller got.
    shifted: RareBlocks<DevicePtr>,
    /// Whether the upstream refused an alignment, and a larger block then served the request.
    upstream_refuses: AtomicBool,
    failures: FailureTally,
}

impl<R: DeviceMemoryResource> AlignedResourceAdaptor<R> {
    fn new(upstream: R, alignment: u64, threshold_bytes: u64) -> Self {
        let (shifted, upstream_refuses) = (RareBlocks::new(), AtomicBool::new(false));
        let failures = FailureTally::default();
        Self { upstream, alignment, threshold_bytes, shifted, upstream_refuses, failures }
    }

    /// Returns the alignment of the blocks in bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Returns the threshold in bytes. The adaptor does not align smaller requests to more than 256 bytes.
    pub fn threshold_bytes(&self) -> u64 {
        self.threshold_bytes
    }

    /// Returns the aligned layout of a request.
    fn aligned(&self, layout: Layout) -> Result<Layout> {
        if layout.bytes() < self.threshold_bytes {
            return Ok(layout);
        }
        Layout::with_alignment(layout.bytes(), layout.alignment().max(self.alignment))
    }

    /// Allocates a block that is large enough to contain an aligned block.
    #[cold]
    fn allocate_inside(&self, aligned: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let padded = padded(aligned).ok_or_else(|| Error::request_too_large(aligned, stream))?;
        let base = self.upstream.allocate(padded, stream)?;
        let Some(start) = align_up(base.address(), aligned.alignment()) else {
            // SAFETY: the block was just allocated with this layout, and nothing used it.
            unsafe { self.upstream.deallocate(base, padded, stream) };
            return Err(Error::request_too_large(aligned, stream));
        };
        self.shifted.insert(DevicePtr::new(start), aligned.bytes(), base);
        Ok(DevicePtr::new(start))
    }
}

/// Returns a layout at 256 bytes that contains an aligned block wherever it starts; `None` if no memory is
/// that large.
fn padded(aligned: Layout) -> Option<Layout> {
    let bytes = align_up(aligned.bytes(), aligned.alignment())?;
    bytes.checked_add(aligned.alignment() - ALLOCATION_ALIGNMENT).map(Layout::new)
}

// SAFETY: each block comes from the upstream, or lies inside a block of the upstream that has no other user.
// Both calls compute the same layout from the request's layout.
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
                    // Layers above react to a lack of memory, not to the refusal.
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
        let device = || self.driver().device();
        allocate().map_err(|error| {
            self.failures.noted(error.for_request(layout, stream)).on_device(device()).in_stack(self)
        })
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        let aligned = self.aligned(layout).unwrap_or(layout);
        match self.shifted.remove(ptr, layout, stream, self) {
            // SAFETY: the caller's promises hold for the upstream too: the block came from there.
            Removed::NotHere => unsafe { self.upstream.deallocate(ptr, aligned, stream) },
            Removed::Here(base) => {
                let padded = padded(aligned).unwrap_or(aligned);
                // SAFETY: the upstream's block has no other user, and was allocated with this layout.
                misuse::renamed(ptr, base, || unsafe { self.upstream.deallocate(base, padded, stream) });
            }
            Removed::Refused => {}
        }
    }

    /// An adaptor is equal only to itself, because another adaptor does not know where the larger blocks of
    /// this adaptor begin.
    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        self.shifted.add_misuses(self.upstream.statistics())
    }

    fn provide(&self, traits: &mut Traits) {
        traits.add::<Self, FailureTally>(|it| &it.failures);
        // SAFETY: threads may share all parts except the upstream.
        unsafe { traits.share_over(&[&self.upstream]) };
    }

    forward_to_upstream!(except allocate, deallocate, is_equal, statistics, provide);
}

/// Returns whether the error refuses a request that the upstream may serve at another alignment.
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
