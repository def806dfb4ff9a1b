//! Tests the driver's pools on a real device: settings, captures at the same time, and another process.
#![cfg(target_os = "linux")]

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

use millpond_core::driver::{AccessFlags, CaptureMode, HandleTypes, MemPoolPtrData, MemoryKind, StreamFlags};
use millpond_core::{
    DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, DriverHandle, ErrorKind, StreamRef,
};
use millpond_driver::cuda::CudaDriver;
use millpond_resources::memory_pool::{MemoryPool, MemoryPoolOptions, PoolReuse, handshake};
use millpond_resources::{
    CudaAsyncManagedMemoryResource, CudaAsyncMemoryResource, CudaAsyncOptions, CudaAsyncViewMemoryResource,
};
use millpond_testkit::misuse_recorder;

const MIB: u64 = 1 << 20;

fn open() -> DriverHandle {
    CudaDriver::open(0).expect("a CUDA GPU")
}

fn stream(driver: &DriverHandle) -> StreamRef {
    driver.stream_create(StreamFlags::NON_BLOCKING).unwrap()
}

fn put(resource: &dyn DeviceMemoryResource, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
    // SAFETY: nothing uses the block. If the pointer is no block, the resource finds out.
    unsafe { resource.deallocate_bytes(ptr, bytes, stream) }
}

fn fill(driver: &DriverHandle, ptr: DevicePtr, value: u8, bytes: u64, stream: StreamRef) {
    // SAFETY: the callers' blocks are live, and have that many bytes.
    unsafe { driver.memset_d8_async(ptr, value, bytes, stream) }.unwrap();
}

fn read(driver: &DriverHandle, ptr: DevicePtr, bytes: u64, stream: StreamRef) -> Vec<u8> {
    let mut found = vec![0; bytes as usize];
    // SAFETY: the callers' blocks are live, and the copy is done before the vector is read.
    unsafe { driver.memcpy_dtoh_async(found.as_mut_ptr(), ptr, bytes, stream) }.unwrap();
    driver.stream_synchronize(stream).unwrap();
    found
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn a_pool_has_the_settings_that_it_was_given() {
    let driver = open();
    let reuse = PoolReuse::ALL.opportunistic(false);
    let options = MemoryPoolOptions::new().max_bytes(256 * MIB).release_threshold(u64::MAX).reuse(reuse);
    let pool = MemoryPool::new(driver.clone(), options).unwrap();
    assert_eq!((pool.release_threshold().unwrap(), pool.reuse().unwrap()), (u64::MAX, reuse));
    assert_eq!(pool.access(driver.device()).unwrap(), AccessFlags::ReadWrite);
    let (resource, s) = (CudaAsyncViewMemoryResource::new(pool.clone()).unwrap(), stream(&driver));
    let ptr = resource.allocate_bytes(8 * MIB, s).unwrap();
    assert_eq!(driver.pointer_mem_pool(ptr), Ok(Some(pool.raw())));
    assert_eq!(driver.pointer_mem_pool(driver.mem_alloc(256).unwrap()), Ok(None));
    assert!(pool.used_bytes().unwrap() >= 8 * MIB && pool.used_high().unwrap() >= 8 * MIB);
    put(&resource, ptr, 8 * MIB, s);
    driver.stream_synchronize(s).unwrap();
    assert!(pool.reserved_bytes().unwrap() >= 8 * MIB, "the threshold keeps it");
    assert!(pool.trim(0).unwrap() >= 8 * MIB);
    pool.reset_reserved_high().unwrap();
    pool.reset_used_high().unwrap();
    assert_eq!((pool.reserved_high().unwrap(), pool.used_high().unwrap()), (0, 0));
    assert!(resource.allocate_bytes(512 * MIB, s).unwrap_err().is_out_of_memory());

    pool.set_current().unwrap();
    assert_eq!(MemoryPool::current_of(driver.clone()).unwrap(), pool);
    MemoryPool::default_of(driver).unwrap().set_current().unwrap();
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn mistakes_do_not_reach_the_driver() {
    let driver = open();
    let resource = CudaAsyncMemoryResource::new(driver.clone(), CudaAsyncOptions::default()).unwrap();
    let dead = stream(&driver);
    let ptr = resource.allocate_bytes(MIB, dead).unwrap();
    fill(&driver, ptr, 1, MIB, dead);
    // SAFETY: the stream is this test's; naming it afterwards is the mistake that is tested.
    unsafe { driver.stream_destroy(dead) }.unwrap();
    let ((), misuses) = misuse_recorder::record(|| {
        put(&resource, ptr, MIB, dead);
        put(&resource, ptr, MIB, StreamRef::LEGACY);
        put(&resource, DevicePtr::new(0x1_0000), MIB, StreamRef::LEGACY);
    });
    assert_eq!(misuses.len(), 3, "{misuses:?}");
    assert_eq!(resource.pool().used_bytes().unwrap(), 0, "nothing leaks");
    assert!(resource.allocate_bytes(100, dead).is_err());
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn a_capturing_stream_gets_memory_that_is_no_node_of_its_graph() {
    let cuda = CudaDriver::open(0).expect("a CUDA GPU");
    let driver: DriverHandle = cuda.clone();
    let resource = CudaAsyncMemoryResource::new(driver.clone(), CudaAsyncOptions::default()).unwrap();
    let s = stream(&driver);
    for mode in [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed] {
        let before = resource.allocate_bytes(MIB, s).unwrap();
        fill(&driver, before, 3, MIB, s);
        cuda.begin_capture(s, mode).unwrap();
        let inside = resource.allocate_bytes(MIB, s).unwrap();
        fill(&driver, inside, 4, MIB, s);
        put(&resource, before, MIB, s);
        put(&resource, inside, MIB, s);
        assert!(resource.pool().used_bytes().unwrap() >= 2 * MIB);
        cuda.end_capture(s).unwrap_or_else(|error| panic!("{mode:?}: {error}"));
        let after = resource.allocate_bytes(1000, s).unwrap();
        assert!(resource.pool().used_bytes().unwrap() < MIB, "what came back is free again");
        put(&resource, after, 1000, s);
    }
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn managed_pools_are_seen_by_host_and_device() {
    let driver = open();
    if driver.version().unwrap() < 13_000 {
        let error = CudaAsyncManagedMemoryResource::new(driver).unwrap_err();
        return assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    let [first, second] = [(); 2].map(|()| CudaAsyncManagedMemoryResource::new(driver.clone()).unwrap());
    assert!(first.is_equal(&second));
    let s = stream(&driver);
    let ptr = first.allocate_bytes(MIB, s).unwrap();
    assert_eq!(driver.pointer_kind(ptr), Ok(MemoryKind::Managed));
    fill(&driver, ptr, 42, MIB, s);
    driver.stream_synchronize(s).unwrap();
    let bytes: *const u8 = std::ptr::with_exposed_provenance(ptr.address() as usize);
    // SAFETY: managed memory of a MiB, and the device is done.
    assert!(unsafe { std::slice::from_raw_parts(bytes, MIB as usize) }.iter().all(|byte| *byte == 42));
    put(&second, ptr, MIB, s);
}

const POINTER: &str = "MILLPOND_TEST_POOL_POINTER";

/// The other process gets the pool's descriptor as its standard input, and the token as its standard output.
#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn another_process_uses_a_block_of_an_exported_pool() {
    let driver = open();
    let s = stream(&driver);
    if let Ok(hex) = std::env::var(POINTER) {
        let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
        let data = MemPoolPtrData(std::array::from_fn(byte));
        // SAFETY: this process frees the block, and completes the free, before it ends.
        let pool = unsafe { MemoryPool::import_fd(driver.clone(), std::io::stdin().as_fd()) }.unwrap();
        let block = pool.import_pointer(&data).unwrap();
        assert_eq!(read(&driver, block.device_pointer(), MIB, s), vec![9; MIB as usize]);
        fill(&driver, block.device_pointer(), 10, MIB, s);
        assert!(CudaAsyncViewMemoryResource::new(pool.clone()).is_err());
        block.free_on(s).unwrap();
        return driver.stream_synchronize(s).unwrap();
    }
    let options = MemoryPoolOptions::new().handles(HandleTypes::POSIX_FD);
    let pool = MemoryPool::new(driver.clone(), options).unwrap();
    let resource = CudaAsyncViewMemoryResource::new(pool.clone()).unwrap();
    let ptr = resource.allocate_bytes(MIB, s).unwrap();
    fill(&driver, ptr, 9, MIB, s);
    driver.stream_synchronize(s).unwrap();
    let hex: String = pool.export_pointer(ptr).unwrap().0.iter().map(|byte| format!("{byte:02x}")).collect();
    let (importers, token) = handshake().unwrap();
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--nocapture", "--exact"])
        .arg("cuda_async_gpu::another_process_uses_a_block_of_an_exported_pool")
        .env(POINTER, hex)
        .stdin(Stdio::from(pool.export_fd().unwrap()))
        .stdout(Stdio::from(OwnedFd::from(token)))
        .spawn()
        .unwrap();
    // The other test's output also goes into the pipe, and is read and dropped.
    importers.wait().unwrap();
    assert!(other.wait().unwrap().success());
    assert_eq!(read(&driver, ptr, MIB, s), vec![10; MIB as usize]);
    put(&resource, ptr, MIB, s);
    let other_pool = MemoryPool::new(driver.clone(), options).unwrap();
    let error = other_pool.export_pointer(ptr.offset(1 << 40)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let file = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: it is refused.
    let error = unsafe { MemoryPool::import_fd(driver, file.as_fd()) }.unwrap_err();
    assert!(!error.is_sticky(), "{error}");
}
