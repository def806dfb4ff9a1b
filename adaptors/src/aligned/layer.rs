//! The layer that aligns blocks, and its parameters in text.

use std::sync::Arc;

use millpond_core::stack::{LayerBuilder, LayerEntry, LayerKind, Params};
use millpond_core::{ALLOCATION_ALIGNMENT, DeviceMemoryResource, Layer, Layout, Result, parse_bytes};

use super::AlignedResourceAdaptor;

/// Puts an [`AlignedResourceAdaptor`] on top of a resource.
///
#[doc = include_str!("../../layers/aligned.md")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct AlignedLayer {
    alignment: u64,
    threshold_bytes: u64,
}

impl AlignedLayer {
    /// Creates a layer that aligns all blocks to `alignment` bytes. If `alignment` is less than 256, the
    /// layer uses 256.
    pub fn new(alignment: u64) -> Self {
        Self { alignment, threshold_bytes: 0 }
    }

    /// Aligns only blocks whose requests have at least `bytes` bytes.
    pub fn threshold_bytes(mut self, bytes: u64) -> Self {
        self.threshold_bytes = bytes;
        self
    }
}

/// # Errors
/// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the alignment is not a power of two.
impl<R: DeviceMemoryResource> Layer<R> for AlignedLayer {
    type Resource = AlignedResourceAdaptor<R>;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        let alignment = Layout::with_alignment(0, self.alignment)?.alignment();
        Ok(AlignedResourceAdaptor::new(upstream, alignment, self.threshold_bytes))
    }
}

pub(crate) const ENTRY: LayerEntry = LayerEntry {
    name: "aligned",
    about: "aligns blocks to more than 256 bytes",
    params: &[
        ("alignment", "the alignment in bytes, a power of two, such as 4KiB (default 256)"),
        ("threshold", "the smallest request to align, in bytes, such as 64KiB (default 0)"),
    ],
    kind: LayerKind::ReadLayer(read),
};

fn read<'a>(params: &Params<'a>) -> Result<LayerBuilder<'a>> {
    // A small number means bytes here, so it needs no unit.
    let alignment = params.get_with("alignment", parse_bytes)?.unwrap_or(ALLOCATION_ALIGNMENT);
    Layout::with_alignment(0, alignment)?;
    let layer =
        AlignedLayer::new(alignment).threshold_bytes(params.get_with("threshold", parse_bytes)?.unwrap_or(0));
    Ok(Box::new(move |upstream, _| Ok(Arc::new(layer.layer(upstream)?))))
}
