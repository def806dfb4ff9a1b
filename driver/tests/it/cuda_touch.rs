//! Tests, without a GPU, that naming a CUDA device does not touch it, and which device is the default one. A
//! stand-in for libcuda counts how often each device's primary context is retained. Each test runs in its own
//! process, because a process loads the library once.
#![cfg(target_os = "linux")]

use std::sync::Arc;

use libloading::Library;
use millpond_core::driver::DeviceAttribute;
use millpond_core::{DeviceId, Driver, ErrorKind};
use millpond_driver::cuda::{self, CudaDriver};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_driver::{CountingDriver, CurrentDeviceGuard, DeviceSpec};

use crate::stand_in;

/// Runs `body`, the test with this name, in a process where the stand-in has four devices.
fn with_devices(test: &str, environment: &[(&str, &str)], body: impl FnOnce()) {
    let environment: Vec<_> = [("FAKE_CUDA_DEVICES", "4"), ("MILLPOND_DEVICE", ""), ("LOCAL_RANK", "")]
        .into_iter()
        .chain(environment.iter().copied())
        .collect();
    stand_in::run(module_path!(), test, "whole", &environment, body);
}

/// How often each device's primary context was retained.
fn retains() -> [u64; 4] {
    // SAFETY: the stand-in's initialisers do nothing, and the type is the function's.
    unsafe {
        let library = Library::new("libcuda.so.1").unwrap();
        let retains = library.get::<extern "C" fn(i32) -> u64>("fake_retains").unwrap();
        std::array::from_fn(|device| retains(device as i32))
    }
}

#[test]
fn naming_a_device_touches_none() {
    with_devices("naming_a_device_touches_none", &[], || {
        assert_eq!((cuda::device_count(), cuda::current_ordinal()), (4, None));
        assert_eq!(DeviceSpec::default_device(), DeviceSpec::Cuda(0));
        assert_eq!(millpond_driver::current().unwrap().device(), DeviceId::cuda(0));
        assert!(CudaDriver::open(4).unwrap_err().is_no_device());
        for ordinal in 0..4 {
            let spec: DeviceSpec = format!("cuda:{ordinal}").parse().unwrap();
            let driver = spec.find().unwrap();
            assert!(
                Arc::ptr_eq(&driver, &millpond_driver::find(driver.device()).unwrap()),
                "one device has one driver"
            );
            assert_eq!((driver.device(), driver.name().as_str()), (DeviceId::cuda(ordinal), "Fake"));
            driver.version().unwrap();
            driver.attribute(DeviceAttribute::MultiprocessorCount).unwrap();
            assert_eq!(driver.can_be_accessed_by(DeviceId::cuda(ordinal ^ 1)), Ok(true));
            assert_eq!(driver.active_peers(), Ok(vec![]), "no device has a context");
            assert!(!driver.was_reset() && !driver.health().is_lost());
            assert!(format!("{:?}", CudaDriver::find(ordinal).unwrap()).contains("Fake"));
            assert!(!CountingDriver::new(driver).was_reset());
        }
        assert_eq!(retains(), [0; 4]);
    });
}

#[test]
fn the_first_call_touches_its_device_and_no_other() {
    with_devices("the_first_call_touches_its_device_and_no_other", &[], || {
        let [first, last] = [2, 3].map(|ordinal| CudaDriver::find(ordinal).unwrap());
        let ptr = first.mem_alloc(256).unwrap();
        assert_eq!(retains(), [0, 0, 1, 0]);
        // SAFETY: the pointer came from this driver and is not used again.
        unsafe { first.mem_free(ptr) }.unwrap();
        assert_eq!(last.active_peers(), Ok(vec![DeviceId::cuda(2)]));
        assert_eq!(cuda::current_ordinal(), None, "no call leaves its context current");
        assert_eq!(retains(), [0, 0, 1, 0], "a context is retained once");
        {
            let _current = CurrentDeviceGuard::new(DeviceId::cuda(3)).unwrap();
            assert_eq!(millpond_driver::current_device().unwrap(), DeviceId::cuda(3));
        }
        assert_eq!(retains(), [0, 0, 1, 1]);
        // Opening a device means that the program works there.
        assert!(Arc::ptr_eq(&CudaDriver::open(1).unwrap(), &CudaDriver::find(1).unwrap()));
        DeviceSpec::Cuda(1).open().unwrap();
        assert_eq!(retains(), [0, 1, 1, 1]);
    });
}

#[test]
fn a_context_that_is_refused_is_an_error_of_the_first_call() {
    let refused = [("FAKE_CUDA_RETAIN", "101")];
    with_devices("a_context_that_is_refused_is_an_error_of_the_first_call", &refused, || {
        assert_eq!(CudaDriver::open(1).unwrap_err().driver_error().map(|error| error.code()), Some(101));
        let driver = CudaDriver::find(1).unwrap();
        for _ in 0..2 {
            let error = driver.mem_alloc(256).unwrap_err();
            assert_eq!((error.code(), error.call()), (101, "cuDevicePrimaryCtxRetain"));
        }
        assert!(!driver.was_reset());
        assert_eq!(retains(), [0, 3, 0, 0]);
    });
}

#[test]
fn threads_that_come_first_have_one_context() {
    with_devices("threads_that_come_first_have_one_context", &[], || {
        let mut drivers: Vec<Arc<CudaDriver>> = std::thread::scope(|scope| {
            let open = || {
                let driver = CudaDriver::find(1).unwrap();
                assert_eq!(driver.mem_alloc(256).unwrap().address(), 0x1001 << 32);
                driver
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        drivers.dedup_by(|one, other| Arc::ptr_eq(one, other));
        assert_eq!(drivers.len(), 1);
        let [zero, of_one, two, three] = retains();
        assert!((1..=8).contains(&of_one) && (zero, two, three) == (0, 0, 0));
    });
}

#[test]
fn the_device_of_a_stream_is_found_and_no_other_is_touched() {
    with_devices("the_device_of_a_stream_is_found_and_no_other_is_touched", &[], || {
        for ordinal in 0..4 {
            // SAFETY: the stand-in has a stream with this number on each device.
            let found = unsafe { cuda::device_of_stream(0x7000 + ordinal + 1) }.unwrap();
            assert_eq!(found, Some(DeviceId::cuda(ordinal as u32)));
            assert_eq!(cuda::current_ordinal(), None);
        }
        // SAFETY: the stand-in refuses the number.
        assert!(unsafe { cuda::device_of_stream(0x7000) }.is_err());
        assert_eq!(retains(), [0; 4]);
    });
}

/// Asserts which device is the default in this environment.
fn assert_default(test: &str, environment: &[(&str, &str)], expected: DeviceSpec) {
    with_devices(test, environment, || {
        assert_eq!(DeviceSpec::default_device(), expected);
        if let DeviceSpec::Cuda(ordinal) = expected {
            assert_eq!(millpond_driver::current_device().unwrap(), DeviceId::cuda(ordinal));
            // Devices named by others do not change it.
            let _simulated = SimDevice::new(SimConfig::h200());
            assert_eq!(millpond_driver::current().unwrap().device(), DeviceId::cuda(ordinal));
        }
        assert_eq!(retains(), [0; 4]);
    });
}

#[test]
fn a_launchers_rank_is_the_default_device() {
    let rank = [("LOCAL_RANK", "2")];
    assert_default("a_launchers_rank_is_the_default_device", &rank, DeviceSpec::Cuda(2));
}

#[test]
fn a_rank_that_sees_one_device_uses_that() {
    let rank = [("LOCAL_RANK", "2"), ("FAKE_CUDA_DEVICES", "1")];
    assert_default("a_rank_that_sees_one_device_uses_that", &rank, DeviceSpec::Cuda(0));
}

#[test]
fn the_variable_of_the_device_is_before_the_rank() {
    let both = [("LOCAL_RANK", "2"), ("MILLPOND_DEVICE", "cuda:1")];
    assert_default("the_variable_of_the_device_is_before_the_rank", &both, DeviceSpec::Cuda(1));
}

#[test]
fn a_rank_without_a_device_is_an_error_that_names_both_variables() {
    let test = "a_rank_without_a_device_is_an_error_that_names_both_variables";
    with_devices(test, &[("LOCAL_RANK", "4")], || {
        let Err(error) = millpond_driver::current().map(|driver| driver.device()) else {
            panic!("there is no device 4")
        };
        assert!(error.is_no_device(), "{error}");
        for part in ["LOCAL_RANK", "MILLPOND_DEVICE", "cuda:0 to cuda:3"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        assert_eq!(retains(), [0; 4]);
    });
}

#[test]
fn a_simulated_default_device_leaves_the_gpus_alone() {
    let simulated = [("MILLPOND_DEVICE", "sim:8GiB")];
    with_devices("a_simulated_default_device_leaves_the_gpus_alone", &simulated, || {
        let other = SimDevice::new(SimConfig::h200());
        let device = millpond_driver::current().unwrap();
        assert_ne!(device.device(), other.device(), "the device created first is not the default");
        assert_eq!(device.mem_get_info().unwrap().total, 8 << 30);
        assert!(Arc::ptr_eq(&device, &DeviceSpec::default_device().open().unwrap()));
        assert_eq!(DeviceSpec::default_device().to_string(), "sim:8GiB");
        assert_eq!(retains(), [0; 4]);
    });
}

#[test]
fn a_default_device_that_cannot_be_read_is_an_error() {
    let wrong = [("MILLPOND_DEVICE", "gpu1")];
    with_devices("a_default_device_that_cannot_be_read_is_an_error", &wrong, || {
        for failed in [
            millpond_driver::current().map(drop),
            millpond_driver::current_device().map(drop),
            DeviceSpec::default_device().open().map(drop),
        ] {
            let error = failed.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("MILLPOND_DEVICE: `gpu1`"), "{error}");
        }
    });
}
