//! Reads allocation logs, and converts them to programs. Replays a program through a stack of memory
//! resources, as often as needed on the same resource. Each time is a pass.
//!
//! | module | does |
//! |---|---|
//! | [`log`] | reads rows: RMM's CSV, plain, gzip or zstd |
//! | [`program`] | turns rows into a compact program of operations, in bounded memory |
//! | [`text`] | formats numbers and untrusted texts for reports |
//!
//! # The replay
//! [`replay`] has three orders ([`Threads`]), each in its own file:
//!
//! | file | order | time of a pass |
//! |---|---|---|
//! | `one` | everything on one thread, in the log's order | the time of that thread |
//! | `relay` | one thread per logged thread, in the log's order | the sum of times between hand-overs |
//! | `free` | one thread per logged thread, in each block's own order | from first start to last end |
//!
//! One thread is the default. In the log's strict order, several threads save no time, because each hand-over
//! takes longer than many operations. With one thread, figures also stay the same from run to run. Use
//! several threads to measure two effects: the caches that a pool keeps for each thread, and contention
//! between threads.
//!
//! No kernel runs, because the replay measures only the allocator. A monotonic clock measures the time of the
//! calls. Some work is not measured: reading operations from a temporary file, hand-overs between threads,
//! making streams, and freeing the blocks that the log leaked.
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

/// Receives the events of a replay, outside of the measured time.
pub trait Watch {
    /// The replay calls this after operations ran.
    fn advanced(&mut self, _operations: usize) {}
    /// The replay calls this when a pass begins.
    fn pass_begins(&mut self) {}
    /// The replay calls this when a pass ends. The pass took `nanoseconds`. The blocks that the log leaked
    /// are still live.
    fn pass_ended(&mut self, _nanoseconds: u64) {}
}

impl Watch for () {}

/// Replays `program` through `resource`.
///
/// `driver` is the device's own driver. With it, the replay makes one stream for each stream of the log. Only
/// the log's legacy default stream becomes the legacy default stream of the device. After a
/// [sticky](millpond_core::Error::is_sticky) error, the replay ends early.
///
/// # Errors
/// A stream or a thread cannot be created, the temporary file of a long program cannot be read, the device
/// cannot be synchronised, or the resource panics. A failed allocation is not an error; see [`Outcome`].
pub fn replay(
    program: &Program,
    resource: &AnyResource,
    driver: &DriverHandle,
    options: Options,
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    let streams = Streams::create(program, driver)?;
    let again = options.ask_again.then(|| Again::new(program, driver));
    let work = Work::new(program, resource, &streams, again, options.until_failure);
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

/// Runs all passes. Returns the nanoseconds and the failures of each pass.
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
            return Ok(done); // after a sticky error, nothing can be freed
        }
        program.leaks().iter().for_each(|op| work.execute(op));
        call(&**driver, |driver| driver.synchronize()).map_err(Error::Stack)?;
    }
    Ok(done)
}

#[cfg(test)]
mod tests;
