//! Tests, without a GPU, waits for the device and calls during captures. A stand-in for libcuda ends captures
//! as CUDA does. Each test runs in its own process, because a process loads the library once.
#![cfg(target_os = "linux")]

use libloading::Library;
use millpond_core::driver::{CaptureMode, DriverError, EventFlags, HostFlags, StreamFlags};
use millpond_core::{DevicePtr, Driver, StreamRef};
use millpond_driver::CurrentDeviceGuard;
use millpond_driver::cuda::CudaDriver;

use crate::stand_in;

/// Freeing pinned memory waits for nothing.
const NO_WAIT: (&str, &str) = ("FAKE_CUDA_FREE_MS", "0");

/// Runs `body`, the test with this name, in a process whose driver is the stand-in.
fn with_fake(test: &str, environment: &[(&str, &str)], body: impl FnOnce()) {
    stand_in::run(module_path!(), test, "pools", environment, body);
}

/// How often a caller waited for the whole context.
fn waits() -> u64 {
    // SAFETY: the stand-in's initialisers do nothing, and the type is the function's.
    unsafe { Library::new("libcuda.so.1").unwrap().get::<extern "C" fn() -> u64>("fake_waits").unwrap()() }
}

/// The time before the free begins does not count: the work is under way, but the free is not.
#[test]
fn a_slow_launch_does_not_pass_for_a_free_that_waits() {
    let environment = [NO_WAIT, ("FAKE_CUDA_LAUNCH_MS", "100")];
    with_fake("a_slow_launch_does_not_pass_for_a_free_that_waits", &environment, || {
        assert!(!CudaDriver::open(0).unwrap().frees_wait());
    });
}

#[test]
fn pinned_memory_ends_after_a_wait_where_its_end_is_none() {
    with_fake("pinned_memory_ends_after_a_wait_where_its_end_is_none", &[NO_WAIT], || {
        let driver = CudaDriver::open(0).unwrap();
        let pinned = driver.mem_host_alloc(4096, HostFlags::default()).unwrap();
        // SAFETY: the memory belongs to this test, and no work uses it.
        unsafe { driver.mem_free_host(pinned) }.unwrap();
        assert_eq!(waits(), 1);
        assert_eq!(driver.synchronize_beside_captures(), Ok(true));
        assert_eq!(waits(), 2);
    });
}

/// A wait for the context would end the capture, and no other way to wait is known there.
#[test]
fn nothing_is_waited_for_beside_a_capture_where_only_the_context_can_be() {
    let test = "nothing_is_waited_for_beside_a_capture_where_only_the_context_can_be";
    with_fake(test, &[NO_WAIT], || {
        let driver = CudaDriver::open(0).unwrap();
        let stream = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
        let pinned = driver.mem_host_alloc(4096, HostFlags::default()).unwrap();
        driver.begin_capture(stream, CaptureMode::Relaxed).unwrap();
        assert_eq!(driver.synchronize_beside_captures(), Ok(false));
        // SAFETY: the memory belongs to this test, and no work uses it.
        let freed = unsafe { driver.mem_free_host(pinned) };
        assert_eq!(freed.unwrap_err().code(), DriverError::STREAM_CAPTURE_UNSUPPORTED);
        driver.end_capture(stream).expect("the capture went on");
        assert_eq!(waits(), 0);
    });
}

/// The first call on a device creates its context, and that call ends captures of the thread's mode.
#[test]
fn a_context_is_made_beside_a_capture_on_another_device() {
    let devices = [("FAKE_CUDA_DEVICES", "3")];
    with_fake("a_context_is_made_beside_a_capture_on_another_device", &devices, || {
        let first = CudaDriver::open(0).unwrap();
        let stream = first.stream_create(StreamFlags::NON_BLOCKING).unwrap();
        for device in [1, 2] {
            first.begin_capture(stream, CaptureMode::Global).unwrap();
            CudaDriver::find(device).and_then(|other| Ok(other.mem_alloc(256)?)).unwrap();
            first.end_capture(stream).expect("the capture went on");
        }
        let mode = first.thread_exchange_stream_capture_mode(CaptureMode::Global);
        assert_eq!(mode, Ok(CaptureMode::Global), "the thread has its mode again");
    });
}

/// The event may have become a part of the graph, and then says nothing about the stream's work.
#[test]
fn an_event_that_a_capture_may_have_got_counts_as_captured() {
    let environment = [("FAKE_CUDA_CAPTURE_AT_RECORD", "1")];
    with_fake("an_event_that_a_capture_may_have_got_counts_as_captured", &environment, || {
        let driver = CudaDriver::open(0).unwrap();
        let event = driver.event_create(EventFlags::default()).unwrap();
        let own = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
        for stream in [own, StreamRef::LEGACY] {
            let error = driver.event_record_if_alive(event, stream).unwrap_err();
            assert_eq!(error.code(), DriverError::CAPTURED_EVENT);
            assert_eq!(driver.event_record_if_alive(event, stream), Ok(false), "it captures");
            driver.end_capture(stream).expect("no call ended the capture");
        }
    });
}

/// The block outlives its context, and another context is current on the thread.
#[test]
fn a_block_of_a_pool_is_freed_after_a_reset_without_a_context() {
    with_fake("a_block_of_a_pool_is_freed_after_a_reset_without_a_context", &[], || {
        let [lost, other] = [0, 1].map(|device| CudaDriver::open(device).unwrap());
        let _current = CurrentDeviceGuard::new(other.device()).unwrap();
        // SAFETY: the stand-in's initialisers do nothing, and the type is the function's.
        let answer = unsafe {
            let library = Library::new("libcuda.so.1").unwrap();
            library.get::<extern "C" fn(i32) -> i32>("cuDevicePrimaryCtxReset_v2").unwrap()(0)
        };
        assert_eq!(answer, 0);
        // SAFETY: the stand-in has no real block there.
        unsafe { lost.mem_free_async(DevicePtr::new(0x9 << 40), StreamRef::LEGACY) }.unwrap();
        assert!(lost.was_reset());
        other.mem_alloc(256).expect("the other context is current again");
    });
}
