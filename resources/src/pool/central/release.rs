//! Returns memory to the driver or to upstream: on `trim`, when the pool holds excess, and before it is out
//! of memory.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use millpond_core::driver::CaptureModeGuard;
use millpond_core::{DeviceMemoryResource, DevicePtr, Error, Layout, Result, StreamRef};

use crate::heap::request::Request;
use crate::pool::Task;
use crate::pool::central::cross_stream::Donor;
use crate::pool::central::trace::event;
use crate::pool::central::{Central, CentralCore, State};
use crate::pool::protocol::Reclaim;
use crate::stream_order::ANY_STREAM;
use crate::tuning::CALLS_PER_RELEASE;
use millpond_core::trim_upstream;

impl CentralCore {
    /// Waits for the recorded events of all streams that own free blocks; the blocks are then unowned.
    ///
    /// If a stream may be destroyed, this waits for the whole device. If that is not possible now, such
    /// streams keep their blocks, and so do streams that capture a graph.
    pub(crate) fn wait_for_owners(&self, stream: Option<StreamRef>) -> Result<()> {
        let donors = self.donors(None);
        let mut recorded_events = Vec::with_capacity(donors.len());
        // Streams with blocks that no event covers.
        let mut uncovered = Vec::new();
        for donor in donors {
            match self.recorded_event_or_last(donor, stream)? {
                Some(recorded_event) => {
                    if recorded_event.donor.epoch < donor.epoch {
                        uncovered.push(donor.id);
                    }
                    recorded_events.push(recorded_event);
                }
                None => uncovered.push(donor.id),
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
        let some_are_owned = {
            let mut state = self.state.lock();
            state.backlog.end();
            let State { heaps, streams, .. } = &mut *state;
            uncovered
                .iter()
                .any(|id| streams.find_mut(*id).is_some_and(|(owner, _)| heaps.free_bytes(owner) > 0))
        };
        if some_are_owned { self.wait_for_device().map(|_| ()) } else { Ok(()) }
    }

    /// Waits for the whole device, unless a capture is in progress. Returns whether it did: then all blocks
    /// that were free before are unowned.
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

    /// Returns the free bytes that streams own; with a request, only those that could serve it.
    pub(crate) fn owned_free_bytes(&self, request: Option<&Request>) -> u64 {
        let state = self.state.lock();
        state.streams.iter().map(|(owner, _)| state.heaps.free_bytes_for(request, owner)).sum()
    }

    pub(crate) fn bytes_reserved(&self) -> u64 {
        self.state.lock().heaps.large.bytes_reserved()
    }

    /// Runs a task by foreign code: upstream, the driver, a subscriber. If that panics, the task is undone by
    /// `undo` and aborted, so that others can use the memory that it had planned.
    pub(crate) fn run_or_abort<T>(
        &self,
        mut task: Task,
        run: impl FnOnce(&mut Task) -> T,
        undo: impl FnOnce(&mut Task),
    ) -> (Task, T) {
        match catch_unwind(AssertUnwindSafe(|| run(&mut task))) {
            Ok(outcome) => (task, outcome),
            Err(panic) => {
                // What is not undone, since this panics as well, the task keeps out of the pool.
                let _ = catch_unwind(AssertUnwindSafe(|| undo(&mut task)));
                task.abort(&mut self.state.lock().heaps);
                self.note_return();
                resume_unwind(panic)
            }
        }
    }

    /// Makes further calls for a request that has its block. If they panic, the caller never gets the block,
    /// so it is free again.
    pub(crate) fn free_if_panics<T>(
        &self,
        ptr: DevicePtr,
        request: &Request,
        stream: StreamRef,
        call: impl FnOnce() -> T,
    ) -> T {
        catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
            let mut state = self.state.lock();
            let owner = state.owner_of(stream);
            let State { heaps, streams, .. } = &mut *state;
            let freed =
                heaps.free(ptr, Layout::new(request.requested), owner, streams.slot_mut(owner).epoch());
            debug_assert!(freed.is_ok(), "{ptr:?} is in use: {freed:?}");
            drop(state);
            resume_unwind(panic)
        })
    }

    /// Runs a task and commits or aborts it; returns the bytes that it released.
    pub(crate) fn run_task(&self, task: Task) -> Result<u64> {
        let watch = self.watch();
        let run = |task: &mut Task| {
            let span = self.span("task", task.new_bytes(), StreamRef::LEGACY);
            span.in_scope(|| task.run(&*self.driver))
        };
        let (task, outcome) = self.run_or_abort(task, run, |task| task.undo(&*self.driver));
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

    /// Releases unowned memory, if the pool holds more than `keep_bytes`: runs one task, or returns one
    /// region to `upstream`. Returns the bytes, which are 0 if it only removed mappings; `None` if there is
    /// nothing to release, or the task failed.
    fn release_some(
        &self,
        keep_bytes: u64,
        upstream: &dyn DeviceMemoryResource,
        stream: StreamRef,
    ) -> Option<u64> {
        if self.maps_pages {
            let task = self.state.lock().heaps.plan_release(keep_bytes, CALLS_PER_RELEASE)?;
            let warn = |error: &Error| event!(self, WARN, "memory could not be released", %error);
            return self.run_task(task).inspect_err(warn).ok();
        }
        let (base, bytes, returning) = {
            let mut state = self.state.lock();
            if state.heaps.totals().bytes_reserved <= keep_bytes {
                return None;
            }
            let (base, bytes) = state.heaps.remove_free_region()?;
            (base, bytes, self.begin_return(bytes))
        };
        let watch = self.watch();
        // SAFETY: the region came from this upstream, or an equal one, with this layout; no block of it is in
        // use, and all work on its blocks is done.
        unsafe { upstream.deallocate(base, Layout::new(bytes), stream) };
        drop(returning);
        self.note_return();
        self.trace_release(bytes, &watch);
        Some(bytes)
    }

    /// Releases unowned memory until the pool holds at most `keep_bytes`; returns the bytes released.
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
    /// Releases unowned memory until the pool holds at most `keep_bytes`; returns the bytes released.
    pub(crate) fn release_free_regions(&self, keep_bytes: u64, stream: StreamRef) -> u64 {
        self.release_free(keep_bytes, &self.upstream, stream)
    }

    /// Releases a part of the pool's excess memory to the driver, without waiting for the device. Does
    /// nothing if another thread is on the slow path, or if the stream captures a graph.
    #[cold]
    pub(crate) fn release_excess(&self, stream: StreamRef) {
        let Some(_turn) = self.turns.try_enter() else { return };
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        if !matches!(self.is_capturing(stream), Ok(false)) {
            return;
        }
        let released = self.collect_completed(None, Some(stream), true).and_then(|()| {
            let task = self.state.lock().heaps.plan_excess();
            task.map_or(Ok(0), |task| self.run_task(task))
        });
        // The caller has its block, so an error here must not fail it; the next release tries again.
        if let Err(error) = released {
            event!(self, WARN, "memory could not be released", %error);
        }
    }

    /// Releases a part of the unowned memory that the pool holds beyond `keep_bytes`, without waiting for the
    /// device; returns the bytes released. Does nothing over regions, whose return waits, if another thread
    /// is on the slow path, or if the stream captures a graph.
    pub(crate) fn release_unused(&self, keep_bytes: u64, stream: StreamRef) -> Result<u64> {
        let Some(_turn) = self.turns.try_enter() else { return Ok(0) };
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        let may_release = self.maps_pages && !self.health.is_lost();
        if !may_release || !matches!(self.is_capturing(stream), Ok(false)) {
            return Ok(0);
        }
        self.state.lock().heaps.reclaim(Reclaim::Everything);
        self.collect_completed(None, Some(stream), true)?;
        Ok(self.release_some(keep_bytes, &self.upstream, stream).unwrap_or(0))
    }

    /// Returns memory until the pool holds at most `keep_bytes`; returns the bytes that reached the device.
    pub(crate) fn trim(&self, keep_bytes: u64) -> Result<u64> {
        let released = self.release_regions(keep_bytes, true)?;
        trim_upstream(&self.upstream, released, keep_bytes)
    }

    /// Returns unowned memory until the pool holds at most `keep_bytes`. If it `may_wait`, first waits for
    /// the streams that own free blocks.
    pub(crate) fn release_regions(&self, keep_bytes: u64, may_wait: bool) -> Result<u64> {
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        let mut turn = self.turns.enter();
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
            // A thread that waits to grow goes first.
            turn.let_others_pass();
        }
        Ok(released)
    }
}

#[cfg(test)]
mod tests {
    use millpond_core::DeviceMemoryResourceExt;
    use millpond_core::driver::{Driver, StreamFlags};
    use millpond_driver::sim::{SimConfig, SimDevice};

    use crate::{CudaMemoryResource, PagesMode, PoolLayer};

    /// Free memory goes back in parts, without a wait, down to the bytes to keep; over regions, nothing does.
    #[test]
    fn unused_memory_is_released_as_far_as_its_work_is_done() {
        const BYTES: u64 = 64 << 20;
        const BLOCKED_NS: u64 = 1 << 50;
        for (pages, may_release) in [(PagesMode::On, true), (PagesMode::Off, false)] {
            let device = SimDevice::new(SimConfig::h200());
            let pool = CudaMemoryResource::new(device.clone()).layer(PoolLayer::new().pages(pages));
            let pool = pool.expect("an empty pool");
            let [stream, busy] =
                [(); 2].map(|()| device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream"));
            device.launch_for(busy, &[], BLOCKED_NS);
            let release = |keep| pool.release_unused(keep, stream).expect("the device is there");
            let ptr = pool.allocate_bytes(BYTES, stream).expect("there is room");
            assert_eq!(release(0), 0, "all is in use");
            device.launch_for(stream, &[], 1_000_000_000);
            // SAFETY: the block came from the pool with this size; the work does not use it.
            unsafe { pool.deallocate_bytes(ptr, BYTES, stream) };
            assert_eq!((release(0), pool.pool_bytes()), (0, BYTES), "the work is under way");
            device.stream_synchronize(stream).expect("the device is there");
            assert_eq!(release(BYTES), 0, "all is kept");
            let (mut held, keep) = (BYTES, BYTES / 4);
            loop {
                let released = release(keep);
                held -= released;
                assert_eq!(pool.pool_bytes(), held);
                if released == 0 {
                    break;
                }
            }
            assert!(held >= keep && (held < BYTES / 2) == may_release, "{pages}: {held}");
            assert!(device.virtual_time_ns() < BLOCKED_NS, "nothing waits for the other stream");
            pool.validate();
        }
    }
}
