//! Reports the pool's actions beyond its fast path, as `tracing` events with fields.
//!
//! All events have the target `millpond::pool`, the resource's number in the process (`id`) and the text of
//! its stack (`stack`). Sizes are in bytes. Times are in nanoseconds of the machine's clock, or of the
//! device's time on a simulated device. The level is `debug` for growth, release and flushes of the threads'
//! caches, `trace` for waits between streams and evictions, and `warn` for requests that fail and errors of
//! the driver. Calls that may take long are in spans (`debug`). A call that a cache or an arena serves alone
//! emits no event.

use std::fmt::Display;
use std::time::Instant;

use millpond_core::{DriverError, Error, StreamId, StreamRef};
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

/// Measures a duration, if a subscriber wants it.
pub(crate) struct Watch(Option<(Instant, Option<u64>)>);

impl CentralCore {
    pub(crate) fn watch(&self) -> Watch {
        let is_enabled = tracing::enabled!(target: "millpond::pool", Level::DEBUG);
        Watch(is_enabled.then(|| (Instant::now(), self.driver.virtual_time_ns())))
    }

    /// Returns nanoseconds since the watch was started; 0 if it measures nothing.
    pub(crate) fn elapsed_ns(&self, watch: &Watch) -> u64 {
        let Watch(Some((start, in_device))) = watch else { return 0 };
        match (in_device, self.driver.virtual_time_ns()) {
            (Some(start), Some(now)) => now.saturating_sub(*start),
            _ => start.elapsed().as_nanos() as u64,
        }
    }

    /// Returns a span around calls that may take long.
    pub(crate) fn span(&self, what: &'static str, bytes: u64, stream: StreamRef) -> Span {
        let (id, stack) = (self.name.id, &self.name.stack);
        tracing::debug_span!(target: "millpond::pool", "slow call", what, id, %stack, bytes, stream = %stream)
    }

    /// Reports a growth.
    pub(crate) fn trace_growth(&self, request: &Request, stream: StreamRef, bytes: u64, watch: &Watch) {
        let (asked, duration_ns) = (request.requested, self.elapsed_ns(watch));
        event!(self, DEBUG, "grew", bytes, asked, stream = %stream, duration_ns);
    }

    /// Reports a growth that was not tried, because it could not have sufficed.
    pub(crate) fn trace_refusal(&self, request: &Request, reading: Option<&Reading>, why: &dyn Display) {
        let available = reading.map(|reading| reading.available);
        event!(self, DEBUG, "did not grow", asked = request.requested, available, reason = %why);
    }

    /// Reports that the driver refused memory that it had counted as free.
    pub(crate) fn trace_rival(&self, bytes: u64, error: &dyn Display) {
        event!(
            self, DEBUG,
            "another resource or process took the free memory; the growth was undone", bytes, %error
        );
    }

    /// Reports that memory was returned to the driver or to upstream.
    pub(crate) fn trace_release(&self, bytes: u64, watch: &Watch) {
        event!(self, DEBUG, "released memory", bytes, duration_ns = self.elapsed_ns(watch));
    }

    /// Reports that blocks left the threads' caches, because the pool needed memory or a thread was idle.
    pub(crate) fn trace_flush(&self, blocks: u64) {
        if blocks > 0 {
            event!(self, DEBUG, "flushed caches", blocks);
        }
    }

    /// Reports that a free evicted blocks from a thread's cache.
    pub(crate) fn trace_eviction(&self, stream: StreamId, blocks: u64) {
        if blocks > 0 {
            event!(self, TRACE, "evicted cached blocks", blocks, stream = stream.get());
        }
    }

    /// Reports that decay returned memory to the driver.
    pub(crate) fn trace_decay(&self, bytes: u64, keep: u64) {
        event!(self, DEBUG, "released idle memory", bytes, keep);
    }

    /// Reports that a stream is made to wait for another one, whose block it takes.
    pub(crate) fn trace_wait(&self, stream: StreamRef, other: u64, bytes: u64) {
        event!(self, TRACE, "a stream waits for another stream's work", stream = %stream, other, bytes);
    }

    /// Reports that the calling thread waited for the device.
    pub(crate) fn trace_synchronize(&self, watch: &Watch) {
        event!(self, DEBUG, "waited for work to end", duration_ns = self.elapsed_ns(watch));
    }

    /// Reports that a request failed because memory is out.
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

    /// Reports an error of the driver; an out-of-memory error only at `debug`, since the caller gets it too.
    pub(crate) fn trace_error(&self, error: &DriverError) {
        let (call, code) = (error.call(), error.code());
        if error.is_out_of_memory() {
            event!(self, DEBUG, "the driver is out of memory", call, code, %error);
        } else {
            event!(self, WARN, "the driver reports an error", call, code, %error);
        }
    }
}
