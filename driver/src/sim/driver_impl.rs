//! The calls of [`Driver`] on a simulated device.

use std::sync::Arc;

use millpond_core::driver::{
    AccessFlags, AccessLocation, CaptureMode, DeviceAttribute, Driver, DriverResult, Event, EventFlags,
    FabricHandle, GraphMemAttribute, Health, HostFlags, HostPtr, IpcMemHandle, MemAdvice, MemAllocationType,
    MemLocation, MemPool, MemPoolAttribute, MemPoolProps, MemPoolPtrData, MemoryInfo, MemoryKind,
    PhysicalHandle, PhysicalProps, StreamFlags,
};
use millpond_core::{DeviceId, DevicePtr, DriverError, Layout, StreamRef};

use super::call::after_reset;
use super::device::SimDevice;
use super::model::answer::{Answer, Refusal};
use super::model::capture::About;
use super::model::space::GRANULARITY;
use super::state::State;
use crate::CallKind;

const EXPORT_POOL: &str = "cuMemPoolExportToShareableHandle";
const IMPORT_POOL: &str = "cuMemPoolImportFromShareableHandle";

#[deny(clippy::missing_trait_methods)]
impl Driver for SimDevice {
    fn device(&self) -> DeviceId {
        self.shared.id
    }

    fn name(&self) -> String {
        self.shared.name.clone()
    }

    fn was_reset(&self) -> bool {
        if !self.health.is_reset() && !self.health.is_elsewhere() && self.lock().generation != self.generation
        {
            self.health.note_reset();
        }
        self.health.is_reset()
    }

    fn virtual_time_ns(&self) -> Option<u64> {
        Some(Self::virtual_time_ns(self))
    }

    fn thread_exchange_stream_capture_mode(&self, mode: CaptureMode) -> DriverResult<CaptureMode> {
        self.call_in_any_context(CallKind::CaptureMode, "cuThreadExchangeStreamCaptureMode", |state| {
            Ok(state.captures.exchange_mode(mode))
        })
    }

    fn health(&self) -> &Arc<Health> {
        &self.health
    }

    fn version(&self) -> DriverResult<i32> {
        self.call(CallKind::Other, "cuDriverGetVersion", |_| Ok(0))
    }

    fn attribute(&self, attribute: DeviceAttribute) -> DriverResult<i64> {
        self.call(CallKind::Other, "cuDeviceGetAttribute", |state| Ok(state.attribute(attribute)))
    }

    fn can_be_accessed_by(&self, peer: DeviceId) -> DriverResult<bool> {
        Ok(self.can_reach_from(peer))
    }

    fn active_peers(&self) -> DriverResult<Vec<DeviceId>> {
        Ok(self.peers_at_work())
    }

    fn mem_get_info(&self) -> DriverResult<MemoryInfo> {
        self.call(CallKind::MemGetInfo, "cuMemGetInfo", |state| Ok(state.mem_get_info()))
    }

    fn synchronize(&self) -> DriverResult<()> {
        self.call(CallKind::Synchronize, "cuCtxSynchronize", State::synchronize_all)
    }

    /// Waits for all work, like a free of pinned memory.
    fn synchronize_beside_captures(&self) -> DriverResult<bool> {
        match self.call(CallKind::Synchronize, "cuMemFreeHost", State::synchronize_all) {
            Err(error) if error.is_capture_refusal() => Ok(false),
            answer => answer.map(|()| true),
        }
    }

    // --- Memory ---

    fn mem_alloc(&self, bytes: u64) -> DriverResult<DevicePtr> {
        self.call(CallKind::MemAlloc, "cuMemAlloc", |state| state.mem_alloc(bytes))
    }

    fn mem_alloc_managed(&self, bytes: u64) -> DriverResult<DevicePtr> {
        self.call(CallKind::MemAllocManaged, "cuMemAllocManaged", |state| state.mem_alloc_managed(bytes))
    }

    unsafe fn mem_free(&self, ptr: DevicePtr) -> DriverResult<()> {
        self.call(CallKind::MemFree, "cuMemFree", |state| state.mem_free(ptr))
    }

    fn mem_get_address_range(&self, ptr: DevicePtr) -> DriverResult<(DevicePtr, u64)> {
        self.call(CallKind::PointerQuery, "cuMemGetAddressRange", |state| state.mem_get_address_range(ptr))
    }

    fn pointer_kind(&self, ptr: DevicePtr) -> DriverResult<MemoryKind> {
        self.call(CallKind::PointerQuery, "cuPointerGetAttribute", |state| Ok(state.pointer_kind(ptr)))
    }

    unsafe fn mem_prefetch_async(
        &self,
        ptr: DevicePtr,
        bytes: u64,
        to_host: bool,
        stream: StreamRef,
    ) -> DriverResult<()> {
        self.call_about(About::Stream(stream), CallKind::MemPrefetch, "cuMemPrefetchAsync", |state| {
            state.prefetch(ptr, bytes, to_host, stream)
        })
    }

    unsafe fn mem_advise(&self, ptr: DevicePtr, bytes: u64, _advice: MemAdvice) -> DriverResult<()> {
        self.call(CallKind::MemAdvise, "cuMemAdvise", |state| state.check_managed(ptr, bytes))
    }

    // --- Host memory ---

    fn mem_host_alloc(&self, bytes: u64, _flags: HostFlags) -> DriverResult<HostPtr> {
        self.call(CallKind::MemHostAlloc, "cuMemHostAlloc", |state| state.mem_host_alloc(bytes))
    }

    unsafe fn mem_free_host(&self, ptr: HostPtr) -> DriverResult<()> {
        self.call(CallKind::MemFreeHost, "cuMemFreeHost", |state| state.mem_free_host(ptr))
    }

    fn pageable_alloc(&self, layout: Layout) -> DriverResult<HostPtr> {
        self.call(CallKind::PageableAlloc, "malloc", |state| state.pageable_alloc(layout))
    }

    unsafe fn pageable_free(&self, ptr: HostPtr, layout: Layout) {
        self.lock().pageable_free(ptr, layout);
    }

    fn host_memory_info(&self) -> DriverResult<MemoryInfo> {
        self.call(CallKind::Other, "host memory", |state| Ok(state.host.info()))
    }

    unsafe fn mem_host_register(&self, ptr: HostPtr, bytes: u64, _flags: HostFlags) -> DriverResult<()> {
        self.call(CallKind::MemHostRegister, "cuMemHostRegister", |state| state.mem_host_register(ptr, bytes))
    }

    unsafe fn mem_host_unregister(&self, ptr: HostPtr) -> DriverResult<()> {
        self.call(CallKind::MemHostRegister, "cuMemHostUnregister", |state| state.mem_host_unregister(ptr))
    }

    fn mem_host_get_device_pointer(&self, ptr: HostPtr) -> DriverResult<DevicePtr> {
        self.call(CallKind::PointerQuery, "cuMemHostGetDevicePointer", |state| {
            state.mem_host_get_device_pointer(ptr)
        })
    }

    // --- Stream-ordered memory and its pools ---

    fn mem_alloc_async(&self, bytes: u64, stream: StreamRef) -> DriverResult<DevicePtr> {
        self.call_about(About::Stream(stream), CallKind::MemAllocAsync, "cuMemAllocAsync", |state| {
            state.mem_alloc_from_pool(bytes, state.pools.current(), stream, "cuMemAllocAsync")
        })
    }

    fn mem_alloc_from_pool_async(
        &self,
        bytes: u64,
        pool: MemPool,
        stream: StreamRef,
    ) -> DriverResult<DevicePtr> {
        self.call_about(About::Stream(stream), CallKind::MemAllocAsync, "cuMemAllocFromPoolAsync", |state| {
            state.mem_alloc_from_pool(bytes, pool, stream, "cuMemAllocFromPoolAsync")
        })
    }

    unsafe fn mem_free_async(&self, ptr: DevicePtr, stream: StreamRef) -> DriverResult<()> {
        let name = "cuMemFreeAsync";
        let freed = self.call_about(About::Stream(stream), CallKind::MemFreeAsync, name, |state| {
            state.mem_free_async(ptr, stream)
        });
        match freed {
            Err(error) if error.code() == DriverError::CONTEXT_IS_DESTROYED => {
                self.call_in_any_context(CallKind::MemFreeAsync, name, |state| {
                    state.mem_free_after_reset(ptr)
                })
            }
            freed => freed,
        }
    }

    fn mem_pool_create(&self, props: MemPoolProps) -> DriverResult<MemPool> {
        self.call(CallKind::MemPool, "cuMemPoolCreate", |state| state.mem_pool_create(props))
    }

    unsafe fn mem_pool_destroy(&self, pool: MemPool) -> DriverResult<()> {
        let (kind, name) = (CallKind::MemPool, "cuMemPoolDestroy");
        match self.call(kind, name, |state| state.mem_pool_destroy(pool)) {
            Err(error) if error.code() == DriverError::CONTEXT_IS_DESTROYED => {
                self.call_in_any_context(kind, name, |state| state.mem_pool_destroy(pool))
            }
            destroyed => destroyed,
        }
    }

    fn device_get_default_mem_pool(&self) -> DriverResult<MemPool> {
        self.call(CallKind::MemPool, "cuDeviceGetDefaultMemPool", |state| Ok(state.pools.default_pool()))
    }

    fn device_get_mem_pool(&self) -> DriverResult<MemPool> {
        self.call(CallKind::MemPool, "cuDeviceGetMemPool", |state| Ok(state.pools.current()))
    }

    fn device_set_mem_pool(&self, pool: MemPool) -> DriverResult<()> {
        let place = (MemLocation::Device, MemAllocationType::Pinned);
        self.call(CallKind::MemPool, "cuDeviceSetMemPool", |state| state.pools.set_current(place, pool))
    }

    fn mem_get_default_mem_pool(
        &self,
        location: MemLocation,
        kind: MemAllocationType,
    ) -> DriverResult<MemPool> {
        self.call(CallKind::MemPool, "cuMemGetDefaultMemPool", |state| {
            state.pools.default_of((location, kind))
        })
    }

    fn mem_get_mem_pool(&self, location: MemLocation, kind: MemAllocationType) -> DriverResult<MemPool> {
        self.call(CallKind::MemPool, "cuMemGetMemPool", |state| state.pools.current_of((location, kind)))
    }

    fn mem_set_mem_pool(
        &self,
        location: MemLocation,
        kind: MemAllocationType,
        pool: MemPool,
    ) -> DriverResult<()> {
        self.call(CallKind::MemPool, "cuMemSetMemPool", |state| {
            state.pools.set_current((location, kind), pool)
        })
    }

    fn mem_pool_set_access(
        &self,
        pool: MemPool,
        access: AccessFlags,
        from: &[AccessLocation],
    ) -> DriverResult<()> {
        let stranger = self.stranger(from.iter().filter_map(|from| from.device()));
        self.call(CallKind::MemPool, "cuMemPoolSetAccess", |state| {
            stranger?;
            state.mem_pool_set_access(pool, access, from)
        })
    }

    fn mem_pool_get_access(&self, pool: MemPool, from: AccessLocation) -> DriverResult<AccessFlags> {
        self.call(CallKind::MemPool, "cuMemPoolGetAccess", |state| state.mem_pool_get_access(pool, from))
    }

    fn mem_pool_export_to_fd(&self, pool: MemPool) -> DriverResult<i32> {
        self.call(CallKind::Ipc, EXPORT_POOL, |state| state.mem_pool_export_to_fd(pool))
    }

    fn mem_pool_import_from_fd(&self, fd: i32) -> DriverResult<MemPool> {
        self.call(CallKind::Ipc, IMPORT_POOL, |state| state.mem_pool_import_from_fd(fd))
    }

    fn mem_pool_export_to_fabric(&self, pool: MemPool) -> DriverResult<FabricHandle> {
        self.call(CallKind::Ipc, EXPORT_POOL, |state| state.mem_pool_export_to_fabric(pool))
    }

    fn mem_pool_import_from_fabric(&self, handle: &FabricHandle) -> DriverResult<MemPool> {
        self.call(CallKind::Ipc, IMPORT_POOL, |state| state.mem_pool_import_from_fabric(handle))
    }

    fn mem_pool_export_pointer(&self, ptr: DevicePtr) -> DriverResult<MemPoolPtrData> {
        self.call(CallKind::Ipc, "cuMemPoolExportPointer", |state| state.mem_pool_export_pointer(ptr))
    }

    fn mem_pool_import_pointer(&self, pool: MemPool, data: &MemPoolPtrData) -> DriverResult<DevicePtr> {
        self.call(CallKind::Ipc, "cuMemPoolImportPointer", |state| state.mem_pool_import_pointer(pool, data))
    }

    fn pointer_mem_pool(&self, ptr: DevicePtr) -> DriverResult<Option<MemPool>> {
        self.call(CallKind::PointerQuery, "cuPointerGetAttribute", |state| Ok(state.pointer_mem_pool(ptr)))
    }

    fn mem_pool_trim_to(&self, pool: MemPool, keep_bytes: u64) -> DriverResult<()> {
        self.call(CallKind::MemPoolTrim, "cuMemPoolTrimTo", |state| state.mem_pool_trim_to(pool, keep_bytes))
    }

    fn mem_pool_get_attribute(&self, pool: MemPool, attribute: MemPoolAttribute) -> DriverResult<u64> {
        self.call(CallKind::MemPool, "cuMemPoolGetAttribute", |state| {
            state.mem_pool_get_attribute(pool, attribute)
        })
    }

    fn mem_pool_set_attribute(
        &self,
        pool: MemPool,
        attribute: MemPoolAttribute,
        value: u64,
    ) -> DriverResult<()> {
        self.call(CallKind::MemPool, "cuMemPoolSetAttribute", |state| {
            state.mem_pool_set_attribute(pool, attribute, value)
        })
    }

    fn device_get_graph_mem_attribute(&self, _: GraphMemAttribute) -> DriverResult<u64> {
        self.call(CallKind::MemPool, "cuDeviceGetGraphMemAttribute", |_| Ok(State::GRAPH_MEMORY))
    }

    fn device_reset_graph_mem_attribute(&self, attribute: GraphMemAttribute) -> DriverResult<()> {
        self.call(CallKind::MemPool, "cuDeviceSetGraphMemAttribute", |_| State::reset_graph_memory(attribute))
    }

    fn device_graph_mem_trim(&self) -> DriverResult<()> {
        self.call(CallKind::MemPoolTrim, "cuDeviceGraphMemTrim", |_| Ok(()))
    }

    // --- Virtual memory management ---

    fn mem_get_allocation_granularity(&self) -> DriverResult<u64> {
        self.call(CallKind::Other, "cuMemGetAllocationGranularity", |_| Ok(GRANULARITY))
    }

    fn mem_address_reserve(&self, bytes: u64, alignment: u64) -> DriverResult<DevicePtr> {
        self.call(CallKind::MemAddressReserve, "cuMemAddressReserve", |state| {
            state.mem_address_reserve(bytes, alignment)
        })
    }

    unsafe fn mem_address_free(&self, ptr: DevicePtr, bytes: u64) -> DriverResult<()> {
        self.call_in_any_context(CallKind::MemAddressFree, "cuMemAddressFree", |state| {
            state.mem_address_free(ptr, bytes)
        })
    }

    fn mem_create(&self, bytes: u64, props: PhysicalProps) -> DriverResult<PhysicalHandle> {
        self.call(CallKind::MemCreate, "cuMemCreate", |state| state.mem_create(bytes, props))
    }

    unsafe fn mem_release(&self, handle: PhysicalHandle) -> DriverResult<()> {
        self.call_in_any_context(CallKind::MemRelease, "cuMemRelease", |state| state.mem_release(handle))
    }

    unsafe fn mem_map(&self, ptr: DevicePtr, bytes: u64, handle: PhysicalHandle) -> DriverResult<()> {
        self.call(CallKind::MemMap, "cuMemMap", |state| state.mem_map(ptr, bytes, handle))
    }

    unsafe fn mem_unmap(&self, ptr: DevicePtr, bytes: u64) -> DriverResult<()> {
        self.call_in_any_context(CallKind::MemUnmap, "cuMemUnmap", |state| state.mem_unmap(ptr, bytes))
    }

    unsafe fn mem_set_access(
        &self,
        ptr: DevicePtr,
        bytes: u64,
        access: AccessFlags,
        devices: &[DeviceId],
    ) -> DriverResult<()> {
        let stranger = self.stranger(devices.iter().copied());
        self.call(CallKind::MemSetAccess, "cuMemSetAccess", |state| {
            stranger?;
            state.mem_set_access(ptr, bytes, access, devices, self.shared.id)
        })
    }

    fn mem_export_to_fd(&self, handle: PhysicalHandle) -> DriverResult<i32> {
        self.call(CallKind::Ipc, "cuMemExportToShareableHandle", |state| state.mem_export(handle))
    }

    fn mem_import_from_fd(&self, fd: i32) -> DriverResult<PhysicalHandle> {
        self.call(CallKind::Ipc, "cuMemImportFromShareableHandle", |state| state.mem_import(fd))
    }

    // --- Streams ---

    fn stream_create(&self, flags: StreamFlags) -> DriverResult<StreamRef> {
        self.call(CallKind::StreamCreate, "cuStreamCreateWithPriority", |state| state.stream_create(flags))
    }

    unsafe fn stream_destroy(&self, stream: StreamRef) -> DriverResult<()> {
        self.call(CallKind::StreamDestroy, "cuStreamDestroy", |state| state.stream_destroy(stream))
    }

    unsafe fn stream_ref(&self, handle: u64) -> DriverResult<StreamRef> {
        self.call(CallKind::StreamGetId, "cuStreamGetId", |state| state.stream_ref(handle))
    }

    fn stream_is_gone(&self, stream: StreamRef) -> bool {
        if stream.is_legacy() || stream.is_per_thread() || stream.is_foreign() {
            return false;
        }
        let state = self.lock();
        // After a reset, every call reports it.
        state.generation == self.generation && state.names.slot(stream).is_none()
    }

    fn stream_synchronize(&self, stream: StreamRef) -> DriverResult<()> {
        self.call_about(About::Stream(stream), CallKind::StreamSynchronize, "cuStreamSynchronize", |state| {
            state.stream_synchronize(stream)
        })
    }

    fn stream_query(&self, stream: StreamRef) -> DriverResult<bool> {
        self.call_about(About::Stream(stream), CallKind::StreamQuery, "cuStreamQuery", |state| {
            state.stream_query(stream)
        })
    }

    fn stream_wait_event(&self, stream: StreamRef, event: Event) -> DriverResult<()> {
        self.call_about(About::Wait(stream, event), CallKind::StreamWaitEvent, "cuStreamWaitEvent", |state| {
            state.stream_wait_event(stream, event)
        })
    }

    fn stream_is_capturing(&self, stream: StreamRef) -> DriverResult<bool> {
        self.call_about(About::Stream(stream), CallKind::StreamIsCapturing, "cuStreamIsCapturing", |state| {
            state.stream_is_capturing(stream)
        })
    }

    fn stream_capture_id(&self, stream: StreamRef) -> DriverResult<Option<u64>> {
        let (about, name) = (About::Stream(stream), "cuStreamGetCaptureInfo");
        self.call_about(about, CallKind::StreamIsCapturing, name, |state| state.stream_capture_id(stream))
    }

    // --- Events ---

    fn event_create(&self, _flags: EventFlags) -> DriverResult<Event> {
        self.call(CallKind::EventCreate, "cuEventCreate", |state| Ok(state.event_create()))
    }

    unsafe fn event_destroy(&self, event: Event) -> DriverResult<()> {
        self.call(CallKind::EventDestroy, "cuEventDestroy", |state| state.event_destroy(event))
    }

    fn event_record(&self, event: Event, stream: StreamRef) -> DriverResult<()> {
        self.call_about(About::Stream(stream), CallKind::EventRecord, "cuEventRecord", |state| {
            state.event_record(event, stream)
        })
    }

    /// If the result is `Ok(false)`, no driver call is made or counted.
    fn event_record_if_alive(&self, event: Event, stream: StreamRef) -> DriverResult<bool> {
        let mut state = self.lock();
        if state.generation != self.generation {
            return Err(after_reset("cuEventRecord"));
        }
        if !state.is_surely_alive(stream) {
            return Ok(false);
        }
        let recorded =
            state.begin_call(CallKind::EventRecord).and_then(|()| state.event_record(event, stream));
        recorded.map(|()| true).map_err(|refusal| refusal.named("cuEventRecord"))
    }

    fn event_query(&self, event: Event) -> DriverResult<bool> {
        self.call_about(About::Event(event), CallKind::EventQuery, "cuEventQuery", |state| {
            state.event_query(event)
        })
    }

    fn event_synchronize(&self, event: Event) -> DriverResult<()> {
        self.call_about(About::Event(event), CallKind::EventSynchronize, "cuEventSynchronize", |state| {
            state.event_synchronize(event)
        })
    }

    // --- Copies and fills ---

    unsafe fn memcpy_htod_async(
        &self,
        dst: DevicePtr,
        src: *const u8,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        self.call_about(About::Stream(stream), CallKind::Copy, "cuMemcpyHtoDAsync", |state| {
            if bytes == 0 {
                return Ok(());
            }
            let address = src.expose_provenance();
            if state.is_known(address, bytes) {
                return state.copy_on_device(
                    dst,
                    DevicePtr::new(address as u64),
                    bytes,
                    stream,
                    "cuMemcpyHtoDAsync",
                );
            }
            let size = host_size(bytes)?;
            // SAFETY: the caller vouches for `bytes` readable bytes at `src`.
            let staged = unsafe { std::slice::from_raw_parts(src, size) };
            state.copy_staged(dst, staged.into(), stream)
        })
    }

    unsafe fn memcpy_dtoh_async(
        &self,
        dst: *mut u8,
        src: DevicePtr,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        self.call_about(About::Stream(stream), CallKind::Copy, "cuMemcpyDtoHAsync", |state| {
            if bytes == 0 {
                return Ok(());
            }
            let address = dst.expose_provenance();
            if state.is_known(address, bytes) {
                return state.copy_on_device(
                    DevicePtr::new(address as u64),
                    src,
                    bytes,
                    stream,
                    "cuMemcpyDtoHAsync",
                );
            }
            host_size(bytes)?;
            let mut at = dst;
            state.copy_out(src, bytes, stream, |part| {
                // SAFETY: the caller vouches for `bytes` writable bytes at `dst`. The parts add up to
                // `bytes`, and `part` is the simulator's own memory.
                unsafe {
                    at.copy_from_nonoverlapping(part.as_ptr(), part.len());
                    at = at.add(part.len());
                }
            })
        })
    }

    unsafe fn memcpy_dtod_async(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        if self.is_foreign(&[dst, src]) {
            return self.copy_foreign(dst, src, bytes, stream);
        }
        self.call_about(About::Stream(stream), CallKind::Copy, "cuMemcpyDtoDAsync", |state| {
            state.copy_on_device(dst, src, bytes, stream, "cuMemcpyDtoDAsync")
        })
    }

    unsafe fn memcpy_peer_async(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        src_device: DeviceId,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        self.copy_from_peer(dst, src, src_device, bytes, stream)
    }

    unsafe fn memset_d8_async(
        &self,
        dst: DevicePtr,
        value: u8,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        if self.is_foreign(&[dst]) {
            return self.fill_foreign(dst, value, bytes, stream);
        }
        self.call_about(About::Stream(stream), CallKind::Fill, "cuMemsetD8Async", |state| {
            state.memset(dst, value, bytes, stream)
        })
    }

    // --- Between processes ---

    fn ipc_get_mem_handle(&self, ptr: DevicePtr) -> DriverResult<IpcMemHandle> {
        self.call(CallKind::Ipc, "cuIpcGetMemHandle", |state| state.ipc_get_mem_handle(ptr))
    }

    fn ipc_open_mem_handle(&self, handle: &IpcMemHandle) -> DriverResult<DevicePtr> {
        self.call(CallKind::Ipc, "cuIpcOpenMemHandle", |state| state.ipc_open_mem_handle(handle))
    }

    unsafe fn ipc_close_mem_handle(&self, ptr: DevicePtr) -> DriverResult<()> {
        self.call(CallKind::Ipc, "cuIpcCloseMemHandle", |state| state.ipc_close_mem_handle(ptr))
    }
}

fn host_size(bytes: u64) -> Answer<usize> {
    let fits = usize::try_from(bytes).ok().filter(|size| isize::try_from(*size).is_ok());
    fits.ok_or_else(|| Refusal::invalid_value(format!("{bytes} bytes do not fit in host memory")))
}
