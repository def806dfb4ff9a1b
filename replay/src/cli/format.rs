//! The values of `--format`.

use clap::ValueEnum;

use crate::report::Format;

/// The values of `--format`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum)]
pub(crate) enum FormatArg {
    /// A table for people
    #[default]
    Table,
    /// One JSON object for each log, each on its own line
    Json,
    /// CSV with one row for each stack and log
    Csv,
}

impl From<FormatArg> for Format {
    fn from(format: FormatArg) -> Self {
        match format {
            FormatArg::Table => Self::Table,
            FormatArg::Json => Self::Json,
            FormatArg::Csv => Self::Csv,
        }
    }
}
