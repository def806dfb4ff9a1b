//! Results of the driver.

use std::ffi::c_int;

/// A result of the driver; 0 is success.
pub(crate) type Code = c_int;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: Code = 2;

/// `CUDA_ERROR_NOT_FOUND`: the process calls a function although it has not loaded the driver.
pub(crate) const NOT_FOUND: Code = 500;

/// `CUDA_ERROR_NOT_SUPPORTED`.
pub(crate) const NOT_SUPPORTED: Code = 801;

/// `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`.
pub(crate) const CAPTURE_INVALIDATED: Code = 901;

/// `CUDA_ERROR_UNKNOWN`.
pub(crate) const UNKNOWN: Code = 999;
