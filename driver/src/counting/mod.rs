//! A driver that counts the calls it forwards to another one.

mod cell;
mod counts;
mod pools;
mod probe;
mod taken;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use millpond_core::driver::{
    AccessFlags, AccessLocation, CaptureMode, DeviceAttribute, Driver, DriverHandle, DriverResult, Event,
    EventFlags, FabricHandle, GraphMemAttribute, Health, HostFlags, HostPtr, IpcMemHandle, MemAdvice,
    MemAllocationType, MemLocation, MemPool, MemPoolAttribute, MemPoolProps, MemPoolPtrData, MemoryInfo,
    MemoryKind, PhysicalHandle, PhysicalProps, StreamFlags,
};
use millpond_core::{DeviceId, DevicePtr, Layout, StreamRef};

use cell::Cell;
pub use counts::{CallCounts, CallKind, KindCounts};
use pools::Pools;
use probe::Probe;
use taken::{Block, Taken};

/// Forwards each call to another driver. Counts the calls and measures their wall time, by [`CallKind`]. Also
/// computes how many bytes of the device's memory are allocated.
///
/// ```
/// use millpond_core::Driver;
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_driver::{CallKind, CountingDriver};
///
/// let driver = CountingDriver::new(SimDevice::new(SimConfig::h200()));
/// let ptr = driver.mem_alloc(1 << 20)?;
/// assert_eq!(driver.counts().get(CallKind::MemAlloc).calls, 1);
/// assert_eq!(driver.bytes_taken(), 2 << 20); // a page
/// // SAFETY: the pointer came from this driver and is not used again.
/// unsafe { driver.mem_free(ptr)? };
/// assert_eq!((driver.bytes_taken(), driver.peak_bytes_taken()), (0, 2 << 20));
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct CountingDriver {
    inner: DriverHandle,
    cells: [Cell; CallKind::ALL.len()],
    taken: Taken,
    pools: Pools,
    probe: Probe,
}

/// Prints one line, without the counts. [`counts`](Self::counts) returns them.
impl fmt::Debug for CountingDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountingDriver").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl CountingDriver {
    /// Wraps `inner`, and counts the calls to `inner` from now on.
    pub fn new(inner: DriverHandle) -> Arc<Self> {
        Arc::new(Self {
            inner,
            cells: std::array::from_fn(|_| Cell::default()),
            taken: Taken::default(),
            pools: Pools::default(),
            probe: Probe::default(),
        })
    }

    /// Returns the wrapped driver.
    pub fn inner(&self) -> &DriverHandle {
        &self.inner
    }

    /// Returns the counts so far. If another thread is making a call, the result may contain only some of the
    /// counts of that call.
    pub fn counts(&self) -> CallCounts {
        let mut counts = CallCounts::default();
        for (kind, cell) in CallKind::ALL.into_iter().zip(&self.cells) {
            *counts.get_mut(kind) = cell.now();
        }
        counts
    }

    /// Returns the number of bytes of the device's memory that are allocated now:
    /// - Plain memory counts by pages of 2 MiB, as on an H200. The size of a block above 2 MiB is rounded up
    ///   to whole pages. For smaller blocks, each page that contains one of their addresses counts once.
    /// - Physical memory counts until it is both released and unmapped.
    /// - Managed and stream-ordered allocations count with their requested sizes. On the device, the numbers
    ///   may differ. Managed memory uses device memory only after the device touches it. A pool of the driver
    ///   may hold more memory than its users have allocated.
    ///
    /// The number is computed from the calls, without queries of the device.
    /// [`probe_device`](Self::probe_device) queries the device.
    pub fn bytes_taken(&self) -> u64 {
        self.taken.now()
    }

    /// Returns the highest [`bytes_taken`](Self::bytes_taken) so far.
    pub fn peak_bytes_taken(&self) -> u64 {
        self.taken.peak()
    }

    /// Returns a lower bound of the bytes of the device's memory that are held now. The result is the larger
    /// of two numbers. One is [`bytes_taken`](Self::bytes_taken). The other is the number of bytes that the
    /// driver's pools hold. The method queries each pool that has served a block. These queries do not count
    /// as calls.
    pub fn bytes_held(&self) -> u64 {
        self.bytes_taken().max(self.pools.held(&*self.inner))
    }

    /// Returns the highest [`bytes_held`](Self::bytes_held) so far.
    pub fn peak_bytes_held(&self) -> u64 {
        self.peak_bytes_taken().max(self.pools.peak(&*self.inner))
    }

    /// Resets [`peak_bytes_taken`](Self::peak_bytes_taken) and [`peak_bytes_held`](Self::peak_bytes_held) to
    /// the present values.
    pub fn reset_peak(&self) {
        self.taken.reset_peak();
        self.pools.reset_peak(&*self.inner);
    }

    /// Starts to query the device's free memory at new peaks of [`bytes_taken`](Self::bytes_taken). A new
    /// peak leads to a query only if it is at least 0.1 % above the peak at the last query. Queries take
    /// time, and are not counted as calls.
    ///
    /// # Errors
    /// The driver's error if the driver refuses the first query.
    pub fn probe_device(&self) -> DriverResult<()> {
        self.probe.begin(&*self.inner)
    }

    /// Returns the largest decrease of the device's free memory that a query has found, in bytes, compared
    /// with the start of [`probe_device`](Self::probe_device). The decrease includes memory that the driver
    /// or other programs have allocated.
    pub fn probed_peak_bytes(&self) -> u64 {
        self.probe.peak()
    }

    /// Sets all counts to 0, and resets the peaks as [`reset_peak`](Self::reset_peak) does.
    pub fn reset(&self) {
        self.cells.iter().for_each(Cell::reset);
        self.reset_peak();
    }

    fn counted<T>(
        &self,
        kind: CallKind,
        call: impl FnOnce(&dyn Driver) -> DriverResult<T>,
    ) -> DriverResult<T> {
        let start = Instant::now();
        let answer = call(&*self.inner);
        self.cells[kind as usize].count(start, answer.is_err());
        answer
    }

    fn counted_alloc(
        &self,
        kind: CallKind,
        block: Block,
        call: impl FnOnce(&dyn Driver) -> DriverResult<DevicePtr>,
    ) -> DriverResult<DevicePtr> {
        let ptr = self.counted(kind, call)?;
        self.taken.allocated(ptr, block);
        self.probe.look(&*self.inner, self.taken.peak());
        Ok(ptr)
    }

    /// Removes the block before the driver frees it, because another thread may get the address right after.
    fn counted_free(
        &self,
        kind: CallKind,
        ptr: DevicePtr,
        call: impl FnOnce(&dyn Driver) -> DriverResult<()>,
    ) -> DriverResult<()> {
        let block = self.taken.freeing(ptr);
        let answer = self.counted(kind, call);
        if let (Err(_), Some(block)) = (&answer, block) {
            self.taken.allocated(ptr, block);
        }
        answer
    }
}

/// Methods that only count their call.
macro_rules! counted {
    ($($kind:ident: fn $name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {$(
        fn $name(&self, $($arg: $type),*) -> DriverResult<$answer> {
            self.counted(CallKind::$kind, |driver| driver.$name($($arg),*))
        }
    )*};
}

// Every unsafe method below forwards the call under its caller's promise.
#[deny(clippy::missing_trait_methods)]
impl Driver for CountingDriver {
    fn device(&self) -> DeviceId {
        self.inner.device()
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn health(&self) -> &Arc<Health> {
        self.inner.health()
    }

    fn was_reset(&self) -> bool {
        self.inner.was_reset()
    }

    fn version(&self) -> DriverResult<i32> {
        self.counted(CallKind::Other, |driver| driver.version())
    }

    fn attribute(&self, attribute: DeviceAttribute) -> DriverResult<i64> {
        self.counted(CallKind::Other, |driver| driver.attribute(attribute))
    }

    fn can_be_accessed_by(&self, peer: DeviceId) -> DriverResult<bool> {
        self.inner.can_be_accessed_by(peer)
    }

    fn active_peers(&self) -> DriverResult<Vec<DeviceId>> {
        self.inner.active_peers()
    }

    fn mem_get_info(&self) -> DriverResult<MemoryInfo> {
        self.counted(CallKind::MemGetInfo, |driver| driver.mem_get_info())
    }

    fn synchronize(&self) -> DriverResult<()> {
        self.counted(CallKind::Synchronize, |driver| driver.synchronize())
    }

    fn virtual_time_ns(&self) -> Option<u64> {
        self.inner.virtual_time_ns()
    }

    fn synchronize_beside_captures(&self) -> DriverResult<bool> {
        self.counted(CallKind::Synchronize, |driver| driver.synchronize_beside_captures())
    }

    /// Not counted: the call takes 8 ns and only sets a variable of the thread. It would dominate the counts
    /// of a stack.
    fn thread_exchange_stream_capture_mode(&self, mode: CaptureMode) -> DriverResult<CaptureMode> {
        self.inner.thread_exchange_stream_capture_mode(mode)
    }

    fn mem_alloc(&self, bytes: u64) -> DriverResult<DevicePtr> {
        self.counted_alloc(CallKind::MemAlloc, Block::Plain(bytes), |driver| driver.mem_alloc(bytes))
    }

    fn mem_alloc_managed(&self, bytes: u64) -> DriverResult<DevicePtr> {
        self.counted_alloc(CallKind::MemAllocManaged, Block::Other(bytes), |driver| {
            driver.mem_alloc_managed(bytes)
        })
    }

    unsafe fn mem_free(&self, ptr: DevicePtr) -> DriverResult<()> {
        // SAFETY: the caller's promise.
        self.counted_free(CallKind::MemFree, ptr, |driver| unsafe { driver.mem_free(ptr) })
    }

    unsafe fn mem_prefetch_async(
        &self,
        ptr: DevicePtr,
        bytes: u64,
        to_host: bool,
        stream: StreamRef,
    ) -> DriverResult<()> {
        self.counted(CallKind::MemPrefetch, |driver| {
            // SAFETY: the caller's promise.
            unsafe { driver.mem_prefetch_async(ptr, bytes, to_host, stream) }
        })
    }

    unsafe fn mem_advise(&self, ptr: DevicePtr, bytes: u64, advice: MemAdvice) -> DriverResult<()> {
        // SAFETY: the caller's promise.
        self.counted(CallKind::MemAdvise, |driver| unsafe { driver.mem_advise(ptr, bytes, advice) })
    }

    fn mem_host_alloc(&self, bytes: u64, flags: HostFlags) -> DriverResult<HostPtr> {
        self.counted(CallKind::MemHostAlloc, |driver| driver.mem_host_alloc(bytes, flags))
    }

    unsafe fn mem_free_host(&self, ptr: HostPtr) -> DriverResult<()> {
        // SAFETY: the caller's promise.
        self.counted(CallKind::MemFreeHost, |driver| unsafe { driver.mem_free_host(ptr) })
    }

    fn pageable_alloc(&self, layout: Layout) -> DriverResult<HostPtr> {
        self.counted(CallKind::PageableAlloc, |driver| driver.pageable_alloc(layout))
    }

    /// Not counted: no driver is called.
    unsafe fn pageable_free(&self, ptr: HostPtr, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { self.inner.pageable_free(ptr, layout) }
    }

    unsafe fn mem_host_register(&self, ptr: HostPtr, bytes: u64, flags: HostFlags) -> DriverResult<()> {
        self.counted(CallKind::MemHostRegister, |driver| {
            // SAFETY: the caller's promise.
            unsafe { driver.mem_host_register(ptr, bytes, flags) }
        })
    }

    unsafe fn mem_host_unregister(&self, ptr: HostPtr) -> DriverResult<()> {
        // SAFETY: the caller's promise.
        self.counted(CallKind::MemHostRegister, |driver| unsafe { driver.mem_host_unregister(ptr) })
    }

    fn mem_host_get_device_pointer(&self, ptr: HostPtr) -> DriverResult<DevicePtr> {
        self.counted(CallKind::PointerQuery, |driver| driver.mem_host_get_device_pointer(ptr))
    }

    fn mem_alloc_async(&self, bytes: u64, stream: StreamRef) -> DriverResult<DevicePtr> {
        self.pools.using_current(&*self.inner);
        self.counted_alloc(CallKind::MemAllocAsync, Block::Other(bytes), |driver| {
            driver.mem_alloc_async(bytes, stream)
        })
    }

    fn mem_alloc_from_pool_async(
        &self,
        bytes: u64,
        pool: MemPool,
        stream: StreamRef,
    ) -> DriverResult<DevicePtr> {
        self.pools.using(&*self.inner, pool);
        self.counted_alloc(CallKind::MemAllocAsync, Block::Other(bytes), |driver| {
            driver.mem_alloc_from_pool_async(bytes, pool, stream)
        })
    }

    unsafe fn mem_free_async(&self, ptr: DevicePtr, stream: StreamRef) -> DriverResult<()> {
        self.counted_free(CallKind::MemFreeAsync, ptr, |driver| {
            // SAFETY: the caller's promise.
            unsafe { driver.mem_free_async(ptr, stream) }
        })
    }

    fn device_set_mem_pool(&self, pool: MemPool) -> DriverResult<()> {
        let set = self.counted(CallKind::MemPool, |driver| driver.device_set_mem_pool(pool));
        self.pools.current_changed();
        set
    }

    fn mem_set_mem_pool(
        &self,
        location: MemLocation,
        kind: MemAllocationType,
        pool: MemPool,
    ) -> DriverResult<()> {
        let set = self.counted(CallKind::MemPool, |driver| driver.mem_set_mem_pool(location, kind, pool));
        self.pools.current_changed();
        set
    }

    unsafe fn mem_pool_destroy(&self, pool: MemPool) -> DriverResult<()> {
        self.pools.destroying(&*self.inner, pool);
        // SAFETY: the caller's promise.
        self.counted(CallKind::MemPool, |driver| unsafe { driver.mem_pool_destroy(pool) })
    }

    counted! {
        MemPool: fn mem_pool_create(props: MemPoolProps) -> MemPool;
        MemPool: fn device_get_default_mem_pool() -> MemPool;
        MemPool: fn device_get_mem_pool() -> MemPool;
        MemPool: fn mem_get_default_mem_pool(location: MemLocation, kind: MemAllocationType) -> MemPool;
        MemPool: fn mem_get_mem_pool(location: MemLocation, kind: MemAllocationType) -> MemPool;
        MemPool: fn mem_pool_set_access(pool: MemPool, access: AccessFlags, from: &[AccessLocation]) -> ();
        MemPool: fn mem_pool_get_access(pool: MemPool, from: AccessLocation) -> AccessFlags;
        Ipc: fn mem_pool_export_to_fd(pool: MemPool) -> i32;
        Ipc: fn mem_pool_import_from_fd(fd: i32) -> MemPool;
        Ipc: fn mem_pool_export_to_fabric(pool: MemPool) -> FabricHandle;
        Ipc: fn mem_pool_import_from_fabric(handle: &FabricHandle) -> MemPool;
        Ipc: fn mem_pool_export_pointer(ptr: DevicePtr) -> MemPoolPtrData;
        Ipc: fn mem_pool_import_pointer(pool: MemPool, data: &MemPoolPtrData) -> DevicePtr;
        PointerQuery: fn pointer_mem_pool(ptr: DevicePtr) -> Option<MemPool>;
        PointerQuery: fn mem_get_address_range(ptr: DevicePtr) -> (DevicePtr, u64);
        PointerQuery: fn pointer_kind(ptr: DevicePtr) -> MemoryKind;
        Other: fn host_memory_info() -> MemoryInfo;
        MemPoolTrim: fn mem_pool_trim_to(pool: MemPool, keep_bytes: u64) -> ();
        MemPool: fn mem_pool_get_attribute(pool: MemPool, attribute: MemPoolAttribute) -> u64;
        MemPool: fn mem_pool_set_attribute(pool: MemPool, attribute: MemPoolAttribute, value: u64) -> ();
        MemPool: fn device_get_graph_mem_attribute(attribute: GraphMemAttribute) -> u64;
        MemPool: fn device_reset_graph_mem_attribute(attribute: GraphMemAttribute) -> ();
        MemPoolTrim: fn device_graph_mem_trim() -> ();
        Other: fn mem_get_allocation_granularity() -> u64;
        MemAddressReserve: fn mem_address_reserve(bytes: u64, alignment: u64) -> DevicePtr;
    }

    unsafe fn mem_address_free(&self, ptr: DevicePtr, bytes: u64) -> DriverResult<()> {
        // SAFETY: the caller's promise.
        self.counted(CallKind::MemAddressFree, |driver| unsafe { driver.mem_address_free(ptr, bytes) })
    }

    fn mem_create(&self, bytes: u64, props: PhysicalProps) -> DriverResult<PhysicalHandle> {
        let handle = self.counted(CallKind::MemCreate, |driver| driver.mem_create(bytes, props))?;
        self.taken.created(handle, bytes);
        self.probe.look(&*self.inner, self.taken.peak());
        Ok(handle)
    }

    unsafe fn mem_release(&self, handle: PhysicalHandle) -> DriverResult<()> {
        self.taken.release(handle, || {
            // SAFETY: the caller's promise.
            self.counted(CallKind::MemRelease, |driver| unsafe { driver.mem_release(handle) })
        })
    }

    unsafe fn mem_map(&self, ptr: DevicePtr, bytes: u64, handle: PhysicalHandle) -> DriverResult<()> {
        // SAFETY: the caller's promise.
        self.counted(CallKind::MemMap, |driver| unsafe { driver.mem_map(ptr, bytes, handle) })?;
        self.taken.mapped(ptr, handle);
        Ok(())
    }

    unsafe fn mem_unmap(&self, ptr: DevicePtr, bytes: u64) -> DriverResult<()> {
        self.taken.unmap(ptr, bytes, || {
            // SAFETY: the caller's promise.
            self.counted(CallKind::MemUnmap, |driver| unsafe { driver.mem_unmap(ptr, bytes) })
        })
    }

    unsafe fn mem_set_access(
        &self,
        ptr: DevicePtr,
        bytes: u64,
        access: AccessFlags,
        devices: &[DeviceId],
    ) -> DriverResult<()> {
        self.counted(CallKind::MemSetAccess, |driver| {
            // SAFETY: the caller's promise.
            unsafe { driver.mem_set_access(ptr, bytes, access, devices) }
        })
    }

    fn mem_export_to_fd(&self, handle: PhysicalHandle) -> DriverResult<i32> {
        self.counted(CallKind::Ipc, |driver| driver.mem_export_to_fd(handle))
    }

    /// The memory does not count as allocated here, because another process allocated it.
    fn mem_import_from_fd(&self, fd: i32) -> DriverResult<PhysicalHandle> {
        self.counted(CallKind::Ipc, |driver| driver.mem_import_from_fd(fd))
    }

    fn stream_create(&self, flags: StreamFlags) -> DriverResult<StreamRef> {
        self.counted(CallKind::StreamCreate, |driver| driver.stream_create(flags))
    }

    unsafe fn stream_destroy(&self, stream: StreamRef) -> DriverResult<()> {
        // SAFETY: the caller's promise.
        self.counted(CallKind::StreamDestroy, |driver| unsafe { driver.stream_destroy(stream) })
    }

    unsafe fn stream_ref(&self, handle: u64) -> DriverResult<StreamRef> {
        if handle <= StreamRef::PER_THREAD.handle() {
            // SAFETY: the caller's promise. This call does not query the driver.
            return unsafe { self.inner.stream_ref(handle) };
        }
        // SAFETY: the caller's promise.
        self.counted(CallKind::StreamGetId, |driver| unsafe { driver.stream_ref(handle) })
    }

    /// Not counted: this call makes no query to the driver.
    fn stream_is_gone(&self, stream: StreamRef) -> bool {
        self.inner.stream_is_gone(stream)
    }

    fn stream_synchronize(&self, stream: StreamRef) -> DriverResult<()> {
        self.counted(CallKind::StreamSynchronize, |driver| driver.stream_synchronize(stream))
    }

    fn stream_query(&self, stream: StreamRef) -> DriverResult<bool> {
        self.counted(CallKind::StreamQuery, |driver| driver.stream_query(stream))
    }

    fn stream_wait_event(&self, stream: StreamRef, event: Event) -> DriverResult<()> {
        self.counted(CallKind::StreamWaitEvent, |driver| driver.stream_wait_event(stream, event))
    }

    fn stream_is_capturing(&self, stream: StreamRef) -> DriverResult<bool> {
        self.counted(CallKind::StreamIsCapturing, |driver| driver.stream_is_capturing(stream))
    }

    fn stream_capture_id(&self, stream: StreamRef) -> DriverResult<Option<u64>> {
        self.counted(CallKind::StreamIsCapturing, |driver| driver.stream_capture_id(stream))
    }

    fn event_create(&self, flags: EventFlags) -> DriverResult<Event> {
        self.counted(CallKind::EventCreate, |driver| driver.event_create(flags))
    }

    unsafe fn event_destroy(&self, event: Event) -> DriverResult<()> {
        // SAFETY: the caller's promise.
        self.counted(CallKind::EventDestroy, |driver| unsafe { driver.event_destroy(event) })
    }

    fn event_record(&self, event: Event, stream: StreamRef) -> DriverResult<()> {
        self.counted(CallKind::EventRecord, |driver| driver.event_record(event, stream))
    }

    fn event_record_if_alive(&self, event: Event, stream: StreamRef) -> DriverResult<bool> {
        let start = Instant::now();
        let answer = self.inner.event_record_if_alive(event, stream);
        if answer != Ok(false) {
            // `false` means that the driver was not called.
            self.cells[CallKind::EventRecord as usize].count(start, answer.is_err());
        }
        answer
    }

    fn event_query(&self, event: Event) -> DriverResult<bool> {
        self.counted(CallKind::EventQuery, |driver| driver.event_query(event))
    }

    fn event_synchronize(&self, event: Event) -> DriverResult<()> {
        self.counted(CallKind::EventSynchronize, |driver| driver.event_synchronize(event))
    }

    unsafe fn memcpy_htod_async(
        &self,
        dst: DevicePtr,
        src: *const u8,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        // SAFETY: the caller's promise.
        self.counted(CallKind::Copy, |driver| unsafe { driver.memcpy_htod_async(dst, src, bytes, stream) })
    }

    unsafe fn memcpy_dtoh_async(
        &self,
        dst: *mut u8,
        src: DevicePtr,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        // SAFETY: the caller's promise.
        self.counted(CallKind::Copy, |driver| unsafe { driver.memcpy_dtoh_async(dst, src, bytes, stream) })
    }

    unsafe fn memcpy_dtod_async(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        // SAFETY: the caller's promise.
        self.counted(CallKind::Copy, |driver| unsafe { driver.memcpy_dtod_async(dst, src, bytes, stream) })
    }

    unsafe fn memcpy_peer_async(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        src_device: DeviceId,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        self.counted(CallKind::Copy, |driver| {
            // SAFETY: the caller's promise.
            unsafe { driver.memcpy_peer_async(dst, src, src_device, bytes, stream) }
        })
    }

    unsafe fn memset_d8_async(
        &self,
        dst: DevicePtr,
        value: u8,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        // SAFETY: the caller's promise.
        self.counted(CallKind::Fill, |driver| unsafe { driver.memset_d8_async(dst, value, bytes, stream) })
    }

    fn ipc_get_mem_handle(&self, ptr: DevicePtr) -> DriverResult<IpcMemHandle> {
        self.counted(CallKind::Ipc, |driver| driver.ipc_get_mem_handle(ptr))
    }

    fn ipc_open_mem_handle(&self, handle: &IpcMemHandle) -> DriverResult<DevicePtr> {
        self.counted(CallKind::Ipc, |driver| driver.ipc_open_mem_handle(handle))
    }

    unsafe fn ipc_close_mem_handle(&self, ptr: DevicePtr) -> DriverResult<()> {
        // SAFETY: the caller's promise.
        self.counted(CallKind::Ipc, |driver| unsafe { driver.ipc_close_mem_handle(ptr) })
    }
}
