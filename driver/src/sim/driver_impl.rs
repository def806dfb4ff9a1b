use super::SimDevice;
use millpond_core::driver::*;
use millpond_core::{DeviceId, DevicePtr, StreamRef};

#[allow(unused_variables)]
impl Driver for SimDevice {
    fn device(&self) -> DeviceId {
        self.id
    }
    fn name(&self) -> String {
        self.config.profile().name().to_owned()
    }
    fn version(&self) -> DriverResult<i32> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "version"))
    }
    fn attribute(&self, attribute: DeviceAttribute) -> DriverResult<i64> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "attribute"))
    }
    fn mem_get_info(&self) -> DriverResult<MemoryInfo> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_get_info"))
    }
    fn synchronize(&self) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "synchronize"))
    }
    fn virtual_time_ns(&self) -> Option<u64> {
        Some(0)
    }
    fn mem_alloc(&self, bytes: u64) -> DriverResult<DevicePtr> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_alloc"))
    }
    fn mem_alloc_managed(&self, bytes: u64) -> DriverResult<DevicePtr> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_alloc_managed"))
    }
    unsafe fn mem_free(&self, ptr: DevicePtr) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_free"))
    }
    fn mem_get_address_range(&self, ptr: DevicePtr) -> DriverResult<(DevicePtr, u64)> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_get_address_range"))
    }
    fn pointer_kind(&self, ptr: DevicePtr) -> DriverResult<MemoryKind> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "pointer_kind"))
    }
    unsafe fn mem_prefetch_async(
        &self,
        ptr: DevicePtr,
        bytes: u64,
        to_host: bool,
        stream: StreamRef,
    ) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_prefetch_async"))
    }
    unsafe fn mem_advise(&self, ptr: DevicePtr, bytes: u64, advice: MemAdvice) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_advise"))
    }
    fn mem_host_alloc(&self, bytes: u64, flags: HostFlags) -> DriverResult<HostPtr> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_host_alloc"))
    }
    unsafe fn mem_free_host(&self, ptr: HostPtr) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_free_host"))
    }
    unsafe fn mem_host_register(&self, ptr: HostPtr, bytes: u64, flags: HostFlags) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_host_register"))
    }
    unsafe fn mem_host_unregister(&self, ptr: HostPtr) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_host_unregister"))
    }
    fn mem_host_get_device_pointer(&self, ptr: HostPtr) -> DriverResult<DevicePtr> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_host_get_device_pointer"))
    }
    fn mem_alloc_async(&self, bytes: u64, stream: StreamRef) -> DriverResult<DevicePtr> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_alloc_async"))
    }
    fn mem_alloc_from_pool_async(
        &self,
        bytes: u64,
        pool: MemPool,
        stream: StreamRef,
    ) -> DriverResult<DevicePtr> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_alloc_from_pool_async"))
    }
    unsafe fn mem_free_async(&self, ptr: DevicePtr, stream: StreamRef) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_free_async"))
    }
    fn mem_pool_create(&self, props: MemPoolProps) -> DriverResult<MemPool> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_pool_create"))
    }
    unsafe fn mem_pool_destroy(&self, pool: MemPool) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_pool_destroy"))
    }
    fn device_get_default_mem_pool(&self) -> DriverResult<MemPool> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "device_get_default_mem_pool"))
    }
    fn mem_pool_trim_to(&self, pool: MemPool, keep_bytes: u64) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_pool_trim_to"))
    }
    fn mem_pool_get_attribute(&self, pool: MemPool, attribute: MemPoolAttribute) -> DriverResult<u64> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_pool_get_attribute"))
    }
    fn mem_pool_set_attribute(
        &self,
        pool: MemPool,
        attribute: MemPoolAttribute,
        value: u64,
    ) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_pool_set_attribute"))
    }
    fn mem_get_allocation_granularity(&self) -> DriverResult<u64> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_get_allocation_granularity"))
    }
    fn mem_address_reserve(&self, bytes: u64, alignment: u64) -> DriverResult<DevicePtr> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_address_reserve"))
    }
    unsafe fn mem_address_free(&self, ptr: DevicePtr, bytes: u64) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_address_free"))
    }
    fn mem_create(&self, bytes: u64) -> DriverResult<PhysicalHandle> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_create"))
    }
    unsafe fn mem_release(&self, handle: PhysicalHandle) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_release"))
    }
    unsafe fn mem_map(&self, ptr: DevicePtr, bytes: u64, handle: PhysicalHandle) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_map"))
    }
    unsafe fn mem_unmap(&self, ptr: DevicePtr, bytes: u64) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_unmap"))
    }
    unsafe fn mem_set_access(&self, ptr: DevicePtr, bytes: u64, access: AccessFlags) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "mem_set_access"))
    }
    fn stream_create(&self, flags: StreamFlags) -> DriverResult<StreamRef> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "stream_create"))
    }
    unsafe fn stream_destroy(&self, stream: StreamRef) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "stream_destroy"))
    }
    fn stream_ref(&self, handle: u64) -> DriverResult<StreamRef> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "stream_ref"))
    }
    fn stream_synchronize(&self, stream: StreamRef) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "stream_synchronize"))
    }
    fn stream_query(&self, stream: StreamRef) -> DriverResult<bool> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "stream_query"))
    }
    fn stream_wait_event(&self, stream: StreamRef, event: Event) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "stream_wait_event"))
    }
    fn stream_is_capturing(&self, stream: StreamRef) -> DriverResult<bool> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "stream_is_capturing"))
    }
    fn event_create(&self, flags: EventFlags) -> DriverResult<Event> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "event_create"))
    }
    unsafe fn event_destroy(&self, event: Event) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "event_destroy"))
    }
    fn event_record(&self, event: Event, stream: StreamRef) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "event_record"))
    }
    fn event_record_if_alive(&self, event: Event, stream: StreamRef) -> DriverResult<bool> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "event_record_if_alive"))
    }
    fn event_query(&self, event: Event) -> DriverResult<bool> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "event_query"))
    }
    fn event_synchronize(&self, event: Event) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "event_synchronize"))
    }
    unsafe fn memcpy_htod_async(
        &self,
        dst: DevicePtr,
        src: *const u8,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "memcpy_htod_async"))
    }
    unsafe fn memcpy_dtoh_async(
        &self,
        dst: *mut u8,
        src: DevicePtr,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "memcpy_dtoh_async"))
    }
    unsafe fn memcpy_dtod_async(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "memcpy_dtod_async"))
    }
    unsafe fn memset_d8_async(
        &self,
        dst: DevicePtr,
        value: u8,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "memset_d8_async"))
    }
    fn ipc_get_mem_handle(&self, ptr: DevicePtr) -> DriverResult<IpcMemHandle> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "ipc_get_mem_handle"))
    }
    fn ipc_open_mem_handle(&self, handle: &IpcMemHandle) -> DriverResult<DevicePtr> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "ipc_open_mem_handle"))
    }
    unsafe fn ipc_close_mem_handle(&self, ptr: DevicePtr) -> DriverResult<()> {
        Err(DriverError::new(DriverError::NOT_SUPPORTED, "ipc_close_mem_handle"))
    }
}
