//! The calls that order work.

use millpond_core::StreamRef;
use millpond_core::driver::Event;

/// A call that orders work, after it has succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum OrderCall {
    /// An event was recorded on a stream.
    Recorded(Event, StreamRef),
    /// The device has reached an event: the answer of a query, or a synchronisation.
    Reached(Event),
    /// A stream waits for an event.
    Waits(StreamRef, Event),
    /// The device has done all work.
    Synchronized,
}

pub(super) type Watcher = Box<dyn Fn(OrderCall) + Send + Sync>;
