//! Writes one CSV row to a log for every call, as RMM does.
//!
//! ```text
//! Thread,Time,Action,Pointer,Size,Stream
//! 140213,14:03:07.123456,allocate,0x7f3c20000000,1000,0
//! 140213,14:03:07.123533,free,0x7f3c20000000,1000,0
//! 140213,14:03:07.123610,allocate failure,(nil),1099511627776,0x55e8c0a1b2d0
//! ```
//!
//! [`Row`] documents the columns, and reads and writes them.

mod at_exit;
mod batch;
mod canary;
mod cells;
mod clock;
mod devices;
mod ending;
pub(crate) mod entry;
mod files;
mod journal;
pub(crate) mod layer;
mod lines;
mod log_file;
mod outlet;
mod queue;
mod record;
mod row;
mod settings;
mod sink;
mod status;
#[cfg(test)]
mod tests;
mod text;
mod thread;
mod time_of_day;
mod writers;

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use millpond_core::{
    DeviceMemoryResource, DevicePtr, Layer, Layout, Result, StreamRef, Traits, debug_as_text,
    forward_to_upstream, is_same,
};

pub use layer::{FILE_VARIABLES, LoggingLayer, default_file_name};
pub use row::{Action, EXTENDED_HEADER, HEADER, Row};
pub use settings::{Columns, Flush};
pub use time_of_day::TimeOfDay;

/// Returns the calling thread's id and the local time of day, for lines of the debug log.
#[cfg(feature = "debug-log")]
pub(crate) fn thread_and_time() -> (u32, TimeOfDay) {
    let mut clock = clock::Clock::new(jiff::tz::TimeZone::system());
    (thread::id(), clock.time_of_day(clock::now()))
}

use files::OpenLog;
use journal::Journal;
use millpond_core::stack::AtEnd;
use record::{Entry, nanoseconds_since};
use settings::Settings;

/// Writes one CSV row to a log for every allocation, failed request and deallocation.
///
/// The adaptor logs a deallocation before it calls the upstream, and an allocation after the upstream has
/// returned. So if threads reuse an address, each free of the address is logged before the next allocation at
/// this address. With any number of threads, all rows are complete and in the order of time.
///
/// By default, each row reaches the operating system before the logged call returns. So the log is complete
/// even if the process aborts. The other modes of [`Flush`] are faster, and do not guarantee this.
///
/// The destination may be a writer of the program. The writer may use the stack that the adaptor logs, and
/// may wait for other threads that use the stack. If the writer itself allocates or frees, the adaptor writes
/// the rows of these calls after the writer has returned. The calls of other threads return only after the
/// writer has returned. If the writer takes longer than a second, the calls of other threads stop waiting and
/// return. The adaptor writes the rows of these calls later. A [`flush`](Self::flush) from inside the writer
/// is an error.
///
/// If the log cannot be opened, building the adaptor fails. If a later write fails, allocations still
/// succeed. [`write_errors`](Self::write_errors) counts the failed writes. The adaptor reports the first
/// failed write through `tracing`.
///
/// `millpond-replay` reads the logs of this adaptor and the logs of RMM.
///
/// ```
/// use millpond_adaptors::LoggingResourceAdaptor;
/// use millpond_core::{DeviceMemoryResourceExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::CudaMemoryResource;
///
/// let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
/// let resource = LoggingResourceAdaptor::to_writer(cuda, std::io::stdout())?;
/// let block = resource.allocate_bytes(1000, StreamRef::LEGACY)?;
/// // SAFETY: the block is live, unused, and freed with its layout.
/// unsafe { resource.deallocate_bytes(block, 1000, StreamRef::LEGACY) };
/// assert_eq!(resource.rows_written(), 2);
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct LoggingResourceAdaptor<R> {
    upstream: R,
    settings: Settings,
    journal: Arc<Journal>,
    device: u16,
}

impl<R: DeviceMemoryResource> LoggingResourceAdaptor<R> {
    /// Creates an adaptor with the destination and the format that `layer` contains.
    ///
    /// # Errors
    /// [`Io`](millpond_core::ErrorKind::Io) if the log cannot be written; the message names the file.
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) in two cases: if no file is named, or
    /// if another log of this process writes to the file with other columns or another [`Flush`].
    pub fn new(upstream: R, layer: LoggingLayer) -> Result<Self> {
        let (this, step) = Self::made(upstream, layer)?;
        if let Some(mut step) = step {
            step.prepare()?;
            Box::new(step).finish()?;
        }
        Ok(this)
    }

    /// Returns the adaptor and the step that opens the file. Rows wait for that step.
    fn made(upstream: R, layer: LoggingLayer) -> Result<(Self, Option<OpenLog>)> {
        let device = upstream.driver().device();
        let (journal, settings, step) = layer.make(&upstream, device)?;
        let device = journal.device_number(device)?;
        tracing::debug!(target: "millpond::logging", ?settings, "logging allocations");
        Ok((Self { upstream, settings, journal, device }, step))
    }

    /// Creates an adaptor that logs to the file `path`, with the settings of [`LoggingLayer::new`].
    /// [`LoggingLayer::file`] describes the path.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn to_file(upstream: R, path: impl Into<PathBuf>) -> Result<Self> {
        LoggingLayer::new().file(path).layer(upstream)
    }

    /// Creates an adaptor that logs to the file that `MILLPOND_LOG_FILE` names. If this variable is unset or
    /// empty, the adaptor logs to the file that `RMM_LOG_FILE` names.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn from_env(upstream: R) -> Result<Self> {
        LoggingLayer::new().layer(upstream)
    }

    /// Creates an adaptor that logs to a writer; see [`LoggingLayer::writer`].
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn to_writer(upstream: R, writer: impl Write + Send + 'static) -> Result<Self> {
        LoggingLayer::new().writer(writer).layer(upstream)
    }
}

impl<R> LoggingResourceAdaptor<R> {
    /// Writes all logged rows to the destination, and flushes the destination. Waits until this is done.
    ///
    /// # Errors
    /// [`Io`](millpond_core::ErrorKind::Io) if rows could not be written. These rows are lost. With
    /// [`Flush::Async`], the error is the first error since the last flush. A flush from inside the program's
    /// own writer also fails. If such a writer accepts nothing for 30 seconds, a flush that waits for the
    /// writer fails, too.
    pub fn flush(&self) -> Result<()> {
        self.journal.flush().map_err(|error| self.settings.unwritable(error))
    }

    /// Returns the path of the log's file. Names in braces are replaced. Returns `None` if the log goes to a
    /// writer.
    pub fn file(&self) -> Option<&Path> {
        self.settings.file.as_ref().map(|file| &*file.path)
    }

    /// Returns the number of rows that the destination has accepted, without the header. If other adaptors
    /// write to the same file, the number includes their rows.
    pub fn rows_written(&self) -> u64 {
        self.journal.status().rows_written()
    }

    /// Returns the number of failed writes to the destination. The rows of a failed write are lost.
    pub fn write_errors(&self) -> u64 {
        self.journal.status().write_errors()
    }
}

// SAFETY: every call goes to the upstream with the same arguments, so its contract holds.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for LoggingResourceAdaptor<R> {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let started = (self.settings.columns == Columns::Extended).then(Instant::now);
        let result = self.upstream.allocate(layout, stream);
        let duration_ns = started.map(nanoseconds_since);
        let (action, ptr) = match &result {
            Ok(ptr) => (Action::Allocate, *ptr),
            Err(_) => (Action::AllocateFailure, DevicePtr::NULL),
        };
        self.journal.write(Entry { action, ptr, layout, stream, duration_ns, device: self.device });
        result.map_err(|error| error.in_stack(self))
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        let (action, device) = (Action::Free, self.device);
        self.journal.write(Entry { action, ptr, layout, stream, duration_ns: None, device });
        // SAFETY: the caller's promises hold for the upstream too: the block came from there.
        unsafe { self.upstream.deallocate(ptr, layout, stream) }
    }

    /// An adaptor is equal only to itself, as in RMM. If another adaptor freed a block of this adaptor, the
    /// free would be missing in this adaptor's log.
    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    fn provide(&self, traits: &mut Traits) {
        traits.add::<Self, dyn crate::AllocationLog>(|it| it);
        // SAFETY: threads may share all parts except the upstream.
        unsafe { traits.share_over(&[&self.upstream]) };
    }

    forward_to_upstream!(except allocate, deallocate, is_equal, provide);
}

impl<R: DeviceMemoryResource> Layer<R> for LoggingLayer {
    type Resource = LoggingResourceAdaptor<R>;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        LoggingResourceAdaptor::new(upstream, self)
    }
}

impl<R: fmt::Display> fmt::Display for LoggingResourceAdaptor<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.upstream, self.settings)
    }
}

debug_as_text!(LoggingResourceAdaptor<R: fmt::Display>);

impl<R> crate::AllocationLog for LoggingResourceAdaptor<R> {
    fn file(&self) -> Option<&Path> {
        self.file()
    }

    fn flush(&self) -> Result<()> {
        self.flush()
    }

    fn rows_written(&self) -> u64 {
        self.rows_written()
    }

    fn write_errors(&self) -> u64 {
        self.write_errors()
    }
}
