//! The layer that adds a lock, and its parameters in text.

use std::sync::Arc;
use std::time::Duration;

use millpond_core::stack::{LayerBuilder, LayerEntry, LayerKind, Params};
use millpond_core::{DeviceMemoryResource, Layer, Result};

use super::ThreadSafeResourceAdaptor;
use crate::timeout::{self, Timeout};

/// Puts a [`ThreadSafeResourceAdaptor`] on top of a resource.
///
#[doc = include_str!("../../layers/thread_safe.md")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct ThreadSafeLayer {
    patience: Duration,
}

impl Default for ThreadSafeLayer {
    fn default() -> Self {
        Self { patience: Self::DEFAULT_PATIENCE }
    }
}

impl ThreadSafeLayer {
    /// The longest time that a call waits for a call of another thread, unless [`patience`](Self::patience)
    /// sets another time.
    pub const DEFAULT_PATIENCE: Duration = timeout::DEFAULT_PATIENCE;

    /// Creates a layer whose calls wait at most [`DEFAULT_PATIENCE`](Self::DEFAULT_PATIENCE) for a call of
    /// another thread.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the longest time that a call waits for a call of another thread. The time may be up to an hour,
    /// in whole microseconds. After this time, the waiting call fails with
    /// [`Busy`](millpond_core::ErrorKind::Busy). Choose a time that is longer than any call of the resources
    /// below. For example, a free may wait for the device.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }
}

/// # Errors
/// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) for a patience of more than an hour.
impl<R: DeviceMemoryResource + Send> Layer<R> for ThreadSafeLayer {
    type Resource = ThreadSafeResourceAdaptor<R>;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        Ok(ThreadSafeResourceAdaptor::with_patience(upstream, Timeout::new(self.patience)?))
    }
}

pub(crate) const ENTRY: LayerEntry = LayerEntry {
    name: "thread_safe",
    about: "lets one thread at a time use the resource below",
    params: &[("patience", "the longest wait for another thread's call: 60s (default), 500ms")],
    kind: LayerKind::ReadLayer(read),
};

fn read<'a>(params: &Params<'a>) -> Result<LayerBuilder<'a>> {
    let patience = params.get::<Timeout>("patience")?;
    let patience = patience.map_or(ThreadSafeLayer::DEFAULT_PATIENCE, |patience| patience.0);
    let layer = ThreadSafeLayer::new().patience(patience);
    Ok(Box::new(move |upstream, _| Ok(Arc::new(layer.layer(upstream)?))))
}
