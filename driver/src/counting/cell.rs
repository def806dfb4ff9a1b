//! Atomic counts of one kind of call.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::counts::KindCounts;

#[derive(Default)]
pub(super) struct Cell {
    calls: AtomicU64,
    failures: AtomicU64,
    wall_ns: AtomicU64,
}

impl Cell {
    pub(super) fn count(&self, start: Instant, failed: bool) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.failures.fetch_add(u64::from(failed), Ordering::Relaxed);
        let wall_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.wall_ns.fetch_add(wall_ns, Ordering::Relaxed);
    }

    pub(super) fn now(&self) -> KindCounts {
        KindCounts {
            calls: self.calls.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            wall_ns: self.wall_ns.load(Ordering::Relaxed),
        }
    }

    pub(super) fn reset(&self) {
        [&self.calls, &self.failures, &self.wall_ns]
            .iter()
            .for_each(|count| count.store(0, Ordering::Relaxed));
    }
}
