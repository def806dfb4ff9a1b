//! The driver's functions, looked up once by name; each may be missing.

use std::ffi::{c_char, c_void};

use libloading::Library;
use millpond_core::driver::{DriverError, DriverResult};

use super::abi::{AccessDesc, AllocationProp, IpcHandle, Location, PoolProps, PtrExportData};

/// Each line is `method(arguments) = "name" "suffix of the symbol";`. The method calls the function and
/// returns [`DriverError::NO_SYMBOL`] if the driver lacks it. Errors name the function without the suffix.
macro_rules! functions {
    ($($method:ident($($arg:ident: $type:ty),*) = $name:literal $($suffix:literal)?;)*) => {
        pub(super) struct Functions {
            $($method: Option<unsafe extern "C" fn($($type),*) -> i32>,)*
        }

        impl Functions {
            pub(super) fn look_up(library: &'static Library) -> Self {
                Self {
                    // SAFETY: CUDA documents this type for the symbol. The library is never unloaded, so the
                    // pointer stays valid.
                    $($method: unsafe { library.get(concat!($name, $($suffix,)? "\0").as_bytes()) }
                        .ok()
                        .map(|symbol| *symbol),)*
                }
            }

            $(
                /// # Safety
                /// As CUDA documents for the function.
                #[allow(clippy::too_many_arguments)] // CUDA's own
                pub(super) unsafe fn $method(&self, $($arg: $type),*) -> DriverResult<()> {
                    let Some(function) = self.$method else {
                        return Err(DriverError::new(DriverError::NO_SYMBOL, $name));
                    };
                    // SAFETY: the caller vouches for the arguments.
                    match unsafe { function($($arg),*) } {
                        0 => Ok(()),
                        code => Err(DriverError::new(code, $name)),
                    }
                }
            )*
        }
    };
}

functions! {
    init(flags: u32) = "cuInit";
    driver_get_version(version: *mut i32) = "cuDriverGetVersion";
    device_get_count(count: *mut i32) = "cuDeviceGetCount";
    device_get(device: *mut i32, ordinal: i32) = "cuDeviceGet";
    device_get_name(name: *mut c_char, len: i32, device: i32) = "cuDeviceGetName";
    device_get_attribute(value: *mut i32, attribute: u32, device: i32) = "cuDeviceGetAttribute";
    device_can_access_peer(can: *mut i32, device: i32, peer: i32) = "cuDeviceCanAccessPeer";
    device_primary_ctx_retain(context: *mut u64, device: i32) = "cuDevicePrimaryCtxRetain";
    device_primary_ctx_get_state(device: i32, flags: *mut u32, active: *mut i32)
        = "cuDevicePrimaryCtxGetState";

    ctx_get_current(context: *mut u64) = "cuCtxGetCurrent";
    ctx_set_current(context: u64) = "cuCtxSetCurrent";
    ctx_get_device(device: *mut i32) = "cuCtxGetDevice";
    ctx_get_id(context: u64, id: *mut u64) = "cuCtxGetId";
    ctx_synchronize() = "cuCtxSynchronize";

    mem_get_info(free: *mut u64, total: *mut u64) = "cuMemGetInfo" "_v2";
    mem_alloc(ptr: *mut u64, bytes: u64) = "cuMemAlloc" "_v2";
    mem_alloc_managed(ptr: *mut u64, bytes: u64, flags: u32) = "cuMemAllocManaged";
    mem_free(ptr: u64) = "cuMemFree" "_v2";
    mem_get_address_range(base: *mut u64, bytes: *mut u64, ptr: u64) = "cuMemGetAddressRange" "_v2";
    pointer_get_attribute(value: *mut c_void, attribute: u32, ptr: u64) = "cuPointerGetAttribute";
    mem_prefetch_async_v1(ptr: u64, bytes: u64, device: i32, stream: u64) = "cuMemPrefetchAsync";
    mem_prefetch_async_v2(ptr: u64, bytes: u64, to: Location, flags: u32, stream: u64)
        = "cuMemPrefetchAsync" "_v2";
    mem_advise_v1(ptr: u64, bytes: u64, advice: u32, device: i32) = "cuMemAdvise";
    mem_advise_v2(ptr: u64, bytes: u64, advice: u32, location: Location) = "cuMemAdvise" "_v2";

    mem_host_alloc(ptr: *mut *mut c_void, bytes: u64, flags: u32) = "cuMemHostAlloc";
    mem_free_host(ptr: *mut c_void) = "cuMemFreeHost";
    mem_host_register(ptr: *mut c_void, bytes: u64, flags: u32) = "cuMemHostRegister" "_v2";
    mem_host_unregister(ptr: *mut c_void) = "cuMemHostUnregister";
    mem_host_get_device_pointer(out: *mut u64, ptr: *mut c_void, flags: u32)
        = "cuMemHostGetDevicePointer" "_v2";

    mem_alloc_async(ptr: *mut u64, bytes: u64, stream: u64) = "cuMemAllocAsync";
    mem_alloc_from_pool_async(ptr: *mut u64, bytes: u64, pool: u64, stream: u64) = "cuMemAllocFromPoolAsync";
    mem_free_async(ptr: u64, stream: u64) = "cuMemFreeAsync";
    mem_pool_create(pool: *mut u64, props: *const PoolProps) = "cuMemPoolCreate";
    mem_pool_destroy(pool: u64) = "cuMemPoolDestroy";
    device_get_default_mem_pool(pool: *mut u64, device: i32) = "cuDeviceGetDefaultMemPool";
    device_get_mem_pool(pool: *mut u64, device: i32) = "cuDeviceGetMemPool";
    device_set_mem_pool(device: i32, pool: u64) = "cuDeviceSetMemPool";
    mem_get_default_mem_pool(pool: *mut u64, location: *mut Location, kind: u32) = "cuMemGetDefaultMemPool";
    mem_get_mem_pool(pool: *mut u64, location: *mut Location, kind: u32) = "cuMemGetMemPool";
    mem_set_mem_pool(location: *mut Location, kind: u32, pool: u64) = "cuMemSetMemPool";
    mem_pool_trim_to(pool: u64, keep_bytes: u64) = "cuMemPoolTrimTo";
    mem_pool_get_attribute(pool: u64, attribute: u32, value: *mut c_void) = "cuMemPoolGetAttribute";
    mem_pool_set_attribute(pool: u64, attribute: u32, value: *mut c_void) = "cuMemPoolSetAttribute";
    device_get_graph_mem_attribute(device: i32, attribute: u32, value: *mut c_void)
        = "cuDeviceGetGraphMemAttribute";
    device_set_graph_mem_attribute(device: i32, attribute: u32, value: *mut c_void)
        = "cuDeviceSetGraphMemAttribute";
    device_graph_mem_trim(device: i32) = "cuDeviceGraphMemTrim";
    mem_pool_set_access(pool: u64, access: *const AccessDesc, count: u64) = "cuMemPoolSetAccess";
    mem_pool_get_access(flags: *mut u32, pool: u64, location: *mut Location) = "cuMemPoolGetAccess";
    mem_pool_export_to_shareable_handle(out: *mut c_void, pool: u64, kind: u32, flags: u64)
        = "cuMemPoolExportToShareableHandle";
    mem_pool_import_from_shareable_handle(pool: *mut u64, os_handle: *mut c_void, kind: u32, flags: u64)
        = "cuMemPoolImportFromShareableHandle";
    mem_pool_export_pointer(data: *mut PtrExportData, ptr: u64) = "cuMemPoolExportPointer";
    mem_pool_import_pointer(ptr: *mut u64, pool: u64, data: *mut PtrExportData) = "cuMemPoolImportPointer";

    mem_get_allocation_granularity(bytes: *mut u64, props: *const AllocationProp, option: u32)
        = "cuMemGetAllocationGranularity";
    mem_address_reserve(ptr: *mut u64, bytes: u64, alignment: u64, hint: u64, flags: u64)
        = "cuMemAddressReserve";
    mem_address_free(ptr: u64, bytes: u64) = "cuMemAddressFree";
    mem_create(handle: *mut u64, bytes: u64, props: *const AllocationProp, flags: u64) = "cuMemCreate";
    mem_release(handle: u64) = "cuMemRelease";
    mem_export_to_shareable_handle(out: *mut c_void, handle: u64, kind: u32, flags: u64)
        = "cuMemExportToShareableHandle";
    mem_import_from_shareable_handle(handle: *mut u64, os_handle: *mut c_void, kind: u32)
        = "cuMemImportFromShareableHandle";
    mem_map(ptr: u64, bytes: u64, offset: u64, handle: u64, flags: u64) = "cuMemMap";
    mem_unmap(ptr: u64, bytes: u64) = "cuMemUnmap";
    mem_set_access(ptr: u64, bytes: u64, access: *const AccessDesc, count: u64) = "cuMemSetAccess";

    stream_create_with_priority(stream: *mut u64, flags: u32, priority: i32) = "cuStreamCreateWithPriority";
    stream_destroy(stream: u64) = "cuStreamDestroy" "_v2";
    stream_get_ctx(stream: u64, context: *mut u64) = "cuStreamGetCtx";
    stream_get_id(stream: u64, id: *mut u64) = "cuStreamGetId";
    stream_synchronize(stream: u64) = "cuStreamSynchronize";
    stream_query(stream: u64) = "cuStreamQuery";
    stream_wait_event(stream: u64, event: u64, flags: u32) = "cuStreamWaitEvent";
    stream_is_capturing(stream: u64, status: *mut u32) = "cuStreamIsCapturing";
    launch_host_func(stream: u64, function: extern "C" fn(*mut c_void), data: *mut c_void)
        = "cuLaunchHostFunc";
    stream_get_capture_info(
        stream: u64,
        status: *mut u32,
        id: *mut u64,
        graph: *mut u64,
        dependencies: *mut *const u64,
        count: *mut u64
    ) = "cuStreamGetCaptureInfo" "_v2";
    stream_begin_capture(stream: u64, mode: u32) = "cuStreamBeginCapture" "_v2";
    stream_end_capture(stream: u64, graph: *mut u64) = "cuStreamEndCapture";
    graph_destroy(graph: u64) = "cuGraphDestroy";
    graph_get_nodes(graph: u64, nodes: *mut u64, count: *mut u64) = "cuGraphGetNodes";
    graph_node_get_type(node: u64, kind: *mut u32) = "cuGraphNodeGetType";
    graph_instantiate(exec: *mut u64, graph: u64, flags: u64) = "cuGraphInstantiateWithFlags";
    graph_launch(exec: u64, stream: u64) = "cuGraphLaunch";
    graph_exec_destroy(exec: u64) = "cuGraphExecDestroy";
    thread_exchange_stream_capture_mode(mode: *mut u32) = "cuThreadExchangeStreamCaptureMode";

    event_create(event: *mut u64, flags: u32) = "cuEventCreate";
    event_destroy(event: u64) = "cuEventDestroy" "_v2";
    event_record(event: u64, stream: u64) = "cuEventRecord";
    event_query(event: u64) = "cuEventQuery";
    event_synchronize(event: u64) = "cuEventSynchronize";

    memcpy_async(dst: u64, src: u64, bytes: u64, stream: u64) = "cuMemcpyAsync";
    memcpy_htod_async(dst: u64, src: *const c_void, bytes: u64, stream: u64) = "cuMemcpyHtoDAsync" "_v2";
    memcpy_dtoh_async(dst: *mut c_void, src: u64, bytes: u64, stream: u64) = "cuMemcpyDtoHAsync" "_v2";
    memcpy_dtod_async(dst: u64, src: u64, bytes: u64, stream: u64) = "cuMemcpyDtoDAsync" "_v2";
    memcpy_peer_async(
        dst: u64,
        dst_context: u64,
        src: u64,
        src_context: u64,
        bytes: u64,
        stream: u64
    ) = "cuMemcpyPeerAsync";
    memset_d8_async(dst: u64, value: u8, bytes: u64, stream: u64) = "cuMemsetD8Async";

    ipc_get_mem_handle(handle: *mut IpcHandle, ptr: u64) = "cuIpcGetMemHandle";
    ipc_open_mem_handle(ptr: *mut u64, handle: IpcHandle, flags: u32) = "cuIpcOpenMemHandle" "_v2";
    ipc_close_mem_handle(ptr: u64) = "cuIpcCloseMemHandle";

    module_load_data_ex(
        module: *mut u64,
        image: *const c_void,
        option_count: u32,
        options: *mut u32,
        values: *mut *mut c_void
    ) = "cuModuleLoadDataEx";
    module_unload(module: u64) = "cuModuleUnload";
    module_get_function(function: *mut u64, module: u64, name: *const c_char) = "cuModuleGetFunction";
    launch_kernel(
        function: u64,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_bytes: u32,
        stream: u64,
        args: *mut *mut c_void,
        extra: *mut *mut c_void
    ) = "cuLaunchKernel";
}
