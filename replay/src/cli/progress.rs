//! When progress is shown.

use clap::Args;

use crate::progress::Progress;

/// The flags of the commands that show progress.
#[derive(Clone, Copy, Default, Debug, Args)]
pub(super) struct ProgressArgs {
    /// Show progress on the standard error from the start; if it is not a terminal, print plain lines
    /// [default: progress appears after 2 s, on a terminal only; with `bench` and `busy`, it never appears]
    #[arg(long, overrides_with = "no_progress")]
    progress: bool,

    /// Never show progress
    #[arg(long)]
    no_progress: bool,
}

impl ProgressArgs {
    /// Returns bars that appear if the work takes long. The flags can change this.
    pub(super) fn usual(self) -> Progress {
        match (self.progress, self.no_progress) {
            (true, _) => Progress::new(true),
            (false, true) => Progress::new(false),
            (false, false) => Progress::when_slow(),
        }
    }

    /// Returns bars only if the user asks for them. A thread that draws bars would disturb measurements.
    pub(super) fn if_asked(self) -> Progress {
        Progress::new(self.progress)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        progress: ProgressArgs,
    }

    #[test]
    fn the_last_word_on_progress_counts() {
        let flags = |line: &str| {
            let words = std::iter::once("program").chain(line.split_whitespace());
            let ProgressArgs { progress, no_progress } = Flags::parse_from(words).progress;
            (progress, no_progress)
        };
        assert_eq!(flags("--no-progress --progress"), (true, false));
        assert_eq!(flags("--progress --no-progress"), (false, true));
        assert_eq!(flags(""), (false, false));
    }
}
