//! Measures how much memory a stack takes when a job runs for long. Replays perturbed copies of logs many
//! times in one stack, on a simulated device. Reports the bytes taken over the bytes live after 1, 5, 20, 60
//! and all passes.
//!
//! ```sh
//! cargo run --release -p millpond-replay --example long_run -- \
//!     examples/logs/rmm_cupy_4streams.csv.gz --stack cuda+pool --passes 100 --copies 40
//! ```
//!
//! Copy 0 is the log itself. Every other copy differs in two ways:
//! - It multiplies each distinct size of the log by a random factor from 1 - `--spread` to 1 + `--spread`
//!   (0.9 to 1.1), rounded to a byte, at least 1. Equal sizes stay equal, so the copy repeats whatever the
//!   log repeats. The order of similar sizes may change.
//! - With `--swap SHARE`, this share of the pairs of neighbouring operations on different blocks swap places.
//!   An operation moves by one place at most and keeps its stream and thread. Without `--swap`, the log's
//!   order stays.
//!
//! Copies, drifting sizes and cuts depend on `--seed`, the log's place and the copy's number, so they are the
//! same for every stack. One thread replays, and no kernel runs. A pass ends with the log, or at its cut.
//! Afterwards, outside of the pass's figures, the blocks that are still live are freed on their streams, in
//! the order of their allocations, and the device is synchronised. Requests that failed when the log was
//! written are left out.
//!
//! Bytes taken are the bytes that the stack held from the driver; bytes live are the bytes that the copy
//! asked for. Each is the maximum over all passes so far. Time per operation is the stack's own time on this
//! machine plus the driver's virtual time. For driver calls, the best pass is the one with the fewest. With
//! `--mode alternate` and `--mode random`, the first log follows the last, and logs share streams, as if one
//! job went on. With several stacks, a second table compares each stack with the first, on the same copies
//! and passes.

mod beside;
mod copy;
mod random;
mod report;
mod run;

use std::collections::VecDeque;
use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;

use clap::Parser;
use millpond_core::stack::StackSpec;
use millpond_driver::DeviceSpec;
use millpond_engine::program::{Limits, Program};
use millpond_replay::compare;

use beside::Beside;
use copy::Log;
use random::Random;
use report::{Format, Row};
use run::{Mode, Pass, Passes};

/// Replays perturbed copies of logs many times in one stack.
#[derive(Debug, Parser)]
struct Args {
    /// The logs
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,

    /// A stack, base first; can be given several times
    #[arg(long = "stack", short = 's', value_name = "SPEC", default_value = "cuda+pool")]
    stacks: Vec<StackSpec>,

    /// How many times each stack replays a copy
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    passes: u32,

    /// The number of copies of each log; the first is the log itself
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..))]
    copies: u32,

    /// A simulated device
    #[arg(long, short = 'd', default_value = "sim:h200", value_name = "DEVICE")]
    device: DeviceSpec,

    /// The seed for copies, drift and cuts
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// The work of a pass
    #[arg(long, value_enum, default_value = "repeat")]
    mode: Mode,

    /// How much the sizes of a copy may differ from the log's sizes, as a share: 0.1 is 10 %
    #[arg(long, default_value = "0.1", value_parser = share)]
    spread: f64,

    /// The share of neighbouring operations that swap places in copies
    #[arg(long, default_value = "0", value_parser = share)]
    swap: f64,

    /// How much a size may change from pass to pass with `--mode drift`, as a share
    #[arg(long, default_value = "0.03", value_parser = share)]
    drift: f64,

    /// Report each pass
    #[arg(long)]
    curve: bool,

    /// Threads, each with its own copy [default: one per core]
    #[arg(long, short = 'j', value_parser = clap::value_parser!(u32).range(1..))]
    jobs: Option<u32>,

    /// The format of the results
    #[arg(long, short = 'f', value_enum, default_value = "table")]
    format: Format,
}

/// Returns whether passes replay two logs.
fn has_two_logs(mode: Mode) -> bool {
    matches!(mode, Mode::Alternate | Mode::Random)
}

/// Parses a number from 0 up to, but not including, 1.
fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..1.0).contains(&share) => Ok(share),
        _ => Err("write a share of at least 0 and below 1, as in 0.1".to_owned()),
    }
}

/// The results of one replay.
type AllPasses = Vec<Pass>;

/// One copy of one log in one stack.
#[derive(Clone, Copy)]
struct Task {
    log: usize,
    stack: usize,
    copy: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    if !args.device.open()?.device().is_sim() {
        return Err("--device: use a simulated device, because copies run at the same time".into());
    }
    if has_two_logs(args.mode) && args.logs.len() < 2 {
        return Err("--mode alternate and --mode random need at least two logs".into());
    }
    let logs = args.logs.iter().map(|path| Log::new(&Program::open(path, Limits::default())?));
    let logs = logs.collect::<millpond_engine::Result<Vec<Log>>>()?;
    let runs = run_all(&args, &logs)?;
    let mut rows = Vec::new();
    for (stack, of_stack) in args.stacks.iter().zip(&runs) {
        let stack = stack.to_string();
        let all: Vec<&[AllPasses]> = of_stack.iter().map(Vec::as_slice).collect();
        for (index, runs) in all.iter().enumerate() {
            rows.push(Row::new(&name(&args, index), &stack, &[*runs], args.curve));
        }
        if all.len() > 1 {
            rows.push(Row::new("all", &stack, &all, args.curve));
        }
    }
    let mut beside = Vec::new();
    for (stack, of_stack) in args.stacks.iter().zip(&runs).skip(1) {
        let names: Vec<String> = (0..args.logs.len()).map(|index| name(&args, index)).collect();
        beside.extend(Beside::rows(&names, &stack.to_string(), of_stack, &runs[0]));
    }
    report::print(&rows, &beside, args.format, io::stdout().lock())?;
    Ok(())
}

/// Returns the log's file name up to the first dot; both names if two logs alternate.
fn name(args: &Args, index: usize) -> String {
    let name = |index: usize| {
        let path = &args.logs[index % args.logs.len()];
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.split('.').next().unwrap_or_default().to_owned()
    };
    match args.mode {
        Mode::Alternate | Mode::Random => format!("{} and {}", name(index), name(index + 1)),
        _ => name(index),
    }
}

/// Returns the passes by stack, log and copy.
fn run_all(args: &Args, logs: &[Log]) -> Result<Vec<Vec<Vec<AllPasses>>>, Box<dyn Error>> {
    let mut runs = vec![vec![vec![Vec::new(); args.copies as usize]; logs.len()]; args.stacks.len()];
    let mut tasks = VecDeque::new();
    for stack in 0..args.stacks.len() {
        for log in 0..logs.len() {
            tasks.extend((0..args.copies as usize).map(|copy| Task { log, stack, copy }));
        }
    }
    let (tasks, results) = (Mutex::new(tasks), Mutex::new(&mut runs));
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let jobs = args.jobs.map_or(cores, |jobs| jobs as usize);
    let work = || -> millpond_engine::Result<()> {
        loop {
            let next = tasks.lock().expect("no thread panics with the lock").pop_front();
            let Some(task) = next else { return Ok(()) };
            let passes = run_one(args, logs, task)?;
            results.lock().expect("no thread panics with the lock")[task.stack][task.log][task.copy] = passes;
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().map_err(|_| "a replay panicked")?.map_err(Box::<dyn Error>::from)
        })
    })?;
    Ok(runs)
}

fn run_one(args: &Args, logs: &[Log], task: Task) -> millpond_engine::Result<AllPasses> {
    let copy_of = |log: usize| {
        let mut random = Random::new(args.seed, (log as u64) << 32 | task.copy as u64);
        match task.copy {
            0 => logs[log].clone(),
            _ => logs[log].perturbed(args.spread, args.swap, &mut random),
        }
    };
    let mut copies = vec![copy_of(task.log)];
    if has_two_logs(args.mode) {
        copies.push(copy_of((task.log + 1) % logs.len()));
    }
    let passes = Passes { mode: args.mode, count: args.passes, drift: args.drift };
    let mut random = Random::new(!args.seed, (task.log as u64) << 32 | task.copy as u64);
    run::run(copies, &args.stacks[task.stack], &compare::layers(), &args.device, &passes, &mut random)
}
