//! The values of `--format`.

use clap::ValueEnum;

use crate::report::Format;

/// The values of `--format`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum)]
pub(crate) enum FormatArg {
    /// For people
    #[default]
    Table,
    /// One object per log, each on its own line
    Json,
    /// One row per stack and log
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
