//! Finds the settings that need the least memory for a recording. It replays the recording on simulated
//! devices.
//!
//! Each candidate runs on devices of different sizes. Candidates are compared by the smallest device on which
//! they serve every request. They are not compared by their peak with unlimited memory, because an allocator
//! returns free memory to the driver before it fails. A request can fail again with more memory, so larger
//! capacities are replayed, too.

mod attempt;
mod candidates;
mod text;

use std::time::{Duration, Instant};

use millpond_core::format_bytes;
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_driver::DeviceSpec;
use millpond_engine::program::Limits;
use millpond_engine::{Error, Result};
use serde::Serialize;

use crate::fidelity::Fidelity;
use crate::peers;
use crate::placement::{self, Bounds};
use crate::recording::Recording;

use attempt::{Attempts, MOST, PAGE, Stopped};
pub use attempt::{Cost, Smallest, stalls};
pub use candidates::{Candidate, Family};
pub use text::{not_advised, only_delays, print};

/// The version of the JSON format.
const VERSION: u32 = 2;

/// The alignment of the driver's addresses, in bytes. No allocator here has smaller blocks. `plan` computes
/// its bound with the same alignment.
const ALIGNMENT: u64 = 256;

/// Two capacities that differ by less than 1/`ALIKE` count as equal.
const ALIKE: u64 = 100;

/// The input of [`tune`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The available memory in bytes. If there is a capacity, the best candidate is the one with the fewest
    /// stalls in this memory.
    pub capacity: Option<u64>,
    /// The time after which no new replay starts.
    pub time: Duration,
}

impl Request {
    millpond_core::setters! { capacity: Option<u64>, time: Duration }
}

impl Default for Request {
    /// Returns a request for the smallest capacity, with a time of one minute.
    fn default() -> Self {
        Self { capacity: None, time: Duration::from_secs(60) }
    }
}

/// A candidate with the results of its replays. Sizes are in bytes.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct Tried {
    /// The candidate.
    #[serde(flatten)]
    pub candidate: Candidate,
    /// The setting or the line of code that selects the candidate.
    pub line: String,
    /// The smallest capacity at which the candidate serves every request. `None` if there is no such
    /// capacity, or if the time was over.
    pub smallest: Option<Smallest>,
    /// The ratio of `smallest` to the least memory that any allocator needs if streams share memory in the
    /// order of the host's calls.
    pub over_host_order: Option<f64>,
    /// The ratio of `smallest` to the least memory that any allocator needs if streams share no memory. It
    /// can be below 1 if the candidate lets streams share memory.
    pub over_stream_safe: Option<f64>,
    /// The candidate's peak with unlimited memory; `None` if the candidate always reserves all memory of the
    /// device.
    pub peak_without_limit: Option<u64>,
    /// The cost of the replay at the requested capacity; `None` if a request failed, or if no capacity was
    /// requested.
    pub at_capacity: Option<Cost>,
    /// The reason why the candidate has no result; `None` if it has a result.
    pub failure: Option<String>,
    /// Whether the time was over before the candidate had all results.
    pub timed_out: bool,
}

impl Tried {
    fn new(candidate: Candidate, line: String) -> Self {
        Self {
            candidate,
            line,
            smallest: None,
            over_host_order: None,
            over_stream_safe: None,
            peak_without_limit: None,
            at_capacity: None,
            failure: None,
            timed_out: false,
        }
    }
}

/// The result of `tune`. Sizes are in bytes.
///
/// ```
/// use millpond_core::stack::LayerTable;
/// use millpond_snapshot::{import, peers, tune};
///
/// let log = "Thread,Time,Action,Pointer,Size,Stream\n\
///            7,05:01:18.946606,allocate,0x7f00,3000000,0\n\
///            7,05:01:18.946609,free,0x7f00,3000000,0\n";
/// let recording = import::read("log", log.as_bytes(), &import::Options::default())?;
/// let table = LayerTable::new(millpond_resources::LAYERS.iter().chain(peers::LAYERS).copied());
/// let tuned = tune::tune(&recording, &tune::Request::default(), &table, &mut |_| ())?;
/// let best = &tuned.tried[tuned.best.unwrap()];
/// assert_eq!(best.smallest.as_ref().unwrap().bytes, 4 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct Tuned {
    /// The version of this format.
    pub version: u32,
    /// The name of the file.
    pub file: String,
    /// The format of the file.
    pub format: String,
    /// The number of allocations in the file.
    pub allocations: u64,
    /// The number of streams in the file.
    pub streams: usize,
    /// The least memory that any allocator needs if streams share memory in the order of the host's calls.
    pub bound_host_order: u64,
    /// The least memory that any allocator needs if streams share no memory.
    pub bound_stream_safe: u64,
    /// How well the model predicts the file; `None` if PyTorch did not write it.
    pub fidelity: Option<Fidelity>,
    /// The number of private memory pools in the file, for instance of CUDA graphs. The replays merge them,
    /// so no candidate is the best if there are such pools.
    pub private_pools: usize,
    /// Whether a request failed after live memory had grown until the end of the file. Another allocator only
    /// delays such a failure.
    pub fails_by_growth: bool,
    /// The most bytes that the program's allocator could have on its device when a request failed, as
    /// [`Sums::available_bytes`](crate::recording::Sums::available_bytes). `None` if the file does not tell.
    pub available_bytes: Option<u64>,
    /// The available memory, if the request had a capacity.
    pub capacity: Option<u64>,
    /// The candidates, in the order of the trials.
    pub tried: Vec<Tried>,
    /// The index of the best candidate among the settings of the framework's own allocator.
    pub best: Option<usize>,
    /// The index of the best of all candidates. Candidates that use millpond as the framework's allocator
    /// count as well.
    pub best_of_all: Option<usize>,
    /// How many pairs of settings were skipped. A pair is skipped if one of its settings alone needs more
    /// memory than PyTorch's defaults.
    pub pruned: usize,
    /// Whether the time was over before all candidates were tried. Another run may find a better candidate.
    pub timed_out: bool,
    /// Costs and effects that the replays do not cover.
    pub not_modelled: Vec<String>,
}

/// Tries all candidates for a recording. Before each trial, calls `watch` with the stack.
///
/// If the time is not over, the result depends on the recording alone.
///
/// # Errors
/// The recording has no calls to replay, a setting cannot be read, or a replay cannot run.
pub fn tune(
    recording: &Recording,
    request: &Request,
    table: &LayerTable,
    watch: &mut dyn FnMut(&str),
) -> Result<Tuned> {
    // Pools reserve whole pages, so they cannot use the rest of a device.
    let capacity = request.capacity.map(|bytes| if bytes < PAGE { bytes } else { bytes - bytes % PAGE });
    let candidates = candidates::of(recording).map_err(|why| wrong(recording, &why))?;
    let Bounds { host_order, stream_safe } = bounds_on_a_device(recording, request)?;
    let program = recording.program(Limits::default())?;
    // If the clock cannot represent the time, there is no deadline.
    let until = Instant::now().checked_add(request.time);
    let attempts = Attempts { program: &program, table, bound: host_order, until };
    let sums = recording.sums();
    let mut tuned = Tuned {
        version: VERSION,
        file: recording.file().to_owned(),
        format: recording.source().format.clone(),
        allocations: sums.allocations,
        streams: recording.stream_count(),
        bound_host_order: host_order,
        bound_stream_safe: stream_safe,
        fidelity: Fidelity::of(recording, None).ok(),
        private_pools: peers::private_pools(recording),
        fails_by_growth: program.summary().fails_by_growth(),
        available_bytes: sums.available_bytes,
        capacity: request.capacity,
        tried: Vec::new(),
        best: None,
        best_of_all: None,
        pruned: 0,
        timed_out: false,
        not_modelled: not_modelled(recording),
    };
    for candidate in candidates {
        if is_hopeless(&tuned.tried, &candidate) {
            tuned.pruned += 1;
            continue;
        }
        watch(&candidate.stack);
        let spec: StackSpec = candidate.stack.parse().map_err(Error::Stack)?;
        let line = candidate.line(capacity.unwrap_or(host_order));
        let mut tried = Tried::new(candidate, line);
        match try_one(&attempts, &spec, capacity, &mut tried) {
            Ok(()) => {}
            Err(Stopped::TimedOut) => {
                tuned.timed_out = true;
                tried.timed_out = true;
            }
            Err(Stopped::NeverServed) => {
                tried.failure = Some("a request failed at every capacity".to_owned())
            }
            Err(Stopped::Failed(error)) => tried.failure = Some(error.to_string()),
        }
        if let Some(smallest) = &tried.smallest {
            // RMM's pools reserve this much at once, and must leave the rest to other users of the device.
            let capacity = capacity.filter(|_| tried.candidate.family != Family::Rmm);
            tried.line = tried.candidate.line(capacity.unwrap_or(smallest.bytes));
            tried.over_host_order = Some(smallest.bytes as f64 / host_order.max(1) as f64);
            tried.over_stream_safe = Some(smallest.bytes as f64 / stream_safe.max(1) as f64);
        }
        tuned.tried.push(tried);
    }
    if tuned.private_pools == 0 {
        choose(&mut tuned);
    }
    Ok(tuned)
}

/// Chooses the best candidates. A candidate that needs more memory than the program's device had for the
/// allocator is not chosen, unless the request has a capacity, which counts instead.
fn choose(tuned: &mut Tuned) {
    let (tried, capacity) = (&tuned.tried, tuned.capacity);
    let most = tuned.available_bytes.filter(|_| capacity.is_none()).unwrap_or(u64::MAX);
    let fits = |tried: &Tried| tried.smallest.as_ref().is_none_or(|smallest| smallest.bytes <= most);
    let is_own = |tried: &Tried| fits(tried) && tried.candidate.family != Family::Millpond;
    let usual = usual(tried).filter(|usual| fits(&tried[*usual]));
    let best = best_with_cache(tried, capacity, is_own).map(|best| if_better(tried, capacity, best, usual));
    let best_of_all =
        best_with_cache(tried, capacity, fits).map(|of_all| if_better(tried, capacity, of_all, best));
    (tuned.best, tuned.best_of_all) = (best, best_of_all);
}

fn wrong(recording: &Recording, why: &str) -> Error {
    Error::Stack(millpond_core::Error::invalid_argument(format!("{}: {why}", recording.file())))
}

/// Returns the bounds of the recording. Returns an error if the bounds or the requested capacity exceed every
/// simulated device.
fn bounds_on_a_device(recording: &Recording, request: &Request) -> Result<Bounds> {
    if let Some(capacity) = request.capacity {
        // Refuses the same capacities as `--device`.
        format!("sim:{capacity}").parse::<DeviceSpec>().map_err(Error::Stack)?;
    }
    let bounds =
        placement::bounds_of(recording, ALIGNMENT).map_err(|why| wrong(recording, &why.to_string()))?;
    if bounds.host_order > MOST {
        let (needs, most) = (format_bytes(bounds.host_order), format_bytes(MOST));
        let why = format!("any allocator needs {needs}, but a simulated device has at most {most}");
        return Err(wrong(recording, &why));
    }
    Ok(bounds)
}

/// Returns whether one setting of a pair alone needs more memory than PyTorch's defaults.
fn is_hopeless(tried: &[Tried], pair: &Candidate) -> bool {
    let needs = |stack: &str| {
        let found = tried.iter().find(|tried| tried.candidate.stack == stack);
        found.and_then(|tried| tried.smallest.as_ref()).map(|smallest| smallest.bytes)
    };
    let Some(usual) = needs("torch") else { return false };
    pair.parts.iter().filter_map(|part| needs(part)).any(|bytes| bytes > usual + usual / ALIKE)
}

fn try_one(
    attempts: &Attempts<'_>,
    spec: &StackSpec,
    capacity: Option<u64>,
    tried: &mut Tried,
) -> std::result::Result<(), Stopped> {
    if let Some(capacity) = capacity {
        tried.at_capacity = attempts.at(spec, capacity)?;
    }
    if !tried.candidate.takes_all() {
        tried.peak_without_limit = attempts.without_limit(spec)?.map(|cost| cost.peak_bytes);
    }
    tried.smallest = Some(attempts.smallest(spec)?);
    Ok(())
}

/// Returns the best candidate that does not call the driver for each request, or else the best of all.
fn best_with_cache(tried: &[Tried], capacity: Option<u64>, counts: impl Fn(&Tried) -> bool) -> Option<usize> {
    let has_cache = |tried: &Tried| counts(tried) && !tried.candidate.is_plain;
    best(tried, capacity, has_cache).or_else(|| best(tried, capacity, &counts))
}

/// Returns the best candidate. With a capacity, it is the one with the fewest stalls among those that serve
/// everything in it; otherwise among those that need the least memory. Ties go to driver calls, then time,
/// then order.
fn best(tried: &[Tried], capacity: Option<u64>, counts: impl Fn(&Tried) -> bool) -> Option<usize> {
    let near = near_least(tried, capacity, counts).into_iter();
    let best = near.min_by_key(|(number, cost)| (cost.stalls, cost.driver_calls, cost.driver_ns, *number));
    best.map(|(number, _)| number)
}

/// Returns the candidates that need at most a hundredth more than the least memory; with a capacity, those
/// that serve everything in it.
fn near_least(tried: &[Tried], capacity: Option<u64>, counts: impl Fn(&Tried) -> bool) -> Vec<(usize, Cost)> {
    let some = tried.iter().enumerate().filter(|(_, tried)| counts(tried));
    let all = some.filter_map(|(number, tried)| Some((number, cost_of(tried, capacity)?)));
    let least = all.clone().map(|(_, (bytes, _))| bytes).min().unwrap_or(0);
    let near = all.filter(|(_, (bytes, _))| *bytes <= least + least / ALIKE);
    near.map(|(number, (_, cost))| (number, cost)).collect()
}

/// Returns the candidate that the program uses today, as far as the file shows. It has the settings in the
/// file, or else PyTorch's defaults.
fn usual(tried: &[Tried]) -> Option<usize> {
    let recorded = tried.iter().position(|tried| tried.candidate.is_recorded);
    recorded.or_else(|| tried.iter().position(|tried| tried.candidate.stack == "torch"))
}

/// Returns `best` if it saves at least a hundredth of the memory over `usual`, or saves stalls or calls.
/// Otherwise returns `usual`.
fn if_better(tried: &[Tried], capacity: Option<u64>, best: usize, usual: Option<usize>) -> usize {
    let Some(usual) = usual else { return best };
    let costs = |number: usize| cost_of(&tried[number], capacity);
    let (Some((bytes, cost)), Some((usual_bytes, usual_cost))) = (costs(best), costs(usual)) else {
        return best;
    };
    let saves_bytes = usual_bytes.saturating_sub(bytes) > usual_bytes / ALIKE;
    let is_cheaper = cost.stalls < usual_cost.stalls
        || (cost.stalls == usual_cost.stalls && cost.driver_calls < usual_cost.driver_calls);
    let needs_more = bytes.saturating_sub(usual_bytes) > usual_bytes / ALIKE;
    if saves_bytes || (is_cheaper && !needs_more) { best } else { usual }
}

/// Returns the smallest capacity and the cost at this capacity. With a capacity, returns 0 and the cost in
/// that capacity. Returns `None` if the candidate does not serve every request.
fn cost_of(tried: &Tried, capacity: Option<u64>) -> Option<(u64, Cost)> {
    match capacity {
        Some(_) => tried.at_capacity.map(|cost| (0, cost)),
        None => tried.smallest.as_ref().map(|smallest| (smallest.bytes, smallest.cost)),
    }
}

/// Lists the aspects of this file that the replays leave out.
fn not_modelled(recording: &Recording) -> Vec<String> {
    // That the rest of the file is missing comes first.
    let mut all: Vec<String> = recording.doubts().map(|doubt| doubt.text.clone()).collect();
    all.push(
        "memory outside of the allocator, which must also fit: the CUDA context, NCCL, libraries".to_owned(),
    );
    if peers::private_pools(recording) > 0 {
        all.push(
            "private pools (CUDA graphs): the replay places their blocks in the default pool".to_owned(),
        );
    }
    if recording.stream_count() > 1 {
        all.push(
            "the order of the streams: in the replay, work finishes at once, so a freed block is reusable \
             immediately"
                .to_owned(),
        );
    }
    if recording.begins_late() {
        all.push(
            "the time before the file begins: the replay first allocates the blocks that existed then"
                .to_owned(),
        );
    }
    all
}

#[cfg(test)]
mod tests;
