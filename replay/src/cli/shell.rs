//! What shells and manuals know about the command line: completions, and the man page.

use std::io::Write;

use clap::{Args, Command};
use clap_complete::Shell;

use super::verdict::{Failure, Verdict};

/// Prints the completions of a shell
///
/// For bash: millpond-replay completions bash > ~/.local/share/bash-completion/completions/millpond-replay
#[derive(Clone, Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

/// Prints the completions of a command line.
pub(super) fn completions(
    args: &CompletionsArgs,
    mut command: Command,
    mut out: impl Write,
) -> Result<Verdict, Failure> {
    // The generator panics where its output is closed, so it writes to memory.
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "millpond-replay", &mut text);
    out.write_all(&text)?;
    Ok(Verdict::Fine)
}

/// Prints the man page of a command line.
pub(super) fn man(command: Command, mut out: impl Write) -> Result<Verdict, Failure> {
    clap_mangen::Man::new(command).render(&mut out)?;
    Ok(Verdict::Fine)
}
