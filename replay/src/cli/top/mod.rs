//! The command line of `top`.

#[cfg(unix)]
mod client;
#[cfg(unix)]
mod run;
#[cfg(unix)]
mod screen;
#[cfg(unix)]
mod view;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::bench::BenchFormatArg;
use super::input::named;

#[cfg(unix)]
pub(super) use run::run;

/// Shows the memory of a running program: its stacks of memory resources, its streams, its fragmentation, and
/// the call sites or tags that hold memory
///
/// Start the program with MILLPOND_WATCH=1. On a terminal, the command refreshes the display until you press
/// q. Otherwise, it prints one display after another until the program ends. The display names call sites if
/// a stack has the layer `recording:stacks=live` or `tracking:stacks=on`. It names tags if a stack has the
/// layer `tracking`.
#[derive(Clone, Debug, Args)]
pub(crate) struct TopArgs {
    /// The id of the process [default: list the programs that can be watched]
    #[arg(value_name = "PID")]
    process: Option<u32>,

    /// Show one display and exit
    #[arg(long)]
    once: bool,

    /// The seconds between two displays
    #[arg(long, short = 'i', value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,

    /// The format; with `json`, each display is one JSON object on its own line
    #[arg(long, short = 'f', value_enum, default_value_t, value_name = "FORMAT")]
    format: BenchFormatArg,

    /// The folder of the program's socket, if the program was started with MILLPOND_WATCH=FOLDER
    #[arg(long, value_name = "FOLDER", value_parser = named())]
    folder: Option<PathBuf>,
}

fn interval(text: &str) -> Result<Duration, String> {
    match text.trim().parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("write seconds from 0.1 to 3600, as in 0.5".to_owned()),
    }
}

/// Reports that this system has no Unix sockets.
#[cfg(not(unix))]
pub(super) fn run(
    _: &TopArgs,
    _: impl std::io::Write,
) -> Result<super::verdict::Verdict, super::verdict::Failure> {
    let why = "`top` needs a Unix system, because it connects to a Unix socket of the program";
    Err(millpond_core::Error::new(millpond_core::ErrorKind::Unsupported, why).into())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::args::{Cli, Command};
    use super::*;

    fn parse(line: &str) -> Result<TopArgs, String> {
        let words = ["millpond-replay", "top"].into_iter().chain(line.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        let Some(Command::Top(args)) = cli.command else { panic!("{cli:?}") };
        Ok(args)
    }

    #[test]
    fn flags_are_read_and_mistakes_are_told() {
        let args = parse("4213 --once -i 0.5 -f json --folder /x").unwrap();
        assert_eq!((args.process, args.once, args.interval), (Some(4213), true, Duration::from_millis(500)));
        assert_eq!((args.format, args.folder), (BenchFormatArg::Json, Some("/x".into())));
        let args = parse("").unwrap();
        assert_eq!((args.process, args.once, args.interval), (None, false, Duration::from_secs(1)));
        for line in ["-i 0", "-i NaN", "-i x", "-i 1e9"] {
            assert!(parse(line).unwrap_err().contains("0.1 to 3600"), "{line}");
        }
        assert!(parse("python").unwrap_err().contains("PID"));
    }
}
