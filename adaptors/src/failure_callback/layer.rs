//! The layer that calls a function when memory is out. A stack's text cannot name it, because text cannot
//! name a function.

use millpond_core::{DeviceMemoryResource, FailureTally, Layer, Result};

use super::{FailedRequest, FailureCallbackResourceAdaptor};

/// Puts a [`FailureCallbackResourceAdaptor`] on top of a resource.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct FailureCallbackLayer<F> {
    callback: F,
    max_retries: u32,
}

impl<F: Fn(&FailedRequest<'_>) -> bool + 'static> FailureCallbackLayer<F> {
    /// The largest number of retries of one request, unless [`max_retries`](Self::max_retries) sets another
    /// number.
    pub const DEFAULT_MAX_RETRIES: u32 = 10;

    /// Creates a layer that calls `callback` when the upstream is out of memory. If `callback` returns true,
    /// the adaptor retries the request.
    pub fn new(callback: F) -> Self {
        Self { callback, max_retries: Self::DEFAULT_MAX_RETRIES }
    }

    /// Sets the largest number of retries of one request.
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
            failures: FailureTally::default(),
        })
    }
}
