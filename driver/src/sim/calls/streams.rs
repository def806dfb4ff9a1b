//! Creates, destroys and waits for streams.

use millpond_core::driver::StreamFlags;
use millpond_core::{DriverError, StreamRef};

use crate::sim::model::answer::{Answer, Refusal};
use crate::sim::model::clock::Slot;
use crate::sim::model::order::StreamKind;
use crate::sim::model::violation::ViolationKind;
use crate::sim::state::State;

/// If more destroyed streams than this have unfinished work, creating a stream waits for that work.
const MOST_DEAD_AT_WORK: usize = 128;

impl State {
    /// The slot of a stream. A stream that does not exist is a violation.
    pub(crate) fn slot(&mut self, stream: StreamRef, call: &str) -> Option<Slot> {
        let found = self.names.slot(stream);
        if found.is_some() {
            return found;
        }
        if stream.is_per_thread() {
            let slot = self.order.open(StreamKind::Blocking, stream.handle())?;
            self.work.open(slot);
            self.names.add_per_thread(stream, slot);
            return Some(slot);
        }
        self.violation(ViolationKind::DeadHandle, || {
            let (handle, id) = (stream.handle(), stream.id().get());
            format!("{call} names stream {handle:#x} (id {id}), which never existed or was destroyed")
        });
        None
    }

    /// Does the same for a driver call.
    pub(crate) fn stream_slot(&mut self, stream: StreamRef, call: &str) -> Answer<Slot> {
        self.slot(stream, call).ok_or_else(|| {
            Refusal::new(DriverError::INVALID_HANDLE, format!("stream {stream} does not exist"))
        })
    }

    /// See [`SimDevice::is_blocking`](crate::sim::SimDevice::is_blocking).
    pub(crate) fn is_blocking(&self, stream: StreamRef) -> bool {
        self.names.slot(stream).map_or(stream.is_per_thread(), |slot| self.order.is_blocking(slot))
    }

    pub(crate) fn stream_create(&mut self, flags: StreamFlags) -> Answer<StreamRef> {
        if self.order.wants_folding() {
            self.fold_streams();
        }
        let kind = if flags.non_blocking { StreamKind::NonBlocking } else { StreamKind::Blocking };
        let handle = self.names.next_stream_handle();
        let slot = self.order.open(kind, handle).ok_or_else(|| {
            Refusal::new(DriverError::OUT_OF_MEMORY, "the simulated device cannot have more streams")
        })?;
        self.work.open(slot);
        let stream = self.names.add_stream(slot);
        self.note(stream.handle());
        Ok(stream)
    }

    pub(crate) fn stream_destroy(&mut self, stream: StreamRef) -> Answer<()> {
        if stream.handle() <= 2 {
            return Err(Refusal::new(DriverError::INVALID_HANDLE, "a default stream cannot be destroyed"));
        }
        let slot = self.stream_slot(stream, "cuStreamDestroy")?;
        self.captures.forget(slot, "cuStreamDestroy");
        self.order.close(slot);
        self.names.remove_stream(stream);
        Ok(())
    }

    /// Forgets destroyed streams that no later call can refer to.
    fn fold_streams(&mut self) {
        if self.order.dead().len() > MOST_DEAD_AT_WORK {
            for slot in self.order.dead().to_vec() {
                self.work.finish(self.order.end(slot), &mut self.effects);
            }
        }
        let mut referenced = vec![false; self.order.len()];
        self.oracle.for_each_epoch(|epoch| referenced[epoch.slot()] = true);
        self.pools.for_each_epoch(|epoch| referenced[epoch.slot()] = true);
        self.names.for_each_epoch(|epoch| referenced[epoch.slot()] = true);
        self.order.fold(&referenced, |slot| self.work.is_idle(slot));
        self.oracle.forget_slots(|slot| self.order.is_free(slot));
    }

    pub(crate) fn stream_synchronize(&mut self, stream: StreamRef) -> Answer<()> {
        let slot = self.stream_slot(stream, "cuStreamSynchronize")?;
        self.work.finish(self.order.end(slot), &mut self.effects);
        self.order.host_learns_stream(slot);
        self.trim_pools();
        Ok(())
    }

    pub(crate) fn stream_query(&mut self, stream: StreamRef) -> Answer<bool> {
        let slot = self.stream_slot(stream, "cuStreamQuery")?;
        let done = self.work.is_done(self.order.end(slot));
        if done {
            self.order.host_learns_stream(slot);
        }
        self.note(u64::from(done));
        Ok(done)
    }

    /// Waits for all work (`cuCtxSynchronize`, `cuMemFree`).
    pub(crate) fn synchronize(&mut self) {
        self.work.finish_all(&mut self.effects);
        self.order.host_learns_all();
        self.trim_pools();
    }
}
