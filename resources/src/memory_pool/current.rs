//! The pools that were made current here, each kept until another takes its place.

use std::sync::Arc;

use millpond_core::Result;
use millpond_core::driver::{Health, MemPool};
use parking_lot::Mutex;

use super::inner::Inner;

static CURRENT: Mutex<Current> = Mutex::new(Current { pools: Vec::new(), begun: 0, under_way: Vec::new() });

/// How often a call looks again because the current pool changed meanwhile. Code that the driver calls may
/// change it each time.
const MOST_LOOKS: usize = 8;

struct Current {
    /// Those that are current, or may be while a change is under way.
    pools: Vec<Arc<Inner>>,
    /// How many changes began.
    begun: u64,
    /// The contexts of the changes that are under way.
    under_way: Vec<Arc<Health>>,
}

/// A change that is under way. Its end is noted even if the driver panics.
struct Change<'a>(Option<&'a Arc<Health>>);

impl Change<'_> {
    /// Notes the end; returns whether no other change of the device is under way.
    fn end(&mut self, current: &mut Current) -> bool {
        let Some(health) = self.0.take() else { return false };
        let is_it = |known: &Arc<Health>| Arc::ptr_eq(known, health);
        if let Some(at) = current.under_way.iter().position(is_it) {
            current.under_way.swap_remove(at);
        }
        !current.under_way.iter().any(is_it)
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if self.0.is_some() {
            self.end(&mut CURRENT.lock());
        }
    }
}

impl Current {
    /// Takes out all pools of a device except this one, and the pools of lost devices. The caller drops them
    /// without the lock: their end calls the driver.
    fn take_replaced(&mut self, health: &Arc<Health>, current: MemPool) -> Vec<Arc<Inner>> {
        let is_replaced = |pool: &mut Arc<Inner>| {
            let known = pool.driver.health();
            known.is_lost() || Arc::ptr_eq(known, health) && pool.raw != current
        };
        self.pools.extract_if(.., is_replaced).collect()
    }
}

/// The pools that are kept, and the number of changes so far.
fn known() -> (Vec<Arc<Inner>>, u64) {
    let current = CURRENT.lock();
    (current.pools.clone(), current.begun)
}

/// Makes a pool the current one of its device, and keeps it. The driver is called without the lock.
pub(super) fn set(pool: &Arc<Inner>) -> Result<()> {
    // Kept from before it is current, until after it was.
    {
        let mut current = CURRENT.lock();
        current.begun += 1;
        current.under_way.push(Arc::clone(pool.driver.health()));
        if !current.pools.iter().any(|known| Arc::ptr_eq(known, pool)) {
            current.pools.push(Arc::clone(pool));
        }
    }
    let mut change = Change(Some(pool.driver.health()));
    let set = pool.call(|driver| driver.device_set_mem_pool(pool.raw));
    let mut replaced = Vec::new();
    for look in 1.. {
        let seen = CURRENT.lock().begun;
        // A lost device is not called.
        let is_lost = pool.driver.health().is_lost();
        let now = if is_lost { None } else { pool.ask(|driver| driver.device_get_mem_pool()).ok() };
        let mut current = CURRENT.lock();
        if current.begun != seen && look < MOST_LOOKS {
            continue;
        }
        // While another change of the device is under way, the pool of either may be current.
        let is_settled = change.end(&mut current) && current.begun == seen;
        if let Some(now) = now.or_else(|| set.is_ok().then_some(pool.raw)).filter(|_| is_settled) {
            replaced = current.take_replaced(pool.driver.health(), now);
        }
        break;
    }
    drop(replaced);
    set
}

/// Calls `look` until no pool was made current meanwhile, and returns its finding.
pub(super) fn looked<T>(mut look: impl FnMut(Vec<Arc<Inner>>) -> Result<T>) -> Result<T> {
    for _ in 1..MOST_LOOKS {
        let (pools, seen) = known();
        let found = look(pools)?;
        if CURRENT.lock().begun == seen {
            return Ok(found);
        }
    }
    look(known().0)
}

/// Keeps the pools of a context no longer.
pub(super) fn forget(health: &Arc<Health>) {
    let is_of_context = |pool: &mut Arc<Inner>| Arc::ptr_eq(pool.driver.health(), health);
    let ended: Vec<_> = CURRENT.lock().pools.extract_if(.., is_of_context).collect();
    drop(ended);
}
