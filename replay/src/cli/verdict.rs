//! The exit status of the program, and how it prints errors.

use std::io;
use std::process::ExitCode;

use anstyle::{AnsiColor, Effects, Style};
use millpond_engine::text::plain_lines;
use millpond_measure::bench::{Report, Status};
use millpond_measure::busy::{self, SubjectResult};
use millpond_snapshot::placement::PlanError;

use crate::compare::{StackReport, StackResult, has_model};

/// The style of the word `error` in colours; clap uses the same.
const ERROR: Style = AnsiColor::Red.on_default().effects(Effects::BOLD);

/// The style of the word `warning` in colours.
const WARNING: Style = AnsiColor::Yellow.on_default().effects(Effects::BOLD);

/// The exit statuses, mildest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Verdict {
    /// Every stack replayed every log without a failure.
    Fine = 0,
    /// A stack failed or could not be built, a budget is exceeded, or a plan does not fit.
    StackFailed = 1,
    /// A log, a stack's text or the device is wrong, or an output cannot be written.
    BadInput = 2,
}

/// An error that ends the program early, or only the work on one log.
#[derive(Debug)]
pub(crate) enum Failure {
    Input(Box<dyn std::error::Error>),
    Output(io::Error),
}

impl Verdict {
    /// Prints the error, if there is one. Returns the exit status.
    pub(crate) fn of(result: Result<Self, Failure>) -> Self {
        match result {
            Ok(verdict) => verdict,
            // The process that read the output has closed it.
            Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Self::Fine,
            Err(Failure::Output(error)) => {
                // A failed output has a different exit status from a failed comparison.
                report(&format!("the results cannot be written: {error}"));
                Self::BadInput
            }
            Err(Failure::Input(error)) => {
                report(&error.to_string());
                Self::BadInput
            }
        }
    }

    /// If the user named the stacks, a failed row of any stack counts. In the standard line-up, it suffices
    /// that one stack serves the log.
    pub(crate) fn of_stacks(stacks: &[StackReport], named: bool) -> Self {
        // In the standard line-up, a model does not count, because no program can use it.
        let failed_a_row = |stack: &StackReport| match &stack.result {
            StackResult::Ran(figures) => figures.failed_a_row() || has_model(&stack.spec),
            StackResult::Skipped { .. } | StackResult::Failed { .. } => true,
        };
        let rows_count = named || stacks.iter().all(failed_a_row);
        let verdict = |stack: &StackReport| match &stack.result {
            StackResult::Ran(figures)
                if figures.misuses_all_passes > 0 || (rows_count && figures.failed_a_row()) =>
            {
                Self::StackFailed
            }
            StackResult::Ran(_) => Self::Fine,
            StackResult::Failed { is_bad_input: false, .. } => Self::StackFailed,
            StackResult::Failed { is_bad_input: true, .. } => Self::BadInput,
            StackResult::Skipped { .. } => Self::Fine,
        };
        for stack in stacks {
            if let StackResult::Failed { error, .. } = &stack.result {
                report(&about(&stack.spec, error));
            }
        }
        stacks.iter().map(verdict).max().unwrap_or(Self::Fine)
    }

    pub(crate) fn of_bench(bench: &Report) -> Self {
        let failed = || bench.not_run.iter().filter(|not_run| not_run.status == Status::Failed);
        failed().for_each(|not_run| report(&about(&not_run.of.to_string(), &not_run.reason)));
        if failed().next().is_some() { Self::StackFailed } else { Self::Fine }
    }

    pub(crate) fn of_busy(busy: &busy::Report) -> Self {
        let mut verdict = Self::Fine;
        for case in &busy.cases {
            for stack in &case.stacks {
                if let SubjectResult::Failed { error } = &stack.result {
                    let (kernels, host, spec) = (case.kernels, case.host, &stack.spec);
                    report(&about(&format!("{spec} with kernels of {kernels}, host {host}"), error));
                    verdict = Self::StackFailed;
                }
                if stack.failures() > 0 {
                    verdict = Self::StackFailed; // the table shows the count
                }
            }
        }
        verdict
    }
}

impl From<Verdict> for ExitCode {
    fn from(verdict: Verdict) -> Self {
        Self::from(verdict as u8)
    }
}

impl From<millpond_engine::Error> for Failure {
    fn from(error: millpond_engine::Error) -> Self {
        Self::Input(error.into())
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        Self::Input(error.into())
    }
}

impl From<millpond_core::Error> for Failure {
    fn from(error: millpond_core::Error) -> Self {
        Self::Input(error.into())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// The words of the kinds of errors that tell the reader nothing, because the message names the argument or
/// the file.
const KINDS: [&str; 2] = ["invalid argument: ", "input/output error: "];

/// Prints an error without the words of its kind.
pub(super) fn report(message: &str) {
    say(ERROR, "error", without_kind(message));
}

/// Returns an error with the name of the stack or the workload that failed.
fn about(name: &str, error: &str) -> String {
    format!("{name}: {}", without_kind(error))
}

fn without_kind(error: &str) -> &str {
    KINDS.iter().find_map(|kind| error.strip_prefix(kind)).unwrap_or(error)
}

/// Prints a warning: the command did its work, but the reader may not want the result.
pub(super) fn warn(message: &str) {
    say(WARNING, "warning", message);
}

/// The most characters of a line of a message. A longer line quotes a file, such as a profile without line
/// breaks.
const LINE: usize = 4096;

/// Prints like `eprintln!`, but does not panic if the standard error is closed.
fn say(style: Style, word: &str, message: &str) {
    // A message may quote a file.
    let lines = message.split('\n').map(|line| line.chars().take(LINE).collect::<String>());
    let message = plain_lines(&lines.collect::<Vec<_>>().join("\n"));
    let text = format!("{style}{word}:{style:#} {message}\n");
    // `anstream` drops the colours if the standard error is not a terminal, or if `--color` or NO_COLOR says
    // so.
    let _ = io::Write::write_all(&mut anstream::stderr().lock(), text.as_bytes());
}
