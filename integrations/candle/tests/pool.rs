//! Runs cudarc, in the version that candle uses, over the simulated driver: its slices lie in our pool.

use std::ffi::OsStr;
use std::sync::Arc;

use candle_core::{Device, DeviceLocation};
use cudarc::driver::{CudaContext, CudaStream};
use millpond::ErrorKind;
use millpond::driver::cuda::CudaDriver;
use millpond::resources::memory_pool::{MemoryPool, MemoryPoolOptions};
use millpond_candle::use_pool;
use millpond_shim::Shim;
use millpond_testkit::own_process;

const MIB: u64 = 1 << 20;
const GPU: DeviceLocation = DeviceLocation::Cuda { gpu_id: 0 };

/// Runs a test's body in a process that finds the simulated device as CUDA's driver.
fn run_on_the_simulated_driver<F: FnOnce()>(body: F) {
    let folder = tempfile::tempdir().unwrap();
    let library = Shim::file_next_to_program().unwrap();
    std::os::unix::fs::symlink(library, folder.path().join("libcuda.so.1")).unwrap();
    let variables =
        [("LD_LIBRARY_PATH", folder.path().as_os_str()), ("MILLPOND_DEVICE", OsStr::new("sim:1GiB"))];
    own_process::run_with(&variables, body);
}

/// What `candle_core::CudaDevice` holds: a context and a stream.
fn stream() -> Arc<CudaStream> {
    CudaContext::new(0).unwrap().new_stream().unwrap()
}

fn current() -> MemoryPool {
    MemoryPool::current_of(CudaDriver::open(0).unwrap()).unwrap()
}

#[test]
fn slices_lie_in_the_pool_until_it_is_dropped() {
    run_on_the_simulated_driver(|| {
        let stream = stream();
        let default = current();
        let pool = use_pool(GPU, MemoryPoolOptions::new().release_threshold(u64::MAX)).unwrap();
        assert_eq!(current(), *pool);
        let slice = stream.clone_htod(&[1.0_f32, 2.0, 3.0]).unwrap();
        let large = stream.alloc_zeros::<u8>(64 << 20).unwrap();
        assert!(pool.used_bytes().unwrap() >= 64 * MIB, "{pool:?}");
        assert_eq!(default.used_bytes().unwrap(), 0);

        drop(large);
        stream.synchronize().unwrap();
        assert!(pool.used_bytes().unwrap() < MIB && pool.reserved_bytes().unwrap() >= 64 * MIB, "{pool:?}");
        assert!(pool.trim(0).unwrap() > 0);
        assert!(pool.reserved_bytes().unwrap() < 64 * MIB, "{pool:?}");

        let ours = MemoryPool::clone(&pool);
        drop(pool);
        assert_eq!(current(), default);
        let later = stream.alloc_zeros::<u8>(2 << 20).unwrap();
        assert!(default.used_bytes().unwrap() >= 2 * MIB && ours.used_bytes().unwrap() < MIB);
        assert_eq!(stream.clone_dtoh(&slice).unwrap(), [1.0, 2.0, 3.0], "memory of the pool stays valid");
        drop((slice, later));
    });
}

#[test]
fn a_limit_is_an_error_of_cudarc() {
    run_on_the_simulated_driver(|| {
        let stream = stream();
        let pool = use_pool(GPU, MemoryPoolOptions::new().max_bytes(64 * MIB)).unwrap();
        let first = stream.alloc_zeros::<u8>(48 << 20).unwrap();
        let error = stream.alloc_zeros::<u8>(48 << 20).unwrap_err();
        assert_eq!(error.0, cudarc::driver::sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        drop(first);
        stream.synchronize().unwrap();
        stream.alloc_zeros::<u8>(48 << 20).unwrap();
        assert!(pool.reserved_high().unwrap() <= 64 * MIB, "{pool:?}");
    });
}

#[test]
fn a_device_without_a_pool_is_refused() {
    let error = use_pool(Device::Cpu.location(), MemoryPoolOptions::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}
