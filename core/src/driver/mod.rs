//! The interface to a device. CUDA and the simulated device implement it.
//!
//! A [`Driver`] is one device. Every call that millpond makes to CUDA goes through this trait, under the
//! driver API's own names. So the code above it runs unchanged on the simulated device. The crate
//! `millpond-driver` holds both implementations.

mod call;
mod capture;
mod error;
mod health;
mod pools;
mod types;

use std::fmt::Debug;
use std::sync::Arc;

pub use call::{ask, call};
pub use capture::{CaptureModeGuard, is_capturing, record_unless_capturing};
pub use error::{DriverError, DriverResult};
pub use health::Health;
pub use pools::{
    HandleTypes, MemAllocationType, MemLocation, MemPool, MemPoolAttribute, MemPoolProps, MemPoolPtrData,
};
pub use types::{
    AccessFlags, CaptureMode, DeviceAttribute, Event, EventFlags, HostFlags, HostPtr, IpcMemHandle,
    MemAdvice, MemoryInfo, MemoryKind, PhysicalHandle, PhysicalProps, StreamFlags,
};

use crate::{DeviceId, DevicePtr, Layout, StreamRef};

/// Returns the error of a driver that lacks a function.
fn unsupported<T>(call: &'static str) -> DriverResult<T> {
    Err(DriverError::new(DriverError::NOT_SUPPORTED, call))
}

/// A shared handle to a driver.
pub type DriverHandle = Arc<dyn Driver>;

/// One device: its memory, streams and events.
///
/// Methods have the names of the driver API's functions without the prefix `cu`, and do the same. They leave
/// the calling thread's current context as it was.
///
/// # A driver of your own
/// Implement the methods without a default: memory, streams, events and copies. A pool over regions needs
/// them. The defaults answer for a device that cannot do more: [`DriverError::is_unsupported`], or that there
/// is no capture or no other device. All methods are in one trait because an installed CUDA may also lack
/// single functions: callers must expect that from each method. `examples/own_driver.rs` is a driver over
/// host memory. A wrapper implements every method, and has `#[deny(clippy::missing_trait_methods)]` on the
/// impl.
///
/// # Errors
/// Every method returns the driver's error unchanged. A function that the installed driver lacks returns
/// [`DriverError::is_unsupported`] and never panics.
///
/// # Panics
/// No driver of millpond panics. A method of another driver may panic, but then must have had no effect: the
/// resources continue as if the call had not been made.
///
/// # Safety of the unsafe methods
/// They free or touch memory. The caller guarantees that pointers and handles came from this driver and are
/// not used after they were freed. It also guarantees that ranges are in bounds, and ordered against other
/// work as CUDA requires.
#[allow(clippy::missing_safety_doc)] // said once, above
pub trait Driver: Debug + Send + Sync + 'static {
    // --- The device ---

    /// Returns which device this is.
    fn device(&self) -> DeviceId;
    /// Returns the device's name, for people.
    fn name(&self) -> String {
        self.device().to_string()
    }
    /// Returns the version of the driver API as CUDA's number (13000 is 13.0); 0 on a simulated device.
    fn version(&self) -> DriverResult<i32> {
        Ok(0)
    }
    /// Returns one attribute of the device.
    fn attribute(&self, attribute: DeviceAttribute) -> DriverResult<i64> {
        let _ = attribute;
        unsupported("cuDeviceGetAttribute")
    }
    /// Returns the free and total bytes of the device (`cuMemGetInfo`; about 3 µs on an H200).
    fn mem_get_info(&self) -> DriverResult<MemoryInfo>;
    /// Returns the flag that tells whether the device is lost. The driver owns it; callers record the
    /// driver's errors in it. It also identifies the opening of the device: a device that is opened after a
    /// reset has another.
    fn health(&self) -> &Arc<Health>;
    /// Returns whether the device's context was reset since the device was opened (about 35 ns on an H200),
    /// and records a reset in [`health`](Self::health).
    ///
    /// After a reset, every call of this driver fails with [`DriverError::CONTEXT_IS_DESTROYED`], except
    /// [`mem_unmap`](Self::mem_unmap), [`mem_release`](Self::mem_release),
    /// [`mem_address_free`](Self::mem_address_free), [`mem_free_async`](Self::mem_free_async) and
    /// [`mem_pool_destroy`](Self::mem_pool_destroy). Physical memory, its mappings and addresses, pools and
    /// the blocks of pools outlive the context, so they must be freed. Everything else is gone with the
    /// context. `millpond_driver::open` returns a new driver.
    fn was_reset(&self) -> bool {
        false
    }
    /// Waits for all work on the device, including the work of destroyed streams (`cuCtxSynchronize`).
    ///
    /// While a stream captures a graph, in any mode, this call fails and ends the capture. Call it only if
    /// the program asks for it; a library calls
    /// [`synchronize_beside_captures`](Self::synchronize_beside_captures).
    fn synchronize(&self) -> DriverResult<()>;
    /// Waits for all work on the device, including the work of destroyed streams, and ends no capture:
    /// captured operations do not run yet. Returns `Ok(false)` if it cannot wait now. Call it under a
    /// [`CaptureModeGuard`].
    ///
    /// CUDA has no such call. On the drivers that were measured, freeing pinned memory (`cuMemFreeHost`)
    /// waits, and serves instead. On other drivers this is [`synchronize`](Self::synchronize), or `Ok(false)`
    /// while a capture is seen: of a stream from [`stream_create`](Self::stream_create), or of any blocking
    /// stream.
    fn synchronize_beside_captures(&self) -> DriverResult<bool> {
        self.synchronize().map(|()| true)
    }
    /// Returns the simulated time in nanoseconds that driver calls have taken so far; `None` on a real
    /// device.
    fn virtual_time_ns(&self) -> Option<u64> {
        None
    }
    /// Returns whether another device, `peer`, can use this device's memory (`cuDeviceCanAccessPeer`);
    /// `false` if there is no such device.
    fn can_be_accessed_by(&self, peer: DeviceId) -> DriverResult<bool> {
        let _ = peer;
        Ok(false)
    }
    /// Returns the other devices, in order, that can use this device's memory and whose primary contexts are
    /// active now (`cuDevicePrimaryCtxGetState`, about 25 ns for each device on an H200).
    fn active_peers(&self) -> DriverResult<Vec<DeviceId>> {
        Ok(Vec::new())
    }
    /// Sets the calling thread's capture mode, and returns the previous one
    /// (`cuThreadExchangeStreamCaptureMode`, about 8 ns on an H200). Use [`CaptureModeGuard`], which restores
    /// it.
    fn thread_exchange_stream_capture_mode(&self, mode: CaptureMode) -> DriverResult<CaptureMode> {
        let _ = mode;
        unsupported("cuThreadExchangeStreamCaptureMode")
    }

    // --- Memory ---

    /// Allocates device memory, aligned to at least 256 bytes (`cuMemAlloc`).
    fn mem_alloc(&self, bytes: u64) -> DriverResult<DevicePtr>;
    /// Allocates managed memory, attached globally (`cuMemAllocManaged`).
    fn mem_alloc_managed(&self, bytes: u64) -> DriverResult<DevicePtr> {
        let _ = bytes;
        unsupported("cuMemAllocManaged")
    }
    /// Frees plain or managed memory (`cuMemFree`). Synchronises with the device, except with captured work
    /// that is not launched yet.
    unsafe fn mem_free(&self, ptr: DevicePtr) -> DriverResult<()>;
    /// Returns the allocation that holds `ptr`: its base and its size in bytes (`cuMemGetAddressRange`).
    fn mem_get_address_range(&self, ptr: DevicePtr) -> DriverResult<(DevicePtr, u64)> {
        let _ = ptr;
        unsupported("cuMemGetAddressRange")
    }
    /// Returns the kind of memory that `ptr` points into (`cuPointerGetAttribute`).
    fn pointer_kind(&self, ptr: DevicePtr) -> DriverResult<MemoryKind> {
        let _ = ptr;
        unsupported("cuPointerGetAttribute")
    }
    /// Moves managed memory to the device, or to the host (`cuMemPrefetchAsync`).
    unsafe fn mem_prefetch_async(
        &self,
        ptr: DevicePtr,
        bytes: u64,
        to_host: bool,
        stream: StreamRef,
    ) -> DriverResult<()> {
        let _ = (ptr, bytes, to_host, stream);
        unsupported("cuMemPrefetchAsync")
    }
    /// Advises on managed memory (`cuMemAdvise`).
    unsafe fn mem_advise(&self, ptr: DevicePtr, bytes: u64, advice: MemAdvice) -> DriverResult<()> {
        let _ = (ptr, bytes, advice);
        unsupported("cuMemAdvise")
    }

    // --- Host memory ---

    /// Allocates pinned host memory (`cuMemHostAlloc`).
    fn mem_host_alloc(&self, bytes: u64, flags: HostFlags) -> DriverResult<HostPtr> {
        let _ = (bytes, flags);
        unsupported("cuMemHostAlloc")
    }
    /// Frees pinned host memory after all work that was submitted to the device (`cuMemFreeHost`).
    unsafe fn mem_free_host(&self, ptr: HostPtr) -> DriverResult<()> {
        let _ = ptr;
        unsupported("cuMemFreeHost")
    }
    /// Pins memory that the caller allocated elsewhere (`cuMemHostRegister`).
    unsafe fn mem_host_register(&self, ptr: HostPtr, bytes: u64, flags: HostFlags) -> DriverResult<()> {
        let _ = (ptr, bytes, flags);
        unsupported("cuMemHostRegister")
    }
    /// Ends the pinning of such memory (`cuMemHostUnregister`).
    unsafe fn mem_host_unregister(&self, ptr: HostPtr) -> DriverResult<()> {
        let _ = ptr;
        unsupported("cuMemHostUnregister")
    }
    /// Returns the device's address of mapped host memory (`cuMemHostGetDevicePointer`).
    fn mem_host_get_device_pointer(&self, ptr: HostPtr) -> DriverResult<DevicePtr> {
        let _ = ptr;
        unsupported("cuMemHostGetDevicePointer")
    }

    /// Allocates memory that is not pinned, from the system's allocator. It does not call CUDA. The simulated
    /// device has a simulated host, with as much memory as it has pinned memory. The device can access the
    /// memory if [`DeviceAttribute::PageableMemoryAccess`] is 1.
    fn pageable_alloc(&self, layout: Layout) -> DriverResult<HostPtr> {
        let refused = || DriverError::new(DriverError::OUT_OF_MEMORY, "malloc");
        let layout = layout.of_host().filter(|layout| layout.size() > 0).ok_or_else(refused)?;
        // SAFETY: the size is not zero.
        let memory = unsafe { std::alloc::alloc(layout) };
        if memory.is_null() { Err(refused()) } else { Ok(HostPtr(memory.expose_provenance())) }
    }
    /// Frees memory of [`pageable_alloc`](Self::pageable_alloc) with its layout; waits for nothing.
    unsafe fn pageable_free(&self, ptr: HostPtr, layout: Layout) {
        if let Some(layout) = layout.of_host() {
            // SAFETY: the caller guarantees that the memory came from `pageable_alloc` with this layout.
            unsafe { std::alloc::dealloc(ptr.as_mut_ptr(), layout) }
        }
    }
    /// Returns the available and total bytes of the host's memory.
    fn host_memory_info(&self) -> DriverResult<MemoryInfo> {
        unsupported("host_memory_info")
    }

    // --- Stream-ordered memory and its pools ---

    /// Allocates memory in stream order from the device's current pool (`cuMemAllocAsync`).
    fn mem_alloc_async(&self, bytes: u64, stream: StreamRef) -> DriverResult<DevicePtr> {
        let _ = (bytes, stream);
        unsupported("cuMemAllocAsync")
    }
    /// Allocates memory in stream order from this pool (`cuMemAllocFromPoolAsync`).
    fn mem_alloc_from_pool_async(
        &self,
        bytes: u64,
        pool: MemPool,
        stream: StreamRef,
    ) -> DriverResult<DevicePtr> {
        let _ = (bytes, pool, stream);
        unsupported("cuMemAllocFromPoolAsync")
    }
    /// Frees memory in stream order (`cuMemFreeAsync`).
    unsafe fn mem_free_async(&self, ptr: DevicePtr, stream: StreamRef) -> DriverResult<()> {
        let _ = (ptr, stream);
        unsupported("cuMemFreeAsync")
    }
    /// Creates a pool (`cuMemPoolCreate`).
    fn mem_pool_create(&self, props: MemPoolProps) -> DriverResult<MemPool> {
        let _ = props;
        unsupported("cuMemPoolCreate")
    }
    /// Destroys a pool (`cuMemPoolDestroy`). Its blocks stay until they are freed. If it was the current
    /// pool, the device's default pool becomes current.
    unsafe fn mem_pool_destroy(&self, pool: MemPool) -> DriverResult<()> {
        let _ = pool;
        unsupported("cuMemPoolDestroy")
    }
    /// Returns the device's default pool (`cuDeviceGetDefaultMemPool`).
    fn device_get_default_mem_pool(&self) -> DriverResult<MemPool> {
        unsupported("cuDeviceGetDefaultMemPool")
    }
    /// Returns the device's current pool, from which [`mem_alloc_async`](Self::mem_alloc_async) takes
    /// (`cuDeviceGetMemPool`).
    fn device_get_mem_pool(&self) -> DriverResult<MemPool> {
        unsupported("cuDeviceGetMemPool")
    }
    /// Makes a pool of this device the current one, for the whole process (`cuDeviceSetMemPool`).
    fn device_set_mem_pool(&self, pool: MemPool) -> DriverResult<()> {
        let _ = pool;
        unsupported("cuDeviceSetMemPool")
    }
    /// Returns the default pool for a location and a kind of memory (`cuMemGetDefaultMemPool`, CUDA 13.0).
    fn mem_get_default_mem_pool(
        &self,
        location: MemLocation,
        kind: MemAllocationType,
    ) -> DriverResult<MemPool> {
        let _ = (location, kind);
        unsupported("cuMemGetDefaultMemPool")
    }
    /// Returns the current pool for a location and a kind of memory (`cuMemGetMemPool`, CUDA 13.0).
    fn mem_get_mem_pool(&self, location: MemLocation, kind: MemAllocationType) -> DriverResult<MemPool> {
        let _ = (location, kind);
        unsupported("cuMemGetMemPool")
    }
    /// Makes a pool the current one for a location and a kind of memory (`cuMemSetMemPool`, CUDA 13.0).
    fn mem_set_mem_pool(
        &self,
        location: MemLocation,
        kind: MemAllocationType,
        pool: MemPool,
    ) -> DriverResult<()> {
        let _ = (location, kind, pool);
        unsupported("cuMemSetMemPool")
    }
    /// Sets how each of these devices may use a pool's memory, now and later (`cuMemPoolSetAccess`). The
    /// device that holds the memory keeps its access.
    fn mem_pool_set_access(
        &self,
        pool: MemPool,
        access: AccessFlags,
        devices: &[DeviceId],
    ) -> DriverResult<()> {
        let _ = (pool, access, devices);
        unsupported("cuMemPoolSetAccess")
    }
    /// Returns how a device may use a pool's memory (`cuMemPoolGetAccess`).
    fn mem_pool_get_access(&self, pool: MemPool, device: DeviceId) -> DriverResult<AccessFlags> {
        let _ = (pool, device);
        unsupported("cuMemPoolGetAccess")
    }
    /// Returns a file descriptor by which another process imports a pool that was made with
    /// [`HandleTypes::POSIX_FD`] (`cuMemPoolExportToShareableHandle`). The caller closes it.
    fn mem_pool_export_to_fd(&self, pool: MemPool) -> DriverResult<i32> {
        let _ = pool;
        unsupported("cuMemPoolExportToShareableHandle")
    }
    /// Returns the pool behind such a file descriptor, which stays the caller's
    /// (`cuMemPoolImportFromShareableHandle`). An imported pool gives only the allocations that its exporter
    /// exports.
    fn mem_pool_import_from_fd(&self, fd: i32) -> DriverResult<MemPool> {
        let _ = fd;
        unsupported("cuMemPoolImportFromShareableHandle")
    }
    /// Describes an allocation of an exported pool for the importer (`cuMemPoolExportPointer`).
    fn mem_pool_export_pointer(&self, ptr: DevicePtr) -> DriverResult<MemPoolPtrData> {
        let _ = ptr;
        unsupported("cuMemPoolExportPointer")
    }
    /// Returns the allocation that the exporter described, at an address of this process
    /// (`cuMemPoolImportPointer`). Free it here before the exporter frees it.
    fn mem_pool_import_pointer(&self, pool: MemPool, data: &MemPoolPtrData) -> DriverResult<DevicePtr> {
        let _ = (pool, data);
        unsupported("cuMemPoolImportPointer")
    }
    /// Returns the pool that an address came from; `None` if no pool holds it (`cuPointerGetAttribute`).
    fn pointer_mem_pool(&self, ptr: DevicePtr) -> DriverResult<Option<MemPool>> {
        let _ = ptr;
        Ok(None)
    }
    /// Gives memory back until `keep_bytes` are left (`cuMemPoolTrimTo`).
    fn mem_pool_trim_to(&self, pool: MemPool, keep_bytes: u64) -> DriverResult<()> {
        let _ = (pool, keep_bytes);
        unsupported("cuMemPoolTrimTo")
    }
    /// Reads an attribute of a pool (`cuMemPoolGetAttribute`).
    fn mem_pool_get_attribute(&self, pool: MemPool, attribute: MemPoolAttribute) -> DriverResult<u64> {
        let _ = (pool, attribute);
        unsupported("cuMemPoolGetAttribute")
    }
    /// Sets an attribute of a pool (`cuMemPoolSetAttribute`).
    fn mem_pool_set_attribute(
        &self,
        pool: MemPool,
        attribute: MemPoolAttribute,
        value: u64,
    ) -> DriverResult<()> {
        let _ = (pool, attribute, value);
        unsupported("cuMemPoolSetAttribute")
    }

    // --- Virtual memory management ---

    /// Returns the size in bytes whose multiples all mappings have (`cuMemGetAllocationGranularity`).
    fn mem_get_allocation_granularity(&self) -> DriverResult<u64> {
        unsupported("cuMemGetAllocationGranularity")
    }
    /// Reserves addresses (`cuMemAddressReserve`).
    fn mem_address_reserve(&self, bytes: u64, alignment: u64) -> DriverResult<DevicePtr> {
        let _ = (bytes, alignment);
        unsupported("cuMemAddressReserve")
    }
    /// Frees a reservation (`cuMemAddressFree`).
    unsafe fn mem_address_free(&self, ptr: DevicePtr, bytes: u64) -> DriverResult<()> {
        let _ = (ptr, bytes);
        unsupported("cuMemAddressFree")
    }
    /// Creates physical memory without an address (`cuMemCreate`).
    fn mem_create(&self, bytes: u64, props: PhysicalProps) -> DriverResult<PhysicalHandle> {
        let _ = (bytes, props);
        unsupported("cuMemCreate")
    }
    /// Releases physical memory; the device gets it back once it is mapped nowhere (`cuMemRelease`).
    unsafe fn mem_release(&self, handle: PhysicalHandle) -> DriverResult<()> {
        let _ = handle;
        unsupported("cuMemRelease")
    }
    /// Maps the whole memory of a handle at reserved addresses (`cuMemMap`).
    unsafe fn mem_map(&self, ptr: DevicePtr, bytes: u64, handle: PhysicalHandle) -> DriverResult<()> {
        let _ = (ptr, bytes, handle);
        unsupported("cuMemMap")
    }
    /// Unmaps whole mappings (`cuMemUnmap`).
    unsafe fn mem_unmap(&self, ptr: DevicePtr, bytes: u64) -> DriverResult<()> {
        let _ = (ptr, bytes);
        unsupported("cuMemUnmap")
    }
    /// Sets how each of these devices may use mapped memory (`cuMemSetAccess`); other devices keep their
    /// access.
    unsafe fn mem_set_access(
        &self,
        ptr: DevicePtr,
        bytes: u64,
        access: AccessFlags,
        devices: &[DeviceId],
    ) -> DriverResult<()> {
        let _ = (ptr, bytes, access, devices);
        unsupported("cuMemSetAccess")
    }
    /// Returns a file descriptor by which another process imports physical memory that was made to be shared
    /// (`cuMemExportToShareableHandle`). The caller closes it; until then it keeps the memory alive.
    fn mem_export_to_fd(&self, handle: PhysicalHandle) -> DriverResult<i32> {
        let _ = handle;
        unsupported("cuMemExportToShareableHandle")
    }
    /// Returns the physical memory behind such a file descriptor, which stays the caller's
    /// (`cuMemImportFromShareableHandle`). [`mem_release`](Self::mem_release) releases it, too.
    fn mem_import_from_fd(&self, fd: i32) -> DriverResult<PhysicalHandle> {
        let _ = fd;
        unsupported("cuMemImportFromShareableHandle")
    }

    // --- Streams ---

    /// Creates a stream (`cuStreamCreateWithPriority`).
    fn stream_create(&self, flags: StreamFlags) -> DriverResult<StreamRef>;
    /// Destroys a stream; its work still runs to its end (`cuStreamDestroy`).
    unsafe fn stream_destroy(&self, stream: StreamRef) -> DriverResult<()>;
    /// Returns the stream behind a raw handle, with its unique id (`cuStreamGetId`, about 33 ns).
    ///
    /// For a stream that this driver did not make, it first asks whether the stream captures. While such a
    /// stream captures, it gets the id of the capture, because CUDA does not tell the stream's. Before CUDA
    /// 12.0 there are no ids: each call gives a stream from elsewhere another id, so keep the result to name
    /// that stream again.
    ///
    /// The caller guarantees that the handle names a living stream. If this driver did not make it, the
    /// stream must live as long as the result is [used](StreamRef::foreign).
    unsafe fn stream_ref(&self, handle: u64) -> DriverResult<StreamRef> {
        match handle {
            0 | 1 => Ok(StreamRef::LEGACY),
            2 => Ok(StreamRef::PER_THREAD),
            _ => unsupported("cuStreamGetId"),
        }
    }
    /// Returns whether a stream of this driver was destroyed or never existed; makes no CUDA call. The answer
    /// is `false` for a stream from elsewhere and for a default stream.
    fn stream_is_gone(&self, stream: StreamRef) -> bool;
    /// Waits for a stream's work (`cuStreamSynchronize`).
    fn stream_synchronize(&self, stream: StreamRef) -> DriverResult<()>;
    /// Returns whether a stream's work is done (`cuStreamQuery`).
    fn stream_query(&self, stream: StreamRef) -> DriverResult<bool>;
    /// Makes a stream's later work wait for the event (`cuStreamWaitEvent`).
    fn stream_wait_event(&self, stream: StreamRef, event: Event) -> DriverResult<()>;
    /// Returns whether the stream is capturing a graph (`cuStreamIsCapturing`). For the legacy default
    /// stream, it asks whether a blocking stream captures: then the result is the error 906. It ends no
    /// capture.
    fn stream_is_capturing(&self, stream: StreamRef) -> DriverResult<bool> {
        let _ = stream;
        Ok(false)
    }
    /// Returns the id of the capture that the stream belongs to, unique in the process; `None` if it captures
    /// nothing (`cuStreamGetCaptureInfo`). A stream that was forked into a capture belongs to it. For the
    /// legacy default stream, it answers as [`stream_is_capturing`](Self::stream_is_capturing). An
    /// invalidated capture may have no id: then the result is the error 901.
    fn stream_capture_id(&self, stream: StreamRef) -> DriverResult<Option<u64>> {
        let _ = stream;
        Ok(None)
    }

    // --- Events ---

    /// Creates an event (`cuEventCreate`).
    fn event_create(&self, flags: EventFlags) -> DriverResult<Event>;
    /// Destroys an event (`cuEventDestroy`).
    unsafe fn event_destroy(&self, event: Event) -> DriverResult<()>;
    /// Records the event at the stream's present end (`cuEventRecord`).
    fn event_record(&self, event: Event, stream: StreamRef) -> DriverResult<()>;
    /// Records the event if the stream is surely alive, and returns whether it did.
    ///
    /// It is for callers that hold a stream from an earlier call, and cannot know whether it was destroyed
    /// since. Surely alive are the legacy default stream, and streams from
    /// [`stream_create`](Self::stream_create) that were not destroyed through
    /// [`stream_destroy`](Self::stream_destroy). No stream is destroyed between check and record. For a
    /// stream from elsewhere, and for a per-thread stream, the result is `Ok(false)`.
    ///
    /// On a capturing stream the record would become a part of the graph, so the result is `Ok(false)`, too.
    /// If a capture begins during the call, the result is [`DriverError::CAPTURED_EVENT`]. The event must
    /// then be recorded again before anything waits for it.
    fn event_record_if_alive(&self, event: Event, stream: StreamRef) -> DriverResult<bool> {
        let _ = (event, stream);
        Ok(false)
    }
    /// Returns whether all work before the event's last record is done (`cuEventQuery`).
    fn event_query(&self, event: Event) -> DriverResult<bool>;
    /// Waits for the event (`cuEventSynchronize`).
    fn event_synchronize(&self, event: Event) -> DriverResult<()>;

    // --- Copies and fills ---

    /// Copies from host to device (`cuMemcpyHtoDAsync`).
    unsafe fn memcpy_htod_async(
        &self,
        dst: DevicePtr,
        src: *const u8,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()>;
    /// Copies from device to host (`cuMemcpyDtoHAsync`).
    unsafe fn memcpy_dtoh_async(
        &self,
        dst: *mut u8,
        src: DevicePtr,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()>;
    /// Copies within the device (`cuMemcpyDtoDAsync`).
    unsafe fn memcpy_dtod_async(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()>;
    /// Copies from another device to this one, on a stream of this one (`cuMemcpyPeerAsync`). Neither device
    /// needs access to the other's memory. A device that is not on this machine gives the error
    /// [`DriverError::INVALID_DEVICE`].
    unsafe fn memcpy_peer_async(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        src_device: DeviceId,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        let _ = (dst, src, src_device, bytes, stream);
        unsupported("cuMemcpyPeerAsync")
    }
    /// Fills bytes (`cuMemsetD8Async`).
    unsafe fn memset_d8_async(
        &self,
        dst: DevicePtr,
        value: u8,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()>;

    // --- Between processes ---

    /// Returns a handle by which another process opens the allocation at `ptr`, its base
    /// (`cuIpcGetMemHandle`).
    fn ipc_get_mem_handle(&self, ptr: DevicePtr) -> DriverResult<IpcMemHandle> {
        let _ = ptr;
        unsupported("cuIpcGetMemHandle")
    }
    /// Opens another process's allocation (`cuIpcOpenMemHandle`).
    fn ipc_open_mem_handle(&self, handle: &IpcMemHandle) -> DriverResult<DevicePtr> {
        let _ = handle;
        unsupported("cuIpcOpenMemHandle")
    }
    /// Closes another process's allocation (`cuIpcCloseMemHandle`).
    unsafe fn ipc_close_mem_handle(&self, ptr: DevicePtr) -> DriverResult<()> {
        let _ = ptr;
        unsupported("cuIpcCloseMemHandle")
    }
}
