//! Compares the memory of a recording with a budget, so that a build fails if the memory grows.
//!
//! A [`Budget`] is a small TOML file. A program makes the same allocations each time it does the same work.
//! So its peak of live bytes is compared exactly, unless the budget sets a tolerance. The reserved bytes
//! depend on the allocator's history, so their tolerance is 2 %, unless the budget sets another one.

mod budget;
mod print;

use serde::Serialize;

use crate::placement;
use crate::recording::{Recording, Unknown};

pub use budget::{Budget, BudgetError};
pub use print::{junit, markdown, text};

/// The quantities that are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Quantity {
    /// The most requested bytes that were live at one time.
    PeakAllocated,
    /// The most bytes that the allocator had reserved at one time.
    PeakReserved,
    /// The ratio of the peak of reserved bytes to the peak of live bytes. The latter is the least memory that
    /// any allocator needs if streams share memory.
    ReservedOverBound,
    /// The number of failed requests.
    Failures,
}

impl Quantity {
    /// Returns the name of the quantity in a budget, and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::PeakAllocated => "peak_allocated_bytes",
            Self::PeakReserved => "peak_reserved_bytes",
            Self::ReservedOverBound => "reserved_over_bound",
            Self::Failures => "failures",
        }
    }
}

/// A quantity compared with its budget.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct Check {
    /// The quantity that is compared with its budget.
    pub quantity: Quantity,
    /// The value in the recording. If the recording has no value, this is `None`, and the check fails.
    pub measured: Option<f64>,
    /// The largest value that the budget allows, including its tolerance.
    pub most: f64,
    /// Whether the value is within the budget.
    pub is_within: bool,
}

/// The result of comparing a recording with a budget.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct Gate {
    /// The version of this format.
    pub version: u32,
    /// The name of the recording's file.
    pub file: String,
    /// Whether all checks are within the budget.
    pub is_within: bool,
    /// The checks of all quantities that the budget names.
    pub checks: Vec<Check>,
    /// The fewest bytes that any allocator needs for the blocks and the failed requests, if streams share
    /// memory in the order of the host's calls. `None` if the sum of all sizes needs more than 64 bits.
    pub bound_host_order: Option<u64>,
    /// The fewest bytes that any allocator needs for the blocks and the failed requests, if streams share no
    /// memory. `None` if the sum of all sizes needs more than 64 bits.
    pub bound_stream_safe: Option<u64>,
    /// The number of failed requests. Repeated attempts of a request count once.
    pub failed_requests: u64,
    /// Missing data and contradictions in the file, which make the measured values uncertain.
    pub doubts: Vec<Unknown>,
}

/// Compares a recording with a budget.
///
/// ```
/// use millpond_snapshot::gate::{self, Budget};
/// use millpond_snapshot::import;
/// let csv = "id,lower,upper,size\na,0,10,4096\nb,5,20,1024\n";
/// let recording = import::read("example", csv.as_bytes(), &import::Options::default())?;
/// let budget: Budget = "peak_allocated_bytes = 5000".parse()?;
/// assert!(!gate::compare(&recording, &budget).is_within); // 5120 bytes
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn compare(recording: &Recording, budget: &Budget) -> Gate {
    let sums = recording.sums();
    let reserved = sums.peak_reserved_bytes.map(|bytes| bytes as f64);
    let live = sums.peak_live_bytes as f64;
    let over_bound = reserved.filter(|_| live > 0.0).map(|reserved| reserved / live);
    let more = |percent: f64| 1.0 + percent / 100.0;
    let allocated = budget.peak_allocated_bytes.map(|most| {
        let most = most as f64 * more(budget.allocated_tolerance_percent);
        (Quantity::PeakAllocated, Some(live), most.floor())
    });
    // A float cannot represent every number above 2^53 bytes exactly.
    let is_exactly_over = budget.allocated_tolerance_percent == 0.0
        && budget.peak_allocated_bytes.is_some_and(|most| sums.peak_live_bytes > most);
    let reserved = budget.peak_reserved_bytes.map(|most| {
        let most = most as f64 * more(budget.reserved_tolerance_percent);
        (Quantity::PeakReserved, reserved, most.floor())
    });
    let over_bound = budget.reserved_over_bound.map(|most| (Quantity::ReservedOverBound, over_bound, most));
    let failures = budget.failures.map(|most| (Quantity::Failures, Some(sums.failures as f64), most as f64));
    let checks = [allocated, reserved, over_bound, failures].into_iter().flatten();
    let checks: Vec<Check> = checks
        .map(|(quantity, measured, most)| Check {
            quantity,
            measured,
            most,
            is_within: measured.is_some_and(|measured| measured <= most)
                && !(quantity == Quantity::PeakAllocated && is_exactly_over),
        })
        .collect();
    let bounds = placement::bounds(recording);
    Gate {
        version: 1,
        file: recording.file().to_owned(),
        is_within: checks.iter().all(|check| check.is_within),
        checks,
        bound_host_order: bounds.map(|bounds| bounds.host_order),
        bound_stream_safe: bounds.map(|bounds| bounds.stream_safe),
        failed_requests: sums.failed_requests,
        doubts: recording.doubts().cloned().collect(),
    }
}
