//! The layer that limits allocations, and its parameters in text.

use std::sync::Arc;

use millpond_core::stack::{LayerBuilder, LayerEntry, LayerKind, Params};
use millpond_core::{ByteSize, DeviceMemoryResource, Error, Layer, Result};

use super::LimitingResourceAdaptor;

/// Puts a [`LimitingResourceAdaptor`] on top of a resource.
///
#[doc = include_str!("../../layers/limiting.md")]
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LimitingLayer {
    limit: ByteSize,
}

impl LimitingLayer {
    /// Creates a layer with this limit on live bytes. The limit is a number of bytes, or a percentage of the
    /// device's free memory when the layer is built.
    pub fn new(limit: impl Into<ByteSize>) -> Self {
        Self { limit: limit.into() }
    }
}

impl<R: DeviceMemoryResource> Layer<R> for LimitingLayer {
    type Resource = LimitingResourceAdaptor<R>;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        let limit_bytes = self.limit.resolve(&**upstream.driver())?;
        Ok(LimitingResourceAdaptor::said(upstream, limit_bytes, self.limit))
    }
}

pub(crate) const ENTRY: LayerEntry = LayerEntry {
    name: "limiting",
    about: "limits the live bytes",
    params: &[(
        "limit",
        "the most live bytes: a size, or a percentage of the device's free memory; required",
    )],
    kind: LayerKind::ReadLayer(read),
};

fn read<'a>(params: &Params<'a>) -> Result<LayerBuilder<'a>> {
    let limit: ByteSize = params.get("limit")?.ok_or_else(|| {
        Error::invalid_stack(
            "`limiting` needs a limit; write for example `limiting:limit=8GiB` or `limit=50%`",
        )
    })?;
    Ok(Box::new(move |upstream, _| Ok(Arc::new(LimitingLayer::new(limit).layer(upstream)?))))
}
