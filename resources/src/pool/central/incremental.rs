//! Releases memory in the background, in small steps, for decay.
//!
//! The pool's lock is held for a bounded number of blocks at a time, and a turn on the slow path lasts for
//! one stream's driver queries or one task. Nothing here waits for the device. If it gets no turn, it leaves
//! the rest to a later step.

use millpond_core::{Result, StreamId};

use crate::heap::request::Cursor;
use crate::pool::central::collect::{Donor, RecordedEvent};
use crate::pool::central::observe::observe;
use crate::pool::central::{CentralCore, State};
use crate::store::Returning;

impl State {
    /// Makes some of the blocks that a reached event covers unowned.
    pub(super) fn disown_step(&mut self, recorded: &RecordedEvent, at: &mut Cursor) {
        match self.streams.find_mut(recorded.donor.id) {
            Some((owner, _)) => self.heaps.disown_step(owner, recorded.donor.epoch, at),
            None => at.is_at_end = true,
        }
        observe!(self, disowned, self, recorded);
    }
}

impl CentralCore {
    /// Makes completed blocks unowned, stream by stream.
    ///
    /// # Errors
    /// If the device is lost.
    pub(crate) fn collect_incrementally(&self) -> Result<()> {
        let streams: Vec<StreamId> = {
            let state = self.state.lock();
            state.streams.iter().map(|(_, slot)| slot.id).collect()
        };
        for id in streams {
            let turn = self.turns.enter();
            if !turn.is_mine() || self.is_closed_or_lost() {
                return Ok(());
            }
            self.collect_of(id)?;
            turn.hand_on();
        }
        Ok(())
    }

    fn is_closed_or_lost(&self) -> bool {
        self.health.is_lost() || self.state.lock().is_closed
    }

    /// Makes the completed blocks of one stream unowned.
    fn collect_of(&self, id: StreamId) -> Result<()> {
        let donor = {
            let mut state = self.state.lock();
            let State { heaps, streams, .. } = &mut *state;
            let Some((owner, slot)) = streams.find_mut(id) else { return Ok(()) };
            if heaps.free_bytes(None, owner) == 0 {
                return Ok(());
            }
            Donor { id, epoch: slot.epoch(), bytes: 0 }
        };
        let Some(recorded_event) = self.recorded_event_of(donor, None)? else { return Ok(()) };
        match self.driver.event_query(recorded_event.event) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => return self.skip_stream(id, error),
        }
        let mut at = Cursor::default();
        while !at.is_at_end {
            // While the caller is on the slow path, no thread closes the resource or forgets the stream.
            self.state.lock().disown_step(&recorded_event, &mut at);
        }
        Ok(())
    }

    /// Releases free extents to the driver, one at a time, while the pool holds more than `keep_bytes`;
    /// returns the bytes.
    ///
    /// # Errors
    /// The first that the driver reports. A later call tries the remaining extents again.
    pub(crate) fn release_incrementally(&self, keep_bytes: u64) -> Result<u64> {
        let mut released = 0;
        let mut at = Cursor::default();
        while !at.is_at_end {
            let turn = self.turns.enter();
            if !turn.is_mine() || self.is_closed_or_lost() {
                break;
            }
            let step = Returning::Step { keep_bytes, at: &mut at };
            let task = self.state.lock().heaps.store.plan_release(step);
            released += task.map_or(Ok(0), |task| self.run_and_commit(task, None))?;
            // A thread that waits to grow goes first.
            turn.hand_on();
        }
        Ok(released)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millpond_core::{DeviceMemoryResourceExt, DriverError, StreamRef};
    use millpond_driver::sim::{SimConfig, SimDevice};

    use crate::{CudaMemoryResource, PoolLayer};

    /// A step inside another call gets no turn, and leaves the rest to a later step.
    #[test]
    fn a_step_without_a_turn_asks_the_driver_nothing() {
        let device = SimDevice::new(SimConfig::h200());
        let cuda = CudaMemoryResource::new(device.clone());
        let pool = cuda.layer(PoolLayer::new()).expect("an empty pool");
        // The thread keeps one block, so that the pool gets the other.
        let blocks =
            [(); 2].map(|()| pool.allocate_bytes(8 << 20, StreamRef::LEGACY).expect("there is room"));
        // SAFETY: each block came from the pool with this size and is freed once.
        blocks.into_iter().for_each(|ptr| unsafe { pool.deallocate_bytes(ptr, 8 << 20, StreamRef::LEGACY) });
        let core = pool.central.core();
        let steps = || (core.collect_incrementally(), core.release_incrementally(0)).1;
        let calls = device.driver_calls();
        let outer = core.turns.enter();
        assert_eq!(steps().expect("the device is there"), 0);
        assert_eq!(device.driver_calls(), calls);
        drop(outer);
        steps().expect("the device is there");
        assert!(device.driver_calls() > calls, "there is something to do");
    }

    /// Incremental work ends with the pool, and with the device.
    #[test]
    fn a_pool_is_over_once_it_is_dropped_or_its_device_is_lost() {
        let pool = || {
            let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
            cuda.layer(PoolLayer::new()).expect("an empty pool")
        };
        let [dropped, lost] = [pool(), pool()];
        let cores = [&dropped, &lost].map(|pool| Arc::clone(pool.central.core()));
        assert!(cores.iter().all(|core| !core.is_closed_or_lost()));
        drop(dropped);
        cores[1].health.note(&DriverError::new(DriverError::ECC_UNCORRECTABLE, "cuCtxSynchronize"));
        assert!(cores.iter().all(|core| core.is_closed_or_lost()));
    }
}
