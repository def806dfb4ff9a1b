//! Checks stacks and reads logs.

use std::io::{self, Cursor, Read};
use std::path::Path;

use millpond_core::stack::{LayerTable, StackSpec};
use millpond_engine::log::{self, LogReader};
use millpond_engine::program::{Limits, Program};
use millpond_engine::text::STANDARD_INPUT;
use millpond_snapshot::import::{self, Options};
use millpond_snapshot::peers;
use millpond_snapshot::recording::Recording;

use super::suggest;
use super::verdict::Failure;
use crate::progress::Progress;

/// How many bytes of a file's start are read to find out whether the file is a log. A compressed zstd block
/// is smaller than this.
pub(super) const HEAD_BYTES: u64 = 256 << 10;

/// The most memory for reading a log that `import` wrote. Its events alone are in memory, so this suffices
/// for ten million events.
const RECORDING_BYTES: u64 = 1 << 30;

/// Checks that all layers and parameters of the stacks exist. Commands call it before they measure anything.
pub(super) fn check(stacks: &[StackSpec], table: &LayerTable) -> Result<(), Failure> {
    Ok(stacks.iter().try_for_each(|stack| stack.check(table))?)
}

/// Reads a log, or imports a file of another format. `-` is the standard input.
pub(super) fn read(path: &Path, limits: Limits, progress: Progress) -> millpond_engine::Result<Program> {
    if path == Path::new("-") {
        return program(STANDARD_INPUT, io::stdin(), limits);
    }
    suggest::existing(path)?;
    let name = path.display().to_string();
    let file = log::open_file(path)?;
    let bar = progress.reading(&name, file.metadata().map_or(0, |data| data.len()));
    let program = if let Some(options) = import_options(&head(path)?, limits) {
        import::open(path, &options)
            .map_err(millpond_engine::Error::from)
            .and_then(|recording| of_recording(&recording, limits))
    } else {
        LogReader::from_reader(name, bar.wrap_read(file))
            .map_err(millpond_engine::Error::from)
            .and_then(|reader| Program::read(reader, limits))
    };
    bar.finish_and_clear();
    program
}

/// Reads a program from a pipe.
fn program(name: &str, mut source: impl Read + Send, limits: Limits) -> millpond_engine::Result<Program> {
    let mut head = Vec::new();
    let read = (&mut source).take(HEAD_BYTES).read_to_end(&mut head);
    let whole = Cursor::new(head.clone()).chain(source);
    // If the source fails, the log reader meets the same error again, and adds the name of the source to it.
    match import_options(&head, limits).filter(|_| read.is_ok()) {
        Some(options) => of_recording(&import::read(name, whole, &options)?, limits),
        None => Program::read(LogReader::from_reader(name, whole)?, limits),
    }
}

/// Makes a program from a recording. Its summary also has the model of the recorded program's allocator, the
/// number of its private pools, and the memory that its device had for the allocator.
fn of_recording(recording: &Recording, limits: Limits) -> millpond_engine::Result<Program> {
    let program = recording.program(limits)?.recorded_with(peers::model_of(recording));
    let program = program.private_pools(peers::private_pools(recording));
    Ok(program.available_bytes(recording.sums().available_bytes))
}

/// Returns the start of a file; an empty one if the file cannot be read.
fn head(path: &Path) -> millpond_engine::Result<Vec<u8>> {
    let mut head = Vec::new();
    let read = log::open_file(path)?.take(HEAD_BYTES).read_to_end(&mut head);
    Ok(read.map_or_else(|_| Vec::new(), |_| head))
}

/// Returns how a file with this start is imported; `None` if the file is read as a log, row by row. A log
/// that `import` wrote is imported again, because only an importer reads its notes: the settings of the
/// program's allocator, its pools, and the free memory of its device. Only the log reader skips bad rows.
fn import_options(head: &[u8], limits: Limits) -> Option<Options> {
    if import::is_recording(head) {
        return (!limits.skip_bad_rows).then(|| Options::default().memory(RECORDING_BYTES));
    }
    (!import::is_for_log_reader(head)).then(Options::default)
}
