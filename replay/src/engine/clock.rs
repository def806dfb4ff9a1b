use std::sync::OnceLock;
use std::time::Instant;

/// Measures one stretch of work, less what taking the time costs: without that, a stretch of one
/// operation would seem twice as long as it is.
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

/// What two readings of the clock in a row are apart, at least.
fn cost_ns() -> u64 {
    static COST: OnceLock<u64> = OnceLock::new();
    *COST.get_or_init(|| {
        let apart = |_| Instant::now().elapsed().as_nanos() as u64;
        (0..1000).map(apart).min().unwrap_or(0)
    })
}
