//! How much work each workload does.

use std::time::Duration;

/// The number of steps of each workload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// The measured steps of each thread.
    pub(super) steps: usize,
    /// The most warm-up steps before the measurement.
    pub(super) warm_up: usize,
    /// The time limit of the warm-up.
    pub(super) warming: Duration,
    /// The time limit of the measurement. Steps that are done by then count.
    pub(super) measured: Duration,
    /// The time limit of allocating the first blocks. If it is exceeded, the workload is given up.
    pub(super) preparing: Duration,
}

impl Effort {
    pub(super) const FULL: Self = Self {
        steps: 200_000,
        warm_up: 4_000_000,
        warming: Duration::from_secs(4),
        measured: Duration::from_secs(1),
        preparing: Duration::from_secs(10),
    };
    pub(super) const QUICK: Self = Self {
        steps: 20_000,
        warm_up: 5000,
        warming: Duration::from_millis(50),
        measured: Duration::from_millis(50),
        preparing: Duration::from_secs(3),
    };
    /// How many times each block is replaced before the clock starts, on average.
    pub(super) const REPLACEMENTS: usize = 4;
    /// If a quick run has taken this long, it leaves less time for preparing workloads.
    pub(super) const QUICK_ENOUGH: Duration = Duration::from_secs(18);
    pub(super) const HASTE: Duration = Duration::from_millis(500);
}
