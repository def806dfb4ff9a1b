use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use millpond_core::stack::{LayerEntry, LayerKind, LayerSpec, Params, StackSpec};
use millpond_core::{AnyResource, DeviceMemoryResource, Error, ErrorKind, Layer, Result};

use super::journal::Journal;
use super::sink::Sink;
use super::{LoggingResourceAdaptor, files};

/// The variables that name the log, in the order in which they are asked.
pub const FILE_VARIABLES: [&str; 2] = ["MILLPOND_LOG_FILE", "RMM_LOG_FILE"];

/// Adds a [`LoggingResourceAdaptor`]; says where the log goes and what it looks like.
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

/// Which columns a log has.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Columns {
    /// RMM's six: [`HEADER`](super::HEADER).
    #[default]
    Rmm,
    /// RMM's six and five further ones: [`EXTENDED_HEADER`](super::EXTENDED_HEADER).
    Extended,
}

/// When rows leave the process.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Flush {
    /// Each row is written and flushed before the call that it is about returns: one system call a row, and
    /// a log that is complete whatever becomes of the process.
    #[default]
    EveryRow,
    /// Rows are written in blocks of 64 KiB, by [`flush`](LoggingResourceAdaptor::flush) and on drop, which
    /// gives up if the destination takes nothing for 10 seconds. What is in the buffer when a
    /// process aborts, is killed, or exits without dropping the adaptor, is lost. A forked child leaves the
    /// rows that wait to its parent, and appends its own to the log, as with [`EveryRow`](Self::EveryRow).
    Buffered,
    /// Rows wait in a queue and are written by a thread of the log's own, some milliseconds later: the call
    /// pays for the clock and the queue only. A full queue makes callers wait; no row is dropped. Everything
    /// is written before [`flush`](LoggingResourceAdaptor::flush) and drop return, and before the process
    /// exits, whether by the end of `main`, by `exit` or by a panic; drop and exit give up if the destination
    /// takes nothing for 10 seconds, for instance a pipe whose reader stopped. What waits when a process
    /// aborts, is killed, or leaves by `_exit` is lost. Not for a process that forks and goes on allocating
    /// in the child.
    Async,
}

impl LoggingLayer {
    /// RMM's columns, each row flushed, to the file that `MILLPOND_LOG_FILE` or `RMM_LOG_FILE` names.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes to this file. What it held is lost, unless another adaptor of this process writes it at the
    /// moment: then both write one log, with one header, and must ask for the same columns and the same
    /// flush. A file that another process writes is refused, where the file system has locks. A forked child
    /// does not count: once the process that opened the file has closed it, another may empty it, although
    /// the child still writes.
    ///
    /// Rows of several devices are told apart by [`Columns::Extended`].
    #[must_use]
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.destination = Destination::File(path.into());
        self
    }

    /// Writes to this writer. It gets whole rows; one that fails loses them.
    #[must_use]
    pub fn writer(mut self, writer: impl Write + Send + 'static) -> Self {
        self.destination = Destination::Writer(Box::new(writer));
        self
    }

    /// Which columns are written.
    #[must_use]
    pub fn columns(mut self, columns: Columns) -> Self {
        self.columns = columns;
        self
    }

    /// When rows leave the process.
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

/// Where a log goes that goes to no file, in text.
const WRITER: &str = "writer";

/// What an adaptor keeps of its layer; prints itself as text names the layer.
#[derive(Debug)]
pub(super) struct Settings {
    /// The file, if it is one.
    path: Option<PathBuf>,
    pub(super) columns: Columns,
    pub(super) flush: Flush,
}

impl Settings {
    /// Where the log goes, for people.
    pub(super) fn name(&self) -> String {
        self.path.as_ref().map_or("its writer".to_owned(), |path| format!("`{}`", path.display()))
    }

    /// Two logs of one stack in one file: a region of a pool and its first block have one address.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if a resource below writes the same file.
    pub(super) fn check_not_below(&self, upstream: &impl fmt::Display) -> Result<()> {
        // A resource of somebody's own may print what is no stack; it is not known what that logs.
        let below: Option<StackSpec> = upstream.to_string().parse().ok();
        let layers = below.iter().flat_map(StackSpec::all_layers).filter(|layer| layer.name == ENTRY.name);
        let files = layers.filter_map(|layer| layer.param("file")?.as_text());
        let mine = self.path.as_ref().and_then(|path| path.canonicalize().ok()).filter(|path| path.is_file());
        for file in files {
            if mine.is_some() && Path::new(file).canonicalize().ok() == mine {
                return Err(Error::invalid_argument(format!(
                    "`{upstream}` writes the allocation log {} already, and rows of both would name the same \
                     addresses; choose another file",
                    self.name()
                )));
            }
        }
        Ok(())
    }

    pub(super) fn unwritable(&self, error: io::Error) -> Error {
        let log = self.name();
        let message = format!("the allocation log cannot be written to {log}; choose another file");
        Error::new(ErrorKind::Io, message).caused_by(error)
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut layer = LayerSpec::new(ENTRY.name);
        layer = match &self.path {
            Some(path) => layer.with("file", path.display().to_string()),
            None => layer.with("to", WRITER),
        };
        if self.columns != Columns::default() {
            layer = layer.with("columns", self.columns.to_string());
        }
        if self.flush != Flush::default() {
            layer = layer.with("flush", self.flush.to_string());
        }
        layer.fmt(f)
    }
}

/// The file that the environment names: `MILLPOND_LOG_FILE`, else `RMM_LOG_FILE`.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) if neither is set, or both are empty.
pub fn default_file_name() -> Result<PathBuf> {
    file_name_from(|name| std::env::var_os(name))
}

pub(super) fn file_name_from(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    let set = FILE_VARIABLES.into_iter().filter_map(variable).find(|value| !value.is_empty());
    set.map(PathBuf::from).ok_or_else(|| {
        Error::invalid_argument(
            "the allocation log has no file; name one (`logging:file=log.csv`), or set MILLPOND_LOG_FILE",
        )
    })
}

impl<R: DeviceMemoryResource> Layer<R> for LoggingLayer {
    type Resource = LoggingResourceAdaptor<R>;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        LoggingResourceAdaptor::new(upstream, self)
    }
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

impl FromStr for Columns {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "rmm" => Ok(Self::Rmm),
            "extended" => Ok(Self::Extended),
            _ => Err(Error::invalid_argument("write rmm or extended")),
        }
    }
}

impl fmt::Display for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rmm => "rmm",
            Self::Extended => "extended",
        })
    }
}

impl FromStr for Flush {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "row" => Ok(Self::EveryRow),
            "buffered" => Ok(Self::Buffered),
            "async" => Ok(Self::Async),
            _ => Err(Error::invalid_argument("write row, buffered or async")),
        }
    }
}

impl fmt::Display for Flush {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EveryRow => "row",
            Self::Buffered => "buffered",
            Self::Async => "async",
        })
    }
}

pub(crate) const ENTRY: LayerEntry = LayerEntry {
    name: "logging",
    about: "writes a CSV row for every call, as RMM does",
    params: &[
        ("file", "where to (default: the file that MILLPOND_LOG_FILE or RMM_LOG_FILE names)"),
        (
            "columns",
            "rmm (as RMM's logs, the default) or extended (device, alignment, clock and duration too)",
        ),
        (
            "flush",
            "row (nothing is lost in an abort, the default), async (by a thread of its own) or \
             buffered (in blocks of 64 KiB; lost in an abort)",
        ),
        ("to", "writer, where a program gave one of its own (default: a file); cannot be built from text"),
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
