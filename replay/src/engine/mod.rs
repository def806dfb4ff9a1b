//! Replays a program through a stack, pass after pass on the same resource.
//!
//! Three orders ([`Threads`]), one file each:
//!
//! | file | order | time of a pass |
//! |---|---|---|
//! | `one` | everything on one thread, in the log's order | the thread's |
//! | `relay` | a thread for each logged one, in the log's order | that between hand-overs, added up |
//! | `free` | a thread for each logged one, each block's own order | from the first start to the last end |
//!
//! One thread is the default: strictly in the log's order, several threads save no time, each hand-over
//! takes longer than many operations, and figures stay the same from run to run. What threads change is what
//! a pool keeps for each of them, and what they wait for each other.
//!
//! No kernel runs: what is measured is the allocator. Time is that of a monotonic clock around the calls;
//! reading operations from a temporary file, handing over between threads, making streams, and freeing what
//! the log leaked lie outside of it.

mod again;
mod clock;
mod free;
mod one;
mod relay;
mod streams;
mod work;

use std::fmt;
use std::sync::Arc;

use millpond_core::{AnyResource, DriverHandle};

pub use again::{AskedAgain, Unserved};

use crate::program::{Op, Program};
use crate::{Error, Result};
use again::Again;
use streams::Streams;
use work::Work;

/// Which threads replay, and in which order.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Threads {
    /// A thread for each thread of the log, one at a time, strictly in the order of the log. Where threads
    /// alternate in the log, handing over takes most of the time that a replay takes: about 4 µs a row.
    AsLogged,
    /// A thread for each thread of the log, all at once. A block is freed after its allocation, and
    /// threads drift apart by some thousand frees at most; nothing else of the log's order is kept, so the
    /// peak of live bytes may be another than the log's.
    Free,
    /// One thread, in the order of the log.
    #[default]
    One,
}

impl fmt::Display for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AsLogged => "as-logged",
            Self::Free => "free",
            Self::One => "1",
        })
    }
}

/// A log with more threads than this is replayed with this many; each stands for several.
pub const MAX_THREADS: usize = 256;

/// How a program is replayed.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Which threads replay.
    pub threads: Threads,
    /// How often the program runs on the same resource; at least 1.
    pub passes: u32,
    /// Whether requests that failed when the log was written are made at their place. What is served goes
    /// back at once; but the resource may have grown for it, and keep what it took.
    pub ask_again: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { threads: Threads::default(), passes: 1, ask_again: false }
    }
}

/// Told of what a replay does, outside the time that it measures.
pub trait Watch {
    /// Operations are done.
    fn advanced(&mut self, _operations: usize) {}
    /// A pass begins.
    fn pass_begins(&mut self) {}
    /// A pass ended after so many nanoseconds. What the log leaked is still live.
    fn pass_ended(&mut self, _nanoseconds: u64) {}
}

impl Watch for () {}

/// The first allocation that failed.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Failure {
    /// The line in the log.
    pub line: u64,
    /// The error. It may have several lines; the first says what matters.
    pub error: String,
    /// What the stack knew when memory was out, and what would have helped, where it said so.
    pub report: Option<Box<millpond_core::OutOfMemoryReport>>,
}

impl Failure {
    /// The error without the lines that go into details.
    pub fn first_line(&self) -> &str {
        self.error.lines().next().unwrap_or_default()
    }
}

/// What a replay found out.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Nanoseconds of each pass.
    pub pass_ns: Vec<u64>,
    /// Allocations that failed in each pass.
    pub pass_failures: Vec<u64>,
    /// Allocations that failed, in all passes. Their frees were left out.
    pub failures: u64,
    /// The first of them.
    pub first_failure: Option<Failure>,
    /// What became of the requests that had failed when the log was written, if they were made, in all
    /// passes.
    pub asked_again: Option<AskedAgain>,
}

/// Runs blocks of operations in one of the orders.
trait Runner {
    /// Runs one block and returns the nanoseconds that count.
    fn run(&mut self, block: &Arc<[Op]>) -> Result<u64>;
}

/// Replays `program` through `resource`.
///
/// Streams are made by `driver`, the device's own: one for each logged stream, the legacy default stream
/// for itself. After a sticky error the replay ends early.
///
/// # Errors
/// A stream or a thread cannot be had, the temporary file of a long program cannot be read, the device
/// cannot be synchronised with, or the resource panicked. A failed allocation is none: see [`Outcome`].
pub fn replay(
    program: &Program,
    resource: &AnyResource,
    driver: &DriverHandle,
    options: Options,
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    let streams = Streams::create(program, driver)?;
    let again = options.ask_again.then(|| Again::new(program, driver));
    let work = Work::new(program, resource, &streams, again);
    let body = |runner: &mut dyn Runner| drive(program, &work, driver, options.passes, runner, watch);
    let passes = match options.threads {
        Threads::One => one::with_runner(&work, body),
        Threads::AsLogged if work.workers() == 1 => one::with_runner(&work, body),
        Threads::AsLogged => relay::with_runner(&work, body),
        Threads::Free => free::with_runner(&work, body),
    }?;
    let (failures, first_failure, asked_again) = work.into_answers();
    let (pass_ns, pass_failures) = passes.into_iter().unzip();
    Ok(Outcome { pass_ns, pass_failures, failures, first_failure, asked_again })
}

/// All passes: the nanoseconds and the failures of each.
fn drive(
    program: &Program,
    work: &Work<'_>,
    driver: &DriverHandle,
    passes: u32,
    runner: &mut dyn Runner,
    watch: &mut dyn Watch,
) -> Result<Vec<(u64, u64)>> {
    let mut done = Vec::new();
    for _ in 0..passes.max(1) {
        work.begin_pass();
        let failures_before = work.failures();
        watch.pass_begins();
        let mut nanoseconds = 0;
        for index in 0..program.block_count() {
            let block = program.block(index)?;
            nanoseconds += runner.run(&block)?;
            watch.advanced(block.len());
            if work.is_stopped() {
                break;
            }
        }
        watch.pass_ended(nanoseconds);
        done.push((nanoseconds, work.failures() - failures_before));
        if work.is_stopped() {
            return Ok(done); // after a sticky error there is nothing to give back to
        }
        program.leaks().iter().for_each(|op| work.execute(op));
        driver.synchronize().map_err(|error| Error::Stack(error.into()))?;
    }
    Ok(done)
}

#[cfg(test)]
mod tests;
