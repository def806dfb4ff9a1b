//! Prints comparisons; one file per format.

mod advice;
pub mod csv;
pub mod json;
mod ran;
mod reporter;
mod table;

use std::io::Write;

pub use reporter::Reporter;

/// How results are printed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// One JSON object for each log, on a line of its own.
    Json,
    /// A header and one row for each stack of each log.
    Csv,
}

impl Format {
    /// A reporter that prints to `out`.
    pub fn reporter<'a>(self, out: impl Write + 'a) -> Box<dyn Reporter + 'a> {
        match self {
            Self::Table => Box::new(table::TableReporter::new(out)),
            Self::Json => Box::new(json::JsonReporter::new(out)),
            Self::Csv => Box::new(csv::CsvReporter::new(out)),
        }
    }
}

#[cfg(test)]
mod tests;
