//! The pools of the driver that a user allocates from.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use millpond_core::driver::{Driver, MemPool, MemPoolAttribute};
use parking_lot::Mutex;

/// The pools that a user allocated from, and what destroyed ones held.
#[derive(Debug, Default)]
pub(super) struct Pools {
    known: Mutex<Known>,
    /// The handle of the pool that the last allocation named, which most allocations share; 0 for none.
    last: AtomicU64,
    /// Whether the device's current pool is known.
    knows_current: AtomicBool,
}

#[derive(Debug, Default)]
struct Known {
    pools: Vec<MemPool>,
    /// The most bytes that destroyed pools held, since the last reset.
    destroyed: u64,
}

impl Pools {
    /// Notes that an allocation comes from this pool.
    pub(super) fn using(&self, driver: &dyn Driver, pool: MemPool) {
        if self.last.load(Ordering::Relaxed) != pool.0 {
            self.add(driver, pool);
            self.last.store(pool.0, Ordering::Relaxed);
        }
    }

    /// Notes that an allocation comes from the device's current pool.
    pub(super) fn using_current(&self, driver: &dyn Driver) {
        if self.knows_current.load(Ordering::Relaxed) {
            return;
        }
        if let Ok(pool) = driver.device_get_mem_pool() {
            self.add(driver, pool);
            self.knows_current.store(true, Ordering::Relaxed);
        }
    }

    /// Notes that the device may have another current pool.
    pub(super) fn current_changed(&self) {
        self.knows_current.store(false, Ordering::Relaxed);
    }

    fn add(&self, driver: &dyn Driver, pool: MemPool) {
        let is_new = {
            let mut known = self.known.lock();
            let is_new = !known.pools.contains(&pool);
            known.pools.extend(is_new.then_some(pool));
            is_new
        };
        if is_new {
            // An earlier user of the pool may have held more. If the driver refuses, that counts.
            let _ = driver.mem_pool_set_attribute(pool, MemPoolAttribute::ReservedMemHigh, 0);
        }
    }

    /// Remembers what a pool held before it is destroyed.
    pub(super) fn destroying(&self, driver: &dyn Driver, pool: MemPool) {
        if !self.pools().contains(&pool) {
            return;
        }
        let most = value(driver, pool, MemPoolAttribute::ReservedMemHigh);
        let mut known = self.known.lock();
        known.pools.retain(|other| *other != pool);
        known.destroyed = known.destroyed.max(most);
        self.last.store(0, Ordering::Relaxed);
        self.current_changed();
    }

    /// Returns the bytes that the pools hold now.
    pub(super) fn held(&self, driver: &dyn Driver) -> u64 {
        self.sum(driver, MemPoolAttribute::ReservedMemCurrent)
    }

    /// Returns the most bytes that the pools held.
    pub(super) fn peak(&self, driver: &dyn Driver) -> u64 {
        let destroyed = self.known.lock().destroyed;
        self.sum(driver, MemPoolAttribute::ReservedMemHigh).max(destroyed)
    }

    /// Begins a new peak. If the driver refuses, the old peak stays.
    pub(super) fn reset_peak(&self, driver: &dyn Driver) {
        self.known.lock().destroyed = 0;
        for pool in self.pools() {
            let _ = driver.mem_pool_set_attribute(pool, MemPoolAttribute::ReservedMemHigh, 0);
        }
    }

    /// Returns the pools, so that no lock is held during a call.
    fn pools(&self) -> Vec<MemPool> {
        self.known.lock().pools.clone()
    }

    fn sum(&self, driver: &dyn Driver, attribute: MemPoolAttribute) -> u64 {
        let values = self.pools().into_iter().map(|pool| value(driver, pool, attribute));
        values.fold(0, u64::saturating_add)
    }
}

fn value(driver: &dyn Driver, pool: MemPool, attribute: MemPoolAttribute) -> u64 {
    driver.mem_pool_get_attribute(pool, attribute).unwrap_or(0)
}
