//! The error of millpond and its categories.

use std::fmt;

use crate::driver::DriverError;
use crate::{DeviceId, FailureKind, Layout, OutOfMemoryReport, StreamRef, format_bytes};

/// The result of a fallible function of millpond. The error type is [`Error`] by default.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The category of an error. A program can decide from the category how to react.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The resource has no free block that is large enough, even after it has synchronised with the device.
    /// Freeing memory may help, unless the request [is impossible](Error::is_impossible). For an impossible
    /// request, use another resource or request fewer bytes.
    OutOfMemory,
    /// An argument other than the size is invalid. The amount of free memory does not matter.
    InvalidArgument,
    /// The text of a stack cannot be parsed, or the text names a layer, parameter or value that does not
    /// exist.
    InvalidStack,
    /// There is no CUDA driver, no device, or no device with the requested number.
    NoDevice,
    /// The driver or the device does not support the operation.
    Unsupported,
    /// The driver reported an error.
    Driver,
    /// The resource can no longer be used, for one of two reasons. Either an earlier driver error made the
    /// device unusable for this process, or the device's context was reset. The message names the reason.
    Poisoned,
    /// Reading or writing a file failed.
    Io,
    /// The resource serves one thread at a time, and the call of another thread did not end. Code that runs
    /// inside a resource must not wait for a thread that uses the same resource.
    Busy,
}

/// The error type of millpond. [`kind`](Self::kind) tells a program how to react. The text tells a person
/// what happened and what to do.
///
/// An `Error` is the size of one pointer. Creating an error captures no backtrace, so an expected failure
/// stays cheap.
///
/// ```
/// use millpond_core::{Error, Layout, StreamRef};
/// let error = Error::out_of_memory(Layout::new(1 << 40), StreamRef::LEGACY).in_stack("cuda+pool");
/// assert!(error.is_out_of_memory());
/// assert_eq!(error.requested_bytes(), Some(1 << 40));
/// assert!(error.to_string().contains("cuda+pool"));
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    layout: Option<Layout>,
    stream: Option<StreamRef>,
    device: Option<DeviceId>,
    stack: Option<String>,
    report: Option<Box<OutOfMemoryReport>>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// Creates an error of this kind. `message` describes what went wrong and how to fix it.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            layout: None,
            stream: None,
            device: None,
            stack: None,
            report: None,
            source: None,
        }))
    }

    /// Creates an [`ErrorKind::OutOfMemory`] for this request. Call this function only if the resource
    /// certainly has no memory for the request.
    pub fn out_of_memory(layout: Layout, stream: StreamRef) -> Self {
        Self::new(ErrorKind::OutOfMemory, "").for_request(layout, stream)
    }

    /// Creates an [`ErrorKind::InvalidArgument`].
    pub fn invalid_argument(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    /// Creates an [`ErrorKind::InvalidStack`].
    pub fn invalid_stack(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidStack, message)
    }

    /// Creates the error that every call returns after a driver error has lost the device for this process.
    pub fn poisoned() -> Self {
        Self::new(
            ErrorKind::Poisoned,
            "after an earlier driver error, this process can no longer use the device; restart the process",
        )
    }

    /// Creates the error that a call returns in a [forked child](crate::process) of the process that opened
    /// the device.
    pub fn forked() -> Self {
        let why = "this process was forked from one that uses the device; start it with spawn instead";
        Self::new(ErrorKind::Unsupported, why)
    }

    /// Creates the error that a call returns if its resource or stream is older than the last reset of the
    /// device's context.
    pub fn context_reset() -> Self {
        Self::new(
            ErrorKind::Poisoned,
            "the device's context was reset (cuDevicePrimaryCtxReset, cudaDeviceReset, Numba's \
             cuda.close()), and everything made before the reset is lost; open the device again, and make \
             new resources and streams",
        )
    }

    /// Creates the error for a request that is larger than any address space. The kind of the error is
    /// [`ErrorKind::OutOfMemory`], and the request is [impossible](Self::is_impossible).
    pub fn request_too_large(layout: Layout, stream: StreamRef) -> Self {
        Self::impossible("no device has so much memory; check the size for an overflow", layout, stream)
    }

    /// Creates an [`ErrorKind::OutOfMemory`] for a request that the resource can never serve. `message` gives
    /// the reason and the remedy.
    pub fn impossible(message: impl Into<String>, layout: Layout, stream: StreamRef) -> Self {
        let mut report = OutOfMemoryReport::new(layout, stream);
        report.is_impossible = true;
        Self::new(ErrorKind::OutOfMemory, message).with_report(report).for_request(layout, stream)
    }

    /// Adds the layout of the failed request. Use this method for a request without a stream, such as a
    /// request for pinned host memory.
    #[must_use]
    pub fn for_layout(mut self, layout: Layout) -> Self {
        self.0.layout = Some(layout);
        self
    }

    /// Adds the layout and the stream of the request that failed. An error that is [out of
    /// memory](Self::is_out_of_memory) also gets a report about the request, if it has none yet.
    #[must_use]
    pub fn for_request(mut self, layout: Layout, stream: StreamRef) -> Self {
        self.0.layout = Some(layout);
        self.0.stream = Some(stream);
        if self.is_out_of_memory() {
            self.0.report.get_or_insert_with(|| Box::new(OutOfMemoryReport::new(layout, stream)));
        }
        self
    }

    /// Adds the device of the failed call.
    #[must_use]
    pub fn on_device(mut self, device: DeviceId) -> Self {
        self.0.device = Some(device);
        self
    }

    /// Adds the text of the stack. Does nothing if an inner layer has already added the text of its stack.
    #[must_use]
    pub fn in_stack(mut self, stack: impl fmt::Display) -> Self {
        self.0.stack.get_or_insert_with(|| stack.to_string());
        self
    }

    /// Adds the report of the failed request. The report replaces an earlier report.
    #[must_use]
    pub fn with_report(mut self, report: impl Into<Box<OutOfMemoryReport>>) -> Self {
        self.0.report = Some(report.into());
        self
    }

    /// Completes the report with `fill_in`, if the error is [out of memory](Self::is_out_of_memory) and no
    /// resource has completed its report yet. Before this call, add the request with
    /// [`for_request`](Self::for_request).
    #[must_use]
    pub fn report_if_missing(mut self, fill_in: impl FnOnce(&mut OutOfMemoryReport)) -> Self {
        if !self.is_out_of_memory() {
            return self;
        }
        let request = (self.0.layout.unwrap_or(Layout::new(0)), self.0.stream.unwrap_or(StreamRef::LEGACY));
        let new = || Box::new(OutOfMemoryReport::new(request.0, request.1));
        let report = self.0.report.get_or_insert_with(new);
        if report.is_new() {
            fill_in(report);
        }
        self
    }

    /// Adds the cause: another error, which led to this error.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Puts `text` in front of the message.
    #[must_use]
    pub fn context(mut self, text: impl fmt::Display) -> Self {
        self.0.message =
            if self.0.message.is_empty() { text.to_string() } else { format!("{text}: {}", self.0.message) };
        self
    }

    /// Returns what refused the request, if the error is [out of memory](Self::is_out_of_memory).
    pub fn failure_kind(&self) -> Option<FailureKind> {
        let refused_by =
            || self.out_of_memory_report().map_or_else(FailureKind::default, |it| it.refused_by());
        self.is_out_of_memory().then(refused_by)
    }

    /// Returns the category of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns whether the kind is [`ErrorKind::OutOfMemory`].
    pub fn is_out_of_memory(&self) -> bool {
        self.0.kind == ErrorKind::OutOfMemory
    }

    /// Returns whether the resource can never serve the request. Such a request exceeds the size of any
    /// address space, a limit of the resource, or the resource's largest block. The error is then also [out
    /// of memory](Self::is_out_of_memory).
    pub fn is_impossible(&self) -> bool {
        self.0.report.as_ref().is_some_and(|report| report.is_impossible)
    }

    /// Returns whether the device is lost, for one of two reasons. A driver error lost the device for this
    /// process. Or the device's context was reset, and everything made before the reset is lost.
    pub fn is_sticky(&self) -> bool {
        self.0.kind == ErrorKind::Poisoned || self.driver_error().is_some_and(DriverError::is_sticky)
    }

    /// Returns whether the error means that there is no driver or no such device.
    pub fn is_no_device(&self) -> bool {
        self.0.kind == ErrorKind::NoDevice
    }

    /// Returns the requested size in bytes; `None` if the error is not about a request.
    pub fn requested_bytes(&self) -> Option<u64> {
        self.0.layout.map(Layout::bytes)
    }

    /// Returns the requested alignment in bytes; `None` if the error is not about a request.
    pub fn requested_alignment(&self) -> Option<u64> {
        self.0.layout.map(Layout::alignment)
    }

    /// Returns the stream of the request; `None` if the error is not about a request on a stream.
    pub fn stream(&self) -> Option<StreamRef> {
        self.0.stream
    }

    /// Returns the device of the failed call; `None` if the device is not known.
    pub fn device(&self) -> Option<DeviceId> {
        self.0.device
    }

    /// Returns the text of the stack that failed; `None` if the error names no stack.
    pub fn stack(&self) -> Option<&str> {
        self.0.stack.as_deref()
    }

    /// Returns the report of a failed request. The report holds the state of memory when the request failed,
    /// and the remedies that would have helped. Every resource adds a report to its out-of-memory errors. The
    /// layers above keep the report.
    pub fn out_of_memory_report(&self) -> Option<&OutOfMemoryReport> {
        self.0.report.as_deref()
    }

    /// Removes the report from the error and returns the report. A resource uses this method to include the
    /// upstream's report in its own report.
    pub fn take_out_of_memory_report(&mut self) -> Option<Box<OutOfMemoryReport>> {
        self.0.report.take()
    }

    /// Returns the message alone. The request, the stack and the report are not included.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the driver error that caused this error, directly or through other errors; `None` if no driver
    /// error did.
    pub fn driver_error(&self) -> Option<&DriverError> {
        let mut source: Option<&(dyn std::error::Error + 'static)> = self.0.source.as_deref().map(|e| e as _);
        while let Some(error) = source {
            if let Some(found) = error.downcast_ref::<DriverError>() {
                return Some(found);
            }
            source = error.source();
        }
        None
    }
}

/// Prints the text that a program shows when its `main` returns the error: the text of `Display`, the kind,
/// and the causes that `Display` does not name. `{:#?}` prints all fields.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, message, layout, stream, device, stack, report, source } = &*self.0;
        if !f.alternate() {
            let mut text = format!("{self} [{kind:?}]");
            let direct = source.as_deref().map(|source| source as &(dyn std::error::Error + 'static));
            let causes = std::iter::successors(direct, |cause| cause.source());
            for cause in causes.map(ToString::to_string) {
                // The texts of some errors end with the texts of their causes.
                if !text.contains(&cause) {
                    text += &format!("\n  caused by: {cause}");
                }
            }
            return f.write_str(&text);
        }
        f.debug_struct("Error")
            .field("kind", kind)
            .field("message", message)
            .field("layout", layout)
            .field("stream", stream)
            .field("device", device)
            .field("stack", stack)
            .field("report", report)
            .field("source", source)
            .finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, message, layout, stream, device, stack, report, source } = &*self.0;
        let what = match kind {
            ErrorKind::OutOfMemory => "out of memory",
            ErrorKind::InvalidArgument => "invalid argument",
            ErrorKind::InvalidStack => "invalid stack",
            ErrorKind::NoDevice => "no device",
            ErrorKind::Unsupported => "not supported",
            ErrorKind::Driver => "driver error",
            ErrorKind::Poisoned => "poisoned",
            ErrorKind::Io => "input/output error",
            ErrorKind::Busy => "busy",
        };
        f.write_str(what)?;
        if let Some(layout) = layout {
            write!(f, " for {}", format_bytes(layout.bytes()))?;
            if layout.alignment() > crate::ALLOCATION_ALIGNMENT {
                write!(f, " aligned to {}", layout.alignment())?;
            }
        }
        if let Some(stream) = stream {
            write!(f, " on stream {stream}")?;
        }
        if let Some(device) = device {
            match (stream, kind) {
                (Some(_), _) => write!(f, " of {device}")?,
                (None, ErrorKind::NoDevice) => write!(f, " ({device})")?,
                (None, _) => write!(f, " on {device}")?,
            }
        }
        if let Some(stack) = stack {
            write!(f, " in `{stack}`")?;
        }
        if !message.is_empty() {
            write!(f, ": {message}")?;
        }
        if let Some(report) = report {
            write!(f, ": {report}")?;
        }
        if let Some(source) = source {
            // A text of several lines ends with a picture.
            let separator = if report.is_some() || message.contains('\n') { "\n  caused by: " } else { ": " };
            write!(f, "{separator}{source}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|e| e as _)
    }
}

impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        if error.code() == DriverError::CONTEXT_IS_DESTROYED {
            return Self::context_reset().caused_by(error);
        }
        let kind = if error.is_sticky() {
            ErrorKind::Poisoned
        } else if error.is_out_of_memory() {
            ErrorKind::OutOfMemory
        } else if error.is_unavailable() {
            ErrorKind::NoDevice
        } else if error.is_unsupported() {
            ErrorKind::Unsupported
        } else {
            ErrorKind::Driver
        };
        let advice = match error.code() {
            DriverError::INVALID_HANDLE => HANDLE_ADVICE,
            _ if error.is_sticky() => "this process can no longer use the device; restart the process",
            _ if error.is_capture_refusal() => CAPTURE_ADVICE,
            _ => "",
        };
        Self::new(kind, advice).caused_by(error)
    }
}

/// The remedy when the driver refuses a call because of a capture.
const CAPTURE_ADVICE: &str = "this call is not possible while a graph is being captured; make the call \
    before the capture begins, or after the capture ends (pool:initial=… reserves memory for the graph in \
    advance)";

/// The remedy when the driver does not know a stream or an event.
const HANDLE_ADVICE: &str =
    "a stream, event or pool that this call uses was destroyed; keep each of them until its last use";

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::new(ErrorKind::Io, "").caused_by(error)
    }
}

#[cfg(test)]
mod tests;
