//! The layer that makes scopes for captured graphs.

use std::sync::Arc;

use millpond_core::stack::{LayerEntry, LayerKind};
use millpond_core::{DeviceMemoryResource, Layer, Result};

use super::CaptureScopesMemoryResource;

/// Puts a [`CaptureScopesMemoryResource`] on top of a resource.
///
#[doc = include_str!("../../layers/capture_scopes.md")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CaptureScopesLayer;

impl CaptureScopesLayer {
    /// Creates the layer. The layer has no options.
    pub const fn new() -> Self {
        Self
    }
}

impl<R: DeviceMemoryResource + Send + Sync> Layer<R> for CaptureScopesLayer {
    type Resource = CaptureScopesMemoryResource<R>;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        Ok(CaptureScopesMemoryResource::new(upstream))
    }
}

/// Builds `capture_scopes` from text.
pub(crate) const ENTRY: LayerEntry = LayerEntry {
    name: "capture_scopes",
    about: "creates scopes, which keep the memory of captured graphs",
    params: &[],
    kind: LayerKind::Layer(|_, upstream| Ok(Arc::new(CaptureScopesMemoryResource::new(upstream)))),
};
