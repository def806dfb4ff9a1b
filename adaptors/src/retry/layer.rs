//! The layer that waits until other threads free memory, and its parameters in text.

use std::sync::Arc;
use std::time::Duration;

use millpond_core::stack::{LayerBuilder, LayerEntry, LayerKind, Params};
use millpond_core::{DeviceMemoryResource, Layer, Result};

use super::RetryResourceAdaptor;
use crate::timeout::{self, Timeout};

/// Puts a [`RetryResourceAdaptor`] on top of a resource.
///
#[doc = include_str!("../../layers/retry.md")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct RetryLayer {
    timeout: Duration,
}

impl Default for RetryLayer {
    fn default() -> Self {
        Self { timeout: Self::DEFAULT_TIMEOUT }
    }
}

impl RetryLayer {
    /// The longest time that a request waits, unless [`timeout`](Self::timeout) sets another time.
    pub const DEFAULT_TIMEOUT: Duration = timeout::DEFAULT_TIMEOUT;

    /// Creates a layer whose requests wait at most [`DEFAULT_TIMEOUT`](Self::DEFAULT_TIMEOUT).
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the longest time that a request waits. The time may be up to an hour, in whole microseconds.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

/// # Errors
/// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) for a timeout of more than an hour.
impl<R: DeviceMemoryResource> Layer<R> for RetryLayer {
    type Resource = RetryResourceAdaptor<R>;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        Ok(RetryResourceAdaptor::new(upstream, Timeout::new(self.timeout)?))
    }
}

pub(crate) const ENTRY: LayerEntry = LayerEntry {
    name: "retry",
    about: "when memory is out, waits until other threads free memory",
    params: &[("timeout", "the longest wait of a request: 100ms (default), 2s, 50us")],
    kind: LayerKind::ReadLayer(read),
};

fn read<'a>(params: &Params<'a>) -> Result<LayerBuilder<'a>> {
    let timeout = params.get::<Timeout>("timeout")?.map_or(RetryLayer::DEFAULT_TIMEOUT, |timeout| timeout.0);
    Timeout::new(timeout)?;
    Ok(Box::new(move |upstream, _| Ok(Arc::new(RetryLayer::new().timeout(timeout).layer(upstream)?))))
}
