//! The layer that uses another resource when memory is out, and its parameters in text.

use std::sync::Arc;

use millpond_core::stack::{LayerBuilder, LayerEntry, LayerKind, Params};
use millpond_core::{AnyResource, DeviceMemoryResource, Error, Layer, Result};

use super::FallbackResourceAdaptor;

/// Puts a [`FallbackResourceAdaptor`] on top of a resource.
///
#[doc = include_str!("../../layers/fallback.md")]
#[derive(Clone, Debug)]
pub struct FallbackLayer<F = AnyResource> {
    fallback: F,
}

impl<F: DeviceMemoryResource> FallbackLayer<F> {
    /// Creates a layer that allocates from `fallback` when the upstream is out of memory.
    pub fn new(fallback: F) -> Self {
        Self { fallback }
    }
}

impl<R: DeviceMemoryResource, F: DeviceMemoryResource> Layer<R> for FallbackLayer<F> {
    type Resource = FallbackResourceAdaptor<R, F>;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        FallbackResourceAdaptor::new(upstream, self.fallback)
    }
}

pub(crate) const ENTRY: LayerEntry = LayerEntry {
    name: "fallback",
    about: "allocates from another stack when the stack below is out of memory",
    params: &[("to", "the other stack in parentheses, such as to=(managed); required")],
    kind: LayerKind::ReadLayer(read),
};

fn read<'a>(params: &Params<'a>) -> Result<LayerBuilder<'a>> {
    let fallback = params.stack("to")?.ok_or_else(|| {
        Error::invalid_stack(
            "`fallback` needs another stack in parentheses; write for example `fallback:to=(managed)`",
        )
    })?;
    Ok(Box::new(move |upstream, building| {
        let fallback = fallback.build(upstream.driver(), building)?;
        Ok(Arc::new(FallbackLayer::new(fallback).layer(upstream)?))
    }))
}
