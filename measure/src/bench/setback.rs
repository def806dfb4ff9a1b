//! The reason why a workload on a stack has no figures.

use super::Status;

/// The result of one workload on one stack. If it fails, other workloads and stacks still run.
pub(super) type Attempt<T> = std::result::Result<T, Setback>;

/// The reason why one workload on one stack has no figures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Setback {
    pub(super) status: Status,
    pub(super) reason: String,
}

impl Setback {
    pub(super) fn skipped(reason: String) -> Self {
        Self { status: Status::Skipped, reason }
    }

    pub(super) fn failed(reason: String) -> Self {
        Self { status: Status::Failed, reason }
    }
}

impl From<millpond_engine::Error> for Setback {
    fn from(error: millpond_engine::Error) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<millpond_core::Error> for Setback {
    fn from(error: millpond_core::Error) -> Self {
        Self::failed(error.to_string())
    }
}
