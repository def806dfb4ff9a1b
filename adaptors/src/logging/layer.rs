//! The layer that adds a log to a resource.

use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use millpond_core::stack::{FilePath, FilePlace};
use millpond_core::{DeviceId, Error, Result, environment};

use super::files::{self, OpenLog};
use super::journal::Journal;
use super::settings::{Columns, File, Flush, Settings};
use super::sink::Sink;
use super::status::Status;

/// The environment variables that can name the file of the log. If both variables are set, the first variable
/// is used.
pub const FILE_VARIABLES: [&str; 2] = ["MILLPOND_LOG_FILE", "RMM_LOG_FILE"];

/// Puts a [`LoggingResourceAdaptor`](super::LoggingResourceAdaptor) on top of a resource. The layer contains
/// the destination and the format of the log.
///
/// ```no_run
/// use millpond_adaptors::logging::{Columns, LoggingLayer};
/// let layer = LoggingLayer::new().file("allocations.csv").columns(Columns::Extended);
/// ```
///
#[doc = include_str!("../../layers/logging.md")]
#[derive(Default)]
pub struct LoggingLayer {
    destination: Destination,
    columns: Columns,
    flush: Flush,
}

#[derive(Default)]
enum Destination {
    #[default]
    Environment,
    File(FilePath),
    Writer(Box<dyn Write + Send>),
}

impl LoggingLayer {
    /// Creates a layer that writes RMM's columns, and flushes each row. The environment variable
    /// `MILLPOND_LOG_FILE` or `RMM_LOG_FILE` names the file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes the log to the file `path`, and overwrites the contents of the file. If two adaptors of one
    /// process write to the same file, they share one log with one header. In this case, the two adaptors
    /// must have the same columns and the same [`Flush`].
    ///
    /// If another process writes to the file, building the layer fails, provided that the file system
    /// supports locks. The lock belongs to the process that opened the file, not to the forked children of
    /// this process. After this process has closed the file, another process may empty the file, even if a
    /// child still writes to it.
    ///
    /// Missing folders are created. In the path, `{pid}` stands for the number of the process, `{rank}` for
    /// its number in the job, and `{device}` for the number of the device ([`FilePath`]). In a job of several
    /// processes, the path needs `{pid}` or `{rank}`. If several devices share a log, [`Columns::Extended`]
    /// tells their rows apart.
    #[must_use]
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.destination = Destination::File(FilePath::new(path));
        self
    }

    /// Writes to this file, whose path was read from text.
    pub(super) fn path(mut self, path: FilePath) -> Self {
        self.destination = Destination::File(path);
        self
    }

    /// Writes the log to `writer`. Each write passes whole rows. If a write fails, its rows are lost. The
    /// writer may use the stack that the adaptor logs: see
    /// [`LoggingResourceAdaptor`](super::LoggingResourceAdaptor).
    #[must_use]
    pub fn writer(mut self, writer: impl Write + Send + 'static) -> Self {
        self.destination = Destination::Writer(Box::new(writer));
        self
    }

    /// Sets the columns of the log.
    #[must_use]
    pub fn columns(mut self, columns: Columns) -> Self {
        self.columns = columns;
        self
    }

    /// Sets when rows reach the destination.
    #[must_use]
    pub fn flush(mut self, flush: Flush) -> Self {
        self.flush = flush;
        self
    }

    /// Creates the log of a stack over `upstream` on this device. The step opens the log's file.
    pub(super) fn make(
        self,
        upstream: &impl fmt::Display,
        device: DeviceId,
    ) -> Result<(Arc<Journal>, Settings, Option<OpenLog>)> {
        let Self { destination, columns, flush } = self;
        let given = match destination {
            Destination::Writer(writer) => {
                let settings = Settings { file: None, columns, flush };
                let sink = Sink::new(writer, Status::new("writer", true), flush);
                let journal = Journal::open(sink, &settings).map_err(|error| settings.unwritable(error))?;
                return Ok((journal, settings, None));
            }
            Destination::File(path) => path,
            Destination::Environment => FilePath::new(default_file_name()?),
        };
        let file = File::new(&given, device)?;
        let path = file.path.clone();
        let settings = Settings { file: Some(file), columns, flush };
        settings.check_not_below(upstream, device, FilePlace::is_same)?;
        let (journal, step) = files::journal(&path, &settings)?;
        Ok((journal, settings, Some(step)))
    }
}

/// Returns the file that `MILLPOND_LOG_FILE` names. If this variable is unset or empty, returns the file that
/// `RMM_LOG_FILE` names.
///
/// # Errors
/// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if both variables are unset or empty.
pub fn default_file_name() -> Result<PathBuf> {
    file_name_from(|name| environment::variable(name))
}

pub(super) fn file_name_from(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    FILE_VARIABLES.into_iter().filter_map(variable).find_map(environment::set).map(PathBuf::from).ok_or_else(
        || {
            Error::invalid_argument(
                "the allocation log has no file; name one (`logging:file=log.csv`), or set MILLPOND_LOG_FILE",
            )
        },
    )
}

impl fmt::Debug for LoggingLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let destination: &dyn fmt::Debug = match &self.destination {
            Destination::Environment => &"environment",
            Destination::File(file) => file,
            Destination::Writer(_) => &"writer",
        };
        f.debug_struct("LoggingLayer")
            .field("destination", destination)
            .field("columns", &self.columns)
            .field("flush", &self.flush)
            .finish()
    }
}
