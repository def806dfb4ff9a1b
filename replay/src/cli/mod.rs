//! The command line of `millpond-replay`, for programs that add their own layers.
//!
//! A program adds its layers to the table of [`compare::layers`], and passes the table to [`main`]. The
//! program then has the whole command line for its stacks, with reports, exit status and help:
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! use millpond_core::Layer;
//! use millpond_core::stack::{LayerEntry, LayerKind};
//! use millpond_replay::{cli, compare};
//! use millpond_resources::PoolLayer;
//!
//! const OWN_POOL: LayerEntry = LayerEntry {
//!     name: "own_pool",
//!     about: "the pool of this program",
//!     params: &[],
//!     kind: LayerKind::Layer(|_, upstream| Ok(std::sync::Arc::new(PoolLayer::new().layer(upstream)?))),
//! };
//!
//! fn main() -> ExitCode {
//!     cli::main(&compare::layers().with([OWN_POOL])) // knows `--stack cuda+own_pool`
//! }
//! ```

mod args;
mod bench;
mod busy;
mod calibrate;
mod color;
mod explain;
mod export;
mod fidelity;
mod format;
mod gate;
mod import;
mod input;
mod output;
mod overwrite;
mod peer;
mod plan;
mod progress;
mod record;
mod report;
mod run;
mod shell;
mod sizes;
mod suggest;
mod top;
mod tune;
mod verdict;
mod words;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::CommandFactory;
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{Error, environment};
use millpond_driver::DeviceSpec;
use millpond_measure::bench as workloads;
use millpond_measure::busy as in_flight;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::compare::{self, Settings};
use crate::report::Format;

use args::{Cli, Command};
use bench::BenchArgs;
use busy::BusyArgs;
use color::ColorArg;
use input::{check, read};
use overwrite::Reads;
use verdict::{Failure, Verdict};

/// Runs the command in the process's arguments. Stacks are built from the layers of `table`. Results go to
/// the standard output. Diagnostics that `MILLPOND_LOG` selects go to the standard error.
///
/// If the arguments ask for help or are wrong, the call ends the process.
pub fn main(table: &LayerTable) -> ExitCode {
    let out = io::stdout().lock();
    let cli = words::parse(std::env::args_os()).unwrap_or_else(|error| error.exit());
    cli.color.choose();
    let is_coloured = anstream::AutoStream::choice(&out) != anstream::ColorChoice::Never;
    match show_diagnostics() {
        Ok(()) => status(&cli, table, is_coloured, out),
        failed => Verdict::of(failed.map(|()| Verdict::Fine)).into(),
    }
}

/// Runs the command in `arguments`, whose first item is the program's name. Results go to `out`. Errors go to
/// the standard error. Diagnostics go to the caller's `tracing` subscriber.
///
/// # Errors
/// If the arguments ask for help, the error is the help text. If the arguments are wrong, it is a message. In
/// both cases, no command has run.
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    table: &LayerTable,
    out: impl Write,
) -> Result<ExitCode, String> {
    let cli = words::parse(arguments).map_err(|error| error.to_string())?;
    let is_coloured = cli.color == ColorArg::Always;
    Ok(status(&cli, table, is_coloured, out))
}

/// Runs the command, prints its error, and returns the exit status. The command `run` has the program's.
fn status(cli: &Cli, table: &LayerTable, is_coloured: bool, out: impl Write) -> ExitCode {
    match &cli.command {
        Some(Command::Run(args)) => run::run(args, is_coloured, out),
        _ => Verdict::of(dispatch(cli, table, is_coloured, out)).into(),
    }
}

/// Runs the command. Text for people has colours if `is_coloured`.
fn dispatch(cli: &Cli, table: &LayerTable, is_coloured: bool, out: impl Write) -> Result<Verdict, Failure> {
    match &cli.command {
        Some(Command::Bench(args)) => bench(args, table, out),
        Some(Command::Busy(args)) => busy(args, table, out),
        Some(Command::Calibrate(args)) => calibrate::run(args, table, out),
        Some(Command::Completions(args)) => shell::completions(args, Cli::command(), out),
        Some(Command::Explain(args)) => explain::run(args, is_coloured, out),
        Some(Command::Fidelity(args)) => fidelity::run(args, out),
        Some(Command::Export(args)) => export::run(args, out),
        Some(Command::Gate(args)) => gate::run(args, out),
        Some(Command::Import(args)) => import::run(args, out),
        Some(Command::Man(args)) => shell::man(args, Cli::command(), out),
        Some(Command::Plan(args)) => plan::run(args, out),
        Some(Command::Top(args)) => top::run(args, out),
        Some(Command::Tune(args)) => tune::run(args, table, out),
        Some(Command::Record(args)) => record::run(args, out),
        Some(Command::Report(args)) => report::run(args, table, out),
        Some(Command::Run(_)) => Ok(Verdict::Fine), // `status` has run it
        None => replay(cli, table, out),
    }
}

/// Reads each log, replays it through each stack, and prints the figures.
fn replay(cli: &Cli, table: &LayerTable, mut out: impl Write) -> Result<Verdict, Failure> {
    if cli.list_layers {
        list_layers(table, &mut out)?;
        return Ok(Verdict::Fine);
    }
    let settings = settings(cli, table)?;
    let progress = cli.progress.usual();
    let mut reporter = cli.format().reporter(out);
    let mut verdict = Verdict::Fine;
    for path in &cli.logs {
        if let Some(meant) = suggest::of_file(path, &Cli::command()) {
            let error = Error::invalid_argument(format!("{}: {meant}", path.display()));
            verdict = verdict.max(Verdict::of(Err(error.into())));
            continue;
        }
        let comparison = read(path, cli.limits(), progress).and_then(|program| {
            let peers = cli.peers.iter().map(|peer| peer.stack(program.summary()));
            let settings = settings.clone().beside(peers.collect::<millpond_core::Result<_>>()?);
            compare::compare(&program, &settings, table, &progress)
        });
        match comparison {
            Ok(comparison) => {
                verdict = verdict.max(Verdict::of_stacks(&comparison.stacks, !cli.stacks.is_empty()));
                reporter.report(&comparison)?;
            }
            // If one log fails, the other logs are still replayed.
            Err(error) => verdict = verdict.max(Verdict::of(Err(error.into()))),
        }
    }
    Ok(verdict)
}

/// Runs the workloads on each stack, and prints how long their steps take.
fn bench(args: &BenchArgs, table: &LayerTable, out: impl Write) -> Result<Verdict, Failure> {
    check(&args.stacks, table)?;
    Reads::new(&[], &args.stacks, args.device.as_ref()).refuse()?;
    let progress = args.progress.if_asked();
    let bar = progress.waiting();
    let report = workloads::bench(&args.settings(), table, &mut |case| progress.step(&bar, case))?;
    bar.finish_and_clear();
    workloads::print(&report, args.format.into(), out)?;
    Ok(Verdict::of_bench(&report))
}

/// Replays each log with kernels running, and prints the figures.
fn busy(args: &BusyArgs, table: &LayerTable, out: impl Write) -> Result<Verdict, Failure> {
    let settings = args.settings();
    let stacks = settings.subjects.iter().filter_map(in_flight::Subject::stack);
    let stacks: Vec<StackSpec> = stacks.cloned().collect();
    check(&stacks, table)?;
    Reads::new(&args.logs, &stacks, args.device.as_ref()).refuse()?;
    settings.device.open_new()?; // report a missing device before reading logs
    let progress = args.progress.if_asked();
    let mut print = match Format::from(args.format) {
        Format::Json => in_flight::json(out),
        Format::Csv => in_flight::csv(out),
        Format::Table | Format::Details => in_flight::table(out),
    };
    let mut verdict = Verdict::Fine;
    for path in &args.logs {
        let report = read(path, args.limits(), progress).and_then(|program| {
            let bar = progress.waiting();
            let mut watch = |case: &str| progress.step(&bar, case);
            let report = in_flight::run(&program, &settings, table, &mut watch);
            bar.finish_and_clear();
            report
        });
        match report {
            Ok(report) => {
                verdict = verdict.max(Verdict::of_busy(&report));
                print(&report)?;
            }
            // If one log fails, the other logs are still replayed.
            Err(error) => verdict = verdict.max(Verdict::of(Err(error.into()))),
        }
    }
    Ok(verdict)
}

fn settings(cli: &Cli, table: &LayerTable) -> Result<Settings, Failure> {
    check(&cli.stacks, table)?;
    Reads::new(&cli.logs, &cli.stacks, cli.device.as_ref()).refuse()?;
    let device = cli.device.clone().unwrap_or_else(DeviceSpec::default_device);
    device.open_new()?; // report a missing device before reading logs
    Ok(Settings::new(device, cli.stacks.clone()).options(cli.options()))
}

fn list_layers(table: &LayerTable, out: &mut impl Write) -> io::Result<()> {
    let names = table.entries().iter().flat_map(|layer| {
        let params = layer.params.iter().map(|(name, _)| name.len());
        params.chain([layer.name.len()])
    });
    let width = names.max().unwrap_or_default() + 1;
    for layer in table.entries() {
        writeln!(out, "{:<width$}{}", layer.name, layer.about)?;
        for (name, about) in layer.params {
            writeln!(out, "    {name:<width$}{about}")?;
        }
    }
    Ok(())
}

/// The filter of diagnostics if `MILLPOND_LOG` is not set: errors, and the warnings that building a stack
/// writes.
const USUAL: &str = "error,millpond::stack=warn";

/// Prints the diagnostics that `MILLPOND_LOG` selects to the standard error.
fn show_diagnostics() -> Result<(), Failure> {
    let text = environment::variable("MILLPOND_LOG").unwrap_or(USUAL.into());
    let text = text.to_string_lossy();
    let filter: Targets = text.parse().map_err(|error| {
        let advice = "write for example MILLPOND_LOG=debug or MILLPOND_LOG=millpond=trace";
        Error::invalid_argument(format!("MILLPOND_LOG=`{text}`: {error}; {advice}"))
    })?;
    let ansi = anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never;
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(ansi);
    tracing_subscriber::registry().with(lines).with(filter).init();
    Ok(())
}
