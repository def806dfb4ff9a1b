//! Returns memory to the driver or to upstream: on `trim`, if the pool holds excess memory, and before it is
//! out of memory.

use millpond_core::driver::CaptureModeGuard;
use millpond_core::{DeviceMemoryResource, Error, Layout, Result, StreamRef};

use crate::heap::request::Request;
use crate::pool::central::collect::Donor;
use crate::pool::central::observe::observe;
use crate::pool::central::trace::event;
use crate::pool::central::{Central, CentralCore, State};
use crate::pool::heaps::Reclaim;
use crate::store::{ReturnedRegions, Returning, Task};
use crate::stream_order::streams::Slot;
use crate::tuning::CALLS_PER_RELEASE;
use millpond_core::trim_upstream;

impl State {
    /// Returns the free bytes that streams own; with a request, only the bytes that could serve it.
    pub(crate) fn owned_free_bytes(&self, request: Option<&Request>) -> u64 {
        self.streams.iter().map(|(owner, _)| self.heaps.free_bytes(request, owner)).sum()
    }

    /// Ends the epochs of all streams, before a wait for the device; returns them.
    pub(super) fn end_epochs(&mut self) -> Vec<Donor> {
        let donor = |(_, slot): (_, &mut Slot)| Donor { id: slot.id, epoch: slot.end_epoch(), bytes: 0 };
        let donors: Vec<Donor> = self.streams.iter_mut().map(donor).collect();
        observe!(self, ended_epochs, self, &donors);
        donors
    }

    /// Makes the blocks of ended epochs unowned, after the device has done all work.
    pub(super) fn device_done(&mut self, covered: &[Donor]) {
        let Self { heaps, streams, .. } = self;
        for donor in covered {
            if let Some((owner, slot)) = streams.find_mut(donor.id) {
                slot.set_record_requested(false);
                if slot.recorded_epoch.is_some_and(|epoch| epoch <= donor.epoch) {
                    slot.recorded_epoch = None;
                }
                heaps.disown(None, owner, donor.epoch);
            }
        }
        observe!(self, device_done, self);
    }
}

impl CentralCore {
    /// Takes back all blocks of the threads' caches.
    pub(super) fn flush_caches(&self) {
        let flushed = self.with_heaps(|heaps| {
            heaps.reclaim(None, Reclaim::Everything);
            std::mem::take(&mut heaps.flushed)
        });
        self.trace_flush(flushed);
    }

    /// Waits for the recorded events of all streams that own free blocks. The blocks are then unowned.
    ///
    /// If a stream may be destroyed, this waits for the whole device. If it cannot wait now, such streams
    /// keep their blocks. Streams that capture a graph also keep theirs.
    pub(crate) fn wait_for_owners(&self, stream: Option<StreamRef>) -> Result<()> {
        let donors = self.state.lock().donors(None);
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
        let mut ended = Vec::with_capacity(recorded_events.len());
        let is_some = !recorded_events.is_empty();
        for recorded in recorded_events {
            match self.driver.event_synchronize(recorded.event) {
                Ok(()) => ended.push(recorded),
                Err(error) => self.skip_stream(recorded.donor.id, error)?,
            }
        }
        if is_some {
            self.trace_synchronize(&watch);
        }
        let some_are_owned = {
            let mut state = self.state.lock();
            ended.iter().for_each(|recorded| state.complete(recorded, None));
            state.backlog.end();
            let State { heaps, streams, .. } = &mut *state;
            uncovered
                .iter()
                .any(|id| streams.find_mut(*id).is_some_and(|(owner, _)| heaps.free_bytes(None, owner) > 0))
        };
        if some_are_owned { self.wait_for_device().map(|_| ()) } else { Ok(()) }
    }

    /// Waits for the whole device, unless a capture is in progress. Returns whether it waited. Then all
    /// blocks that were free before are unowned.
    pub(crate) fn wait_for_device(&self) -> Result<bool> {
        let covered = self.state.lock().end_epochs();
        let watch = self.watch();
        let span = self.span("synchronize", 0, StreamRef::LEGACY);
        let waited = span.in_scope(|| self.driver.synchronize_beside_captures());
        if !waited.map_err(|error| self.driver_error(error))? {
            event!(self, DEBUG, "the pool cannot wait for the device during a capture");
            return Ok(false);
        }
        self.trace_synchronize(&watch);
        self.state.lock().device_done(&covered);
        Ok(true)
    }

    /// Returns the free bytes that streams own.
    pub(crate) fn owned_free_bytes(&self) -> u64 {
        self.state.lock().owned_free_bytes(None)
    }

    pub(crate) fn bytes_reserved(&self) -> u64 {
        self.state.lock().heaps.store.bytes_reserved()
    }

    /// Makes the calls of a task that takes no memory. It returns regions to `below`.
    pub(crate) fn run_change(&self, task: Task, below: Option<Below<'_>>) -> (Task, Result<()>) {
        let run = |task: &mut Task| {
            let (watch, before) = (self.watch(), self.before(task));
            let span = self.span("task", task.new_bytes(), StreamRef::LEGACY);
            let outcome = span.in_scope(|| {
                if let (Task::Return(regions), Some(below)) = (&mut *task, below) {
                    // SAFETY: the task's regions came from this upstream, or an equal one; no block of them
                    // is in use, and all work on their blocks is done.
                    unsafe { below.take_back(regions) };
                }
                task.make_calls(&*self.driver)
            });
            self.report_segments(before, task);
            let bytes = task.released_bytes();
            if bytes > 0 || outcome.is_err() {
                self.note_return();
            }
            if bytes > 0 {
                self.trace_release(bytes, &watch);
            }
            // An error is reported inside the run, so that the task is not lost if a subscriber panics.
            outcome.map_err(|error| self.driver_error(error))
        };
        self.abort_if_panics(task, run, |task| task.undo(&*self.driver))
    }

    /// Runs a task that takes no memory, and commits or aborts it; returns the bytes that it released.
    pub(crate) fn run_and_commit(&self, task: Task, below: Option<Below<'_>>) -> Result<u64> {
        let (task, outcome) = self.run_change(task, below);
        let bytes = task.released_bytes();
        let mut state = self.state.lock();
        match outcome {
            Ok(()) => _ = state.heaps.commit(task),
            Err(error) => {
                state.heaps.store.abort(task);
                return Err(error);
            }
        }
        Ok(bytes)
    }

    /// Releases unowned memory with one task, if the pool holds more than `keep_bytes`. Returns the bytes,
    /// which are 0 if the task only removed mappings. Returns `None` if there is nothing to release, or the
    /// task failed.
    fn release_some(&self, keep_bytes: u64, below: Below<'_>) -> Option<u64> {
        let free = Returning::Free { keep_bytes, most_calls: CALLS_PER_RELEASE };
        let task = self.state.lock().heaps.store.plan_release(free)?;
        let warn = |error: &Error| event!(self, WARN, "memory could not be released", %error);
        self.run_and_commit(task, Some(below)).inspect_err(warn).ok()
    }

    /// Releases unowned memory until the pool holds at most `keep_bytes`; returns the bytes released.
    pub(crate) fn release_free(&self, keep_bytes: u64, below: Below<'_>) -> u64 {
        std::iter::from_fn(|| self.release_some(keep_bytes, below)).sum()
    }
}

/// The upstream that takes regions back, and the stream of the calls.
#[derive(Clone, Copy)]
pub(crate) struct Below<'a> {
    pub(crate) upstream: &'a dyn DeviceMemoryResource,
    pub(crate) stream: StreamRef,
}

impl Below<'_> {
    /// Returns regions to upstream.
    ///
    /// # Safety
    /// The regions came from this upstream, or an equal one, and nothing uses them.
    pub(crate) unsafe fn take_back(&self, regions: &mut ReturnedRegions) {
        while let Some((base, bytes)) = regions.left.pop() {
            // SAFETY: the caller's promise.
            unsafe { self.upstream.deallocate(base, Layout::new(bytes), self.stream) };
        }
    }
}

impl<R: DeviceMemoryResource> Central<R> {
    /// Returns upstream, to take regions back on this stream.
    pub(crate) fn below(&self, stream: StreamRef) -> Below<'_> {
        Below { upstream: &self.upstream, stream }
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
        let released = self.collect_completed(Some(stream), true).and_then(|()| {
            let task = self.state.lock().heaps.plan_excess();
            task.map_or(Ok(0), |task| self.run_and_commit(task, None))
        });
        // The caller has its block, so an error here must not fail it; the next release tries again.
        if let Err(error) = released {
            event!(self, WARN, "memory could not be released", %error);
        }
    }

    /// Releases a part of the unowned memory that the pool holds beyond `keep_bytes`, without waiting for the
    /// device; returns the bytes released. Does nothing over regions (returning one waits for the device), if
    /// another thread is on the slow path, or if the stream captures a graph.
    pub(crate) fn release_unused(&self, keep_bytes: u64, stream: StreamRef) -> Result<u64> {
        let Some(_turn) = self.turns.try_enter() else { return Ok(0) };
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        let may_release = self.rules.maps_pages && !self.health.is_lost();
        if !may_release || !matches!(self.is_capturing(stream), Ok(false)) {
            return Ok(0);
        }
        self.flush_caches();
        self.collect_completed(Some(stream), true)?;
        Ok(self.release_some(keep_bytes, self.below(stream)).unwrap_or(0))
    }

    /// Returns memory until the pool holds at most `keep_bytes`; returns the bytes that reached the device.
    pub(crate) fn trim(&self, keep_bytes: u64) -> Result<u64> {
        let released = self.release_regions(keep_bytes, true)?;
        trim_upstream(&self.upstream, released, keep_bytes)
    }

    /// Returns unowned memory until the pool holds at most `keep_bytes`. If it `may_wait`, it first waits for
    /// the streams that own free blocks.
    pub(crate) fn release_regions(&self, keep_bytes: u64, may_wait: bool) -> Result<u64> {
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        let mut turn = self.turns.enter();
        if self.health.is_lost() {
            return Err(self.lost_error());
        }
        let excess = self.bytes_reserved().saturating_sub(keep_bytes);
        if excess == 0 {
            return Ok(0);
        }
        self.flush_caches();
        if may_wait {
            self.wait_for_owners(None)?;
        }
        let mut released = 0;
        while released < excess {
            match self.release_some(keep_bytes, self.below(StreamRef::LEGACY)) {
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
    use millpond_core::driver::{CaptureMode, Driver, StreamFlags};
    use millpond_driver::sim::{SimConfig, SimDevice};

    use crate::{CudaMemoryResource, PagesMode, PoolLayer, Reuse};

    /// Free memory returns in parts, without a wait, down to the bytes to keep. Over regions, none returns.
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

    /// Excess memory returns, but not while the calling stream captures a graph.
    #[test]
    fn excess_is_released_outside_of_captures() {
        const BYTES: u64 = 64 << 20;
        let device = SimDevice::new(SimConfig::h200());
        let layer = PoolLayer::new().pages(PagesMode::On).reuse(Reuse::OWN_STREAM);
        let pool = CudaMemoryResource::new(device.clone()).layer(layer).expect("an empty pool");
        let streams = [(); 2].map(|()| device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream"));
        for stream in streams {
            let ptr = pool.allocate_bytes(BYTES, stream).expect("there is room");
            // SAFETY: the block came from the pool with this size and is freed once.
            unsafe { pool.deallocate_bytes(ptr, BYTES, stream) };
        }
        assert_eq!(pool.pool_bytes(), 2 * BYTES);
        device.begin_capture(streams[0], CaptureMode::Relaxed).expect("no capture is under way");
        pool.central.release_excess(streams[0]);
        assert_eq!(pool.pool_bytes(), 2 * BYTES, "a capture is under way");
        device.end_capture(streams[0]).expect("a capture is under way");
        pool.central.release_excess(streams[0]);
        assert!((BYTES..2 * BYTES).contains(&pool.pool_bytes()), "{} bytes", pool.pool_bytes());
    }
}
