//! Tests the methods of [`Driver`] that a driver may leave out.

use std::ptr;
use std::sync::Arc;

use super::*;
use crate::{DeviceId, DevicePtr, Layout, StreamRef};

/// A driver of plain memory, which has only the methods that each driver must have.
#[derive(Debug, Default)]
struct Plain {
    health: Arc<Health>,
}

macro_rules! refused {
    ($($name:ident($($type:ty),*) -> $answer:ty;)*) => {
        $(fn $name(&self $(, _: $type)*) -> DriverResult<$answer> {
            defaults::unsupported(stringify!($name))
        })*
    };
}

macro_rules! refused_unsafe {
    ($($name:ident($($type:ty),*);)*) => {
        $(unsafe fn $name(&self $(, _: $type)*) -> DriverResult<()> {
            defaults::unsupported(stringify!($name))
        })*
    };
}

impl Driver for Plain {
    fn device(&self) -> DeviceId {
        DeviceId::cuda(3)
    }

    fn health(&self) -> &Arc<Health> {
        &self.health
    }

    fn stream_is_gone(&self, _: StreamRef) -> bool {
        false
    }

    refused! {
        mem_get_info() -> MemoryInfo;
        synchronize() -> ();
        mem_alloc(u64) -> DevicePtr;
        stream_create(StreamFlags) -> StreamRef;
        stream_synchronize(StreamRef) -> ();
        stream_query(StreamRef) -> bool;
        stream_wait_event(StreamRef, Event) -> ();
        event_create(EventFlags) -> Event;
        event_record(Event, StreamRef) -> ();
        event_query(Event) -> bool;
        event_synchronize(Event) -> ();
    }

    refused_unsafe! {
        mem_free(DevicePtr);
        stream_destroy(StreamRef);
        event_destroy(Event);
        memcpy_htod_async(DevicePtr, *const u8, u64, StreamRef);
        memcpy_dtoh_async(*mut u8, DevicePtr, u64, StreamRef);
        memcpy_dtod_async(DevicePtr, DevicePtr, u64, StreamRef);
        memset_d8_async(DevicePtr, u8, u64, StreamRef);
    }
}

/// Returns the call that the driver does not support.
fn lacks<T: std::fmt::Debug>(answer: DriverResult<T>) -> String {
    let error = answer.unwrap_err();
    assert!(error.is_unsupported(), "{error}");
    error.to_string().split(':').next().unwrap_or_default().to_owned()
}

#[test]
fn a_function_that_a_driver_lacks_is_unsupported() {
    let driver = Plain::default();
    let (null, host, pool, stream) = (DevicePtr::NULL, HostPtr(0), MemPool(1), StreamRef::LEGACY);
    let (place, kind) = (MemLocation::Device, MemAllocationType::Pinned);
    let (handle, fabric, pointer) = (PhysicalHandle(1), FabricHandle([0; 64]), MemPoolPtrData([0; 64]));
    let attribute = MemPoolAttribute::ReleaseThreshold;
    // SAFETY: the driver does nothing.
    let said = unsafe {
        [
            lacks(driver.attribute(DeviceAttribute::MultiprocessorCount)),
            lacks(driver.thread_exchange_stream_capture_mode(CaptureMode::Relaxed)),
            lacks(driver.mem_alloc_managed(1)),
            lacks(driver.mem_get_address_range(null)),
            lacks(driver.pointer_kind(null)),
            lacks(driver.mem_prefetch_async(null, 1, false, stream)),
            lacks(driver.mem_advise(null, 1, MemAdvice::ReadMostly)),
            lacks(driver.mem_host_alloc(1, HostFlags::default())),
            lacks(driver.mem_free_host(host)),
            lacks(driver.mem_host_register(host, 1, HostFlags::default())),
            lacks(driver.mem_host_unregister(host)),
            lacks(driver.mem_host_get_device_pointer(host)),
            lacks(driver.mem_alloc_async(1, stream)),
            lacks(driver.mem_alloc_from_pool_async(1, pool, stream)),
            lacks(driver.mem_free_async(null, stream)),
            lacks(driver.mem_pool_create(MemPoolProps::default())),
            lacks(driver.mem_pool_destroy(pool)),
            lacks(driver.device_get_default_mem_pool()),
            lacks(driver.device_get_mem_pool()),
            lacks(driver.device_set_mem_pool(pool)),
            lacks(driver.mem_get_default_mem_pool(place, kind)),
            lacks(driver.mem_get_mem_pool(place, kind)),
            lacks(driver.mem_set_mem_pool(place, kind, pool)),
            lacks(driver.mem_pool_set_access(pool, AccessFlags::ReadWrite, &[])),
            lacks(driver.mem_pool_get_access(pool, AccessLocation::Host)),
            lacks(driver.mem_pool_export_to_fd(pool)),
            lacks(driver.mem_pool_import_from_fd(1)),
            lacks(driver.mem_pool_export_to_fabric(pool)),
            lacks(driver.mem_pool_import_from_fabric(&fabric)),
            lacks(driver.mem_pool_export_pointer(null)),
            lacks(driver.mem_pool_import_pointer(pool, &pointer)),
            lacks(driver.mem_pool_trim_to(pool, 0)),
            lacks(driver.mem_pool_get_attribute(pool, attribute)),
            lacks(driver.mem_pool_set_attribute(pool, attribute, 1)),
            lacks(driver.device_get_graph_mem_attribute(GraphMemAttribute::UsedMemCurrent)),
            lacks(driver.device_reset_graph_mem_attribute(GraphMemAttribute::UsedMemHigh)),
            lacks(driver.device_graph_mem_trim()),
            lacks(driver.mem_get_allocation_granularity()),
            lacks(driver.mem_address_reserve(1, 1)),
            lacks(driver.mem_address_free(null, 1)),
            lacks(driver.mem_create(1, PhysicalProps::default())),
            lacks(driver.mem_release(handle)),
            lacks(driver.mem_map(null, 1, handle)),
            lacks(driver.mem_unmap(null, 1)),
            lacks(driver.mem_set_access(null, 1, AccessFlags::ReadWrite, &[])),
            lacks(driver.mem_export_to_fd(handle)),
            lacks(driver.mem_import_from_fd(1)),
            lacks(driver.memcpy_peer_async(null, null, DeviceId::cuda(1), 1, stream)),
            lacks(driver.ipc_get_mem_handle(null)),
            lacks(driver.ipc_close_mem_handle(null)),
            lacks(driver.stream_ref(77)),
        ]
    };
    assert!(said.iter().all(|call| call.starts_with("cu")), "{said:?}");
}

#[test]
fn other_methods_have_an_answer_without_the_driver() {
    let driver = Plain::default();
    assert_eq!((driver.name(), driver.version(), driver.was_reset()), ("cuda:3".to_owned(), Ok(0), false));
    assert_eq!((driver.virtual_time_ns(), driver.can_be_accessed_by(DeviceId::cuda(1))), (None, Ok(false)));
    assert_eq!((driver.active_peers(), driver.pointer_mem_pool(DevicePtr::NULL)), (Ok(Vec::new()), Ok(None)));
    let stream = StreamRef::LEGACY;
    assert_eq!((driver.stream_is_capturing(stream), driver.stream_capture_id(stream)), (Ok(false), Ok(None)));
}

#[test]
fn pageable_memory_is_the_systems() {
    let driver = Plain::default();
    let ptr = driver.pageable_alloc(Layout::new(100)).unwrap();
    // SAFETY: the memory has 100 bytes, and is freed once.
    unsafe {
        ptr::write_bytes(ptr.as_mut_ptr(), 7, 100);
        driver.pageable_free(ptr, Layout::new(100));
    }
    assert!(driver.pageable_alloc(Layout::new(0)).unwrap_err().is_out_of_memory());
    assert!(driver.pageable_alloc(Layout::new(u64::MAX)).unwrap_err().is_out_of_memory());
}
