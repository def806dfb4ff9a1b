//! A stopwatch that subtracts the time of reading the clock.

use std::sync::OnceLock;
use std::time::Instant;

/// Measures the time of a piece of work, without the time of reading the clock. With that time, a single
/// operation would seem twice as long.
pub(super) struct Stopwatch(Instant);

impl Stopwatch {
    #[inline]
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    #[inline]
    pub(super) fn nanoseconds(self) -> u64 {
        let raw = self.0.elapsed().as_nanos() as u64;
        raw.saturating_sub(cost_ns())
    }
}

/// Returns the fewest nanoseconds between two consecutive readings of the clock.
fn cost_ns() -> u64 {
    static COST: OnceLock<u64> = OnceLock::new();
    *COST.get_or_init(|| {
        let apart = |_| Instant::now().elapsed().as_nanos() as u64;
        (0..1000).map(apart).min().unwrap_or(0)
    })
}
