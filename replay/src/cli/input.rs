//! Checks stacks and reads logs.

use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser};
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{Error, small_file};
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

/// Returns whether the path is `-`, which stands for the standard input or output.
pub(super) fn is_stream(path: &Path) -> bool {
    path == Path::new("-")
}

/// Parses the path of a file that is not replaced by a standard stream.
pub(super) fn named() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match is_stream(&path) {
        true => Err("a file's name is needed here; a file of this name is `./-`"),
        false => Ok(path),
    })
}

/// Returns an error if two of these files are the standard input, which can be read only once.
pub(super) fn refuse_two_readers<'a>(files: impl IntoIterator<Item = &'a Path>) -> Result<(), Error> {
    match files.into_iter().filter(|file| is_stream(file)).count() {
        0 | 1 => Ok(()),
        _ => Err(Error::invalid_argument("`-` is named twice, but the standard input can be read only once")),
    }
}

/// Reads a small text file. `-` is the standard input.
///
/// # Errors
/// The errors of [`small_file::read`], with the file's name.
pub(super) fn text(path: &Path) -> Result<String, Error> {
    let (name, read) = match is_stream(path) {
        true => (STANDARD_INPUT.to_owned(), small_file::read_from(io::stdin())),
        false => (path.display().to_string(), small_file::read(path)),
    };
    read.map_err(|error| Error::invalid_argument(format!("{name}: {error}")))
}

/// Reads a log, or imports a file of another format. `-` is the standard input.
pub(super) fn read(path: &Path, limits: Limits, progress: Progress) -> millpond_engine::Result<Program> {
    if is_stream(path) {
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

#[cfg(test)]
mod tests {
    use std::any::TypeId;

    use clap::builder::StyledStr;
    use clap::error::ErrorKind;
    use clap::{Arg, Command, CommandFactory};

    use super::*;
    use crate::cli::args::Cli;

    /// Whether the command refuses `-` as this argument, whatever else it needs.
    fn refuses(command: &Command, arg: &Arg) -> bool {
        let option = arg.get_long().map(|name| format!("--{name}"));
        let words = [Some("command".to_owned()), option, Some("-".to_owned())];
        let parsed = command.clone().try_get_matches_from(words.into_iter().flatten());
        parsed.is_err_and(|error| error.kind() == ErrorKind::ValueValidation)
    }

    #[test]
    fn each_file_of_the_command_line_is_a_stream_as_its_help_says_or_refuses_to_be_one() {
        let mut whole = Cli::command();
        whole.build();
        let mut files = 0;
        for command in std::iter::once(&whole).chain(whole.get_subcommands()) {
            for arg in command.get_arguments() {
                if arg.get_value_parser().type_id() == TypeId::of::<PathBuf>() {
                    let help = arg.get_long_help().or(arg.get_help()).map(StyledStr::to_string);
                    let help = help.unwrap_or_default();
                    let (name, says) = (command.get_name(), help.contains("`-` is the standard"));
                    assert_ne!(refuses(command, arg), says, "{name} {arg}: {help}");
                    files += 1;
                }
            }
        }
        assert!(files > 15, "{files} arguments name files");
    }
}
