//! The errors of driver calls.

use std::fmt;

/// The result of a driver call.
pub type DriverResult<T> = Result<T, DriverError>;

/// An error of a driver call: CUDA's error code, and the name of the function that failed.
///
/// The simulated device uses the same error codes.
///
/// ```
/// use millpond_core::DriverError;
/// let error = DriverError::new(2, "cuMemAlloc");
/// assert!(error.is_out_of_memory());
/// assert_eq!(error.to_string(), "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DriverError {
    code: i32,
    call: &'static str,
    detail: Option<String>,
}

impl DriverError {
    /// `CUDA_ERROR_INVALID_VALUE`.
    pub const INVALID_VALUE: i32 = 1;
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub const OUT_OF_MEMORY: i32 = 2;
    /// `CUDA_ERROR_NOT_INITIALIZED`.
    pub const NOT_INITIALIZED: i32 = 3;
    /// `CUDA_ERROR_DEINITIALIZED`: the driver is shutting down.
    pub const DEINITIALIZED: i32 = 4;
    /// `CUDA_ERROR_NO_DEVICE`.
    pub const NO_DEVICE: i32 = 100;
    /// `CUDA_ERROR_INVALID_DEVICE`.
    pub const INVALID_DEVICE: i32 = 101;
    /// `CUDA_ERROR_INVALID_CONTEXT`.
    pub const INVALID_CONTEXT: i32 = 201;
    /// `CUDA_ERROR_ECC_UNCORRECTABLE`; sticky.
    pub const ECC_UNCORRECTABLE: i32 = 214;
    /// `CUDA_ERROR_INVALID_HANDLE`.
    pub const INVALID_HANDLE: i32 = 400;
    /// `CUDA_ERROR_ILLEGAL_STATE`.
    pub const ILLEGAL_STATE: i32 = 401;
    /// `CUDA_ERROR_NOT_FOUND`.
    pub const NOT_FOUND: i32 = 500;
    /// `CUDA_ERROR_NOT_READY`.
    pub const NOT_READY: i32 = 600;
    /// `CUDA_ERROR_ILLEGAL_ADDRESS`; sticky.
    pub const ILLEGAL_ADDRESS: i32 = 700;
    /// `CUDA_ERROR_CONTEXT_IS_DESTROYED`: the device's context was reset.
    pub const CONTEXT_IS_DESTROYED: i32 = 709;
    /// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`.
    pub const HOST_MEMORY_ALREADY_REGISTERED: i32 = 712;
    /// `CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED`.
    pub const HOST_MEMORY_NOT_REGISTERED: i32 = 713;
    /// `CUDA_ERROR_NOT_PERMITTED`.
    pub const NOT_PERMITTED: i32 = 800;
    /// `CUDA_ERROR_NOT_SUPPORTED`.
    pub const NOT_SUPPORTED: i32 = 801;
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`.
    pub const STREAM_CAPTURE_UNSUPPORTED: i32 = 900;
    /// `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`: an earlier call invalidated the capture.
    pub const STREAM_CAPTURE_INVALIDATED: i32 = 901;
    /// `CUDA_ERROR_STREAM_CAPTURE_UNMATCHED`: the capture began on another stream.
    pub const STREAM_CAPTURE_UNMATCHED: i32 = 903;
    /// `CUDA_ERROR_STREAM_CAPTURE_UNJOINED`.
    pub const STREAM_CAPTURE_UNJOINED: i32 = 904;
    /// `CUDA_ERROR_STREAM_CAPTURE_ISOLATION`.
    pub const STREAM_CAPTURE_ISOLATION: i32 = 905;
    /// `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`: the call uses the legacy default stream while a blocking stream
    /// captures.
    pub const STREAM_CAPTURE_IMPLICIT: i32 = 906;
    /// `CUDA_ERROR_CAPTURED_EVENT`: the event was last recorded in a capture.
    pub const CAPTURED_EVENT: i32 = 907;
    /// `CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD`.
    pub const STREAM_CAPTURE_WRONG_THREAD: i32 = 908;
    /// No CUDA driver library is installed. This code is millpond's own.
    pub const NO_LIBRARY: i32 = -1;
    /// The installed driver does not have the function. This code is millpond's own.
    pub const NO_SYMBOL: i32 = -2;

    /// Creates an error with CUDA's error code `code`, returned by the function `call`.
    pub const fn new(code: i32, call: &'static str) -> Self {
        Self { code, call, detail: None }
    }

    /// Adds `detail` to the error's message.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Returns CUDA's error code. The code is negative if it is millpond's own.
    pub const fn code(&self) -> i32 {
        self.code
    }

    /// Returns the name of the driver function that failed.
    pub const fn call(&self) -> &'static str {
        self.call
    }

    /// Returns whether the error means that the driver is out of memory.
    pub const fn is_out_of_memory(&self) -> bool {
        self.code == Self::OUT_OF_MEMORY
    }

    /// Returns whether the error means that there is no driver or no such device.
    pub const fn is_unavailable(&self) -> bool {
        matches!(self.code, Self::NO_LIBRARY | Self::NO_DEVICE | Self::INVALID_DEVICE | 34 | 999 | 803 | 804)
    }

    /// Returns whether the error means that the driver or the device does not support the call.
    pub const fn is_unsupported(&self) -> bool {
        matches!(self.code, Self::NO_SYMBOL | Self::NOT_SUPPORTED)
    }

    /// Returns whether the driver refused the call because a graph is being captured. The same call may
    /// succeed after the capture.
    pub const fn is_capture_refusal(&self) -> bool {
        matches!(self.code, 900..=908)
    }

    /// Returns whether the error means that the context is lost. After such an error, every later call in the
    /// context fails in the same way.
    pub const fn is_sticky(&self) -> bool {
        matches!(self.code, 4 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721)
    }

    /// Returns CUDA's name of the error code.
    pub const fn name(&self) -> &'static str {
        match self.code {
            Self::NO_LIBRARY => "no CUDA driver is installed",
            Self::NO_SYMBOL => "the installed CUDA driver lacks this function",
            1 => "CUDA_ERROR_INVALID_VALUE",
            2 => "CUDA_ERROR_OUT_OF_MEMORY",
            3 => "CUDA_ERROR_NOT_INITIALIZED",
            4 => "CUDA_ERROR_DEINITIALIZED",
            34 => "CUDA_ERROR_STUB_LIBRARY",
            46 => "CUDA_ERROR_DEVICE_UNAVAILABLE",
            100 => "CUDA_ERROR_NO_DEVICE",
            101 => "CUDA_ERROR_INVALID_DEVICE",
            200 => "CUDA_ERROR_INVALID_IMAGE",
            201 => "CUDA_ERROR_INVALID_CONTEXT",
            205 => "CUDA_ERROR_MAP_FAILED",
            208 => "CUDA_ERROR_ALREADY_MAPPED",
            214 => "CUDA_ERROR_ECC_UNCORRECTABLE",
            218 => "CUDA_ERROR_INVALID_PTX",
            220 => "CUDA_ERROR_NVLINK_UNCORRECTABLE",
            400 => "CUDA_ERROR_INVALID_HANDLE",
            401 => "CUDA_ERROR_ILLEGAL_STATE",
            500 => "CUDA_ERROR_NOT_FOUND",
            600 => "CUDA_ERROR_NOT_READY",
            700 => "CUDA_ERROR_ILLEGAL_ADDRESS",
            702 => "CUDA_ERROR_LAUNCH_TIMEOUT",
            709 => "CUDA_ERROR_CONTEXT_IS_DESTROYED",
            710 => "CUDA_ERROR_ASSERT",
            712 => "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
            713 => "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
            714 => "CUDA_ERROR_HARDWARE_STACK_ERROR",
            715 => "CUDA_ERROR_ILLEGAL_INSTRUCTION",
            716 => "CUDA_ERROR_MISALIGNED_ADDRESS",
            719 => "CUDA_ERROR_LAUNCH_FAILED",
            800 => "CUDA_ERROR_NOT_PERMITTED",
            801 => "CUDA_ERROR_NOT_SUPPORTED",
            803 => "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            804 => "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
            900 => "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
            901 => "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
            902 => "CUDA_ERROR_STREAM_CAPTURE_MERGE",
            903 => "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
            904 => "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
            905 => "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
            906 => "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
            907 => "CUDA_ERROR_CAPTURED_EVENT",
            908 => "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
            999 => "CUDA_ERROR_UNKNOWN",
            _ => "an error code that this version of millpond does not know",
        }
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.call, self.name(), self.code)?;
        match &self.detail {
            Some(detail) => write!(f, ": {detail}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for DriverError {}
