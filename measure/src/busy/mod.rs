//! Replays logs with work in flight: each allocation of a log launches a kernel on its stream.
//!
//! In a replay without work every block is free for all streams at the moment it is freed, and a wait between
//! streams costs nothing. Here a block is in use until the kernels before its free are done, and a wait holds
//! up a stream. So a stack pays for reusing other streams' blocks: with time, if it waits for them, or with
//! memory, if it takes more.
//!
//! # Method
//! One thread goes through the log's operations in their order, on a stream for each of the log's:
//!
//! - An allocation asks the stack for the block and then launches a kernel on the stream, which runs for a
//!   time drawn uniformly from `--kernels`. One seed gives the same times in every pass, for every stack,
//!   and in the programs of `benches/peers`. The kernel reads the block on a simulated device, where an
//!   oracle checks stream order; on a GPU it spins and touches no memory.
//! - A free gives the block back in the order of the stream that the log names.
//! - At the end the host waits for all streams: that is the end of the pass. Then it frees the blocks that
//!   the log leaves live, waits again, and the next pass begins, on the same stack.
//!
//! Requests for zero bytes, and those that failed when the log was written, are left out.
//!
//! # How far ahead the host is
//! | `--host` | before it allocates | after it has launched |
//! |---|---|---|
//! | `ahead` | no wait; a launch waits when 1024 of the stream are unfinished, as in CUDA | no wait |
//! | `level` | waits until fewer than 4 kernels of the stream are unfinished | no wait |
//! | `sync` | no wait | waits for the stream, so that nothing is in flight at the next operation |
//!
//! On a simulated device each allocation also takes the host `--host-us` microseconds of virtual time, for
//! the launch and the program around it, besides the costs of the stack's driver calls; between two kernels
//! of a stream the device needs 1.3 µs; and a host that waits after each launch loses 3.4 µs more, as on an
//! H200. On a GPU the host takes its real time.
//!
//! # Comparisons
//! - `none`: no allocator, the same kernels. But for chance, no stack ends before it.
//! - The least memory that needs no wait: at each moment, the sum over streams of the most that the stream
//!   held live since the last of its operations that the device has done. Memory that a stream held later
//!   than that cannot go to another without a wait. It is computed for a host that takes `--host-us` for an
//!   allocation and an allocator that takes no time; an allocator that holds up the host needs less.
//! - `async`: `cuMemAllocAsync` from the device's default pool, which keeps freed memory.
//!
//! # At a capacity
//! With `--capacity`, as in `3GiB` or `120%` of the log's peak live bytes, only so much of the device is
//! free when a subject is built: the rest is reserved, in whole pages of 2 MiB, so that at least this much
//! is left. That is the same for stacks, `async` and the peers, on a GPU and on a simulated device. An
//! allocator that is short of memory has to wait for what is in flight, or fail. An allocation that fails is
//! counted, its kernel runs all the same, and there is nothing to free; without `--capacity` it ends the run
//! of its stack.
//!
//! # JSON
//! One object for each log, each on a line of its own:
//! ```text
//! version                     1; grows when a field is renamed, removed or means something else
//! device                      spec, name, simulated, total_bytes, free_bytes
//! log                         as in millpond_replay::report::json
//! seed, host_ns               as asked for; host_ns for each allocation
//! operations                  in one pass: those of the log, or of its first part if that was asked for
//! peak_live_bytes             of these
//! capacity_bytes              what --capacity left to each subject; null without it
//! cases[]                     one for each range of kernels and each host
//!   kernels                   shortest_ns, longest_ns
//!   host                      "ahead", "level" or "sync"
//!   busiest_stream_ns         the sum of the kernels of the stream where it is largest
//!   all_streams_ns            the sum of all kernels
//!   least_bytes_without_waits see above
//!   stacks[]                  in the order asked for; "none" is the first
//!     spec                    the stack as text, "none" or "async"
//!     status                  "ran", or "failed" with `error`
//!     passes[]                one for each pass
//!       end_ns                from the first operation to the end of all streams; virtual on a simulated
//!                             device
//!       host_ns               to the last operation's return on the host
//!       peak_taken_bytes      the most bytes taken from the device at one time in the pass
//!       failures              allocations that failed; always 0 without --capacity
//!       stream_waits          waits between streams that the stack inserted; null if it does not tell
//!                             ("async")
//!       host_waits            calls of the stack that made the host wait: synchronisations with streams,
//!                             events and the device, and frees that do it (cuMemFree and cuMemFreeHost)
//!       driver_calls          all calls of the stack
//!       by_kind               the same by kind: calls, failures, wall_ns
//!       ladder                as in millpond_replay::report::json, of this pass
//! ```

mod allocator;
mod bound;
mod capacity;
mod device;
mod figures;
mod host;
mod kernels;
mod lanes;
#[cfg(test)]
mod peers;
mod plan;
mod report;
mod run;
mod settings;
mod subject;
#[cfg(test)]
mod tests;

use millpond_core::stack::LayerTable;

pub use capacity::Capacity;
pub use figures::{CaseFigures, PassFigures, Report, SubjectReport, SubjectResult};
pub use host::Host;
pub use kernels::Kernels;
pub use report::{Reporter, csv, json, table};
pub use settings::Settings;
pub use subject::Subject;

use millpond_engine::DeviceFigures;
use millpond_engine::Result;
use millpond_engine::program::Program;

use plan::Plan;

/// Replays a log with work in flight; calls `watch` before each stack.
///
/// A stack that fails is part of the result: it does not lose the others.
///
/// # Errors
/// The device cannot be opened, or has no kernel to run; the log's temporary file cannot be read.
pub fn run(
    program: &Program,
    settings: &Settings,
    table: &LayerTable,
    watch: &mut dyn FnMut(&str),
) -> Result<Report> {
    let device = DeviceFigures::new(&settings.device, &settings.device.open_new()?)?;
    let mut report = Report {
        version: Report::VERSION,
        device,
        log: program.summary().clone(),
        seed: settings.seed,
        host_ns: settings.host_ns,
        operations: 0,
        peak_live_bytes: 0,
        capacity_bytes: None,
        cases: Vec::new(),
    };
    for &kernels in &settings.kernels {
        let plan = Plan::new(program, settings.first, kernels, settings.seed)?;
        (report.operations, report.peak_live_bytes) = (plan.steps().len() as u64, plan.peak_live_bytes());
        report.capacity_bytes = settings.capacity.map(|capacity| capacity.bytes(plan.peak_live_bytes()));
        for &host in &settings.hosts {
            report.cases.push(case(&plan, kernels, host, settings, table, watch));
        }
    }
    Ok(report)
}

/// Every subject with these kernels and this host.
fn case(
    plan: &Plan,
    kernels: Kernels,
    host: Host,
    settings: &Settings,
    table: &LayerTable,
    watch: &mut dyn FnMut(&str),
) -> CaseFigures {
    let others = settings.subjects.iter().filter(|subject| **subject != Subject::None);
    let subjects = std::iter::once(&Subject::None).chain(others).map(|subject| {
        watch(&format!("{subject}, kernels of {kernels}, host {host}"));
        SubjectReport {
            spec: subject.to_string(),
            result: run::subject(plan, subject, host, settings, table),
        }
    });
    CaseFigures {
        stacks: subjects.collect(),
        kernels,
        host,
        busiest_stream_ns: plan.busiest_stream_ns(),
        all_streams_ns: plan.all_streams_ns(),
        least_bytes_without_waits: bound::least_bytes_without_waits(plan, host, settings.host_ns),
    }
}
