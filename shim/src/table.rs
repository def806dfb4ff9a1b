//! The list of entry points: CUDA's names, and the functions behind them.

use std::ffi::c_void;

/// An exported function of CUDA.
#[derive(Clone, Copy)]
pub(crate) struct Symbol {
    pub(crate) name: &'static str,
    /// The first version of CUDA that had the function, as CUDA numbers versions; 0 if it does not matter.
    pub(crate) since: u32,
    pub(crate) address: fn() -> *const c_void,
}

/// Calls a macro with every entry point: our function with its arguments, and then the names that CUDA has
/// for it. `by` names the [`Api`](crate::calls::Api) of a name. `since` is the version of CUDA that
/// introduced the name, for a function that CUDA has in several versions.
macro_rules! entry_points {
    ($make:ident) => {
        $make! {
            // Devices, versions and errors.
            device::get_count(count: *mut c_int) -> c_int:
                cudaGetDeviceCount by Runtime, cuDeviceGetCount by Driving;
            device::get(device: *mut c_int, ordinal: c_int) -> c_int: cuDeviceGet;
            device::get_of_thread(device: *mut c_int) -> c_int: cudaGetDevice;
            device::set_of_thread(device: c_int) -> c_int: cudaSetDevice;
            device::get_name(name: *mut c_char, length: c_int, device: c_int) -> c_int: cuDeviceGetName;
            device::get_uuid(uuid: *mut [u8; 16], device: c_int) -> c_int:
                cuDeviceGetUuid, cuDeviceGetUuid_v2 since 11040;
            device::get_pci_bus_id(address: *mut c_char, length: c_int, device: c_int) -> c_int:
                cudaDeviceGetPCIBusId by Runtime, cuDeviceGetPCIBusId by Driving;
            device::get_by_pci_bus_id(device: *mut c_int, address: *const c_char) -> c_int:
                cudaDeviceGetByPCIBusId by Runtime, cuDeviceGetByPCIBusId by Driving;
            device::get_total_memory(bytes: *mut usize, device: c_int) -> c_int: cuDeviceTotalMem_v2;
            device::get_attribute(value: *mut c_int, attribute: c_int, device: c_int) -> c_int:
                cudaDeviceGetAttribute by Runtime, cuDeviceGetAttribute by Driving;
            device::can_access_peer(can: *mut c_int, device: c_int, peer: c_int) -> c_int:
                cudaDeviceCanAccessPeer by Runtime, cuDeviceCanAccessPeer by Driving;
            device::enable_peer_access(device: c_int, flags: c_uint) -> c_int: cudaDeviceEnablePeerAccess;
            device::get_properties(properties: *mut DeviceProperties, device: c_int) -> c_int:
                cudaGetDeviceProperties;
            device::synchronize() -> c_int: cudaDeviceSynchronize by Runtime, cuCtxSynchronize by Driving;
            device::get_runtime_version(version: *mut c_int) -> c_int: cudaRuntimeGetVersion;
            device::get_driver_version(version: *mut c_int) -> c_int:
                cudaDriverGetVersion by Runtime, cuDriverGetVersion by Driving;
            device::get_last_error() -> c_int: cudaGetLastError;
            device::peek_at_last_error() -> c_int: cudaPeekAtLastError;
            device::get_runtime_error_name(error: c_int) -> *const c_char: cudaGetErrorName;
            device::get_runtime_error_string(error: c_int) -> *const c_char: cudaGetErrorString;
            device::get_driver_error_name(error: c_int, name: *mut *const c_char) -> c_int: cuGetErrorName;
            device::get_driver_error_string(error: c_int, text: *mut *const c_char) -> c_int:
                cuGetErrorString;
            symbols::get_address_v1(
                name: *const c_char, address: *mut *mut c_void, cuda_version: c_int, flags: u64
            ) -> c_int: cuGetProcAddress;
            symbols::get_address(
                name: *const c_char, address: *mut *mut c_void, cuda_version: c_int, flags: u64,
                status: *mut c_int
            ) -> c_int:
                cuGetProcAddress_v2 by Driving since 12000, cudaGetDriverEntryPointByVersion by Runtime;
            symbols::get_newest(
                name: *const c_char, address: *mut *mut c_void, flags: u64, status: *mut c_int
            ) -> c_int: cudaGetDriverEntryPoint;
            // Contexts.
            contexts::init(flags: c_uint) -> c_int: cuInit;
            contexts::get_current(context: *mut Handle) -> c_int: cuCtxGetCurrent;
            contexts::set_current(context: Handle) -> c_int: cuCtxSetCurrent;
            contexts::push_current(context: Handle) -> c_int: cuCtxPushCurrent, cuCtxPushCurrent_v2;
            contexts::pop_current(context: *mut Handle) -> c_int: cuCtxPopCurrent, cuCtxPopCurrent_v2;
            contexts::get_device(device: *mut c_int) -> c_int: cuCtxGetDevice;
            contexts::get_id(context: Handle, id: *mut u64) -> c_int: cuCtxGetId;
            contexts::get_api_version(context: Handle, version: *mut c_uint) -> c_int: cuCtxGetApiVersion;
            contexts::get_flags(flags: *mut c_uint) -> c_int: cuCtxGetFlags;
            contexts::get_stream_priority_range(least: *mut c_int, most: *mut c_int) -> c_int:
                cudaDeviceGetStreamPriorityRange by Runtime, cuCtxGetStreamPriorityRange by Driving;
            contexts::create(context: *mut Handle, flags: c_uint, device: c_int) -> c_int:
                cuCtxCreate, cuCtxCreate_v2;
            contexts::create_with_affinity(
                context: *mut Handle, affinities: *mut c_void, count: c_int, flags: c_uint, device: c_int
            ) -> c_int: cuCtxCreate_v3 since 11040;
            contexts::create_with_params(
                context: *mut Handle, params: *mut c_void, flags: c_uint, device: c_int
            ) -> c_int: cuCtxCreate_v4 since 12050;
            contexts::destroy(context: Handle) -> c_int: cuCtxDestroy, cuCtxDestroy_v2;
            contexts::retain_primary(context: *mut Handle, device: c_int) -> c_int: cuDevicePrimaryCtxRetain;
            contexts::release_primary(device: c_int) -> c_int:
                cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2 since 11000;
            contexts::reset_primary(device: c_int) -> c_int:
                cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2 since 11000;
            contexts::set_primary_flags(device: c_int, flags: c_uint) -> c_int:
                cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2 since 11000;
            contexts::get_primary_state(device: c_int, flags: *mut c_uint, active: *mut c_int) -> c_int:
                cuDevicePrimaryCtxGetState;
            // Plain and managed memory.
            memory::alloc(ptr: *mut *mut c_void, bytes: usize) -> c_int:
                cudaMalloc by Runtime, cuMemAlloc_v2 by Driving;
            memory::alloc_pitch(
                ptr: *mut *mut c_void, pitch: *mut usize, width: usize, height: usize, element: c_uint
            ) -> c_int: cuMemAllocPitch_v2;
            memory::alloc_managed(ptr: *mut *mut c_void, bytes: usize, flags: c_uint) -> c_int:
                cudaMallocManaged by Runtime, cuMemAllocManaged by Driving;
            memory::free(ptr: *mut c_void) -> c_int: cudaFree by Runtime, cuMemFree_v2 by Driving;
            memory::get_info(free: *mut usize, total: *mut usize) -> c_int:
                cudaMemGetInfo by Runtime, cuMemGetInfo_v2 by Driving;
            memory::get_address_range(base: *mut *mut c_void, bytes: *mut usize, ptr: *mut c_void) -> c_int:
                cuMemGetAddressRange_v2;
            memory::get_attributes_of_runtime(
                attributes: *mut PointerAttributes, ptr: *const c_void
            ) -> c_int: cudaPointerGetAttributes;
            memory::get_attribute(value: *mut c_void, number: c_int, ptr: *const c_void) -> c_int:
                cuPointerGetAttribute;
            memory::get_attributes(
                count: c_uint, numbers: *const c_int, values: *const *mut c_void, ptr: *const c_void
            ) -> c_int: cuPointerGetAttributes;
            memory::prefetch_v1(ptr: *mut c_void, bytes: usize, device: c_int, stream: Handle) -> c_int:
                cuMemPrefetchAsync by Driving, cuMemPrefetchAsync_ptsz by DrivingPerThread;
            memory::prefetch(
                ptr: *mut c_void, bytes: usize, to: Location, flags: c_uint, stream: Handle
            ) -> c_int:
                cuMemPrefetchAsync_v2 by Driving since 12020,
                cuMemPrefetchAsync_v2_ptsz by DrivingPerThread since 12020;
            memory::advise_v1(ptr: *mut c_void, bytes: usize, advice: c_int, device: c_int) -> c_int:
                cuMemAdvise;
            memory::advise(ptr: *mut c_void, bytes: usize, advice: c_int, at: Location) -> c_int:
                cuMemAdvise_v2 since 12020;
            // Pinned memory.
            host::alloc_plain(ptr: *mut *mut c_void, bytes: usize) -> c_int:
                cudaMallocHost by Runtime, cuMemAllocHost_v2 by Driving;
            host::alloc(ptr: *mut *mut c_void, bytes: usize, flags: c_uint) -> c_int:
                cudaHostAlloc by Runtime, cuMemHostAlloc by Driving;
            host::free(ptr: *mut c_void) -> c_int: cudaFreeHost by Runtime, cuMemFreeHost by Driving;
            host::register(ptr: *mut c_void, bytes: usize, flags: c_uint) -> c_int:
                cudaHostRegister by Runtime, cuMemHostRegister by Driving, cuMemHostRegister_v2 by Driving;
            host::unregister(ptr: *mut c_void) -> c_int:
                cudaHostUnregister by Runtime, cuMemHostUnregister by Driving;
            host::get_device_pointer(device_ptr: *mut *mut c_void, ptr: *mut c_void, flags: c_uint) -> c_int:
                cudaHostGetDevicePointer by Runtime, cuMemHostGetDevicePointer_v2 by Driving;
            // Copies and fills.
            copies::copy_now(dst: *mut c_void, src: *const c_void, bytes: usize, kind: c_int) -> c_int:
                cudaMemcpy by Runtime, cudaMemcpy_ptds by RuntimePerThread;
            copies::copy_async(
                dst: *mut c_void, src: *const c_void, bytes: usize, kind: c_int, stream: Handle
            ) -> c_int: cudaMemcpyAsync by Runtime, cudaMemcpyAsync_ptsz by RuntimePerThread;
            copies::copy_by_pointers_now(dst: *mut c_void, src: *const c_void, bytes: usize) -> c_int:
                cuMemcpy by Driving, cuMemcpy_ptds by DrivingPerThread;
            copies::copy_by_pointers(
                dst: *mut c_void, src: *const c_void, bytes: usize, stream: Handle
            ) -> c_int: cuMemcpyAsync by Driving, cuMemcpyAsync_ptsz by DrivingPerThread;
            copies::copy_to_device_now(dst: *mut c_void, src: *const c_void, bytes: usize) -> c_int:
                cuMemcpyHtoD_v2 by Driving, cuMemcpyHtoD_v2_ptds by DrivingPerThread;
            copies::copy_to_device(
                dst: *mut c_void, src: *const c_void, bytes: usize, stream: Handle
            ) -> c_int: cuMemcpyHtoDAsync_v2 by Driving, cuMemcpyHtoDAsync_v2_ptsz by DrivingPerThread;
            copies::copy_to_host_now(dst: *mut c_void, src: *const c_void, bytes: usize) -> c_int:
                cuMemcpyDtoH_v2 by Driving, cuMemcpyDtoH_v2_ptds by DrivingPerThread;
            copies::copy_to_host(dst: *mut c_void, src: *const c_void, bytes: usize, stream: Handle) -> c_int:
                cuMemcpyDtoHAsync_v2 by Driving, cuMemcpyDtoHAsync_v2_ptsz by DrivingPerThread;
            copies::copy_on_device_now(dst: *mut c_void, src: *const c_void, bytes: usize) -> c_int:
                cuMemcpyDtoD_v2 by Driving, cuMemcpyDtoD_v2_ptds by DrivingPerThread;
            copies::copy_on_device(
                dst: *mut c_void, src: *const c_void, bytes: usize, stream: Handle
            ) -> c_int: cuMemcpyDtoDAsync_v2 by Driving, cuMemcpyDtoDAsync_v2_ptsz by DrivingPerThread;
            copies::copy_peer(
                dst: *mut c_void, dst_context: Handle, src: *const c_void, src_context: Handle, bytes: usize,
                stream: Handle
            ) -> c_int: cuMemcpyPeerAsync by Driving, cuMemcpyPeerAsync_ptsz by DrivingPerThread;
            copies::copy_between(
                dst: *mut c_void, dst_device: c_int, src: *const c_void, src_device: c_int, bytes: usize,
                stream: Handle
            ) -> c_int: cudaMemcpyPeerAsync by Runtime, cudaMemcpyPeerAsync_ptsz by RuntimePerThread;
            copies::fill_ints_now(ptr: *mut c_void, value: c_int, count: usize) -> c_int:
                cudaMemset by Runtime, cudaMemset_ptds by RuntimePerThread;
            copies::fill_ints(ptr: *mut c_void, value: c_int, count: usize, stream: Handle) -> c_int:
                cudaMemsetAsync by Runtime, cudaMemsetAsync_ptsz by RuntimePerThread;
            copies::fill_bytes_now(ptr: *mut c_void, value: c_uchar, count: usize) -> c_int:
                cuMemsetD8_v2 by Driving, cuMemsetD8_v2_ptds by DrivingPerThread;
            copies::fill_bytes(ptr: *mut c_void, value: c_uchar, count: usize, stream: Handle) -> c_int:
                cuMemsetD8Async by Driving, cuMemsetD8Async_ptsz by DrivingPerThread;
            copies::fill_shorts_now(ptr: *mut c_void, value: c_ushort, count: usize) -> c_int:
                cuMemsetD16_v2 by Driving, cuMemsetD16_v2_ptds by DrivingPerThread;
            copies::fill_shorts(ptr: *mut c_void, value: c_ushort, count: usize, stream: Handle) -> c_int:
                cuMemsetD16Async by Driving, cuMemsetD16Async_ptsz by DrivingPerThread;
            copies::fill_words_now(ptr: *mut c_void, value: c_uint, count: usize) -> c_int:
                cuMemsetD32_v2 by Driving, cuMemsetD32_v2_ptds by DrivingPerThread;
            copies::fill_words(ptr: *mut c_void, value: c_uint, count: usize, stream: Handle) -> c_int:
                cuMemsetD32Async by Driving, cuMemsetD32Async_ptsz by DrivingPerThread;
            copies::fill_rows(
                ptr: *mut c_void, pitch: usize, value: c_uchar, width: usize, height: usize
            ) -> c_int: cuMemsetD2D8_v2;
            // Stream-ordered memory and its pools.
            pools::alloc(ptr: *mut *mut c_void, bytes: usize, stream: Handle) -> c_int:
                cudaMallocAsync by Runtime, cudaMallocAsync_ptsz by RuntimePerThread,
                cuMemAllocAsync by Driving, cuMemAllocAsync_ptsz by DrivingPerThread;
            pools::alloc_from(ptr: *mut *mut c_void, bytes: usize, pool: Handle, stream: Handle) -> c_int:
                cudaMallocFromPoolAsync by Runtime, cudaMallocFromPoolAsync_ptsz by RuntimePerThread,
                cuMemAllocFromPoolAsync by Driving, cuMemAllocFromPoolAsync_ptsz by DrivingPerThread;
            pools::free(ptr: *mut c_void, stream: Handle) -> c_int:
                cudaFreeAsync by Runtime, cudaFreeAsync_ptsz by RuntimePerThread, cuMemFreeAsync by Driving,
                cuMemFreeAsync_ptsz by DrivingPerThread;
            pools::create(pool: *mut Handle, props: *const PoolProps) -> c_int:
                cudaMemPoolCreate by Runtime, cuMemPoolCreate by Driving;
            pools::destroy(pool: Handle) -> c_int: cudaMemPoolDestroy by Runtime, cuMemPoolDestroy by Driving;
            pools::trim_to(pool: Handle, keep_bytes: usize) -> c_int:
                cudaMemPoolTrimTo by Runtime, cuMemPoolTrimTo by Driving;
            pools::set_attribute(pool: Handle, attribute: c_int, value: *mut c_void) -> c_int:
                cudaMemPoolSetAttribute by Runtime, cuMemPoolSetAttribute by Driving;
            pools::get_attribute(pool: Handle, attribute: c_int, value: *mut c_void) -> c_int:
                cudaMemPoolGetAttribute by Runtime, cuMemPoolGetAttribute by Driving;
            pools::get_graph_memory(device: c_int, attribute: c_int, value: *mut c_void) -> c_int:
                cudaDeviceGetGraphMemAttribute by Runtime, cuDeviceGetGraphMemAttribute by Driving;
            pools::set_graph_memory(device: c_int, attribute: c_int, value: *mut c_void) -> c_int:
                cudaDeviceSetGraphMemAttribute by Runtime, cuDeviceSetGraphMemAttribute by Driving;
            pools::trim_graph_memory(device: c_int) -> c_int:
                cudaDeviceGraphMemTrim by Runtime, cuDeviceGraphMemTrim by Driving;
            pools::set_access(pool: Handle, access: *const AccessDesc, count: usize) -> c_int:
                cudaMemPoolSetAccess by Runtime, cuMemPoolSetAccess by Driving;
            pools::get_access(flags: *mut c_int, pool: Handle, location: *const Location) -> c_int:
                cudaMemPoolGetAccess by Runtime, cuMemPoolGetAccess by Driving;
            pools::get_default(pool: *mut Handle, device: c_int) -> c_int:
                cudaDeviceGetDefaultMemPool by Runtime, cuDeviceGetDefaultMemPool by Driving;
            pools::get_of_device(pool: *mut Handle, device: c_int) -> c_int:
                cudaDeviceGetMemPool by Runtime, cuDeviceGetMemPool by Driving;
            pools::set_of_device(device: c_int, pool: Handle) -> c_int:
                cudaDeviceSetMemPool by Runtime, cuDeviceSetMemPool by Driving;
            pools::get_default_at(pool: *mut Handle, location: *const Location, kind: c_int) -> c_int:
                cuMemGetDefaultMemPool since 13000;
            pools::get_at(pool: *mut Handle, location: *const Location, kind: c_int) -> c_int:
                cuMemGetMemPool since 13000;
            pools::set_at(location: *const Location, kind: c_int, pool: Handle) -> c_int:
                cuMemSetMemPool since 13000;
            // Memory and pools for other processes.
            sharing::export_pool(
                os_handle: *mut c_void, pool: Handle, kind: c_int, flags: c_ulonglong
            ) -> c_int: cuMemPoolExportToShareableHandle by Driving;
            sharing::import_pool(
                pool: *mut Handle, os_handle: *mut c_void, kind: c_int, flags: c_ulonglong
            ) -> c_int: cuMemPoolImportFromShareableHandle by Driving;
            sharing::export_pointer(data: *mut Opaque, ptr: *mut c_void) -> c_int:
                cudaMemPoolExportPointer by Runtime, cuMemPoolExportPointer by Driving;
            sharing::import_pointer(ptr: *mut *mut c_void, pool: Handle, data: *const Opaque) -> c_int:
                cudaMemPoolImportPointer by Runtime, cuMemPoolImportPointer by Driving;
            sharing::export_memory(
                os_handle: *mut c_void, memory: u64, kind: c_int, flags: c_ulonglong
            ) -> c_int: cuMemExportToShareableHandle;
            sharing::import_memory(memory: *mut u64, os_handle: *mut c_void, kind: c_int) -> c_int:
                cuMemImportFromShareableHandle;
            sharing::ipc_get(exported: *mut Opaque, ptr: *mut c_void) -> c_int:
                cudaIpcGetMemHandle by Runtime, cuIpcGetMemHandle by Driving;
            sharing::ipc_open(ptr: *mut *mut c_void, exported: Opaque, flags: c_uint) -> c_int:
                cudaIpcOpenMemHandle by Runtime, cuIpcOpenMemHandle by Driving,
                cuIpcOpenMemHandle_v2 by Driving since 11000;
            sharing::ipc_close(ptr: *mut c_void) -> c_int:
                cudaIpcCloseMemHandle by Runtime, cuIpcCloseMemHandle by Driving;
            // Virtual memory management.
            vmm::get_granularity(bytes: *mut usize, props: *const PhysicalProp, option: c_int) -> c_int:
                cuMemGetAllocationGranularity;
            vmm::reserve(
                ptr: *mut *mut c_void, bytes: usize, alignment: usize, wanted: *mut c_void, flags: c_ulonglong
            ) -> c_int: cuMemAddressReserve;
            vmm::free_addresses(ptr: *mut c_void, bytes: usize) -> c_int: cuMemAddressFree;
            vmm::create(
                memory: *mut u64, bytes: usize, props: *const PhysicalProp, flags: c_ulonglong
            ) -> c_int: cuMemCreate;
            vmm::release(memory: u64) -> c_int: cuMemRelease;
            vmm::map(ptr: *mut c_void, bytes: usize, offset: usize, memory: u64, flags: c_ulonglong) -> c_int:
                cuMemMap;
            vmm::unmap(ptr: *mut c_void, bytes: usize) -> c_int: cuMemUnmap;
            vmm::set_access(ptr: *mut c_void, bytes: usize, access: *const AccessDesc, count: usize) -> c_int:
                cuMemSetAccess;
            // Streams.
            order::stream_create_default(stream: *mut Handle) -> c_int: cudaStreamCreate by Runtime;
            order::stream_create(stream: *mut Handle, flags: c_uint) -> c_int:
                cudaStreamCreateWithFlags by Runtime, cuStreamCreate by Driving;
            order::stream_create_with_priority(stream: *mut Handle, flags: c_uint, priority: c_int) -> c_int:
                cudaStreamCreateWithPriority by Runtime, cuStreamCreateWithPriority by Driving;
            order::stream_destroy(stream: Handle) -> c_int:
                cudaStreamDestroy by Runtime, cuStreamDestroy by Driving, cuStreamDestroy_v2 by Driving;
            order::stream_synchronize(stream: Handle) -> c_int:
                cudaStreamSynchronize by Runtime, cudaStreamSynchronize_ptsz by RuntimePerThread,
                cuStreamSynchronize by Driving, cuStreamSynchronize_ptsz by DrivingPerThread;
            order::stream_query(stream: Handle) -> c_int:
                cudaStreamQuery by Runtime, cudaStreamQuery_ptsz by RuntimePerThread,
                cuStreamQuery by Driving, cuStreamQuery_ptsz by DrivingPerThread;
            order::stream_wait_event(stream: Handle, event: Handle, flags: c_uint) -> c_int:
                cudaStreamWaitEvent by Runtime, cudaStreamWaitEvent_ptsz by RuntimePerThread,
                cuStreamWaitEvent by Driving, cuStreamWaitEvent_ptsz by DrivingPerThread;
            order::stream_get_id(stream: Handle, id: *mut u64) -> c_int:
                cudaStreamGetId by Runtime, cudaStreamGetId_ptsz by RuntimePerThread,
                cuStreamGetId by Driving, cuStreamGetId_ptsz by DrivingPerThread;
            order::stream_get_context(stream: Handle, context: *mut Handle) -> c_int:
                cuStreamGetCtx by Driving, cuStreamGetCtx_ptsz by DrivingPerThread;
            order::launch_host_function(stream: Handle, function: HostFunction, data: *mut c_void) -> c_int:
                cudaLaunchHostFunc by Runtime, cudaLaunchHostFunc_ptsz by RuntimePerThread,
                cuLaunchHostFunc by Driving, cuLaunchHostFunc_ptsz by DrivingPerThread;
            // Captures and graphs.
            captures::is_capturing(stream: Handle, status: *mut c_int) -> c_int:
                cudaStreamIsCapturing by Runtime, cudaStreamIsCapturing_ptsz by RuntimePerThread,
                cuStreamIsCapturing by Driving, cuStreamIsCapturing_ptsz by DrivingPerThread;
            captures::begin_v1(stream: Handle) -> c_int:
                cuStreamBeginCapture by Driving, cuStreamBeginCapture_ptsz by DrivingPerThread;
            captures::begin(stream: Handle, mode: c_int) -> c_int:
                cudaStreamBeginCapture by Runtime, cudaStreamBeginCapture_ptsz by RuntimePerThread,
                cuStreamBeginCapture_v2 by Driving since 10010,
                cuStreamBeginCapture_v2_ptsz by DrivingPerThread since 10010;
            captures::end(stream: Handle, graph: *mut Handle) -> c_int:
                cudaStreamEndCapture by Runtime, cudaStreamEndCapture_ptsz by RuntimePerThread,
                cuStreamEndCapture by Driving, cuStreamEndCapture_ptsz by DrivingPerThread;
            captures::get_info_v1(stream: Handle, status: *mut c_int, id: *mut u64) -> c_int:
                cuStreamGetCaptureInfo by Driving, cuStreamGetCaptureInfo_ptsz by DrivingPerThread;
            captures::get_info(
                stream: Handle, status: *mut c_int, id: *mut u64, graph: *mut Handle,
                dependencies: *mut *const Handle, count: *mut usize
            ) -> c_int:
                cuStreamGetCaptureInfo_v2 by Driving since 11030,
                cuStreamGetCaptureInfo_v2_ptsz by DrivingPerThread since 11030;
            captures::get_info_v3(
                stream: Handle, status: *mut c_int, id: *mut u64, graph: *mut Handle,
                dependencies: *mut *const Handle, edges: *mut *const c_void, count: *mut usize
            ) -> c_int:
                cudaStreamGetCaptureInfo by Runtime, cudaStreamGetCaptureInfo_ptsz by RuntimePerThread,
                cuStreamGetCaptureInfo_v3 by Driving since 12030,
                cuStreamGetCaptureInfo_v3_ptsz by DrivingPerThread since 12030;
            captures::exchange_mode(mode: *mut c_int) -> c_int:
                cudaThreadExchangeStreamCaptureMode by Runtime, cuThreadExchangeStreamCaptureMode by Driving;
            captures::graph_destroy(graph: Handle) -> c_int:
                cudaGraphDestroy by Runtime, cuGraphDestroy by Driving;
            captures::graph_get_nodes(graph: Handle, nodes: *mut Handle, count: *mut usize) -> c_int:
                cudaGraphGetNodes by Runtime, cuGraphGetNodes by Driving;
            captures::node_get_type(node: Handle, kind: *mut c_int) -> c_int: cuGraphNodeGetType;
            captures::instantiate(exec: *mut Handle, graph: Handle, flags: u64) -> c_int:
                cuGraphInstantiateWithFlags;
            // Events.
            order::event_create_default(event: *mut Handle) -> c_int: cudaEventCreate by Runtime;
            order::event_create(event: *mut Handle, flags: c_uint) -> c_int:
                cudaEventCreateWithFlags by Runtime, cuEventCreate by Driving;
            order::event_destroy(event: Handle) -> c_int:
                cudaEventDestroy by Runtime, cuEventDestroy by Driving, cuEventDestroy_v2 by Driving;
            order::event_record(event: Handle, stream: Handle) -> c_int:
                cudaEventRecord by Runtime, cudaEventRecord_ptsz by RuntimePerThread,
                cuEventRecord by Driving, cuEventRecord_ptsz by DrivingPerThread;
            order::event_record_with_flags(event: Handle, stream: Handle, flags: c_uint) -> c_int:
                cudaEventRecordWithFlags by Runtime, cudaEventRecordWithFlags_ptsz by RuntimePerThread,
                cuEventRecordWithFlags by Driving, cuEventRecordWithFlags_ptsz by DrivingPerThread;
            order::event_query(event: Handle) -> c_int: cudaEventQuery by Runtime, cuEventQuery by Driving;
            order::event_synchronize(event: Handle) -> c_int:
                cudaEventSynchronize by Runtime, cuEventSynchronize by Driving;
            // NVML.
            nvml::init() -> c_int: nvmlInit_v2;
            nvml::get_by_bus(address: *const c_char, device: *mut Handle) -> c_int:
                nvmlDeviceGetHandleByPciBusId_v2;
            nvml::get_processes(device: Handle, count: *mut c_uint, processes: *mut ProcessInfo) -> c_int:
                nvmlDeviceGetComputeRunningProcesses;
            nvml::get_driver_version(version: *mut c_int) -> c_int: nvmlSystemGetCudaDriverVersion_v2;
            nvml::get_link(device: Handle, link: c_uint, info: *mut c_void) -> c_int:
                nvmlDeviceGetNvLinkRemoteDeviceType, nvmlDeviceGetNvLinkRemotePciInfo_v2;
            nvml::get_fabric(device: Handle, info: *mut FabricInfo) -> c_int: nvmlDeviceGetGpuFabricInfoV;
        }
    };
}

pub(crate) use entry_points;
