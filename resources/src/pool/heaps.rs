//! The heaps that the pool's lock guards: large blocks, and the spans that arenas cut small blocks from.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond_core::misuse::MisuseKind;
use millpond_core::{ALLOCATION_ALIGNMENT, DevicePtr, Layout, LiveBlock};

use crate::backing::paged::Pages;
use crate::backing::{Found, Large, NewSpan};
use crate::block_map::{BlockEntry, BlockMap, ChunkId, HeapId, NIL};
use crate::heap::Heap;
use crate::heap::chunk::Chunk;
use crate::heap::request::{Fit, Request};
use crate::pool::arena::{Arena, Arenas, Shard};
use crate::pool::cache::thread_cache::ThreadCaches;
use crate::pool::protocol::{Growth, PoolTotals, Ready, Reclaim};
use crate::pool::shared::{CacheLimits, FixedBlocks, Shared};
use crate::pool::slack::Slack;
use crate::pool::tasks_under_way::TasksUnderWay;
use crate::stream_order::streams::StreamCell;
use crate::stream_order::{ANY_STREAM, Epoch, Owner};
use crate::sync::spin_lock::SpinGuard;
use crate::tuning::{DEVICE_PAGE, LARGE_FITS_COMPARED, Policy, REGION_SHARE, REGION_UNIT};

/// The number of the heap of large blocks in the block map.
pub(super) const LARGE: HeapId = 0;

/// All free blocks of the pool.
#[derive(Debug)]
pub(crate) struct Heaps {
    pub(super) large: Large,
    pub(super) shared: Arc<Shared>,
    peak_bytes_reserved: u64,
    /// The bytes of the next region from upstream, unless the request needs more.
    next_region: u64,
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
    pub(super) tasks: TasksUnderWay,
}

/// The free blocks that may serve a request: those of `owner` that were freed in epoch `upto` or before.
#[derive(Clone, Copy)]
struct From {
    owner: Owner,
    upto: Epoch,
}

impl Heaps {
    /// Creates empty heaps: over pages with the granularity `pages`, or over regions. `device_total` is the
    /// device's memory, if the pool takes all of its memory from there.
    pub(super) fn new(
        maximum_bytes: Option<u64>,
        pages: Option<u64>,
        device_total: Option<u64>,
        slack: Slack,
        fixed: Option<FixedBlocks>,
    ) -> Self {
        let most = maximum_bytes.unwrap_or(u64::MAX);
        let large = match pages {
            None => Large::Regions(Heap::new(LARGE_FITS_COMPARED)),
            Some(granularity) => {
                let total = device_total.unwrap_or(0);
                let policy = Policy { slack: slack.thousandths().into(), ..Policy::default() };
                Large::Pages(Box::new(Pages::new(granularity, total, most, policy)))
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
            large,
            shared: Arc::new(shared),
            peak_bytes_reserved: 0,
            next_region: REGION_UNIT,
            maximum_bytes: most,
            is_short: false,
            streams: 0,
            last_growth_at: 0,
            allocations_with_excess: 0,
            tasks: TasksUnderWay::default(),
            most_bytes: device_total.unwrap_or(u64::MAX).min(most),
        }
    }

    /// Returns whether the request is served from an arena.
    pub(super) fn is_small(&self, request: &Request) -> bool {
        request.bytes <= self.shared.max_arena_block() && request.alignment == ALLOCATION_ALIGNMENT
    }

    fn take_large(&mut self, found: Found, request: &Request) -> DevicePtr {
        let block = self.shared.block_for(LARGE, NIL, request);
        DevicePtr::new(self.large.take(found, request, block, &self.shared.block_map))
    }

    /// Adds a span to an arena and takes a small block from it.
    fn take_in_new_span(&mut self, from: From, request: &Request) -> Option<DevicePtr> {
        let shared = Arc::clone(&self.shared);
        let mut arena = shared.arenas.lock(request.shard);
        let wanted = self.span_wanted(&arena, request);
        let span = self.large.take_span(from.owner, from.upto, wanted, request, self.is_short)?;
        self.take_in_span(&mut arena, &span, from, request)
    }

    /// Adds a span, free for the owner of `from`, to the request's arena and takes a small block from it.
    fn take_in_span(
        &self,
        arena: &mut Arena,
        span: &NewSpan,
        from: From,
        request: &Request,
    ) -> Option<DevicePtr> {
        arena.heap.next_number = self.large.region_of(span);
        arena.add_span(span, from.owner);
        let chunk = arena.heap.find(from.owner, from.upto, request)?;
        Some(self.shared.take(request.shard, arena, chunk, request))
    }

    /// Returns the bytes that a new span for a small request should have.
    pub(super) fn span_wanted(&self, arena: &Arena, request: &Request) -> u64 {
        let are_contended = self.shared.arenas.are_contended();
        let most = self.large.largest_span(are_contended);
        arena.span_wanted(most, are_contended).max(request.bytes.next_power_of_two() * 2).min(most)
    }

    /// Takes the small block that `find` finds in an arena.
    fn take_in_arena(
        &self,
        shard: Shard,
        arena: &mut Arena,
        request: &Request,
        find: impl Fn(&Heap) -> Option<ChunkId>,
    ) -> Option<Ready> {
        let chunk = find(&arena.heap)?;
        let was_unowned = arena.heap.chunk(chunk).owner() == ANY_STREAM;
        let ptr = self.shared.take(shard, arena, chunk, request);
        Some(if was_unowned { Ready::Unowned(ptr) } else { Ready::Own(ptr) })
    }

    /// Takes a small block: first the one that `find` finds in the thread's arena; then one from a new span
    /// of the first of `from` that has room; then, if memory is short, one of another arena. (Threads that
    /// take from each other's arenas contend for them from then on.)
    fn take_small(
        &mut self,
        request: &Request,
        from: &[From],
        find: impl Fn(&Heap) -> Option<ChunkId>,
    ) -> Option<Ready> {
        let own = {
            let mut arena = self.shared.arenas.lock(request.shard);
            self.take_in_arena(request.shard, &mut arena, request, &find)
        };
        if own.is_some() {
            return own;
        }
        for from in from {
            if let Some(ptr) = self.take_in_new_span(*from, request) {
                return Some(if from.owner == ANY_STREAM { Ready::Unowned(ptr) } else { Ready::Own(ptr) });
            }
        }
        if !self.is_short {
            return None;
        }
        self.take_in_arenas(request, Some(request.shard), find)
    }

    /// Takes the block that `find` finds in the first arena that has one, except the arena `skipped`.
    fn take_in_arenas(
        &self,
        request: &Request,
        skipped: Option<Shard>,
        find: impl Fn(&Heap) -> Option<ChunkId>,
    ) -> Option<Ready> {
        let mut others = self.shared.arenas.each().filter(|(shard, _)| Some(*shard) != skipped);
        others.find_map(|(shard, mut arena)| self.take_in_arena(shard, &mut arena, request, &find))
    }

    /// Frees a block that its user has freed already, to its heap; returns its bytes.
    pub(super) fn free_entry(
        large: &mut Large,
        shared: &Shared,
        entry: &BlockEntry,
        owner: Owner,
        epoch: Epoch,
    ) -> u64 {
        shared.free_small(entry, owner, epoch).unwrap_or_else(|chunk| {
            let bytes = large.bytes_of(chunk);
            large.free(chunk, owner, epoch);
            bytes
        })
    }

    /// Frees a block that left a stream cache of this stream; returns its bytes.
    pub(super) fn free_cached(&mut self, entry: &BlockEntry, stream: &StreamCell) -> u64 {
        Self::free_entry(&mut self.large, &self.shared, entry, stream.owner, stream.epoch())
    }
}

/// The calls of the slow path.
impl Heaps {
    pub(crate) fn maps_pages(&self) -> bool {
        matches!(self.large, Large::Pages(_))
    }

    /// Returns whether the request fits the device and the pool's maximum, or free memory of the pool. To
    /// find that out, it may reclaim the threads' caches.
    pub(crate) fn can_ever_serve(&mut self, request: &Request) -> bool {
        // The driver aligns to pages only: for a larger alignment, new memory needs padding.
        let needed = if request.alignment > DEVICE_PAGE { request.padded_bytes() } else { request.bytes };
        if needed <= self.most_bytes || request.bytes > self.most_bytes {
            return needed <= self.most_bytes;
        }
        // The pool's memory may be aligned by chance, and then needs none.
        self.reclaim(Reclaim::Everything);
        self.serves_if_merged(request)
    }

    /// Returns whether devices with an active context get access without being named.
    pub(crate) fn admits_peers(&self) -> bool {
        matches!(&self.large, Large::Pages(pages) if pages.backing().is_open())
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
            self.large.set_one_stream(streams < 2);
        }
    }

    /// Finds the best fit among the blocks that `owner` freed in epoch `upto` or before.
    pub(crate) fn find(&self, owner: Owner, upto: Epoch, request: &Request) -> Option<Fit> {
        let fit = |heap: &Heap, chunk| {
            let chunk: &Chunk = heap.chunk(chunk);
            Fit { bytes: chunk.bytes, epoch: chunk.epoch() }
        };
        let in_arenas = || {
            let of_arena = |(_, arena): (_, SpinGuard<'_, Arena>)| {
                arena.heap.find(owner, upto, request).map(|chunk| fit(&arena.heap, chunk))
            };
            let arenas = self.shared.arenas.each_of(owner, self.only_arena(request));
            arenas.filter_map(of_arena).min_by_key(|fit| fit.bytes)
        };
        let in_large = || {
            let found = self.large.find(owner, upto, request)?;
            Some(Fit { bytes: found.bytes, epoch: found.epoch })
        };
        if self.is_small(request) { in_arenas().or_else(in_large) } else { in_large().or_else(in_arenas) }
    }

    /// Allocates the block that [`find`](Self::find) finds.
    pub(crate) fn take(&mut self, owner: Owner, upto: Epoch, request: &Request) -> Option<DevicePtr> {
        let from = From { owner, upto };
        let find = |heap: &Heap| heap.find(owner, upto, request);
        if !self.is_small(request) {
            return match self.large.find(owner, upto, request) {
                Some(found) => Some(self.take_large(found, request)),
                None => self.take_in_arenas(request, None, find).map(Ready::ptr),
            };
        }
        self.take_small(request, &[from], find).map(Ready::ptr)
    }

    /// Allocates an own or an unowned block; an own one first if `is_own_first`.
    pub(crate) fn take_ready(
        &mut self,
        owner: Owner,
        request: &Request,
        is_own_first: bool,
    ) -> Option<Ready> {
        if self.is_small(request) {
            let from = [owner, ANY_STREAM].map(|owner| From { owner, upto: Epoch::MAX });
            return self.take_small(request, &from, |heap| heap.find_for(owner, request, is_own_first));
        }
        let Some(found) = self.large.find_for(owner, request, is_own_first) else {
            // An arena may have a free span.
            return self.take_in_arenas(request, None, |heap| heap.find_for(owner, request, is_own_first));
        };
        let was_unowned = found.owner == ANY_STREAM;
        let ptr = self.take_large(found, request);
        Some(if was_unowned { Ready::Unowned(ptr) } else { Ready::Own(ptr) })
    }

    /// Frees a block in use, or returns why it cannot be freed.
    pub(crate) fn free(
        &mut self,
        ptr: DevicePtr,
        layout: Layout,
        owner: Owner,
        epoch: Epoch,
    ) -> Result<(), MisuseKind> {
        let Self { large, shared, .. } = self;
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
        Self::free_entry(large, shared, entry, owner, epoch);
        Ok(())
    }

    /// Allocates neighbouring free blocks that are partly the owner's and partly unowned.
    pub(crate) fn take_with_unowned(&mut self, owner: Owner, request: &Request) -> Option<DevicePtr> {
        let shared = Arc::clone(&self.shared);
        let is_small = self.is_small(request);
        if !is_small {
            let block = || shared.block_for(LARGE, NIL, request);
            let taken = self.large.take_with_unowned(owner, request, block, &shared.block_map);
            if taken.is_some() {
                return taken.map(DevicePtr::new);
            }
        }
        for (shard, mut arena) in shared.arenas.each_of(owner, self.only_arena(request)) {
            if let Some((chunk, ..)) = arena.heap.take_with_unowned(owner, request) {
                let block = shared.block_for(Arenas::heap_id(shard), chunk, request);
                return Some(DevicePtr::new(arena.heap.insert_block(&shared.block_map, block)));
            }
        }
        // Such a span serves few requests, so it is taken only before an out-of-memory error.
        if !is_small || !self.is_short {
            return None;
        }
        let span = self.large.take_span_with_unowned(owner, request)?;
        let mut arena = shared.arenas.lock(request.shard);
        self.take_in_span(&mut arena, &span, From { owner, upto: Epoch::MAX }, request)
    }

    pub(crate) fn largest_free_block(&self) -> u64 {
        let small = self.shared.arenas.each().map(|(_, arena)| arena.heap.largest_free_block()).max();
        self.large.largest_free_block().max(small.unwrap_or(0))
    }

    /// Returns the sizes of a new region for the request; `None` if the pool's maximum does not allow one.
    pub(crate) fn growth(&self, request: &Request) -> Option<Growth> {
        if let Some(FixedBlocks { block_bytes, blocks_per_region }) = self.shared.fixed {
            // As many blocks as are in use, which bounds the free ones by that.
            let blocks = self.large.blocks_in_use().clamp(1, blocks_per_region);
            return Some(Growth { preferred: blocks * block_bytes, least: block_bytes, unit: block_bytes });
        }
        let taken = self.large.bytes_reserved() + self.tasks.region_bytes();
        let room = self.maximum_bytes.saturating_sub(taken);
        let least = request.padded_bytes();
        if least > room {
            return None;
        }
        let most = (self.large.bytes_reserved() / REGION_SHARE).max(REGION_UNIT);
        let wanted = Heap::region_for(request, self.next_region.min(most), REGION_UNIT);
        let preferred = wanted.min(room & !(ALLOCATION_ALIGNMENT - 1)).max(least);
        Some(Growth { preferred, least, unit: ALLOCATION_ALIGNMENT })
    }

    /// Notes that a growth was refused.
    pub(crate) fn note_refusal(&mut self) {
        self.set_short(true);
    }

    /// Returns the request with its exact size, which is tried before the pool is out of memory.
    pub(crate) fn exact(&self, request: &Request) -> Request {
        if self.shared.fixed.is_some() { *request } else { request.exact() }
    }

    /// Returns the blocks in use in the region at `base`, if there is one.
    pub(crate) fn live_in(&self, base: u64) -> Option<Vec<LiveBlock>> {
        let Large::Regions(heap) = &self.large else { return None };
        let region = heap.regions().iter().find(|region| region.base == base)?;
        let live = |chunk: &Chunk| {
            let bytes = chunk.entry().map_or(0, BlockEntry::requested);
            (chunk.is_in_use() && bytes > 0).then_some(LiveBlock { address: chunk.addr, bytes })
        };
        Some(heap.region_chunks(region).filter_map(live).collect())
    }

    pub(crate) fn add_region(&mut self, base: DevicePtr, bytes: u64, owner: Owner, epoch: Epoch) {
        self.set_short(false);
        if let Large::Regions(heap) = &mut self.large {
            heap.next_number = heap.next_number.wrapping_add(1);
            heap.add_region(base.address(), bytes, owner, epoch);
        }
        self.next_region = self.next_region.saturating_mul(2);
        self.peak_bytes_reserved = self.peak_bytes_reserved.max(self.large.bytes_reserved());
        self.set_cache_limits();
    }

    #[cfg(test)]
    pub(crate) fn prefer_regions_of(&mut self, bytes: u64) {
        self.next_region = bytes;
    }

    /// Returns whether a region may be free as a whole, whoever owns its parts.
    pub(crate) fn may_have_free_region(&self) -> bool {
        self.large.may_have_free_region()
    }

    /// Returns the bytes held from upstream or the driver.
    pub(crate) fn bytes_reserved(&self) -> u64 {
        self.large.bytes_reserved()
    }

    /// Returns the most bytes held so far.
    pub(crate) fn peak_bytes_reserved(&self) -> u64 {
        self.peak_bytes_reserved.max(self.large.peak_bytes_reserved())
    }

    pub(crate) fn totals(&self) -> PoolTotals {
        let mut totals = PoolTotals {
            bytes_reserved: self.large.bytes_reserved(),
            peak_bytes_reserved: self.peak_bytes_reserved(),
            bytes_beyond_slack: self.large.bytes_beyond_slack(),
            blocks_free: self.large.blocks_free(),
            regions: self.large.regions() as u64,
            ..PoolTotals::default()
        };
        for (_, arena) in self.shared.arenas.each() {
            totals.blocks_free += arena.heap.blocks_free;
        }
        // Threads change their counters meanwhile: a sum may miss one side of a block that two threads use.
        let (mut live, mut requested, mut blocks_held, mut blocks) = (0, 0, 0, 0);
        self.shared.thread_caches.each(|thread_cache| {
            let thread = thread_cache.counts.totals();
            live += thread.live_bytes;
            requested += thread.live_requested;
            blocks_held += thread.blocks_held as i64;
            blocks += thread.allocations as i64 - thread.deallocations as i64;
            totals.own_stream += thread.own_stream;
            totals.completed += thread.completed;
            totals.deallocations += thread.deallocations;
        });
        let saved = self.shared.saved_by_exact_size.load(Ordering::Relaxed);
        totals.bytes_in_use = (live.max(0) as u64).saturating_sub(saved);
        totals.bytes_requested = (requested.max(0) as u64).min(totals.bytes_in_use);
        totals.blocks_in_use = blocks.max(0) as u64;
        totals.blocks_free += blocks_held.max(0) as u64;
        totals.peak_bytes_in_use = self.shared.thread_caches.peak_bytes().max(live).max(0) as u64;
        totals
    }

    /// Returns an upper bound of the reserved bytes that are in no block in use, and of those that are on their
    /// way back.
    pub(crate) fn idle_bytes(&self) -> u64 {
        let held = self.large.bytes_reserved() + self.tasks.returning_bytes();
        held.saturating_sub(self.shared.least_live_bytes())
    }

    /// Returns whether at least `bytes` may be idle.
    pub(crate) fn has_idle(&self, bytes: u64) -> bool {
        self.large.bytes_free() >= bytes || self.idle_bytes() >= bytes
    }
}

#[cfg(test)]
mod tests;
