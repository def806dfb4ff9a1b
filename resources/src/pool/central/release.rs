//! What goes back to the driver or to upstream: on `trim`, and before memory is out.

use millpond_core::driver::CaptureModeGuard;
use millpond_core::{DeviceMemoryResource, Error, Layout, Result, StreamRef};
use parking_lot::MutexGuard;

use crate::heap::request::Request;
use crate::pool::Task;
use crate::pool::central::cross_stream::Donor;
use crate::pool::central::trace::event;
use crate::pool::central::{Central, CentralCore, State};
use crate::pool::protocol::Reclaim;
use crate::stream_order::ANY_STREAM;

/// Driver calls of one task that gives memory back: other threads' calls come in between tasks.
const CALLS_AT_ONCE: usize = 64;

impl CentralCore {
    /// Waits for the streams that own free blocks, one by one, by events; after that, the blocks are
    /// unowned.
    ///
    /// Streams that are gone, or may be, take the device as a whole with them. Where that cannot be waited
    /// for now, their blocks stay theirs, and so do those of streams that capture a graph.
    pub(crate) fn wait_for_owners(&self, stream: Option<StreamRef>) -> Result<()> {
        let donors = self.donors(None);
        let mut recorded_events = Vec::with_capacity(donors.len());
        let mut without = Vec::new();
        for donor in donors {
            match self.recorded_event_or_last(donor, stream)? {
                Some(recorded_event) => {
                    if recorded_event.donor.epoch < donor.epoch {
                        without.push(donor.id);
                    }
                    recorded_events.push(recorded_event);
                }
                None => without.push(donor.id),
            }
        }
        let watch = self.watch();
        for recorded_event in &recorded_events {
            match self.driver.event_synchronize(recorded_event.event) {
                Ok(()) => self.complete(recorded_event, None),
                Err(error) => self.skip_stream(recorded_event.donor.id, error)?,
            }
        }
        if !recorded_events.is_empty() {
            self.trace_synchronize(&watch);
        }
        let some_is_left = {
            let mut state = self.state.lock();
            state.backlog.end();
            let State { heaps, streams, .. } = &mut *state;
            without
                .iter()
                .any(|id| streams.find_mut(*id).is_some_and(|(owner, _)| heaps.free_bytes(owner) > 0))
        };
        if some_is_left { self.wait_for_device().map(|_| ()) } else { Ok(()) }
    }

    /// Waits for the device as a whole, if that can be done now; says whether it was, so that all blocks that
    /// were free before are unowned.
    pub(crate) fn wait_for_device(&self) -> Result<bool> {
        let covered: Vec<Donor> = {
            let mut state = self.state.lock();
            let donors = state.streams.iter_mut();
            donors.map(|(_, slot)| Donor { id: slot.id, epoch: slot.end_epoch() }).collect()
        };
        let watch = self.watch();
        let span = self.span("synchronize", 0, StreamRef::LEGACY);
        let waited = span.in_scope(|| self.driver.synchronize_beside_captures());
        if !waited.map_err(|error| self.driver_error(error))? {
            event!(self, DEBUG, "the device cannot be waited for during a capture");
            return Ok(false);
        }
        self.trace_synchronize(&watch);
        let mut state = self.state.lock();
        let State { heaps, streams, .. } = &mut *state;
        for donor in covered {
            if let Some((owner, slot)) = streams.find_mut(donor.id) {
                slot.set_record_requested(false);
                if slot.recorded_epoch.is_some_and(|epoch| epoch <= donor.epoch) {
                    slot.recorded_epoch = None;
                }
                heaps.migrate(owner, donor.epoch, ANY_STREAM, 0);
            }
        }
        Ok(true)
    }

    /// Free bytes that belong to streams: where there is a request, those that could serve it.
    pub(crate) fn owned_free_bytes(&self, request: Option<&Request>) -> u64 {
        let state = self.state.lock();
        state.streams.iter().map(|(owner, _)| state.heaps.free_bytes_for(request, owner)).sum()
    }

    pub(crate) fn bytes_reserved(&self) -> u64 {
        self.state.lock().heaps.totals().bytes_reserved
    }

    /// Carries a task out; says how many bytes it gave back.
    pub(crate) fn run_task(&self, mut task: Task) -> Result<u64> {
        let watch = self.watch();
        let span = self.span("errand", task.new_bytes(), StreamRef::LEGACY);
        let outcome = span.in_scope(|| task.run(&*self.driver));
        let bytes = task.released_bytes();
        let mut state = self.state.lock();
        match outcome {
            Ok(()) => _ = task.commit(&mut state.heaps),
            Err(error) => {
                task.abort(&mut state.heaps);
                drop(state);
                self.note_return();
                return Err(self.driver_error(error));
            }
        }
        drop(state);
        if bytes > 0 {
            self.note_return();
            self.trace_release(bytes, &watch);
        }
        Ok(bytes)
    }

    /// Gives memory back that is free for anyone, if more than `keep_bytes` are held: one task, or one
    /// region to `upstream`. Says how much, which is nothing where only mappings went; `None` where there is
    /// nothing to do, or it failed.
    fn release_some(
        &self,
        keep_bytes: u64,
        upstream: &dyn DeviceMemoryResource,
        stream: StreamRef,
    ) -> Option<u64> {
        if self.maps_pages {
            let task = self.state.lock().heaps.plan_release(keep_bytes, CALLS_AT_ONCE)?;
            let warn = |error: &Error| event!(self, WARN, "memory could not be given back", %error);
            return self.run_task(task).inspect_err(warn).ok();
        }
        let (base, bytes, leaving) = {
            let mut state = self.state.lock();
            if state.heaps.totals().bytes_reserved <= keep_bytes {
                return None;
            }
            let (base, bytes) = state.heaps.remove_free_region()?;
            (base, bytes, self.remove_block(bytes))
        };
        let watch = self.watch();
        // SAFETY: the region came from this upstream, or an equal one, with this layout; no block of it is in
        // use, and all work on its blocks is done.
        unsafe { upstream.deallocate(base, Layout::new(bytes), stream) };
        drop(leaving);
        self.note_return();
        self.trace_release(bytes, &watch);
        Some(bytes)
    }

    /// Gives memory that is free for anyone back until at most `keep_bytes` are held.
    pub(crate) fn release_free(
        &self,
        keep_bytes: u64,
        upstream: &dyn DeviceMemoryResource,
        stream: StreamRef,
    ) -> u64 {
        std::iter::from_fn(|| self.release_some(keep_bytes, upstream, stream)).sum()
    }
}

impl<R: DeviceMemoryResource> Central<R> {
    /// Gives memory that is free for anyone back until at most `keep_bytes` are held.
    pub(crate) fn release_free_regions(&self, keep_bytes: u64, stream: StreamRef) -> u64 {
        self.release_free(keep_bytes, &self.upstream, stream)
    }

    /// Gives a little of what the pool holds in excess back to the driver. Nothing waits; where a thread is
    /// on the slow path, or the stream captures a graph, there is another time.
    #[cold]
    pub(crate) fn release_excess(&self, stream: StreamRef) {
        let Some(_slow) = self.slow.try_lock() else { return };
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        if !matches!(self.is_capturing(stream), Ok(false)) {
            return;
        }
        let released = self.collect_completed(None, Some(stream), true).and_then(|()| {
            let task = self.state.lock().heaps.plan_excess();
            task.map_or(Ok(0), |task| self.run_task(task))
        });
        // The caller has its block: what failed is tried again with the next release.
        if let Err(error) = released {
            event!(self, WARN, "memory could not be given back", %error);
        }
    }

    /// Gives regions back until at most `keep_bytes` are held; returns what then went to the device.
    pub(crate) fn trim(&self, keep_bytes: u64) -> Result<u64> {
        let released = self.release_regions(keep_bytes, true)?;
        // An upstream in stream order keeps what it is given: from there on it is upstream's to give back.
        if self.upstream_is_ordered { self.upstream.trim(keep_bytes) } else { Ok(released) }
    }

    /// Gives regions back to upstream until at most `keep_bytes` are held: those that are free for anyone,
    /// and, if it `may_wait`, those that are once their streams were waited for.
    pub(crate) fn release_regions(&self, keep_bytes: u64, may_wait: bool) -> Result<u64> {
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        let mut slow = self.slow.lock();
        if self.health.is_lost() {
            return Err(self.health.error());
        }
        let excess = self.bytes_reserved().saturating_sub(keep_bytes);
        if excess == 0 {
            return Ok(0);
        }
        self.state.lock().heaps.reclaim(Reclaim::Everything);
        if may_wait && self.owned_free_bytes(None) > 0 {
            self.wait_for_owners(None)?;
        }
        let mut released = 0;
        while released < excess {
            match self.release_some(keep_bytes, &self.upstream, StreamRef::LEGACY) {
                None => break,
                Some(bytes) => released += bytes,
            }
            // Whoever waits to grow goes first.
            MutexGuard::bump(&mut slow);
        }
        Ok(released)
    }
}
