//! The layer that moves blocks to the device.

use std::sync::Arc;

use millpond_core::stack::{LayerEntry, LayerKind};
use millpond_core::{DeviceMemoryResource, Layer, Result};

use super::PrefetchResourceAdaptor;

/// Puts a [`PrefetchResourceAdaptor`] on top of a resource.
///
#[doc = include_str!("../../layers/prefetch.md")]
#[derive(Clone, Copy, Default, Debug)]
#[non_exhaustive]
pub struct PrefetchLayer;

impl PrefetchLayer {
    /// Creates the layer. It has no options.
    pub const fn new() -> Self {
        Self
    }
}

impl<R: DeviceMemoryResource> Layer<R> for PrefetchLayer {
    type Resource = PrefetchResourceAdaptor<R>;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        Ok(PrefetchResourceAdaptor::new(upstream))
    }
}

pub(crate) const ENTRY: LayerEntry = LayerEntry {
    name: "prefetch",
    about: "moves new blocks of managed memory to the device",
    params: &[],
    kind: LayerKind::Layer(|_, upstream| Ok(Arc::new(PrefetchLayer.layer(upstream)?))),
};
