//! The trait [`Driver`].

use std::fmt::Debug;
use std::sync::Arc;

use super::defaults::{self, unsupported};
use super::error::DriverResult;
use super::health::Health;
use super::pools::{
    AccessLocation, FabricHandle, GraphMemAttribute, MemAllocationType, MemLocation, MemPool,
    MemPoolAttribute, MemPoolProps, MemPoolPtrData,
};
use super::types::{
    AccessFlags, CaptureMode, DeviceAttribute, Event, EventFlags, HostFlags, HostPtr, IpcMemHandle,
    MemAdvice, MemoryInfo, MemoryKind, PhysicalHandle, PhysicalProps, StreamFlags,
};
#[expect(unused_imports, reason = "the documentation links to them")]
use super::{error::DriverError, pools::HandleTypes};
use crate::{DeviceId, DevicePtr, Layout, StreamRef};

/// One device: its memory, streams and events.
///
/// Most methods do the same as one function of CUDA's driver API. The name of that function is the method's
/// name with the prefix `cu`. No method changes the calling thread's current context.
///
/// # A driver of your own
/// Implement the methods without a default: memory, streams, events and copies. They and
/// [`attribute`](Self::attribute) are enough for a pool that does not map pages. The other methods have a
/// default, which either returns an error that [is unsupported](DriverError::is_unsupported), or reports that
/// there is no capture and no other device. An installed CUDA driver may lack any single function. So callers
/// must expect that any method is unsupported.
///
/// If a call names a stream or an event that does not exist (any more), your driver returns
/// [`INVALID_HANDLE`](DriverError::INVALID_HANDLE). `millpond_testkit::conformance::driver` tests a driver.
/// `examples/own_driver.rs` is a driver over host memory. If your driver wraps another driver, implement
/// every method, and put `#[deny(clippy::missing_trait_methods)]` on the impl.
///
/// # Errors
/// Every method returns the driver's error unchanged. If the installed driver lacks a function, the method
/// returns an error that [is unsupported](DriverError::is_unsupported). It never panics.
///
/// # Panics
/// The drivers of millpond never panic. If a method of your driver panics, the method must have had no
/// effect. The resources then continue as if the call had not been made.
///
/// # Safety of the unsafe methods
/// Unsafe methods free or access memory. The caller guarantees three conditions:
/// - Pointers and handles come from this driver, and are not used after they were freed.
/// - Ranges are in bounds.
/// - Accesses are ordered against other work as CUDA requires.
#[allow(clippy::missing_safety_doc)] // said once, above
pub trait Driver: Debug + Send + Sync + 'static {
    // --- The device ---

    /// Returns the id of this device.
    fn device(&self) -> DeviceId;
    /// Returns a name of the device that people can read.
    fn name(&self) -> String {
        self.device().to_string()
    }
    /// Returns the version of the driver API as CUDA numbers it (13000 is 13.0); 0 on a simulated device.
    fn version(&self) -> DriverResult<i32> {
        Ok(0)
    }
    /// Returns one attribute of the device. An attribute that the driver does not know is unsupported.
    fn attribute(&self, attribute: DeviceAttribute) -> DriverResult<i64> {
        let _ = attribute;
        unsupported("cuDeviceGetAttribute")
    }
    /// Returns the free and total bytes of the device's memory (`cuMemGetInfo`, about 3 µs on an H200).
    fn mem_get_info(&self) -> DriverResult<MemoryInfo>;
    /// Returns the [`Health`] of the device, which records whether the device is lost. The driver owns the
    /// `Health`, and callers record the driver's errors in it. If a program opens the device again after a
    /// reset, the new driver has a new `Health`.
    fn health(&self) -> &Arc<Health>;
    /// Returns whether the device's context was reset after the device was opened (about 35 ns on an H200).
    /// If so, this method also records the reset in [`health`](Self::health).
    ///
    /// After a reset, every call of this driver fails with [`DriverError::CONTEXT_IS_DESTROYED`], except
    /// [`mem_unmap`](Self::mem_unmap), [`mem_release`](Self::mem_release),
    /// [`mem_address_free`](Self::mem_address_free), [`mem_free_async`](Self::mem_free_async) and
    /// [`mem_pool_destroy`](Self::mem_pool_destroy). These methods free objects that outlive the context:
    /// physical memory, its mappings and addresses, pools, and the blocks of pools. All other objects are
    /// lost with the context. To use the device again, open a new driver with `millpond_driver::open`.
    fn was_reset(&self) -> bool {
        false
    }
    /// Waits for all work on the device, including the work of destroyed streams (`cuCtxSynchronize`).
    ///
    /// While any stream captures a graph, in any mode, this call fails and ends the capture. So a program may
    /// call this method, but a library calls
    /// [`synchronize_beside_captures`](Self::synchronize_beside_captures) instead.
    fn synchronize(&self) -> DriverResult<()>;
    /// Waits for all work on the device, including the work of destroyed streams, without ending a capture.
    /// The method does not wait for captured operations, because they do not run during the capture. Returns
    /// `Ok(false)` if the driver cannot wait now. Call this method under a
    /// [`CaptureModeGuard`](super::CaptureModeGuard).
    ///
    /// CUDA has no function for this purpose. On the drivers that were measured, freeing pinned memory
    /// (`cuMemFreeHost`) waits for all work. On these drivers, this method allocates and frees some pinned
    /// memory. On other drivers, the method first looks for captures on streams from
    /// [`stream_create`](Self::stream_create), and on blocking streams. If the method finds a capture, it
    /// returns `Ok(false)`. Otherwise it calls [`synchronize`](Self::synchronize).
    fn synchronize_beside_captures(&self) -> DriverResult<bool> {
        self.synchronize().map(|()| true)
    }
    /// Returns the sum of the simulated times that the driver calls have taken so far, in nanoseconds.
    /// Returns `None` on a real device.
    fn virtual_time_ns(&self) -> Option<u64> {
        None
    }
    /// Returns whether the device `peer` can access this device's memory (`cuDeviceCanAccessPeer`). Returns
    /// `false` if there is no such device.
    fn can_be_accessed_by(&self, peer: DeviceId) -> DriverResult<bool> {
        let _ = peer;
        Ok(false)
    }
    /// Returns the other devices that can access this device's memory, and whose primary contexts are active
    /// now. The result is in the order of the devices' numbers. For each device, the driver calls
    /// `cuDevicePrimaryCtxGetState`, which takes about 25 ns on an H200.
    fn active_peers(&self) -> DriverResult<Vec<DeviceId>> {
        Ok(Vec::new())
    }
    /// Sets the calling thread's capture mode, and returns the previous mode
    /// (`cuThreadExchangeStreamCaptureMode`, about 8 ns on an H200). Prefer
    /// [`CaptureModeGuard`](super::CaptureModeGuard), which restores the previous mode.
    fn thread_exchange_stream_capture_mode(&self, mode: CaptureMode) -> DriverResult<CaptureMode> {
        let _ = mode;
        unsupported("cuThreadExchangeStreamCaptureMode")
    }

    // --- Memory ---

    /// Allocates device memory, aligned to at least 256 bytes, for any stream (`cuMemAlloc`). For 0 bytes,
    /// the error is [`INVALID_VALUE`](DriverError::INVALID_VALUE). For any other size that the device cannot
    /// serve, even an absurdly large one, it is [`OUT_OF_MEMORY`](DriverError::OUT_OF_MEMORY).
    fn mem_alloc(&self, bytes: u64) -> DriverResult<DevicePtr>;
    /// Allocates managed memory that all streams may use (`cuMemAllocManaged`, attached globally).
    fn mem_alloc_managed(&self, bytes: u64) -> DriverResult<DevicePtr> {
        let _ = bytes;
        unsupported("cuMemAllocManaged")
    }
    /// Frees plain or managed memory (`cuMemFree`). First waits for all work on the device, except captured
    /// work that has not been launched. If no allocation starts at `ptr`, the error is
    /// [`INVALID_VALUE`](DriverError::INVALID_VALUE).
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
    /// Moves managed memory to the device or to the host (`cuMemPrefetchAsync`).
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
    /// Tells the driver how managed memory will be used (`cuMemAdvise`).
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
    /// Frees pinned host memory (`cuMemFreeHost`). First waits for all work that was submitted to the device.
    unsafe fn mem_free_host(&self, ptr: HostPtr) -> DriverResult<()> {
        let _ = ptr;
        unsupported("cuMemFreeHost")
    }
    /// Pins host memory that the caller allocated elsewhere (`cuMemHostRegister`).
    unsafe fn mem_host_register(&self, ptr: HostPtr, bytes: u64, flags: HostFlags) -> DriverResult<()> {
        let _ = (ptr, bytes, flags);
        unsupported("cuMemHostRegister")
    }
    /// Unpins memory that [`mem_host_register`](Self::mem_host_register) pinned (`cuMemHostUnregister`).
    unsafe fn mem_host_unregister(&self, ptr: HostPtr) -> DriverResult<()> {
        let _ = ptr;
        unsupported("cuMemHostUnregister")
    }
    /// Returns the address at which the device accesses mapped host memory (`cuMemHostGetDevicePointer`).
    fn mem_host_get_device_pointer(&self, ptr: HostPtr) -> DriverResult<DevicePtr> {
        let _ = ptr;
        unsupported("cuMemHostGetDevicePointer")
    }
    /// Allocates pageable host memory (memory that is not pinned) from the system's allocator.
    ///
    /// The device can access the memory if [`DeviceAttribute::PageableMemoryAccess`] is 1. On a simulated
    /// device, the sum of pageable and pinned memory cannot exceed the memory of the simulated host.
    fn pageable_alloc(&self, layout: Layout) -> DriverResult<HostPtr> {
        defaults::pageable_alloc(layout)
    }
    /// Frees memory from [`pageable_alloc`](Self::pageable_alloc) with its layout. Waits for no work.
    unsafe fn pageable_free(&self, ptr: HostPtr, layout: Layout) {
        // SAFETY: the caller guarantees that the memory came from `pageable_alloc` with this layout.
        unsafe { defaults::pageable_free(ptr, layout) }
    }
    /// Returns the available bytes (as `free`) and the total bytes of the host's memory.
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
    /// Destroys a pool (`cuMemPoolDestroy`). The blocks of the pool stay valid until they are freed. If the
    /// pool was the current pool of the device, the default pool becomes the current pool.
    unsafe fn mem_pool_destroy(&self, pool: MemPool) -> DriverResult<()> {
        let _ = pool;
        unsupported("cuMemPoolDestroy")
    }
    /// Returns the device's default pool (`cuDeviceGetDefaultMemPool`).
    fn device_get_default_mem_pool(&self) -> DriverResult<MemPool> {
        unsupported("cuDeviceGetDefaultMemPool")
    }
    /// Returns the device's current pool (`cuDeviceGetMemPool`). [`mem_alloc_async`](Self::mem_alloc_async)
    /// allocates from the current pool.
    fn device_get_mem_pool(&self) -> DriverResult<MemPool> {
        unsupported("cuDeviceGetMemPool")
    }
    /// Makes a pool the current pool of this device, for the whole process (`cuDeviceSetMemPool`).
    fn device_set_mem_pool(&self, pool: MemPool) -> DriverResult<()> {
        let _ = pool;
        unsupported("cuDeviceSetMemPool")
    }
    /// Returns a location's default pool for a kind of memory (`cuMemGetDefaultMemPool`, since CUDA 13.0).
    fn mem_get_default_mem_pool(
        &self,
        location: MemLocation,
        kind: MemAllocationType,
    ) -> DriverResult<MemPool> {
        let _ = (location, kind);
        unsupported("cuMemGetDefaultMemPool")
    }
    /// Returns the current pool for a location and a kind of memory (`cuMemGetMemPool`, since CUDA 13.0).
    fn mem_get_mem_pool(&self, location: MemLocation, kind: MemAllocationType) -> DriverResult<MemPool> {
        let _ = (location, kind);
        unsupported("cuMemGetMemPool")
    }
    /// Makes a pool the current pool for a location and a kind of memory (`cuMemSetMemPool`, since CUDA
    /// 13.0).
    fn mem_set_mem_pool(
        &self,
        location: MemLocation,
        kind: MemAllocationType,
        pool: MemPool,
    ) -> DriverResult<()> {
        let _ = (location, kind, pool);
        unsupported("cuMemSetMemPool")
    }
    /// Sets the access from each of these places to a pool's memory (`cuMemPoolSetAccess`). The setting
    /// applies to the memory that the pool holds now, and to memory that the pool allocates later. The device
    /// that holds the memory always keeps its access.
    fn mem_pool_set_access(
        &self,
        pool: MemPool,
        access: AccessFlags,
        from: &[AccessLocation],
    ) -> DriverResult<()> {
        let _ = (pool, access, from);
        unsupported("cuMemPoolSetAccess")
    }
    /// Returns the access from a place to a pool's memory (`cuMemPoolGetAccess`).
    fn mem_pool_get_access(&self, pool: MemPool, from: AccessLocation) -> DriverResult<AccessFlags> {
        let _ = (pool, from);
        unsupported("cuMemPoolGetAccess")
    }
    /// Returns a file descriptor through which another process can import the pool
    /// (`cuMemPoolExportToShareableHandle`). The pool must have been created with [`HandleTypes::POSIX_FD`].
    /// The caller must close the descriptor.
    fn mem_pool_export_to_fd(&self, pool: MemPool) -> DriverResult<i32> {
        let _ = pool;
        unsupported("cuMemPoolExportToShareableHandle")
    }
    /// Imports a pool of another process (`cuMemPoolImportFromShareableHandle`). The file descriptor `fd`
    /// comes from [`mem_pool_export_to_fd`](Self::mem_pool_export_to_fd) in that process. The caller still
    /// owns the descriptor. The imported pool contains only the allocations that the other process exports.
    fn mem_pool_import_from_fd(&self, fd: i32) -> DriverResult<MemPool> {
        let _ = fd;
        unsupported("cuMemPoolImportFromShareableHandle")
    }
    /// Returns a fabric handle through which other processes and other machines can import the pool
    /// (`cuMemPoolExportToShareableHandle`). The pool must have been created with [`HandleTypes::FABRIC`].
    fn mem_pool_export_to_fabric(&self, pool: MemPool) -> DriverResult<FabricHandle> {
        let _ = pool;
        unsupported("cuMemPoolExportToShareableHandle")
    }
    /// Imports a pool through a handle from [`mem_pool_export_to_fabric`](Self::mem_pool_export_to_fabric)
    /// (`cuMemPoolImportFromShareableHandle`).
    fn mem_pool_import_from_fabric(&self, handle: &FabricHandle) -> DriverResult<MemPool> {
        let _ = handle;
        unsupported("cuMemPoolImportFromShareableHandle")
    }
    /// Returns data that describes an allocation of an exported pool (`cuMemPoolExportPointer`). A process
    /// that imported the pool can open the allocation with this data.
    fn mem_pool_export_pointer(&self, ptr: DevicePtr) -> DriverResult<MemPoolPtrData> {
        let _ = ptr;
        unsupported("cuMemPoolExportPointer")
    }
    /// Opens an allocation that another process described, and returns its address in this process
    /// (`cuMemPoolImportPointer`). Free the address in this process before the other process frees the
    /// allocation.
    fn mem_pool_import_pointer(&self, pool: MemPool, data: &MemPoolPtrData) -> DriverResult<DevicePtr> {
        let _ = (pool, data);
        unsupported("cuMemPoolImportPointer")
    }
    /// Returns the pool that contains this address; `None` if no pool contains it (`cuPointerGetAttribute`).
    fn pointer_mem_pool(&self, ptr: DevicePtr) -> DriverResult<Option<MemPool>> {
        let _ = ptr;
        Ok(None)
    }
    /// Releases unused memory of a pool to the device, until the pool holds `keep_bytes` (`cuMemPoolTrimTo`).
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
    /// Reads a count of the memory that graphs allocate (`cuDeviceGetGraphMemAttribute`).
    fn device_get_graph_mem_attribute(&self, _attribute: GraphMemAttribute) -> DriverResult<u64> {
        unsupported("cuDeviceGetGraphMemAttribute")
    }
    /// Restarts a high of the memory that graphs allocate (`cuDeviceSetGraphMemAttribute` with 0).
    fn device_reset_graph_mem_attribute(&self, _attribute: GraphMemAttribute) -> DriverResult<()> {
        unsupported("cuDeviceSetGraphMemAttribute")
    }
    /// Releases the unused memory that the driver keeps for graphs (`cuDeviceGraphMemTrim`).
    fn device_graph_mem_trim(&self) -> DriverResult<()> {
        unsupported("cuDeviceGraphMemTrim")
    }

    // --- Virtual memory management ---

    /// Returns the granularity of mappings in bytes (`cuMemGetAllocationGranularity`). The size of each
    /// mapping is a multiple of the granularity.
    fn mem_get_allocation_granularity(&self) -> DriverResult<u64> {
        unsupported("cuMemGetAllocationGranularity")
    }
    /// Reserves a range of addresses (`cuMemAddressReserve`).
    fn mem_address_reserve(&self, bytes: u64, alignment: u64) -> DriverResult<DevicePtr> {
        let _ = (bytes, alignment);
        unsupported("cuMemAddressReserve")
    }
    /// Frees a reserved range of addresses (`cuMemAddressFree`).
    unsafe fn mem_address_free(&self, ptr: DevicePtr, bytes: u64) -> DriverResult<()> {
        let _ = (ptr, bytes);
        unsupported("cuMemAddressFree")
    }
    /// Creates physical memory that has no address yet (`cuMemCreate`).
    fn mem_create(&self, bytes: u64, props: PhysicalProps) -> DriverResult<PhysicalHandle> {
        let _ = (bytes, props);
        unsupported("cuMemCreate")
    }
    /// Releases physical memory (`cuMemRelease`). The memory returns to the device when no mapping of it is
    /// left.
    unsafe fn mem_release(&self, handle: PhysicalHandle) -> DriverResult<()> {
        let _ = handle;
        unsupported("cuMemRelease")
    }
    /// Maps physical memory at reserved addresses (`cuMemMap`). The mapping contains the whole memory of the
    /// handle.
    unsafe fn mem_map(&self, ptr: DevicePtr, bytes: u64, handle: PhysicalHandle) -> DriverResult<()> {
        let _ = (ptr, bytes, handle);
        unsupported("cuMemMap")
    }
    /// Unmaps a range of addresses, which must contain only whole mappings (`cuMemUnmap`).
    unsafe fn mem_unmap(&self, ptr: DevicePtr, bytes: u64) -> DriverResult<()> {
        let _ = (ptr, bytes);
        unsupported("cuMemUnmap")
    }
    /// Sets the access of each of these devices to mapped memory (`cuMemSetAccess`). The access of other
    /// devices does not change.
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
    /// Returns a file descriptor through which another process can import physical memory
    /// (`cuMemExportToShareableHandle`). The memory must have been created with [`PhysicalProps::share_fd`].
    /// The descriptor keeps the memory alive until the caller closes the descriptor.
    fn mem_export_to_fd(&self, handle: PhysicalHandle) -> DriverResult<i32> {
        let _ = handle;
        unsupported("cuMemExportToShareableHandle")
    }
    /// Imports physical memory of another process (`cuMemImportFromShareableHandle`). The file descriptor
    /// `fd` comes from [`mem_export_to_fd`](Self::mem_export_to_fd). The caller still owns the descriptor. To
    /// release the imported memory, call [`mem_release`](Self::mem_release).
    fn mem_import_from_fd(&self, fd: i32) -> DriverResult<PhysicalHandle> {
        let _ = fd;
        unsupported("cuMemImportFromShareableHandle")
    }

    // --- Streams ---

    /// Creates a stream (`cuStreamCreateWithPriority`). Your own driver calls [`StreamRef::with_new_id`].
    fn stream_create(&self, flags: StreamFlags) -> DriverResult<StreamRef>;
    /// Destroys a stream (`cuStreamDestroy`). Work that was submitted earlier still runs to its end.
    unsafe fn stream_destroy(&self, stream: StreamRef) -> DriverResult<()>;
    /// Returns the stream with this raw handle, including its unique id (`cuStreamGetId`, about 33 ns).
    ///
    /// If this driver did not make the stream, the method first asks whether the stream is capturing. During
    /// a capture, CUDA does not report the stream's id, so the result has the id of the capture instead.
    /// Before CUDA 12.0, streams have no ids. For a stream that this driver did not make, each call then
    /// returns a new id. To name the same stream again, keep the result.
    ///
    /// The caller guarantees that the handle names a living stream. If this driver did not make the stream,
    /// the stream must live as long as the result is [used](StreamRef::foreign).
    unsafe fn stream_ref(&self, handle: u64) -> DriverResult<StreamRef> {
        match handle {
            0 | 1 => Ok(StreamRef::LEGACY),
            2 => Ok(StreamRef::PER_THREAD),
            _ => unsupported("cuStreamGetId"),
        }
    }
    /// Returns whether this stream was destroyed or never existed, so that calls with it fail. Makes no CUDA
    /// call. The result is `false` for a default stream (handle 0, 1 or 2), for a
    /// [foreign](StreamRef::is_foreign) stream, and for a living stream that this driver made.
    fn stream_is_gone(&self, stream: StreamRef) -> bool;
    /// Waits for all work that was submitted to a stream (`cuStreamSynchronize`).
    fn stream_synchronize(&self, stream: StreamRef) -> DriverResult<()>;
    /// Returns whether all work that was submitted to a stream is done (`cuStreamQuery`).
    fn stream_query(&self, stream: StreamRef) -> DriverResult<bool>;
    /// Makes later work on a stream wait for the event (`cuStreamWaitEvent`).
    fn stream_wait_event(&self, stream: StreamRef, event: Event) -> DriverResult<()>;
    /// Returns whether the stream is capturing a graph (`cuStreamIsCapturing`). The call does not end the
    /// capture. If any blocking stream captures, the result for the legacy default stream is the error
    /// [`DriverError::STREAM_CAPTURE_IMPLICIT`].
    fn stream_is_capturing(&self, stream: StreamRef) -> DriverResult<bool> {
        let _ = stream;
        Ok(false)
    }
    /// Returns the id of the capture to which the stream belongs (`cuStreamGetCaptureInfo`). No two captures
    /// of a process have the same id. Returns `None` if the stream is not capturing. A stream that joined the
    /// capture of another stream belongs to the same capture.
    ///
    /// For the legacy default stream, the method can return the same error as
    /// [`stream_is_capturing`](Self::stream_is_capturing). If an invalidated capture has no id, the error is
    /// [`DriverError::STREAM_CAPTURE_INVALIDATED`].
    fn stream_capture_id(&self, stream: StreamRef) -> DriverResult<Option<u64>> {
        let _ = stream;
        Ok(None)
    }

    // --- Events ---

    /// Creates an event (`cuEventCreate`).
    fn event_create(&self, flags: EventFlags) -> DriverResult<Event>;
    /// Destroys an event (`cuEventDestroy`).
    unsafe fn event_destroy(&self, event: Event) -> DriverResult<()>;
    /// Records the event after all work that was submitted to the stream so far (`cuEventRecord`).
    fn event_record(&self, event: Event, stream: StreamRef) -> DriverResult<()>;
    /// Records the event on a stream if the driver can tell that the stream is alive. Returns whether the
    /// driver recorded the event.
    ///
    /// Use this method for a stream that you know from an earlier call and that may have been destroyed
    /// since. The driver can tell that two kinds of streams are alive. One is the legacy default stream. The
    /// other is a stream from [`stream_create`](Self::stream_create) that was not destroyed with
    /// [`stream_destroy`](Self::stream_destroy). No stream is destroyed between the check and the record. For
    /// a per-thread stream, and for a stream that this driver did not make, the result is `Ok(false)`.
    ///
    /// On a capturing stream, the record would become a part of the graph. So the driver does not record the
    /// event there, and the result is `Ok(false)`. If a capture begins during the call, the result is
    /// [`DriverError::CAPTURED_EVENT`]. In this case, record the event again before any stream or thread
    /// waits for it.
    fn event_record_if_alive(&self, event: Event, stream: StreamRef) -> DriverResult<bool> {
        let _ = (event, stream);
        Ok(false)
    }
    /// Returns whether the work before the last record of the event, if any, is done (`cuEventQuery`).
    fn event_query(&self, event: Event) -> DriverResult<bool>;
    /// Waits for the work before the last record of the event (`cuEventSynchronize`).
    fn event_synchronize(&self, event: Event) -> DriverResult<()>;

    // --- Copies and fills ---

    /// Copies from host memory to device memory, in the order of a stream (`cuMemcpyHtoDAsync`).
    unsafe fn memcpy_htod_async(
        &self,
        dst: DevicePtr,
        src: *const u8,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()>;
    /// Copies from device memory to host memory, in the order of a stream (`cuMemcpyDtoHAsync`).
    unsafe fn memcpy_dtoh_async(
        &self,
        dst: *mut u8,
        src: DevicePtr,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()>;
    /// Copies within the memory of the device, in the order of a stream (`cuMemcpyDtoDAsync`).
    unsafe fn memcpy_dtod_async(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()>;
    /// Copies from another device to this device, in the order of a stream of this device
    /// (`cuMemcpyPeerAsync`). The copy works even if neither device can access the other's memory. If the
    /// other device is not on this machine, the error is [`DriverError::INVALID_DEVICE`].
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
    /// Sets each byte of a range to a value, in the order of a stream (`cuMemsetD8Async`).
    unsafe fn memset_d8_async(
        &self,
        dst: DevicePtr,
        value: u8,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()>;

    // --- Between processes ---

    /// Returns a handle through which another process can open the allocation that starts at `ptr`
    /// (`cuIpcGetMemHandle`).
    fn ipc_get_mem_handle(&self, ptr: DevicePtr) -> DriverResult<IpcMemHandle> {
        let _ = ptr;
        unsupported("cuIpcGetMemHandle")
    }
    /// Opens an allocation of another process, and returns its address in this process
    /// (`cuIpcOpenMemHandle`).
    fn ipc_open_mem_handle(&self, handle: &IpcMemHandle) -> DriverResult<DevicePtr> {
        let _ = handle;
        unsupported("cuIpcOpenMemHandle")
    }
    /// Closes an allocation of another process (`cuIpcCloseMemHandle`).
    unsafe fn ipc_close_mem_handle(&self, ptr: DevicePtr) -> DriverResult<()> {
        let _ = ptr;
        unsupported("cuIpcCloseMemHandle")
    }
}
