//! Queries the device's free memory at new peaks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use millpond_core::driver::{Driver, DriverResult};

/// Queries the device's free memory at new peaks.
#[derive(Debug, Default)]
pub(super) struct Probe {
    is_on: AtomicBool,
    /// The free bytes at the start, and the lowest seen since.
    free_before: AtomicU64,
    least_free: AtomicU64,
    /// The peak in bytes at which the device is queried next.
    next: AtomicU64,
}

impl Probe {
    pub(super) fn begin(&self, driver: &dyn Driver) -> DriverResult<()> {
        let free = driver.mem_get_info()?.free;
        self.free_before.store(free, Ordering::Relaxed);
        self.least_free.store(free, Ordering::Relaxed);
        self.next.store(0, Ordering::Relaxed);
        self.is_on.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Queries the device if `peak` is far enough above the last queried peak. A failed query is not repeated
    /// until a later peak.
    pub(super) fn look(&self, driver: &dyn Driver, peak: u64) {
        if !self.is_on.load(Ordering::Relaxed) || peak <= self.next.load(Ordering::Relaxed) {
            return;
        }
        self.next.store(peak + peak / 1024, Ordering::Relaxed);
        if let Ok(info) = driver.mem_get_info() {
            self.least_free.fetch_min(info.free, Ordering::Relaxed);
        }
    }

    pub(super) fn peak(&self) -> u64 {
        self.free_before.load(Ordering::Relaxed).saturating_sub(self.least_free.load(Ordering::Relaxed))
    }
}
