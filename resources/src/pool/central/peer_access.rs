//! Gives other devices access to the memory of a pool that maps pages.

use millpond_core::{DeviceId, DeviceMemoryResource, Result};

use crate::pool::central::{Central, CentralCore};

impl CentralCore {
    /// Gives access to devices with an active context that have none yet, if the pool's options say so. The
    /// caller holds the slow path's lock, so no thread maps or unmaps memory meanwhile.
    ///
    /// # Errors
    /// If the device is lost. A refused peer only causes a warning.
    pub(crate) fn admit_newcomers(&self) -> Result<()> {
        if !self.admits_peers {
            return Ok(());
        }
        match self.driver.active_peers() {
            Ok(active) if active.is_empty() => Ok(()),
            Ok(active) => self.admit(&active, false).or_else(|error| {
                tracing::warn!(
                    target: "millpond::pool", ?active, %error,
                    "devices get no access to the pool's memory; copies of it work by cuMemcpyPeer only"
                );
                if self.health.is_lost() { Err(error) } else { Ok(()) }
            }),
            Err(error) if error.is_sticky() => Err(self.driver_error(error)),
            Err(_cannot_say) => Ok(()),
        }
    }

    fn admit(&self, devices: &[DeviceId], is_asked: bool) -> Result<()> {
        let task = self.state.lock().heaps.plan_admission(devices, is_asked);
        task.map_or(Ok(()), |task| self.run_task(task).map(drop))
    }
}

impl<R: DeviceMemoryResource> Central<R> {
    /// Gives a device access to the pool's memory: what is mapped now, and what will be.
    pub(crate) fn add_peer(&self, device: DeviceId) -> Result<()> {
        let _slow = self.slow.lock();
        if self.health.is_lost() {
            return Err(self.health.error());
        }
        self.admit(&[device], true)
    }
}
