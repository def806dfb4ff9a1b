//! The command line of `gate`.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use millpond_core::{Error, ErrorKind};
use millpond_engine::text::{STANDARD_INPUT, write_json};
use millpond_snapshot::gate::{self, Budget};

use super::import::{ReportFormat, SourceArgs};
use super::input::{is_stream, named, refuse_two_readers, text};
use super::verdict::{self, Failure, Verdict};
use super::{output, overwrite, suggest};

/// Compares the memory recorded in a file with a budget, so that a build fails if the program needs more
/// memory
///
/// Reads the same files as `import`. The exit status is 0 if the file is within the budget, and 1 if the file
/// is over the budget. The exit status is 2 if the file or the budget cannot be read, or if an output cannot
/// be written. In a GitHub Actions step, --markdown "$GITHUB_STEP_SUMMARY" shows the table in the summary of
/// the run.
#[derive(Clone, Debug, Args)]
pub(crate) struct GateArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// The file with the budget; --write creates this file. `-` is the standard input, and with --write the
    /// standard output
    #[arg(long, short = 'b', value_name = "BUDGET.toml")]
    budget: PathBuf,

    /// Write the smallest budget that the file meets, and compare nothing. If requests failed in the file, or
    /// if the file lacks a part of the run, the command warns that the budget may be wrong
    #[arg(long)]
    write: bool,

    /// Append a Markdown table to this file
    #[arg(long, value_name = "FILE.md", conflicts_with = "write", value_parser = named())]
    markdown: Option<PathBuf>,

    /// Write JUnit XML to this file
    #[arg(long, value_name = "FILE.xml", conflicts_with = "write", value_parser = named())]
    junit: Option<PathBuf>,

    /// The format of the result
    #[arg(long, short = 'f', value_enum, default_value_t, value_name = "FORMAT")]
    format: ReportFormat,
}

/// Imports a file. Compares the file with the budget, or writes a budget that the file meets.
pub(super) fn run(args: &GateArgs, mut out: impl Write) -> Result<Verdict, Failure> {
    for output in [&args.markdown, &args.junit].into_iter().flatten().chain([&args.budget]) {
        args.source.refuse_overwrite(Some(output))?;
    }
    let path = args.budget.as_path();
    let outputs = [args.markdown.as_deref(), args.junit.as_deref()].into_iter().flatten();
    overwrite::refuse_twice(&[path].into_iter().chain(outputs).collect::<Vec<_>>())?;
    if args.write {
        let recording = args.source.import()?;
        let budget = Budget::of(&recording);
        if is_stream(path) {
            write!(out, "{budget}")?;
        } else {
            output::replace(path, |file| write!(file, "{budget}"))
                .map_err(|error| not_written(path, &error))?;
            writeln!(out, "{}", path.display())?;
        }
        out.flush()?;
        budget.warnings(&recording).iter().for_each(|why| verdict::warn(why));
        return Ok(Verdict::Fine);
    }
    refuse_two_readers([args.source.file(), path])?;
    let name = if is_stream(path) {
        STANDARD_INPUT.to_owned()
    } else {
        exists(path)?;
        path.display().to_string()
    };
    let budget: Result<Budget, _> = text(path)?.parse();
    let budget = budget.map_err(|error| Error::invalid_argument(format!("{name}: {error}")))?;
    let gate = gate::compare(&args.source.import()?, &budget);
    if let Some(path) = &args.markdown {
        let file = OpenOptions::new().append(true).create(true).open(path);
        file.and_then(|mut file| gate::markdown(&gate, &mut file))
            .map_err(|error| not_written(path, &error))?;
    }
    if let Some(path) = &args.junit {
        let written = output::replace(path, |mut file| gate::junit(&gate, &mut file));
        written.map_err(|error| not_written(path, &error))?;
    }
    match args.format {
        ReportFormat::Text => gate::text(&gate, &mut out)?,
        ReportFormat::Json => {
            write_json(&mut out, &gate)?;
            writeln!(out)?;
        }
    }
    Ok(if gate.is_within { Verdict::Fine } else { Verdict::StackFailed })
}

/// If there is no budget yet, returns an error that tells the user how to make one.
fn exists(path: &Path) -> Result<(), Error> {
    suggest::existing(path)?;
    // If the path has any other problem, reading it reports the problem.
    if path.try_exists().unwrap_or(true) {
        return Ok(());
    }
    let shown = path.display();
    Err(Error::invalid_argument(format!(
        "{shown}: there is no such file; to create the budget, pass the file of a good run and add --write"
    )))
}

/// An I/O error has a different exit status from a file over its budget.
fn not_written(path: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("{} cannot be written: {error}", path.display()))
}
