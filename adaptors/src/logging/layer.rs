//! The layer that puts a log on a resource, and its parameters in text.

use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use millpond_core::stack::{LayerEntry, LayerKind, Params};
use millpond_core::{AnyResource, Error, Layer, Result, environment};

use super::files;
use super::journal::Journal;
use super::settings::{Columns, Flush, Settings};
use super::sink::Sink;

/// The variables that name the log, in the order in which they are read.
pub const FILE_VARIABLES: [&str; 2] = ["MILLPOND_LOG_FILE", "RMM_LOG_FILE"];

/// Adds a [`LoggingResourceAdaptor`](super::LoggingResourceAdaptor); holds the destination and the format of
/// the log.
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
    File(PathBuf),
    Writer(Box<dyn Write + Send>),
}

impl LoggingLayer {
    /// RMM's columns, each row flushed, to the file that `MILLPOND_LOG_FILE` or `RMM_LOG_FILE` names.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes to this file. Its contents are lost, unless another adaptor of this process is writing it: then
    /// both write one log, with one header, and must ask for the same columns and the same flush. A file that
    /// another process writes is refused, if the file system has locks. A forked child does not count: once
    /// the process that opened the file has closed it, another may empty it, although the child still writes.
    ///
    /// [`Columns::Extended`] distinguishes rows of several devices.
    #[must_use]
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.destination = Destination::File(path.into());
        self
    }

    /// Writes to this writer. It gets whole rows; a failed write loses them.
    #[must_use]
    pub fn writer(mut self, writer: impl Write + Send + 'static) -> Self {
        self.destination = Destination::Writer(Box::new(writer));
        self
    }

    /// Sets the columns.
    #[must_use]
    pub fn columns(mut self, columns: Columns) -> Self {
        self.columns = columns;
        self
    }

    /// Sets when rows leave the process.
    #[must_use]
    pub fn flush(mut self, flush: Flush) -> Self {
        self.flush = flush;
        self
    }

    /// Opens the destination.
    pub(super) fn open(self) -> Result<(Arc<Journal>, Settings)> {
        let Self { destination, columns, flush } = self;
        let path = match destination {
            Destination::Writer(writer) => {
                let settings = Settings { path: None, columns, flush };
                let sink = Sink::new(writer, "writer".to_owned(), flush);
                let journal = Journal::open(sink, &settings);
                return Ok((journal.map_err(|error| settings.unwritable(error))?, settings));
            }
            Destination::File(path) => path,
            Destination::Environment => default_file_name()?,
        };
        if path.to_str().is_none() {
            return Err(Error::invalid_argument(format!(
                "the path of the allocation log, `{}`, is not UTF-8, and no text can name it; choose another",
                path.display()
            )));
        }
        let settings = Settings { path: Some(path.clone()), columns, flush };
        Ok((files::journal(&path, &settings)?, settings))
    }
}

/// The file that the environment names: `MILLPOND_LOG_FILE`, else `RMM_LOG_FILE`.
///
/// # Errors
/// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if neither is set, or both are empty.
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
            Destination::File(path) => path,
            Destination::Writer(_) => &"writer",
        };
        f.debug_struct("LoggingLayer")
            .field("destination", destination)
            .field("columns", &self.columns)
            .field("flush", &self.flush)
            .finish()
    }
}

pub(crate) const ENTRY: LayerEntry = LayerEntry {
    name: "logging",
    about: "writes a CSV row for every call, as RMM does",
    params: &[
        ("file", "the file (default: the one that MILLPOND_LOG_FILE or RMM_LOG_FILE names)"),
        ("columns", "rmm (the default) or extended (also device, alignment, sequence, clock and duration)"),
        (
            "flush",
            "row (the default: an abort loses no row), async (a thread of the log writes rows) or \
             buffered (rows are written in blocks of 64 KiB); an abort loses rows that wait",
        ),
        ("to", "writer, for a program's own writer (default: a file); cannot be built from text"),
    ],
    kind: LayerKind::Layer(build),
};

fn build(params: &Params<'_>, upstream: AnyResource) -> Result<AnyResource> {
    let mut layer = LoggingLayer::new()
        .columns(params.get("columns")?.unwrap_or_default())
        .flush(params.get("flush")?.unwrap_or_default());
    if params.text("to")?.is_some() {
        return Err(Error::invalid_stack(
            "a log that goes to a program's own writer cannot be built from text; write file=log.csv instead",
        ));
    }
    if let Some(file) = params.text("file")? {
        layer = layer.file(file);
    }
    Ok(Arc::new(layer.layer(upstream)?))
}
