//! The layer that adds a lock.

use std::sync::Arc;

use millpond_core::stack::{LayerEntry, LayerKind};
use millpond_core::{DeviceMemoryResource, Layer, Result};

use super::ThreadSafeResourceAdaptor;

/// Adds a [`ThreadSafeResourceAdaptor`].
///
#[doc = include_str!("../../layers/thread_safe.md")]
#[derive(Clone, Copy, Default, Debug)]
pub struct ThreadSafeLayer;

impl ThreadSafeLayer {
    /// The layer; it has no options.
    pub const fn new() -> Self {
        Self
    }
}

impl<R: DeviceMemoryResource + Send> Layer<R> for ThreadSafeLayer {
    type Resource = ThreadSafeResourceAdaptor<R>;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        Ok(ThreadSafeResourceAdaptor::new(upstream))
    }
}

pub(crate) const ENTRY: LayerEntry = LayerEntry {
    name: "thread_safe",
    about: "lets one thread at a time use the resource below",
    params: &[],
    kind: LayerKind::Layer(|_, upstream| Ok(Arc::new(ThreadSafeLayer.layer(upstream)?))),
};
