//! Tests, without a GPU, that each method of the CUDA driver makes the right calls with the right arguments,
//! and that CUDA's answers and errors come out. A stand-in for libcuda notes its calls and has answers that
//! no other library has (`fake_libcuda/echo.rs`). Each test runs in its own process, because a process loads
//! the library once.
#![cfg(target_os = "linux")]

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::fmt::Debug;
use std::sync::Arc;

use libloading::Library;
use millpond_core::driver::{
    AccessFlags, AccessLocation, CaptureMode, DeviceAttribute, DriverError, DriverResult, Event, EventFlags,
    FabricHandle, GraphMemAttribute, HostFlags, HostPtr, IpcMemHandle, MemAdvice, MemAllocationType,
    MemLocation, MemPool, MemPoolAttribute, MemPoolProps, MemPoolPtrData, MemoryInfo, MemoryKind,
    PhysicalHandle, PhysicalProps, StreamFlags,
};
use millpond_core::{DeviceId, DevicePtr, Driver, Error, ErrorKind, StreamRef};
use millpond_driver::cuda::{self, CudaDriver};

use crate::stand_in;

/// The device under test, and its stand-in.
struct Echo {
    library: Library,
    driver: Arc<CudaDriver>,
}

impl Echo {
    /// Runs `body`, the test with this name, in a process whose driver is the stand-in.
    fn run(test: &str, body: impl FnOnce(&Self)) {
        stand_in::run(module_path!(), test, "echo", &[], || {
            // SAFETY: the stand-in's initialisers do nothing.
            let library = unsafe { Library::new("libcuda.so.1") }.unwrap();
            let echo = Self { library, driver: CudaDriver::open(0).unwrap() };
            echo.calls();
            body(&echo);
        });
    }

    /// Returns the calls since the last time.
    fn calls(&self) -> Vec<String> {
        thread_local! {
            static CALLS: RefCell<String> = const { RefCell::new(String::new()) };
        }
        extern "C" fn take(text: *const u8, len: usize) {
            // SAFETY: the stand-in passes a text, which lives during the call.
            let text = unsafe { std::slice::from_raw_parts(text, len) };
            CALLS.set(String::from_utf8(text.to_vec()).unwrap());
        }
        // SAFETY: this is the function's type.
        unsafe {
            self.library.get::<extern "C" fn(extern "C" fn(*const u8, usize))>("echo_calls").unwrap()(take);
        }
        CALLS.take().lines().map(str::to_owned).collect()
    }

    /// Makes a function of CUDA fail with this code from now on; 0 for no failure.
    fn refuse(&self, function: &str, code: i32) {
        let function = CString::new(function).unwrap();
        // SAFETY: this is the function's type.
        unsafe {
            let refuse = self.library.get::<unsafe extern "C" fn(*const c_char, i32)>("echo_refuse").unwrap();
            refuse(function.as_ptr(), code);
        }
    }

    /// Returns the answer of a call during which one function of CUDA fails, and the calls of CUDA.
    fn refusing<T>(&self, function: &str, code: i32, call: impl FnOnce() -> T) -> (T, String) {
        self.refuse(function, code);
        let answer = call();
        self.refuse(function, 0);
        (answer, self.calls().join(", "))
    }

    /// Asserts the calls and the answer of a method. Then makes the first call fail with several codes, and
    /// asserts that each of them comes out, except those in `but`.
    fn check<T: Debug + PartialEq>(
        &self,
        calls: &str,
        expected: T,
        but: &[i32],
        call: impl Fn() -> DriverResult<T>,
    ) {
        assert_eq!((call(), self.calls().join(", ").as_str()), (Ok(expected), calls));
        let first = calls.split([' ', ',']).next().unwrap();
        let name = first.trim_end_matches("_v2");
        for code in [1, 400, 600, 801, 900, 12345].into_iter().filter(|code| !but.contains(code)) {
            let (answer, made) = self.refusing(first, code, &call);
            let error = answer.unwrap_err();
            assert_eq!((error.code(), error.call()), (code, name), "{calls}");
            assert!(calls.starts_with(&made), "{code} in {calls}: {made}");
            assert_eq!(cuda::current_ordinal(), None, "{calls} leaves its context current");
        }
    }
}

/// Checks one call of a method in each row: the calls of CUDA, the method with its arguments, and the answer
/// in an `Ok`. In brackets are errors that the method handles.
macro_rules! rows {
    ($echo:ident: $($calls:literal $([$($code:literal),+])?:
        $name:ident($($arg:expr),*) => $answer:expr;)*) => {
        $(
            // SAFETY: the stand-in touches no memory, and has no streams and events that could end.
            #[allow(unused_unsafe)]
            let call = || unsafe { $echo.driver.$name($($arg),*) };
            $echo.check($calls, $answer, &[$($($code),+)?], call);
        )*
    };
}

fn code_of(error: &Error) -> Option<i32> {
    error.driver_error().map(DriverError::code)
}

const PTR: DevicePtr = DevicePtr::new(0x70);
const OTHER: DevicePtr = DevicePtr::new(0x71);
const HOST: HostPtr = HostPtr(0x72);
const POOL: MemPool = MemPool(0x73);
const HANDLE: PhysicalHandle = PhysicalHandle(0x74);
const EVENT: Event = Event(0x75);
const BYTES: *mut u8 = std::ptr::without_provenance_mut(0x76);
const PINNED: MemAllocationType = MemAllocationType::Pinned;
const MANAGED: MemAllocationType = MemAllocationType::Managed;
/// Its capture's state is 0: it does not capture.
// SAFETY: the stand-in uses no stream.
const STREAM: StreamRef = unsafe { StreamRef::foreign(0x60, 5) };
/// It captures.
// SAFETY: as above.
const ACTIVE: StreamRef = unsafe { StreamRef::foreign(0x61, 5) };
/// Its capture was invalidated.
// SAFETY: as above.
const INVALID: StreamRef = unsafe { StreamRef::foreign(0x62, 5) };

#[test]
fn a_query_of_the_device_has_cudas_answer() {
    Echo::run("a_query_of_the_device_has_cudas_answer", |echo| {
        assert_eq!((echo.driver.name(), echo.driver.device()), ("E".repeat(255), DeviceId::cuda(0)));
        assert!(!echo.driver.was_reset());
        rows! { echo:
            "cuDriverGetVersion": version() => 13579;
            "cuDeviceGetAttribute 12 48": attribute(DeviceAttribute::Integrated) => 0x1_0128;
            "cuMemGetInfo_v2": mem_get_info() => MemoryInfo { free: 3, total: 5 };
            "cuCtxSynchronize": synchronize() => ();
            "cuThreadExchangeStreamCaptureMode 2": thread_exchange_stream_capture_mode(CaptureMode::Relaxed)
                => CaptureMode::ThreadLocal;
        }
        let host = echo.driver.host_memory_info().unwrap();
        assert!(host.free > 0 && host.free <= host.total, "{host:?}");
        // The other devices are queried once, until that succeeds.
        let reach = |peer| echo.driver.can_be_accessed_by(DeviceId::cuda(peer));
        let (refused, made) = echo.refusing("cuDeviceCanAccessPeer", 12345, || reach(1));
        assert_eq!((refused.unwrap_err().code(), made.as_str()), (12345, "cuDeviceCanAccessPeer 49 48"));
        assert_eq!([0, 1, 2, 3, 4].map(reach), [false, true, true, false, false].map(Ok));
        let once =
            ["cuDeviceCanAccessPeer 49 48", "cuDeviceCanAccessPeer 50 48", "cuDeviceCanAccessPeer 51 48"];
        assert_eq!(echo.calls(), once);
        assert_eq!(echo.driver.can_be_accessed_by(DeviceId::sim(1)), Ok(false));
        assert_eq!(echo.driver.active_peers(), Ok(vec![DeviceId::cuda(2)]));
    });
}

/// Memory that outlives the context can be freed after a reset, but not after another error.
#[test]
fn a_context_that_cannot_be_entered_is_an_error_of_each_call() {
    Echo::run("a_context_that_cannot_be_entered_is_an_error_of_each_call", |echo| {
        let alloc = || echo.driver.mem_alloc(2).map(drop);
        // SAFETY: the stand-in touches no memory.
        let unmap = || unsafe { echo.driver.mem_unmap(PTR, 2) };
        for function in ["cuCtxGetCurrent", "cuCtxSetCurrent"] {
            for call in [&alloc as &dyn Fn() -> DriverResult<()>, &unmap] {
                let (refused, made) = echo.refusing(function, 12345, call);
                let error = refused.unwrap_err();
                assert_eq!((error.code(), error.call(), made.as_str()), (12345, function, ""));
            }
        }
        let open = || CudaDriver::open(3).map(|driver| driver.mem_alloc(2));
        for function in ["cuDevicePrimaryCtxRetain", "cuCtxGetId"] {
            let error = echo.refusing(function, 12345, open).0.unwrap_err();
            assert_eq!((code_of(&error), error.device()), (Some(12345), Some(DeviceId::cuda(3))));
        }
        // A driver before CUDA 12.0 does not number contexts.
        let (opened, _) = echo.refusing("cuCtxGetId", DriverError::NOT_SUPPORTED, open);
        assert_eq!(opened.unwrap(), Ok(DevicePtr::new(0xa1)));
    });
}

#[test]
fn memory_is_cudas() {
    Echo::run("memory_is_cudas", |echo| {
        let mapped = HostFlags::default().mapped(true);
        rows! { echo:
            "cuMemAlloc_v2 2": mem_alloc(2) => DevicePtr::new(0xa1);
            "cuMemAllocManaged 2 1": mem_alloc_managed(2) => DevicePtr::new(0xa2);
            "cuMemFree_v2 70": mem_free(PTR) => ();
            "cuMemGetAddressRange_v2 70": mem_get_address_range(PTR) => (DevicePtr::new(0xa3), 0xa4);
            "cuPointerGetAttribute 2 1, cuPointerGetAttribute 8 1" [1]: pointer_kind(DevicePtr::new(1))
                => MemoryKind::Host;
            "cuPointerGetAttribute 2 2, cuPointerGetAttribute 8 2" [1]: pointer_kind(DevicePtr::new(2))
                => MemoryKind::Device;
            "cuPointerGetAttribute 2 12, cuPointerGetAttribute 8 12" [1]: pointer_kind(DevicePtr::new(0x12))
                => MemoryKind::Managed;
            "cuPointerGetAttribute 11 7300" [1]: pointer_mem_pool(DevicePtr::new(0x7300)) => Some(POOL);
            "cuPointerGetAttribute 11 70" [1]: pointer_mem_pool(PTR) => None;
            "cuMemPrefetchAsync_v2 70 2 1@48 0 60": mem_prefetch_async(PTR, 2, false, STREAM) => ();
            "cuMemPrefetchAsync_v2 70 2 2@0 0 60": mem_prefetch_async(PTR, 2, true, STREAM) => ();
            "cuMemAdvise_v2 70 2 3 1@48": mem_advise(PTR, 2, MemAdvice::PreferDevice) => ();
            "cuMemAdvise_v2 70 2 3 2@0": mem_advise(PTR, 2, MemAdvice::PreferHost) => ();
            "cuMemAdvise_v2 70 2 1 1@48": mem_advise(PTR, 2, MemAdvice::ReadMostly) => ();
            "cuMemAdvise_v2 70 2 5 1@48": mem_advise(PTR, 2, MemAdvice::AccessedByDevice) => ();

            "cuMemHostAlloc 2 2": mem_host_alloc(2, mapped) => HostPtr(0xa5);
            "cuMemHostRegister_v2 72 2 2": mem_host_register(HOST, 2, mapped) => ();
            "cuMemHostUnregister 72": mem_host_unregister(HOST) => ();
            "cuMemHostGetDevicePointer_v2 72 0": mem_host_get_device_pointer(HOST) => DevicePtr::new(0xa6);
        }
        let unknown = || (echo.driver.pointer_kind(PTR), echo.driver.pointer_mem_pool(PTR));
        let (unknown, _) = echo.refusing("cuPointerGetAttribute", 1, unknown);
        assert_eq!(unknown, (Ok(MemoryKind::Unknown), Ok(None)));
        // SAFETY: the driver refuses it.
        let combined = unsafe { echo.driver.mem_host_register(HOST, 2, mapped.write_combined(true)) };
        assert_eq!(combined.unwrap_err().code(), DriverError::INVALID_VALUE);
        assert_eq!(echo.calls(), [""; 0]);
    });
}

/// A driver before CUDA 12.2 has only the older functions, which name the host as device -1.
#[test]
fn an_older_function_takes_the_place_of_one_that_the_driver_lacks() {
    Echo::run("an_older_function_takes_the_place_of_one_that_the_driver_lacks", |echo| {
        let driver = &echo.driver;
        for (to_host, device) in [(false, 48), (true, -1)] {
            // SAFETY: the stand-in touches no memory.
            let prefetch = || unsafe { driver.mem_prefetch_async(PTR, 2, to_host, STREAM) };
            let (done, made) = echo.refusing("cuMemPrefetchAsync_v2", DriverError::NO_SYMBOL, prefetch);
            assert_eq!(done, Ok(()));
            assert!(made.ends_with(&format!(", cuMemPrefetchAsync 70 2 {device} 60")), "{made}");

            let advice = if to_host { MemAdvice::PreferHost } else { MemAdvice::PreferDevice };
            // SAFETY: the stand-in touches no memory.
            let advise = || unsafe { driver.mem_advise(PTR, 2, advice) };
            let (done, made) = echo.refusing("cuMemAdvise_v2", DriverError::NO_SYMBOL, advise);
            assert_eq!(done, Ok(()));
            assert!(made.ends_with(&format!(", cuMemAdvise 70 2 3 {device}")), "{made}");
        }
    });
}

#[test]
fn pools_are_cudas() {
    Echo::run("pools_are_cudas", |echo| {
        let props = MemPoolProps::default().max_bytes(9);
        let (node, fabric, data) =
            (MemLocation::HostNuma(6), FabricHandle([0xfa; 64]), MemPoolPtrData([0xda; 64]));
        let (high, of_graphs) = (MemPoolAttribute::UsedMemHigh, GraphMemAttribute::ReservedMemCurrent);
        let reuse = MemPoolAttribute::ReuseAllowOpportunistic;
        let from = [DeviceId::cuda(3).into(), AccessLocation::Host];
        rows! { echo:
            "cuMemAllocAsync 2 60": mem_alloc_async(2, STREAM) => DevicePtr::new(0xa7);
            "cuMemAllocFromPoolAsync 2 73 60": mem_alloc_from_pool_async(2, POOL, STREAM)
                => DevicePtr::new(0xa8);
            "cuMemFreeAsync 70 60": mem_free_async(PTR, STREAM) => ();
            "cuMemPoolCreate 1,0,1@48,9,0,true": mem_pool_create(props) => MemPool(0xb1);
            "cuMemPoolDestroy 73": mem_pool_destroy(POOL) => ();
            "cuDeviceGetDefaultMemPool 48": device_get_default_mem_pool() => MemPool(0xb2);
            "cuDeviceGetMemPool 48": device_get_mem_pool() => MemPool(0xb3);
            "cuDeviceSetMemPool 48 73": device_set_mem_pool(POOL) => ();
            "cuMemGetDefaultMemPool 3@6 1": mem_get_default_mem_pool(node, PINNED) => MemPool(0xb4);
            "cuMemGetMemPool 1@48 2": mem_get_mem_pool(MemLocation::Device, MANAGED) => MemPool(0xb5);
            "cuMemSetMemPool 3@6 1 73": mem_set_mem_pool(node, PINNED, POOL) => ();
            "cuMemPoolTrimTo 73 2": mem_pool_trim_to(POOL, 2) => ();
            "cuMemPoolGetAttribute 73 8": mem_pool_get_attribute(POOL, high) => 0xb6;
            "cuMemPoolSetAttribute 73 8 2": mem_pool_set_attribute(POOL, high, 2) => ();
            "cuMemPoolSetAttribute 73 2 1": mem_pool_set_attribute(POOL, reuse, 2) => ();
            "cuMemPoolSetAttribute 73 2 0": mem_pool_set_attribute(POOL, reuse, 0) => ();
            "cuDeviceGetGraphMemAttribute 48 2": device_get_graph_mem_attribute(of_graphs) => 0xb7;
            "cuDeviceSetGraphMemAttribute 48 2 0": device_reset_graph_mem_attribute(of_graphs) => ();
            "cuDeviceGraphMemTrim 48": device_graph_mem_trim() => ();
            "cuMemPoolSetAccess 73 1@51:1 2": mem_pool_set_access(POOL, AccessFlags::Read, &from) => ();
            "cuMemPoolGetAccess 73 1@51": mem_pool_get_access(POOL, from[0]) => AccessFlags::Read;
            "cuMemPoolExportToShareableHandle 73 1 0": mem_pool_export_to_fd(POOL) => 0xb8;
            "cuMemPoolImportFromShareableHandle 4 1 0": mem_pool_import_from_fd(4) => MemPool(0xb9);
            "cuMemPoolExportToShareableHandle 73 8 0": mem_pool_export_to_fabric(POOL) => fabric;
            "cuMemPoolImportFromShareableHandle fa..fa 8 0": mem_pool_import_from_fabric(&fabric)
                => MemPool(0xb9);
            "cuMemPoolExportPointer 70": mem_pool_export_pointer(PTR) => data;
            "cuMemPoolImportPointer 73 da..da": mem_pool_import_pointer(POOL, &data) => DevicePtr::new(0xba);
        }
    });
}

#[test]
fn physical_memory_is_cudas() {
    Echo::run("physical_memory_is_cudas", |echo| {
        let props = PhysicalProps::default().rdma(true).share_fd(true);
        let (access, devices) = (AccessFlags::ReadWrite, [DeviceId::cuda(2), DeviceId::cuda(0)]);
        rows! { echo:
            "cuMemGetAllocationGranularity 1,0,1@48,0,true 0": mem_get_allocation_granularity() => 0xc1;
            "cuMemAddressReserve 2 3 0 0": mem_address_reserve(2, 3) => DevicePtr::new(0xc2);
            "cuMemAddressFree 70 2": mem_address_free(PTR, 2) => ();
            "cuMemCreate 2 1,1,1@48,1,true 0": mem_create(2, props) => PhysicalHandle(0xc3);
            "cuMemRelease 74": mem_release(HANDLE) => ();
            "cuMemExportToShareableHandle 74 1 0": mem_export_to_fd(HANDLE) => 0xc4;
            "cuMemImportFromShareableHandle 4 1": mem_import_from_fd(4) => PhysicalHandle(0xc5);
            "cuMemMap 70 2 0 74 0": mem_map(PTR, 2, HANDLE) => ();
            "cuMemUnmap 70 2": mem_unmap(PTR, 2) => ();
            "cuMemSetAccess 70 2 1@50:3 2": mem_set_access(PTR, 2, access, &devices) => ();
        }
    });
}

#[test]
fn streams_and_events_are_cudas() {
    Echo::run("streams_and_events_are_cudas", |echo| {
        let made = |handle| StreamRef::from_raw_parts(handle, handle << 4);
        let timed = EventFlags::default().timing(true);
        rows! { echo:
            "cuStreamCreateWithPriority 1 -3, cuStreamGetId d1":
                stream_create(StreamFlags::NON_BLOCKING.priority(-3)) => made(0xd1);
            "cuStreamCreateWithPriority 0 0, cuStreamGetId d0": stream_create(StreamFlags::BLOCKING)
                => made(0xd0);
            "cuStreamDestroy_v2 60": stream_destroy(STREAM) => ();
            "cuStreamGetCaptureInfo_v2 60, cuStreamGetId 60" [801]: stream_ref(0x60)
                => StreamRef::from_raw_parts(0x60, 0x600);
            "cuStreamSynchronize 60": stream_synchronize(STREAM) => ();
            "cuStreamQuery 60" [600]: stream_query(STREAM) => true;
            "cuStreamWaitEvent 60 75 0": stream_wait_event(STREAM, EVENT) => ();
            "cuStreamIsCapturing 60": stream_is_capturing(STREAM) => false;
            "cuStreamIsCapturing 61": stream_is_capturing(ACTIVE) => true;
            "cuStreamIsCapturing 62": stream_is_capturing(INVALID) => true;
            "cuStreamGetCaptureInfo_v2 60": stream_capture_id(STREAM) => None;
            "cuStreamGetCaptureInfo_v2 61": stream_capture_id(ACTIVE) => Some(0x61);
            "cuEventCreate 0": event_create(timed) => Event(0xf1);
            "cuEventDestroy_v2 75": event_destroy(EVENT) => ();
            "cuEventRecord 75 60": event_record(EVENT, STREAM) => ();
            "cuStreamIsCapturing 0, cuEventRecord 75 0, cuStreamIsCapturing 0" [801, 900]:
                event_record_if_alive(EVENT, StreamRef::LEGACY) => true;
            "cuEventQuery 75" [600]: event_query(EVENT) => true;
            "cuEventSynchronize 75": event_synchronize(EVENT) => ();
        }
        let driver = &echo.driver;
        let (done, _) =
            echo.refusing("cuStreamQuery", DriverError::NOT_READY, || driver.stream_query(STREAM));
        assert_eq!(done, Ok(false));
        let (done, _) = echo.refusing("cuEventQuery", DriverError::NOT_READY, || driver.event_query(EVENT));
        assert_eq!(done, Ok(false));

        // A stream whose id the driver does not return is destroyed.
        let create = || driver.stream_create(StreamFlags::BLOCKING);
        let (refused, made) = echo.refusing("cuStreamGetId", 12345, create);
        assert_eq!(refused.unwrap_err().code(), 12345);
        assert_eq!(made, "cuStreamCreateWithPriority 0 0, cuStreamGetId d0, cuStreamDestroy_v2 d0");
        // A driver that does not number streams leaves that to millpond. It may not report captures either.
        let [first, second] = [(); 2].map(|()| {
            // SAFETY: the stand-in uses no stream.
            let find = || unsafe { driver.stream_ref(0x60) };
            echo.refusing("cuStreamGetId", DriverError::NOT_SUPPORTED, find).0.unwrap()
        });
        assert!(first.handle() == 0x60 && first != second && first.is_foreign());
        // SAFETY: as above.
        let find = || unsafe { driver.stream_ref(0x60) };
        let (found, _) = echo.refusing("cuStreamGetCaptureInfo_v2", DriverError::NO_SYMBOL, find);
        assert_eq!(found, Ok(StreamRef::from_raw_parts(0x60, 0x600)));
    });
}

/// A refusal because of a capture is an answer, and so is a driver without captures. Other errors come out.
#[test]
fn an_event_is_recorded_unless_a_capture_or_an_error_is_found() {
    Echo::run("an_event_is_recorded_unless_a_capture_or_an_error_is_found", |echo| {
        let record = || echo.driver.event_record_if_alive(EVENT, StreamRef::LEGACY).map_err(|e| e.code());
        let refused_with = |function, code| echo.refusing(function, code, record).0;
        for code in 900..=908 {
            assert_eq!(refused_with("cuStreamIsCapturing", code), Ok(false), "{code}");
            assert_eq!(refused_with("cuEventRecord", code), Err(code));
        }
        for code in [DriverError::NO_SYMBOL, DriverError::NOT_SUPPORTED] {
            assert_eq!(refused_with("cuStreamIsCapturing", code), Ok(true), "{code}");
        }
        for code in [1, 400, 899, 909, 12345] {
            assert_eq!(refused_with("cuStreamIsCapturing", code), Err(code));
        }
        let recorded =
            echo.refusing("", 0, || echo.driver.event_record_if_alive(EVENT, StreamRef::PER_THREAD));
        assert_eq!(recorded, (Ok(false), String::new()));
    });
}

#[test]
fn a_wait_beside_captures_frees_pinned_memory() {
    Echo::run("a_wait_beside_captures_frees_pinned_memory", |echo| {
        assert!(echo.driver.frees_wait());
        echo.calls();
        rows! { echo:
            "cuMemHostAlloc 1000 0, cuMemFreeHost a5" [900]: synchronize_beside_captures() => true;
            "cuMemFreeHost 72": mem_free_host(HOST) => ();
        }
        let wait = || echo.driver.synchronize_beside_captures().map_err(|error| error.code());
        let refusing = |function, code| echo.refusing(function, code, wait);
        for function in ["cuMemHostAlloc", "cuMemFreeHost"] {
            assert_eq!(
                refusing(function, DriverError::STREAM_CAPTURE_UNSUPPORTED).0,
                Ok(false),
                "{function}"
            );
            assert_eq!(refusing(function, 12345).0, Err(12345), "{function}");
        }
        // Without memory to free, the whole context waits.
        let (waited, made) = refusing("cuMemHostAlloc", DriverError::OUT_OF_MEMORY);
        assert_eq!(waited, Ok(true));
        assert_eq!(made, "cuMemHostAlloc 1000 0, cuStreamIsCapturing 0, cuCtxSynchronize");
    });
}

/// The driver cannot test whether a free waits, so it does not rely on that.
#[test]
fn a_wait_beside_captures_looks_for_them_before_it_waits_for_the_context() {
    let test = "a_wait_beside_captures_looks_for_them_before_it_waits_for_the_context";
    Echo::run(test, |echo| {
        echo.refuse("cuLaunchHostFunc", DriverError::NOT_SUPPORTED);
        // The calls after the test of a free.
        let tail =
            |made: String| made.rsplit_once("cuThreadExchangeStreamCaptureMode 1, ").unwrap().1.to_owned();
        let refusing = |function, code| {
            let wait = || echo.driver.synchronize_beside_captures().map_err(|error| error.code());
            let (waited, made) = echo.refusing(function, code, wait);
            (waited, tail(made))
        };
        let (look, wait) = ("cuStreamIsCapturing 0", "cuStreamIsCapturing 0, cuCtxSynchronize");
        for (function, code, expected, made) in [
            ("", 0, Ok(true), wait),
            ("cuStreamIsCapturing", DriverError::NOT_SUPPORTED, Ok(true), wait),
            ("cuStreamIsCapturing", DriverError::STREAM_CAPTURE_IMPLICIT, Ok(false), look),
            ("cuStreamIsCapturing", 12345, Err(12345), look),
            ("cuCtxSynchronize", DriverError::STREAM_CAPTURE_UNSUPPORTED, Ok(false), wait),
            ("cuCtxSynchronize", 12345, Err(12345), wait),
        ] {
            assert_eq!(refusing(function, code), (expected, made.to_owned()), "{function} {code}");
        }
        // SAFETY: the stand-in has no memory there.
        let free = || unsafe { echo.driver.mem_free_host(HOST) }.map_err(|error| error.code());
        let (freed, made) = echo.refusing("", 0, free);
        assert_eq!((freed, tail(made)), (Ok(()), format!("{wait}, cuMemFreeHost 72")));

        let quiet = echo.driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
        let made = "cuStreamIsCapturing 0, cuStreamIsCapturing d0";
        assert_eq!(refusing("", 0), (Ok(true), format!("{made}, cuCtxSynchronize")));
        // SAFETY: the stream came from this driver and is not used again.
        unsafe { echo.driver.stream_destroy(quiet) }.unwrap();
        let capturing = echo.driver.stream_create(StreamFlags::NON_BLOCKING.priority(1)).unwrap();
        let made = format!("{look}, cuStreamIsCapturing {:x}", capturing.handle());
        assert_eq!(refusing("", 0), (Ok(false), made.clone()));
        let (freed, after) = echo.refusing("", 0, free);
        assert_eq!((freed, tail(after)), (Err(DriverError::STREAM_CAPTURE_UNSUPPORTED), made));
    });
}

#[test]
fn copies_fills_and_shared_memory_are_cudas() {
    Echo::run("copies_fills_and_shared_memory_are_cudas", |echo| {
        let peer = CudaDriver::open(2).unwrap().device();
        echo.calls();
        let ipc = IpcMemHandle([0x1c; 64]);
        rows! { echo:
            "cuMemcpyHtoDAsync_v2 70 76 2 60" [1]: memcpy_htod_async(PTR, BYTES, 2, STREAM) => ();
            "cuMemcpyDtoHAsync_v2 76 70 2 60" [1]: memcpy_dtoh_async(BYTES, PTR, 2, STREAM) => ();
            "cuMemcpyDtoDAsync_v2 70 71 2 60" [1]: memcpy_dtod_async(PTR, OTHER, 2, STREAM) => ();
            "cuMemcpyPeerAsync 70 1030 71 1032 2 60" [1]: memcpy_peer_async(PTR, OTHER, peer, 2, STREAM)
                => ();
            "cuMemsetD8Async 70 ab 2 60": memset_d8_async(PTR, 0xab, 2, STREAM) => ();
            "cuIpcGetMemHandle 70": ipc_get_mem_handle(PTR) => ipc;
            "cuIpcOpenMemHandle_v2 1c..1c 1": ipc_open_mem_handle(&ipc) => DevicePtr::new(0xf2);
            "cuIpcCloseMemHandle 70": ipc_close_mem_handle(PTR) => ();
        }
        for stranger in [DeviceId::sim(2), DeviceId::cuda(4)] {
            // SAFETY: the driver refuses it.
            let refused =
                unsafe { echo.driver.memcpy_peer_async(PTR, OTHER, stranger, 2, STREAM) }.unwrap_err();
            assert_eq!((refused.code(), refused.call()), (DriverError::INVALID_DEVICE, "cuMemcpyPeerAsync"));
        }
        assert_eq!(echo.calls(), [""; 0]);
    });
}

#[test]
fn graphs_are_cudas() {
    Echo::run("graphs_are_cudas", |echo| {
        rows! { echo:
            "cuStreamBeginCapture_v2 60 1": begin_capture(STREAM, CaptureMode::ThreadLocal) => ();
        }
        let end = || echo.driver.end_capture(STREAM);
        assert_eq!(echo.refusing("cuStreamEndCapture", 12345, end).0.unwrap_err().code(), 12345);
        let graph = end().unwrap();
        let instantiate = || graph.instantiate();
        assert_eq!(
            echo.refusing("cuGraphInstantiateWithFlags", 12345, instantiate).0.unwrap_err().code(),
            12345
        );
        let exec = instantiate().unwrap();
        echo.calls();
        // SAFETY: the stand-in does no work.
        echo.check("cuGraphLaunch e2 60", (), &[], || unsafe { exec.launch(STREAM) });
        let texts = (graph.handle(), format!("{graph:?}"), format!("{exec:?}"));
        assert_eq!(
            texts,
            (0xe1, "Graph { handle: 0xe1, .. }".into(), "GraphExec { handle: 0xe2, .. }".into())
        );
        drop((exec, graph));
        assert_eq!(echo.calls(), ["cuGraphExecDestroy e2", "cuGraphDestroy e1"]);
    });
}

#[test]
fn kernels_are_cudas() {
    Echo::run("kernels_are_cudas", |echo| {
        let load = || echo.driver.load_ptx("ptx");
        let (refused, made) = echo.refusing("cuModuleLoadDataEx", 218, load);
        let error = refused.unwrap_err();
        assert_eq!((code_of(&error), made.as_str()), (Some(218), "cuModuleLoadDataEx ptx 2"));
        assert!(error.to_string().contains(&"L".repeat(4095)), "the compiler's log is missing: {error}");
        let error = echo.refusing("cuModuleLoadDataEx", 12345, load).0.unwrap_err();
        let without_log = DriverError::new(12345, "cuModuleLoadDataEx");
        assert_eq!(error.driver_error().map(ToString::to_string), Some(without_log.to_string()));
        let module = load().unwrap();
        for (code, kind) in [(DriverError::NOT_FOUND, ErrorKind::InvalidArgument), (12345, ErrorKind::Driver)]
        {
            let (refused, _) = echo.refusing("cuModuleGetFunction", code, || module.function("run"));
            let error = refused.unwrap_err();
            assert_eq!((code_of(&error), error.kind()), (Some(code), kind), "{error}");
        }
        let kernel = module.function("run").unwrap();
        assert_eq!(echo.calls().last().unwrap(), "cuModuleGetFunction f3 run");
        assert!(format!("{kernel:?}").contains("module: Module { device: "), "{kernel:?}");
        // SAFETY: the stand-in does no work.
        let launch = || unsafe { kernel.launch([1, 2, 3], [4, 5, 6], 7, STREAM, &mut []) };
        assert!(launch().is_ok());
        assert_eq!(echo.calls(), ["cuLaunchKernel f4 1 2 3 4 5 6 7 60 true 0"]);
        let (refused, _) = echo.refusing("cuLaunchKernel", 12345, launch);
        assert_eq!(code_of(&refused.unwrap_err()), Some(12345));
        drop(module);
        assert_eq!(echo.calls(), [""; 0], "the kernel keeps its module");
        drop(kernel);
        assert_eq!(echo.calls(), ["cuModuleUnload f3"]);
    });
}

#[cfg(feature = "cudarc")]
#[test]
fn a_stream_of_cudarc_belongs_to_the_device_of_its_context() {
    Echo::run("a_stream_of_cudarc_belongs_to_the_device_of_its_context", |echo| {
        for ordinal in [1, 2] {
            let context = cuda::cudarc::driver::CudaContext::new(ordinal).unwrap();
            let driver = CudaDriver::open(ordinal as u32).unwrap();
            // SAFETY: the stand-in uses no stream.
            let theirs = unsafe { cuda::cudarc_stream_of(STREAM, &*driver, &context) }.unwrap();
            assert_eq!(theirs.cu_stream().addr(), 0x60);
            // SAFETY: as above.
            let back = unsafe { cuda::stream_ref_of(&theirs) }.unwrap();
            assert_eq!((back, back.is_foreign()), (StreamRef::from_raw_parts(0x60, 0x600), true));
            // SAFETY: as above.
            let error = unsafe { cuda::cudarc_stream_of(STREAM, &*echo.driver, &context) }.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            let why = format!("the context belongs to CUDA device {ordinal}, but the stream");
            assert!(error.to_string().contains(&why), "{error}");
        }
    });
}
