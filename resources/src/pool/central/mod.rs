//! Stream order for resources that keep free blocks: which block may be handed to which stream, at what
//! price.
//!
//! Every free block has an *owner*, the stream on which it was given back, or nobody in particular once all
//! work on it is known to be done. The owner's stream takes it back at once, without any driver call.
//! Another stream goes down the **reuse ladder**, and each step is counted ([`LadderCounts`]):
//!
//! | step | a block that | driver calls |
//! |---|---|---|
//! | own stream | was freed on this stream (or is unowned: counted as completed) | 0 |
//! | ordered | belongs to a stream that this one was made to wait for after the block was given back | 0 |
//! | completed | belonged to a stream whose recorded event is done | a query; a record where none is there |
//! | grow | is new, from upstream | upstream's |
//! | waited | belongs to another stream: this one is made to wait for its recorded event | a record and a wait |
//! | reclaim | is had by synchronising, or by giving free regions back to grow anew | a synchronisation |
//!
//! **No stream waits for another, and no host for the device, while there is memory to be had.** A wait
//! behind a stream that is far ahead costs more than all else that an allocator does, so it comes where
//! growth is refused, by the device or by the resource's own maximum. CUDA's pools have the same rule: they
//! make internal dependencies where they cannot map more memory. Two exceptions make the host wait: blocks of
//! streams that may be gone (below), and regions that go back to upstream while streams keep up.
//!
//! **Streams that are far behind keep what they free** (`backlog`): each serves itself first, and new
//! memory comes before another stream's. What they then take is what each of them needs at its peak, and
//! stays so.
//!
//! **Time is counted in recorded events, not in frees.** Each stream has an epoch. A free notes the epoch and
//! makes no driver call. Recording a recorded event (one event per stream) ends the epoch and covers all
//! blocks of it and before, so one record and one wait serve a batch. What a stream was made to wait for is
//! remembered, and what *that* stream had been made to wait for before is inherited: a block moved from
//! stream to stream never loses what it depends on.
//!
//! **Streams die.** A recorded event can be recorded on a stream from elsewhere only while that stream is
//! surely alive ([`Driver::event_record_if_alive`](millpond_core::Driver::event_record_if_alive)). Where it
//! is not, the stream's own next call records it; blocks of streams that have not called since an earlier
//! request asked them to are reclaimed by synchronising, before the resource grows by more than an eighth
//! because of them; while streams are far behind, only before memory is out.
//!
//! **Locks.** One short lock around the blocks and what is known of the streams; no driver call and no
//! upstream call is made under it. A second lock lets one thread at a time go beyond the first two steps.
//! Neither is held while another resource is asked for memory.
//!
//! | file | what it is |
//! |---|---|
//! | `heaps` | what a pool of blocks is |
//! | `streams`, `recorded_events` | what is known of streams; events recorded on them |
//! | `backlog` | how far streams are behind the host |
//! | `ladder`, `grow` | the steps that call the driver or upstream; the one that takes memory |
//! | `device` | what is free of a device, and promised to growths |
//! | `release` | what goes back: trim, and before memory is out |
//! | `bites` | the same in the background, a little at a time |
//! | `peers` | access for other devices |
//! | `peer_reclaim` | one resource asks the others of the device |
//! | `trace` | what all this is told to `tracing` |

mod cross_stream;
mod device_books;
mod grow;
mod incremental;
mod oom_report;
mod peer_access;
mod peer_reclaim;
mod release;
mod slow_path;
mod trace;

use std::fmt::{self, Debug};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Instant;

use millpond_core::driver::{CaptureModeGuard, Health};
use millpond_core::misuse::{self, Misuse, MisuseKind};
use millpond_core::{
    DeviceMemoryResource, DevicePtr, DriverError, DriverHandle, Error, LadderCounts, Layout, MemoryInfo,
    ResourceStatistics, Result, StreamRef, downcast,
};
use parking_lot::Mutex;

use crate::driver_memory::CudaMemoryResource;
use crate::heap::request::Request;
use crate::pool::central::device_books::Device;
use crate::pool::heaps::Heaps;
use crate::pool::protocol::Ready;
use crate::pool::task::Task;
use crate::process;
use crate::process::Origin;
use crate::stream_order::backlog::Backlog;
use crate::stream_order::streams::StreamCell;
use crate::stream_order::{Epoch, Owner, Reuse};
use crate::sync::spin_lock::SpinLock;

use crate::pool::central::trace::Name;
use crate::stream_order::streams::{PendingRecord, Streams};

/// A pool of blocks over an upstream resource, in stream order.
pub(crate) struct Central<R: DeviceMemoryResource> {
    upstream: R,
    pub(crate) health: Arc<Health>,
    core: Arc<CentralCore>,
}

/// What does not need upstream: other threads may hold it, whatever upstream is.
pub(crate) struct CentralCore {
    name: Name,
    driver: DriverHandle,
    /// Plain CUDA, if that is upstream: then others may ask for memory back.
    device_memory: Option<CudaMemoryResource>,
    /// The same: what all who take from the device know of each other.
    device: Option<Arc<Device>>,
    /// How often this resource gave memory back to it.
    own_returns: AtomicU64,
    reuse: Reuse,
    /// Whether fresh memory is ordered for the stream that took it, or for all.
    upstream_is_ordered: bool,
    /// Whether the pool gets its memory by itself.
    maps_pages: bool,
    /// Whether other devices get access to its memory by themselves.
    admits_peers: bool,
    state: SpinLock<State>,
    /// Held beyond the first two steps of the ladder.
    slow: Mutex<()>,
    health: Arc<Health>,
    misuses: AtomicU64,
    origin: Origin,
}

#[derive(Debug)]
struct State {
    heaps: Heaps,
    streams: Streams,
    ladder: LadderCounts,
    backlog: Backlog,
    /// The resource was dropped, and everything given back.
    is_over: bool,
}

impl State {
    fn owner_of(&mut self, stream: StreamRef) -> Owner {
        let owner = self.streams.owner_of(stream);
        self.heaps.set_streams(self.streams.len());
        owner
    }

    /// The steps without a driver call.
    fn take_ready(&mut self, owner: Owner, request: &Request, reuse: Reuse) -> Option<DevicePtr> {
        match self.heaps.take_ready(owner, request, self.backlog.is_long()) {
            Some(Ready::Own(ptr)) => {
                self.ladder.own_stream += 1;
                Some(ptr)
            }
            Some(Ready::Unowned(ptr)) => {
                self.ladder.completed += 1;
                Some(ptr)
            }
            None => {
                let (other, upto) = self.find_ordered(owner, request, reuse)?;
                let ptr = self.heaps.take(other, upto, request)?;
                self.ladder.ordered += 1;
                Some(ptr)
            }
        }
    }

    /// The stream that this one is ordered after and that has the best block, and up to when.
    fn find_ordered(&self, owner: Owner, request: &Request, reuse: Reuse) -> Option<(Owner, Epoch)> {
        if !reuse.ordered || self.streams.len() < 2 {
            return None;
        }
        let seen = self.streams.slot(owner).seen();
        seen.filter_map(|(other, upto)| {
            self.heaps.find(other, upto, request).map(|fit| (fit.bytes, other, upto))
        })
        .min_by_key(|(bytes, other, _)| (*bytes, *other))
        .map(|(_, other, upto)| (other, upto))
    }
}

impl<R: DeviceMemoryResource> Deref for Central<R> {
    type Target = CentralCore;

    #[inline]
    fn deref(&self) -> &CentralCore {
        &self.core
    }
}

impl CentralCore {
    /// Whether the pool gets its memory by itself.
    pub(crate) fn maps_pages(&self) -> bool {
        self.maps_pages
    }

    /// Whether this process is a copy of the one that made it, in which nothing may be touched.
    pub(crate) fn is_copy(&self) -> bool {
        self.origin.is_elsewhere()
    }

    /// Works on the blocks under the lock.
    pub(crate) fn with_heaps<T>(&self, work: impl FnOnce(&mut Heaps) -> T) -> T {
        work(&mut self.state.lock().heaps)
    }

    /// As [`with_heaps`](Self::with_heaps), for who may outlive the resource: `None` once everything was
    /// given back.
    pub(crate) fn with_live_heaps<T>(&self, work: impl FnOnce(&mut Heaps) -> T) -> Option<T> {
        let mut state = self.state.lock();
        (!state.is_over).then(|| work(&mut state.heaps))
    }

    /// Nanoseconds since a moment that is the same for all who ask: of the device's own time where that is
    /// simulated.
    fn now_ns(&self) -> u64 {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        self.driver.virtual_time_ns().unwrap_or_else(|| START.elapsed().as_nanos() as u64)
    }

    /// Notes a sticky error and turns it into millpond's.
    fn driver_error(&self, error: DriverError) -> Error {
        self.health.note(&error);
        self.trace_error(&error);
        Error::from(error)
    }
}

impl<R: DeviceMemoryResource> Central<R> {
    /// `layer` is what lies on `upstream`, as text.
    pub(crate) fn new(upstream: R, heaps: Heaps, reuse: Reuse, layer: &str) -> Self {
        let driver = upstream.driver().clone();
        let is_over_device = downcast::<CudaMemoryResource>(&upstream).is_some();
        let core = Arc::new(CentralCore {
            name: Name::new(format!("{upstream}+{layer}")),
            device_memory: is_over_device.then(|| CudaMemoryResource::new(driver.clone())),
            device: is_over_device.then(|| Device::of(&*driver)),
            own_returns: AtomicU64::new(0),
            health: Arc::clone(driver.health()),
            driver,
            upstream_is_ordered: upstream.is_stream_ordered(),
            reuse,
            maps_pages: heaps.maps_pages(),
            admits_peers: heaps.admits_peers(),
            state: SpinLock::new(State {
                heaps,
                streams: Streams::new(),
                ladder: LadderCounts::default(),
                backlog: Backlog::default(),
                is_over: false,
            }),
            slow: Mutex::new(()),
            misuses: AtomicU64::new(0),
            origin: Origin::here(),
        });
        if let Some(device) = &core.device {
            let peer_pool: Weak<CentralCore> = Arc::downgrade(&core);
            device.add_peer_pool(peer_pool);
        }
        Self { upstream, health: Arc::clone(&core.health), core }
    }

    /// What other threads may hold.
    pub(crate) fn core(&self) -> &Arc<CentralCore> {
        &self.core
    }

    pub(crate) fn upstream(&self) -> &R {
        &self.upstream
    }

    pub(crate) fn driver(&self) -> &DriverHandle {
        &self.driver
    }

    /// Hands out a block; `shard` is the part of the pool that the calling thread uses first, `cell` is the
    /// stream's, where the caller has it.
    pub(crate) fn allocate(
        &self,
        layout: Layout,
        stream: StreamRef,
        shard: u8,
        cell: Option<&StreamCell>,
    ) -> Result<DevicePtr> {
        if layout.bytes() == 0 {
            return Ok(DevicePtr::NULL);
        }
        if self.health.is_lost() {
            return Err(self.health.error().for_request(layout, stream));
        }
        let mut request;
        {
            let mut state = self.state.lock();
            request = state.heaps.request(layout).ok_or_else(|| Error::request_too_large(layout, stream))?;
            request.shard = shard;
            let owner = cell.map_or_else(|| state.owner_of(stream), |cell| cell.owner);
            if let Some(ptr) = state.take_ready(owner, &request, self.reuse) {
                let wanted = state.streams.slot_mut(owner).take_requested_record();
                let has_excess = !state.backlog.is_long() && state.heaps.has_excess();
                drop(state);
                if let Some(pending_record) = wanted {
                    self.record_for_others(pending_record, stream);
                }
                if has_excess {
                    self.release_excess(stream);
                }
                return Ok(ptr);
            }
        }
        self.allocate_slow(&request, stream).map_err(|error| match error.requested_bytes() {
            // What upstream says is about the region it was asked for; the caller asked for this.
            Some(bytes) if bytes == layout.bytes() => error,
            _ => error.for_request(layout, stream),
        })
    }

    /// Takes a block back and says whether it was one; `name` is the resource as text, for the report of a
    /// misuse.
    pub(crate) fn deallocate(
        &self,
        ptr: DevicePtr,
        layout: Layout,
        stream: StreamRef,
        name: &dyn ToString,
    ) -> bool {
        if ptr.is_null() {
            return false;
        }
        let wanted = {
            let mut state = self.state.lock();
            let owner = state.owner_of(stream);
            let State { heaps, streams, .. } = &mut *state;
            let slot = streams.slot_mut(owner);
            if let Err(kind) = heaps.free(ptr, layout, owner, slot.epoch()) {
                drop(state);
                self.refuse(kind, ptr, layout, stream, name);
                return false;
            }
            slot.take_requested_record()
        };
        if let Some(pending_record) = wanted {
            self.record_for_others(pending_record, stream);
        }
        true
    }

    /// What a thread needs to know of a stream that it uses often: from the fifth call on, by whatever
    /// thread. A stream that is used a few times leaves no trace beyond the lock.
    pub(crate) fn stream_cell(&self, stream: StreamRef) -> Option<Arc<StreamCell>> {
        const FEW: u32 = 4;
        let mut state = self.state.lock();
        let owner = state.owner_of(stream);
        let slot = state.streams.slot_mut(owner);
        slot.calls = slot.calls.saturating_add(1);
        (slot.calls > FEW).then(|| Arc::clone(&slot.cell))
    }

    /// Records a recorded event on the calling stream, because another stream wanted its blocks and could
    /// not.
    #[cold]
    fn record_for_others(&self, pending_record: PendingRecord, stream: StreamRef) {
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        let record = || self.event_of(pending_record.id).and_then(|event| self.record(event, stream));
        let recorded = if self.health.is_lost() { Ok(false) } else { record() };
        let id = pending_record.id;
        let now_ns = self.now_ns();
        self.state.lock().streams.settle(pending_record, matches!(recorded, Ok(true)), now_ns);
        // Nothing depends on the recorded event: without it the blocks stay with their stream. A lost device
        // is noted.
        if let Err(error) = recorded {
            let _ = self.skip_stream(id, error);
        }
    }

    #[cold]
    fn refuse(
        &self,
        kind: MisuseKind,
        ptr: DevicePtr,
        layout: Layout,
        stream: StreamRef,
        name: &dyn ToString,
    ) {
        self.misuses.fetch_add(1, Ordering::Relaxed);
        misuse::report(&Misuse { kind, ptr, bytes: layout.bytes(), stream, resource: name.to_string() });
    }

    pub(crate) fn statistics(&self) -> ResourceStatistics {
        let state = self.state.lock();
        let totals = state.heaps.totals();
        let mut ladder = state.ladder;
        ladder.own_stream += totals.own_stream;
        ladder.completed += totals.completed;
        ResourceStatistics {
            bytes_in_use: totals.bytes_in_use,
            bytes_requested: totals.bytes_requested,
            peak_bytes_in_use: totals.peak_bytes_in_use,
            bytes_reserved: totals.bytes_reserved,
            peak_bytes_reserved: totals.peak_bytes_reserved,
            bytes_beyond_slack: totals.bytes_beyond_slack,
            largest_free_block: state.heaps.largest_free_block(),
            blocks_in_use: totals.blocks_in_use,
            blocks_free: totals.blocks_free,
            regions: totals.regions,
            allocations: ladder.served(),
            deallocations: totals.deallocations,
            misuses: self.misuses.load(Ordering::Relaxed),
            ladder,
        }
    }

    /// What upstream has, and what is free here.
    pub(crate) fn memory_info(&self) -> Result<MemoryInfo> {
        let upstream = self.upstream.memory_info()?;
        let state = self.state.lock();
        let totals = state.heaps.totals();
        // Threads count what they hand out without the lock.
        let here = totals.bytes_reserved.saturating_sub(totals.bytes_in_use);
        Ok(MemoryInfo { free: (upstream.free + here).min(upstream.total), total: upstream.total })
    }

    /// Looks at the blocks under the lock.
    pub(crate) fn inspect<T>(&self, look: impl FnOnce(&Heaps) -> T) -> T {
        look(&self.state.lock().heaps)
    }

    /// Walks the whole structure and panics where an invariant does not hold. No thread is in a call
    /// meanwhile.
    pub(crate) fn validate(&self) {
        let state = self.state.lock();
        state.streams.validate(|owner| state.heaps.free_bytes(owner));
        state.heaps.validate();
    }

    /// How many streams the resource knows.
    pub(crate) fn streams(&self) -> usize {
        self.state.lock().streams.len()
    }
}

/// Upstream and options; not every block there is.
impl<R: DeviceMemoryResource> Debug for Central<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ordered")
            .field("upstream", &self.upstream)
            .field("reuse", &self.reuse)
            .finish_non_exhaustive()
    }
}

impl<R: DeviceMemoryResource> Drop for Central<R> {
    fn drop(&mut self) {
        if self.core.is_copy() {
            return process::leave(&self.core);
        }
        let _captures = CaptureModeGuard::relaxed(&*self.core.driver);
        // Whoever else holds the core makes no call from here on.
        let _slow = self.core.slow.lock();
        if !self.health.is_lost() {
            // What cannot be waited for here, for whatever reason, is below.
            let _ = self.core.wait_for_owners(None);
        }
        let mut state = self.core.state.lock();
        state.is_over = true;
        let was_reset = self.driver.was_reset();
        if self.health.is_lost() && !was_reset {
            return;
        }
        let leaving = self.core.remove_block(state.heaps.totals().bytes_reserved);
        let task = state.heaps.plan_end();
        if was_reset {
            drop(state);
            self.end_after_reset(task);
            return;
        }
        let regions = state.heaps.remove_all_regions();
        let events = state.streams.drain_events();
        drop(state);
        if regions.is_empty() && events.is_empty() && task.is_none() {
            return;
        }
        // All recorded use must be over before memory goes back, that of blocks that are still in use and of
        // streams that are gone, too. An upstream that synchronises itself sees to that alone.
        let waited = self.driver.synchronize_beside_captures();
        if waited != Ok(true) {
            waited.as_ref().err().inspect(|error| self.health.note(error));
            // What ends without waiting must not end now.
            if self.health.is_lost() || self.upstream_is_ordered || task.is_some() {
                tracing::warn!(target: "millpond::driver", ?waited, "memory is left to the driver");
                return;
            }
        }
        for event in events {
            // SAFETY: the event is this resource's own, and nothing waits for it any more.
            if let Err(error) = unsafe { self.driver.event_destroy(event) } {
                tracing::warn!(target: "millpond::driver", %error, "an event could not be destroyed");
            }
        }
        if let Some(mut task) = task
            && let Err(error) = task.run(&*self.driver)
        {
            tracing::warn!(target: "millpond::driver", %error, "memory is left to the driver");
        }
        for (base, bytes) in regions {
            // SAFETY: the region came from upstream with this layout, and all work on the device is done.
            unsafe { self.upstream.deallocate(base, Layout::new(bytes), StreamRef::LEGACY) };
        }
        drop(leaving);
        self.core.note_return();
    }
}

impl<R: DeviceMemoryResource> Central<R> {
    /// Gives back what outlives a context: physical memory that the pool mapped. Regions and events went
    /// with it; their addresses and handles may be another's by now.
    fn end_after_reset(&self, task: Option<Task>) {
        let Some(mut task) = task else { return };
        match task.run(&*self.driver) {
            Ok(()) => {
                let bytes = task.released_bytes();
                tracing::debug!(target: "millpond::driver", bytes, "gave back what outlived a reset context");
            }
            Err(error) => tracing::warn!(target: "millpond::driver", %error, "memory is left to the driver"),
        }
        self.core.note_return();
    }
}

impl Debug for CentralCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("reuse", &self.reuse).finish_non_exhaustive()
    }
}
