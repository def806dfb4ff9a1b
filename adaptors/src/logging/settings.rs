//! The destination and the format of a log.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use millpond_core::stack::{FilePath, LayerSpec, StackSpec};
use millpond_core::{DeviceId, Error, ErrorKind, Result};

/// The name of the layer.
const LAYER: &str = "logging";

/// The columns of a log.
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
    /// Each row is written and flushed before the call that it records returns: one system call a row, and
    /// the log is complete however the process ends. Rows from inside a writer of the program's own, and rows
    /// of threads that it may be waiting for, are written after the writer has returned.
    #[default]
    EveryRow,
    /// Rows are written in blocks of 64 KiB, by [`flush`](super::LoggingResourceAdaptor::flush) and on drop,
    /// which gives up if the destination takes nothing for 10 seconds, and before the process exits, as with
    /// [`Async`](Self::Async). Buffered rows are lost when a process aborts, is killed, or leaves by `_exit`.
    /// A forked child leaves buffered rows to its
    /// parent, and appends its own to the log, as with [`EveryRow`](Self::EveryRow).
    Buffered,
    /// Rows wait in a queue and are written by threads of the log, some milliseconds later: the call pays for
    /// the clock and the queue only. A full queue makes callers wait; no row is dropped. Everything is
    /// written before [`flush`](super::LoggingResourceAdaptor::flush) and drop return, and before the process
    /// exits, whether by the end of `main`, by `exit` or by a panic; drop and exit give up if the destination
    /// takes nothing for 10 seconds, for instance a pipe whose reader stopped. Rows that wait are lost when a
    /// process aborts, is killed, or leaves by `_exit`. Not for a process that forks and goes on allocating
    /// in the child.
    Async,
}

/// The destination of a log without a file, in text.
const WRITER: &str = "writer";

/// The settings that an adaptor keeps of its layer; printed as text names the layer.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// The file, if the destination is one.
    pub(super) file: Option<File>,
    pub(super) columns: Columns,
    pub(super) flush: Flush,
}

/// The file of a log.
#[derive(Clone, Debug)]
pub(super) struct File {
    /// The path, with the names in braces replaced.
    pub(super) path: PathBuf,
    /// The path as a stack's text has it.
    pub(super) text: String,
}

impl File {
    pub(super) fn new(given: &FilePath, device: DeviceId) -> Result<Self> {
        Ok(Self { path: given.resolve(Some(device))?, text: given.to_text()? })
    }
}

impl Settings {
    /// The destination, for people.
    pub(super) fn name(&self) -> String {
        self.file.as_ref().map_or("its writer".to_owned(), |file| format!("`{}`", file.path.display()))
    }

    /// Checks that a stack does not log to one file twice: a region of a pool and its first block have one
    /// address. `is_same` says whether two paths name one file.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if a resource below writes the same file.
    pub(super) fn check_not_below(
        &self,
        upstream: &impl fmt::Display,
        device: DeviceId,
        is_same: fn(&Path, &Path) -> bool,
    ) -> Result<()> {
        let Some(mine) = &self.file else { return Ok(()) };
        // A resource of another crate may print text that is no stack; then its logs are unknown.
        let below: Option<StackSpec> = upstream.to_string().parse().ok();
        let layers = below.iter().flat_map(StackSpec::all_layers).filter(|layer| layer.name == LAYER);
        for file in layers.filter_map(|layer| layer.param("file")?.as_text()) {
            let theirs = FilePath::new(file).resolve(Some(device));
            if theirs.is_ok_and(|theirs| is_same(&mine.path, &theirs)) {
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
        let mut layer = LayerSpec::new(LAYER);
        layer = match &self.file {
            Some(file) => layer.with("file", file.text.clone()),
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
