//! Gives other devices access to the memory of a pool that maps pages.

use std::thread;
use std::time::{Duration, Instant};

use millpond_core::{DeviceId, DeviceMemoryResource, Error, ErrorKind, Result};

use crate::pool::central::trace::event;
use crate::pool::central::{Central, CentralCore};
use crate::tuning::ADMISSION_PATIENCE;

impl CentralCore {
    /// Gives access to devices with an active context that have none yet, if the pool's options say so. While
    /// another call maps or unmaps memory, that is left to a later call.
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
        let deadline = Instant::now() + ADMISSION_PATIENCE;
        let task = loop {
            let mut state = self.state.lock();
            if state.heaps.is_at_rest() {
                break state.heaps.plan_admission(devices, is_asked);
            }
            drop(state);
            if !is_asked {
                return Ok(());
            }
            if self.turns.is_inside() || Instant::now() > deadline {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "the pool maps or unmaps memory at this moment; call `add_peer` again, and not from a \
                     callback of this pool",
                ));
            }
            thread::sleep(Duration::from_millis(1));
        };
        let Some(task) = task else { return Ok(()) };
        self.run_task(task)?;
        event!(self, DEBUG, "devices have access to the pool's memory", ?devices);
        Ok(())
    }
}

impl<R: DeviceMemoryResource> Central<R> {
    /// Gives a device access to the pool's memory: what is mapped now, and what will be.
    pub(crate) fn add_peer(&self, device: DeviceId) -> Result<()> {
        if self.health.is_lost() {
            return Err(self.health.error());
        }
        // Outside of turns, since the admission waits for the tasks of other calls.
        self.admit(&[device], true)
    }
}
