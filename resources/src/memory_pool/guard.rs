//! A pool that is its device's current pool while a value lives.

use std::fmt;
use std::ops::Deref;

use millpond_core::{DriverHandle, Result};

use super::{MemoryPool, MemoryPoolOptions};

/// Creates a pool, and makes it the current pool of its device while this value lives. Every
/// `cuMemAllocAsync` of the process on this device then allocates from the pool. cudarc, candle, luminal and
/// other libraries make such calls.
///
/// When the value is dropped, the previous pool becomes the current pool again. If other code has made a
/// third pool current, that pool stays current. Blocks of the dropped pool stay valid until they are freed.
///
/// ```
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::memory_pool::{CurrentPool, MemoryPool, MemoryPoolOptions};
///
/// let device = SimDevice::new(SimConfig::h200());
/// let keep_all = MemoryPoolOptions::new().release_threshold(u64::MAX);
/// let pool = CurrentPool::new(device.clone(), keep_all)?;
/// assert_eq!(MemoryPool::current_of(device.clone())?, *pool);
/// drop(pool);
/// assert_eq!(MemoryPool::current_of(device.clone())?, MemoryPool::default_of(device)?);
/// # Ok::<(), millpond_core::Error>(())
/// ```
#[must_use = "dropping it makes the previous pool current again"]
pub struct CurrentPool {
    pool: MemoryPool,
    previous: MemoryPool,
}

impl CurrentPool {
    /// Creates a pool, and makes it the current pool of the driver's device.
    ///
    /// If another library created the previous pool, that library must not destroy the pool while this value
    /// lives.
    ///
    /// # Errors
    /// The errors of [`MemoryPool::new`] and [`MemoryPool::set_current`]. After an error, the current pool of
    /// the device is unchanged.
    pub fn new(driver: DriverHandle, options: MemoryPoolOptions) -> Result<Self> {
        let previous = MemoryPool::current_of(driver.clone())?;
        let pool = MemoryPool::new(driver, options)?;
        pool.set_current()?;
        Ok(Self { pool, previous })
    }

    /// Returns the pool that was the current pool before.
    pub fn previous(&self) -> &MemoryPool {
        &self.previous
    }
}

impl Deref for CurrentPool {
    type Target = MemoryPool;

    fn deref(&self) -> &MemoryPool {
        &self.pool
    }
}

impl Drop for CurrentPool {
    fn drop(&mut self) {
        // A lost device has no current pool.
        if self.pool.inner().is_elsewhere() {
            return;
        }
        if self.pool.driver().health().is_lost() || self.pool.driver().was_reset() {
            return;
        }
        let restored = MemoryPool::current_of(self.pool.driver().clone())
            .and_then(|now| if now == self.pool { self.previous.set_current() } else { Ok(()) });
        if let Err(error) = restored {
            tracing::error!(target: "millpond::resources", %error, "could not make the previous pool current \
                again");
        }
    }
}

impl fmt::Debug for CurrentPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CurrentPool").field("pool", &self.pool).field("previous", &self.previous).finish()
    }
}

#[cfg(test)]
mod tests {
    use millpond_driver::sim::{SimConfig, SimDevice};

    use super::*;

    #[test]
    fn pools_become_current_and_the_previous_ones_again() {
        let device: DriverHandle = SimDevice::new(SimConfig::h200());
        let current = || MemoryPool::current_of(device.clone()).unwrap();
        let default = current();
        let reuse = super::super::PoolReuse::OWN_STREAM;
        let options = MemoryPoolOptions::new().release_threshold(1 << 20).reuse(reuse).max_bytes(1 << 30);
        let outer = CurrentPool::new(device.clone(), options).unwrap();
        assert_eq!((outer.release_threshold().unwrap(), outer.reuse().unwrap()), (1 << 20, reuse));
        assert_eq!(outer.properties().unwrap().max_bytes, 1 << 30);
        let inner = CurrentPool::new(device.clone(), options).unwrap();
        assert_eq!((current(), inner.previous()), (inner.clone(), &*outer));
        drop(inner);
        assert_eq!(current(), *outer);
        drop(outer);
        assert_eq!(current(), default);
    }

    #[test]
    fn a_pool_that_is_no_longer_current_restores_nothing() {
        let device: DriverHandle = SimDevice::new(SimConfig::h200());
        let pool = CurrentPool::new(device.clone(), MemoryPoolOptions::new()).unwrap();
        let other = MemoryPool::new(device.clone(), MemoryPoolOptions::new()).unwrap();
        other.set_current().unwrap();
        drop(pool);
        assert_eq!(MemoryPool::current_of(device).unwrap(), other);
    }
}
