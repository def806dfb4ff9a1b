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
#[non_exhaustive]
pub enum Columns {
    /// RMM's six columns: [`HEADER`](super::HEADER).
    #[default]
    Rmm,
    /// RMM's six columns and five more: [`EXTENDED_HEADER`](super::EXTENDED_HEADER).
    Extended,
}

/// Selects when the rows of a log reach the destination.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum Flush {
    /// Each row is written and flushed before the logged call returns. This costs one system call per row.
    /// However the process ends, the log is complete.
    ///
    /// There is one exception, if the log goes to a [writer](super::LoggingLayer::writer) of the program.
    /// While the writer runs, the rows of the writer's own calls wait until the writer returns. If the writer
    /// may be waiting for other threads, the rows of these threads also wait.
    #[default]
    EveryRow,
    /// Rows are collected in memory, and written in blocks of 64 KiB. The collected rows are also written in
    /// three cases: by [`flush`](super::LoggingResourceAdaptor::flush), when the adaptor is dropped, and
    /// before the process exits. If the destination accepts nothing for 10 seconds, the drop and the exit no
    /// longer wait for it. Rows in memory are lost if the process aborts, is killed, or leaves by `_exit`.
    ///
    /// In a forked child, the rows in memory still belong to the parent. The child appends its own rows to
    /// the log, as with [`EveryRow`](Self::EveryRow).
    Buffered,
    /// Rows wait in a queue. Threads of the log write the rows some milliseconds later. So a logged call only
    /// reads the clock and adds an entry to the queue. If the queue is full, callers wait, so no row is lost.
    ///
    /// All rows are written before [`flush`](super::LoggingResourceAdaptor::flush) returns, and before the
    /// drop of the adaptor returns. They are also written before the process exits by the end of `main`, by
    /// `exit` or by a panic. If the destination accepts nothing for 10 seconds, the drop and the exit no
    /// longer wait for it. For example, the destination may be a pipe whose reader has stopped. Rows in the
    /// queue are lost if the process aborts, is killed, or leaves by `_exit`.
    ///
    /// Do not use this mode in a process that forks and then allocates in the child.
    Async,
}

/// The destination of a log without a file, in text.
const WRITER: &str = "writer";

/// The settings that an adaptor keeps from its layer. Printed as text, they name the layer.
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
    /// The path as text of a stack.
    pub(super) text: String,
}

impl File {
    pub(super) fn new(given: &FilePath, device: DeviceId) -> Result<Self> {
        Ok(Self { path: given.resolve(Some(device))?, text: given.to_text()? })
    }
}

impl Settings {
    /// Returns the name of the destination, for people.
    pub(super) fn name(&self) -> String {
        self.file.as_ref().map_or("its writer".to_owned(), |file| format!("`{}`", file.path.display()))
    }

    /// Checks that a stack does not log to one file twice, because a region of a pool and its first block
    /// have the same address. `is_same` tells whether two paths name one file.
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
        // A resource of another crate may print text that is not a stack; then its logs are unknown.
        let below: Option<StackSpec> = upstream.to_string().parse().ok();
        let layers = below.iter().flat_map(StackSpec::all_layers).filter(|layer| layer.name == LAYER);
        for file in layers.filter_map(|layer| layer.param("file")?.as_text()) {
            let theirs = FilePath::new(file).resolve(Some(device));
            if theirs.is_ok_and(|theirs| is_same(&mine.path, &theirs)) {
                return Err(Error::invalid_argument(format!(
                    "`{upstream}` already writes the allocation log {}, so the file would have each call \
                     twice; choose another file",
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
