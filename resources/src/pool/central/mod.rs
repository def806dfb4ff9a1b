//! Stream-ordered reuse of free blocks under the pool's lock, and the slow path where no free block fits.
//!
//! Every free block has an *owner*: the stream on which it was freed. Once all work on a block is known to be
//! done, it is unowned ([`ANY_STREAM`](crate::stream_order::ANY_STREAM)). The owner's stream takes its blocks
//! without a driver call. Another stream goes down the **reuse ladder**, which counts each step
//! ([`LadderCounts`]):
//!
//! | step | the block | driver calls |
//! |---|---|---|
//! | own stream | was freed on this stream (or is unowned: counted as completed) | none |
//! | ordered | belongs to a stream that this one has waited for since the free | none |
//! | completed | belonged to a stream whose recorded event is done | a query, and a record if needed |
//! | grow | is new, from upstream or the driver | those of the growth |
//! | waited | belongs to a stream that this one is made to wait for | a record and a wait |
//! | reclaim | is free after a synchronisation, or new after free regions were released | a synchronisation |
//!
//! **No stream waits for another stream, and no thread for the device, while memory is available.** Waiting
//! for a stream with much pending work costs more than any other step, so a wait happens only if growth is
//! refused, by the device or by the resource's own maximum. CUDA's pools have the same rule: they insert
//! internal dependencies if they cannot map more memory. In two cases the calling thread waits earlier: for
//! blocks of streams that may be destroyed (below), and when regions return to upstream.
//!
//! **Streams that are far behind keep their free blocks** ([`Backlog`]): each serves itself first, and takes
//! new memory before another stream's blocks. Each then holds what it needs at its peak.
//!
//! **Time is counted in recorded events, not in frees.** Each stream has an epoch. A free stores the epoch
//! and makes no driver call. Recording the stream's event ends the epoch and covers all blocks freed in it or
//! before, so one record and one wait serve a batch. The pool remembers what a stream has waited for, and a
//! waiting stream inherits what the other one had waited for: a block that moves from stream to stream keeps
//! all its dependencies.
//!
//! **Streams are destroyed.** The pool records an event on another thread's stream only while that stream is
//! certainly alive ([`Driver::event_record_if_alive`](millpond_core::Driver::event_record_if_alive)).
//! Otherwise it requests a record, which the stream's own next call makes. If a stream has not called since
//! the request, the pool reclaims its blocks by synchronising: before it grows if they are more than an
//! eighth of its memory, or, while streams are far behind, only before it is out of memory.
//!
//! **Locks.** One spin lock guards the blocks and the stream table; no foreign code (driver, upstream,
//! callback, `tracing` event) runs under it. Calls take [turns](turns) on the slow path, which are no lock: a
//! call from inside foreign code goes on, on the same thread and on others.

mod cross_stream;
mod device_books;
mod grow;
mod incremental;
mod oom_report;
mod peer_access;
mod peer_pool;
mod peer_reclaim;
mod release;
mod report;
mod slow_path;
mod trace;
mod turns;

use std::fmt::{self, Debug};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Instant;

use crate::driver_memory::CudaMemoryResource;
use crate::heap::request::Request;
use crate::pool::central::device_books::Device;
use crate::pool::central::turns::Turns;
use crate::pool::heaps::Heaps;
use crate::pool::protocol::Ready;
use crate::pool::task::Task;
use crate::process;
use crate::process::Origin;
use crate::stream_order::backlog::Backlog;
use crate::stream_order::streams::StreamCell;
use crate::stream_order::{Epoch, Owner, Reuse};
use crate::sync::spin_lock::SpinLock;
use crate::tuning::CALLS_WITHOUT_CACHE;
use millpond_core::driver::record_unless_capturing;
use millpond_core::driver::{CaptureModeGuard, Health};
use millpond_core::misuse::{self, Misuse, MisuseKind};
use millpond_core::{
    DeviceMemoryResource, DevicePtr, DriverError, DriverHandle, Error, LadderCounts, Layout, MemoryInfo,
    ResourceStatistics, Result, StreamRef, downcast,
};

use crate::stream_order::streams::{PendingRecord, Streams};

/// A pool of blocks over an upstream resource, in stream order.
pub(crate) struct Central<R: DeviceMemoryResource> {
    upstream: R,
    pub(crate) health: Arc<Health>,
    core: Arc<CentralCore>,
}

/// The part of [`Central`] that does not depend on the type of upstream: peer pools and decay hold it.
pub(crate) struct CentralCore {
    name: Name,
    driver: DriverHandle,
    /// Plain CUDA memory, if that is upstream: peer pools may then reclaim memory from this one.
    device_memory: Option<CudaMemoryResource>,
    /// The device's books, if upstream is plain CUDA memory.
    device: Option<Arc<Device>>,
    /// How often this resource returned memory to the device.
    own_returns: AtomicU64,
    reuse: Reuse,
    /// Whether upstream's memory is ready only for the stream that it was taken on.
    upstream_is_ordered: bool,
    /// Whether the pool maps its memory itself.
    maps_pages: bool,
    /// Whether devices with an active context get access to the pool's memory without being named.
    admits_peers: bool,
    state: SpinLock<State>,
    /// The order of calls on the slow path: beyond the first two steps of the ladder.
    turns: Turns,
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
    /// The resource was dropped, and all its memory returned.
    is_closed: bool,
}

impl State {
    fn owner_of(&mut self, stream: StreamRef) -> Owner {
        let owner = self.streams.owner_of(stream);
        self.heaps.set_streams(self.streams.len());
        owner
    }

    /// Takes a block by the steps that make no driver call.
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

    /// Returns the stream that `owner` has waited for and that has the best fit, and up to which epoch.
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

/// How events name a resource.
pub(crate) struct Name {
    pub(crate) id: u64,
    pub(crate) stack: String,
}

impl Name {
    pub(crate) fn new(stack: String) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), stack }
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
    pub(crate) fn maps_pages(&self) -> bool {
        self.maps_pages
    }

    /// Returns whether this process is a fork of the one that made the resource: then it must not be used.
    pub(crate) fn is_copy(&self) -> bool {
        self.origin.is_elsewhere()
    }

    /// Runs `work` under the lock.
    pub(crate) fn with_heaps<T>(&self, work: impl FnOnce(&mut Heaps) -> T) -> T {
        work(&mut self.state.lock().heaps)
    }

    /// Runs `work` under the lock, unless the resource was dropped. For callers that may outlive it.
    pub(crate) fn with_live_heaps<T>(&self, work: impl FnOnce(&mut Heaps) -> T) -> Option<T> {
        let mut state = self.state.lock();
        (!state.is_closed).then(|| work(&mut state.heaps))
    }

    /// Returns nanoseconds since a fixed moment of the process; on a simulated device, of the device's time.
    fn now_ns(&self) -> u64 {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        self.driver.virtual_time_ns().unwrap_or_else(|| START.elapsed().as_nanos() as u64)
    }

    /// Notes a sticky error and converts it to an [`Error`].
    fn driver_error(&self, error: DriverError) -> Error {
        self.health.note(&error);
        self.trace_error(&error);
        Error::from(error)
    }
}

impl<R: DeviceMemoryResource> Central<R> {
    /// Creates the resource; `layer` is the text of the layer over `upstream`.
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
                is_closed: false,
            }),
            turns: Turns::default(),
            misuses: AtomicU64::new(0),
            origin: Origin::here(),
        });
        if let Some(device) = &core.device {
            let peer_pool: Weak<CentralCore> = Arc::downgrade(&core);
            device.add_peer_pool(peer_pool);
        }
        Self { upstream, health: Arc::clone(&core.health), core }
    }

    pub(crate) fn core(&self) -> &Arc<CentralCore> {
        &self.core
    }

    pub(crate) fn upstream(&self) -> &R {
        &self.upstream
    }

    pub(crate) fn driver(&self) -> &DriverHandle {
        &self.driver
    }

    /// Allocates a block. `shard` is the calling thread's arena; `cell` is the stream's, if the caller has
    /// it.
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
                let requested_record = state.streams.slot_mut(owner).take_requested_record();
                let has_excess = !state.backlog.is_long() && state.heaps.has_excess();
                drop(state);
                if requested_record.is_some() || has_excess {
                    self.free_if_panics(ptr, &request, stream, || {
                        if let Some(pending_record) = requested_record {
                            self.record_for_others(pending_record, stream);
                        }
                        if has_excess {
                            self.release_excess(stream);
                        }
                    });
                }
                return Ok(ptr);
            }
        }
        self.allocate_slow(&request, stream).map_err(|error| match error.requested_bytes() {
            // Upstream's error names the region's size; the caller needs its own.
            Some(bytes) if bytes == layout.bytes() => error,
            _ => error.for_request(layout, stream),
        })
    }

    /// Frees a block; returns `false` for null and for a misuse, which it reports. `name` is the resource's
    /// text for that report.
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
        let requested_record = {
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
        if let Some(pending_record) = requested_record {
            self.record_for_others(pending_record, stream);
        }
        true
    }

    /// Returns the stream's cell, from which a thread makes a stream cache, once the stream is used often:
    /// after [`CALLS_WITHOUT_CACHE`] calls by any thread.
    pub(crate) fn stream_cell(&self, stream: StreamRef) -> Option<Arc<StreamCell>> {
        let mut state = self.state.lock();
        let owner = state.owner_of(stream);
        let slot = state.streams.slot_mut(owner);
        slot.calls = slot.calls.saturating_add(1);
        (slot.calls > CALLS_WITHOUT_CACHE).then(|| Arc::clone(&slot.cell))
    }

    /// Records the calling stream's event, because another stream requested the record.
    #[cold]
    fn record_for_others(&self, pending_record: PendingRecord, stream: StreamRef) {
        let id = pending_record.id;
        let record = || {
            let event = self.event_of(id)?;
            record_unless_capturing(&*self.driver, event, stream)
        };
        let (pending_record, (recorded, now_ns)) = self.settle_if_panics(pending_record, || {
            let _captures = CaptureModeGuard::relaxed(&*self.driver);
            let recorded = if self.health.is_lost() { Ok(false) } else { record() };
            (recorded, self.now_ns())
        });
        self.state.lock().streams.settle(pending_record, matches!(recorded, Ok(true)), now_ns);
        // Without the event the blocks stay with their stream, so an error fails no call. A lost device is
        // noted.
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

    /// Returns upstream's memory information, plus the free bytes held here.
    pub(crate) fn memory_info(&self) -> Result<MemoryInfo> {
        let upstream = self.upstream.memory_info()?;
        let state = self.state.lock();
        let totals = state.heaps.totals();
        // Saturating: threads change `bytes_in_use` without the lock.
        let here = totals.bytes_reserved.saturating_sub(totals.bytes_in_use);
        Ok(MemoryInfo { free: (upstream.free + here).min(upstream.total), total: upstream.total })
    }

    #[cfg(test)]
    pub(crate) fn can_ever_serve(&self, request: &Request) -> bool {
        self.state.lock().heaps.can_ever_serve(request)
    }

    /// Runs `read` under the lock.
    pub(crate) fn inspect<T>(&self, read: impl FnOnce(&Heaps) -> T) -> T {
        read(&self.state.lock().heaps)
    }

    /// Panics if an invariant of the pool does not hold. No thread may be in a call meanwhile.
    pub(crate) fn validate(&self) {
        let state = self.state.lock();
        state.streams.validate(|owner| state.heaps.free_bytes(owner));
        state.heaps.validate();
    }

    /// Returns the number of streams in the stream table.
    pub(crate) fn streams(&self) -> usize {
        self.state.lock().streams.len()
    }
}

/// Shows upstream and options, and no blocks.
impl<R: DeviceMemoryResource> Debug for Central<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Central")
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
        // Decay and peer pools, which also hold the core, begin no call from here on.
        self.core.state.lock().is_closed = true;
        if !self.core.turns.wait_for_end() {
            tracing::warn!(
                target: "millpond::driver",
                "a pool was dropped inside of its own call: its memory is left to the driver"
            );
            return;
        }
        // A pool that asks this one for memory waits for the end, and finds the memory with the device.
        let _turn = self.core.turns.enter();
        if !self.health.is_lost() {
            // If that fails, the synchronisation below waits for all streams.
            let _ = self.core.wait_for_owners(None);
        }
        let mut state = self.core.state.lock();
        let was_reset = self.driver.was_reset();
        if self.health.is_lost() && !was_reset {
            return;
        }
        let returning = self.core.begin_return(state.heaps.totals().bytes_reserved);
        let task = state.heaps.plan_shutdown();
        let regions = state.heaps.remove_all_regions();
        if was_reset {
            drop(state);
            self.release_after_reset(task, regions);
            return;
        }
        let events = state.streams.drain_events();
        drop(state);
        if regions.is_empty() && events.is_empty() && task.is_none() {
            return;
        }
        // All work on the blocks must end before their memory is returned: also work on blocks that are still
        // in use, and on streams that are destroyed. An upstream that synchronises itself needs
        // no success here.
        let waited = self.driver.synchronize_beside_captures();
        if waited != Ok(true) {
            waited.as_ref().err().inspect(|error| self.health.note(error));
            // Memory that is returned without a wait of upstream's own must stay.
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
        drop(returning);
        self.core.note_return();
    }
}

impl<R: DeviceMemoryResource> Central<R> {
    /// Releases what outlives its context: the physical memory that the pool mapped, and regions as far as
    /// upstream knows them to. Events were destroyed with the context.
    fn release_after_reset(&self, task: Option<Task>, regions: Vec<(DevicePtr, u64)>) {
        for (base, bytes) in regions {
            // SAFETY: the region came from upstream with this layout; all work ended with the context.
            unsafe { self.upstream.deallocate(base, Layout::new(bytes), StreamRef::LEGACY) };
        }
        let Some(mut task) = task else { return };
        match task.run(&*self.driver) {
            Ok(()) => {
                let bytes = task.released_bytes();
                tracing::debug!(target: "millpond::driver", bytes, "released what outlived a reset context");
            }
            Err(error) => tracing::warn!(target: "millpond::driver", %error, "memory is left to the driver"),
        }
        self.core.note_return();
    }
}

impl Debug for CentralCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CentralCore").field("reuse", &self.reuse).finish_non_exhaustive()
    }
}
