//! Replays logs with kernels running: each allocation of a log launches a kernel on its stream.
//!
//! In a replay without kernels, every block is free for all streams as soon as it is freed, and a wait
//! between streams costs no time. Here, a block is in use until the kernels before its free finish, and a
//! wait delays a stream. So a stack pays for reusing the blocks of other streams. It pays with time if it
//! waits for those streams, or with memory if it allocates more.
//!
//! # Method
//! One thread runs the log's operations in order, with one stream for each stream of the log:
//!
//! - An allocation gets a block from the stack, and then launches a kernel on the stream. The kernel runs for
//!   a random time in the range `--kernels`. All times in the range are equally likely. One seed gives the
//!   same times in every pass, for every stack, and in the programs of `benches/peers`. On a simulated
//!   device, the kernel reads the block, and the device checks the stream order. On a GPU, the kernel only
//!   spins, and touches no memory.
//! - A free calls the stack's `deallocate` with the stream that the log names.
//! - At the end, the host waits for all streams. This is the end of the pass. Then the host frees the blocks
//!   that the log leaves live, and waits again. The next pass uses the same stack.
//!
//! Requests for zero bytes are left out. Requests that failed when the log was written are left out, too.
//!
//! # How far ahead the host is
//! | `--host` | before it allocates | after it has launched |
//! |---|---|---|
//! | `ahead` | no wait; as in CUDA, a launch waits if 1024 launches of the stream are unfinished | no wait |
//! | `level` | waits until fewer than 4 kernels of the stream are unfinished | no wait |
//! | `sync` | no wait | waits for the stream, so nothing is in flight at the next operation |
//!
//! On a simulated device, each allocation also takes `--host-us` microseconds of the host's virtual time.
//! This time stands for the launch and for the rest of the program. The time of the stack's driver calls is
//! added. As on an H200, the device needs 1.3 µs between two kernels of a stream, and a host that waits after
//! each launch loses another 3.4 µs. On a GPU, the host takes its real time.
//!
//! # Comparisons
//! - `none`: the same kernels without an allocator. Apart from measurement noise, no stack is faster.
//! - The least memory that needs no wait. For each stream, take the most live bytes since the last operation
//!   that the device has finished. Another stream cannot get this memory without a wait. So at each moment,
//!   the bound is the sum of these bytes over all streams. The bound assumes that the host takes `--host-us`
//!   for an allocation, and that the allocator takes no time. If an allocator delays the host, it needs less
//!   memory than the bound.
//! - `async`: `cuMemAllocAsync` from the device's default pool, which keeps freed memory.
//!
//! # At a capacity
//! `--capacity` limits how much of the device's memory is free when a subject is built. A subject is a stack,
//! or `async`. The capacity is a size, as in `3GiB`, or a percentage of the log's peak of live bytes, as in
//! `120%`. The rest of the memory is reserved, in whole pages of 2 MiB. So at least the capacity is left. The
//! rule is the same for stacks, `async` and the programs in `benches/peers`, on a GPU and on a simulated
//! device. If an allocator runs short of memory, it must wait for running kernels, or fail. With
//! `--capacity`, the replay counts a failed allocation, still runs its kernel, and skips its free. Without
//! `--capacity`, a failed allocation ends the run of the stack.
//!
//! # JSON
//! There is one object for each log, on its own line:
//! ```text
//! version                     1; grows when a field is renamed, removed or changes its meaning
//! device                      spec, name, simulated, total_bytes, free_bytes
//! log                         as in millpond_replay::report::json
//! seed, host_ns               as requested; host_ns for each allocation
//! operations                  in one pass: all of the log, or only its first part if requested
//! peak_live_bytes             of these operations
//! capacity_bytes              the memory that --capacity left to each subject; null without it
//! cases[]                     one for each range of kernels and each host
//!   kernels                   shortest_ns, longest_ns
//!   host                      "ahead", "level" or "sync"
//!   busiest_stream_ns         the summed kernels of the busiest stream
//!   all_streams_ns            the sum of all kernels
//!   least_bytes_without_waits see above
//!   stacks[]                  in the requested order; "none" is the first
//!     spec                    the stack as text, "none" or "async"
//!     status                  "ran", or "failed" with `error`
//!     passes[]                one for each pass
//!       end_ns                from the first operation to the end of all streams; virtual on a simulated
//!                             device
//!       host_ns               to the last operation's return on the host
//!       peak_taken_bytes      the most bytes taken from the device at one time in the pass
//!       failures              allocations that failed; always 0 without --capacity
//!       stream_waits          waits between streams that the stack inserted; null if not reported
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

/// Replays a log with kernels running. Before each stack, calls `watch` with a description.
///
/// If a stack fails, the result contains the failure, and the other stacks still run.
///
/// # Errors
/// The device cannot be opened, it cannot load the kernel, or the log's temporary file cannot be read.
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

/// Runs every subject with this range of durations and this mode of the host.
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
