//! The errors of reading a log.

/// The reason why a log, or one row of it, cannot be read. Prints as `file:line: column: reason`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{file}{}: {reason}", place(*line, *column))]
#[non_exhaustive]
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

impl LogError {
    /// Returns the error about a line of a log; line 0 stands for the file as a whole.
    pub fn new(file: impl Into<String>, line: u64, reason: impl Into<String>) -> Self {
        Self { file: file.into(), line, column: None, reason: reason.into() }
    }
}

fn place(line: u64, column: Option<&str>) -> String {
    let line = if line > 0 { format!(":{line}") } else { String::new() };
    column.map_or(line.clone(), |column| format!("{line}: column {column}"))
}
