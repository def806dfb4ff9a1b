use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond_core::misuse::MisuseKind;
use millpond_core::{ALLOCATION_ALIGNMENT, DeviceId, DevicePtr, Layout, LiveBlock};

use crate::backing::paged::Pages;
use crate::backing::{Found, Large};
use crate::block_map::{BlockEntry, BlockMap, HeapId};
use crate::block_map::{ChunkId, NIL};
use crate::heap::Heap;
use crate::heap::chunk::Chunk;
use crate::heap::request::{Cursor, Fit, Request};
use crate::heap::size_class::LARGEST_SMALL;
use crate::pool::arena::{Arena, Arenas, Shard};
use crate::pool::cache::thread_cache::ThreadCaches;
use crate::pool::protocol::{Growth, Lack, PoolTotals, Ready, Reclaim, Room, Shortage};
use crate::pool::slack::Slack;
use crate::pool::task::Task;
use crate::stream_order::streams::StreamCell;
use crate::stream_order::{ANY_STREAM, Epoch, Owner};
use crate::sync::spin_lock::SpinGuard;
use crate::tuning::DEVICE_PAGE;
use crate::tuning::Policy;

/// The heap of large blocks, to the block map.
pub(super) const LARGE: HeapId = 0;

/// Regions grow from this many bytes on, and in multiples of it.
const REGION_UNIT: u64 = 2 << 20;

/// Over pages, blocks of at most so many bytes are in arenas: larger ones are stitched better.
pub(super) const LARGEST_OVER_PAGES: u64 = 128 << 10;

/// Between two steps that give excess back, this many large requests are served.
const HITS_FOR_EXCESS: u32 = 64;

/// How many blocks of a bin are compared.
const SCAN: usize = 32;

/// What threads reach without the pool's lock.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) block_map: BlockMap,
    pub(super) arenas: Arenas,
    pub(super) thread_caches: ThreadCaches,
    /// Whether the pool maps pages itself.
    over_pages: bool,
    pub(super) limits: Limits,
    /// All blocks have one size.
    pub(super) fixed: Option<FixedBlocks>,
    /// By how many bytes the blocks in use of exact sizes are smaller than the threads count them.
    pub(super) saved_by_exact_size: AtomicU64,
}

/// What threads read in each call, and what is seldom written: away from all else.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Limits {
    /// Bytes that a thread may keep in its stream caches.
    pub(super) keep_bytes: AtomicU64,
    /// Of it, in blocks of one class.
    pub(super) keep_of_class: AtomicU64,
    /// The largest block that a thread may keep in a stream cache.
    pub(super) keep_large: AtomicU64,
    /// Blocks of at most so many bytes are in arenas.
    pub(super) small_upto: AtomicU64,
}

/// The blocks of a pool in which all have one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FixedBlocks {
    /// Bytes of a block, a multiple of 256.
    pub(crate) block_bytes: u64,
    /// Blocks that a new region has at most.
    pub(crate) blocks_per_region: u64,
}

/// All free blocks of the pool, large and small: what is behind the pool's lock.
#[derive(Debug)]
pub(crate) struct Heaps {
    pub(super) large: Large,
    pub(super) shared: Arc<Shared>,
    peak_bytes_reserved: u64,
    next_region: u64,
    pub(super) maximum_bytes: u64,
    /// Whether upstream refused memory, and did not give any since.
    pub(super) is_short: bool,
    /// How many streams there are.
    pub(super) streams: usize,
    /// What the device has, as far as the pool knows, and its own maximum.
    pub(super) most_bytes: u64,
    /// The operations that there were when memory was last short of what was asked for.
    pub(super) last_growth_at: u64,
    /// Requests served while there was excess to give back.
    hits_with_excess: u32,
}

/// Where a block is taken from.
#[derive(Clone, Copy)]
struct From {
    owner: Owner,
    upto: Epoch,
}

impl Shared {
    /// Blocks of at most so many bytes are in arenas.
    pub(super) fn largest_in_arena(&self) -> u64 {
        self.limits.small_upto.load(Ordering::Relaxed)
    }

    /// The largest blocks that should be in arenas now.
    pub(super) fn small_upto(&self) -> u64 {
        match self.fixed {
            Some(_) => 0,
            None if self.saves_memory() => LARGEST_OVER_PAGES,
            None => LARGEST_SMALL,
        }
    }

    /// Whether memory goes before speed: over pages, unless threads meet.
    #[inline]
    pub(super) fn saves_memory(&self) -> bool {
        self.over_pages && !self.arenas.are_contended()
    }

    /// Takes a block out of an arena.
    pub(super) fn take(
        &self,
        shard: Shard,
        arena: &mut Arena,
        chunk: ChunkId,
        request: &Request,
    ) -> DevicePtr {
        let id = arena.heap.take(chunk, request.bytes, request.alignment);
        let block = self.block_for(Arenas::heap_id(shard), id, request);
        DevicePtr::new(arena.heap.insert_block(&self.block_map, block))
    }

    /// Gives a block that is not handed out to its arena, and says its size; a large one is returned.
    fn free_small(&self, entry: &BlockEntry, owner: Owner, epoch: Epoch) -> Result<u64, ChunkId> {
        let (heap, chunk) = entry.block();
        entry.end();
        let Some(shard) = Arenas::shard(heap) else { return Err(chunk) };
        let mut arena = self.arenas.lock(shard);
        let bytes = arena.heap.chunk(chunk).bytes;
        arena.heap.free(chunk, owner, epoch);
        Ok(bytes)
    }
}

impl Heaps {
    /// Over regions, or over pages with this granularity; from a device that has so many bytes, if all of it
    /// comes from there.
    pub(super) fn new(
        maximum_bytes: Option<u64>,
        pages: Option<u64>,
        device_total: Option<u64>,
        slack: Slack,
        fixed: Option<FixedBlocks>,
    ) -> Self {
        let most = maximum_bytes.unwrap_or(u64::MAX);
        let large = match pages {
            None => Large::Regions(Heap::new(SCAN)),
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
            limits: Limits::default(),
            fixed,
            saved_by_exact_size: AtomicU64::new(0),
        };
        shared.limits.small_upto.store(shared.small_upto(), Ordering::Relaxed);
        Self {
            large,
            shared: Arc::new(shared),
            peak_bytes_reserved: 0,
            next_region: REGION_UNIT,
            maximum_bytes: most,
            is_short: false,
            streams: 0,
            last_growth_at: 0,
            hits_with_excess: 0,
            most_bytes: device_total.unwrap_or(u64::MAX).min(most),
        }
    }

    pub(super) fn is_small(&self, request: &Request) -> bool {
        request.bytes <= self.shared.largest_in_arena() && request.alignment == ALLOCATION_ALIGNMENT
    }

    /// Hands out a large block.
    fn take_large(&mut self, found: Found, request: &Request) -> DevicePtr {
        let block = self.shared.block_for(LARGE, NIL, request);
        DevicePtr::new(self.large.take(found, request, block, &self.shared.block_map))
    }

    /// Adds a span to an arena and takes a small block from it.
    fn take_in_new_span(&mut self, shard: Shard, from: From, request: &Request) -> Option<DevicePtr> {
        let shared = Arc::clone(&self.shared);
        let mut arena = shared.arenas.lock(shard);
        let wanted = self.span_wanted(&arena, request);
        let span = self.large.take_span(from.owner, from.upto, wanted, request, self.is_short)?;
        arena.heap.next_number = self.large.region_of(&span);
        arena.add_span(&span, from.owner);
        let chunk = arena.heap.find(from.owner, from.upto, request)?;
        Some(shared.take(shard, &mut arena, chunk, request))
    }

    /// How large a span for a small request should be.
    pub(super) fn span_wanted(&self, arena: &Arena, request: &Request) -> u64 {
        let are_contended = self.shared.arenas.are_contended();
        let most = self.large.largest_span(are_contended);
        arena.span_wanted(most, are_contended).max(request.bytes.next_power_of_two() * 2).min(most)
    }

    /// Takes a small block from an arena; `find` says which.
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

    /// Takes a small block as `find` says: from the thread's arena; from a new span, of the first of `from`
    /// who has one; from another arena, if memory is short. (Threads that take from each other's arenas meet
    /// there ever after.)
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
            if let Some(ptr) = self.take_in_new_span(request.shard, *from, request) {
                return Some(if from.owner == ANY_STREAM { Ready::Unowned(ptr) } else { Ready::Own(ptr) });
            }
        }
        if !self.is_short {
            return None;
        }
        self.take_in_arenas(request, Some(request.shard), find)
    }

    /// Takes a block as `find` says from the first arena that has one, but for one.
    fn take_in_arenas(
        &self,
        request: &Request,
        but: Option<Shard>,
        find: impl Fn(&Heap) -> Option<ChunkId>,
    ) -> Option<Ready> {
        let mut others = self.shared.arenas.each().filter(|(shard, _)| Some(*shard) != but);
        others.find_map(|(shard, mut arena)| self.take_in_arena(shard, &mut arena, request, &find))
    }

    /// Ends a block that is not handed out; says its size.
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

    /// Reclaims a block that a stream cache of this stream kept; says its size.
    pub(super) fn free_cached(&mut self, entry: &BlockEntry, stream: &StreamCell) -> u64 {
        Self::free_entry(&mut self.large, &self.shared, entry, stream.owner, stream.epoch())
    }
}

/// What the slow path asks of the blocks.
impl Heaps {
    pub(crate) fn maps_pages(&self) -> bool {
        matches!(self.large, Large::Pages(_))
    }

    pub(super) fn plan_pages(
        &mut self,
        owner: Owner,
        request: &Request,
        most_new: u64,
    ) -> Result<Task, Lack> {
        let (live, operations) = self.live_bytes_and_operations();
        self.last_growth_at = operations;
        let span = self.is_small(request).then(|| {
            let arena = self.shared.arenas.lock(request.shard);
            self.span_wanted(&arena, request)
        });
        let Large::Pages(pages) = &mut self.large else { return Err(Lack::OwnLimit) };
        pages.note_operations(operations);
        let request = *request;
        match span {
            None => {
                let plan = pages.plan(owner, &request, false, live, most_new);
                plan.map(|plan| Task::Block { plan, request })
            }
            Some(bytes) => {
                let span = Request { bytes, ..request };
                let plan = pages.plan(ANY_STREAM, &span, true, live, most_new);
                plan.map(|plan| Task::Span { plan, request, bytes })
            }
        }
        .map_err(|refused| pages.lack(&refused))
    }

    pub(crate) fn can_ever_serve(&self, request: &Request) -> bool {
        // What is to start at a multiple of more than a page is cut out of memory that is larger by that.
        let needed = if request.alignment > DEVICE_PAGE { request.padded_bytes() } else { request.bytes };
        needed <= self.most_bytes
    }

    pub(super) fn plan_reserve(&mut self, bytes: u64, most_new: u64) -> Result<Task, Lack> {
        let Large::Pages(pages) = &mut self.large else { return Err(Lack::OwnLimit) };
        let plan = pages.plan_reserve(bytes, most_new).map(Task::Reserve);
        plan.map_err(|refused| pages.lack(&refused))
    }

    pub(crate) fn plan_release(&mut self, keep_bytes: u64, most_calls: usize) -> Option<Task> {
        let Large::Pages(pages) = &mut self.large else { return None };
        pages.plan_release(keep_bytes, most_calls).map(Task::Release)
    }

    pub(crate) fn plan_release_step(&mut self, keep_bytes: u64, at: &mut Cursor) -> Option<Task> {
        crate::pool::decay::plan_release_step(self, keep_bytes, at)
    }

    pub(crate) fn has_excess(&mut self) -> bool {
        let Large::Pages(pages) = &self.large else { return false };
        // Where threads contend, what they keep is worth more than memory.
        if !pages.has_excess() || self.shared.arenas.are_contended() {
            return false;
        }
        self.hits_with_excess = self.hits_with_excess.wrapping_add(1);
        if !self.hits_with_excess.is_multiple_of(HITS_FOR_EXCESS) {
            return false;
        }
        let (calls, (_, operations)) = (self.calls_of_look(), self.live_bytes_and_operations());
        let Large::Pages(pages) = &mut self.large else { return false };
        pages.may_spend(calls, operations)
    }

    pub(crate) fn plan_excess(&mut self) -> Option<Task> {
        self.reclaim(Reclaim::Everything);
        let calls = self.calls_of_look();
        let Large::Pages(pages) = &mut self.large else { return None };
        pages.plan_excess(calls).map(Task::Release)
    }

    pub(crate) fn plan_tidying(&mut self) -> Option<Task> {
        let Large::Pages(pages) = &mut self.large else { return None };
        pages.plan_tidying().map(Task::Release)
    }

    pub(crate) fn admits_peers(&self) -> bool {
        matches!(&self.large, Large::Pages(pages) if pages.backing().is_open())
    }

    pub(crate) fn plan_admission(&mut self, devices: &[DeviceId], is_asked: bool) -> Option<Task> {
        let Large::Pages(pages) = &mut self.large else { return None };
        pages.plan_admission(devices, is_asked).map(Task::Admit)
    }

    pub(crate) fn plan_end(&mut self) -> Option<Task> {
        let Large::Pages(pages) = &mut self.large else { return None };
        Some(Task::Release(pages.release_all()))
    }

    pub(crate) fn request(&self, layout: Layout) -> Option<Request> {
        Some(Request { bytes: self.shared.block_bytes(layout.bytes()), ..Request::new(layout)? })
    }

    /// Notes how many streams there are.
    #[inline]
    pub(crate) fn set_streams(&mut self, streams: usize) {
        if self.streams != streams {
            self.streams = streams;
            self.large.set_one_stream(streams < 2);
        }
    }

    pub(crate) fn remove_owner(&mut self, owner: Owner) {
        self.large.remove_owner(owner);
        self.shared.arenas.each().for_each(|(_, mut arena)| arena.heap.remove_owner(owner));
    }

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
            // In an otherwise empty span.
            return self.take_in_arenas(request, None, |heap| heap.find_for(owner, request, is_own_first));
        };
        let was_unowned = found.owner == ANY_STREAM;
        let ptr = self.take_large(found, request);
        Some(if was_unowned { Ready::Unowned(ptr) } else { Ready::Own(ptr) })
    }

    pub(crate) fn reclaim(&mut self, how: Reclaim) -> bool {
        self.reclaim_from(None, how)
    }

    pub(crate) fn reclaim_for(&mut self, request: Option<&Request>, how: Reclaim) -> bool {
        self.reclaim_from(request.and_then(|request| self.only_arena(request)), how)
    }

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

    pub(crate) fn migrate(&mut self, from: Owner, upto: Epoch, to: Owner, epoch: Epoch) {
        self.migrate_in(None, from, upto, to, epoch);
    }

    pub(crate) fn migrate_for(
        &mut self,
        request: Option<&Request>,
        from: Owner,
        upto: Epoch,
        to: Owner,
        epoch: Epoch,
    ) -> bool {
        let only = request.and_then(|request| self.only_arena(request));
        self.migrate_in(only, from, upto, to, epoch);
        only.is_none() || !self.shared.arenas.are_contended()
    }

    pub(crate) fn migrate_step(
        &mut self,
        from: Owner,
        upto: Epoch,
        to: Owner,
        epoch: Epoch,
        at: &mut Cursor,
    ) {
        crate::pool::decay::migrate_step(self, from, upto, to, epoch, at);
    }

    pub(crate) fn take_with_unowned(&mut self, owner: Owner, request: &Request) -> Option<DevicePtr> {
        let shared = Arc::clone(&self.shared);
        if self.is_small(request) {
            for (shard, mut arena) in shared.arenas.each_of(owner, self.only_arena(request)) {
                if let Some((first, addr)) = arena.heap.find_run(owner, request) {
                    let chunk = arena.heap.take_run(first, addr, request.bytes);
                    let block = shared.block_for(Arenas::heap_id(shard), chunk, request);
                    return Some(DevicePtr::new(arena.heap.insert_block(&shared.block_map, block)));
                }
            }
            // From the large heap it comes in a span.
            return None;
        }
        let block = || shared.block_for(LARGE, NIL, request);
        self.large.take_with_unowned(owner, request, block, &shared.block_map).map(DevicePtr::new)
    }

    pub(crate) fn free_bytes(&self, owner: Owner) -> u64 {
        self.free_bytes_in(None, owner)
    }

    pub(crate) fn free_bytes_for(&self, request: Option<&Request>, owner: Owner) -> u64 {
        self.free_bytes_in(request.and_then(|request| self.only_arena(request)), owner)
    }

    pub(crate) fn largest_free_block(&self) -> u64 {
        let small = self.shared.arenas.each().map(|(_, arena)| arena.heap.largest_free_block()).max();
        self.large.largest_free_block().max(small.unwrap_or(0))
    }

    pub(crate) fn growth(&self, request: &Request) -> Option<Growth> {
        if let Some(FixedBlocks { block_bytes, blocks_per_region }) = self.shared.fixed {
            // As many blocks again as are in use, so that few blocks in use keep few waiting.
            let blocks = self.large.blocks_in_use().clamp(1, blocks_per_region);
            return Some(Growth { preferred: blocks * block_bytes, least: block_bytes, unit: block_bytes });
        }
        let room = self.maximum_bytes.saturating_sub(self.large.bytes_reserved());
        let least = request.padded_bytes();
        if least > room {
            return None;
        }
        let modest = (self.large.bytes_reserved() / 8).max(REGION_UNIT);
        let wanted = Heap::region_for(request, self.next_region.min(modest), REGION_UNIT);
        let preferred = wanted.min(room & !(ALLOCATION_ALIGNMENT - 1)).max(least);
        Some(Growth { preferred, least, unit: ALLOCATION_ALIGNMENT })
    }

    pub(crate) fn refused(&mut self) {
        self.set_short(true);
    }

    /// The request cut to 256 bytes only: what is tried before memory is out.
    pub(crate) fn exact(&self, request: &Request) -> Request {
        if self.shared.fixed.is_some() { *request } else { request.exact() }
    }

    /// The blocks that are handed out of the region that starts at `base`, if one does.
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

    pub(crate) fn remove_free_region(&mut self) -> Option<(DevicePtr, u64)> {
        let (base, bytes) = self.large.remove_free_region()?;
        Some((DevicePtr::new(base), bytes))
    }

    pub(crate) fn remove_all_regions(&mut self) -> Vec<(DevicePtr, u64)> {
        let Large::Regions(heap) = &mut self.large else { return Vec::new() };
        let regions = heap.remove_all_regions();
        regions.into_iter().map(|region| (DevicePtr::new(region.base), region.bytes)).collect()
    }

    pub(crate) fn totals(&self) -> PoolTotals {
        let mut totals = PoolTotals {
            bytes_reserved: self.large.bytes_reserved(),
            peak_bytes_reserved: self.peak_bytes_reserved.max(self.large.peak_bytes_reserved()),
            bytes_beyond_slack: self.large.bytes_beyond_slack(),
            blocks_free: self.large.blocks_free(),
            regions: self.large.regions() as u64,
            ..PoolTotals::default()
        };
        for (_, arena) in self.shared.arenas.each() {
            totals.blocks_free += arena.heap.blocks_free;
        }
        // Threads go on meanwhile: what one took and another gave back may be counted by half.
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

    pub(crate) fn idle_bytes(&self) -> u64 {
        self.large.bytes_reserved().saturating_sub(self.shared.least_live_bytes())
    }

    pub(crate) fn has_idle(&self, bytes: u64) -> bool {
        self.large.bytes_free() >= bytes || self.idle_bytes() >= bytes
    }

    pub(crate) fn shortage(&mut self, request: &Request, room: &Room) -> Shortage {
        crate::pool::oom_advice::shortage(self, request, room)
    }

    pub(crate) fn validate(&self) {
        crate::pool::validate::validate(self);
    }
}
