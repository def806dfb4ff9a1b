//! The results of simulated calls.

use millpond_core::DriverError;

/// The reason why a call is refused: CUDA's code, and details.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    code: i32,
    detail: String,
}

/// The result of a call on the simulated device.
pub(crate) type Answer<T> = Result<T, Refusal>;

impl Refusal {
    pub(crate) fn new(code: i32, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }

    pub(crate) fn invalid_value(detail: impl Into<String>) -> Self {
        Self::new(DriverError::INVALID_VALUE, detail)
    }

    pub(crate) fn not_supported(detail: impl Into<String>) -> Self {
        Self::new(DriverError::NOT_SUPPORTED, detail)
    }

    /// The refusal as an error of the call with this name.
    pub(crate) fn named(self, call: &'static str) -> DriverError {
        DriverError::new(self.code, call).with_detail(self.detail)
    }
}

/// Refuses a request for no bytes, as CUDA does.
pub(crate) fn not_empty(bytes: u64) -> Answer<()> {
    if bytes == 0 { Err(Refusal::invalid_value("CUDA has no memory of 0 bytes")) } else { Ok(()) }
}
