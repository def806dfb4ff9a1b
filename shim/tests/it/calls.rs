//! The entry points answer wrong arguments as CUDA does: with a code, and without a crash.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use millpond_core::{Driver, DriverHandle};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_shim::{Entered, EntryPoints};

const CUDA: &EntryPoints = EntryPoints::OWN;

fn device() -> (Arc<SimDevice>, Entered) {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let driver: DriverHandle = Arc::clone(&device) as DriverHandle;
    (device, Entered::new(&driver))
}

/// The codes of CUDA 13.0 on an H100 with driver 580.159, measured on 2026-11-26.
#[test]
fn wrong_arguments_have_the_codes_of_a_gpu() {
    let (_device, _entered) = device();
    let (mut ptr, mut number, mut value) = (null_mut::<c_void>(), 0, 0_u64);
    let stray = std::ptr::without_provenance_mut::<c_void>(0x7f00_0000_1230);
    let one = std::ptr::without_provenance_mut::<c_void>(1);
    let (p, i) = (&raw mut ptr, &raw mut number);
    // SAFETY: every pointer is null, or points to a local value, or is one that the calls refuse unread.
    let answers = unsafe {
        [
            ("cudaMemGetInfo", (CUDA.cudaMemGetInfo)(null_mut(), null_mut()), 0),
            ("cudaGetDeviceCount", (CUDA.cudaGetDeviceCount)(null_mut()), 1),
            ("cudaGetDevice", (CUDA.cudaGetDevice)(null_mut()), 1),
            ("cudaSetDevice", (CUDA.cudaSetDevice)(99), 101),
            ("cudaDeviceGetAttribute", (CUDA.cudaDeviceGetAttribute)(null_mut(), 16, 0), 1),
            ("attribute of no device", (CUDA.cudaDeviceGetAttribute)(i, 16, 99), 101),
            ("no attribute", (CUDA.cudaDeviceGetAttribute)(i, 99_999, 0), 1),
            ("cudaStreamCreate", (CUDA.cudaStreamCreate)(null_mut()), 1),
            ("no flags of a stream", (CUDA.cudaStreamCreateWithFlags)(p, 7), 1),
            ("cudaStreamDestroy", (CUDA.cudaStreamDestroy)(null_mut()), 400),
            ("the legacy stream", (CUDA.cudaStreamDestroy)(one), 400),
            ("cudaStreamQuery", (CUDA.cudaStreamQuery)(null_mut()), 0),
            ("cudaStreamWaitEvent", (CUDA.cudaStreamWaitEvent)(null_mut(), null_mut(), 0), 400),
            ("cudaStreamGetId", (CUDA.cudaStreamGetId)(null_mut(), null_mut()), 1),
            ("cudaStreamIsCapturing", (CUDA.cudaStreamIsCapturing)(null_mut(), null_mut()), 1),
            ("cudaEventCreate", (CUDA.cudaEventCreate)(null_mut()), 1),
            ("no flags of an event", (CUDA.cudaEventCreateWithFlags)(p, 99), 1),
            ("cudaEventDestroy", (CUDA.cudaEventDestroy)(null_mut()), 400),
            ("cudaEventRecord", (CUDA.cudaEventRecord)(null_mut(), null_mut()), 400),
            ("cudaEventQuery", (CUDA.cudaEventQuery)(null_mut()), 400),
            ("cudaEventSynchronize", (CUDA.cudaEventSynchronize)(null_mut()), 400),
            ("cudaMalloc", (CUDA.cudaMalloc)(null_mut(), 0), 1),
            ("too much memory", (CUDA.cudaMalloc)(p, 1 << 50), 2),
            ("cudaFree", (CUDA.cudaFree)(null_mut()), 0),
            ("a stray pointer", (CUDA.cudaFree)(stray), 1),
            ("no managed bytes", (CUDA.cudaMallocManaged)(p, 0, 1), 0),
            ("no managed flags", (CUDA.cudaMallocManaged)(p, 8, 0), 1),
            ("cudaMallocHost", (CUDA.cudaMallocHost)(null_mut(), 8), 1),
            ("no pinned bytes", (CUDA.cudaMallocHost)(p, 0), 0),
            ("cudaFreeHost", (CUDA.cudaFreeHost)(null_mut()), 0),
            ("a stray host pointer", (CUDA.cudaFreeHost)(stray), 1),
            ("cudaMallocAsync", (CUDA.cudaMallocAsync)(null_mut(), 8, null_mut()), 1),
            ("no bytes of a pool", (CUDA.cudaMallocAsync)(p, 0, null_mut()), 0),
            ("cudaFreeAsync", (CUDA.cudaFreeAsync)(null_mut(), null_mut()), 0),
            ("a stray block", (CUDA.cudaFreeAsync)(stray, null_mut()), 1),
            ("no pool", (CUDA.cudaMallocFromPoolAsync)(p, 8, null_mut(), null_mut()), 1),
            ("cudaMemPoolCreate", (CUDA.cudaMemPoolCreate)(null_mut(), null()), 1),
            ("cudaMemPoolDestroy", (CUDA.cudaMemPoolDestroy)(null_mut()), 1),
            ("cudaMemPoolTrimTo", (CUDA.cudaMemPoolTrimTo)(null_mut(), 0), 1),
            ("no pool's value", (CUDA.cudaMemPoolSetAttribute)(null_mut(), 4, (&raw mut value).cast()), 1),
            ("cudaDeviceGetDefaultMemPool", (CUDA.cudaDeviceGetDefaultMemPool)(null_mut(), 0), 1),
            ("pool of no device", (CUDA.cudaDeviceGetMemPool)(p, 99), 1),
            ("cudaDeviceSetMemPool", (CUDA.cudaDeviceSetMemPool)(0, null_mut()), 1),
            ("cudaPointerGetAttributes", (CUDA.cudaPointerGetAttributes)(null_mut(), null()), 1),
            ("a copy of nothing", (CUDA.cudaMemcpy)(null_mut(), null(), 0, 1), 0),
            ("a copy from null", (CUDA.cudaMemcpy)(null_mut(), null(), 8, 1), 1),
            ("no kind of copy", (CUDA.cudaMemcpy)(null_mut(), null(), 8, 9), 21),
            ("cudaMemcpyAsync", (CUDA.cudaMemcpyAsync)(null_mut(), null(), 8, 3, null_mut()), 1),
            ("a fill of nothing", (CUDA.cudaMemset)(null_mut(), 0, 0), 0),
            ("a fill of null", (CUDA.cudaMemset)(null_mut(), 0, 8), 1),
            ("cudaRuntimeGetVersion", (CUDA.cudaRuntimeGetVersion)(null_mut()), 1),
            ("cudaDriverGetVersion", (CUDA.cudaDriverGetVersion)(null_mut()), 1),
        ]
    };
    let wrong: Vec<_> = answers.iter().filter(|(_, code, expected)| code != expected).collect();
    assert!(wrong.is_empty(), "call, code, expected code: {wrong:?}");
}

/// Work that is not ready is not the thread's last error: measured as above.
#[test]
fn the_last_error_is_that_of_the_last_call_that_failed() {
    let (device, _entered) = device();
    let (mut ptr, mut stream, mut event) = (null_mut(), null_mut(), null_mut());
    let ok = |code: c_int| assert_eq!(code, 0);
    // SAFETY: the places are local values, and the block and the handles are live.
    unsafe {
        ok((CUDA.cudaMalloc)(&raw mut ptr, 1 << 20));
        ok((CUDA.cudaStreamCreateWithFlags)(&raw mut stream, 1));
        ok((CUDA.cudaEventCreateWithFlags)(&raw mut event, 2));
        ok((CUDA.cudaMemsetAsync)(ptr, 7, 1 << 20, stream));
        ok((CUDA.cudaEventRecord)(event, stream));
        assert_eq!((CUDA.cudaEventQuery)(event), 600);
        assert_eq!((CUDA.cudaGetLastError)(), 0);
        assert_eq!((CUDA.cudaSetDevice)(3), 101);
        assert_eq!([(CUDA.cudaPeekAtLastError)(), (CUDA.cudaGetLastError)()], [101, 101]);
        assert_eq!((CUDA.cudaGetLastError)(), 0);
        let name = CStr::from_ptr((CUDA.cudaGetErrorName)(101));
        assert_eq!(name.to_str(), Ok("cudaErrorInvalidDevice"));
        ok((CUDA.cudaStreamSynchronize)(stream));
        let mut byte = 0_u8;
        ok((CUDA.cudaMemcpy)((&raw mut byte).cast(), ptr, 1, 2));
        assert_eq!(byte, 7);
        ok((CUDA.cudaEventDestroy)(event));
        ok((CUDA.cudaStreamDestroy)(stream));
        ok((CUDA.cudaFree)(ptr));
    }
    assert_eq!((device.live_bytes(), device.live_events(), device.live_streams()), (0, 0, 0));
    assert!(device.violations().is_empty() && device.synchronize().is_ok());
}

#[test]
fn pools_of_the_driver_serve_in_stream_order() {
    let (device, _entered) = device();
    let (mut pool, mut ptr, mut stream) = (null_mut(), null_mut(), null_mut());
    // `cudaMemPoolProps`: pinned memory of device 0.
    let props: [c_int; 22] = std::array::from_fn(|at| if at == 0 || at == 2 { 1 } else { 0 });
    let ok = |code: c_int| assert_eq!(code, 0);
    let (mut threshold, mut found) = (1_u64 << 20, 0_u64);
    // SAFETY: the places are local values of the attribute's type, and the handles are live.
    unsafe {
        ok((CUDA.cudaMemPoolCreate)(&raw mut pool, (&raw const props).cast()));
        ok((CUDA.cudaMemPoolSetAttribute)(pool, 4, (&raw mut threshold).cast()));
        ok((CUDA.cudaMemPoolGetAttribute)(pool, 4, (&raw mut found).cast()));
        assert_eq!(found, threshold);
        ok((CUDA.cudaStreamCreate)(&raw mut stream));
        ok((CUDA.cudaMallocFromPoolAsync)(&raw mut ptr, 1000, pool, stream));
        ok((CUDA.cudaFreeAsync)(ptr, stream));
        ok((CUDA.cudaMallocAsync)(&raw mut ptr, 1000, stream));
        ok((CUDA.cudaFreeAsync)(ptr, stream));
        ok((CUDA.cudaDeviceSynchronize)());
        ok((CUDA.cudaMemPoolTrimTo)(pool, 0));
        ok((CUDA.cudaMemPoolDestroy)(pool));
        ok((CUDA.cudaStreamDestroy)(stream));
    }
    assert!(device.violations().is_empty(), "{:?}", device.violations());
}

/// The functions that PyTorch's allocator calls, and that no other test does.
#[test]
fn the_device_describes_itself_and_has_no_peer() {
    let (_device, _entered) = device();
    // `cudaDeviceProp` of CUDA 13 has 1008 bytes: the memory at 288, the warps at 308, the capability at 360.
    let mut properties = [0_u8; 1008];
    let (mut ptr, mut found, mut status, mut used) = (null_mut(), null_mut(), -1, 7_u64);
    let number = |bytes: &[u8], at: usize| i32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
    // SAFETY: the places are local values of the right sizes, and the blocks are live.
    unsafe {
        let place = (&raw mut properties).cast();
        assert_eq!(
            [(CUDA.cudaGetDeviceProperties)(place, 0), (CUDA.cudaGetDeviceProperties)(place, 9)],
            [0, 101]
        );
        assert_eq!((CUDA.cudaMalloc)(&raw mut ptr, 16), 0);
        assert_eq!((CUDA.cudaMemset)(ptr, 5, 8), 0);
        let half = ptr.byte_add(8);
        assert_eq!((CUDA.cudaMemcpyPeerAsync)(half, 0, ptr, 0, 8, null_mut()), 0);
        assert_eq!((CUDA.cudaMemcpyPeerAsync)(half, 0, ptr, 9, 8, null_mut()), 101);
        let mut copied = [0_u8; 8];
        assert_eq!((CUDA.cudaMemcpy)((&raw mut copied).cast(), half, 8, 2), 0);
        assert_eq!(copied, [5; 8]);
        assert_eq!((CUDA.cudaFree)(ptr), 0);
        assert_eq!(
            [(CUDA.cudaDeviceEnablePeerAccess)(0, 0), (CUDA.cudaDeviceEnablePeerAccess)(9, 0)],
            [101, 101]
        );
        assert_eq!((CUDA.cudaDeviceGetGraphMemAttribute)(0, 0, (&raw mut used).cast()), 0);
        let name = c"cuMemGetMemPool".as_ptr();
        let entry = CUDA.cudaGetDriverEntryPointByVersion;
        assert_eq!((entry)(name, &raw mut found, 12_000, 0, &raw mut status), 0);
        assert!(status == 2 && found.is_null(), "CUDA 12.0 did not have the function");
        assert_eq!((CUDA.cudaGetDriverEntryPoint)(name, &raw mut found, 0, &raw mut status), 0);
        assert!(status == 0 && !found.is_null());
    }
    assert_eq!(used, 0);
    assert_ne!(properties[0], 0, "the device has a name");
    assert_eq!(
        [number(&properties, 288), number(&properties, 308), number(&properties, 360)],
        [1 << 30, 32, 9]
    );
}

/// NCCL and cuda-core find a device by its address on the bus.
#[test]
fn a_device_has_an_address_on_the_bus() {
    let (_device, _entered) = device();
    let (mut place, mut found) = ([1_u8; 16], 7);
    let text: *mut c_char = (&raw mut place).cast();
    // SAFETY: the places are local, and the addresses are texts.
    unsafe {
        for (by_device, by_address) in [
            (CUDA.cuDeviceGetPCIBusId, CUDA.cuDeviceGetByPCIBusId),
            (CUDA.cudaDeviceGetPCIBusId, CUDA.cudaDeviceGetByPCIBusId),
        ] {
            assert_eq!([(by_device)(text, 12, 0), (by_device)(text, 13, 9)], [1, 101]);
            assert_eq!((by_device)(text, 13, 0), 0);
            assert_eq!(CStr::from_bytes_until_nul(&place).unwrap(), c"0000:00:00.0");
            assert_eq!(((by_address)(&raw mut found, text), found), (0, 0));
            let codes = [c"0000:09:00.0", c"none"].map(|text| (by_address)(&raw mut found, text.as_ptr()));
            assert_eq!(codes, [101, 1]);
            assert_eq!((by_address)(null_mut(), text), 1);
        }
    }
}
