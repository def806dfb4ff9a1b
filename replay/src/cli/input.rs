//! Checks stacks and reads logs.

use std::io::{self, Cursor, Read};
use std::path::Path;

use millpond_core::stack::{LayerTable, StackSpec};
use millpond_engine::log::{self, LogReader};
use millpond_engine::program::{Limits, Program};
use millpond_snapshot::import::{self, Options};
use millpond_snapshot::peers;
use millpond_snapshot::recording::Recording;

use super::suggest;
use super::verdict::Failure;
use crate::progress::Progress;

/// How many bytes of a file's start are read to find out whether the file is a log. A compressed zstd block
/// is smaller than this.
pub(super) const HEAD_BYTES: u64 = 256 << 10;

/// Checks that all layers and parameters of the stacks exist. Commands call it before they measure anything.
pub(super) fn check(stacks: &[StackSpec], table: &LayerTable) -> Result<(), Failure> {
    Ok(stacks.iter().try_for_each(|stack| stack.check(table))?)
}

/// Reads a log, or imports a file of another format. `-` is the standard input.
pub(super) fn read(path: &Path, limits: Limits, progress: Progress) -> millpond_engine::Result<Program> {
    if path == Path::new("-") {
        return program("standard input", io::stdin(), limits);
    }
    suggest::existing(path)?;
    let name = path.display().to_string();
    let file = log::open_file(path)?;
    let bar = progress.reading(&name, file.metadata().map_or(0, |data| data.len()));
    let program = if is_import(path)? {
        import::open(path, &Options::default())
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
    if read.is_err() || import::is_for_log_reader(&head) {
        return Program::read(LogReader::from_reader(name, whole)?, limits);
    }
    of_recording(&import::read(name, whole, &Options::default())?, limits)
}

/// Makes a program from a recording. Its summary also has the model of the recorded program's allocator, and
/// the number of its private pools.
fn of_recording(recording: &Recording, limits: Limits) -> millpond_engine::Result<Program> {
    let program = recording.program(limits)?.recorded_with(peers::model_of(recording));
    Ok(program.private_pools(peers::private_pools(recording)))
}

/// Returns whether a file is imported. A file that is not imported is read as a log, row by row.
fn is_import(path: &Path) -> millpond_engine::Result<bool> {
    let mut head = Vec::new();
    let read = log::open_file(path)?.take(HEAD_BYTES).read_to_end(&mut head);
    Ok(read.is_ok() && !import::is_for_log_reader(&head))
}
