//! Imports files that other programs wrote. A file of any known format becomes a [`Recording`].
//!
//! The reader recognises a format by the file's content, never by the file's name. A file may be compressed
//! with gzip or zstd.
//!
//! | file | parts that are read |
//! |---|---|
//! | PyTorch's memory snapshot | pickles of protocols 2 to 5 since PyTorch 2.0, and the pages of its viewer |
//! | torch.profiler | memory events of its Chrome traces, with the calls around them |
//! | RMM's log | as [`log`](millpond_engine::log) reads it, with all that [`Recording::write_csv`] writes |
//! | text with RMM's rows | without a header, between lines of other programs, or several logs in a file |
//! | RMM's debug log | failed requests; at the level `TRACE`, blocks |
//! | minimalloc's CSV | lifetimes and sizes |
//! | Nsight Systems | its SQLite export, with the feature `nsys` |
//! | JAX | its device memory profile: live buffers with call stacks |
//! | text with PyTorch's out-of-memory message | its figures, and the traceback before it |
//! | text with RMM's error | the failed request, the pool's limit, and the traceback before it |
//! | text with a dump of the allocator of TensorFlow or XLA | chunks, or their sums |
//! | text of compute-sanitizer | leaks with call stacks |
//!
//! The last five formats show states: the memory at one moment, without the events before it.
//!
//! A snapshot is a pickle, and Python's own reader runs any code that a pickle names. This reader accepts
//! only plain data, and never runs code that a file names. If a file contains more than plain data, the
//! reader refuses the file, and the error says why. Whatever a file contains, an import uses no more memory
//! than the size of the file and [`Options::memory`] together.

mod bytes;
mod csv;
mod detect;
mod html;
mod left_out;
mod minimalloc;
mod no_stacks;
#[cfg(feature = "nsys")]
mod nsys;
mod options;
mod packed;
mod pickle;
mod pprof;
mod pytorch;
mod refusal;
mod states;
mod table;
mod text;
mod trace;

use std::io::{Cursor, Read};
use std::path::Path;

use millpond_core::DeviceId;
use millpond_engine::log::{LogError, open_file};

use crate::budget::Budget;
use crate::recording::Recording;

use bytes::Bytes;
use detect::{Found, HEAD_BYTES};
use packed::Unpacked;
use refusal::Refusal;

pub use options::Options;

/// The memory in bytes that reading needs for any file: buffers, and zstd's window.
const OVERHEAD: u64 = 12 << 20;

/// How many bytes of a log's start are searched for lines of other programs.
const START_BYTES: usize = 256 << 10;

/// Imports the file at `path`.
///
/// # Errors
/// The file cannot be opened or read, has an unknown format, or is a pickle that names code. The error names
/// the problem and the remedy.
pub fn open(path: &Path, options: &Options) -> Result<Recording, LogError> {
    let mut file = open_file(path)?;
    let size = file.metadata().map_or(0, |data| data.len());
    let name = path.display().to_string();
    let mut head = Vec::new();
    let read = (&mut file).take(16).read_to_end(&mut head);
    read.map_err(|error| refused(&name, error.into()))?;
    if detect::found(&head) == Found::Sqlite {
        let mut budget = budget(size, options);
        return finished(database(path, &name, options, &mut budget), &name, options);
    }
    sized(name, Cursor::new(head).chain(file), size, options)
}

/// Imports the data of a reader. Errors name the file as `name`.
///
/// # Errors
/// Returns the errors of [`open`]. A SQLite database is an error, too, because it can only be opened as a
/// file.
pub fn read(
    name: impl Into<String>,
    raw: impl Read + Send,
    options: &Options,
) -> Result<Recording, LogError> {
    sized(name.into(), raw, 0, options)
}

/// Returns whether the log reader should read a file with this start. It should read empty files, and files
/// that cannot be decompressed. It should also read files with RMM's columns whose first lines are all rows.
/// For all these files, the log reader has the best error messages.
pub fn is_for_log_reader(head: &[u8]) -> bool {
    let unpacked = Unpacked::new(head).and_then(|mut unpacked| unpacked.start(START_BYTES));
    unpacked.map_or(true, |start| detect::is_for_log_reader(&start))
}

/// Returns whether a file with this start is a log that [`Recording::write_csv`] wrote. Such a log contains
/// the settings of the program's allocator, and other data that a log reader leaves out.
pub fn is_recording(head: &[u8]) -> bool {
    let unpacked = Unpacked::new(head).and_then(|mut unpacked| unpacked.start(HEAD_BYTES));
    unpacked.is_ok_and(|start| detect::is_recording(&start))
}

/// Returns whether a file with this start is a CSV file for minimalloc.
pub fn is_minimalloc(head: &[u8]) -> bool {
    let unpacked = Unpacked::new(head).and_then(|mut unpacked| unpacked.start(HEAD_BYTES));
    unpacked.is_ok_and(|start| detect::found(&start) == Found::Minimalloc)
}

fn sized(name: String, raw: impl Read + Send, size: u64, options: &Options) -> Result<Recording, LogError> {
    let mut budget = budget(size, options);
    finished(content(&name, raw, options, &mut budget), &name, options)
}

/// Ends every import. No device has a number of 2^30 or more, so such a number counts as unknown.
/// If the file does not record its device, the request for a device is refused.
fn finished(read: Result<Recording, Refusal>, name: &str, options: &Options) -> Result<Recording, LogError> {
    let mut recording = read.map_err(|error| refused(name, error))?;
    if options.device.is_some() && recording.device.is_none() {
        return Err(refused(name, Refusal::new("does not record its device: omit --device")));
    }
    recording.device = recording.device.filter(|number| DeviceId::cuda(*number).ordinal() == *number);
    Ok(recording)
}

fn budget(size: u64, options: &Options) -> Budget {
    Budget::of_file(options.memory, size, OVERHEAD)
}

fn content(
    name: &str,
    raw: impl Read + Send,
    options: &Options,
    budget: &mut Budget,
) -> Result<Recording, Refusal> {
    let mut unpacked = Unpacked::new(raw)?;
    let head = unpacked.start(HEAD_BYTES)?;
    let found = detect::found(&head);
    let whole = Cursor::new(head).chain(unpacked);
    match found {
        Found::Pickle => snapshot(name, whole, options, budget),
        Found::Html => match html::pickle(whole)? {
            Some(pickle) => snapshot(name, pickle, options, budget),
            None => Err(Refusal::new(
                "is a web page without a snapshot in it; name the page that torch.cuda._memory_viz wrote \
                 (trace_plot, segment_plot), or the snapshot itself",
            )),
        },
        Found::Rmm => csv::import(name, whole, options, budget),
        Found::Minimalloc => minimalloc::import(name, whole, budget),
        Found::Sqlite => Err(Refusal::new(
            "is a SQLite database, which can be read only from an uncompressed file, not from a pipe; pass \
             the path of such a file",
        )),
        Found::Trace => trace::import(name, whole, options, budget),
        Found::Pprof => pprof::import(name, whole, options, budget),
        Found::Text(unknown) => text::import(name, whole, unknown, options, budget),
        Found::Other(what) => Err(Refusal::new(what)),
    }
}

fn snapshot(
    name: &str,
    bytes: impl Read,
    options: &Options,
    budget: &mut Budget,
) -> Result<Recording, Refusal> {
    let mut bytes = Bytes::new(Box::new(bytes));
    let (values, root) = pickle::read(&mut bytes, budget)?;
    pytorch::import(name, &values, root, options, budget)
}

#[cfg(feature = "nsys")]
fn database(path: &Path, name: &str, options: &Options, budget: &mut Budget) -> Result<Recording, Refusal> {
    nsys::import(path, name, options, budget)
}

#[cfg(not(feature = "nsys"))]
fn database(_: &Path, _: &str, _: &Options, _: &mut Budget) -> Result<Recording, Refusal> {
    Err(Refusal::new(
        "is a SQLite database, but this program cannot read it: it was built without the feature `nsys`",
    ))
}

fn refused(name: &str, refusal: Refusal) -> LogError {
    LogError::new(name, refusal.line, refusal.text)
}
