//! The interface to a device. CUDA and the simulated device implement it.
//!
//! A [`Driver`] is one device. Every call that millpond makes to CUDA goes through this trait. The simulated
//! device implements the same trait, so the code above runs on it unchanged. The crate `millpond-driver`
//! holds both implementations.

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
/// A method does the same as one function of CUDA's driver API. The name of that function is the method's
/// name with the prefix `cu`. No method changes the calling thread's current context.
///
/// # A driver of your own
/// Implement the methods without a default: memory, streams, events and copies. They are enough for a pool
/// that does not map pages. A default method returns an error that [is
/// unsupported](DriverError::is_unsupported), or reports that there is no capture and no other device.
///
/// An installed CUDA may lack any single function. So callers must expect that any method is unsupported.
/// `examples/own_driver.rs` is a driver over host memory. A wrapper implements every method, and has
/// `#[deny(clippy::missing_trait_methods)]` on the impl.
///
/// # Errors
/// Every method returns the driver's error unchanged. If the installed driver lacks a function, the method
/// returns [`DriverError::is_unsupported`] and never panics.
///
/// # Panics
/// No driver of millpond panics. If a method of another driver panics, it must have had no effect: the
/// resources continue as if the call had not been made.
///
/// # Safety of the unsafe methods
/// Unsafe methods free or access memory. The caller guarantees that pointers and handles came from this
/// driver and are not used after they were freed. It also guarantees that ranges are in bounds, and that
/// accesses are ordered against other work as CUDA requires.
#[allow(clippy::missing_safety_doc)] // said once, above
pub trait Driver: Debug + Send + Sync + 'static {
    // --- The device ---

    /// Returns the id of this device.
    fn device(&self) -> DeviceId;
    /// Returns a name of the device for people to read.
    fn name(&self) -> String {
        self.device().to_string()
    }
    /// Returns the version of the driver API as CUDA numbers it (13000 is 13.0); 0 on a simulated device.
    fn version(&self) -> DriverResult<i32> {
        Ok(0)
    }
    /// Returns one attribute of the device.
    fn attribute(&self, attribute: DeviceAttribute) -> DriverResult<i64> {
        let _ = attribute;
        unsupported("cuDeviceGetAttribute")
    }
    /// Returns the free and total bytes of the device (`cuMemGetInfo`, about 3 µs on an H200).
    fn mem_get_info(&self) -> DriverResult<MemoryInfo>;
    /// Returns the flag that tells whether the device is lost. The driver owns the flag, and callers record
    /// the driver's errors in it. If the device is opened again after a reset, the new driver has a new flag.
    fn health(&self) -> &Arc<Health>;
    /// Returns whether the device's context was reset since the device was opened (about 35 ns on an H200).
    /// Also records a reset in [`health`](Self::health).
    ///
    /// After a reset, every call of this driver fails with [`DriverError::CONTEXT_IS_DESTROYED`], except
    /// [`mem_unmap`](Self::mem_unmap), [`mem_release`](Self::mem_release),
    /// [`mem_address_free`](Self::mem_address_free), [`mem_free_async`](Self::mem_free_async) and
    /// [`mem_pool_destroy`](Self::mem_pool_destroy). These calls free the things that outlive the context:
    /// physical memory, its mappings and addresses, pools, and the blocks of pools. Everything else is gone
    /// with the context. To go on, open the device again: `millpond_driver::open` returns a new driver.
    fn was_reset(&self) -> bool {
        false
    }
    /// Waits for all work on the device, including the work of destroyed streams (`cuCtxSynchronize`).
    ///
    /// While any stream captures a graph, in any mode, this call fails and ends the capture. So call it only
    /// if the program asks for it. A library calls
    /// [`synchronize_beside_captures`](Self::synchronize_beside_captures) instead.
    fn synchronize(&self) -> DriverResult<()>;
    /// Waits for all work on the device, including the work of destroyed streams, without ending a capture.
    /// It does not wait for captured operations, because they do not run yet. Returns `Ok(false)` if it
    /// cannot wait now. Call it under a [`CaptureModeGuard`].
    ///
    /// CUDA has no such call. On the drivers that were measured, freeing pinned memory (`cuMemFreeHost`)
    /// waits for all work. On these drivers, this method allocates and frees some pinned memory. On other
    /// drivers, it first looks for captures: of streams from [`stream_create`](Self::stream_create), and of
    /// blocking streams. If it finds a capture, it returns `Ok(false)`. Otherwise it calls
    /// [`synchronize`](Self::synchronize).
    fn synchronize_beside_captures(&self) -> DriverResult<bool> {
        self.synchronize().map(|()| true)
    }
    /// Returns the simulated time in nanoseconds that driver calls have taken so far; `None` on a real
    /// device.
    fn virtual_time_ns(&self) -> Option<u64> {
        None
    }
    /// Returns whether the device `peer` can access this device's memory (`cuDeviceCanAccessPeer`); `false`
    /// if there is no such device.
    fn can_be_accessed_by(&self, peer: DeviceId) -> DriverResult<bool> {
        let _ = peer;
        Ok(false)
    }
    /// Returns the other devices whose primary contexts are active now and that can access this device's
    /// memory. They are in the order of their numbers. The driver asks `cuDevicePrimaryCtxGetState`, which
    /// takes about 25 ns for each device on an H200.
    fn active_peers(&self) -> DriverResult<Vec<DeviceId>> {
        Ok(Vec::new())
    }
    /// Sets the calling thread's capture mode, and returns the previous mode
    /// (`cuThreadExchangeStreamCaptureMode`, about 8 ns on an H200). Prefer [`CaptureModeGuard`], which
    /// restores the previous mode.
    fn thread_exchange_stream_capture_mode(&self, mode: CaptureMode) -> DriverResult<CaptureMode> {
        let _ = mode;
        unsupported("cuThreadExchangeStreamCaptureMode")
    }

    // --- Memory ---

    /// Allocates device memory, aligned to at least 256 bytes (`cuMemAlloc`).
    fn mem_alloc(&self, bytes: u64) -> DriverResult<DevicePtr>;
    /// Allocates managed memory that all streams may use (`cuMemAllocManaged`, attached globally).
    fn mem_alloc_managed(&self, bytes: u64) -> DriverResult<DevicePtr> {
        let _ = bytes;
        unsupported("cuMemAllocManaged")
    }
    /// Frees plain or managed memory (`cuMemFree`). Waits for all work on the device, except captured work
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
    /// Frees pinned host memory. First waits for all work that was submitted to the device (`cuMemFreeHost`).
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

    /// Allocates host memory that is not pinned, from the system's allocator, without a call of CUDA. On the
    /// simulated device, pageable and pinned memory together are limited to the memory of the simulated host.
    /// The device can access the memory if [`DeviceAttribute::PageableMemoryAccess`] is 1.
    fn pageable_alloc(&self, layout: Layout) -> DriverResult<HostPtr> {
        let refused = || DriverError::new(DriverError::OUT_OF_MEMORY, "malloc");
        let layout = layout.of_host().filter(|layout| layout.size() > 0).ok_or_else(refused)?;
        // SAFETY: the size is not zero.
        let memory = unsafe { std::alloc::alloc(layout) };
        if memory.is_null() { Err(refused()) } else { Ok(HostPtr(memory.expose_provenance())) }
    }
    /// Frees memory from [`pageable_alloc`](Self::pageable_alloc), with the layout of its allocation. Waits
    /// for nothing.
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
    /// Destroys a pool (`cuMemPoolDestroy`). The pool's blocks stay valid until they are freed. If the pool
    /// was the device's current pool, the default pool becomes current.
    unsafe fn mem_pool_destroy(&self, pool: MemPool) -> DriverResult<()> {
        let _ = pool;
        unsupported("cuMemPoolDestroy")
    }
    /// Returns the device's default pool (`cuDeviceGetDefaultMemPool`).
    fn device_get_default_mem_pool(&self) -> DriverResult<MemPool> {
        unsupported("cuDeviceGetDefaultMemPool")
    }
    /// Returns the device's current pool (`cuDeviceGetMemPool`). [`mem_alloc_async`](Self::mem_alloc_async)
    /// allocates from it.
    fn device_get_mem_pool(&self) -> DriverResult<MemPool> {
        unsupported("cuDeviceGetMemPool")
    }
    /// Makes a pool of this device the current one, for the whole process (`cuDeviceSetMemPool`).
    fn device_set_mem_pool(&self, pool: MemPool) -> DriverResult<()> {
        let _ = pool;
        unsupported("cuDeviceSetMemPool")
    }
    /// Returns the default pool for a location and a kind of memory (`cuMemGetDefaultMemPool`, since CUDA
    /// 13.0).
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
    /// Makes a pool the current one for a location and a kind of memory (`cuMemSetMemPool`, since CUDA 13.0).
    fn mem_set_mem_pool(
        &self,
        location: MemLocation,
        kind: MemAllocationType,
        pool: MemPool,
    ) -> DriverResult<()> {
        let _ = (location, kind, pool);
        unsupported("cuMemSetMemPool")
    }
    /// Sets how each of these devices may access a pool's memory (`cuMemPoolSetAccess`). The setting applies
    /// to the memory that the pool holds now and to memory that it allocates later. The device that holds the
    /// memory always keeps its access.
    fn mem_pool_set_access(
        &self,
        pool: MemPool,
        access: AccessFlags,
        devices: &[DeviceId],
    ) -> DriverResult<()> {
        let _ = (pool, access, devices);
        unsupported("cuMemPoolSetAccess")
    }
    /// Returns how a device may access a pool's memory (`cuMemPoolGetAccess`).
    fn mem_pool_get_access(&self, pool: MemPool, device: DeviceId) -> DriverResult<AccessFlags> {
        let _ = (pool, device);
        unsupported("cuMemPoolGetAccess")
    }
    /// Returns a file descriptor through which another process can import the pool
    /// (`cuMemPoolExportToShareableHandle`). The pool must have been made with [`HandleTypes::POSIX_FD`]. The
    /// caller closes the descriptor.
    fn mem_pool_export_to_fd(&self, pool: MemPool) -> DriverResult<i32> {
        let _ = pool;
        unsupported("cuMemPoolExportToShareableHandle")
    }
    /// Imports a pool from the file descriptor that [`mem_pool_export_to_fd`](Self::mem_pool_export_to_fd) of
    /// another process returned (`cuMemPoolImportFromShareableHandle`). The caller still owns the descriptor.
    /// An imported pool contains only the allocations that the exporter exports.
    fn mem_pool_import_from_fd(&self, fd: i32) -> DriverResult<MemPool> {
        let _ = fd;
        unsupported("cuMemPoolImportFromShareableHandle")
    }
    /// Describes an allocation of an exported pool, for the importing process (`cuMemPoolExportPointer`).
    fn mem_pool_export_pointer(&self, ptr: DevicePtr) -> DriverResult<MemPoolPtrData> {
        let _ = ptr;
        unsupported("cuMemPoolExportPointer")
    }
    /// Opens an allocation that the exporter described, and returns its address in this process
    /// (`cuMemPoolImportPointer`). Free it in this process before the exporter frees it.
    fn mem_pool_import_pointer(&self, pool: MemPool, data: &MemPoolPtrData) -> DriverResult<DevicePtr> {
        let _ = (pool, data);
        unsupported("cuMemPoolImportPointer")
    }
    /// Returns the pool that holds this address; `None` if no pool holds it (`cuPointerGetAttribute`).
    fn pointer_mem_pool(&self, ptr: DevicePtr) -> DriverResult<Option<MemPool>> {
        let _ = ptr;
        Ok(None)
    }
    /// Releases a pool's unused memory to the device until the pool holds `keep_bytes` (`cuMemPoolTrimTo`).
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

    /// Returns the granularity of mappings: the size of each mapping is a multiple of these bytes
    /// (`cuMemGetAllocationGranularity`).
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
    /// Releases physical memory (`cuMemRelease`). The device gets the memory back once it is mapped nowhere.
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
    /// Sets how each of these devices may access mapped memory (`cuMemSetAccess`). Other devices keep their
    /// present access.
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
    /// (`cuMemExportToShareableHandle`). The memory must have been made with [`PhysicalProps::share_fd`]. The
    /// descriptor keeps the memory alive until the caller closes it.
    fn mem_export_to_fd(&self, handle: PhysicalHandle) -> DriverResult<i32> {
        let _ = handle;
        unsupported("cuMemExportToShareableHandle")
    }
    /// Imports physical memory from the file descriptor that [`mem_export_to_fd`](Self::mem_export_to_fd)
    /// returned (`cuMemImportFromShareableHandle`). The caller still owns the descriptor.
    /// [`mem_release`](Self::mem_release) also releases imported memory.
    fn mem_import_from_fd(&self, fd: i32) -> DriverResult<PhysicalHandle> {
        let _ = fd;
        unsupported("cuMemImportFromShareableHandle")
    }

    // --- Streams ---

    /// Creates a stream (`cuStreamCreateWithPriority`).
    fn stream_create(&self, flags: StreamFlags) -> DriverResult<StreamRef>;
    /// Destroys a stream (`cuStreamDestroy`). The work that was submitted to the stream still runs to its
    /// end.
    unsafe fn stream_destroy(&self, stream: StreamRef) -> DriverResult<()>;
    /// Returns the stream behind a raw handle, with its unique id (`cuStreamGetId`, about 33 ns).
    ///
    /// If this driver did not make the stream, the method first asks whether the stream captures. During a
    /// capture, CUDA does not report the stream's id, so the result has the id of the capture. Before CUDA
    /// 12.0, streams have no ids. Each call then returns a new id for a stream that this driver did not make.
    /// To name the same stream again, keep the result.
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
    /// Returns whether a stream of this driver was destroyed or never existed. Makes no CUDA call. The answer
    /// is `false` for a default stream, and for a stream that this driver did not make.
    fn stream_is_gone(&self, stream: StreamRef) -> bool;
    /// Waits for a stream's work (`cuStreamSynchronize`).
    fn stream_synchronize(&self, stream: StreamRef) -> DriverResult<()>;
    /// Returns whether a stream's work is done (`cuStreamQuery`).
    fn stream_query(&self, stream: StreamRef) -> DriverResult<bool>;
    /// Makes a stream's later work wait for the event (`cuStreamWaitEvent`).
    fn stream_wait_event(&self, stream: StreamRef, event: Event) -> DriverResult<()>;
    /// Returns whether the stream is capturing a graph (`cuStreamIsCapturing`). The call ends no capture. For
    /// the legacy default stream, the result is [`DriverError::STREAM_CAPTURE_IMPLICIT`] if any blocking
    /// stream captures.
    fn stream_is_capturing(&self, stream: StreamRef) -> DriverResult<bool> {
        let _ = stream;
        Ok(false)
    }
    /// Returns the id of the capture to which the stream belongs, unique in the process; `None` if the stream
    /// captures nothing (`cuStreamGetCaptureInfo`). A stream that was forked into a capture also belongs to
    /// it. The legacy default stream gives the same error as in
    /// [`stream_is_capturing`](Self::stream_is_capturing). An invalidated capture may have no id. Then the
    /// result is [`DriverError::STREAM_CAPTURE_INVALIDATED`].
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
    /// Records the event if the driver can tell that the stream is alive. Returns whether it recorded the
    /// event.
    ///
    /// This is for callers that keep a stream from an earlier call, and cannot know whether it was destroyed
    /// since. The driver can tell that two kinds of streams are alive: the legacy default stream, and streams
    /// from [`stream_create`](Self::stream_create) that were not destroyed through
    /// [`stream_destroy`](Self::stream_destroy). No stream is destroyed between the check and the record. For
    /// a per-thread stream, and for a stream that this driver did not make, the result is `Ok(false)`.
    ///
    /// On a capturing stream, the record would become a part of the graph. So the driver does not record, and
    /// the result is `Ok(false)`. If a capture begins during the call, the result is
    /// [`DriverError::CAPTURED_EVENT`]. Then record the event again before anything waits for it.
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
    /// Copies from another device to this one, on a stream of this device (`cuMemcpyPeerAsync`). Neither
    /// device needs access to the other's memory. If the other device is not on this machine, the error is
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
    /// Sets each byte of a range to a value (`cuMemsetD8Async`).
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
