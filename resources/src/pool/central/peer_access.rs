//! Gives other devices access to the memory of a pool that maps pages.

use std::thread;
use std::time::{Duration, Instant};

use millpond_core::{DeviceId, DeviceMemoryResource, Error, ErrorKind, Result};

use crate::pool::central::trace::event;
use crate::pool::central::{Central, CentralCore};
use crate::tuning::PATIENCE;

impl CentralCore {
    /// Gives these devices access, once no other call maps or unmaps memory.
    fn admit(&self, devices: &[DeviceId]) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let task = loop {
            let mut state = self.state.lock();
            if state.heaps.is_at_rest() {
                break state.heaps.plan_admission(devices, true);
            }
            drop(state);
            if self.turns.is_inside() || Instant::now() > deadline {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "the pool is mapping or unmapping memory; call `add_peer` again, and not from a \
                     callback of this pool",
                ));
            }
            thread::sleep(Duration::from_millis(1));
        };
        let Some(task) = task else { return Ok(()) };
        self.run_and_commit(task, None)?;
        event!(self, DEBUG, "devices have access to the pool's memory", ?devices);
        Ok(())
    }
}

impl<R: DeviceMemoryResource> Central<R> {
    /// Gives a device access to the pool's memory, mapped now or later.
    pub(crate) fn add_peer(&self, device: DeviceId) -> Result<()> {
        if self.health.is_lost() {
            return Err(self.lost_error());
        }
        // This takes no turn, since the admission waits for the tasks of other calls.
        self.admit(&[device])
    }
}
