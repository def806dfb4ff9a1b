//! What a resource does beyond its fast path, as `tracing` events with fields.
//!
//! All have the target `millpond::pool`, the resource's number in the process (`id`) and its stack as text
//! (`stack`); sizes are in bytes, times in nanoseconds: of the device's own time where that is simulated, or
//! else of the machine's clock. Growth, and what goes back, is `debug`; waiting for other streams `trace`;
//! requests that fail, and errors of the driver, `warn`. Calls that may take long are in spans (`debug`). A
//! block that is had without a driver call leaves no event.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use millpond_core::{DriverError, Error, StreamRef};
use tracing::{Level, Span};

use crate::heap::request::Request;
use crate::pool::central::CentralCore;
use crate::pool::central::device_books::Reading;

/// An event of a resource.
macro_rules! event {
    ($core:expr, $level:ident, $text:literal $(, $($fields:tt)*)?) => {
        tracing::event!(
            target: "millpond::pool",
            tracing::Level::$level,
            id = $core.name.id,
            stack = %$core.name.stack,
            $($($fields)*,)?
            $text
        )
    };
}
pub(crate) use event;

/// A resource, to who reads events.
pub(crate) struct Name {
    pub(crate) id: u64,
    pub(crate) stack: String,
}

impl Name {
    pub(crate) fn new(stack: String) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), stack }
    }
}

/// How long something takes; nothing where nobody listens.
pub(crate) struct Watch(Option<(Instant, Option<u64>)>);

impl CentralCore {
    pub(crate) fn watch(&self) -> Watch {
        let is_heard = tracing::enabled!(target: "millpond::pool", Level::DEBUG);
        Watch(is_heard.then(|| (Instant::now(), self.driver.virtual_time_ns())))
    }

    /// Nanoseconds since the watch was started; 0 where nobody listens.
    pub(crate) fn elapsed_ns(&self, watch: &Watch) -> u64 {
        let Watch(Some((start, in_device))) = watch else { return 0 };
        match (in_device, self.driver.virtual_time_ns()) {
            (Some(start), Some(now)) => now.saturating_sub(*start),
            _ => start.elapsed().as_nanos() as u64,
        }
    }

    /// A span around calls that may take long.
    pub(crate) fn span(&self, what: &'static str, bytes: u64, stream: StreamRef) -> Span {
        let (id, stack) = (self.name.id, &self.name.stack);
        tracing::debug_span!(target: "millpond::pool", "slow call", what, id, %stack, bytes, stream = %stream)
    }

    /// New memory came for a request, or before any.
    pub(crate) fn trace_growth(&self, request: &Request, stream: StreamRef, bytes: u64, watch: &Watch) {
        let (asked, duration_ns) = (request.requested, self.elapsed_ns(watch));
        event!(self, DEBUG, "grew", bytes, asked, stream = %stream, duration_ns);
    }

    /// A growth was not tried, since it could not have sufficed.
    pub(crate) fn trace_refusal(&self, request: &Request, reading: Option<&Reading>, why: &dyn Display) {
        let available = reading.map(|reading| reading.available);
        event!(self, DEBUG, "did not grow", asked = request.requested, available, reason = %why);
    }

    /// The driver refused memory although there was enough a moment ago.
    pub(crate) fn trace_rival(&self, bytes: u64, error: &dyn Display) {
        event!(self, DEBUG, "what was free is taken: what was taken for a growth went back", bytes, %error);
    }

    /// Memory went back to the driver or to upstream.
    pub(crate) fn trace_release(&self, bytes: u64, watch: &Watch) {
        event!(self, DEBUG, "gave memory back", bytes, duration_ns = self.elapsed_ns(watch));
    }

    /// Memory that was not needed for a while went back.
    pub(crate) fn trace_decay(&self, bytes: u64, keep: u64) {
        event!(self, DEBUG, "gave idle memory back", bytes, keep);
    }

    /// A stream is made to wait for another one, whose block it takes.
    pub(crate) fn trace_wait(&self, stream: StreamRef, other: u64, bytes: u64) {
        event!(self, TRACE, "a stream waits for another one's work", stream = %stream, other, bytes);
    }

    /// The host waited for the device.
    pub(crate) fn trace_synchronize(&self, watch: &Watch) {
        event!(self, DEBUG, "waited for work to end", duration_ns = self.elapsed_ns(watch));
    }

    /// A request fails for want of memory.
    pub(crate) fn trace_out_of_memory(&self, stream: StreamRef, error: &Error) {
        let report = error.out_of_memory_report();
        let short_bytes = report.and_then(|report| report.short_bytes);
        let (held_bytes, live_bytes) = report.map_or((0, 0), |report| (report.held_bytes, report.live_bytes));
        let device_free = report.and_then(|report| report.device).map(|device| device.free);
        let bytes = error.requested_bytes();
        event!(
            self,
            WARN,
            "out of memory",
            bytes,
            stream = %stream,
            short_bytes,
            held_bytes,
            live_bytes,
            device_free
        );
    }

    /// The driver reports an error. That it is out of memory is said by what the caller is told.
    pub(crate) fn trace_error(&self, error: &DriverError) {
        let (call, code) = (error.call(), error.code());
        if error.is_out_of_memory() {
            event!(self, DEBUG, "the driver is out of memory", call, code, %error);
        } else {
            event!(self, WARN, "the driver reports an error", call, code, %error);
        }
    }
}
