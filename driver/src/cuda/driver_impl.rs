//! The calls of [`Driver`] on CUDA.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use millpond_core::driver::{
    AccessFlags, AccessLocation, CaptureMode, DeviceAttribute, Driver, DriverError, DriverResult, Event,
    EventFlags, FabricHandle, GraphMemAttribute, Health, HostFlags, HostPtr, IpcMemHandle, MemAdvice,
    MemAllocationType, MemLocation, MemPool, MemPoolAttribute, MemPoolProps, MemPoolPtrData, MemoryInfo,
    MemoryKind, PhysicalHandle, PhysicalProps, StreamFlags,
};
use millpond_core::{DeviceId, DevicePtr, StreamRef};

use super::CudaDriver;
use super::abi::{self, AllocationProp, IpcHandle, Location};
use super::capture_mode::exchange_mode;
use super::living::End;
use super::pools;

// Two clauses recur in the `SAFETY` comments below. "The results go to locals" means that the call writes
// through pointers to locals of the types that CUDA requires. "The caller vouched" means that the method is
// unsafe, and that its contract covers the pointers and handles (`Driver`, "Safety of the unsafe methods").
// If a safe method takes a handle, either its type requires a living stream (`StreamRef`), or only unsafe
// methods end it.

/// Treats `CUDA_ERROR_NOT_READY` as an answer.
fn is_done(query: DriverResult<()>) -> DriverResult<bool> {
    match query {
        Ok(()) => Ok(true),
        Err(error) if error.code() == DriverError::NOT_READY => Ok(false),
        Err(error) => Err(error),
    }
}

fn host_ptr(ptr: HostPtr) -> *mut c_void {
    ptr.as_mut_ptr().cast()
}

/// Forwards to the methods of `CudaDriver` with the same names, written elsewhere.
macro_rules! forward {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {$(
        fn $name(&self, $($arg: $type),*) -> DriverResult<$answer> {
            Self::$name(self, $($arg),*)
        }
    )*};
}

impl Driver for CudaDriver {
    fn device(&self) -> DeviceId {
        DeviceId::cuda(self.ordinal)
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn health(&self) -> &Arc<Health> {
        &self.health
    }

    fn was_reset(&self) -> bool {
        if !self.health.is_reset() && !self.health.is_elsewhere() && self.context.was_reset() {
            self.health.note_reset();
        }
        self.health.is_reset()
    }

    fn version(&self) -> DriverResult<i32> {
        let mut version = 0;
        // SAFETY: the results go to locals of the right types.
        unsafe { self.functions().driver_get_version(&raw mut version) }?;
        Ok(version)
    }

    fn attribute(&self, attribute: DeviceAttribute) -> DriverResult<i64> {
        let number = abi::device_attribute(attribute)
            .ok_or_else(|| DriverError::new(DriverError::NOT_SUPPORTED, "cuDeviceGetAttribute"))?;
        let mut value = 0;
        // SAFETY: the results go to locals of the right types.
        unsafe { self.functions().device_get_attribute(&raw mut value, number, self.device) }?;
        if attribute == DeviceAttribute::MemPoolSupportedHandleTypes
            && !pools::has_files(pools::FABRIC_CHANNELS)
        {
            value &= !(abi::CU_MEM_HANDLE_TYPE_FABRIC as i32);
        }
        Ok(i64::from(value))
    }

    fn can_be_accessed_by(&self, peer: DeviceId) -> DriverResult<bool> {
        Ok(self.reachable_by()?.iter().any(|(id, _)| *id == peer))
    }

    fn active_peers(&self) -> DriverResult<Vec<DeviceId>> {
        let peers = self.reachable_by()?.iter();
        Ok(peers.filter(|(_, device)| self.is_active(*device)).map(|(id, _)| *id).collect())
    }

    fn mem_get_info(&self) -> DriverResult<MemoryInfo> {
        let _context = self.enter()?;
        let mut info = MemoryInfo::default();
        // SAFETY: the results go to locals of the right types.
        unsafe { self.functions().mem_get_info(&raw mut info.free, &raw mut info.total) }?;
        Ok(info)
    }

    fn synchronize(&self) -> DriverResult<()> {
        let _context = self.enter()?;
        // SAFETY: it takes no argument.
        unsafe { self.functions().ctx_synchronize() }
    }

    fn synchronize_beside_captures(&self) -> DriverResult<bool> {
        self.synchronize_by_free()
    }

    fn mem_alloc(&self, bytes: u64) -> DriverResult<DevicePtr> {
        let _context = self.enter()?;
        let mut ptr = 0;
        // SAFETY: the results go to locals of the right types.
        unsafe { self.functions().mem_alloc(&raw mut ptr, bytes) }?;
        Ok(DevicePtr::new(ptr))
    }

    fn mem_alloc_managed(&self, bytes: u64) -> DriverResult<DevicePtr> {
        let _context = self.enter()?;
        let mut ptr = 0;
        // SAFETY: the results go to locals of the right types.
        unsafe { self.functions().mem_alloc_managed(&raw mut ptr, bytes, abi::CU_MEM_ATTACH_GLOBAL) }?;
        Ok(DevicePtr::new(ptr))
    }

    unsafe fn mem_free(&self, ptr: DevicePtr) -> DriverResult<()> {
        let _context = self.enter()?;
        // SAFETY: the caller vouched for the arguments.
        unsafe { self.functions().mem_free(ptr.address()) }
    }

    fn mem_get_address_range(&self, ptr: DevicePtr) -> DriverResult<(DevicePtr, u64)> {
        let _context = self.enter()?;
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: the results go to locals; any address is allowed.
        unsafe { self.functions().mem_get_address_range(&raw mut base, &raw mut bytes, ptr.address()) }?;
        Ok((DevicePtr::new(base), bytes))
    }

    fn pointer_kind(&self, ptr: DevicePtr) -> DriverResult<MemoryKind> {
        let _context = self.enter()?;
        let Some(memory_type) = self.pointer_attribute(abi::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr)? else {
            return Ok(MemoryKind::Unknown);
        };
        // Depending on the driver's version, the type of managed memory is its present location or "unified".
        if self.pointer_attribute(abi::CU_POINTER_ATTRIBUTE_IS_MANAGED, ptr)?.is_some_and(|is| is & 0xff != 0)
        {
            return Ok(MemoryKind::Managed);
        }
        Ok(if memory_type == abi::CU_MEMORYTYPE_HOST { MemoryKind::Host } else { MemoryKind::Device })
    }

    unsafe fn mem_prefetch_async(
        &self,
        ptr: DevicePtr,
        bytes: u64,
        to_host: bool,
        stream: StreamRef,
    ) -> DriverResult<()> {
        let _context = self.enter()?;
        let (functions, ptr, stream) = (self.functions(), ptr.address(), stream.handle());
        let location = if to_host { Location::HOST } else { Location::device(self.device) };
        // SAFETY: the caller vouched for the arguments.
        match unsafe { functions.mem_prefetch_async_v2(ptr, bytes, location, 0, stream) } {
            Err(error) if error.code() == DriverError::NO_SYMBOL => {
                let device = if to_host { abi::CU_DEVICE_CPU } else { self.device };
                // SAFETY: the caller vouched for the arguments.
                unsafe { functions.mem_prefetch_async_v1(ptr, bytes, device, stream) }
            }
            answer => answer,
        }
    }

    unsafe fn mem_advise(&self, ptr: DevicePtr, bytes: u64, advice: MemAdvice) -> DriverResult<()> {
        let _context = self.enter()?;
        let (advice, on_host) = match advice {
            MemAdvice::PreferDevice => (abi::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, false),
            MemAdvice::PreferHost => (abi::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, true),
            MemAdvice::ReadMostly => (abi::CU_MEM_ADVISE_SET_READ_MOSTLY, false),
            MemAdvice::AccessedByDevice => (abi::CU_MEM_ADVISE_SET_ACCESSED_BY, false),
            _ => return Err(DriverError::new(DriverError::NOT_SUPPORTED, "cuMemAdvise")),
        };
        let location = if on_host { Location::HOST } else { Location::device(self.device) };
        // SAFETY: the caller vouched for the arguments.
        match unsafe { self.functions().mem_advise_v2(ptr.address(), bytes, advice, location) } {
            Err(error) if error.code() == DriverError::NO_SYMBOL => {
                let device = if on_host { abi::CU_DEVICE_CPU } else { self.device };
                // SAFETY: the caller vouched for the arguments.
                unsafe { self.functions().mem_advise_v1(ptr.address(), bytes, advice, device) }
            }
            answer => answer,
        }
    }

    fn mem_host_alloc(&self, bytes: u64, flags: HostFlags) -> DriverResult<HostPtr> {
        let _context = self.enter()?;
        let mut ptr = ptr::null_mut();
        // SAFETY: the results go to locals of the right types.
        unsafe { self.functions().mem_host_alloc(&raw mut ptr, bytes, abi::host_flags(flags)) }?;
        Ok(HostPtr(ptr.expose_provenance()))
    }

    unsafe fn mem_free_host(&self, ptr: HostPtr) -> DriverResult<()> {
        // SAFETY: the caller vouched for the arguments.
        unsafe { self.free_host_after_work(ptr) }
    }

    unsafe fn mem_host_register(&self, ptr: HostPtr, bytes: u64, flags: HostFlags) -> DriverResult<()> {
        if flags.write_combined {
            return Err(DriverError::new(DriverError::INVALID_VALUE, "cuMemHostRegister")
                .with_detail("only memory from cuMemHostAlloc can be write-combined"));
        }
        let _context = self.enter()?;
        // SAFETY: the caller vouched for the arguments.
        unsafe { self.functions().mem_host_register(host_ptr(ptr), bytes, abi::host_flags(flags)) }
    }

    unsafe fn mem_host_unregister(&self, ptr: HostPtr) -> DriverResult<()> {
        let _context = self.enter()?;
        // SAFETY: the caller vouched for the arguments.
        unsafe { self.functions().mem_host_unregister(host_ptr(ptr)) }
    }

    fn host_memory_info(&self) -> DriverResult<MemoryInfo> {
        Ok(super::host::memory_info())
    }

    fn mem_host_get_device_pointer(&self, ptr: HostPtr) -> DriverResult<DevicePtr> {
        let _context = self.enter()?;
        let mut device_ptr = 0;
        // SAFETY: the results go to locals; the driver refuses host memory that it does not know.
        unsafe { self.functions().mem_host_get_device_pointer(&raw mut device_ptr, host_ptr(ptr), 0) }?;
        Ok(DevicePtr::new(device_ptr))
    }

    fn mem_alloc_async(&self, bytes: u64, stream: StreamRef) -> DriverResult<DevicePtr> {
        self.check_alive(stream)?;
        let _context = self.enter()?;
        let mut ptr = 0;
        // SAFETY: the results go to locals; the stream is alive (`StreamRef`).
        unsafe { self.functions().mem_alloc_async(&raw mut ptr, bytes, stream.handle()) }?;
        Ok(DevicePtr::new(ptr))
    }

    fn mem_alloc_from_pool_async(
        &self,
        bytes: u64,
        pool: MemPool,
        stream: StreamRef,
    ) -> DriverResult<DevicePtr> {
        self.check_alive(stream)?;
        let _context = self.enter()?;
        let mut ptr = 0;
        // SAFETY: the results go to locals; the stream is alive (`StreamRef`); only unsafe code ends a pool.
        unsafe { self.functions().mem_alloc_from_pool_async(&raw mut ptr, bytes, pool.0, stream.handle()) }?;
        Ok(DevicePtr::new(ptr))
    }

    unsafe fn mem_free_async(&self, ptr: DevicePtr, stream: StreamRef) -> DriverResult<()> {
        let Some(_context) = self.enter_if_there()? else {
            // SAFETY: the caller vouched for the arguments.
            return unsafe { self.free_after_reset(ptr) };
        };
        // SAFETY: the caller vouched for the arguments.
        unsafe { self.functions().mem_free_async(ptr.address(), stream.handle()) }
    }

    unsafe fn mem_pool_destroy(&self, pool: MemPool) -> DriverResult<()> {
        let _context = self.enter_if_there()?;
        // SAFETY: the caller vouched for the arguments.
        unsafe { self.functions().mem_pool_destroy(pool.0) }
    }

    fn device_get_default_mem_pool(&self) -> DriverResult<MemPool> {
        let _context = self.enter()?;
        let mut pool = 0;
        // SAFETY: the results go to locals of the right types.
        unsafe { self.functions().device_get_default_mem_pool(&raw mut pool, self.device) }?;
        Ok(MemPool(pool))
    }

    fn mem_pool_trim_to(&self, pool: MemPool, keep_bytes: u64) -> DriverResult<()> {
        let _context = self.enter()?;
        // SAFETY: only unsafe code could have ended the pool.
        unsafe { self.functions().mem_pool_trim_to(pool.0, keep_bytes) }
    }

    forward! {
        fn mem_pool_create(props: MemPoolProps) -> MemPool;
        fn device_get_mem_pool() -> MemPool;
        fn device_set_mem_pool(pool: MemPool) -> ();
        fn mem_get_default_mem_pool(location: MemLocation, kind: MemAllocationType) -> MemPool;
        fn mem_get_mem_pool(location: MemLocation, kind: MemAllocationType) -> MemPool;
        fn mem_set_mem_pool(location: MemLocation, kind: MemAllocationType, pool: MemPool) -> ();
        fn mem_pool_get_attribute(pool: MemPool, attribute: MemPoolAttribute) -> u64;
        fn mem_pool_set_attribute(pool: MemPool, attribute: MemPoolAttribute, value: u64) -> ();
        fn device_get_graph_mem_attribute(attribute: GraphMemAttribute) -> u64;
        fn device_reset_graph_mem_attribute(attribute: GraphMemAttribute) -> ();
        fn device_graph_mem_trim() -> ();
        fn mem_pool_set_access(pool: MemPool, access: AccessFlags, from: &[AccessLocation]) -> ();
        fn mem_pool_get_access(pool: MemPool, from: AccessLocation) -> AccessFlags;
        fn mem_pool_export_to_fd(pool: MemPool) -> i32;
        fn mem_pool_import_from_fd(fd: i32) -> MemPool;
        fn mem_pool_export_to_fabric(pool: MemPool) -> FabricHandle;
        fn mem_pool_import_from_fabric(handle: &FabricHandle) -> MemPool;
        fn mem_pool_export_pointer(ptr: DevicePtr) -> MemPoolPtrData;
        fn mem_pool_import_pointer(pool: MemPool, data: &MemPoolPtrData) -> DevicePtr;
        fn pointer_mem_pool(ptr: DevicePtr) -> Option<MemPool>;
    }

    fn mem_get_allocation_granularity(&self) -> DriverResult<u64> {
        let props = AllocationProp::on_device(self.device, PhysicalProps::default());
        let minimum = abi::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        let mut bytes = 0;
        // SAFETY: the results go to locals; `props` lives through the call.
        unsafe {
            self.functions().mem_get_allocation_granularity(&raw mut bytes, &raw const props, minimum)
        }?;
        Ok(bytes)
    }

    fn mem_address_reserve(&self, bytes: u64, alignment: u64) -> DriverResult<DevicePtr> {
        let _context = self.enter()?;
        let mut ptr = 0;
        // SAFETY: the results go to locals of the right types.
        unsafe { self.functions().mem_address_reserve(&raw mut ptr, bytes, alignment, 0, 0) }?;
        Ok(DevicePtr::new(ptr))
    }

    unsafe fn mem_address_free(&self, ptr: DevicePtr, bytes: u64) -> DriverResult<()> {
        let _context = self.enter_if_there()?;
        // SAFETY: the caller vouched for the arguments.
        unsafe { self.functions().mem_address_free(ptr.address(), bytes) }
    }

    fn mem_create(&self, bytes: u64, props: PhysicalProps) -> DriverResult<PhysicalHandle> {
        let _context = self.enter()?;
        let props = AllocationProp::on_device(self.device, props);
        let mut handle = 0;
        // SAFETY: the results go to locals; `props` lives through the call.
        unsafe { self.functions().mem_create(&raw mut handle, bytes, &raw const props, 0) }?;
        Ok(PhysicalHandle(handle))
    }

    unsafe fn mem_release(&self, handle: PhysicalHandle) -> DriverResult<()> {
        let _context = self.enter_if_there()?;
        // SAFETY: the caller vouched for the arguments.
        unsafe { self.functions().mem_release(handle.0) }
    }

    unsafe fn mem_map(&self, ptr: DevicePtr, bytes: u64, handle: PhysicalHandle) -> DriverResult<()> {
        let _context = self.enter()?;
        // SAFETY: the caller vouched for the arguments; only 0 is allowed for the offset and the flags.
        unsafe { self.functions().mem_map(ptr.address(), bytes, 0, handle.0, 0) }
    }

    unsafe fn mem_unmap(&self, ptr: DevicePtr, bytes: u64) -> DriverResult<()> {
        let _context = self.enter_if_there()?;
        // SAFETY: the caller vouched for the arguments.
        unsafe { self.functions().mem_unmap(ptr.address(), bytes) }
    }

    unsafe fn mem_set_access(
        &self,
        ptr: DevicePtr,
        bytes: u64,
        access: AccessFlags,
        devices: &[DeviceId],
    ) -> DriverResult<()> {
        // SAFETY: the caller vouched for the arguments.
        unsafe { self.set_access(ptr, bytes, access, devices) }
    }

    fn mem_export_to_fd(&self, handle: PhysicalHandle) -> DriverResult<i32> {
        self.export_to_fd(handle)
    }

    fn mem_import_from_fd(&self, fd: i32) -> DriverResult<PhysicalHandle> {
        self.import_from_fd(fd)
    }

    fn stream_create(&self, flags: StreamFlags) -> DriverResult<StreamRef> {
        let _context = self.enter()?;
        let kind = if flags.non_blocking { abi::CU_STREAM_NON_BLOCKING } else { 0 };
        let mut handle = 0;
        // SAFETY: the results go to locals of the right types.
        unsafe { self.functions().stream_create_with_priority(&raw mut handle, kind, flags.priority) }?;
        let id = self.identify(handle, None).inspect_err(|_| {
            // SAFETY: the stream was made above, and no other code knows it.
            let _ = unsafe { self.functions().stream_destroy(handle) };
        })?;
        let stream = StreamRef::from_raw_parts(handle, id);
        self.streams.insert(stream);
        Ok(stream)
    }

    unsafe fn stream_destroy(&self, stream: StreamRef) -> DriverResult<()> {
        let invalid = |detail| {
            Err(DriverError::new(DriverError::INVALID_HANDLE, "cuStreamDestroy").with_detail(detail))
        };
        if stream.is_legacy() || stream.is_per_thread() {
            return invalid("a default stream cannot be destroyed; destroy only streams that you created");
        }
        let _context = self.enter()?;
        // SAFETY: the caller vouched for the arguments.
        let destroy = || unsafe { self.functions().stream_destroy(stream.handle()) };
        match self.streams.end(stream, destroy) {
            End::Asked(destroyed) => destroyed,
            End::Elsewhere if stream.is_foreign() => destroy(),
            End::Elsewhere | End::Gone => invalid("the stream was already destroyed, or never existed"),
            End::InUse => invalid("another thread's call still uses the stream; destroy it after that call"),
        }
    }

    unsafe fn stream_ref(&self, handle: u64) -> DriverResult<StreamRef> {
        if handle <= StreamRef::PER_THREAD.handle() {
            return Ok(StreamRef::from_raw_parts(handle, 0));
        }
        let _context = self.enter()?;
        // SAFETY: the caller vouched for the arguments.
        if let Some(capturing) = unsafe { self.capturing_stream(handle) }? {
            return Ok(capturing);
        }
        let known = self.streams.id(handle);
        let id = self.identify(handle, known)?;
        // SAFETY: the caller vouched for the arguments.
        Ok(unsafe { self.named(handle, id) })
    }

    fn stream_is_gone(&self, stream: StreamRef) -> bool {
        self.check_alive(stream).is_err()
    }

    fn stream_synchronize(&self, stream: StreamRef) -> DriverResult<()> {
        self.check_alive(stream)?;
        let _context = self.enter()?;
        // SAFETY: the stream is alive (`StreamRef`).
        unsafe { self.functions().stream_synchronize(stream.handle()) }
    }

    fn stream_query(&self, stream: StreamRef) -> DriverResult<bool> {
        self.check_alive(stream)?;
        let _context = self.enter()?;
        // SAFETY: the stream is alive (`StreamRef`).
        is_done(unsafe { self.functions().stream_query(stream.handle()) })
    }

    fn stream_wait_event(&self, stream: StreamRef, event: Event) -> DriverResult<()> {
        self.check_alive(stream)?;
        let _context = self.enter()?;
        // SAFETY: the stream is alive (`StreamRef`). Only unsafe code could have ended the event.
        unsafe { self.functions().stream_wait_event(stream.handle(), event.0, 0) }
    }

    fn stream_is_capturing(&self, stream: StreamRef) -> DriverResult<bool> {
        self.check_alive(stream)?;
        self.living_stream_is_capturing(stream)
    }

    fn stream_capture_id(&self, stream: StreamRef) -> DriverResult<Option<u64>> {
        self.check_alive(stream)?;
        self.capture_id(stream.handle())
    }

    fn thread_exchange_stream_capture_mode(&self, mode: CaptureMode) -> DriverResult<CaptureMode> {
        exchange_mode(self.functions(), mode)
    }

    fn event_create(&self, flags: EventFlags) -> DriverResult<Event> {
        let _context = self.enter()?;
        let mut event = 0;
        // SAFETY: the results go to locals of the right types.
        unsafe { self.functions().event_create(&raw mut event, abi::event_flags(flags)) }?;
        Ok(Event(event))
    }

    unsafe fn event_destroy(&self, event: Event) -> DriverResult<()> {
        let _context = self.enter()?;
        // SAFETY: the caller vouched for the arguments.
        unsafe { self.functions().event_destroy(event.0) }
    }

    fn event_record(&self, event: Event, stream: StreamRef) -> DriverResult<()> {
        self.check_alive(stream)?;
        self.record_on_living(event, stream)
    }

    fn event_record_if_alive(&self, event: Event, stream: StreamRef) -> DriverResult<bool> {
        if stream.is_legacy() {
            return self.record_outside_captures(event, stream);
        }
        // A per-thread stream has no entry here, because the caller's thread is unknown; so it does not count
        // as alive. While the stream is kept, `stream_destroy` waits.
        match self.streams.keep(stream) {
            Some(_kept) => self.record_outside_captures(event, stream),
            None => Ok(false),
        }
    }

    fn event_query(&self, event: Event) -> DriverResult<bool> {
        let _context = self.enter()?;
        // SAFETY: only unsafe code could have ended the event.
        is_done(unsafe { self.functions().event_query(event.0) })
    }

    fn event_synchronize(&self, event: Event) -> DriverResult<()> {
        let _context = self.enter()?;
        // SAFETY: only unsafe code could have ended the event.
        unsafe { self.functions().event_synchronize(event.0) }
    }

    unsafe fn memcpy_htod_async(
        &self,
        dst: DevicePtr,
        src: *const u8,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        // SAFETY: the caller vouched for the arguments.
        unsafe { self.copy_from_host(dst, src, bytes, stream) }
    }

    unsafe fn memcpy_dtoh_async(
        &self,
        dst: *mut u8,
        src: DevicePtr,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        // SAFETY: the caller vouched for the arguments.
        unsafe { self.copy_to_host(dst, src, bytes, stream) }
    }

    unsafe fn memcpy_dtod_async(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        // SAFETY: the caller vouched for the arguments.
        unsafe { self.copy_on_device(dst, src, bytes, stream) }
    }

    unsafe fn memcpy_peer_async(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        src_device: DeviceId,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        // SAFETY: the caller vouched for the arguments.
        unsafe { self.copy_from_peer(dst, src, src_device, bytes, stream) }
    }

    unsafe fn memset_d8_async(
        &self,
        dst: DevicePtr,
        value: u8,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        let _context = self.enter()?;
        // SAFETY: the caller vouched for the arguments.
        unsafe { self.functions().memset_d8_async(dst.address(), value, bytes, stream.handle()) }
    }

    fn ipc_get_mem_handle(&self, ptr: DevicePtr) -> DriverResult<IpcMemHandle> {
        let _context = self.enter()?;
        let mut handle = IpcHandle([0; 64]);
        // SAFETY: the results go to locals; the driver refuses memory that it does not know.
        unsafe { self.functions().ipc_get_mem_handle(&raw mut handle, ptr.address()) }?;
        Ok(IpcMemHandle(handle.0))
    }

    fn ipc_open_mem_handle(&self, handle: &IpcMemHandle) -> DriverResult<DevicePtr> {
        let _context = self.enter()?;
        let lazy = abi::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
        let mut ptr = 0;
        // SAFETY: the results go to locals; the driver refuses an invalid handle.
        unsafe { self.functions().ipc_open_mem_handle(&raw mut ptr, IpcHandle(handle.0), lazy) }?;
        Ok(DevicePtr::new(ptr))
    }

    unsafe fn ipc_close_mem_handle(&self, ptr: DevicePtr) -> DriverResult<()> {
        let _context = self.enter()?;
        // SAFETY: the caller vouched for the arguments.
        unsafe { self.functions().ipc_close_mem_handle(ptr.address()) }
    }
}
