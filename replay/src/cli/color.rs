//! Decides when to show colours.

use clap::ValueEnum;

/// The values of `--color`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum)]
pub(crate) enum ColorArg {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

impl ColorArg {
    /// Applies the choice to everything that the process prints in colour.
    pub(crate) fn choose(self) {
        let choice = match self {
            Self::Auto => return, // the environment decides
            Self::Always => anstream::ColorChoice::Always,
            Self::Never => anstream::ColorChoice::Never,
        };
        choice.write_global();
    }
}
