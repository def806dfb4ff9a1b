//! Stream-ordered reuse of free blocks under the pool's lock, and the slow path if no free block fits.
//!
//! Every free block has an *owner*: the stream on which it was freed. Once all work on a block is known to be
//! done, it is unowned ([`ANY_STREAM`](crate::stream_order::ANY_STREAM)). The owner's stream takes its blocks
//! without a driver call. Another stream goes down the **reuse ladder**, whose 22 rungs are listed in
//! [`Rung`](steps::Rung). The pool counts which kind of step served each request ([`LadderCounts`]):
//!
//! | step | the block | driver calls |
//! |---|---|---|
//! | own stream | was freed on this stream (or is unowned: counted as completed) | none |
//! | ordered | belongs to a stream that this one has waited for since the free | none |
//! | completed | belonged to a stream whose recorded event is done | a query, and a record if needed |
//! | grow | is new, from upstream or the driver | the calls of the growth |
//! | waited | belongs to a stream that this one is made to wait for | a record and a wait |
//! | reclaim | is free after a synchronisation, or new after free regions were released | a synchronisation |
//!
//! **No stream waits for another stream, and no thread for the device, while memory is available.** Waiting
//! for a stream with much pending work costs more than any other step. So a wait happens only if growth is
//! refused, by the device or by the resource's own maximum. CUDA's pools have the same rule: they insert
//! internal dependencies only if they cannot map more memory. In two cases the calling thread waits earlier:
//! for blocks of streams that may be destroyed (see below), and when regions return to upstream.
//!
//! **Streams that are far behind keep their free blocks** ([`Backlog`]): each serves itself first, and takes
//! new memory before another stream's blocks. Each stream then holds the memory that it needs at its peak.
//!
//! **Time is counted in recorded events, not in frees.** Each stream has an epoch. A free stores the epoch
//! and makes no driver call. Recording the stream's event ends the epoch and covers all blocks freed in it or
//! before, so one record and one wait serve a batch. The pool remembers which epochs a stream has waited for,
//! and a waiting stream inherits the other stream's waits. So a block that moves from stream to stream keeps
//! all its dependencies.
//!
//! **Streams are destroyed.** The pool records an event on another thread's stream only while that stream is
//! certainly alive ([`Driver::event_record_if_alive`](millpond_core::Driver::event_record_if_alive)).
//! Otherwise it requests a record, which the stream's own next call makes. If a stream has not called since
//! the request, the pool reclaims its blocks by synchronising. It does so before it grows if these blocks are
//! more than an eighth of its memory. While streams are far behind, it does so only before it is out of
//! memory.
//!
//! **Lock order.** A thread that holds one of a pool's locks takes only locks from later rows of this table,
//! and never two from one row. No test checks the order: the locks have no ranks.
//!
//! | | lock | guards | may be taken under |
//! |---|---|---|---|
//! | 1 | the [turn](turns) | nothing: calls on the slow path save memory if they take turns | |
//! | 2 | the pool's ([`PoolLock`]) | [`State`]: large blocks, streams, backlog | 1 |
//! | 3 | an arena's (`pool/arena.rs`) | small blocks of the arena | 1, 2 |
//! | 4 | the list of thread caches (`pool/cache/thread_cache.rs`) | the list | 1, 2 |
//! | 5 | a thread cache's | its map of stream caches | 1, 2, 4 |
//! | 6 | the block map's (`block_map/mod.rs`) | the memory of its tables | 1, 2, 3 |
//! | 7 | `PeerTable` (`store/pages/access.rs`) | the devices with access to the pool's memory | 1, 2 |
//! | 8 | a [device's books](device_books), its list of pools, and the list of devices | themselves | 1 |
//! | 9 | `REFUSED`, `OVER_ALIGNED` (`driver_memory.rs`) | blocks of plain device memory | 1 |
//!
//! Foreign code (the driver, upstream, a callback, a `tracing` event) runs under the turn, and under no lock
//! of a later row. It may call the same pool, which then takes no second turn, or another pool. Only a
//! watcher of segments may not. Each wait for a turn is bounded. A decay step also holds two locks while
//! foreign code runs: a fork waits for one of them, but not for long, and no thread waits for the other
//! (`pool/decay/`).

mod act;
mod collect;
mod device_books;
mod incremental;
mod ladder;
pub(crate) mod observe;
mod oom_report;
mod peer_access;
mod peer_pool;
mod peer_reclaim;
mod release;
mod report;
mod segments;
mod shutdown;
mod steps;
#[cfg(test)]
mod tests;
#[cfg(all(test, not(millpond_loom)))]
mod tie;
mod trace;
mod turns;

use std::fmt::{self, Debug};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Instant;

use crate::block_map::BlockEntry;
use crate::driver_memory::CudaMemoryResource;
use crate::heap::request::{Request, Whose};
use crate::pool::central::device_books::{Device, Returns};
use crate::pool::central::observe::observe;
use crate::pool::central::turns::Turns;
use crate::pool::checked::Checked;
use crate::pool::heaps::Heaps;
use crate::process::Origin;
use crate::store::pages::Pages;
use crate::stream_order::backlog::Backlog;
use crate::stream_order::streams::StreamCell;
use crate::stream_order::{Epoch, Owner, Reuse};
use crate::sync::spin_lock::{SpinGuard, SpinLock};
use crate::tuning::CALLS_WITHOUT_CACHE;
use millpond_core::driver::Health;
use millpond_core::misuse::{self, Misuse, MisuseKind};
use millpond_core::segments::{SegmentEvent, is_watched, report};
use millpond_core::{
    DeviceId, DeviceMemoryResource, DevicePtr, DriverError, DriverHandle, Error, FailureTally, LadderCounts,
    Layout, MemoryInfo, ResourceStatistics, Result, StreamRef, downcast,
};

use crate::stream_order::streams::{PendingRecord, Streams};

/// A pool of blocks over an upstream resource, in stream order.
pub(crate) struct Central<R: DeviceMemoryResource> {
    upstream: R,
    pub(crate) health: Arc<Health>,
    core: Arc<CentralCore>,
}

/// The part of [`Central`] that does not depend on the type of upstream. Peer pools and decay hold it.
pub(crate) struct CentralCore {
    name: Name,
    driver: DriverHandle,
    /// Upstream, if it is plain CUDA memory. Peer pools may then reclaim memory from this one.
    device_memory: Option<CudaMemoryResource>,
    /// The device's books, if upstream is plain CUDA memory.
    device: Option<Arc<Device>>,
    /// How often this resource returned memory to the device.
    own_returns: AtomicU64,
    rules: Rules,
    /// Whether devices with an active context get access to the pool's memory without being named.
    admits_peers: bool,
    state: PoolLock,
    /// The order of calls on the slow path: beyond the first two steps of the ladder.
    turns: Turns,
    health: Arc<Health>,
    misuses: AtomicU64,
    pub(crate) failures: FailureTally,
    origin: Origin,
    /// The memory checker that is attached to the process.
    pub(crate) checked: Option<Checked>,
    #[cfg(all(test, not(millpond_loom)))]
    follower: Option<tie::calls::Shared>,
}

/// The options of a pool and the traits of its upstream that its ladder depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) reuse: Reuse,
    /// Whether the pool maps its memory itself.
    pub(crate) maps_pages: bool,
    /// Whether upstream's memory is ready only for the stream that it was taken on.
    pub(crate) upstream_is_ordered: bool,
    /// Whether other pools of the device may release memory for this one.
    pub(crate) has_peers: bool,
}

/// The pool's lock. Tests count how often a thread takes it.
pub(crate) struct PoolLock {
    state: SpinLock<State>,
    /// The names of the pool in the events of segments.
    device: DeviceId,
    pool: u64,
}

impl PoolLock {
    fn new(state: State, device: DeviceId, pool: u64) -> Self {
        Self { state: SpinLock::new(state), device, pool }
    }

    #[inline]
    fn lock(&self) -> StateGuard<'_> {
        #[cfg(test)]
        tests::LOCKS.with(|locks| locks.set(locks.get() + 1));
        StateGuard { guard: Some(self.state.lock()), lock: self }
    }
}

/// Access to the state. Dropping it releases the lock. Then it reports the segments that moved meanwhile.
pub(crate) struct StateGuard<'a> {
    /// `None` only within the drop.
    guard: Option<SpinGuard<'a, State>>,
    lock: &'a PoolLock,
}

impl StateGuard<'_> {
    #[cold]
    fn report(&mut self) {
        let changes = self.heaps.store.pages_mut().map_or(Vec::new(), Pages::take_changes);
        self.guard = None;
        for (action, address, bytes) in changes {
            report(&SegmentEvent::new(action, self.lock.device, self.lock.pool, address, bytes));
        }
    }
}

impl Deref for StateGuard<'_> {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        self.guard.as_ref().expect("the guard is not being dropped")
    }
}

impl DerefMut for StateGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut State {
        self.guard.as_mut().expect("the guard is not being dropped")
    }
}

impl Drop for StateGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // A watcher may panic, and a second panic would end the program.
        if is_watched() && !std::thread::panicking() {
            self.report();
        }
    }
}

/// The state that the pool's lock guards.
#[derive(Debug)]
pub(crate) struct State {
    rules: Rules,
    heaps: Heaps,
    streams: Streams,
    ladder: LadderCounts,
    backlog: Backlog,
    /// The resource was dropped, and all its memory returned.
    is_closed: bool,
    #[cfg(all(test, not(millpond_loom)))]
    follower: Option<tie::calls::Shared>,
}

impl State {
    fn owner_of(&mut self, stream: StreamRef) -> Owner {
        let owner = self.streams.owner_of(stream);
        self.heaps.set_streams(self.streams.len());
        observe!(self, met, self);
        owner
    }

    /// Takes a block by a step that makes no driver call.
    fn take_ready(&mut self, owner: Owner, request: &Request) -> Option<DevicePtr> {
        let whose = Whose::OwnOrUnowned { owner, is_own_first: self.backlog.is_long() };
        if let Some(taken) = self.heaps.take(whose, request) {
            let LadderCounts { completed, own_stream, .. } = &mut self.ladder;
            *(if taken.was_unowned { completed } else { own_stream }) += 1;
            return Some(taken.ptr());
        }
        let (other, upto) = self.find_ordered(owner, request)?;
        let taken = self.heaps.take(Whose::Of(other, upto), request)?;
        self.ladder.ordered += 1;
        Some(taken.ptr())
    }

    /// Returns the stream with the best fit among those that `owner` has waited for, and the epoch that it
    /// waited for.
    fn find_ordered(&self, owner: Owner, request: &Request) -> Option<(Owner, Epoch)> {
        if !self.rules.reuse.ordered || self.streams.len() < 2 {
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

/// The names of a resource in events.
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
        self.rules.maps_pages
    }

    /// Returns how often memory was returned to the device so far, by all resources and by this one.
    fn returns(&self) -> Returns {
        let own = self.own_returns.load(Ordering::Acquire);
        Returns { all: self.device.as_ref().map_or(own, |device| device.returns()), own }
    }

    /// Notes that this resource returned memory to the device.
    fn note_return(&self) {
        self.own_returns.fetch_add(1, Ordering::Release);
        if let Some(device) = &self.device {
            device.note_return();
        }
    }

    /// Returns whether this process is a fork of the process that created the resource. Then it must not use
    /// the resource.
    pub(crate) fn is_copy(&self) -> bool {
        self.origin.is_elsewhere()
    }

    /// Runs `work` under the lock.
    pub(crate) fn with_heaps<T>(&self, work: impl FnOnce(&mut Heaps) -> T) -> T {
        work(&mut self.state.lock().heaps)
    }

    /// Runs `work` under the lock, unless the resource was dropped. For callers that may outlive the
    /// resource.
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
        Error::from(error).on_device(self.driver.device())
    }

    /// The error of a call on the lost device.
    pub(crate) fn lost_error(&self) -> Error {
        self.health.error().on_device(self.driver.device())
    }
}

impl<R: DeviceMemoryResource> Central<R> {
    /// Creates the resource; `layer` is the text of the layer over `upstream`.
    pub(crate) fn new(upstream: R, heaps: Heaps, reuse: Reuse, layer: &str) -> Self {
        let driver = upstream.driver().clone();
        let is_over_device = downcast::<CudaMemoryResource>(&upstream).is_some();
        let rules = Rules {
            reuse,
            maps_pages: heaps.maps_pages(),
            upstream_is_ordered: upstream.is_stream_ordered(),
            has_peers: is_over_device,
        };
        let name = Name::new(format!("{upstream}+{layer}"));
        #[cfg(all(test, not(millpond_loom)))]
        let follower = tie::calls::wanted();
        let state = State {
            rules,
            heaps,
            streams: Streams::new(),
            ladder: LadderCounts::default(),
            backlog: Backlog::default(),
            is_closed: false,
            #[cfg(all(test, not(millpond_loom)))]
            follower: follower.clone(),
        };
        let core = Arc::new(CentralCore {
            admits_peers: state.heaps.admits_peers(),
            state: PoolLock::new(state, driver.device(), name.id),
            checked: Checked::over(&upstream, name.id),
            name,
            device_memory: is_over_device.then(|| CudaMemoryResource::new(driver.clone())),
            device: is_over_device.then(|| Device::of(&*driver)),
            own_returns: AtomicU64::new(0),
            health: Arc::clone(driver.health()),
            driver,
            rules,
            turns: Turns::default(),
            misuses: AtomicU64::new(0),
            failures: FailureTally::default(),
            origin: Origin::here(),
            #[cfg(all(test, not(millpond_loom)))]
            follower,
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

    /// Allocates a block. `shard` is the calling thread's arena. `cell` is the stream's cell, if the caller
    /// has it. `evicted` is a block that left the stream's cache; it is freed first.
    pub(crate) fn allocate(
        &self,
        layout: Layout,
        stream: StreamRef,
        shard: u8,
        cell: Option<&StreamCell>,
        evicted: Option<&BlockEntry>,
    ) -> Result<DevicePtr> {
        if layout.bytes() == 0 {
            return Ok(DevicePtr::NULL);
        }
        let slow = {
            let mut state = self.state.lock();
            if let (Some(entry), Some(cell)) = (evicted, cell) {
                state.heaps.free_cached(entry, cell);
                observe!(self, freed, &state);
            }
            if self.health.is_lost() {
                drop(state);
                return Err(self.lost_error().for_request(layout, stream));
            }
            let request = state.heaps.request(layout);
            let too_large = || Error::request_too_large(layout, stream).on_device(self.driver.device());
            let request = Request { shard, ..request.ok_or_else(too_large)? };
            let owner = cell.map_or_else(|| state.owner_of(stream), |cell| cell.owner);
            match state.take_ready(owner, &request) {
                None => state.slow_request(request, stream),
                Some(ptr) => {
                    let requested_record = state.take_requested_record(owner);
                    let has_excess = !state.backlog.is_long() && state.heaps.has_excess();
                    drop(state);
                    self.after_allocation(ptr, &request, stream, requested_record, has_excess);
                    return Ok(ptr);
                }
            }
        };
        match self.serve(slow) {
            Ok(ptr) => Ok(ptr.expect("a request that is served has a block")),
            // Upstream's error names the region's size, but the caller needs the size of its request.
            Err(error) => Err(match error.requested_bytes() {
                Some(bytes) if bytes == layout.bytes() => error,
                _ => error.for_request(layout, stream),
            }),
        }
    }

    /// Does the work that an allocation found to be due: makes the record that another stream wants, and
    /// releases excess memory.
    fn after_allocation(
        &self,
        ptr: DevicePtr,
        request: &Request,
        stream: StreamRef,
        requested_record: Option<PendingRecord>,
        has_excess: bool,
    ) {
        if requested_record.is_none() && !has_excess {
            return;
        }
        self.free_if_panics(ptr, request, stream, || {
            if let Some(pending_record) = requested_record {
                self.record_for_others(pending_record, stream);
            }
            if has_excess {
                self.release_excess(stream);
            }
        });
    }

    /// Frees a block. Returns `false` for null and for a misuse, which it reports. `name` is the resource's
    /// text in that report.
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
            state.take_requested_record(owner)
        };
        if let Some(pending_record) = requested_record {
            self.record_for_others(pending_record, stream);
        }
        true
    }

    /// Returns the stream's cell, for a stream cache, once the stream is used often: after
    /// [`CALLS_WITHOUT_CACHE`] calls by any thread.
    pub(crate) fn stream_cell(&self, stream: StreamRef) -> Option<Arc<StreamCell>> {
        let mut state = self.state.lock();
        let owner = state.owner_of(stream);
        let slot = state.streams.slot_mut(owner);
        slot.calls = slot.calls.saturating_add(1);
        (slot.calls > CALLS_WITHOUT_CACHE).then(|| Arc::clone(&slot.cell))
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
        misuse::report(&Misuse::new(kind, ptr, layout.bytes(), stream, name.to_string()));
    }

    pub(crate) fn statistics(&self) -> ResourceStatistics {
        let state = self.state.lock();
        let totals = state.heaps.totals();
        let mut ladder = state.ladder;
        ladder.own_stream += totals.ladder.own_stream;
        ladder.completed += totals.ladder.completed;
        totals
            .largest_free_block(state.heaps.largest_free_block())
            .allocations(ladder.served())
            .misuses(self.misuses.load(Ordering::Relaxed))
            .ladder(ladder)
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

    /// Panics if an invariant of the pool does not hold. No thread may be in a call meanwhile.
    pub(crate) fn validate(&self) {
        let state = self.state.lock();
        state.streams.validate(|owner| state.heaps.free_bytes(None, owner));
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
            .field("reuse", &self.rules.reuse)
            .finish_non_exhaustive()
    }
}

impl Debug for CentralCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CentralCore").field("reuse", &self.rules.reuse).finish_non_exhaustive()
    }
}
