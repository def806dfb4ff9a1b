//! Where colours are shown.

use clap::ValueEnum;

/// The values of `--color`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum)]
pub(crate) enum ColorArg {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Everywhere
    Always,
    /// Nowhere
    Never,
}

impl ColorArg {
    /// Takes the choice for all that the process writes with colours.
    pub(crate) fn choose(self) {
        let choice = match self {
            Self::Auto => return, // what the environment says
            Self::Always => anstream::ColorChoice::Always,
            Self::Never => anstream::ColorChoice::Never,
        };
        choice.write_global();
    }
}
