//! Prints comparisons. Each format has its own file.

mod advice;
mod brief;
mod cells;
pub mod csv;
pub mod json;
mod ran;
mod reporter;
mod table;

use std::io::Write;

pub use reporter::Reporter;

/// The format of the results.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum Format {
    /// For people: the advice, and a short table of at most eight stacks.
    #[default]
    Table,
    /// For authors of allocators: all figures as tables.
    Details,
    /// One JSON object per log, each on its own line.
    Json,
    /// CSV: a header, and one row per stack and log.
    Csv,
}

impl Format {
    /// Returns a reporter that prints to `out`.
    pub fn reporter<'a>(self, out: impl Write + 'a) -> Box<dyn Reporter + 'a> {
        match self {
            Self::Table => Box::new(table::TableReporter::new(out, false)),
            Self::Details => Box::new(table::TableReporter::new(out, true)),
            Self::Json => Box::new(json::JsonReporter::new(out)),
            Self::Csv => Box::new(csv::CsvReporter::new(out)),
        }
    }
}

#[cfg(test)]
mod tests;
