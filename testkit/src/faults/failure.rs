//! The report of a run that went wrong.

use std::fmt;

use super::kind::FaultKind;

/// A call that failed, and the error that followed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The name of the stack or the operation.
    pub subject: String,
    /// The number of the driver call that failed, from 0; `None` in the run without a failing call.
    pub call: Option<u64>,
    /// The way in which it failed.
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
