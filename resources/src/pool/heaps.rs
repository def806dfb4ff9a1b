//! The heaps under the pool's lock: large blocks, and the spans from which arenas cut small blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond_core::misuse::MisuseKind;
use millpond_core::{ALLOCATION_ALIGNMENT, DeviceId, DevicePtr, Layout, LiveBlock};

use crate::block_map::{BlockEntry, BlockMap, ChunkId, HeapId};
use crate::heap::Heap;
use crate::heap::chunk::Chunk;
use crate::heap::request::{Fit, Request, Taken, Whose};
use crate::pool::arena::{Arena, Arenas};
use crate::pool::cache::thread_cache::ThreadCaches;
use crate::pool::shared::{CacheLimits, Shared};
use crate::store::FixedBlocks;
use crate::store::NoMemory;
use crate::store::pages::{self, Pages};
use crate::store::{Committed, Need, Purpose, Regions, Returning, Store, Task, Try};
use crate::stream_order::streams::StreamCell;
use crate::stream_order::{ANY_STREAM, Epoch, Owner};
use crate::tuning::{CALLS_PER_RELEASE, DEVICE_PAGE, Policy, SPAN_BYTES};

/// The number of the heap of large blocks in the block map.
pub(super) const LARGE: HeapId = 0;

/// All free blocks of the pool.
#[derive(Debug)]
pub(crate) struct Heaps {
    pub(super) store: Box<dyn Store>,
    pub(super) shared: Arc<Shared>,
    pub(super) maximum_bytes: u64,
    /// Whether the last growth was refused.
    pub(super) is_short: bool,
    /// The number of streams that the pool knows.
    pub(super) streams: usize,
    /// The smaller of the pool's maximum and the device's memory, in bytes.
    pub(super) most_bytes: u64,
    /// The number of operations at the last growth.
    pub(super) last_growth_at: u64,
    /// Large allocations while the pool held excess memory.
    pub(super) allocations_with_excess: u32,
    /// Blocks flushed from the threads' caches since the last event that reported flushes.
    pub(super) flushed: u64,
}

/// How much to reclaim from the threads' caches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reclaim {
    /// Only the last large blocks.
    Large,
    /// All blocks, if there are enough to be worth a flush.
    All,
    /// All blocks.
    Everything,
}

impl Heaps {
    /// Creates empty heaps: over pages with the granularity `pages`, or over regions. `device_total` is the
    /// device's memory, if all of the pool's memory comes from there.
    pub(super) fn new(
        maximum_bytes: Option<u64>,
        pages: Option<u64>,
        device_total: Option<u64>,
        fixed: Option<FixedBlocks>,
    ) -> Self {
        let most = maximum_bytes.unwrap_or(u64::MAX);
        let store: Box<dyn Store> = match pages {
            None => Box::new(Regions::new(most, fixed)),
            Some(granularity) => {
                let total = device_total.unwrap_or(0);
                Box::new(Pages::new(granularity, total, most, Policy::default()))
            }
        };
        let shared = Shared {
            block_map: BlockMap::new(),
            arenas: Arenas::new(),
            thread_caches: ThreadCaches::default(),
            over_pages: pages.is_some(),
            limits: CacheLimits::default(),
            fixed,
            saved_by_exact_size: AtomicU64::new(0),
            largest_block: AtomicU64::new(0),
        };
        shared.limits.max_arena_block.store(shared.current_max_arena_block(), Ordering::Relaxed);
        Self {
            store,
            shared: Arc::new(shared),
            maximum_bytes: most,
            is_short: false,
            streams: 0,
            last_growth_at: 0,
            allocations_with_excess: 0,
            flushed: 0,
            most_bytes: device_total.unwrap_or(u64::MAX).min(most),
        }
    }

    /// Returns whether the request is served from an arena.
    pub(super) fn is_small(&self, request: &Request) -> bool {
        request.bytes <= self.shared.max_arena_block() && request.alignment == ALLOCATION_ALIGNMENT
    }

    /// Inserts a large block into the block map.
    fn insert(&mut self, chunk: ChunkId, addr: u64, request: &Request) {
        let block = self.shared.block_for(LARGE, chunk, request);
        self.store.insert_block(&self.shared.block_map, block, addr);
    }

    /// Takes a span for the request's arena, and a small block from it.
    fn take_in_new_span(&mut self, whose: Whose, request: &Request) -> Option<Taken> {
        let shared = Arc::clone(&self.shared);
        let mut arena = shared.arenas.lock(request.shard);
        let wanted = self.span_wanted(&arena, request);
        let span = self.store.take_span(whose, wanted, request, self.is_short)?;
        let [owner, _] = whose.owners();
        arena.add_span(&span, owner);
        // Only blocks freed in that epoch or before: the arena may also have later ones.
        shared.take(request.shard, &mut arena, Whose::Of(owner, whose.upto()), request)
    }

    /// Returns the bytes that a new span for a small request should have.
    pub(super) fn span_wanted(&self, arena: &Arena, request: &Request) -> u64 {
        let are_contended = self.shared.arenas.are_contended();
        let most = self.largest_span(are_contended);
        arena.span_wanted(most, are_contended).max(request.bytes.next_power_of_two() * 2).min(most)
    }

    /// Returns the most bytes of a span. Over pages a span is one handle, which can be released alone. If
    /// threads contend, it is larger, since growth then costs more than the memory.
    fn largest_span(&self, are_contended: bool) -> u64 {
        if self.shared.over_pages && !are_contended { DEVICE_PAGE } else { SPAN_BYTES }
    }

    /// Takes a small block: first from the thread's arena, then from a new span, and then, if memory is
    /// short, from another arena. (Threads that take from each other's arenas contend for them from then on.)
    fn take_small(&mut self, whose: Whose, request: &Request) -> Option<Taken> {
        let own =
            self.shared.take(request.shard, &mut self.shared.arenas.lock(request.shard), whose, request);
        let [owner, other] = whose.owners();
        let mut in_new_span = |owner| self.take_in_new_span(Whose::Of(owner, whose.upto()), request);
        own.or_else(|| in_new_span(owner))
            .or_else(|| if other == owner { None } else { in_new_span(other) })
            .or_else(|| if self.is_short { self.take_in_arenas(whose, request) } else { None })
    }

    /// Takes the best block of the first arena that serves the request and has one.
    fn take_in_arenas(&self, whose: Whose, request: &Request) -> Option<Taken> {
        let mut arenas = self.shared.arenas.each_of(whose.owners(), self.only_arena(Some(request)));
        arenas.find_map(|(shard, mut arena)| self.shared.take(shard, &mut arena, whose, request))
    }

    /// Frees a block to its heap, after its user has freed it; returns its bytes.
    pub(super) fn free_entry(
        store: &mut dyn Store,
        shared: &Shared,
        entry: &BlockEntry,
        owner: Owner,
        epoch: Epoch,
    ) -> u64 {
        shared.free_small(entry, owner, epoch).unwrap_or_else(|chunk| {
            let bytes = store.bytes_of(chunk);
            store.free(chunk, owner, epoch);
            bytes
        })
    }

    /// Frees a block that left a stream cache of this stream; returns its bytes.
    pub(super) fn free_cached(&mut self, entry: &BlockEntry, stream: &StreamCell) -> u64 {
        Self::free_entry(&mut *self.store, &self.shared, entry, stream.owner, stream.epoch())
    }
}

/// The calls of the slow path.
impl Heaps {
    pub(crate) fn maps_pages(&self) -> bool {
        self.shared.over_pages
    }

    /// Returns whether the request fits the device and the pool's maximum, or free memory of the pool. To
    /// find out, it may reclaim the threads' caches.
    pub(crate) fn can_ever_serve(&mut self, request: &Request) -> bool {
        // The driver aligns only to pages. For a larger alignment, new memory needs padding.
        let needed = if request.alignment > DEVICE_PAGE { request.padded_bytes() } else { request.bytes };
        if needed <= self.most_bytes || request.bytes > self.most_bytes {
            return needed <= self.most_bytes;
        }
        // The pool's own memory may be aligned by chance, and then needs no padding.
        self.reclaim(None, Reclaim::Everything);
        self.serves_if_merged(request)
    }

    /// Returns whether devices with an active context get access without being named.
    pub(crate) fn admits_peers(&self) -> bool {
        self.store.pages().is_some_and(|pages| pages.backing().is_open())
    }

    /// Rounds a request to the size of its block; `None` if it is too large for any device.
    pub(crate) fn request(&self, layout: Layout) -> Option<Request> {
        Some(Request { bytes: self.shared.block_bytes(layout.bytes()), ..Request::new(layout)? })
    }

    /// Notes the number of streams that the pool knows.
    #[inline]
    pub(crate) fn set_streams(&mut self, streams: usize) {
        if self.streams != streams {
            self.streams = streams;
            self.store.set_one_stream(streams < 2);
        }
    }

    /// Finds the best fit among the blocks that `owner` freed in epoch `upto` or before.
    pub(crate) fn find(&self, owner: Owner, upto: Epoch, request: &Request) -> Option<Fit> {
        let in_arenas = || {
            let arenas = self.shared.arenas.each_of([owner], self.only_arena(Some(request)));
            arenas.filter_map(|(_, arena)| arena.heap.fit(owner, upto, request)).min_by_key(|fit| fit.bytes)
        };
        let in_large = || self.store.find(owner, upto, request);
        if self.is_small(request) { in_arenas().or_else(in_large) } else { in_large().or_else(in_arenas) }
    }

    /// Allocates the best block.
    pub(crate) fn take(&mut self, whose: Whose, request: &Request) -> Option<Taken> {
        if self.is_small(request) {
            let Whose::Joined(_) = whose else { return self.take_small(whose, request) };
            let taken = self.take_in_arenas(whose, request);
            // A span of joined bytes serves few requests, so the pool takes it only before an out-of-memory
            // error.
            return taken
                .or_else(|| if self.is_short { self.take_in_new_span(whose, request) } else { None });
        }
        // An arena may have a free span.
        let Some(taken) = self.store.take(whose, request) else { return self.take_in_arenas(whose, request) };
        self.insert(taken.chunk, taken.addr, request);
        Some(taken)
    }

    /// Frees a block in use, or returns why it cannot be freed.
    pub(crate) fn free(
        &mut self,
        ptr: DevicePtr,
        layout: Layout,
        owner: Owner,
        epoch: Epoch,
    ) -> Result<(), MisuseKind> {
        let Self { store, shared, .. } = self;
        let entry = shared.block_map.find(ptr.address());
        let Some(entry) = entry.filter(|entry| entry.requested() != 0) else {
            return Err(self.diagnose_invalid_free(ptr.address()));
        };
        if !shared.claim(entry, layout.bytes()) {
            return Err(match entry.requested() {
                0 => MisuseKind::DoubleFree,
                allocated_bytes => MisuseKind::WrongSize { allocated_bytes },
            });
        }
        Self::free_entry(&mut **store, shared, entry, owner, epoch);
        Ok(())
    }

    pub(crate) fn largest_free_block(&self) -> u64 {
        let small = self.shared.arenas.each().map(|(_, arena)| arena.heap.largest_free_block()).max();
        self.store.largest_free_block().max(small.unwrap_or(0))
    }

    /// Plans a growth with at most `most_new` bytes of new memory, for a request or for later requests.
    ///
    /// # Errors
    /// [`NoMemory::OwnLimit`] or [`NoMemory::Below`].
    pub(crate) fn plan_growth(
        &mut self,
        owner: Owner,
        request: &Request,
        is_reserve: bool,
        how: Try,
        most_new: u64,
    ) -> Result<Task, NoMemory> {
        let may_stitch = self.shared.over_pages && !is_reserve;
        let (live_bytes, operations) = if may_stitch { self.live_bytes_and_operations() } else { (0, 0) };
        let purpose = if is_reserve {
            Purpose::Reserve { bytes: request.bytes }
        } else if may_stitch {
            self.last_growth_at = operations;
            self.purpose_over_pages(request)
        } else {
            Purpose::Block(*request)
        };
        self.store.plan(&Need { owner, purpose, how, most_new, live_bytes, operations })
    }

    fn purpose_over_pages(&self, request: &Request) -> Purpose {
        if !self.is_small(request) {
            return Purpose::Block(*request);
        }
        let arena = self.shared.arenas.lock(request.shard);
        Purpose::Span(*request, self.span_wanted(&arena, request))
    }

    /// Notes the result of a task in the heaps; returns the block, if the task allocates one.
    pub(crate) fn commit(&mut self, task: Task) -> Option<DevicePtr> {
        if task.is_growth() {
            self.set_short(false);
        }
        match self.store.commit(task) {
            Committed::Block { chunk, addr, request } => {
                self.insert(chunk, addr, &request);
                Some(DevicePtr::new(addr))
            }
            Committed::Span(span, request) => {
                let mut arena = self.shared.arenas.lock(request.shard);
                arena.add_span(&span, ANY_STREAM);
                let whose = Whose::Of(ANY_STREAM, Epoch::MAX);
                self.shared.take(request.shard, &mut arena, whose, &request).map(|taken| taken.ptr())
            }
            Committed::Memory(owner, request) => {
                self.set_cache_limits();
                self.take(Whose::Of(owner, Epoch::MAX), &request?).map(|taken| taken.ptr())
            }
            Committed::Nothing => None,
        }
    }

    /// Returns whether the pool should release excess memory now.
    pub(crate) fn has_excess(&mut self) -> bool {
        // For contending threads, a flush of their caches costs more than the memory is worth.
        let has_excess = self.store.pages().is_some_and(Pages::has_excess);
        if !has_excess || self.shared.arenas.are_contended() {
            return false;
        }
        self.allocations_with_excess = self.allocations_with_excess.wrapping_add(1);
        if !self.allocations_with_excess.is_multiple_of(CALLS_PER_RELEASE as u32) {
            return false;
        }
        let (calls, (_, operations)) = (self.calls_to_collect(), self.live_bytes_and_operations());
        self.store.pages_mut().is_some_and(|pages| pages.may_spend(calls, operations))
    }

    pub(crate) fn plan_excess(&mut self) -> Option<Task> {
        self.reclaim(None, Reclaim::Everything);
        let calls_of_look = self.calls_to_collect();
        self.store.plan_release(Returning::Excess { calls_of_look })
    }

    /// Plans access of other devices to mapped memory, if no task is under way.
    pub(crate) fn plan_admission(&mut self, devices: &[DeviceId], is_asked: bool) -> Option<Task> {
        self.store.pages_mut()?.plan_admission_task(devices, is_asked)
    }

    /// Returns whether no task over pages is under way.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.store.pages().is_none_or(Pages::is_at_rest)
    }

    /// Returns the request with its exact size, which the pool tries before it is out of memory.
    pub(crate) fn exact(&self, request: &Request) -> Request {
        if self.shared.fixed.is_some() { *request } else { request.exact() }
    }

    /// Returns the blocks in use in the region at `base`, if there is one.
    pub(crate) fn live_in(&self, base: u64) -> Option<Vec<LiveBlock>> {
        let [heap] = self.store.heaps() else { return None };
        let region = heap.regions().iter().find(|region| region.base == base)?;
        let live = |chunk: &Chunk| {
            let bytes = chunk.entry().map_or(0, BlockEntry::requested);
            (chunk.is_in_use() && bytes > 0).then_some(LiveBlock { address: chunk.addr, bytes })
        };
        Some(heap.region_chunks(region).filter_map(live).collect())
    }

    /// Returns the parts of handles that hold the bytes of a block. Over regions there are none.
    #[cfg(unix)]
    pub(crate) fn physical_of(&self, addr: u64, bytes: u64) -> Vec<pages::Part> {
        self.store.pages().map_or(Vec::new(), |pages| pages.physical_of(addr, bytes))
    }

    /// Returns whether a region may be wholly free, whichever streams own its parts.
    pub(crate) fn may_have_free_region(&self) -> bool {
        let may_have = |heap: &Heap| heap.regions().iter().any(|region| region.bytes <= heap.bytes_free);
        self.store.heaps().iter().any(may_have)
    }

    /// Returns an upper bound of the reserved bytes outside of blocks in use, plus the bytes that are being
    /// returned.
    pub(crate) fn idle_bytes(&self) -> u64 {
        let held = self.store.totals();
        (held.bytes_reserved + held.bytes_returning).saturating_sub(self.shared.least_live_bytes())
    }
}

#[cfg(test)]
mod tests;
