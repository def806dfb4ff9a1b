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
    /// A stack or a device is invalid, or a call of it failed.
    #[error(transparent)]
    Stack(#[from] millpond_core::Error),
    /// The temporary file or a thread of the replay could not be created.
    #[error("{what}: {source}")]
    Io {
        /// The step that failed, and the remedy.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A resource broke its contract: it panicked.
    #[error("the stack panicked: {0}; this is a bug in one of its resources")]
    Panicked(String),
}

impl Error {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    /// Returns the error for a panic with this payload.
    pub fn panicked(payload: &(dyn std::any::Any + Send)) -> Self {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        Self::Panicked(text.unwrap_or("no message").to_owned())
    }
}

/// Returns the I/O error inside an error of the crate `csv`, with its kind, which `io::Error::from` loses.
/// `csv` has no other errors if rows may have any length and the written values are plain.
pub fn csv_to_io(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}
