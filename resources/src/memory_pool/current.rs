//! The pools that were made current here, each kept until another takes its place.

use std::mem;
use std::sync::{Arc, Weak};

use millpond_core::Result;
use millpond_core::driver::{Health, MemPool};
use parking_lot::Mutex;

use super::inner::Inner;

static DEVICES: Mutex<Vec<OfDevice>> = Mutex::new(Vec::new());

/// How often a call looks again because the current pool changed meanwhile. Code that the driver calls may
/// change it each time.
const MOST_LOOKS: usize = 8;

/// What is known of one context. The calls for others change nothing here.
struct OfDevice {
    health: Weak<Health>,
    /// Those that are current, or may be while a change is under way.
    pools: Vec<Arc<Inner>>,
    /// How many changes began.
    begun: u64,
    /// How many of them are under way.
    under_way: usize,
}

impl OfDevice {
    /// Reads or changes what is known of a context, under the lock.
    fn with<T>(health: &Arc<Health>, body: impl FnOnce(&mut Self) -> T) -> T {
        let mut devices = DEVICES.lock();
        let is_it = |known: &Self| known.health.as_ptr() == Arc::as_ptr(health);
        let at = devices.iter().position(is_it).unwrap_or_else(|| {
            // Without a pool: a pool keeps its context.
            devices.retain(|known| known.health.strong_count() > 0);
            let health = Arc::downgrade(health);
            devices.push(Self { health, pools: Vec::new(), begun: 0, under_way: 0 });
            devices.len() - 1
        });
        body(&mut devices[at])
    }

    /// Takes out all pools but this one. The caller drops them without the lock: their end calls the driver.
    fn take_replaced(&mut self, current: MemPool) -> Vec<Arc<Inner>> {
        self.pools.extract_if(.., |pool| pool.raw != current).collect()
    }

    /// Takes out the pools of lost devices.
    fn take_lost() -> Vec<Arc<Inner>> {
        let is_lost = |device: &&mut Self| device.health.upgrade().is_some_and(|health| health.is_lost());
        DEVICES.lock().iter_mut().filter(is_lost).flat_map(|device| mem::take(&mut device.pools)).collect()
    }
}

/// A change that is under way. Its end is noted even if the driver panics.
struct Change<'a>(Option<&'a Arc<Health>>);

impl<'a> Change<'a> {
    /// Begins to make `pool` the current one. It is kept from before it is current, until after it was.
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

    /// Notes the end; returns whether no other change of the device is under way.
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

/// The pools of a context that are kept, and the number of changes so far.
fn known(health: &Arc<Health>) -> (Vec<Arc<Inner>>, u64) {
    OfDevice::with(health, |device| (device.pools.clone(), device.begun))
}

/// Makes a pool the current one of its device, and keeps it. The driver is called without the lock.
pub(super) fn set(pool: &Arc<Inner>) -> Result<()> {
    let health = pool.driver.health();
    let mut change = Change::begin(pool);
    let set = pool.call(|driver| driver.device_set_mem_pool(pool.raw));
    for look in 1.. {
        let seen = OfDevice::with(health, |device| device.begun);
        // A lost device is not called.
        let asked =
            if health.is_lost() { None } else { pool.ask(|driver| driver.device_get_mem_pool()).ok() };
        let now = asked.or_else(|| set.is_ok().then_some(pool.raw));
        let replaced = OfDevice::with(health, |device| {
            if device.begun != seen && look < MOST_LOOKS {
                return None;
            }
            // While another change of the device is under way, the pool of either may be current.
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

/// Calls `look` until no pool of the context was made current meanwhile, and returns its finding.
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

/// Keeps the pools of a context no longer.
pub(super) fn forget(health: &Arc<Health>) {
    drop(OfDevice::with(health, |device| mem::take(&mut device.pools)));
}
