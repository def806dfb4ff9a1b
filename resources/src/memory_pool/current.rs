//! The pools that this process made current. Each is kept until another pool replaces it.

use std::mem;
use std::sync::{Arc, Weak};

use millpond_core::Result;
use millpond_core::driver::{Health, MemPool};
use parking_lot::Mutex;

use super::inner::Inner;

static DEVICES: Mutex<Vec<OfDevice>> = Mutex::new(Vec::new());

/// How often a call looks again because the current pool changed meanwhile. Code that the driver calls may
/// change it every time.
const MOST_LOOKS: usize = 8;

/// The known state of one context. Calls for other contexts change nothing here.
struct OfDevice {
    health: Weak<Health>,
    /// The pools that are current, or may be while a change is under way.
    pools: Vec<Arc<Inner>>,
    /// The number of changes that began.
    begun: u64,
    /// The number of changes that have not ended.
    under_way: usize,
}

impl OfDevice {
    /// Reads or changes the known state of a context, under the lock.
    fn with<T>(health: &Arc<Health>, body: impl FnOnce(&mut Self) -> T) -> T {
        let mut devices = DEVICES.lock();
        let is_it = |known: &Self| known.health.as_ptr() == Arc::as_ptr(health);
        let at = devices.iter().position(is_it).unwrap_or_else(|| {
            // Only entries without a pool go: a pool keeps its context.
            devices.retain(|known| known.health.strong_count() > 0);
            let health = Arc::downgrade(health);
            devices.push(Self { health, pools: Vec::new(), begun: 0, under_way: 0 });
            devices.len() - 1
        });
        body(&mut devices[at])
    }

    /// Removes all pools except this one. The caller drops them without the lock: their end calls the driver.
    fn take_replaced(&mut self, current: MemPool) -> Vec<Arc<Inner>> {
        self.pools.extract_if(.., |pool| pool.raw != current).collect()
    }

    /// Removes the pools of lost devices.
    fn take_lost() -> Vec<Arc<Inner>> {
        let is_lost = |device: &&mut Self| device.health.upgrade().is_some_and(|health| health.is_lost());
        DEVICES.lock().iter_mut().filter(is_lost).flat_map(|device| mem::take(&mut device.pools)).collect()
    }
}

/// A change that is under way. Its end is noted even if the driver panics.
struct Change<'a>(Option<&'a Arc<Health>>);

impl<'a> Change<'a> {
    /// Begins to make `pool` the current one. The pool is kept from before it is current until after.
    fn begin(pool: &'a Arc<Inner>) -> Self {
        let health = pool.driver.health();
        OfDevice::with(health, |device| {
            device.begun += 1;
            device.under_way += 1;
            if !device.pools.iter().any(|known| Arc::ptr_eq(known, pool)) {
                device.pools.push(Arc::clone(pool));
            }
        });
        Self(Some(health))
    }

    /// Notes the end. Returns whether no other change of the device is under way.
    fn end(&mut self, device: &mut OfDevice) -> bool {
        device.under_way -= usize::from(self.0.take().is_some());
        device.under_way == 0
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if let Some(health) = self.0 {
            OfDevice::with(health, |device| self.end(device));
        }
    }
}

/// Returns the pools that are kept for a context, and the number of changes so far.
fn known(health: &Arc<Health>) -> (Vec<Arc<Inner>>, u64) {
    OfDevice::with(health, |device| (device.pools.clone(), device.begun))
}

/// Makes a pool the current one of its device, and keeps it. Calls the driver without the lock.
pub(super) fn set(pool: &Arc<Inner>) -> Result<()> {
    let health = pool.driver.health();
    let mut change = Change::begin(pool);
    let set = pool.call(|driver| driver.device_set_mem_pool(pool.raw));
    for look in 1.. {
        let seen = OfDevice::with(health, |device| device.begun);
        // Do not call a lost device.
        let asked =
            if health.is_lost() { None } else { pool.ask(|driver| driver.device_get_mem_pool()).ok() };
        let now = asked.or_else(|| set.is_ok().then_some(pool.raw));
        let replaced = OfDevice::with(health, |device| {
            if device.begun != seen && look < MOST_LOOKS {
                return None;
            }
            // While another change of the device is under way, either pool may be current.
            let is_settled = change.end(device) && device.begun == seen;
            Some(now.filter(|_| is_settled).map_or(Vec::new(), |now| device.take_replaced(now)))
        });
        if let Some(replaced) = replaced {
            drop((replaced, OfDevice::take_lost()));
            break;
        }
    }
    set
}

/// Calls `look` until no pool of the context becomes current meanwhile, and returns its result.
pub(super) fn looked<T>(
    health: &Arc<Health>,
    mut look: impl FnMut(Vec<Arc<Inner>>) -> Result<T>,
) -> Result<T> {
    for _ in 1..MOST_LOOKS {
        let (pools, seen) = known(health);
        let found = look(pools)?;
        if OfDevice::with(health, |device| device.begun) == seen {
            return Ok(found);
        }
    }
    look(known(health).0)
}

/// Stops keeping the pools of a context.
pub(super) fn forget(health: &Arc<Health>) {
    drop(OfDevice::with(health, |device| mem::take(&mut device.pools)));
}
