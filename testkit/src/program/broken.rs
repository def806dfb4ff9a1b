//! A rule broken by a resource.

use super::FailureKind;

/// A broken rule.
#[derive(Debug)]
pub(super) struct Broken {
    pub(super) kind: FailureKind,
    pub(super) message: String,
}

impl Broken {
    pub(super) fn new(kind: FailureKind, message: impl ToString) -> Self {
        Self { kind, message: message.to_string() }
    }
}

pub(super) type Checks = Result<(), Broken>;

/// An error without a cause.
pub(super) fn unexpected(error: impl ToString) -> Broken {
    Broken::new(FailureKind::UnexpectedError, error)
}
