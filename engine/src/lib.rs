//! Reads logs of allocations, makes programs of them, and replays a program through a stack of memory
//! resources, pass after pass on the same resource.
//!
//! | module | does |
//! |---|---|
//! | [`log`] | reads rows: RMM's CSV, plain, gzip or zstd |
//! | [`program`] | turns rows into a compact program of operations, in bounded memory |
//! | [`text`] | writes numbers and strangers' texts as reports have them |
//!
//! # The replay
//! [`replay`] has three orders ([`Threads`]), one file each:
//!
//! | file | order | time of a pass |
//! |---|---|---|
//! | `one` | everything on one thread, in the log's order | the thread's |
//! | `relay` | a thread for each logged one, in the log's order | that between hand-overs, added up |
//! | `free` | a thread for each logged one, each block's own order | from the first start to the last end |
//!
//! One thread is the default: strictly in the log's order, several threads save no time, each hand-over takes
//! longer than many operations, and figures stay the same from run to run. Threads change the caches that a
//! pool keeps for each of them, and the waits for each other.
//!
//! No kernel runs: the allocator is measured. Time is that of a monotonic clock around the calls; it excludes
//! reading operations from a temporary file, handing over between threads, making streams, and freeing the
//! blocks that the log leaked.
//!
//! ```
//! use millpond_core::stack::{LayerTable, StackSpec};
//! use millpond_driver::DeviceSpec;
//! use millpond_engine::log::LogReader;
//! use millpond_engine::program::{Limits, Program};
//! use millpond_engine::{Options, replay};
//!
//! let log = "Thread,Time,Action,Pointer,Size,Stream\n\
//!            7,05:01:18.946606,allocate,0x7f00,1000,0\n\
//!            7,05:01:18.946609,free,0x7f00,1000,0\n";
//! let program = Program::read(LogReader::from_reader("example", log.as_bytes())?, Limits::default())?;
//! let device = DeviceSpec::SimH200.open_new()?;
//! let layers = LayerTable::new(millpond_resources::LAYERS.iter().copied());
//! let pool = "cuda+pool".parse::<StackSpec>()?.build(&layers, &device)?;
//! let outcome = replay(&program, &pool, &device, Options::default(), &mut ())?;
//! assert_eq!(outcome.failures, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod again;
mod clock;
mod device_figures;
mod error;
mod free;
pub mod log;
mod one;
mod options;
mod outcome;
pub mod program;
mod relay;
mod runner;
mod streams;
pub mod text;
mod work;

use millpond_core::driver::call;
use millpond_core::{AnyResource, DriverHandle};

pub use again::{AskedAgain, Unserved};
pub use device_figures::DeviceFigures;
pub use error::{Error, Result, csv_to_io};
pub use options::{MAX_THREADS, Options, Threads};
pub use outcome::{Failure, Outcome};

use again::Again;
use program::Program;
use runner::Runner;
use streams::Streams;
use work::Work;

/// Receives the events of a replay, outside the time that it measures.
pub trait Watch {
    /// Called when operations are done.
    fn advanced(&mut self, _operations: usize) {}
    /// Called when a pass begins.
    fn pass_begins(&mut self) {}
    /// Called when a pass ended; it took `nanoseconds`. The blocks that the log leaked are still live.
    fn pass_ended(&mut self, _nanoseconds: u64) {}
}

impl Watch for () {}

/// Replays `program` through `resource`.
///
/// Streams are made by `driver`, the device's own: one for each logged stream; the legacy default stream
/// stands for itself. After a sticky error the replay ends early.
///
/// # Errors
/// A stream or a thread cannot be created, the temporary file of a long program cannot be read, the device
/// cannot be synchronised with, or the resource panicked. A failed allocation is not an error: see
/// [`Outcome`].
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

/// Runs all passes; returns the nanoseconds and the failures of each.
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
        call(&**driver, |driver| driver.synchronize()).map_err(Error::Stack)?;
    }
    Ok(done)
}

#[cfg(test)]
mod tests;
