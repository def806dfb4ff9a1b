//! Parses the words of the command line.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Parser};
use millpond_engine::text::file_word;

use super::args::Cli;
use super::suggest;

/// Parses the words of the command line; the first is the program's name. Global flags may come before the
/// name of a command, as in `--color never explain FILE`.
pub(super) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut command = Cli::command();
    let mut words: Vec<OsString> = words.into_iter().collect();
    name_first(&mut words, &command);
    Cli::try_parse_from(&words).map_err(|error| match misspelt(&words, &error, &command) {
        Some(meant) => command.error(ErrorKind::InvalidSubcommand, meant),
        None => with_tip(&words, error),
    })
}

/// If `gate` is called without a budget, adds a tip that tells the user how to create one.
fn with_tip(words: &[OsString], mut error: clap::Error) -> clap::Error {
    let is_missing = error.kind() == ErrorKind::MissingRequiredArgument;
    if is_missing && words.get(1).is_some_and(|word| word == "gate") {
        let file = words.get(2).and_then(|word| word.to_str()).filter(|word| !word.starts_with('-'));
        let file = file.map_or("FILE".into(), file_word);
        let tip = format!("`gate {file} --budget budget.toml --write` creates a budget");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Moves the name of a command before the flags that precede it. Otherwise clap takes the words after a flag
/// for logs.
fn name_first(words: &mut [OsString], command: &Command) {
    let mut at = 1;
    while let Some(word) = words.get(at).and_then(|word| word.to_str()) {
        at += match word {
            "--progress" | "--no-progress" => 1,
            "--color" => 2,
            _ if word.starts_with("--color=") => 1,
            _ => break,
        };
    }
    if words.get(at).is_some_and(|word| is_name(word, command)) {
        words[1..=at].rotate_right(1);
    }
}

fn is_name(word: &OsStr, command: &Command) -> bool {
    command.get_subcommands().any(|known| OsStr::new(known.get_name()) == word)
}

/// If a command's name is misspelt and one of its own flags follows, returns the suggestion. Replaying logs
/// does not know this flag.
fn misspelt(words: &[OsString], error: &clap::Error, command: &Command) -> Option<String> {
    let name = words.get(1).filter(|name| !is_name(name, command)).map(Path::new)?;
    let is_of_flags = error.kind() == ErrorKind::UnknownArgument;
    let meant = suggest::of_file(name, command).filter(|_| is_of_flags)?;
    Some(format!("{}: {meant}", name.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args;

    fn of(line: &str) -> Result<Cli, String> {
        let words = std::iter::once("millpond-replay").chain(line.split_whitespace());
        parse(words.map(OsString::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_of_all_commands_stand_before_a_name_as_well_as_after_it() {
        for line in [
            "--color never explain a.pickle",
            "--color=never --progress explain a.pickle",
            "--no-progress explain --color never a.pickle",
            "explain a.pickle --color never --progress",
        ] {
            let cli = of(line).unwrap();
            assert!(matches!(cli.command, Some(args::Command::Explain(_))), "{line}");
            assert_eq!(cli.color, super::super::color::ColorArg::Never, "{line}");
        }
        assert!(matches!(of("--progress bench").unwrap().command, Some(args::Command::Bench(_))));
    }

    #[test]
    fn what_stands_behind_other_flags_or_is_a_path_is_a_log() {
        for line in ["--skip-bad-rows bench", "--progress ./bench", "--color never a.csv bench", "-- bench"] {
            assert!(of(line).unwrap().command.is_none(), "{line}");
        }
        // Commands without progress reject the flag.
        assert!(of("--progress man").unwrap_err().contains("--progress"));
        assert!(of("--color").unwrap_err().contains("--color"));
    }

    #[test]
    fn without_a_budget_the_error_says_how_one_is_made() {
        let error = of("gate a.pickle").unwrap_err();
        assert!(
            error.contains("--budget <BUDGET.toml>") && error.contains("`gate a.pickle --budget"),
            "{error}"
        );
    }

    #[test]
    fn a_misspelt_command_is_told_although_its_flags_are_unknown() {
        let error = of("explian a.pickle --device-memory 8GiB").unwrap_err();
        assert!(error.contains("did you mean `explain`?"), "{error}");
        let error = of("a.csv --device-memory 8GiB").unwrap_err();
        assert!(error.contains("unexpected argument"), "{error}");
    }
}
