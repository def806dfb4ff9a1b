//! `millpond-replay`: replays allocation logs through stacks of memory resources and compares the stacks.

mod cli;
mod overwrite;
mod verdict;

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use millpond_core::Error;
use millpond_core::stack::{LayerTable, Params};
use millpond_driver::DeviceSpec;
use millpond_replay::compare::{self, Settings};
use millpond_replay::log::{self, LogReader};
use millpond_replay::program::Program;
use millpond_replay::progress::Progress;
use millpond_replay::report::Format;
use tracing_subscriber::EnvFilter;

use cli::Cli;
use verdict::{Failure, Verdict};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = show_diagnostics().and_then(|()| run(&cli, io::stdout().lock()));
    Verdict::of(result).into()
}

/// The whole story: read each log, replay it through each stack, print the figures.
fn run(cli: &Cli, mut out: impl Write) -> Result<Verdict, Failure> {
    let table = compare::layers();
    if cli.list_layers {
        list_layers(&table, &mut out)?;
        return Ok(Verdict::Fine);
    }
    let settings = settings(cli, &table)?;
    let progress = cli.progress();
    let mut reporter = Format::from(cli.format).reporter(out);
    let mut verdict = Verdict::Fine;
    for path in &cli.logs {
        let comparison = read(path, cli, progress)
            .and_then(|program| compare::compare(&program, &settings, &table, &progress));
        match comparison {
            Ok(comparison) => {
                verdict = verdict.max(Verdict::of_stacks(&comparison.stacks));
                reporter.report(&comparison)?;
            }
            // The other logs are not lost.
            Err(error) => verdict = verdict.max(Verdict::of(Err(error.into()))),
        }
    }
    Ok(verdict)
}

fn settings(cli: &Cli, table: &LayerTable) -> Result<Settings, Failure> {
    for layer in cli.stacks.iter().flat_map(|stack| stack.layers()) {
        Params::new(table.get(&layer.name)?, &layer.params)?;
    }
    overwrite::refuse(&cli.logs, &cli.stacks)?;
    let device = cli.device.unwrap_or_else(DeviceSpec::default_device);
    device.open()?; // a device that is not there is said before logs are read
    Ok(Settings { device, stacks: cli.stacks.clone(), options: cli.options() })
}

fn read(path: &Path, cli: &Cli, progress: Progress) -> millpond_replay::Result<Program> {
    if path == Path::new("-") {
        let reader = LogReader::from_reader("standard input", io::stdin())?;
        return Program::read(reader, cli.limits());
    }
    let name = path.display().to_string();
    let file = log::open_file(path)?;
    let bar = progress.reading(&name, file.metadata().map_or(0, |data| data.len()));
    let program = Program::read(LogReader::from_reader(name, bar.wrap_read(file))?, cli.limits());
    bar.finish_and_clear();
    program
}

fn list_layers(table: &LayerTable, out: &mut impl Write) -> io::Result<()> {
    for layer in table.entries() {
        writeln!(out, "{:<14}{}", layer.name, layer.about)?;
        for (name, about) in layer.params {
            writeln!(out, "    {name:<14}{about}")?;
        }
    }
    Ok(())
}

/// Diagnostics go to the standard error, as `MILLPOND_LOG` says.
fn show_diagnostics() -> Result<(), Failure> {
    let text = std::env::var_os("MILLPOND_LOG").filter(|text| !text.is_empty()).unwrap_or("error".into());
    let text = text.to_string_lossy();
    let filter = EnvFilter::try_new(&text).map_err(|error| {
        let advice = "write for example MILLPOND_LOG=debug or MILLPOND_LOG=millpond=trace";
        Error::invalid_argument(format!("MILLPOND_LOG=`{text}`: {error}; {advice}"))
    })?;
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let ansi = io::stderr().is_terminal() && !plain;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(ansi).init();
    Ok(())
}
