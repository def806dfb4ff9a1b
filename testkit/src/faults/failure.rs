//! The report of a failed run.

use std::fmt;

use super::kind::FaultKind;

/// A failing driver call, and the error that it led to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failure {
    /// The name of the stack or operation.
    pub subject: String,
    /// The number of the failing driver call, counted from 0; `None` in the run in which no call fails.
    pub call: Option<u64>,
    /// How the call failed.
    pub kind: FaultKind,
    /// The message.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, call, kind, message } = self;
        write!(f, "`{subject}`, ")?;
        match call {
            None => f.write_str("no driver call failing")?,
            Some(call) => write!(f, "driver call {call} failing: {kind}")?,
        }
        write!(f, ": {message}")
    }
}

impl std::error::Error for Failure {}
