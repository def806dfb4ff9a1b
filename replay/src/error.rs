//! The errors of reading and replaying logs.

use std::io;

use crate::log::LogError;

/// The result of reading and replaying.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a log could not be replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The log, or one row of it, cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A stack or a device is wrong, or failed.
    #[error(transparent)]
    Stack(#[from] millpond_core::Error),
    /// The blocks of a recording cannot be placed.
    #[error(transparent)]
    Placement(#[from] millpond_planning::ProblemError),
    /// A recording cannot be made a plan of the layer `plan`.
    #[error("no plan can be written: {0}")]
    Plan(#[from] millpond_planning::ProgramPlanError),
    /// The temporary file or a thread of the replay could not be created.
    #[error("{what}: {source}")]
    Io {
        /// The failed step, and the remedy.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A resource broke its contract by panicking.
    #[error("the stack panicked: {0}; this is a bug of one of its resources")]
    Panicked(String),
}

impl Error {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    pub(crate) fn panicked(payload: &(dyn std::any::Any + Send)) -> Self {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        Self::Panicked(text.unwrap_or("no message").to_owned())
    }
}

/// The input/output error inside csv's own, with its kind. csv has no other errors here: rows may have any
/// length, and the written values are plain.
pub(crate) fn csv_to_io(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}
