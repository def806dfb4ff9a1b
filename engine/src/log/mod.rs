//! Reads allocation logs: RMM's CSV, plain or compressed, row by row.
//!
//! A log has a header, and one row for each event. RMM's six columns are required, in any order. millpond's
//! further columns are optional. The reader ignores all other columns.
//!
//! | column | content |
//! |---|---|
//! | `Thread` | the thread's number |
//! | `Time` | a time of day; read only to distinguish a log from other files |
//! | `Action` | `allocate`, `allocate failure` or `free` |
//! | `Pointer` | hexadecimal, or `(nil)` |
//! | `Size` | bytes, as requested |
//! | `Stream` | see [`StreamKey`] |
//! | `Device` (optional) | the device: `cuda:0`, `sim:0` or a number |
//! | `Alignment` (optional) | bytes, a power of two |
//! | `Sequence` (optional) | a number that grows from row to row |
//! | `MonotonicNs` (optional) | the time, in nanoseconds of a monotonic clock |
//! | `DurationNs` (optional) | the duration of the call, in nanoseconds |
//!
//! If millpond-snapshot writes a recording as a log, the log also has the columns in [`mod@column`]. Some of
//! its rows only carry notes. The reader skips these rows, except in [`LogReader::next_row`].
//!
//! A log may be truncated, because its program was killed or a copy is incomplete. The reader then stops
//! after the last complete row, and [`LogReader::rest_missing`] returns the reason.
//!
//! gzip and zstd are recognised by the first bytes of the file, not by its name. The memory is bounded: a
//! [`LogReader`] holds one row, and refuses a line of more than 64 KiB.
//!
//! ```
//! use millpond_engine::log::{Action, LogReader};
//! let text = "Thread,Time,Action,Pointer,Size,Stream\n7,05:01:18.946606,allocate,0x7f00,1000,0x2\n";
//! let mut reader = LogReader::from_reader("example", text.as_bytes()).unwrap();
//! let event = reader.next().unwrap().unwrap();
//! assert_eq!((event.thread, event.action, event.bytes), (7, Action::Allocate, 1000));
//! assert!(reader.next().is_none());
//! ```

mod chosen_device;
pub mod column;
mod columns;
mod error;
mod event;
mod field;
mod flaws;
mod input;
mod live;
pub mod notes;
mod reader;

pub use chosen_device::ChosenDevice;
pub use error::LogError;
pub use event::{Action, Event, StreamKey};
pub use flaws::Flaws;
pub use input::{Lines, unpack_bytes};
pub use live::{Freed, LiveBlocks};
pub use reader::{LogReader, open_file};
