//! Tests the registry: all threads get the default that was set, and `MILLPOND_STACK` sets the initial one.
//! The tests run in a separate process, since the environment belongs to the process.

use std::process::Command;
use std::sync::Arc;

use millpond_core::{AnyResource, DeviceMemoryResourceExt, Driver, ErrorKind, StreamRef};
use millpond_driver::CurrentDeviceGuard;
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::{
    CudaMemoryResource, get_current_device_resource, get_per_device_resource, replace_per_device_resource,
    reset_current_device_resource, reset_per_device_resource, set_per_device_resource,
};

/// Not a test: the code that the tests below run with a variable set.
#[test]
fn child_process() {
    let Ok(expected) = std::env::var("MILLPOND_TEST_EXPECTED") else { return };
    let [device, other] = [(); 2].map(|()| SimDevice::new(SimConfig::h200()));
    let _guard = CurrentDeviceGuard::new(device.device()).unwrap();
    // A program's own resource takes precedence over the environment.
    let cuda = CudaMemoryResource::new(other.clone()).into_any();
    set_per_device_resource(other.device(), cuda).unwrap();
    assert_eq!(get_per_device_resource(other.device()).unwrap().to_string(), "cuda");
    let unused = SimDevice::new(SimConfig::h200());
    let (id, free) = (unused.device(), unused.mem_get_info().unwrap().free);
    let own = CudaMemoryResource::new(unused.clone()).into_any();
    assert!(replace_per_device_resource(id, own.clone()).unwrap().is_none(), "none was built to be replaced");
    assert_eq!(unused.mem_get_info().unwrap().free, free);
    assert!(Arc::ptr_eq(&replace_per_device_resource(id, own.clone()).unwrap().unwrap(), &own));
    // A default that no call has set is built once.
    let fresh = SimDevice::new(SimConfig::h200());
    if let Ok(before) = reset_per_device_resource(fresh.device()) {
        assert!(Arc::ptr_eq(&before, &get_per_device_resource(fresh.device()).unwrap()));
    }
    match get_current_device_resource() {
        Ok(resource) => {
            assert_eq!(resource.to_string(), expected);
            set_per_device_resource(device.device(), CudaMemoryResource::new(device.clone()).into_any())
                .unwrap();
            reset_current_device_resource().unwrap();
            assert_eq!(get_current_device_resource().unwrap().to_string(), expected);
        }
        Err(error) => {
            assert!(
                error.to_string().contains(&expected) && error.to_string().contains("MILLPOND_STACK"),
                "{error}"
            );
        }
    }
}

fn check(variable: Option<&str>, expected: &str) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", "registry_environment::child_process"])
        .env("MILLPOND_TEST_EXPECTED", expected)
        .env_remove("MILLPOND_STACK");
    child.envs(variable.map(|text| ("MILLPOND_STACK", text)));
    let output = child.output().unwrap();
    assert!(output.status.success(), "{variable:?}: {}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn issue_9_the_default_is_the_stack_of_the_environment() {
    check(None, "cuda");
    check(Some(""), "cuda");
    check(Some(" "), "cuda");
    check(Some("cuda+pool:max=1GiB + statistics"), "cuda+pool:max=1GiB+statistics");
    check(Some("cuda+pool:initial=1GiB"), "cuda+pool:initial=1GiB");
    check(Some("cuda+tracking+pool:max=1TiB"), "exceeds");
}

#[test]
fn issue_9_a_wrong_stack_of_the_environment_is_an_error_that_names_it() {
    check(Some("cuda+pol"), "there is no layer `pol`");
    check(Some("cuda+pool:max"), "key=value");
}

/// RMM's tests of the default resource, with four threads each.
#[test]
fn all_threads_get_the_resource_that_was_set() {
    let device = SimDevice::new(SimConfig::h200());
    let threads_get = |expected: &AnyResource| {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let _guard = CurrentDeviceGuard::new(device.device()).unwrap();
                    let current = get_current_device_resource().unwrap();
                    assert!(Arc::ptr_eq(&current, expected));
                    let ptr = current.allocate_bytes(1024, StreamRef::LEGACY).unwrap();
                    // SAFETY: the block came from this resource with this size, and nothing uses it.
                    unsafe { current.deallocate_bytes(ptr, 1024, StreamRef::LEGACY) };
                });
            }
        });
    };
    let _guard = CurrentDeviceGuard::new(device.device()).unwrap();
    let initial = get_current_device_resource().unwrap();
    threads_get(&initial);
    let own = CudaMemoryResource::new(device.clone()).into_any();
    assert!(Arc::ptr_eq(&set_per_device_resource(device.device(), own.clone()).unwrap(), &initial));
    threads_get(&own);
    assert!(Arc::ptr_eq(&reset_current_device_resource().unwrap(), &own), "the one before comes back");
    assert!(!Arc::ptr_eq(&get_current_device_resource().unwrap(), &own));
    let other = CudaMemoryResource::new(SimDevice::new(SimConfig::h200())).into_any();
    let error = set_per_device_resource(device.device(), other).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "it is of another device");
}
