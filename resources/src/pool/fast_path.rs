//! The paths of an allocation and a free: through the stream cache, the arena, or the pool's lock.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use millpond_core::{ALLOCATION_ALIGNMENT, DeviceMemoryResource, DevicePtr, Layout, Result, StreamRef};

use crate::block_map::BlockEntry;
use crate::heap::request::{Request, Whose};
use crate::heap::size_class::BlockSize;
use crate::pool::PoolMemoryResource;
use crate::pool::arena::{Arena, Arenas, BatchFree, Shard};
use crate::pool::cache::stream_cache::StreamCache;
use crate::pool::cache::thread_cache::{self, Lease};
use crate::pool::cache::thread_counts::add;
use crate::pool::central::observe::{observe_allocation, observe_free};
use crate::pool::heaps::Reclaim;
use crate::sync::spin_lock::SpinGuard;

impl<R: DeviceMemoryResource> PoolMemoryResource<R> {
    /// Returns the calling thread's stream cache for a stream, if it was used recently and may be used now.
    #[inline(always)]
    fn stream_cache(&self, stream: StreamRef) -> Option<&StreamCache> {
        let stream_cache = thread_cache::stream_cache(self.id, stream.id())?;
        // SAFETY: this thread's cache of this pool holds the stream cache until the thread adds another one,
        // which no call does while it uses this one.
        let stream_cache = unsafe { &*stream_cache };
        (!stream_cache.stream.is_record_requested() && !self.central.health.is_lost()).then_some(stream_cache)
    }

    /// Allocates a block of this size for a request.
    #[inline(always)]
    pub(crate) fn allocate_block(
        &self,
        layout: Layout,
        stream: StreamRef,
        size: BlockSize,
    ) -> Result<DevicePtr> {
        observe_allocation!(
            self,
            layout,
            stream,
            match self.stream_cache(stream) {
                Some(stream_cache) => match self.pop(stream_cache, layout, size) {
                    Some(ptr) => Ok(ptr),
                    None => self.allocate_past_cache(stream_cache, layout, stream),
                },
                None => self.allocate_without_cache(layout, stream),
            }
        )
    }

    /// Frees a block of this size.
    #[inline(always)]
    pub(crate) fn deallocate_block(
        &self,
        ptr: DevicePtr,
        layout: Layout,
        stream: StreamRef,
        size: BlockSize,
    ) {
        observe_free!(
            self,
            ptr,
            stream,
            match self.stream_cache(stream) {
                Some(stream_cache) => self.deallocate_through_cache(stream_cache, ptr, layout, stream, size),
                None => self.deallocate_without_cache(ptr, layout, stream),
            }
        );
    }

    /// Allocates from the calling thread's stream cache alone.
    #[inline]
    pub(crate) fn allocate_from_cache(&self, layout: Layout, stream: StreamRef) -> Option<DevicePtr> {
        let size = BlockSize::of(layout.bytes());
        observe_allocation!(self, layout, stream, self.pop(self.stream_cache(stream)?, layout, size))
    }

    /// Frees a block to the calling thread's stream cache, if that takes it without an eviction; returns
    /// whether it did.
    #[inline]
    pub(crate) fn deallocate_to_cache(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) -> bool {
        let Some(stream_cache) = self.stream_cache(stream) else { return false };
        let Some(entry) = self.shared.block_map.find(ptr.address()) else { return false };
        let bytes = layout.bytes();
        let is_free = self.push(stream_cache, ptr, entry, bytes, BlockSize::of(bytes))
            || (!stream_cache.has_large()
                && !stream_cache.thread.frees_for_limits().1
                && self.push_large(stream_cache, ptr, entry, bytes));
        if is_free {
            // The block is in the cache, so no heap has changed.
            observe_free!(self, ptr, stream, ());
        }
        is_free
    }

    /// Allocates a block from the stream cache.
    #[inline(always)]
    fn pop(&self, stream_cache: &StreamCache, layout: Layout, size: BlockSize) -> Option<DevicePtr> {
        let bytes = layout.bytes();
        if layout.alignment() > ALLOCATION_ALIGNMENT || bytes == 0 {
            return None;
        }
        let cached = stream_cache.pop(bytes, size)?;
        if cached.exceeds_quota {
            self.shared.thread_caches.acquire_quota(&stream_cache.thread);
        }
        cached.entry.set_requested(bytes);
        Some(DevicePtr::new(cached.addr))
    }

    /// Frees a small block to the stream cache, within the cache limits; returns whether it did.
    #[inline(always)]
    fn push(
        &self,
        stream_cache: &StreamCache,
        ptr: DevicePtr,
        entry: &BlockEntry,
        bytes: u64,
        size: BlockSize,
    ) -> bool {
        if !size.is_small() || !entry.is_cacheable(bytes) {
            return false;
        }
        let room = self.shared.limits.max_cached_bytes.load(Ordering::Relaxed);
        let fits = stream_cache.thread.small_bytes_held() + size.bytes <= room;
        let class_room = self.shared.limits.max_class_bytes.load(Ordering::Relaxed);
        fits && stream_cache.push(ptr.address(), bytes, size, entry, class_room)
    }

    /// Frees a large block to the stream cache, and evicts the previous one; returns whether it did.
    fn push_large(&self, stream_cache: &StreamCache, ptr: DevicePtr, entry: &BlockEntry, bytes: u64) -> bool {
        let most = self.shared.limits.max_large_block.load(Ordering::Relaxed);
        let size = self.shared.block_size(bytes);
        if bytes == 0 || size.is_small() || size.bytes > most || !entry.is_cacheable(bytes) {
            return false;
        }
        let evicted = stream_cache.evict_large();
        if let Some(entry) = evicted {
            self.central.with_heaps(|heaps| _ = heaps.free_cached(entry, &stream_cache.stream));
        }
        stream_cache.push_large(ptr.address(), bytes, size.bytes, entry);
        self.central.trace_eviction(stream_cache.id, evicted.is_some().into());
        true
    }

    /// Allocates a small block from the thread's arena.
    fn take_in_arena(&self, stream_cache: &StreamCache, layout: Layout) -> Option<DevicePtr> {
        let bytes = layout.bytes();
        let most = self.shared.max_arena_block();
        if bytes == 0 || bytes > most || layout.alignment() > ALLOCATION_ALIGNMENT {
            return None;
        }
        let request = Request { bytes: self.shared.block_bytes(bytes), ..Request::new(layout)? };
        let thread = &stream_cache.thread;
        thread.begin_allocation(request.bytes);
        let (shard, mut arena) = self.lock_arena(stream_cache);
        let whose = Whose::OwnOrUnowned { owner: stream_cache.stream.owner, is_own_first: false };
        let Some(taken) = self.shared.take(shard, &mut arena, whose, &request) else {
            thread.cancel_allocation(request.bytes);
            return None;
        };
        drop(arena);
        self.shared.note_block(request.bytes);
        add(if taken.was_unowned { &thread.completed } else { &thread.own_stream }, 1);
        thread.end_allocation(request.bytes, layout.bytes());
        if thread.exceeds_quota() {
            self.shared.thread_caches.acquire_quota(thread);
        }
        Some(taken.ptr())
    }

    /// Locks the thread's arena. The thread first moves to another arena if it contends with other threads,
    /// or if it is new and threads contend already.
    fn lock_arena(&self, stream_cache: &StreamCache) -> (Shard, SpinGuard<'_, Arena>) {
        let (arenas, contention) = (&self.shared.arenas, &stream_cache.thread.contention);
        let mut shard = stream_cache.thread.shard.load(Ordering::Relaxed);
        if contention.is_first() && arenas.are_contended() {
            shard = self.move_from(shard, stream_cache);
        }
        let mut arena = arenas.try_lock(shard).unwrap_or_else(|| {
            contention.found_locked();
            arenas.lock(shard)
        });
        let taker = ptr::from_ref(&*stream_cache.thread).addr();
        let was_others = std::mem::replace(&mut arena.taker, taker) != taker;
        if !contention.should_move(was_others) {
            return (shard, arena);
        }
        drop(arena);
        let shard = self.move_from(shard, stream_cache);
        let mut arena = arenas.lock(shard);
        arena.taker = taker;
        (shard, arena)
    }

    /// Moves the thread to an arena that fewer threads use, if there is one.
    #[cold]
    fn move_from(&self, shard: Shard, stream_cache: &StreamCache) -> Shard {
        let shard = self.shared.arenas.next(shard, &self.shared.thread_caches.users_of_arenas());
        stream_cache.thread.shard.store(shard, Ordering::Relaxed);
        shard
    }

    /// Returns the calling thread's stream cache for a stream, if it may be used now. Creates it if the
    /// stream is used often.
    fn stream_cache_or_new(&self, thread_cache: &Lease, stream: StreamRef) -> Option<&StreamCache> {
        if !thread_cache.is_permanent() || self.central.checked.is_some() {
            return None;
        }
        let stream_cache = self.stream_cache_of(thread_cache, stream)?;
        // SAFETY: as in `stream_cache`; this call adds no stream cache from here on.
        let stream_cache = unsafe { &*stream_cache };
        (!stream_cache.stream.is_record_requested() && !self.central.health.is_lost()).then_some(stream_cache)
    }

    /// Allocates from the arena, or under the pool's lock, after the stream cache had no block.
    #[inline(never)]
    fn allocate_past_cache(
        &self,
        stream_cache: &StreamCache,
        layout: Layout,
        stream: StreamRef,
    ) -> Result<DevicePtr> {
        if let Some(ptr) = self.take_in_arena(stream_cache, layout) {
            return Ok(ptr);
        }
        // The cached block may be large enough, or may join a free neighbour.
        let is_large = layout.bytes() > 0 && !self.shared.block_size(layout.bytes()).is_small();
        let evicted = if is_large { stream_cache.evict_large() } else { None };
        let shard = stream_cache.thread.shard.load(Ordering::Relaxed);
        let ptr = self
            .central
            .allocate(layout, stream, shard, Some(&stream_cache.stream), evicted)
            .map_err(|error| self.failed(error))?;
        if !ptr.is_null() {
            self.shared.count_allocation(&stream_cache.thread, layout.bytes());
        }
        Ok(ptr)
    }

    /// Allocates if the stream cache was not used recently, or does not exist.
    #[inline(never)]
    fn allocate_without_cache(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        if self.central.is_copy() {
            return Err(self.failed(self.central.lost_error().for_request(layout, stream)));
        }
        let thread_cache = self.shared.thread_caches.my_cache(self.id);
        if let Some(stream_cache) = self.stream_cache_or_new(&thread_cache, stream) {
            return self
                .pop(stream_cache, layout, self.shared.block_size(layout.bytes()))
                .map_or_else(|| self.allocate_past_cache(stream_cache, layout, stream), Ok);
        }
        let shard = thread_cache.counts.shard.load(Ordering::Relaxed);
        let ptr =
            self.central.allocate(layout, stream, shard, None, None).map_err(|error| self.failed(error))?;
        if !ptr.is_null() {
            self.shared.count_allocation(&thread_cache.counts, layout.bytes());
            if let Some(checked) = &self.central.checked {
                checked.allocated(ptr, layout.bytes(), stream);
            }
        }
        Ok(ptr)
    }

    /// Frees a block that the stream cache did not take as a small one.
    #[inline(never)]
    fn deallocate_past_cache(
        &self,
        stream_cache: &StreamCache,
        ptr: DevicePtr,
        entry: Option<&BlockEntry>,
        layout: Layout,
        stream: StreamRef,
    ) {
        let bytes = layout.bytes();
        if stream_cache.thread.are_limits_due() {
            self.central.with_heaps(|heaps| heaps.set_cache_limits());
        }
        let free = |entry| {
            self.push_large(stream_cache, ptr, entry, bytes)
                || self.free_past_cache(stream_cache, entry, bytes)
        };
        if ptr.is_null() || entry.is_some_and(free) {
            return;
        }
        if self.central.deallocate(ptr, layout, stream, self) {
            self.shared.count_free(&stream_cache.thread, bytes);
        }
    }

    /// Frees a block if the stream cache was not used recently, or does not exist.
    #[inline(never)]
    fn deallocate_without_cache(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        // In a forked child, a thread that no longer exists may hold the lock.
        if self.central.is_copy() {
            return;
        }
        let thread_cache = self.shared.thread_caches.my_cache(self.id);
        if let Some(stream_cache) = self.stream_cache_or_new(&thread_cache, stream) {
            let size = self.shared.block_size(layout.bytes());
            return self.deallocate_through_cache(stream_cache, ptr, layout, stream, size);
        }
        if let Some(checked) = &self.central.checked {
            checked.freed(ptr, layout.bytes(), stream);
        }
        if self.central.deallocate(ptr, layout, stream, self) {
            self.shared.count_free(&thread_cache.counts, layout.bytes());
        }
    }

    /// Frees a block on a stream for which the thread has a stream cache.
    #[inline(always)]
    fn deallocate_through_cache(
        &self,
        stream_cache: &StreamCache,
        ptr: DevicePtr,
        layout: Layout,
        stream: StreamRef,
        size: BlockSize,
    ) {
        let entry = self.shared.block_map.find(ptr.address());
        if !entry.is_some_and(|entry| self.push(stream_cache, ptr, entry, layout.bytes(), size)) {
            self.deallocate_past_cache(stream_cache, ptr, entry, layout, stream);
        }
    }

    /// Frees a block to its heap, if it is in use with this size; returns whether it was.
    fn free_past_cache(&self, stream_cache: &StreamCache, entry: &BlockEntry, bytes: u64) -> bool {
        if bytes == 0 || !self.shared.claim(entry, bytes) {
            return false;
        }
        self.shared.count_free(&stream_cache.thread, bytes);
        match Arenas::shard(entry.block().0) {
            Some(_) => {
                add(&stream_cache.thread.freed_to_arena, 1);
                self.free_to_arena(stream_cache, entry, bytes);
            }
            None => self.central.with_heaps(|heaps| _ = heaps.free_cached(entry, &stream_cache.stream)),
        }
        true
    }

    /// Frees a small block to its arena, together with half of the stream cache's blocks of that size.
    fn free_to_arena(&self, stream_cache: &StreamCache, entry: &BlockEntry, bytes: u64) {
        let (owner, epoch) = (stream_cache.stream.owner, stream_cache.stream.epoch());
        let mut batch = BatchFree::new(&self.shared.arenas);
        batch.free(entry, owner, epoch);
        let (mut large, mut evicted) = (Vec::new(), 0);
        let size = self.shared.block_size(bytes);
        if size.is_small() {
            stream_cache.evict_half(size, |entry| {
                evicted += 1;
                large.extend(batch.free(entry, owner, epoch));
            });
        }
        let has_excess = batch.has_excess();
        drop(batch);
        if has_excess || !large.is_empty() {
            self.central.with_heaps(|heaps| {
                large.iter().for_each(|chunk| heaps.store.free(*chunk, owner, epoch));
                heaps.take_spans_back();
            });
        }
        self.central.trace_eviction(stream_cache.id, evicted);
    }

    /// Returns the thread's stream cache for a stream; creates it if the stream is used often.
    fn stream_cache_of(&self, thread_cache: &Lease, stream: StreamRef) -> Option<*const StreamCache> {
        if let Some(stream_cache) = thread_cache.stream_cache(self.id, stream.id()) {
            return Some(stream_cache);
        }
        let cell = self.central.stream_cell(stream)?;
        let stream_cache = StreamCache::new(stream.id(), cell, Arc::clone(&thread_cache.counts));
        let (stream_cache, replaced) = thread_cache.add(self.id, stream_cache);
        let flushed = self.central.with_heaps(|heaps| {
            replaced.iter().for_each(|stream_cache| _ = heaps.flush(stream_cache, Reclaim::All));
            std::mem::take(&mut heaps.flushed)
        });
        self.central.trace_flush(flushed);
        Some(stream_cache)
    }
}

#[cfg(test)]
mod tests {
    use millpond_core::DeviceMemoryResourceExt;
    use millpond_core::driver::StreamFlags;
    use millpond_driver::sim::{SimConfig, SimDevice};

    use super::*;
    use crate::pool::cache::thread_cache::MAX_STREAM_CACHES;
    use crate::stream_order::ANY_STREAM;
    use crate::{CudaMemoryResource, PagesMode, PoolLayer};

    /// The largest block of an arena comes from there without the pool's lock, and a larger one does not.
    #[test]
    fn blocks_up_to_the_largest_come_from_the_arena() {
        let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
        let pool = cuda.layer(PoolLayer::new().pages(PagesMode::Off)).expect("an empty pool");
        let most = pool.shared.max_arena_block();
        let blocks = [(); 6].map(|()| pool.allocate_bytes(most, StreamRef::LEGACY).expect("there is room"));
        // A span holds two blocks, and the other block keeps the span.
        for ptr in blocks.into_iter().step_by(2) {
            // SAFETY: the block came from the pool with this size and is freed once.
            unsafe { pool.deallocate_bytes(ptr, most, StreamRef::LEGACY) };
        }
        pool.central.with_heaps(|heaps| _ = heaps.reclaim(None, Reclaim::Everything));
        let stream_cache = pool.stream_cache(StreamRef::LEGACY).expect("the stream is used often");
        let from_arena = |bytes, alignment| {
            let layout = Layout::with_alignment(bytes, alignment).expect("a power of two");
            pool.take_in_arena(stream_cache, layout).is_some()
        };
        let free: u64 = pool.shared.arenas.each().map(|(_, arena)| arena.heap.bytes_free).sum();
        assert!(free >= 2 * most, "only {free} bytes are free in arenas");
        assert!(from_arena(most, 256) && from_arena(most - 256, 256) && from_arena(1, 256));
        assert!(!from_arena(most + 1, 256) && !from_arena(1, 512) && !from_arena(0, 256));
        pool.validate();
    }

    fn pool(pages: PagesMode) -> PoolMemoryResource<CudaMemoryResource> {
        let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
        cuda.layer(PoolLayer::new().pages(pages)).expect("an empty pool")
    }

    /// Blocks of this size, after enough calls for the stream to have a cache.
    fn blocks<const N: usize>(pool: &PoolMemoryResource<CudaMemoryResource>, bytes: u64) -> [DevicePtr; N] {
        let warm = [(); 8].map(|()| pool.allocate_bytes(256, StreamRef::LEGACY).expect("there is room"));
        // SAFETY: the blocks came from the pool with this size and are freed once.
        warm.into_iter().for_each(|ptr| unsafe { pool.deallocate_bytes(ptr, 256, StreamRef::LEGACY) });
        [(); N].map(|()| pool.allocate_bytes(bytes, StreamRef::LEGACY).expect("there is room"))
    }

    /// A free to the cache alone evicts no block, since the caller may hold a lock that an eviction needs.
    #[test]
    fn a_free_to_the_cache_takes_a_large_block_only_into_an_empty_place() {
        const BYTES: u64 = 3 << 20;
        let pool = pool(PagesMode::On);
        let [first, second] = blocks(&pool, BYTES);
        let layout = Layout::new(BYTES);
        assert!(pool.deallocate_to_cache(first, layout, StreamRef::LEGACY));
        assert!(!pool.deallocate_to_cache(second, layout, StreamRef::LEGACY), "the first is there");
        assert_eq!(pool.allocate_from_cache(layout, StreamRef::LEGACY), Some(first));
        assert_eq!(pool.allocate_from_cache(layout, StreamRef::LEGACY), None);
        assert!(pool.deallocate_to_cache(second, layout, StreamRef::LEGACY));
        assert_eq!(pool.allocate_from_cache(layout, StreamRef::LEGACY), Some(second));
        pool.validate();
    }

    /// A block is not cached if it is larger than the limit, or if it is freed with a wrong size.
    #[test]
    fn only_a_block_within_the_limit_becomes_the_last_large_one() {
        const BYTES: u64 = 3 << 20;
        let pool = pool(PagesMode::On);
        let [ptr] = blocks(&pool, BYTES);
        let stream_cache = pool.stream_cache(StreamRef::LEGACY).expect("the stream is used often");
        let entry = pool.shared.block_map.find(ptr.address()).expect("the block is there");
        let is_cached = |most, bytes| {
            pool.shared.limits.max_large_block.store(most, Ordering::Relaxed);
            pool.push_large(stream_cache, ptr, entry, bytes)
        };
        assert!(!is_cached(BYTES - 1, BYTES), "it is larger than the limit");
        assert!(!is_cached(u64::MAX, BYTES + 1) && !is_cached(u64::MAX, 0) && !is_cached(u64::MAX, 256));
        assert!(!stream_cache.has_large());
        assert!(is_cached(BYTES, BYTES));
        pool.validate();
    }

    /// An arena's block counts as the stream's own if the stream freed it, and as completed if it is unowned.
    #[test]
    fn blocks_from_arenas_count_by_their_owner() {
        const BYTES: u64 = 64 << 10;
        let pool = pool(PagesMode::Off);
        for ptr in blocks::<4>(&pool, BYTES).into_iter().step_by(2) {
            // SAFETY: the block came from the pool with this size and is freed once.
            unsafe { pool.deallocate_bytes(ptr, BYTES, StreamRef::LEGACY) };
        }
        let stream_cache = pool.stream_cache(StreamRef::LEGACY).expect("the stream is used often");
        let owner = stream_cache.stream.owner;
        let counted = || {
            let totals = pool.central.with_heaps(|heaps| heaps.totals());
            (totals.ladder.own_stream, totals.ladder.completed)
        };
        let (own_stream, completed) = counted();
        let of_owner = |owner| {
            pool.central.with_heaps(|heaps| {
                _ = heaps.reclaim(None, Reclaim::Everything);
                for from in [stream_cache.stream.owner, ANY_STREAM] {
                    let moves = |(_, mut arena): (_, SpinGuard<'_, Arena>)| {
                        arena.heap.migrate(from, u64::MAX, owner, 0);
                    };
                    heaps.shared.arenas.each().for_each(moves);
                    heaps.store.migrate(from, u64::MAX, owner, 0);
                }
            });
            assert!(pool.take_in_arena(stream_cache, Layout::new(BYTES)).is_some());
        };
        of_owner(owner);
        assert_eq!(counted(), (own_stream + 1, completed));
        of_owner(ANY_STREAM);
        assert_eq!(counted(), (own_stream + 1, completed + 1));
        pool.validate();
    }

    /// A thread that moves uses the arena it moved to from then on.
    #[test]
    fn a_thread_that_moves_takes_from_another_arena() {
        const BYTES: u64 = 64 << 10;
        let pool = pool(PagesMode::Off);
        let [_] = blocks(&pool, BYTES);
        let stream_cache = pool.stream_cache(StreamRef::LEGACY).expect("the stream is used often");
        let shard = || stream_cache.thread.shard.load(Ordering::Relaxed);
        assert_eq!((pool.move_from(0, stream_cache), shard()), (0, 0), "the thread is alone");
        let _other = pool.shared.thread_caches.unused_cache();
        assert_eq!((pool.move_from(0, stream_cache), shard()), (1, 1));
        let reserved = |shard| pool.shared.arenas.lock(shard).heap.bytes_reserved;
        let (first, second) = (reserved(0), reserved(1));
        for _ in 0..64 {
            pool.allocate_bytes(BYTES, StreamRef::LEGACY).expect("there is room");
        }
        assert_eq!((reserved(0), second), (first, 0));
        assert!(reserved(1) >= 64 * BYTES);
        pool.validate();
    }

    /// Blocks freed past the cache leave no free spans in an arena that is half free.
    #[test]
    fn frees_past_the_cache_return_free_spans() {
        const BYTES: u64 = 64 << 10;
        let pool = pool(PagesMode::Off);
        let blocks: [DevicePtr; 256] = blocks(&pool, BYTES);
        let arena = || pool.shared.arenas.lock(0);
        let before = arena().heap.bytes_reserved;
        pool.shared.limits.max_cached_bytes.store(0, Ordering::Relaxed);
        for ptr in blocks {
            // SAFETY: the block came from the pool with this size and is freed once.
            unsafe { pool.deallocate_bytes(ptr, BYTES, StreamRef::LEGACY) };
            assert!(!arena().has_excess());
        }
        assert!(arena().heap.bytes_reserved < before / 2);
        pool.validate();
    }

    /// Once a request has found a size class empty, later requests skip it. Other classes stay.
    #[test]
    fn a_size_class_is_forgotten_once_it_was_found_empty() {
        const SIZES: [u64; 3] = [1024, 4096, 16384];
        let pool = pool(PagesMode::Off);
        let of_size = SIZES.map(|bytes| blocks::<2>(&pool, bytes));
        let stream_cache = pool.stream_cache(StreamRef::LEGACY).expect("the stream is used often");
        let filled =
            || SIZES.map(|bytes| stream_cache.filled_classes().contains(&BlockSize::of(bytes).class()));
        assert_eq!(filled(), [false; 3]);
        for (ptr, bytes) in of_size.iter().zip(SIZES).flat_map(|(ptrs, bytes)| ptrs.map(|ptr| (ptr, bytes))) {
            assert!(pool.deallocate_to_cache(ptr, Layout::new(bytes), StreamRef::LEGACY));
        }
        let all = stream_cache.filled_classes().len();
        assert_eq!(filled(), [true; 3]);
        let take = || pool.allocate_from_cache(Layout::new(SIZES[1]), StreamRef::LEGACY);
        for left in [1, 0] {
            assert!(take().is_some(), "{left} are left");
            assert_eq!(filled(), [true; 3]);
        }
        assert!(take().is_none());
        assert_eq!((filled(), stream_cache.filled_classes().len()), ([true, false, true], all - 1));
        assert!(take().is_none());
        pool.validate();
    }

    /// A thread that needs too many stream caches does not find the ones that it gave up.
    #[test]
    fn stream_caches_that_are_given_up_are_not_found() {
        let pool = pool(PagesMode::Off);
        let flags = StreamFlags::NON_BLOCKING;
        let stream = |_| pool.driver().stream_create(flags).expect("a stream");
        let streams: Vec<StreamRef> = (0..=MAX_STREAM_CACHES).map(stream).collect();
        let lease = pool.shared.thread_caches.my_cache(pool.id);
        let found = || streams.iter().filter(|stream| pool.stream_cache(**stream).is_some()).count();
        for stream in &streams[..MAX_STREAM_CACHES] {
            let made = (0..8).find_map(|_| pool.stream_cache_of(&lease, *stream));
            assert!(made.is_some(), "the stream is used often");
        }
        // Under Miri, the table is small.
        let part = if cfg!(miri) { 4 } else { 2 };
        assert!(found() > MAX_STREAM_CACHES / part, "most are found without a lock");
        assert!((0..8).find_map(|_| pool.stream_cache_of(&lease, streams[MAX_STREAM_CACHES])).is_some());
        assert_eq!((found(), lease.stream_cache_count()), (1, 1));
        pool.validate();
    }
}
