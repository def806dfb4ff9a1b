//! A recording: the memory events of one device, from a file of any format.
//!
//! A recording is a list of [`Event`]s of one device, in the order in which the allocator saw them. The
//! events have streams, pools, times, call stacks and tags. They include frees in two phases, failed
//! requests, the phases of the program, and the segments that the allocator reserved from the driver. A
//! recording also lists the data that it lacks. [`import`](crate::import) makes recordings from files.
//! [`Recording::program`] makes a program that can be replayed. [`Recording::write_csv`] writes a recording
//! as a log, which RMM's readers can read, too.
//!
//! The segments and blocks from before the recording come first, in the order of their addresses.
//! [`is_before`](Event::is_before) marks them.

mod check;
mod content;
mod csv;
mod event;
mod folded;
mod lane;
mod ledger;
mod live;
mod lives;
mod moment;
mod program;
mod sums;
mod texts;

pub use crate::frames::Frame;
pub use check::StateCheck;
pub use content::{Clock, Recording, Source, Unknown};
pub use event::{Event, EventKind, Id};
pub(crate) use lane::DEFAULT_POOL;
pub use lane::Lane;
pub use ledger::Ledger;
pub use lives::Life;
pub(crate) use moment::Walk;
pub use moment::{LiveBlock, Moment, Segment};
pub use sums::Sums;

pub(crate) use content::{OVERLAPS, cut};

/// Writes the number of an event to JSON, counted from 1 as in texts.
fn from_one<S: serde::Serializer>(event: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(event.saturating_add(1))
}
