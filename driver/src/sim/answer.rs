use millpond_core::DriverError;

/// Why a call is refused: CUDA's code, and what is known besides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    code: i32,
    detail: String,
}

/// What the simulated device answers to a call.
pub(super) type Answer<T> = Result<T, Refusal>;

impl Refusal {
    pub(super) fn new(code: i32, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }

    pub(super) fn invalid_value(detail: impl Into<String>) -> Self {
        Self::new(DriverError::INVALID_VALUE, detail)
    }

    pub(super) fn not_supported(detail: impl Into<String>) -> Self {
        Self::new(DriverError::NOT_SUPPORTED, detail)
    }

    /// The error of the call with this name.
    pub(super) fn named(self, call: &'static str) -> DriverError {
        DriverError::new(self.code, call).with_detail(self.detail)
    }
}
