//! The command line of `run`.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::thread;

use clap::Args;
use millpond_core::stack::StackSpec;
use millpond_core::{Error, Result, environment, parse_bytes, watch};
use millpond_snapshot::explain;
use millpond_snapshot::import::{self, Options};
use millpond_snapshot::recording::EventKind;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use tempfile::TempPath;

use super::input::named;
use super::verdict::{Failure, Verdict, report, warn};

/// Runs a program, and records or limits its device memory; the program is not changed
///
/// A library is loaded into the program and its child processes, in front of the CUDA driver. It sees each
/// allocation of device memory, of all frameworks and libraries of the process.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunArgs {
    /// Write a log of all allocations and frees to this file, with the call stacks of C++ and Python; if
    /// several processes use CUDA, each further process adds its number to the name
    #[arg(long, value_name = "FILE", value_parser = named())]
    record: Option<PathBuf>,

    /// Let the program take at most this much memory from each device, as in 20GiB; CUDA then reports a
    /// device of this size, and refuses more
    #[arg(long, value_name = "SIZE", value_parser = budget)]
    budget: Option<u64>,

    /// Serve cudaMalloc and cudaMallocAsync from this stack, as in cuda+pool; if the program's Python has the
    /// package millpond, PyTorch, CuPy and Numba use the stack directly
    #[arg(long, value_name = "SPEC")]
    stack: Option<StackSpec>,

    /// If the program runs out of memory, print an explanation when it ends, as `explain` does
    #[arg(long)]
    explain: bool,

    /// Let `millpond-replay top` watch the program, in another terminal: its memory by library and line
    #[arg(long)]
    top: bool,

    /// The program and its arguments; a file that ends in .py and is not executable runs with Python
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// The exit status if the program cannot be run, as `env` and `timeout` have it.
const NOT_RUN: u8 = 125;
const NOT_STARTED: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Names the allocator of XLA, which JAX uses.
const XLA_ALLOCATOR: &str = "XLA_PYTHON_CLIENT_ALLOCATOR";

/// The file name of the library.
const LIBRARY: &str = "libmillpond_run.so";

/// What Python runs at its start.
const AT_PYTHONS_START: &str = include_str!("sitecustomize.py");

fn budget(text: &str) -> std::result::Result<u64, String> {
    parse_bytes(text).map_err(|error| error.message().to_owned())
}

/// Runs the program. Returns its exit status.
pub(super) fn run(args: &RunArgs, is_coloured: bool, out: impl Write) -> ExitCode {
    match started(args, is_coloured, out) {
        Ok(status) => status,
        Err(failure) => {
            Verdict::of(Err(failure));
            ExitCode::from(NOT_RUN)
        }
    }
}

fn started(args: &RunArgs, is_coloured: bool, out: impl Write) -> std::result::Result<ExitCode, Failure> {
    let folder = tempfile::tempdir().map_err(|error| input(&"a temporary folder", &error))?;
    let record = match (&args.record, args.explain) {
        (Some(file), _) => Some(std::path::absolute(file).map_err(|error| input(&file.display(), &error))?),
        (None, true) => Some(folder.path().join("run.csv")),
        (None, false) => None,
    };
    let mut command = command(&args.program);
    prepare(&mut command, args, record.as_deref(), folder.path())?;
    let earlier = match &record {
        Some(file) => make_way(file).map_err(|error| input(&file.display(), &error))?,
        None => None,
    };
    let mut started = || -> io::Result<(Signals, Child)> { Ok((signals()?, command.spawn()?)) };
    let (signals, child) = match started() {
        Ok(started) => started,
        Err(error) => {
            report(&format!("{}: {error}", Path::new(command.get_program()).display()));
            if let Some((earlier, file)) = earlier.zip(record) {
                put_back(earlier, &file)?;
            }
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            return Ok(ExitCode::from(if is_missing { NOT_FOUND } else { NOT_STARTED }));
        }
    };
    drop(earlier);
    let status = wait(child, signals).map_err(|error| input(&"the program", &error))?;
    if let Some(file) = record
        && let Err(failure) = end(&file, args, is_coloured, out)
    {
        // The program has ended, and its exit status counts.
        Verdict::of(Err(failure));
    }
    Ok(code(status))
}

/// Moves an old recording away: the library does not write to a file that exists, because that is another
/// process's. The old recording is deleted when the value is dropped. Anything but a plain file stays.
fn make_way(file: &Path) -> io::Result<Option<TempPath>> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    // Also shows that the folder exists and can be written to.
    let place = tempfile::Builder::new().prefix(".millpond-earlier-").tempfile_in(folder)?.into_temp_path();
    match fs::symlink_metadata(file) {
        Ok(data) if data.is_file() => fs::rename(file, &place).map(|()| Some(place)),
        Ok(_) => Err(io::Error::other("is not a plain file; name another one")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Moves an old recording back, because the program did not start.
fn put_back(earlier: TempPath, file: &Path) -> std::result::Result<(), Failure> {
    earlier.persist_noclobber(file).or_else(|failed| {
        let kept = failed.path.keep().map_err(|failed| input(&file.display(), &failed.error))?;
        Err(input(&format!("the earlier recording is now {}", kept.display()), &failed.error))
    })
}

/// Returns the command of the program. A script of Python need not be executable.
fn command(program: &[OsString]) -> Command {
    let file = Path::new(&program[0]);
    let python = environment::variable("MILLPOND_RUN_PYTHON");
    let is_script = file.extension().is_some_and(|ending| ending == "py");
    let is_executable = || fs::metadata(file).is_ok_and(|data| data.permissions().mode() & 0o111 != 0);
    let mut command = if is_script && (python.is_some() || !is_executable()) {
        let mut command = Command::new(python.unwrap_or_else(|| "python3".into()));
        command.arg(file);
        command
    } else {
        Command::new(file)
    };
    command.args(&program[1..]);
    command
}

/// Sets the environment of the program.
fn prepare(command: &mut Command, args: &RunArgs, record: Option<&Path>, folder: &Path) -> Result<()> {
    let library = library()?;
    command.env("LD_PRELOAD", joined(&library, "LD_PRELOAD"));
    if let Some(file) = record {
        command.env("MILLPOND_RUN_RECORD", file);
    }
    if let Some(bytes) = args.budget {
        command.env("MILLPOND_RUN_BUDGET", bytes.to_string());
    }
    if let Some(stack) = &args.stack {
        command.env("MILLPOND_RUN_STACK", stack.to_string());
        // JAX then allocates each buffer with its stream.
        if environment::variable(XLA_ALLOCATOR).is_none() {
            command.env(XLA_ALLOCATOR, "cuda_async");
        }
    }
    if args.top {
        command.env("MILLPOND_RUN_TOP", "1");
        if environment::variable(watch::VARIABLE).is_none() {
            command.env(watch::VARIABLE, "1");
        }
    }
    let written = fs::write(folder.join("sitecustomize.py"), AT_PYTHONS_START);
    written.map_err(|error| Error::invalid_argument(format!("{}: {error}", folder.display())))?;
    command.env("PYTHONPATH", joined(folder, "PYTHONPATH"));
    Ok(())
}

/// Puts a path in front of those in an environment variable.
fn joined(path: &Path, variable: &str) -> OsString {
    let mut value = path.as_os_str().to_owned();
    if let Some(rest) = environment::variable(variable).filter(|rest| !rest.is_empty()) {
        value.push(":");
        value.push(rest);
    }
    value
}

/// Returns the library to load: the one that the environment names, or else the one next to this program.
fn library() -> Result<PathBuf> {
    let named = environment::variable("MILLPOND_RUN_LIBRARY").map(PathBuf::from);
    let program = std::env::current_exe().ok();
    let beside = program.as_deref().and_then(Path::parent).map(|folder| folder.join(LIBRARY));
    let found = named.or(beside).filter(|file| file.exists()).ok_or_else(|| {
        Error::invalid_argument(format!(
            "{LIBRARY} is not next to this program; build it with `cargo build --release -p millpond-run`, \
             or name it in MILLPOND_RUN_LIBRARY"
        ))
    })?;
    match found.to_string_lossy().contains([':', ' ']) {
        true => Err(Error::invalid_argument(format!(
            "{}: the dynamic linker cannot load a file whose path contains a space or a colon",
            found.display()
        ))),
        false => Ok(found),
    }
}

/// Says what was recorded, and explains it.
fn end(
    file: &Path,
    args: &RunArgs,
    is_coloured: bool,
    mut out: impl Write,
) -> std::result::Result<(), Failure> {
    if !file.exists() {
        warn("the program made no call of the CUDA driver, so nothing was recorded");
        return Ok(());
    }
    if !args.explain {
        return Ok(());
    }
    let recording = import::open(file, &Options::default()).map_err(millpond_engine::Error::from)?;
    if recording.events().any(|event| event.kind == EventKind::AllocateFailure) {
        let explanation = explain::explain(&recording, None);
        explain::print(&explanation, explain::Style::new(is_coloured), &mut out)?;
    }
    Ok(())
}

fn input(what: &dyn std::fmt::Display, error: &io::Error) -> Failure {
    Error::invalid_argument(format!("{what}: {error}")).into()
}

/// Returns which signals this process ignores, as under `nohup`. The program must ignore them, too.
fn ignored() -> impl Fn(i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    move |signal| mask >> (signal - 1) & 1 == 1
}

/// Collects the signals that this process does not ignore. The program is started after that, so that none
/// is lost.
fn signals() -> io::Result<Signals> {
    let is_ignored = ignored();
    let known = [SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];
    Signals::new(known.into_iter().filter(|signal| !is_ignored(*signal)))
}

/// Waits for the program. A signal that a terminal sends reaches the program, too, so this process ignores
/// it. Other signals are passed on.
fn wait(mut child: Child, mut signals: Signals) -> io::Result<ExitStatus> {
    let (id, handle) = (Pid::from_child(&child), signals.handle());
    thread::scope(|scope| {
        scope.spawn(move || {
            for signal in signals.forever().filter(|signal| ![SIGINT, SIGQUIT].contains(signal)) {
                if let Some(signal) = Signal::from_named_raw(signal) {
                    // The program may have ended in the meantime.
                    let _ = kill_process(id, signal);
                }
            }
        });
        let status = child.wait();
        handle.close();
        status
    })
}

/// Returns the program's exit status; for a program that a signal ended, 128 and the number of the signal, as
/// in shells.
fn code(status: ExitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(NOT_RUN))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An empty entry would stand for the working folder.
    #[test]
    fn a_list_of_paths_has_no_empty_entry() {
        assert_eq!(joined(Path::new("/a"), "MILLPOND_TEST_THAT_NOBODY_SETS"), "/a");
        let path = joined(Path::new("/a"), "PATH");
        assert!(path.to_string_lossy().starts_with("/a:/"), "{path:?}");
    }
}
