//! The layer that calls a function where memory is out. Text cannot name a function, so it has no text.

use millpond_core::{DeviceMemoryResource, Layer, Result};

use super::{FailedRequest, FailureCallbackResourceAdaptor};

/// Adds a [`FailureCallbackResourceAdaptor`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct FailureCallbackLayer<F> {
    callback: F,
    max_retries: u32,
}

impl<F: Fn(&FailedRequest<'_>) -> bool + 'static> FailureCallbackLayer<F> {
    /// The most retries of one request, unless [`max_retries`](Self::max_retries) says otherwise.
    pub const DEFAULT_MAX_RETRIES: u32 = 10;

    /// Calls `callback` where memory is out, and tries again if it returns true.
    pub fn new(callback: F) -> Self {
        Self { callback, max_retries: Self::DEFAULT_MAX_RETRIES }
    }

    /// Sets how often one request is tried again at most.
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.max_retries = retries;
        self
    }
}

impl<R: DeviceMemoryResource, F: Fn(&FailedRequest<'_>) -> bool + 'static> Layer<R>
    for FailureCallbackLayer<F>
{
    type Resource = FailureCallbackResourceAdaptor<R, F>;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        Ok(FailureCallbackResourceAdaptor {
            upstream,
            callback: self.callback,
            max_retries: self.max_retries,
        })
    }
}
