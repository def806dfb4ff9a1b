//! Memory goes back in the background, a little at a time: no lock that an allocation can meet is held for
//! longer than a few looks, and the ladder's lock for no longer than one stream's questions or one piece's
//! driver calls. Nothing here waits for the device.

use millpond_core::{Result, StreamId};
use parking_lot::MutexGuard;

use crate::heap::request::Cursor;
use crate::pool::central::cross_stream::Donor;
use crate::pool::central::{CentralCore, State};
use crate::stream_order::ANY_STREAM;

impl CentralCore {
    /// Makes blocks unowned that are known to be done, stream by stream.
    ///
    /// # Errors
    /// Where the device is lost.
    pub(crate) fn collect_incrementally(&self) -> Result<()> {
        let streams: Vec<StreamId> = {
            let state = self.state.lock();
            state.streams.iter().map(|(_, slot)| slot.id).collect()
        };
        for id in streams {
            let slow = self.slow.lock();
            if self.is_out_of_reach() {
                return Ok(());
            }
            self.collect_of(id)?;
            MutexGuard::unlock_fair(slow);
        }
        Ok(())
    }

    /// The resource ended, or its device.
    fn is_out_of_reach(&self) -> bool {
        self.health.is_lost() || self.state.lock().is_over
    }

    fn collect_of(&self, id: StreamId) -> Result<()> {
        let donor = {
            let mut state = self.state.lock();
            let State { heaps, streams, .. } = &mut *state;
            let Some((owner, slot)) = streams.find_mut(id) else { return Ok(()) };
            if heaps.free_bytes(owner) == 0 {
                return Ok(());
            }
            Donor { id, epoch: slot.epoch() }
        };
        let Some(recorded_event) = self.recorded_event_of(donor, None)? else { return Ok(()) };
        match self.driver.event_query(recorded_event.event) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => return self.skip_stream(id, error),
        }
        let mut at = Cursor::default();
        while !at.is_at_end {
            // The resource does not end meanwhile: that takes the ladder's lock, too.
            let mut state = self.state.lock();
            let State { heaps, streams, .. } = &mut *state;
            // Nobody forgets the stream meanwhile: that takes the ladder's lock.
            let Some((owner, _)) = streams.find_mut(id) else { return Ok(()) };
            heaps.migrate_step(owner, recorded_event.donor.epoch, ANY_STREAM, 0, &mut at);
        }
        Ok(())
    }

    /// Gives pieces of free memory back to the driver, one at a time, as long as at least `keep_bytes` are
    /// held; says how many bytes.
    ///
    /// # Errors
    /// The first that the driver reports. What could not be given back is tried again another time.
    pub(crate) fn release_incrementally(&self, keep_bytes: u64) -> Result<u64> {
        let mut released = 0;
        let mut at = Cursor::default();
        while !at.is_at_end {
            let slow = self.slow.lock();
            if self.is_out_of_reach() {
                break;
            }
            let task = self.state.lock().heaps.plan_release_step(keep_bytes, &mut at);
            released += task.map_or(Ok(0), |task| self.run_task(task))?;
            // Whoever waits to grow goes first.
            MutexGuard::unlock_fair(slow);
        }
        Ok(released)
    }
}
