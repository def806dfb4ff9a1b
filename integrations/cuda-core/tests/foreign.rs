//! Tests millpond's buffers in NVIDIA's crates. Without a GPU, `../test.sh cuda-core` runs the tests over the
//! simulated device.

use std::sync::Arc;
use std::thread;

use cuda_core::{Context, DeviceBuffer, RawDeviceBuffer};
use cutile::prelude::{DeviceOp, Tensor, ToHostVec};
use millpond::containers::{DeviceVec, Stream};
use millpond::driver::cuda::CudaDriver;
use millpond::driver::sim::{SimConfig, SimDevice};
use millpond::driver::{MemPool, StreamFlags};
use millpond::resources::memory_pool::{CurrentPool, MemoryPool, MemoryPoolOptions};
use millpond::resources::{CudaAsyncViewMemoryResource, CudaMemoryResource, PoolMemoryResource, PoolOptions};
use millpond::{AnyResource, DeviceMemoryResourceExt, DriverHandle, ErrorKind, StreamRef};
use millpond_cuda_core::{Foreign, stream_ref_of};

fn gpu() -> DriverHandle {
    CudaDriver::open(0).expect("a GPU, or ../test.sh")
}

fn pool() -> Arc<PoolMemoryResource<CudaMemoryResource>> {
    let options = PoolOptions::default();
    Arc::new(PoolMemoryResource::new(CudaMemoryResource::new(gpu()), options).unwrap())
}

fn blocks_in_use(pool: &PoolMemoryResource<CudaMemoryResource>) -> u64 {
    use millpond::DeviceMemoryResource;
    pool.statistics().unwrap().blocks_in_use
}

fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|number| number as f32).collect()
}

#[test]
fn a_tensor_reads_and_copies_a_vector() {
    let (pool, home) = (pool(), Context::new(0).unwrap().new_stream().unwrap());
    let vec = DeviceVec::from_host(&numbers(1000), StreamRef::LEGACY, pool.clone()).unwrap();
    let address = vec.as_ptr().address();
    let owner = Arc::new(Foreign::new(vec.into_buffer(), &home).unwrap());
    // SAFETY: only this tensor uses the memory, which holds numbers.
    let tensor = unsafe { Tensor::<f32>::from_foreign(owner, vec![10, 100], vec![100, 1]) };
    assert_eq!(tensor.device_pointer().cu_deviceptr(), address);
    let copy = tensor.dup().sync_on(&home).unwrap();
    assert_eq!(copy.to_host_vec().sync_on(&home).unwrap(), numbers(1000));
    assert_eq!(tensor.to_host_vec().sync_on(&home).unwrap(), numbers(1000));
}

/// The block held sevens before. Without the order, the read on the home stream finds them.
#[test]
fn earlier_work_comes_first() {
    const BYTES: usize = 1 << 30;
    let context = Context::new(0).unwrap();
    let (pool, home) = (pool(), context.new_stream().unwrap());
    let first = |len, ptr: u64| {
        // SAFETY: the memory lives longer than this view, and holds bytes.
        let raw = unsafe { RawDeviceBuffer::borrowed_from_raw_parts(ptr, len, context.clone()) };
        // SAFETY: as above.
        unsafe { DeviceBuffer::<u8>::from_storage(raw, len) }.unwrap().to_host_vec(&home).unwrap()
    };
    for is_handed_over in [true, false] {
        let own = Stream::new(gpu(), StreamFlags::NON_BLOCKING).unwrap();
        drop(DeviceVec::from_host(&vec![7_u8; BYTES], own.as_ref(), pool.clone()).unwrap());
        own.synchronize().unwrap();
        let zeros = DeviceVec::<u8, _>::zeroed(BYTES, own.as_ref(), pool.clone()).unwrap();
        if is_handed_over {
            let zeros = Arc::new(Foreign::new(zeros.into_buffer(), &home).unwrap());
            let raw = RawDeviceBuffer::foreign(zeros, 16);
            // SAFETY: the memory holds bytes, and nothing else uses it.
            let bytes = unsafe { DeviceBuffer::<u8>::from_storage(raw, 16) }.unwrap();
            assert_eq!(bytes.to_host_vec(&home).unwrap(), [0; 16]);
        } else if std::env::var_os("MILLPOND_DEVICE").is_some() {
            assert_eq!(first(16, zeros.as_ptr().address() + BYTES as u64 - 16), [7; 16]);
        }
    }
}

#[test]
fn the_memory_is_freed_after_their_last_use() {
    let (pool, home) = (pool(), Context::new(0).unwrap().new_stream().unwrap());
    let vec = DeviceVec::from_host(&[7_u8; 4096], StreamRef::LEGACY, pool.clone()).unwrap();
    let owner = Arc::new(Foreign::new(vec.into_buffer(), &home).unwrap());
    let is_owned = Arc::downgrade(&owner);
    // SAFETY: the memory holds bytes, and only this buffer uses it.
    let mut theirs =
        unsafe { DeviceBuffer::<u8>::from_storage(RawDeviceBuffer::foreign(owner, 4096), 4096) }.unwrap();
    theirs.zero_async(&home).unwrap();
    assert_eq!(blocks_in_use(&pool), 1);
    thread::spawn(|| drop(theirs)).join().unwrap();
    home.synchronize().unwrap();
    while is_owned.strong_count() > 0 || blocks_in_use(&pool) > 0 {
        thread::yield_now();
    }
}

#[test]
fn a_buffer_comes_back() {
    let (pool, home) = (pool(), Context::new(0).unwrap().new_stream().unwrap());
    let vec = DeviceVec::from_host(&[7_u8; 4096], StreamRef::LEGACY, pool.clone()).unwrap();
    let mut owner = Arc::new(Foreign::new(vec.into_buffer(), &home).unwrap());
    let raw = RawDeviceBuffer::foreign(owner.clone(), 4096);
    // SAFETY: the memory holds bytes, and only this buffer uses it.
    let mut theirs = unsafe { DeviceBuffer::<u8>::from_storage(raw, 4096) }.unwrap();
    theirs.zero_async(&home).unwrap();
    drop(theirs);
    let foreign = loop {
        owner = match Arc::try_unwrap(owner) {
            Ok(foreign) => break foreign,
            Err(shared) => shared,
        };
        thread::yield_now();
    };
    let buffer = foreign.into_buffer(StreamRef::LEGACY).unwrap();
    assert_eq!(buffer.to_host::<u8>().unwrap(), [0; 4096]);
    assert_eq!((buffer.stream(), blocks_in_use(&pool)), (StreamRef::LEGACY, 1));
}

/// `cuMemAllocAsync` of both crates allocates from the current pool.
#[test]
fn outputs_come_from_the_current_pool() {
    const BYTES: u64 = 4 << 20;
    let context = Context::new(0).unwrap();
    let home = context.new_stream().unwrap();
    let pool = CurrentPool::new(gpu(), MemoryPoolOptions::new().release_threshold(u64::MAX)).unwrap();
    let before = pool.used_bytes().unwrap();
    let sent = Arc::new(numbers(1 << 20));
    let tensor = cutile::api::copy_host_vec_to_device(&sent).sync_on(&home).unwrap();
    assert!(pool.used_bytes().unwrap() >= before + BYTES, "{pool:?}");
    assert_eq!(tensor.to_host_vec().sync_on(&home).unwrap(), *sent);
}

/// A pool that cuda-core made serves a stack of millpond, too.
#[test]
fn a_stack_stands_on_a_pool_of_theirs() {
    let context = Context::new(0).unwrap();
    let theirs = context.new_mem_pool().unwrap();
    // SAFETY: `theirs` is dropped last.
    let pool = unsafe { MemoryPool::from_raw(gpu(), MemPool(theirs.cu_pool().addr() as u64)) };
    pool.set_release_threshold(u64::MAX).unwrap();
    let stack: AnyResource = CudaAsyncViewMemoryResource::new(pool.clone()).unwrap().into_any();
    let block = DeviceVec::from_host(&numbers(1 << 20), StreamRef::LEGACY, stack).unwrap();
    assert!(theirs.mem_stats().unwrap().used_current >= 4 << 20);
    assert_eq!(block.to_host().unwrap(), numbers(1 << 20));
    drop((block, pool));
    context.synchronize().unwrap();
    assert_eq!(theirs.mem_stats().unwrap().used_current, 0);
}

#[test]
fn other_devices_and_contexts_are_refused() {
    let context = Context::new(0).unwrap();
    let home = context.new_stream().unwrap();
    let simulated = SimDevice::new(SimConfig::h200());
    let resource = CudaMemoryResource::new(simulated).into_any();
    let vec = DeviceVec::<u8>::zeroed(100, StreamRef::LEGACY, resource).unwrap();
    let error = Foreign::new(vec.into_buffer(), &home).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().starts_with("the stream belongs to cuda:0"), "{error}");

    let mut second = std::ptr::null_mut();
    // SAFETY: `second` takes the result.
    let made = unsafe { cuda_core::sys::cuCtxCreate_v4(&raw mut second, std::ptr::null_mut(), 0, 0) };
    assert_eq!(made, 0);
    // SAFETY: the context is never destroyed.
    let second = unsafe { Context::borrow_raw(second.cast(), 0, 0) };
    let foreign = second.default_stream();
    // SAFETY: the stream is alive.
    let error = unsafe { stream_ref_of(&foreign) }.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    // SAFETY: the stream is alive.
    assert_eq!(unsafe { stream_ref_of(&context.default_stream()) }.unwrap(), StreamRef::LEGACY);
    // SAFETY: as above.
    let named = unsafe { stream_ref_of(&home) }.unwrap();
    assert_eq!(named.handle(), home.cu_stream().addr() as u64);
    gpu().synchronize().unwrap();
}
