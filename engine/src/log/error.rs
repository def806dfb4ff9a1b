//! The errors of reading a log.

/// The reason why a log, or one row of it, cannot be read. It is printed as `file:line: column: reason`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{file}{}: {reason}", place(*line, *column))]
#[non_exhaustive]
pub struct LogError {
    /// The name of the log.
    pub file: String,
    /// The number of the line, counted from 1; 0 if the error is about the whole file.
    pub line: u64,
    /// The name of the column, if the error is about a column.
    pub column: Option<&'static str>,
    /// The problem, and the remedy.
    pub reason: String,
}

impl LogError {
    /// Returns an error about a line of a log. Line 0 stands for the whole file.
    pub fn new(file: impl Into<String>, line: u64, reason: impl Into<String>) -> Self {
        Self { file: file.into(), line, column: None, reason: reason.into() }
    }
}

fn place(line: u64, column: Option<&str>) -> String {
    let line = if line > 0 { format!(":{line}") } else { String::new() };
    column.map_or(line.clone(), |column| format!("{line}: column {column}"))
}
