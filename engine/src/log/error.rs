//! The errors of reading a log.

use std::fmt;

/// The reason why a log, or one row of it, cannot be read. Prints as `file:line: column: reason`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogError {
    /// The name of the log.
    pub file: String,
    /// The line, counted from 1; 0 if the error is about the file as a whole.
    pub line: u64,
    /// The column's name, if the error is about one.
    pub column: Option<&'static str>,
    /// The problem, and the remedy.
    pub reason: String,
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if let Some(column) = self.column {
            write!(f, ": column {column}")?;
        }
        write!(f, ": {}", self.reason)
    }
}

impl std::error::Error for LogError {}
