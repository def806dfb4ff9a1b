//! Tests the CUDA driver against a stand-in for libcuda, without a GPU: how a missing, broken, old or unusual
//! driver affects a program. Each test runs in its own process, because a process loads the library once.
#![cfg(target_os = "linux")]

use std::sync::Arc;

use libloading::Library;
use millpond_core::driver::{
    AccessFlags, AccessLocation, CaptureMode, DeviceAttribute, DriverError, EventFlags, FabricHandle,
    HandleTypes, MemAllocationType, MemLocation, MemPool, MemPoolAttribute, MemPoolProps, MemPoolPtrData,
    MemoryKind, StreamFlags,
};
use millpond_core::{DeviceId, DevicePtr, Driver, ErrorKind, StreamRef};
use millpond_driver::DeviceSpec;
use millpond_driver::cuda::{self, CudaDriver};

use crate::stand_in;

/// Runs `body`, the test with this name, in a process whose driver is the stand-in.
fn with_fake(test: &str, empty: bool, environment: &[(&str, &str)], body: impl FnOnce()) {
    stand_in::run(module_path!(), test, if empty { "empty" } else { "whole" }, environment, body);
}

/// Does the same with the stand-in for CUDA 13.2.
fn with_pools(test: &str, body: impl FnOnce()) {
    stand_in::run(module_path!(), test, "pools", &[], body);
}

/// CUDA's functions for the current context, called directly.
struct Contexts(Library);

impl Contexts {
    fn new() -> Self {
        // SAFETY: the stand-in's initialisers do nothing.
        Self(unsafe { Library::new("libcuda.so.1") }.unwrap())
    }

    /// Calls a function on the primary context, as another library in the process would.
    fn primary(&self, function: &str, device: i32) {
        let mut context = 0_u64;
        // SAFETY: these are the functions' types; `context` takes the result.
        let answer = unsafe {
            match function {
                "reset" => self
                    .0
                    .get::<unsafe extern "C" fn(i32) -> i32>("cuDevicePrimaryCtxReset_v2")
                    .unwrap()(device),
                _ => self
                    .0
                    .get::<unsafe extern "C" fn(*mut u64, i32) -> i32>("cuDevicePrimaryCtxRetain")
                    .unwrap()(&raw mut context, device),
            }
        };
        assert_eq!(answer, 0, "{function}");
    }

    fn set_current(&self, context: u64) {
        // SAFETY: this is the function's type.
        let set = unsafe { self.0.get::<unsafe extern "C" fn(u64) -> i32>("cuCtxSetCurrent") }.unwrap();
        // SAFETY: the stand-in accepts any number.
        assert_eq!(unsafe { set(context) }, 0);
    }

    fn current(&self) -> u64 {
        let mut context = 0;
        // SAFETY: this is the function's type.
        let get = unsafe { self.0.get::<unsafe extern "C" fn(*mut u64) -> i32>("cuCtxGetCurrent") }.unwrap();
        // SAFETY: `context` takes the result.
        assert_eq!(unsafe { get(&raw mut context) }, 0);
        context
    }
}

/// Asserts that CUDA cannot be used: every entry point fails with this code, and the default device is
/// simulated.
fn assert_unavailable(code: i32) {
    let error = cuda::availability().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoDevice, "{error}");
    assert_eq!(error.driver_error().unwrap().code(), code, "{error}");
    assert!(error.to_string().contains("sim:h200"), "{error}");
    assert_eq!((cuda::device_count(), cuda::is_available()), (0, false));
    assert_eq!(cuda::current_ordinal(), None);
    assert_eq!(CudaDriver::open(0).unwrap_err().kind(), ErrorKind::NoDevice);
    assert_eq!(millpond_driver::current_device().unwrap_err().kind(), ErrorKind::NoDevice);
    assert_eq!(DeviceSpec::default_device(), DeviceSpec::SimDefault);
    // A program that opens the default device on purpose gets a simulated one, and keeps it from then on.
    let shared = DeviceSpec::default_device().open().unwrap();
    assert_eq!(millpond_driver::current_device().unwrap(), shared.device());
}

#[test]
fn a_library_without_functions_is_no_driver() {
    with_fake("a_library_without_functions_is_no_driver", true, &[], || {
        assert_unavailable(DriverError::NO_SYMBOL);
    });
}

#[test]
fn a_machine_without_a_device_has_no_device() {
    with_fake("a_machine_without_a_device_has_no_device", false, &[("FAKE_CUDA_INIT", "100")], || {
        assert_unavailable(DriverError::NO_DEVICE);
    });
}

#[test]
fn a_toolkits_stub_is_no_driver() {
    with_fake("a_toolkits_stub_is_no_driver", false, &[("FAKE_CUDA_INIT", "34")], || assert_unavailable(34));
}

#[test]
fn an_unknown_code_of_initialisation_is_passed_on() {
    with_fake(
        "an_unknown_code_of_initialisation_is_passed_on",
        false,
        &[("FAKE_CUDA_INIT", "54321")],
        || {
            assert_unavailable(54321);
        },
    );
}

#[test]
fn no_visible_device_is_no_device() {
    with_fake("no_visible_device_is_no_device", false, &[("FAKE_CUDA_DEVICES", "0")], || {
        assert_unavailable(DriverError::NO_DEVICE);
    });
}

#[test]
fn an_unknown_code_of_a_call_is_passed_on() {
    with_fake("an_unknown_code_of_a_call_is_passed_on", false, &[("FAKE_CUDA_ALLOC", "12345")], || {
        let error = CudaDriver::open(0).unwrap().mem_alloc(256).unwrap_err();
        assert_eq!(error.code(), 12345);
        assert!(error.to_string().contains("12345"), "{error}");
        assert!(!error.is_sticky() && !error.is_out_of_memory());
    });
}

#[test]
fn a_device_is_opened_once_and_others_are_named() {
    with_fake("a_device_is_opened_once_and_others_are_named", false, &[], || {
        assert_eq!(cuda::device_count(), 2);
        let first = CudaDriver::open(1).unwrap();
        assert!(Arc::ptr_eq(&first, &CudaDriver::open(1).unwrap()));
        assert_eq!(first.device(), DeviceId::cuda(1));
        assert_eq!((first.name().as_str(), first.version()), ("Fake", Ok(11040)));
        let error = CudaDriver::open(2).unwrap_err();
        assert!(error.is_no_device() && error.to_string().contains("cuda:0 to cuda:1"), "{error}");
        assert_eq!(DeviceSpec::default_device(), DeviceSpec::Cuda(0));
    });
}

#[test]
fn the_callers_context_is_current_after_every_call() {
    with_fake("the_callers_context_is_current_after_every_call", false, &[], || {
        let contexts = Contexts::new();
        let driver = CudaDriver::open(1).unwrap();
        for mine in [0, 0x77, 0x1000, 0x1001] {
            contexts.set_current(mine);
            let ptr = driver.mem_alloc(256).unwrap();
            assert_eq!(ptr, DevicePtr::new(0x1001 << 32), "allocated in another context");
            assert_eq!(contexts.current(), mine);
            // SAFETY: the pointer came from this driver and is not used again.
            unsafe { driver.mem_free(ptr) }.unwrap();
            assert_eq!(contexts.current(), mine);
            assert!(driver.mem_alloc_managed(256).is_err(), "the stand-in has no managed memory");
            assert_eq!(contexts.current(), mine, "not restored after a failure");
        }
    });
}

#[test]
fn the_current_device_is_that_of_the_current_context() {
    with_fake("the_current_device_is_that_of_the_current_context", false, &[], || {
        assert_eq!(cuda::current_ordinal(), None, "no context is current");
        assert_eq!(millpond_driver::current_device().unwrap(), DeviceId::cuda(0));
        Contexts::new().set_current(0x1001);
        assert_eq!(cuda::current_ordinal(), Some(1));
        assert_eq!(millpond_driver::current().unwrap().device(), DeviceId::cuda(1));
    });
}

#[test]
fn what_an_old_driver_lacks_is_unsupported_or_done_the_old_way() {
    with_fake("what_an_old_driver_lacks_is_unsupported_or_done_the_old_way", false, &[], || {
        let driver = CudaDriver::open(0).unwrap();
        let error = driver.mem_pool_create(MemPoolProps::default()).unwrap_err();
        assert_eq!((error.code(), error.call()), (DriverError::NO_SYMBOL, "cuMemPoolCreate"));
        assert!(error.is_unsupported());
        let pool = MemPool(1);
        let data = MemPoolPtrData([0; 64]);
        let (place, kind) = (MemLocation::Device, MemAllocationType::Pinned);
        let (me, handle) = (driver.device().into(), FabricHandle([0; 64]));
        for (call, answer) in [
            ("cuDeviceGetMemPool", driver.device_get_mem_pool().map(drop)),
            ("cuDeviceSetMemPool", driver.device_set_mem_pool(pool)),
            ("cuMemGetDefaultMemPool", driver.mem_get_default_mem_pool(place, kind).map(drop)),
            ("cuMemGetMemPool", driver.mem_get_mem_pool(place, kind).map(drop)),
            ("cuMemSetMemPool", driver.mem_set_mem_pool(place, kind, pool)),
            ("cuMemPoolSetAccess", driver.mem_pool_set_access(pool, AccessFlags::Read, &[me])),
            ("cuMemPoolGetAccess", driver.mem_pool_get_access(pool, me).map(drop)),
            ("cuMemPoolExportToShareableHandle", driver.mem_pool_export_to_fd(pool).map(drop)),
            ("cuMemPoolImportFromShareableHandle", driver.mem_pool_import_from_fd(3).map(drop)),
            ("cuMemPoolExportToShareableHandle", driver.mem_pool_export_to_fabric(pool).map(drop)),
            ("cuMemPoolImportFromShareableHandle", driver.mem_pool_import_from_fabric(&handle).map(drop)),
            ("cuMemPoolExportPointer", driver.mem_pool_export_pointer(DevicePtr::new(4096)).map(drop)),
            ("cuMemPoolImportPointer", driver.mem_pool_import_pointer(pool, &data).map(drop)),
        ] {
            let error = answer.unwrap_err();
            assert!(error.is_unsupported() && error.call() == call, "{call}: {error}");
        }
        assert!(driver.load_ptx("").is_err_and(|error| error.kind() == ErrorKind::Unsupported));
        let ptr = DevicePtr::new(0x1000 << 32);
        for to_host in [false, true] {
            // SAFETY: the stand-in touches no memory.
            unsafe { driver.mem_prefetch_async(ptr, 256, to_host, StreamRef::LEGACY) }.unwrap();
        }
        assert_eq!(driver.pointer_kind(ptr), Ok(MemoryKind::Device));
        assert_eq!(driver.pointer_kind(DevicePtr::new(4096)), Ok(MemoryKind::Unknown));
    });
}

#[test]
fn a_stream_is_told_from_a_later_one_with_its_handle() {
    with_fake("a_stream_is_told_from_a_later_one_with_its_handle", false, &[], || {
        let driver = CudaDriver::open(0).unwrap();
        let event = driver.event_create(EventFlags::default()).unwrap();
        let first = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
        assert_ne!(first, StreamRef::LEGACY, "the first number belongs to no default stream");
        // SAFETY: the stream is alive.
        let found = unsafe { driver.stream_ref(first.handle()) }.unwrap();
        assert_eq!((found, found.is_foreign()), (first, false), "the same stream, the same identity");
        assert_eq!(driver.event_record_if_alive(event, first), Ok(true));
        // SAFETY: the stream came from this driver. The calls below use it on purpose, and must detect that.
        unsafe { driver.stream_destroy(first) }.unwrap();
        assert_eq!(driver.event_record_if_alive(event, first), Ok(false));

        let second = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
        assert_eq!(first.handle(), second.handle(), "the stand-in reuses the handle");
        assert_ne!(first.id(), second.id());
        assert_eq!(driver.event_record_if_alive(event, first), Ok(false));
        assert_eq!(driver.event_record_if_alive(event, second), Ok(true));
        for dead in [first, StreamRef::from_raw_parts(0xdead_beef, 7)] {
            let answers = [
                driver.stream_synchronize(dead),
                driver.stream_query(dead).map(drop),
                driver.stream_wait_event(dead, event),
                driver.stream_is_capturing(dead).map(drop),
                driver.event_record(event, dead),
                driver.mem_alloc_async(256, dead).map(drop),
            ];
            // Each error names the call that detected it, before CUDA was called.
            for (index, answer) in answers.into_iter().enumerate() {
                let error = answer.unwrap_err();
                assert_eq!(error.code(), DriverError::INVALID_HANDLE, "call {index}");
                assert!(error.to_string().contains("the stream was destroyed"), "call {index}: {error}");
            }
        }
        for (stream, is_alive) in [(first, false), (second, true), (second, false)] {
            // SAFETY: the driver refuses to destroy a dead stream; the living one came from this driver.
            let destroyed = unsafe { driver.stream_destroy(stream) };
            let refusal = destroyed.err().map(|error| (error.code(), error.to_string()));
            assert_eq!(refusal.is_none(), is_alive, "{refusal:?}");
            let is_ours = |(code, text): (i32, String)| {
                code == DriverError::INVALID_HANDLE && text.contains("already destroyed")
            };
            assert!(refusal.is_none_or(is_ours), "the call reached CUDA");
        }

        assert_eq!(driver.event_record_if_alive(event, StreamRef::LEGACY), Ok(true));
        assert_eq!(driver.event_record_if_alive(event, StreamRef::PER_THREAD), Ok(false));
        assert_eq!(driver.event_query(event), Ok(false), "not ready is an answer");
        for default in [StreamRef::LEGACY, StreamRef::PER_THREAD] {
            // SAFETY: the default streams are always alive.
            assert_eq!(unsafe { driver.stream_ref(default.handle()) }, Ok(default));
            // SAFETY: the driver refuses it.
            assert!(unsafe { driver.stream_destroy(default) }.is_err());
        }
    });
}

/// CUDA 11 does not report a stream's id. The handle of another library's stream may belong to a later
/// stream, so only copies of one name match.
#[test]
fn a_stream_without_an_id_matches_no_later_one_with_its_handle() {
    with_fake("a_stream_without_an_id_matches_no_later_one_with_its_handle", false, &[], || {
        let driver = CudaDriver::open(0).unwrap();
        // SAFETY: the stand-in uses no stream.
        let find = |handle| unsafe { driver.stream_ref(handle) }.unwrap();
        let [first, second] = [find(7 << 20), find(7 << 20)];
        assert!(first.is_foreign() && first.handle() == second.handle());
        let copy = first;
        assert!(copy == first && first != second && first.id() != second.id());
        let own = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
        assert_eq!(find(own.handle()), own, "a stream that the driver made is known");
    });
}

/// Freeing pinned memory counts as a wait for the device only if it really waits, however slow it is.
#[test]
fn a_free_that_waits_is_seen() {
    with_fake("a_free_that_waits_is_seen", false, &[], || {
        assert!(CudaDriver::open(0).unwrap().frees_wait());
    });
}

#[test]
fn a_free_that_does_not_wait_is_seen() {
    let environment = [("FAKE_CUDA_FREE_MS", "0")];
    with_fake("a_free_that_does_not_wait_is_seen", false, &environment, || {
        assert!(!CudaDriver::open(0).unwrap().frees_wait());
    });
}

#[test]
fn a_slow_free_does_not_pass_for_one_that_waits() {
    let environment = [("FAKE_CUDA_FREE_MS", "7")];
    with_fake("a_slow_free_does_not_pass_for_one_that_waits", false, &environment, || {
        assert!(!CudaDriver::open(0).unwrap().frees_wait());
    });
}

/// Ends a stream's capture with a call that is refused for it.
fn invalidate(stream: u64) {
    let mut id = 0_u64;
    // SAFETY: the stand-in's initialisers do nothing. The type is the function's, and `id` takes the result.
    let answer = unsafe {
        let library = Library::new("libcuda.so.1").unwrap();
        library.get::<unsafe extern "C" fn(u64, *mut u64) -> i32>("cuStreamGetId").unwrap()(
            stream,
            &raw mut id,
        )
    };
    assert_ne!(answer, 0);
}

/// CUDA refuses to report the id of a capturing stream, and the query ends the capture.
#[test]
fn the_stream_of_a_capture_is_found_and_the_capture_goes_on() {
    with_pools("the_stream_of_a_capture_is_found_and_the_capture_goes_on", || {
        let driver = CudaDriver::open(0).unwrap();
        let own = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
        // SAFETY: the streams are alive during the calls below; the stand-in knows this one too.
        let find = |handle| unsafe { driver.stream_ref(handle) }.unwrap();
        let [theirs, another] = [find(7 << 20), find(8 << 20)];
        assert!(theirs.is_foreign() && theirs.id() != another.id());
        let mut seen = vec![theirs.id(), own.id()];
        for stream in [theirs, theirs, own] {
            driver.begin_capture(stream, CaptureMode::Global).unwrap();
            let found = find(stream.handle());
            assert_eq!((found.id(), found.is_foreign()), (find(stream.handle()).id(), stream != own));
            assert_eq!(find(another.handle()), another, "during a capture");
            let graph = driver.end_capture(stream).expect("the capture went on");
            assert_eq!(graph.node_counts(), Ok((3, 2)), "nodes, and those that allocate or free");
            if stream == own {
                assert_eq!(found, own);
            } else {
                assert!(!seen.contains(&found.id()), "neither another stream's id nor another capture's");
                seen.push(found.id());
            }
            assert_eq!(find(stream.handle()), stream);
        }
        // CUDA reports no number for a capture that an illegal call ended.
        driver.begin_capture(theirs, CaptureMode::Global).unwrap();
        invalidate(theirs.handle());
        let invalid = [(); 2].map(|()| find(theirs.handle()).id());
        assert!(invalid[0] != invalid[1] && invalid.iter().all(|id| !seen.contains(id)));
        let error = driver.stream_capture_id(theirs).unwrap_err();
        assert_eq!(error.code(), DriverError::STREAM_CAPTURE_INVALIDATED);
        assert!(driver.end_capture(theirs).is_err());
        assert_eq!(driver.stream_capture_id(theirs), Ok(None));
        assert_eq!(find(theirs.handle()), theirs);
    });
}

/// Another library resets the context, and may create a new one before millpond notices.
#[test]
fn issue_9_a_reset_context_is_opened_again_and_the_old_driver_touches_nothing() {
    let name = "issue_9_a_reset_context_is_opened_again_and_the_old_driver_touches_nothing";
    with_fake(name, false, &[], || {
        let contexts = Contexts::new();
        for remade in [false, true] {
            for device in 0..2 {
                let old = CudaDriver::open(device).unwrap();
                let event = old.event_create(EventFlags::default()).unwrap();
                let block = old.mem_alloc(256).unwrap();
                contexts.set_current(if remade { 0x1000 + u64::from(device) } else { 0 });
                contexts.primary("reset", device as i32);
                if remade {
                    contexts.primary("retain", device as i32);
                }
                let destroyed = DriverError::CONTEXT_IS_DESTROYED;
                assert_eq!(old.event_query(event).unwrap_err().code(), destroyed);
                assert_eq!(old.mem_alloc(256).unwrap_err().code(), destroyed);
                // SAFETY: the driver must refuse it, because the address may belong to another block by now.
                assert_eq!(unsafe { old.mem_free(block) }.unwrap_err().code(), destroyed);
                // SAFETY: the stand-in maps nothing.
                unsafe { old.mem_unmap(block, 256) }.unwrap();
                assert!(old.was_reset() && old.health().is_reset());

                let new = CudaDriver::open(device).unwrap();
                assert!(!Arc::ptr_eq(&old, &new) && Arc::ptr_eq(&new, &CudaDriver::open(device).unwrap()));
                assert!(!new.was_reset() && !new.health().is_lost());
                let event = new.event_create(EventFlags::default()).unwrap();
                assert_eq!(new.event_query(event), Ok(false));
                new.mem_alloc(256).unwrap();
                assert!(old.mem_alloc(256).is_err(), "the old one stays lost");
            }
        }
    });
}

#[test]
fn issue_9_a_driver_that_does_not_number_contexts_shows_a_reset_until_the_next_retain() {
    let name = "issue_9_a_driver_that_does_not_number_contexts_shows_a_reset_until_the_next_retain";
    with_fake(name, false, &[("FAKE_CUDA_IDS", "0")], || {
        let old = CudaDriver::open(0).unwrap();
        Contexts::new().primary("reset", 0);
        assert_eq!(old.mem_alloc(256).unwrap_err().code(), DriverError::CONTEXT_IS_DESTROYED);
        let new = CudaDriver::open(0).unwrap();
        assert!(!Arc::ptr_eq(&old, &new) && old.health().is_reset());
        new.mem_alloc(256).unwrap();
    });
}

#[test]
fn pools_are_described_to_cuda_as_its_header_says() {
    with_pools("pools_are_described_to_cuda_as_its_header_says", || {
        let driver = CudaDriver::open(1).unwrap();
        // The stand-in makes a handle from the properties: usage, handle types, kind, place, node, maximum.
        let make = |props| driver.mem_pool_create(props).map(|pool| format!("{:012x}", pool.0));
        let props = MemPoolProps::default();
        assert_eq!(make(props).unwrap(), "000000110100");
        let handles = HandleTypes::POSIX_FD | HandleTypes::FABRIC;
        let has_channel = std::path::Path::new("/dev/nvidia-caps-imex-channels").exists();
        let supported = if has_channel { handles } else { HandleTypes::POSIX_FD };
        let bits = driver.attribute(DeviceAttribute::MemPoolSupportedHandleTypes);
        assert_eq!(bits, Ok(i64::from(supported.bits())));
        assert_eq!(make(props.max_bytes(7).handles(handles)).unwrap(), "000009110107");
        assert_eq!(make(props.hw_decompress(true)).unwrap(), "000200110100");
        let managed = props.kind(MemAllocationType::Managed);
        assert_eq!(make(managed).unwrap(), "000000210100");
        for (location, expected) in [
            (MemLocation::Host, "000000120000"),
            (MemLocation::HostNuma(3), "000000130300"),
            (MemLocation::HostNumaCurrent, "000000140000"),
        ] {
            assert_eq!(make(props.location(location)).unwrap(), expected);
        }
        let [managed, host] = [
            (MemLocation::Device, MemAllocationType::Managed),
            (MemLocation::Host, MemAllocationType::Pinned),
        ]
        .map(|(location, kind)| driver.mem_get_default_mem_pool(location, kind).unwrap());
        assert_eq!((managed, host), (MemPool(0xd_2101), MemPool(0xd_1200)));
        assert_eq!(
            driver.mem_get_mem_pool(MemLocation::HostNuma(2), MemAllocationType::Pinned),
            Ok(MemPool(0xc_1302))
        );
        assert_eq!(
            driver.mem_set_mem_pool(MemLocation::Device, MemAllocationType::Pinned, MemPool(9)),
            Ok(())
        );
        assert_eq!(driver.device_get_mem_pool(), Ok(MemPool(9)));
        driver.device_set_mem_pool(MemPool(8)).unwrap();
        assert_eq!(driver.device_get_mem_pool(), Ok(MemPool(8)));
    });
}

#[test]
fn attributes_of_pools_are_read_and_written_in_cudas_widths() {
    with_pools("attributes_of_pools_are_read_and_written_in_cudas_widths", || {
        use MemPoolAttribute::*;
        let driver = CudaDriver::open(0).unwrap();
        let pool = driver.mem_pool_create(MemPoolProps::default()).unwrap();
        // The stand-in writes as many bytes as CUDA does. All bits are set, except that the lowest byte is
        // the attribute.
        for (attribute, expected) in [
            (ReuseFollowEventDependencies, 0xffff_ff01),
            (ReuseAllowOpportunistic, 0xffff_ff02),
            (ReuseAllowInternalDependencies, 0xffff_ff03),
            (ReleaseThreshold, u64::MAX - 0xff + 4),
            (ReservedMemCurrent, u64::MAX - 0xff + 5),
            (ReservedMemHigh, u64::MAX - 0xff + 6),
            (UsedMemCurrent, u64::MAX - 0xff + 7),
            (UsedMemHigh, u64::MAX - 0xff + 8),
            (AllocationType, 0xffff_ff09),
            (ExportHandleTypes, 0xffff_ff0a),
            (LocationId, 0xffff_ff0b),
            (LocationType, 0xffff_ff0c),
            (MaxPoolSize, u64::MAX - 0xff + 13),
            (HwDecompressEnabled, 0xffff_ff0e),
        ] {
            assert_eq!(driver.mem_pool_get_attribute(pool, attribute), Ok(expected), "{attribute:?}");
        }
        driver.mem_pool_set_attribute(pool, ReleaseThreshold, u64::MAX).unwrap();
        driver.mem_pool_set_attribute(pool, ReuseAllowOpportunistic, 0).unwrap();
        let error = driver.mem_pool_set_attribute(pool, MaxPoolSize, 1).unwrap_err();
        assert_eq!(error.code(), DriverError::INVALID_VALUE);
    });
}

#[test]
fn the_access_to_pools_is_set_for_devices_and_the_host() {
    with_pools("the_access_to_pools_is_set_for_devices_and_the_host", || {
        let driver = CudaDriver::open(0).unwrap();
        let pool = driver.mem_pool_create(MemPoolProps::default()).unwrap();
        let [other, stranger] = [DeviceId::cuda(1), DeviceId::sim(0)].map(AccessLocation::from);
        assert_eq!(driver.mem_pool_get_access(pool, other), Ok(AccessFlags::None));
        driver.mem_pool_set_access(pool, AccessFlags::ReadWrite, &[other]).unwrap();
        assert_eq!(driver.mem_pool_get_access(pool, other), Ok(AccessFlags::ReadWrite));
        let strange = driver.mem_pool_set_access(pool, AccessFlags::Read, &[stranger]).unwrap_err();
        assert_eq!((strange.code(), strange.call()), (DriverError::INVALID_DEVICE, "cuMemPoolSetAccess"));

        for host in [AccessLocation::Host, AccessLocation::HostNuma(7), AccessLocation::HostNumaCurrent] {
            driver.mem_pool_set_access(pool, AccessFlags::Read, &[host]).unwrap();
        }
        let wrong = driver.mem_pool_set_access(pool, AccessFlags::Read, &[AccessLocation::HostNuma(8)]);
        assert_eq!(wrong.unwrap_err().code(), DriverError::INVALID_VALUE);
        assert_eq!(driver.mem_pool_get_access(pool, AccessLocation::HostNuma(7)), Ok(AccessFlags::Read));
    });
}

#[test]
fn contents_reach_memory_that_cuda_counts_as_the_hosts() {
    with_pools("contents_reach_memory_that_cuda_counts_as_the_hosts", || {
        let driver = CudaDriver::open(0).unwrap();
        let (mut there, mut moved, mut back) = ([0_u8; 4], [0_u8; 4], [0_u8; 4]);
        let memory = |array: &mut [u8; 4]| DevicePtr::new(array.as_mut_ptr().expose_provenance() as u64);
        // SAFETY: the arrays outlive the calls, which copy at once; nothing is at address 1.
        unsafe {
            driver.memcpy_htod_async(memory(&mut there), b"pond".as_ptr(), 4, StreamRef::LEGACY).unwrap();
            let (from, to) = (memory(&mut there), memory(&mut moved));
            driver.memcpy_dtod_async(to, from, 2, StreamRef::LEGACY).unwrap();
            let (from, to) = (from.offset(2), to.offset(2));
            driver.memcpy_peer_async(to, from, driver.device(), 2, StreamRef::LEGACY).unwrap();
            driver.memcpy_dtoh_async(back.as_mut_ptr(), memory(&mut moved), 4, StreamRef::LEGACY).unwrap();
            // The usual call's error is returned.
            let (wrong, stream) = (DevicePtr::new(1), StreamRef::LEGACY);
            let to = driver.memcpy_htod_async(wrong, b"pond".as_ptr(), 4, stream).unwrap_err();
            let from = driver.memcpy_dtoh_async(back.as_mut_ptr(), wrong, 4, stream).unwrap_err();
            let inside = driver.memcpy_dtod_async(memory(&mut moved), wrong, 4, stream).unwrap_err();
            assert_eq!([to, from, inside].map(|error| error.code()), [DriverError::INVALID_VALUE; 3]);
        }
        assert_eq!((&there, &back), (b"pond", b"pond"));
    });
}

#[test]
fn a_stream_is_gone_once_it_is_destroyed() {
    with_fake("a_stream_is_gone_once_it_is_destroyed", false, &[], || {
        let driver = CudaDriver::open(0).unwrap();
        let stream = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
        // SAFETY: no call is made with it.
        let foreign = unsafe { StreamRef::foreign(0x9999, 5) };
        assert!(
            ![stream, foreign, StreamRef::LEGACY, StreamRef::PER_THREAD]
                .map(|s| driver.stream_is_gone(s))
                .contains(&true)
        );
        // SAFETY: the stream came from this driver.
        unsafe { driver.stream_destroy(stream) }.unwrap();
        assert!(driver.stream_is_gone(stream));
    });
}
