//! The pool: best fit with coalescing over regions from upstream, in stream order.
//!
//! ```text
//!  a thread's call on a stream
//!    │ 1  front    blocks of this size that the stream gave back on this thread   no lock   front, thread
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
//! Read it in this order: [`PoolMemoryResource`], which is the way of a call; `front` and `thread`; `heap`,
//! with `chunk` and `bins` below it; `arena` and `heaps`; `directory` (address to block);
//! [`ordered`](crate::ordered) (for whom blocks are free); `keep` (how much fronts may keep), `decay` (what
//! goes back while the pool is idle), `shortage` (what would have helped, where memory is out).
//!
//! A block that is given back goes to the front first, where neighbours do not join. Before the pool takes
//! more memory, everything is gathered: fronts are drained, neighbours join, and whole spans go back to the
//! core. (For a small request, from its own arena only, unless memory is short. Where threads meet, what they
//! keep is left to them unless it is much.)

mod arena;
mod bins;
mod chunk;
mod classes;
mod decay;
mod diagnose;
mod directory;
mod errand;
mod front;
mod gather;
mod handle;
mod heap;
mod heaps;
mod keep;
mod large;
mod odd;
mod options;
mod owners;
mod pages;
mod peak;
mod peers;
mod report;
mod shortage;
mod slabs;
mod slack;
#[cfg(test)]
mod tests;
mod thread;
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

pub use decay::Decay;
pub(crate) use errand::PoolErrand;
pub use handle::Pool;
pub(crate) use heaps::{FixedBlocks, Heaps};
pub(crate) use options::ENTRY;
pub use options::{PagesMode, PoolLayer, PoolOptions};
#[cfg(unix)]
pub(crate) use pages::Part;
pub use peers::{PeerList, Peers, Share};
pub use slack::Slack;

use crate::lock::QuickGuard;
use crate::ordered::{ANYONE, Gather, Ordered, Request};
use crate::process;
use arena::{Arena, Arenas, Shard, Visit};
use classes::LARGEST_SMALL;
use decay::{Member, PoolDecay};
use directory::Entry;
use front::{Front, add};
use heaps::Shared;
use thread::{Lease, PoolId};

/// A pool: takes large regions from upstream and hands out blocks of them, in stream order.
///
/// A block given back on a stream is had again by that stream without any driver call. What happens when the
/// stream has none that fits is in [`ordered`](crate::ordered). The pool starts with
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
    ordered: Ordered<R>,
    options: PoolOptions,
    /// The layer as text.
    layer: String,
    /// Dropped last: then its thread makes no more calls.
    decay: Option<Member>,
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
        let ordered = Ordered::new(upstream, heaps, options.reuse, &layer);
        let time = options.decay.time()?.filter(|_| ordered.runs_errands());
        let decay = time
            .map(|time| {
                PoolDecay::new(ordered.core(), &shared, ordered.driver(), time, options.initial_bytes)
            })
            .map(Member::new);
        let pool = Self { id: NEXT.fetch_add(1, Ordering::Relaxed), shared, ordered, options, layer, decay };
        if options.initial_bytes > 0 {
            let what =
                if fixed.is_some() { "taking the first blocks" } else { "taking the pool's initial size" };
            pool.ordered.reserve(options.initial_bytes).map_err(|error| error.context(what))?;
        }
        Ok(pool)
    }

    /// Bytes held from upstream, in use and free.
    pub fn pool_bytes(&self) -> u64 {
        self.ordered.inspect(|heaps| heaps.large.bytes_reserved())
    }

    /// How many streams the pool knows; those without free blocks are forgotten as others come.
    pub fn known_streams(&self) -> usize {
        self.ordered.streams()
    }

    /// Whether the pool maps physical memory itself: see [`PagesMode`].
    pub fn maps_pages(&self) -> bool {
        self.ordered.runs_errands()
    }

    /// The other devices that may use the pool's memory because the pool says so; see [`Peers`]. Memory of a
    /// pool that [maps no pages](Self::maps_pages) is plain memory, which others may use once they enabled
    /// peer access.
    pub fn peers(&self) -> Vec<DeviceId> {
        self.ordered.inspect(|heaps| heaps.large.peers())
    }

    /// Lets another device use the pool's memory: what is mapped now, and what will be. Takes about as long
    /// as `cuMemSetAccess` for each handle that the pool has.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) for a device that cannot use this one's
    /// memory; [`Unsupported`](millpond_core::ErrorKind::Unsupported) where the pool maps no pages; what the
    /// driver reports.
    pub fn add_peer(&self, device: DeviceId) -> Result<()> {
        let driver = self.ordered.driver();
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
            self.ordered.add_peer(device)
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
            let entry = self.shared.directory.find(ptr.address());
            if bytes == 0 || entry.is_none_or(|entry| entry.requested() != bytes) {
                return Err(Error::invalid_argument(format!(
                    "{ptr} is no block of {bytes} bytes that this pool handed out; pass what `allocate` was \
                     asked for and returned"
                )));
            }
            let parts = self.ordered.inspect(|heaps| heaps.large.physical_of(ptr.address(), bytes));
            crate::share::ExportedBlock::new(self.ordered.driver(), &parts)
        };
        export().map_err(|error| error.in_stack(self))
    }

    /// Gives all regions back to upstream that are free from end to end, and returns their bytes. For a
    /// request on a stream that captures a graph, only those that are known to be done.
    pub(crate) fn give_back_regions(&self, request: Option<StreamRef>) -> Result<u64> {
        let may_wait = match request {
            Some(stream) => !self.ordered.is_capturing(stream)?,
            None => true,
        };
        self.ordered.give_back_regions(0, may_wait).map_err(|error| error.in_stack(self))
    }

    /// The blocks that are handed out of the region that starts at `base`, if one does.
    pub(crate) fn live_in(&self, base: u64) -> Option<Vec<LiveBlock>> {
        self.ordered.inspect(|heaps| heaps.live_in(base))
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
        let step = |decay: &Member| decay.decay().step(now).map_err(|error| error.in_stack(self));
        self.decay.as_ref().map_or(Ok(0), step)
    }

    /// Walks the whole structure, in time proportional to its size, and checks the invariants of
    /// docs/INVARIANTS.md. Call it while no other thread is in a call of the pool: what threads do without a
    /// lock would look like a mistake.
    ///
    /// # Panics
    /// Where an invariant does not hold: that is a bug of the pool.
    pub fn validate(&self) {
        self.ordered.validate();
    }
}

/// The way of a call.
impl<R: DeviceMemoryResource> PoolMemoryResource<R> {
    /// The calling thread's front for a stream, if it was used lately and may be used now.
    #[inline]
    fn front(&self, stream: StreamRef) -> Option<&Front> {
        let front = thread::front(self.id, stream.id())?;
        // SAFETY: the front is in this thread's cache of this pool, where it stays until the thread adds
        // another, which no call does while it has this one.
        let front = unsafe { &*front };
        (!front.stream.is_wanted() && !self.ordered.health.is_lost()).then_some(front)
    }

    /// A block from the front.
    #[inline]
    fn pop(&self, front: &Front, layout: Layout) -> Option<DevicePtr> {
        let bytes = layout.bytes();
        if layout.alignment() > ALLOCATION_ALIGNMENT || bytes == 0 {
            return None;
        }
        let rounded = self.shared.block_bytes(bytes);
        let held = front.pop(bytes, rounded)?;
        if held.is_beyond {
            self.shared.caches.settle(&front.thread);
        }
        held.entry.set_requested(bytes);
        Some(DevicePtr::new(held.addr))
    }

    /// Puts a small block into the front, if it is one and there is room.
    #[inline]
    fn push(&self, front: &Front, ptr: DevicePtr, entry: &Entry, bytes: u64) -> bool {
        let rounded = self.shared.block_bytes(bytes);
        if bytes == 0 || rounded > LARGEST_SMALL || !entry.may_be_kept(bytes) {
            return false;
        }
        let room = self.shared.limits.keep_bytes.load(Ordering::Relaxed);
        let fits = front.thread.small_bytes_held() + rounded <= room;
        let class_room = self.shared.limits.keep_of_class.load(Ordering::Relaxed);
        fits && front.push(ptr.address(), bytes, rounded, entry, class_room)
    }

    /// Puts a large block into the front; the one before goes back.
    fn push_large(&self, front: &Front, ptr: DevicePtr, entry: &Entry, bytes: u64) -> bool {
        let most = self.shared.limits.keep_large.load(Ordering::Relaxed);
        let rounded = self.shared.block_bytes(bytes);
        if bytes == 0 || rounded <= LARGEST_SMALL || rounded > most || !entry.may_be_kept(bytes) {
            return false;
        }
        self.give_up_large(front);
        front.push_large(ptr.address(), bytes, rounded, entry);
        true
    }

    /// Gives the large block that the front has back to all.
    fn give_up_large(&self, front: &Front) {
        if let Some(entry) = front.give_up_large() {
            self.ordered.with_store(|heaps| _ = heaps.give_kept(entry, &front.stream));
        }
    }

    /// A block from the thread's arena, for a small request.
    fn take_in_arena(&self, front: &Front, layout: Layout) -> Option<DevicePtr> {
        let bytes = layout.bytes();
        let most = self.shared.largest_in_arena();
        if bytes == 0 || bytes > most || layout.alignment() > ALLOCATION_ALIGNMENT {
            return None;
        }
        let request = Request { bytes: self.shared.block_bytes(bytes), ..Request::new(layout)? };
        let thread = &front.thread;
        thread.takes(request.bytes);
        let (shard, mut arena) = self.lock_arena(front);
        let Some(chunk) = arena.heap.find_for(front.stream.owner, &request, false) else {
            thread.took_none(request.bytes);
            return None;
        };
        let was_anyones = arena.heap.chunk(chunk).owner() == ANYONE;
        let ptr = self.shared.take(shard, &mut arena, chunk, &request);
        drop(arena);
        add(if was_anyones { &thread.completed } else { &thread.own_stream }, 1);
        thread.took(request.bytes, layout.bytes());
        if thread.is_beyond() {
            self.shared.caches.settle(thread);
        }
        Some(ptr)
    }

    /// The thread's arena: another one from now on, if the thread shares it with others at the same time, or
    /// if it is new where threads do.
    fn lock_arena(&self, front: &Front) -> (Shard, QuickGuard<'_, Arena>) {
        let (arenas, meetings) = (&self.shared.arenas, &front.thread.meetings);
        let mut shard = front.thread.shard.load(Ordering::Relaxed);
        if meetings.is_first() && arenas.are_many() {
            shard = self.move_from(shard, front);
        }
        let mut arena = arenas.try_lock(shard).unwrap_or_else(|| {
            meetings.found_locked();
            arenas.lock(shard)
        });
        let me = ptr::from_ref(&*front.thread).addr();
        let was_others = std::mem::replace(&mut arena.taker, me) != me;
        if !meetings.are_many(was_others) {
            return (shard, arena);
        }
        drop(arena);
        let shard = self.move_from(shard, front);
        let mut arena = arenas.lock(shard);
        arena.taker = me;
        (shard, arena)
    }

    /// Gives the thread an arena that fewer use, if there is one.
    #[cold]
    fn move_from(&self, shard: Shard, front: &Front) -> Shard {
        let shard = self.shared.arenas.next(shard, &self.shared.caches.users_of_arenas());
        front.thread.shard.store(shard, Ordering::Relaxed);
        shard
    }

    /// The calling thread's front for a stream, made when the stream is used often, if it may be used now.
    fn front_or_new(&self, cache: &Lease, stream: StreamRef) -> Option<&Front> {
        let front = if cache.is_kept() { self.front_of(cache, stream)? } else { return None };
        // SAFETY: as in `front`: this call adds no other from here on.
        let front = unsafe { &*front };
        (!front.stream.is_wanted() && !self.ordered.health.is_lost()).then_some(front)
    }

    /// The way past the front, for a thread that has one.
    #[inline(never)]
    fn allocate_past(&self, front: &Front, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        if let Some(ptr) = self.take_in_arena(front, layout) {
            return Ok(ptr);
        }
        if layout.bytes() > LARGEST_SMALL {
            // It may be beside what is free, or serve.
            self.give_up_large(front);
        }
        let shard = front.thread.shard.load(Ordering::Relaxed);
        let ptr = self
            .ordered
            .allocate(layout, stream, shard, Some(&front.stream))
            .map_err(|error| error.in_stack(self))?;
        if !ptr.is_null() {
            self.shared.count(&front.thread, layout.bytes());
        }
        Ok(ptr)
    }

    #[inline(never)]
    fn allocate_without(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let cache = self.shared.caches.mine(self.id);
        if let Some(front) = self.front_or_new(&cache, stream) {
            return self.pop(front, layout).map_or_else(|| self.allocate_past(front, layout, stream), Ok);
        }
        let shard = cache.counts.shard.load(Ordering::Relaxed);
        let ptr = self.ordered.allocate(layout, stream, shard, None).map_err(|error| error.in_stack(self))?;
        if !ptr.is_null() {
            self.shared.count(&cache.counts, layout.bytes());
        }
        Ok(ptr)
    }

    /// The way past the front, for a thread that has one.
    #[inline(never)]
    fn deallocate_past(
        &self,
        front: &Front,
        ptr: DevicePtr,
        entry: Option<&Entry>,
        layout: Layout,
        stream: StreamRef,
    ) {
        let bytes = layout.bytes();
        if front.thread.is_time_to_look() {
            self.ordered.with_store(|heaps| heaps.set_keep_bytes());
        }
        let is_given =
            |entry| self.push_large(front, ptr, entry, bytes) || self.give_past(front, entry, bytes);
        if ptr.is_null() || entry.is_some_and(is_given) {
            return;
        }
        if self.ordered.deallocate(ptr, layout, stream, self) {
            self.shared.count_back(&front.thread, bytes);
        }
    }

    #[inline(never)]
    fn deallocate_without(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        if ptr.is_null() {
            return;
        }
        let cache = self.shared.caches.mine(self.id);
        if let Some(front) = self.front_or_new(&cache, stream) {
            self.deallocate_with(front, ptr, layout, stream);
        } else if self.ordered.deallocate(ptr, layout, stream, self) {
            self.shared.count_back(&cache.counts, layout.bytes());
        }
    }

    /// The way of a block that is given back on a stream that the thread has a front for.
    #[inline]
    fn deallocate_with(&self, front: &Front, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        let entry = self.shared.directory.find(ptr.address());
        if !entry.is_some_and(|entry| self.push(front, ptr, entry, layout.bytes())) {
            self.deallocate_past(front, ptr, entry, layout, stream);
        }
    }

    /// Gives a block back to its heap, if it is handed out with this size.
    fn give_past(&self, front: &Front, entry: &Entry, bytes: u64) -> bool {
        if bytes == 0 || !self.shared.claim(entry, bytes) {
            return false;
        }
        self.shared.count_back(&front.thread, bytes);
        match Arenas::shard(entry.block().0) {
            Some(_) => self.give_to_arena(front, entry, bytes),
            None => self.ordered.with_store(|heaps| _ = heaps.give_kept(entry, &front.stream)),
        }
        true
    }

    /// Gives a small block back to its arena, and what the front has of the same size: one visit for many.
    fn give_to_arena(&self, front: &Front, entry: &Entry, bytes: u64) {
        let (owner, epoch) = (front.stream.owner, front.stream.epoch());
        let mut visit = Visit::new(&self.shared.arenas);
        visit.give(entry, owner, epoch);
        let mut large = Vec::new();
        let rounded = self.shared.block_bytes(bytes);
        if rounded <= LARGEST_SMALL {
            front.give_up_half(rounded, |entry| {
                large.extend(visit.give(entry, owner, epoch));
            });
        }
        let has_excess = visit.has_excess();
        drop(visit);
        if has_excess || !large.is_empty() {
            self.ordered.with_store(|heaps| {
                large.iter().for_each(|chunk| heaps.large.give(*chunk, owner, epoch));
                heaps.take_spans_back();
            });
        }
    }

    /// The thread's front for a stream, made when the stream is used often.
    fn front_of(&self, cache: &Lease, stream: StreamRef) -> Option<*const Front> {
        if let Some(front) = cache.front(self.id, stream.id()) {
            return Some(front);
        }
        let cell = self.ordered.stream_cell(stream)?;
        let front = Front::new(stream.id(), cell, Arc::clone(&cache.counts));
        let (front, others) = cache.add(self.id, front);
        self.ordered.with_store(|heaps| others.iter().for_each(|front| _ = heaps.drain(front, Gather::All)));
        Some(front)
    }
}

impl<R: DeviceMemoryResource> Drop for PoolMemoryResource<R> {
    fn drop(&mut self) {
        if self.ordered.is_copy() {
            return process::leave(&self.shared);
        }
        self.shared.caches.close();
    }
}

impl<R: DeviceMemoryResource> fmt::Display for PoolMemoryResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.ordered.upstream(), self.layer)
    }
}

// SAFETY: chunks are disjoint pieces of upstream's regions, aligned as asked for (`Heap::take`); a chunk is
// handed to a stream only if it belongs to it, or its owner's work is done or waited for (`Ordered`); regions
// go back to upstream only when all work on them is done.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for PoolMemoryResource<R> {
    #[inline]
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        match self.front(stream) {
            Some(front) => match self.pop(front, layout) {
                Some(ptr) => Ok(ptr),
                None => self.allocate_past(front, layout, stream),
            },
            None => self.allocate_without(layout, stream),
        }
    }

    #[inline]
    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        match self.front(stream) {
            Some(front) => self.deallocate_with(front, ptr, layout, stream),
            None => self.deallocate_without(ptr, layout, stream),
        }
    }

    fn driver(&self) -> &DriverHandle {
        self.ordered.driver()
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        Some(self.ordered.upstream())
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.ordered.memory_info()
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    fn is_stream_ordered(&self) -> bool {
        true
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        Some(self.ordered.statistics())
    }

    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        self.ordered.trim(keep_bytes).map_err(|error| error.in_stack(self))
    }

    fn provide(&self, traits: &mut Traits) {
        traits.add::<Self, dyn Pool>(|it| it);
    }
}
