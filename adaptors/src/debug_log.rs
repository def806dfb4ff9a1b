//! The debug log: writes millpond's diagnostics to the same file as RMM, and in the same form.
//!
//! Every crate reports its diagnostics to `tracing`. A program with its own `tracing` subscriber does not
//! need this module. A program without a subscriber calls [`init`]. [`init`] writes each diagnostic as a line
//! of text to the file that the environment variable `RMM_DEBUG_LOG_FILE` names. It empties this file first.
//! If the variable is not set, [`init`] writes to the standard error. A line has RMM's form:
//!
//! ```text
//! [  4213][14:03:07:123456][WARN  ] pages are off, since the pool is over a wrapper
//! ```
//!
//! ```
//! use millpond_adaptors::debug_log::{self, Level};
//!
//! debug_log::init()?;
//! debug_log::set_level(Some(Level::DEBUG))?;
//! assert!(debug_log::should_log(Level::DEBUG)? && !debug_log::should_log(Level::TRACE)?);
//! debug_log::flush()?;
//! # Ok::<(), millpond_core::Error>(())
//! ```

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;

use millpond_core::stack::FilePath;
use millpond_core::{Error, ErrorKind, Result, environment};
use parking_lot::Mutex;
pub use tracing::Level;
use tracing::{Event, Subscriber};
use tracing_subscriber::Registry;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use crate::logging::thread_and_time;

/// The environment variable that names the file of the debug log, as in RMM. To give each process of a job
/// its own file, write `{pid}` or `{rank}` in the name.
pub const FILE_VARIABLE: &str = "RMM_DEBUG_LOG_FILE";

/// The debug log of the process.
static LOG: Mutex<Option<DebugLog>> = Mutex::new(None);

#[derive(Clone)]
struct DebugLog {
    level: reload::Handle<LevelFilter, Registry>,
    output: Output,
}

/// The destination of the lines, which all threads share.
#[derive(Clone)]
struct Output(Arc<Mutex<Box<dyn Write + Send>>>);

/// Installs the debug log as the process's `tracing` subscriber, at the level `INFO`. A second call does
/// nothing, even if the first call is still opening the file.
///
/// # Errors
/// [`Io`](ErrorKind::Io) if the file cannot be created, and [`InvalidArgument`](ErrorKind::InvalidArgument)
/// if the program already has another subscriber.
pub fn init() -> Result<()> {
    install(LevelFilter::INFO, || match environment::variable(FILE_VARIABLE) {
        Some(name) => {
            let file = FilePath::new(name).resolve(None)?;
            let opened = empty_file(&file).map_err(|error| {
                let text = format!("{FILE_VARIABLE}: {} cannot be written: {error}", file.display());
                Error::new(ErrorKind::Io, text)
            })?;
            Ok(Box::new(opened))
        }
        None => Ok(Box::new(io::stderr())),
    })
}

/// Installs the debug log like [`init`], but writes to the standard error at the level `ERROR`. Ignores the
/// variable `RMM_DEBUG_LOG_FILE`.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) if the program already has another subscriber.
pub fn init_to_stderr() -> Result<()> {
    install(LevelFilter::ERROR, || Ok(Box::new(io::stderr())))
}

fn install(level: LevelFilter, open: impl FnOnce() -> Result<Box<dyn Write + Send>>) -> Result<()> {
    let output = Output(Arc::new(Mutex::new(Box::new(io::sink()))));
    let (filter, level) = reload::Layer::new(level);
    {
        let mut log = LOG.lock();
        if log.is_some() {
            return Ok(());
        }
        *log = Some(DebugLog { level, output: output.clone() });
    }
    // Runs without the lock: opening a pipe waits for its reader, and `tracing` calls the program's own
    // subscribers.
    let start = || {
        let opened = open()?;
        *output.0.lock() = opened;
        let lines = tracing_subscriber::fmt::layer().event_format(Lines).with_writer(output).with_ansi(false);
        tracing_subscriber::registry().with(filter).with(lines).try_init().map_err(|_| {
            Error::invalid_argument(
                "the program already has a `tracing` subscriber, which receives millpond's events; do not \
                 start the debug log as well",
            )
        })
    };
    let started = catch_unwind(AssertUnwindSafe(start));
    if !matches!(started, Ok(Ok(()))) {
        *LOG.lock() = None;
    }
    started.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Empties or creates a file, and opens it for appending. Processes that inherit the variable write to the
/// same file. Each empties the file once, when it begins, and overwrites no later line.
fn empty_file(file: &Path) -> io::Result<File> {
    File::create(file)?;
    OpenOptions::new().append(true).open(file)
}

/// Sets the least severe level that the debug log writes. With `None`, the debug log writes nothing.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) if [`init`] was not called before.
pub fn set_level(level: Option<Level>) -> Result<()> {
    let filter = level.map_or(LevelFilter::OFF, LevelFilter::from_level);
    log()?.level.reload(filter).map_err(|error| Error::invalid_argument(error.to_string()))
}

/// Returns the least severe level that the debug log writes; `None` if it writes nothing.
///
/// # Errors
/// The errors of [`set_level`].
pub fn level() -> Result<Option<Level>> {
    Ok(log()?.level.clone_current().and_then(|filter| filter.into_level()))
}

/// Returns whether the debug log writes events of this level.
///
/// # Errors
/// The errors of [`set_level`].
pub fn should_log(level: Level) -> Result<bool> {
    Ok(self::level()?.is_some_and(|most| level <= most))
}

/// Writes all buffered lines of the debug log.
///
/// # Errors
/// The errors of [`set_level`], and [`Io`](ErrorKind::Io) if the lines cannot be written.
pub fn flush() -> Result<()> {
    log()?.output.flush().map_err(|error| Error::new(ErrorKind::Io, format!("the debug log: {error}")))
}

fn log() -> Result<DebugLog> {
    LOG.lock().clone().ok_or_else(|| Error::invalid_argument("the debug log is not running; start it first"))
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().flush()
    }
}

impl MakeWriter<'_> for Output {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// RMM's form of a line: thread, local time, level, message.
struct Lines;

impl<S: Subscriber + for<'a> LookupSpan<'a>, N: for<'a> FormatFields<'a> + 'static> FormatEvent<S, N>
    for Lines
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let (thread, time) = thread_and_time();
        let (time, level) = (time.to_string().replace('.', ":"), event.metadata().level().as_str());
        write!(to, "[{thread:6}][{time}][{level:6}] ")?;
        context.format_fields(to.by_ref(), event)?;
        writeln!(to)
    }
}
