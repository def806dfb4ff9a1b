//! Shell completions, and the man page.

use std::io::Write;

use clap::{Args, Command};
use clap_complete::Shell;

use super::suggest;
use super::verdict::{Failure, Verdict};

/// Prints completions for a shell
///
/// For bash: millpond-replay completions bash > ~/.local/share/bash-completion/completions/millpond-replay
#[derive(Clone, Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The name of the shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

/// Prints the completions of a command line.
pub(super) fn completions(
    args: &CompletionsArgs,
    mut command: Command,
    mut out: impl Write,
) -> Result<Verdict, Failure> {
    // The generator panics if its output is closed, so it writes to memory.
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "millpond-replay", &mut text);
    out.write_all(&text)?;
    Ok(Verdict::Fine)
}

/// Prints a man page, as in `millpond-replay man | man -l -`
#[derive(Clone, Debug, Args)]
pub(crate) struct ManArgs {
    /// The command to describe [default: a summary of all commands, and the full help for replaying logs]
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
}

/// Prints the man page of a command line, or of one of its commands.
pub(super) fn man(args: &ManArgs, mut whole: Command, mut out: impl Write) -> Result<Verdict, Failure> {
    whole.build(); // adds the global flags to each command
    let page = match &args.command {
        None => whole,
        Some(name) => {
            let found = whole.find_subcommand(name).cloned();
            found.ok_or_else(|| suggest::no_command(name, &whole))?
        }
    };
    clap_mangen::Man::new(page).render(&mut out)?;
    Ok(Verdict::Fine)
}
