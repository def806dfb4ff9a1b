//! The pool: best fit with coalescing over regions from upstream, in stream order.
//!
//! ```text
//!  a thread's call on a stream
//!    │ 1  stream cache    blocks of this size that the stream gave back on this thread   no lock   stream cache, thread
//!    │ 2  arena    small blocks, in spans                                         its lock  arena, heap
//!    │ 3  core     large blocks and spans; the reuse ladder between streams       one lock  heaps, ordered
//!    ▼ 4  upstream, or pages that the pool maps itself                             no lock   large, pages
//!
//!  region from upstream ┌────────┬──────────────┬─────┬─────────────┐
//!                       │ in use │ free: A      │ span│ free: anyone│   chunks, in address order
//!                       └────────┴──────────────┴──│──┴─────────────┘
//!                          A's free chunks by size │ ──▶ bins of A
//!                                                  └ a heap of its own, of small chunks
//! ```
//!
//! Read it in this order: [`PoolMemoryResource`], which is the way of a call; `stream_cache` and `thread`;
//! `heap`, with `chunk` and `bins` below it; `arena` and `heaps`; `block_map` (address to block);
//! [`central`](crate::pool::central) (for whom blocks are free); `keep` (how much stream caches may keep),
//! `decay` (what goes back while the pool is idle), `shortage` (what would have helped, where memory is out).
//!
//! A block that is given back goes to the stream cache first, where neighbours do not join. Before the pool
//! takes more memory, everything is reclaimed: stream caches are flushed, neighbours join, and whole spans go
//! back to the core. (For a small request, from its own arena only, unless memory is short. Where threads
//! meet, what they keep is left to them unless it is much.)

pub(crate) mod arena;
pub(crate) mod cache;
pub(crate) mod central;
mod decay;
mod diagnose;
mod exact_size;
mod handle;
mod heaps;
mod oom_advice;
mod oom_map;
mod options;
mod peers;
pub(crate) mod protocol;
mod reclaim;
mod slack;
mod task;
#[cfg(test)]
mod tests;
mod validate;

use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond_core::{
    ALLOCATION_ALIGNMENT, DeviceId, DeviceMemoryResource, DevicePtr, DriverHandle, Error, ErrorKind, Layout,
    LiveBlock, MemoryInfo, ResourceStatistics, Result, StreamRef, Traits, is_same,
};

#[cfg(unix)]
pub(crate) use crate::backing::paged::Part;
pub use crate::pool::decay::Decay;
pub use crate::pool::handle::Pool;
pub(crate) use crate::pool::heaps::{FixedBlocks, Heaps};
pub(crate) use crate::pool::options::ENTRY;
pub use crate::pool::options::{PagesMode, PoolLayer, PoolOptions};
pub use crate::pool::peers::{PeerList, Peers, Share};
pub use crate::pool::slack::Slack;
pub(crate) use crate::pool::task::Task;

use crate::block_map::BlockEntry;
use crate::heap::request::Request;
use crate::heap::size_class::BlockSize;
use crate::pool::arena::{Arena, Arenas, Shard, Visit};
use crate::pool::cache::stream_cache::{StreamCache, add};
use crate::pool::cache::thread_cache::{self, Lease, PoolId};
use crate::pool::central::Central;
use crate::pool::decay::{DecayHandle, PoolDecay};
use crate::pool::heaps::Shared;
use crate::pool::protocol::Reclaim;
use crate::process;
use crate::stream_order::ANY_STREAM;
use crate::sync::spin_lock::SpinGuard;

/// A pool: takes large regions from upstream and hands out blocks of them, in stream order.
///
/// A block freed on a stream is had again by that stream without any driver call. What happens when the
/// stream has none that fits is in [`central`](crate::pool::central). The pool starts with
/// [`initial_bytes`](PoolOptions::initial_bytes) and grows in regions that double, up to an eighth of what it
/// holds; where upstream refuses, it asks for less, down to the request itself. Regions that are free from
/// end to end go back on [`trim`](DeviceMemoryResource::trim), and by themselves before the pool is out of
/// memory.
///
/// Requests are rounded up to 256 bytes, those between 16 KiB and 1 MiB to one of 32 sizes to a power of two
/// (at most 3.1 % more). A pointer that is not the start of a block
/// in use, or a layout of another size, is refused.
///
/// Graphs that are captured meanwhile, on whatever thread, stay valid. But a block that is given back during
/// the capture of a graph may be handed out again, and the graph writes to it at each launch: see "Captured
/// graphs" of [`DeviceMemoryResource`].
///
/// ```
/// use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::{CudaMemoryResource, PoolLayer};
///
/// let device = SimDevice::new(SimConfig::h200());
/// let pool = CudaMemoryResource::new(device).layer(PoolLayer::new().initial_bytes(64 << 20))?;
/// let ptr = pool.allocate_bytes(1000, StreamRef::LEGACY)?;
/// // SAFETY: the block came from this pool with this size, and nothing uses it.
/// unsafe { pool.deallocate_bytes(ptr, 1000, StreamRef::LEGACY) };
/// assert_eq!(pool.allocate_bytes(900, StreamRef::LEGACY)?, ptr); // the same block again
/// assert_eq!(pool.to_string(), "cuda+pool:initial=64MiB");
/// # Ok::<(), millpond_core::Error>(())
/// ```
#[derive(Debug)]
pub struct PoolMemoryResource<R: DeviceMemoryResource> {
    id: PoolId,
    shared: Arc<Shared>,
    central: Central<R>,
    options: PoolOptions,
    /// The layer as text.
    layer: String,
    /// Dropped last: then its thread makes no more calls.
    decay: Option<DecayHandle>,
}

impl<R: DeviceMemoryResource> PoolMemoryResource<R> {
    /// A pool over `upstream`.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the initial size exceeds the
    /// maximum, or the maximum exceeds the device and upstream is not managed memory;
    /// [`OutOfMemory`](millpond_core::ErrorKind::OutOfMemory) if the initial size cannot be had; what the
    /// driver reports.
    pub fn new(upstream: R, options: PoolOptions) -> Result<Self> {
        let options = options.checked(&upstream)?;
        let layer = format!("pool{options}");
        Self::build(upstream, options, None, layer)
    }

    /// A pool of `fixed` blocks, or of blocks of all sizes, that is called `layer`.
    pub(crate) fn build(
        upstream: R,
        options: PoolOptions,
        fixed: Option<FixedBlocks>,
        layer: String,
    ) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let pages = options.pages_over(&upstream)?;
        let backing = options.backing(&**upstream.driver(), pages.is_some())?;
        let total = PoolOptions::device_total(&upstream)?;
        let mut heaps = Heaps::new(options.maximum_bytes, pages, total, options.slack, fixed);
        heaps.large.set_backing(backing);
        let shared = Arc::clone(&heaps.shared);
        let central = Central::new(upstream, heaps, options.reuse, &layer);
        let time = options.decay.time()?.filter(|_| central.maps_pages());
        let decay = time
            .map(|time| {
                PoolDecay::new(central.core(), &shared, central.driver(), time, options.initial_bytes)
            })
            .map(DecayHandle::new);
        let pool = Self { id: NEXT.fetch_add(1, Ordering::Relaxed), shared, central, options, layer, decay };
        if options.initial_bytes > 0 {
            let what =
                if fixed.is_some() { "taking the first blocks" } else { "taking the pool's initial size" };
            pool.central.reserve(options.initial_bytes).map_err(|error| error.context(what))?;
        }
        Ok(pool)
    }

    /// Bytes held from upstream, in use and free.
    pub fn pool_bytes(&self) -> u64 {
        self.central.inspect(|heaps| heaps.large.bytes_reserved())
    }

    /// How many streams the pool knows; those without free blocks are forgotten as others come.
    pub fn known_streams(&self) -> usize {
        self.central.streams()
    }

    /// Whether the pool maps physical memory itself: see [`PagesMode`].
    pub fn maps_pages(&self) -> bool {
        self.central.maps_pages()
    }

    /// The other devices that may use the pool's memory because the pool says so; see [`Peers`]. Memory of a
    /// pool that [maps no pages](Self::maps_pages) is plain memory, which others may use once they enabled
    /// peer access.
    pub fn peers(&self) -> Vec<DeviceId> {
        self.central.inspect(|heaps| heaps.large.peers())
    }

    /// Lets another device use the pool's memory: what is mapped now, and what will be. Takes about as long
    /// as `cuMemSetAccess` for each handle that the pool has.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) for a device that cannot use this one's
    /// memory; [`Unsupported`](millpond_core::ErrorKind::Unsupported) where the pool maps no pages; what the
    /// driver reports.
    pub fn add_peer(&self, device: DeviceId) -> Result<()> {
        let driver = self.central.driver();
        let add = || {
            if !self.maps_pages() {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "the pool maps no pages, so its memory is plain memory; enable peer access in the other \
                     device's context instead (cuCtxEnablePeerAccess, cudaDeviceEnablePeerAccess)",
                ));
            }
            if device == driver.device() {
                return Ok(());
            }
            peers::check(device, &**driver)?;
            self.central.add_peer(device)
        };
        add().map_err(|error| error.in_stack(self))
    }

    /// A block that is handed out, for another process: see [`share`](crate::share). `bytes` is what was
    /// asked for.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) for what is no block of this pool that
    /// is handed out with that many bytes; [`Unsupported`](millpond_core::ErrorKind::Unsupported) where the
    /// pool was not built with [`Share::Fd`]; what the driver reports.
    #[cfg(unix)]
    pub fn export_block(&self, ptr: DevicePtr, bytes: u64) -> Result<crate::share::ExportedBlock> {
        let export = || {
            if self.options.share != Share::Fd {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "the pool's memory was not made to be exported; build it with share=fd",
                ));
            }
            let entry = self.shared.block_map.find(ptr.address());
            if bytes == 0 || entry.is_none_or(|entry| entry.requested() != bytes) {
                return Err(Error::invalid_argument(format!(
                    "{ptr} is no block of {bytes} bytes that this pool handed out; pass what `allocate` was \
                     asked for and returned"
                )));
            }
            let parts = self.central.inspect(|heaps| heaps.large.physical_of(ptr.address(), bytes));
            crate::share::ExportedBlock::new(self.central.driver(), &parts)
        };
        export().map_err(|error| error.in_stack(self))
    }

    /// Gives all regions back to upstream that are free from end to end, and returns their bytes. For a
    /// request on a stream that captures a graph, only those that are known to be done.
    pub(crate) fn release_regions(&self, request: Option<StreamRef>) -> Result<u64> {
        let may_wait = match request {
            Some(stream) => !self.central.is_capturing(stream)?,
            None => true,
        };
        self.central.release_regions(0, may_wait).map_err(|error| error.in_stack(self))
    }

    /// The blocks that are handed out of the region that starts at `base`, if one does.
    pub(crate) fn live_in(&self, base: u64) -> Option<Vec<LiveBlock>> {
        self.central.inspect(|heaps| heaps.live_in(base))
    }

    /// The options, rounded.
    pub fn options(&self) -> PoolOptions {
        self.options
    }

    /// Gives memory back that was not needed lately, as the pool's [`Decay`] says; `now` is the time since
    /// any moment, the same at each call. Says how many bytes went back. Nothing waits for the device.
    ///
    /// On a real device a thread of the library makes these steps, by its own clock. On a simulated one
    /// nobody does but the caller. A step that comes sooner than a sixteenth of the decay's time after the
    /// last one does nothing.
    ///
    /// # Errors
    /// What the driver reports. What went back before the error stays given back.
    pub fn decay_step(&self, now: Duration) -> Result<u64> {
        let step = |decay: &DecayHandle| decay.decay().step(now).map_err(|error| error.in_stack(self));
        self.decay.as_ref().map_or(Ok(0), step)
    }

    /// Walks the whole structure, in time proportional to its size, and checks the invariants of
    /// docs/INVARIANTS.md. Call it while no other thread is in a call of the pool: what threads do without a
    /// lock would look like a mistake.
    ///
    /// # Panics
    /// Where an invariant does not hold: that is a bug of the pool.
    pub fn validate(&self) {
        self.central.validate();
    }
}

/// The way of a call.
impl<R: DeviceMemoryResource> PoolMemoryResource<R> {
    /// The calling thread's stream cache for a stream, if it was used lately and may be used now.
    #[inline(always)]
    fn stream_cache(&self, stream: StreamRef) -> Option<&StreamCache> {
        let stream_cache = thread_cache::stream_cache(self.id, stream.id())?;
        // SAFETY: the stream cache is in this thread's cache of this pool, where it stays until the thread
        // adds another, which no call does while it has this one.
        let stream_cache = unsafe { &*stream_cache };
        (!stream_cache.stream.is_record_requested() && !self.central.health.is_lost()).then_some(stream_cache)
    }

    /// Hands out a block of this size for the request.
    #[inline(always)]
    pub(crate) fn allocate_block(
        &self,
        layout: Layout,
        stream: StreamRef,
        size: BlockSize,
    ) -> Result<DevicePtr> {
        match self.stream_cache(stream) {
            Some(stream_cache) => match self.pop(stream_cache, layout, size) {
                Some(ptr) => Ok(ptr),
                None => self.allocate_past_cache(stream_cache, layout, stream),
            },
            None => self.allocate_without_cache(layout, stream),
        }
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
        match self.stream_cache(stream) {
            Some(stream_cache) => self.deallocate_through_cache(stream_cache, ptr, layout, stream, size),
            None => self.deallocate_without_cache(ptr, layout, stream),
        }
    }

    /// A block from the stream cache.
    #[inline(always)]
    fn pop(&self, stream_cache: &StreamCache, layout: Layout, size: BlockSize) -> Option<DevicePtr> {
        let bytes = layout.bytes();
        if layout.alignment() > ALLOCATION_ALIGNMENT || bytes == 0 {
            return None;
        }
        let held = stream_cache.pop(bytes, size)?;
        if held.is_beyond {
            self.shared.thread_caches.settle(&stream_cache.thread);
        }
        held.entry.set_requested(bytes);
        Some(DevicePtr::new(held.addr))
    }

    /// Puts a small block into the stream cache, if it is one and there is room.
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
        let room = self.shared.limits.keep_bytes.load(Ordering::Relaxed);
        let fits = stream_cache.thread.small_bytes_held() + size.bytes <= room;
        let class_room = self.shared.limits.keep_of_class.load(Ordering::Relaxed);
        fits && stream_cache.push(ptr.address(), bytes, size, entry, class_room)
    }

    /// Puts a large block into the stream cache; the one before goes back.
    fn push_large(&self, stream_cache: &StreamCache, ptr: DevicePtr, entry: &BlockEntry, bytes: u64) -> bool {
        let most = self.shared.limits.keep_large.load(Ordering::Relaxed);
        let size = self.shared.block_size(bytes);
        if bytes == 0 || size.is_small() || size.bytes > most || !entry.is_cacheable(bytes) {
            return false;
        }
        self.evict_large(stream_cache);
        stream_cache.push_large(ptr.address(), bytes, size.bytes, entry);
        true
    }

    /// Gives the large block that the stream cache has back to all.
    fn evict_large(&self, stream_cache: &StreamCache) {
        if let Some(entry) = stream_cache.evict_large() {
            self.central.with_heaps(|heaps| _ = heaps.free_cached(entry, &stream_cache.stream));
        }
    }

    /// A block from the thread's arena, for a small request.
    fn take_in_arena(&self, stream_cache: &StreamCache, layout: Layout) -> Option<DevicePtr> {
        let bytes = layout.bytes();
        let most = self.shared.largest_in_arena();
        if bytes == 0 || bytes > most || layout.alignment() > ALLOCATION_ALIGNMENT {
            return None;
        }
        let request = Request { bytes: self.shared.block_bytes(bytes), ..Request::new(layout)? };
        let thread = &stream_cache.thread;
        thread.takes(request.bytes);
        let (shard, mut arena) = self.lock_arena(stream_cache);
        let Some(chunk) = arena.heap.find_for(stream_cache.stream.owner, &request, false) else {
            thread.took_none(request.bytes);
            return None;
        };
        let was_unowned = arena.heap.chunk(chunk).owner() == ANY_STREAM;
        let ptr = self.shared.take(shard, &mut arena, chunk, &request);
        drop(arena);
        add(if was_unowned { &thread.completed } else { &thread.own_stream }, 1);
        thread.took(request.bytes, layout.bytes());
        if thread.is_beyond() {
            self.shared.thread_caches.settle(thread);
        }
        Some(ptr)
    }

    /// The thread's arena: another one from now on, if the thread shares it with others at the same time, or
    /// if it is new where threads do.
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
        let me = ptr::from_ref(&*stream_cache.thread).addr();
        let was_others = std::mem::replace(&mut arena.taker, me) != me;
        if !contention.are_contended(was_others) {
            return (shard, arena);
        }
        drop(arena);
        let shard = self.move_from(shard, stream_cache);
        let mut arena = arenas.lock(shard);
        arena.taker = me;
        (shard, arena)
    }

    /// Gives the thread an arena that fewer use, if there is one.
    #[cold]
    fn move_from(&self, shard: Shard, stream_cache: &StreamCache) -> Shard {
        let shard = self.shared.arenas.next(shard, &self.shared.thread_caches.users_of_arenas());
        stream_cache.thread.shard.store(shard, Ordering::Relaxed);
        shard
    }

    /// The calling thread's stream cache for a stream, made when the stream is used often, if it may be used
    /// now.
    fn stream_cache_or_new(&self, thread_cache: &Lease, stream: StreamRef) -> Option<&StreamCache> {
        let stream_cache =
            if thread_cache.is_kept() { self.stream_cache_of(thread_cache, stream)? } else { return None };
        // SAFETY: as in `stream_cache`: this call adds no other from here on.
        let stream_cache = unsafe { &*stream_cache };
        (!stream_cache.stream.is_record_requested() && !self.central.health.is_lost()).then_some(stream_cache)
    }

    /// The way past the stream cache, for a thread that has one.
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
        if !self.shared.block_size(layout.bytes()).is_small() {
            // It may be beside what is free, or serve.
            self.evict_large(stream_cache);
        }
        let shard = stream_cache.thread.shard.load(Ordering::Relaxed);
        let ptr = self
            .central
            .allocate(layout, stream, shard, Some(&stream_cache.stream))
            .map_err(|error| error.in_stack(self))?;
        if !ptr.is_null() {
            self.shared.count(&stream_cache.thread, layout.bytes());
        }
        Ok(ptr)
    }

    #[inline(never)]
    fn allocate_without_cache(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let thread_cache = self.shared.thread_caches.my_cache(self.id);
        if let Some(stream_cache) = self.stream_cache_or_new(&thread_cache, stream) {
            return self
                .pop(stream_cache, layout, self.shared.block_size(layout.bytes()))
                .map_or_else(|| self.allocate_past_cache(stream_cache, layout, stream), Ok);
        }
        let shard = thread_cache.counts.shard.load(Ordering::Relaxed);
        let ptr = self.central.allocate(layout, stream, shard, None).map_err(|error| error.in_stack(self))?;
        if !ptr.is_null() {
            self.shared.count(&thread_cache.counts, layout.bytes());
        }
        Ok(ptr)
    }

    /// The way past the stream cache, for a thread that has one.
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
        if stream_cache.thread.is_time_to_look() {
            self.central.with_heaps(|heaps| heaps.set_cache_limits());
        }
        let is_given = |entry| {
            self.push_large(stream_cache, ptr, entry, bytes)
                || self.free_past_cache(stream_cache, entry, bytes)
        };
        if ptr.is_null() || entry.is_some_and(is_given) {
            return;
        }
        if self.central.deallocate(ptr, layout, stream, self) {
            self.shared.count_back(&stream_cache.thread, bytes);
        }
    }

    #[inline(never)]
    fn deallocate_without_cache(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        if ptr.is_null() {
            return;
        }
        let thread_cache = self.shared.thread_caches.my_cache(self.id);
        if let Some(stream_cache) = self.stream_cache_or_new(&thread_cache, stream) {
            let size = self.shared.block_size(layout.bytes());
            self.deallocate_through_cache(stream_cache, ptr, layout, stream, size);
        } else if self.central.deallocate(ptr, layout, stream, self) {
            self.shared.count_back(&thread_cache.counts, layout.bytes());
        }
    }

    /// The way of a block that is freed on a stream that the thread has a stream cache for.
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

    /// Gives a block back to its heap, if it is handed out with this size.
    fn free_past_cache(&self, stream_cache: &StreamCache, entry: &BlockEntry, bytes: u64) -> bool {
        if bytes == 0 || !self.shared.claim(entry, bytes) {
            return false;
        }
        self.shared.count_back(&stream_cache.thread, bytes);
        match Arenas::shard(entry.block().0) {
            Some(_) => self.free_to_arena(stream_cache, entry, bytes),
            None => self.central.with_heaps(|heaps| _ = heaps.free_cached(entry, &stream_cache.stream)),
        }
        true
    }

    /// Gives a small block back to its arena, and what the stream cache has of the same size: one visit for
    /// many.
    fn free_to_arena(&self, stream_cache: &StreamCache, entry: &BlockEntry, bytes: u64) {
        let (owner, epoch) = (stream_cache.stream.owner, stream_cache.stream.epoch());
        let mut visit = Visit::new(&self.shared.arenas);
        visit.free(entry, owner, epoch);
        let mut large = Vec::new();
        let size = self.shared.block_size(bytes);
        if size.is_small() {
            stream_cache.evict_half(size, |entry| {
                large.extend(visit.free(entry, owner, epoch));
            });
        }
        let has_excess = visit.has_excess();
        drop(visit);
        if has_excess || !large.is_empty() {
            self.central.with_heaps(|heaps| {
                large.iter().for_each(|chunk| heaps.large.free(*chunk, owner, epoch));
                heaps.take_spans_back();
            });
        }
    }

    /// The thread's stream cache for a stream, made when the stream is used often.
    fn stream_cache_of(&self, thread_cache: &Lease, stream: StreamRef) -> Option<*const StreamCache> {
        if let Some(stream_cache) = thread_cache.stream_cache(self.id, stream.id()) {
            return Some(stream_cache);
        }
        let cell = self.central.stream_cell(stream)?;
        let stream_cache = StreamCache::new(stream.id(), cell, Arc::clone(&thread_cache.counts));
        let (stream_cache, others) = thread_cache.add(self.id, stream_cache);
        self.central.with_heaps(|heaps| {
            others.iter().for_each(|stream_cache| _ = heaps.flush(stream_cache, Reclaim::All))
        });
        Some(stream_cache)
    }
}

impl<R: DeviceMemoryResource> Drop for PoolMemoryResource<R> {
    fn drop(&mut self) {
        if self.central.is_copy() {
            return process::leave(&self.shared);
        }
        self.shared.thread_caches.close();
    }
}

impl<R: DeviceMemoryResource> fmt::Display for PoolMemoryResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.central.upstream(), self.layer)
    }
}

// SAFETY: chunks are disjoint pieces of upstream's regions, aligned as asked for (`Heap::take`); a chunk is
// handed to a stream only if it belongs to it, or its owner's work is done or waited for (`Central`); regions
// go back to upstream only when all work on them is done.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for PoolMemoryResource<R> {
    #[inline]
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        self.allocate_block(layout, stream, BlockSize::of(layout.bytes()))
    }

    #[inline]
    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        self.deallocate_block(ptr, layout, stream, BlockSize::of(layout.bytes()));
    }

    fn driver(&self) -> &DriverHandle {
        self.central.driver()
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        Some(self.central.upstream())
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.central.memory_info()
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    fn is_stream_ordered(&self) -> bool {
        true
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        Some(self.central.statistics())
    }

    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        self.central.trim(keep_bytes).map_err(|error| error.in_stack(self))
    }

    fn provide(&self, traits: &mut Traits) {
        traits.add::<Self, dyn Pool>(|it| it);
    }
}
