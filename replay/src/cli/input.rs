//! Checks stacks and reads logs.

use std::io;
use std::path::Path;

use millpond_core::stack::{LayerTable, StackSpec};

use super::verdict::Failure;
use crate::log::{self, LogReader};
use crate::program::{Limits, Program};
use crate::progress::Progress;

/// Checks that all layers and parameters exist, before anything is measured.
pub(super) fn check(stacks: &[StackSpec], table: &LayerTable) -> Result<(), Failure> {
    stacks.iter().try_for_each(|stack| stack.check(table))?;
    Ok(())
}

/// Reads a log; `-` is the standard input.
pub(super) fn read(path: &Path, limits: Limits, progress: Progress) -> crate::Result<Program> {
    if path == Path::new("-") {
        let reader = LogReader::from_reader("standard input", io::stdin())?;
        return Program::read(reader, limits);
    }
    let name = path.display().to_string();
    let file = log::open_file(path)?;
    let bar = progress.reading(&name, file.metadata().map_or(0, |data| data.len()));
    let program = Program::read(LogReader::from_reader(name, bar.wrap_read(file))?, limits);
    bar.finish_and_clear();
    program
}
