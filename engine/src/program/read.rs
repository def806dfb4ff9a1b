//! Reads a log, and makes a program from it.

use std::path::Path;

use super::{Limits, Program, ProgramBuilder, rows};
use crate::Result;
use crate::log::{LogError, LogReader, column};

impl Program {
    /// Reads the log at `path`.
    ///
    /// # Errors
    /// Returns the errors of [`read`](Self::read), and errors of opening the file.
    pub fn open(path: &Path, limits: Limits) -> Result<Self> {
        Self::read(LogReader::open(path)?, limits)
    }

    /// Reads a log.
    ///
    /// # Errors
    /// A row is bad and bad rows are not skipped, the log has no rows, or the temporary file cannot be
    /// written.
    pub fn read(mut reader: LogReader<'_>, limits: Limits) -> Result<Self> {
        let mut builder = ProgramBuilder::new(limits);
        let is_of_millpond =
            [column::SEQUENCE, column::NOTES].into_iter().any(|column| reader.has_column(column));
        let mut cut_off = None;
        rows::for_each_row(&mut reader, |row, is_cut_off| -> Result<()> {
            match row {
                Ok(event) => builder.push(&event)?,
                Err(error) if limits.skip_bad_rows && is_cut_off => cut_off = Some(error),
                Err(error) if limits.skip_bad_rows => builder.skip(&error),
                Err(error) => return Err(with_advice(error, is_cut_off).into()),
            }
            Ok(())
        })?;
        let mut program = builder.finish()?;
        program.summary.file = reader.file().to_owned();
        program.summary.is_of_millpond = is_of_millpond;
        program.summary.flaws.rest_missing =
            cut_off.as_ref().or(reader.rest_missing()).map(LogError::to_string);
        if program.summary.events == 0 {
            if let Some(error) = cut_off {
                return Err(error.into());
            }
            let reason = match program.summary.skipped_rows {
                0 => "has a header but no rows: there is nothing to replay".to_owned(),
                1 => "has no row that can be read (1 bad row was skipped)".to_owned(),
                bad => format!("has no row that can be read ({bad} bad rows were skipped)"),
            };
            return Err(LogError { file: program.summary.file, line: 0, column: None, reason }.into());
        }
        Ok(program)
    }
}

/// Adds the advice with which the rest of a log can still be read.
#[cold]
fn with_advice(error: LogError, is_cut_off: bool) -> LogError {
    let advice = if is_cut_off { "replays the complete rows" } else { "skips such rows" };
    LogError { reason: format!("{}; --skip-bad-rows {advice}", error.reason), ..error }
}
