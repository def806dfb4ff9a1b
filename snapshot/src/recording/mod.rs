//! One model of what every source says about memory: a recording.
//!
//! A recording is a list of [`Event`]s of one device, in the order in which the allocator saw them, with what
//! the source says about them: streams, pools, times, stacks and tags; frees in two phases; the segments that
//! the allocator took from the driver; failed requests; the phases of the program; and what is not known.
//! [`import`](crate::import) makes recordings of files, [`Recording::program`] makes a program of
//! one, and [`Recording::write_csv`] writes it as a log that RMM's readers read, too.
//!
//! What the program had before recording began comes first: the segments and the blocks, marked
//! [`is_before`](Event::is_before), in the order of their addresses.

mod check;
mod content;
mod csv;
mod event;
mod lane;
mod ledger;
mod lives;
mod moment;
mod notes;
mod program;
mod sums;
mod texts;

pub use check::StateCheck;
pub use content::{Clock, Recording, Source, Unknown};
pub use event::{Event, EventKind, Id};
pub use lane::Lane;
pub use ledger::Ledger;
pub use lives::Life;
pub use moment::{LiveBlock, Moment, Segment};
pub use sums::Sums;
pub use texts::Frame;

pub(crate) use content::cut;
pub(crate) use notes::{text as note_text, word};
