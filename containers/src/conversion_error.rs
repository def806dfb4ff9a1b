//! The error of a conversion that took a value; it returns the value.

use std::fmt;

use millpond_core::Error;

/// The error of a failed conversion. It contains the reason, and the value that was not converted.
///
/// `?` turns this error into an [`Error`], and drops the value.
///
/// ```no_run
/// use millpond_containers::{CudaBuffer, DeviceVec};
/// use millpond_driver::cuda::cudarc::driver::CudaStream;
/// use std::sync::Arc;
///
/// fn for_kernels(values: DeviceVec<f32>, stream: &Arc<CudaStream>) -> Option<CudaBuffer<f32>> {
///     match CudaBuffer::from_vec(values, stream) {
///         Ok(buffer) => Some(buffer),
///         Err(error) => {
///             let (error, values) = error.into_parts();
///             println!("{error}; the values are still there: {:?}", values.to_host());
///             None
///         }
///     }
/// }
/// ```
pub struct ConversionError<V> {
    error: Error,
    /// Boxed, so that results stay small.
    value: Box<V>,
}

impl<V> ConversionError<V> {
    pub(crate) fn new(error: Error, value: V) -> Self {
        Self { error, value: Box::new(value) }
    }

    /// Returns the reason for the failure.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Returns the value that was not converted, unchanged.
    pub fn into_value(self) -> V {
        *self.value
    }

    /// Returns the reason for the failure, and the unchanged value.
    pub fn into_parts(self) -> (Error, V) {
        (self.error, *self.value)
    }
}

impl<V> From<ConversionError<V>> for Error {
    fn from(error: ConversionError<V>) -> Self {
        error.error
    }
}

impl<V> fmt::Display for ConversionError<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<V> fmt::Debug for ConversionError<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConversionError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<V> std::error::Error for ConversionError<V> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}
