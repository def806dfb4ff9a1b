//! The layer that counts allocations.

use std::sync::Arc;

use millpond_core::stack::{LayerEntry, LayerKind};
use millpond_core::{Layer, Result};

use super::StatisticsResourceAdaptor;

/// Puts a [`StatisticsResourceAdaptor`] on top of a resource.
///
#[doc = include_str!("../../layers/statistics.md")]
#[derive(Clone, Copy, Default, Debug)]
#[non_exhaustive]
pub struct StatisticsLayer;

impl StatisticsLayer {
    /// Creates the layer. It has no options.
    pub const fn new() -> Self {
        Self
    }
}

impl<R> Layer<R> for StatisticsLayer {
    type Resource = StatisticsResourceAdaptor<R>;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        Ok(StatisticsResourceAdaptor::new(upstream))
    }
}

pub(crate) const ENTRY: LayerEntry = LayerEntry {
    name: "statistics",
    about: "counts current, peak and total of bytes and allocations",
    params: &[],
    kind: LayerKind::Layer(|_, upstream| Ok(Arc::new(StatisticsLayer.layer(upstream)?))),
};
