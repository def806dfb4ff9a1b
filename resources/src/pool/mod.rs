//! The pool: a resource that serves requests in stream order, by best fit with coalescing. The pool gets its
//! memory from upstream in regions, or from the driver in pages.
//!
//! ```text
//!  a thread's call on a stream
//!    │ 1  stream cache  free blocks of this size, stream and thread      no lock      cache/
//!    │ 2  arena         small blocks, in spans                           its lock     arena
//!    │ 3  heaps         large blocks and spans; the reuse ladder         pool's lock  heaps, central/
//!    ▼ 4  upstream, or pages that the pool maps                          no lock      central/, store/
//!
//!  region from upstream ┌────────┬─────────┬──────┬───────────────┐
//!                       │ in use │ free: A │ span │ free: unowned │   chunks, in address order
//!                       └────────┴─────────┴───│──┴───────────────┘
//!                                     │        └ a region of an arena's heap, with small chunks
//!                                     └ in stream A's bins, by size
//! ```
//!
//! To understand the code, read the modules in this order: [`PoolMemoryResource`] and `fast_path`; `cache/`;
//! `heap/`; `arena` and `heaps`; `store/` (regions and pages); `block_map/` (from an address to its block);
//! `central/` (reuse between streams, and growth: `ladder` decides, `act` makes the calls); `decay/` (returns
//! unneeded memory); `oom_advice` (the changes that would have helped a failed request).
//!
//! A freed block first goes to a stream cache. Free neighbours in a stream cache are not merged. Before the
//! pool grows, it empties the stream caches and merges free neighbours. The pool also returns the free spans
//! of arenas to the heap of large blocks. `reclaim` documents the exceptions.

pub(crate) mod arena;
pub(crate) mod cache;
pub(crate) mod central;
mod checked;
mod decay;
mod diagnose;
mod fast_path;
mod handle;
mod heaps;
mod layer;
mod map;
pub(crate) mod oom_advice;
mod oom_map;
mod options;
mod peers;
mod reclaim;
mod report;
mod shared;
#[cfg(test)]
mod tests;
mod totals;
mod validate;

use std::fmt;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond_core::PoolBelow;
use millpond_core::{
    Accessibility, DeviceId, DeviceMemoryResource, DevicePtr, DriverHandle, Error, ErrorKind, FailureTally,
    Layout, LiveBlock, MemoryInfo, ReportsMemory, ResourceStatistics, Result, StreamRef, Traits, downcast,
    find_trait, is_same,
};

use millpond_driver::nvtx::MemoryChecker;

pub use crate::pool::decay::Decay;
pub use crate::pool::handle::Pool;
pub(crate) use crate::pool::heaps::Heaps;
pub(crate) use crate::pool::layer::ENTRY;
pub use crate::pool::layer::PoolLayer;
pub use crate::pool::options::{PagesMode, PoolOptions};
pub use crate::pool::peers::{PeerList, Peers, Share};
pub(crate) use crate::store::FixedBlocks;

use crate::debug_as_text::debug_as_text;
use crate::driver_memory::CudaMemoryResource;
use crate::heap::size_class::BlockSize;
use crate::pool::cache::thread_cache::PoolId;
use crate::pool::central::Central;
use crate::pool::decay::{DecayHandle, PoolDecay};
use crate::pool::shared::Shared;
use crate::process;

/// A pool that serves requests in stream order. The pool keeps freed memory, and serves later requests from
/// it. To get memory, the pool allocates large regions from its upstream, or maps pages; see [`PagesMode`].
///
/// A stream first reuses blocks that it has freed itself, without a driver call. If none of these blocks
/// fits, the pool tries blocks that other streams have freed, or grows. [`Reuse`](crate::Reuse) describes
/// these steps.
///
/// A pool that uses regions first allocates a region of [`initial_bytes`](PoolOptions::initial_bytes). Each
/// new region is twice as large as the previous region, up to an eighth of the pool's memory. If the upstream
/// refuses a region, the pool asks for a smaller region, down to the size of the request. The pool returns
/// fully free regions in three cases: on [`trim`](DeviceMemoryResource::trim), before the pool grows to a new
/// peak, and before a request fails.
///
/// The pool rounds the size of each request up to a multiple of 256 bytes. Between 16 KiB and 1 MiB, it
/// rounds a request up to one of 32 sizes for each power of two. This adds at most 3.1 % to the size. If no
/// live block starts at a pointer, or if the block has another size, the pool refuses to free the pointer.
///
/// Under NVIDIA's compute-sanitizer, the pool tells the tool which blocks are live. So the tool reports an
/// access past the end of a block, and an access to a free block.
///
/// While any thread captures a graph, the pool's calls do not invalidate the graph. But each launch of the
/// graph writes to the blocks that were freed during the capture. The pool may have given these blocks to
/// other callers in the meantime. See "Captured graphs" of [`DeviceMemoryResource`].
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
pub struct PoolMemoryResource<R: DeviceMemoryResource> {
    id: PoolId,
    shared: Arc<Shared>,
    central: Central<R>,
    options: PoolOptions,
    /// The layer's text.
    layer: String,
    /// Dropped last. After that, the decay thread makes no calls for this pool.
    decay: Option<DecayHandle>,
}

/// Warns that a layer between the pool and `cuda` prevents pages, which the caller may not expect. It does
/// not warn over another pool, where pages are not expected.
fn warn_of_a_wrapper(upstream: &dyn DeviceMemoryResource) {
    let is_cuda = |resource| downcast::<CudaMemoryResource>(resource).is_some();
    let base = iter::successors(Some(upstream), |resource| resource.upstream()).last();
    if base.is_some_and(is_cuda) && !is_cuda(upstream) && find_trait::<dyn Pool>(upstream).is_none() {
        tracing::warn!(
            target: "millpond::stack",
            %upstream,
            "the pool maps no pages, so it needs more memory than a pool with pages: a layer is between the \
             pool and `cuda`; put the layer above the pool (cuda+pool+…), or write pages=off"
        );
    }
}

impl<R: DeviceMemoryResource> PoolMemoryResource<R> {
    /// Builds a pool whose memory comes from `upstream`.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) in two cases: if the initial size
    /// exceeds the maximum, or if the maximum exceeds the memory of the device. (The second case does not
    /// apply if the host can access the memory of the upstream.)
    /// [`OutOfMemory`](millpond_core::ErrorKind::OutOfMemory) if the upstream has too little memory for the
    /// initial size. Otherwise the driver's errors.
    pub fn new(upstream: R, options: PoolOptions) -> Result<Self> {
        let options = options.checked(&upstream)?;
        let layer = format!("pool{options}");
        Self::build(upstream, options, None, layer)
    }

    /// Creates a pool of `fixed` blocks, or of blocks of all sizes; `layer` is its text.
    pub(crate) fn build(
        upstream: R,
        options: PoolOptions,
        fixed: Option<FixedBlocks>,
        layer: String,
    ) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let pages = options.pages_over(&upstream)?;
        let is_checked = MemoryChecker::attached(upstream.driver().device()).is_some();
        if pages.is_none() && options.pages == PagesMode::Auto && !is_checked {
            warn_of_a_wrapper(&upstream);
        }
        let backing = options.backing(&**upstream.driver(), pages.is_some())?;
        let total = PoolOptions::device_total(&upstream)?;
        let mut heaps = Heaps::new(options.maximum_bytes, pages, total, fixed);
        if let Some(pages) = heaps.store.pages_mut() {
            pages.set_backing(backing);
        }
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
            let what = if fixed.is_some() {
                "allocating the first blocks"
            } else {
                "allocating the pool's initial size"
            };
            pool.central.reserve(options.initial_bytes).map_err(|error| error.context(what))?;
        }
        Ok(pool)
    }

    /// Returns the number of bytes that the pool holds from upstream or from the driver, live and free.
    pub fn pool_bytes(&self) -> u64 {
        self.central.with_heaps(|heaps| heaps.store.bytes_reserved())
    }

    /// Returns the number of streams for which the pool keeps records. When requests on new streams come, the
    /// pool removes the records of streams without free blocks.
    pub fn known_streams(&self) -> usize {
        self.central.streams()
    }

    /// Returns whether the pool maps physical memory; see [`PagesMode`]. Otherwise the pool allocates regions
    /// from upstream.
    pub fn maps_pages(&self) -> bool {
        self.central.maps_pages()
    }

    /// Returns the other devices to which the pool gives access to its memory; see [`Peers`].
    ///
    /// If the pool [maps no pages](Self::maps_pages), its memory is plain CUDA memory. The pool then gives no
    /// access itself. Another device can access the memory after the program has enabled peer access.
    pub fn peers(&self) -> Vec<DeviceId> {
        self.central
            .with_heaps(|heaps| heaps.store.pages().map_or(Vec::new(), |pages| pages.backing().peers()))
    }

    /// Gives another device access to the pool's memory, including memory that the pool maps later. The call
    /// takes about as long as one `cuMemSetAccess` for each handle of physical memory in the pool.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) for a device that cannot access this
    /// device's memory; [`Unsupported`](millpond_core::ErrorKind::Unsupported) if the pool maps no pages; and
    /// the driver's errors.
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

    /// Exports a live block to another process; see [`share`](crate::share). `bytes` is the requested size of
    /// the block.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if `ptr` is not a live block of this
    /// pool that was requested with `bytes`; [`Unsupported`](millpond_core::ErrorKind::Unsupported) if the
    /// pool was not built with [`Share::Fd`]; and the driver's errors.
    #[cfg(unix)]
    pub fn export_block(&self, ptr: DevicePtr, bytes: u64) -> Result<crate::share::ExportedBlock> {
        let export = || {
            if self.options.share != Share::Fd {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "the pool's memory cannot be exported; build the pool with share=fd",
                ));
            }
            let entry = self.shared.block_map.find(ptr.address());
            if bytes == 0 || entry.is_none_or(|entry| entry.requested() != bytes) {
                return Err(Error::invalid_argument(format!(
                    "{ptr} is not a block of {bytes} bytes from this pool; pass the pointer that `allocate` \
                     returned, and the size that was requested"
                )));
            }
            let parts = self.central.with_heaps(|heaps| heaps.physical_of(ptr.address(), bytes));
            crate::share::ExportedBlock::new(self.central.driver(), &parts)
        };
        export().map_err(|error| error.in_stack(self))
    }

    /// Returns all fully free regions to upstream; returns their bytes. For a request on a stream that
    /// captures a graph, it returns only unowned regions.
    pub(crate) fn release_regions(&self, request: Option<StreamRef>) -> Result<u64> {
        let may_wait = match request {
            Some(stream) => !self.central.is_capturing(stream)?,
            None => true,
        };
        self.central.release_regions(0, may_wait).map_err(|error| error.in_stack(self))
    }

    /// Returns the blocks in use in the region at `base`, if there is one.
    pub(crate) fn live_in(&self, base: u64) -> Option<Vec<LiveBlock>> {
        self.central.with_heaps(|heaps| heaps.live_in(base))
    }

    /// Returns the pool's options. The sizes in the options are rounded as the pool uses them.
    pub fn options(&self) -> PoolOptions {
        self.options
    }

    /// Returns the failed requests.
    pub(crate) fn failures(&self) -> &FailureTally {
        &self.central.failures
    }

    #[cold]
    pub(crate) fn failed(&self, error: Error) -> Error {
        self.central.failures.noted(error).in_stack(self)
    }

    /// Runs one step of the pool's [`Decay`]: returns memory to the driver that the pool has not needed
    /// recently. Returns the number of bytes released. `now` is the time since a fixed moment. This moment
    /// must be the same for all calls. The step does not wait for the device.
    ///
    /// On a real device, a thread of the library already runs these steps with its own clock. On a simulated
    /// device, only the program runs them. If the previous step was less than a sixteenth of the decay's time
    /// ago, the call does nothing.
    ///
    /// # Errors
    /// The driver's errors. Memory that was returned before the error is still returned.
    pub fn decay_step(&self, now: Duration) -> Result<u64> {
        let step = |decay: &DecayHandle| decay.decay().step(now).map_err(|error| error.in_stack(self));
        self.decay.as_ref().map_or(Ok(0), step)
    }

    /// Releases unused memory to the driver until the pool holds `keep_bytes`. A call releases only memory on
    /// which all work is done. A call may release only a part of this memory. Returns the number of bytes
    /// released; 0 means that no more can be released now. Unlike [`trim`](DeviceMemoryResource::trim), this
    /// method does not wait for the device, and limits the number of its driver calls.
    ///
    /// The call does nothing if the pool is busy with another request, or if `stream` captures a graph. The
    /// call also does nothing if the pool uses regions, because a pool must wait for the device before it
    /// returns a region.
    ///
    /// ```
    /// use millpond_core::{DeviceMemoryResourceExt, StreamRef};
    /// use millpond_driver::sim::{SimConfig, SimDevice};
    /// use millpond_resources::{CudaMemoryResource, PoolLayer};
    ///
    /// let device = SimDevice::new(SimConfig::h200());
    /// let pool = CudaMemoryResource::new(device).layer(PoolLayer::new())?;
    /// let block = pool.allocate_bytes(64 << 20, StreamRef::LEGACY)?;
    /// // SAFETY: the block came from this pool with this size, and nothing uses it.
    /// unsafe { pool.deallocate_bytes(block, 64 << 20, StreamRef::LEGACY) };
    /// assert!(pool.release_unused(0, StreamRef::LEGACY)? >= 64 << 20);
    /// # Ok::<(), millpond_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The driver's errors.
    pub fn release_unused(&self, keep_bytes: u64, stream: StreamRef) -> Result<u64> {
        self.central.release_unused(keep_bytes, stream).map_err(|error| error.in_stack(self))
    }

    /// Checks the invariants of the pool, which docs/book/src/design/invariants.md lists. The time is
    /// proportional to the number of blocks. No other thread may call the pool during the check. Such a call
    /// changes the pool without a lock, and the check would report the change as an error.
    ///
    /// # Panics
    /// Panics if an invariant does not hold. This is a bug of the pool.
    pub fn validate(&self) {
        self.central.validate();
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

debug_as_text!(PoolMemoryResource<R: DeviceMemoryResource>);

// SAFETY: chunks are disjoint parts of the pool's memory, with the alignment of the request (`Heap::take`). A
// stream gets a chunk only if it owns it, or if the owner's work is completed or waited for (`Central`). The
// pool returns memory only when all work on it is done.
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

    fn accessibility(&self) -> Accessibility {
        self.central.upstream().accessibility()
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        Some(self.central.statistics())
    }

    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        self.central.trim(keep_bytes).map_err(|error| error.in_stack(self))
    }

    fn provide(&self, traits: &mut Traits) {
        traits.add::<Self, dyn Pool>(|it| it).add::<Self, dyn ReportsMemory>(|it| it);
        traits.add::<Self, FailureTally>(|it| &it.central.failures).add::<Self, dyn PoolBelow>(|it| it);
        // SAFETY: threads may share all parts except the upstream.
        unsafe { traits.share_over(&[self.central.upstream()]) };
    }
}

impl<R: DeviceMemoryResource> PoolBelow for PoolMemoryResource<R> {
    fn initial_bytes(&self) -> u64 {
        self.options().initial_bytes
    }

    fn release_unused(&self, keep_bytes: u64, stream: StreamRef) -> Result<u64> {
        self.release_unused(keep_bytes, stream)
    }
}

impl<R: DeviceMemoryResource> Pool for PoolMemoryResource<R> {
    fn pool_bytes(&self) -> u64 {
        self.pool_bytes()
    }

    fn known_streams(&self) -> usize {
        self.known_streams()
    }

    fn maps_pages(&self) -> bool {
        self.maps_pages()
    }

    fn options(&self) -> PoolOptions {
        self.options()
    }

    fn peers(&self) -> Vec<DeviceId> {
        self.peers()
    }

    fn add_peer(&self, device: DeviceId) -> Result<()> {
        self.add_peer(device)
    }

    #[cfg(unix)]
    fn export_block(&self, ptr: DevicePtr, bytes: u64) -> Result<crate::share::ExportedBlock> {
        self.export_block(ptr, bytes)
    }

    fn decay_step(&self, now: Duration) -> Result<u64> {
        self.decay_step(now)
    }

    fn release_unused(&self, keep_bytes: u64, stream: StreamRef) -> Result<u64> {
        self.release_unused(keep_bytes, stream)
    }

    fn allocate_cached(&self, layout: Layout, stream: StreamRef) -> Option<DevicePtr> {
        self.allocate_from_cache(layout, stream)
    }

    unsafe fn deallocate_cached(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) -> bool {
        self.deallocate_to_cache(ptr, layout, stream)
    }
}
