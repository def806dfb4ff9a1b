//! Tests containers on a GPU: copies that do not wait, single values, prefetches, and copies between two
//! GPUs.

use std::sync::Arc;

use millpond_containers::{
    BorrowedStream, DeviceBuffer, DeviceGuard, DeviceScalar, DeviceVec, HostStaging, PrefetchTo, Stream,
    StreamPool, available_device_memory,
};
use millpond_core::driver::{CaptureMode, StreamFlags};
use millpond_core::{
    AnyResource, DeviceId, DeviceMemoryResource, DeviceMemoryResourceExt, DriverHandle, ErrorKind, StreamRef,
};
use millpond_driver::cuda::{self, CudaDriver};
use millpond_resources::{
    CudaAsyncMemoryResource, CudaAsyncOptions, CudaMemoryResource, ManagedMemoryResource, PoolLayer,
};

const LEN: usize = 8 << 20;

fn pool(device: u32) -> AnyResource {
    CudaMemoryResource::new(CudaDriver::open(device).unwrap()).layer(PoolLayer::new()).unwrap().into_any()
}

fn stream(resource: &AnyResource) -> Stream {
    Stream::new(resource.driver().clone(), StreamFlags::NON_BLOCKING).unwrap()
}

fn numbers(first: u32) -> Vec<u32> {
    (first..first + LEN as u32).collect()
}

/// The slice of each copy is dropped long before the device runs the copy.
#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn copies_through_staging_memory_hold_what_the_slices_held() {
    let pool = pool(0);
    let stream = stream(&pool);
    let staging = HostStaging::new(pool.driver().clone());
    let mut vec = DeviceVec::<u32>::zeroed(LEN, stream.as_ref(), pool).unwrap();
    let copies: Vec<_> = (0..8)
        .map(|round| {
            let mut data = numbers(round);
            vec.copy_from_host_async(&data, &staging).unwrap();
            data.fill(0xDEAD);
            vec.copy_to_host_async(&staging).unwrap()
        })
        .collect();
    drop(vec);
    for (copy, round) in copies.into_iter().zip(0..) {
        assert!(copy.wait().unwrap() == numbers(round), "round {round}");
    }
    assert!(staging.trim().unwrap() > 0);
    assert_eq!(staging.idle_bytes(), 0);
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn single_values_are_read_and_written() {
    let pool = pool(0);
    let streams = StreamPool::new(pool.driver().clone(), 4, StreamFlags::NON_BLOCKING).unwrap();
    let staging = HostStaging::new(pool.driver().clone());
    let mut vec = DeviceVec::<f64>::zeroed(1000, streams.get().as_ref(), pool.clone()).unwrap();
    for index in 0..1000 {
        vec.set_stream(streams.get().as_ref()).unwrap();
        vec.set_async(index, &(index as f64 * -0.5), &staging).unwrap();
    }
    vec.set_to_zero_async(999).unwrap();
    let expected: Vec<u64> = (0..1000).map(|index| (f64::from(index % 999) * -0.5).to_bits()).collect();
    let found: Vec<u64> = vec.to_host().unwrap().into_iter().map(f64::to_bits).collect();
    assert_eq!(found[..999], expected[..999]);
    assert_eq!((found[0], found[999]), ((-0.0_f64).to_bits(), 0));
    assert_eq!((vec.get(2).unwrap(), vec.first().unwrap().to_bits()), (-1.0, found[0]));
    let mut sum = DeviceScalar::from_value(7_u64, streams.get().as_ref(), pool).unwrap();
    sum.set_value_async(&8, &staging).unwrap();
    assert_eq!(sum.value().unwrap(), 8);
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn managed_memory_is_prefetched_and_other_memory_is_not() {
    let driver: DriverHandle = CudaDriver::open(0).unwrap();
    let managed = ManagedMemoryResource::new(driver.clone()).into_any();
    let stream = stream(&managed);
    let mut vec = DeviceVec::from_host(&numbers(3), stream.as_ref(), managed).unwrap();
    for to in [PrefetchTo::Host, PrefetchTo::Device] {
        assert!(vec.prefetch(to).unwrap());
    }
    assert!(vec.to_host().unwrap() == numbers(3));
    for other in [CudaMemoryResource::new(driver).into_any(), pool(0)] {
        let mut buffer = DeviceBuffer::new(1 << 20, stream.as_ref(), other).unwrap();
        assert!(!buffer.prefetch(PrefetchTo::Device).unwrap());
        assert_eq!(buffer.to_host::<u8>().unwrap().len(), 1 << 20, "the stream goes on");
    }
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn a_capture_refuses_copies_through_staging_memory_and_stays_valid() {
    let pool = pool(0);
    let (capturing, aside) = (stream(&pool), stream(&pool));
    let driver = CudaDriver::open(0).unwrap();
    let staging = HostStaging::new(pool.driver().clone());
    let mut captured = DeviceVec::<u32>::zeroed(100, capturing.as_ref(), pool.clone()).unwrap();
    let mut other = DeviceVec::<u32>::zeroed(100, aside.as_ref(), pool).unwrap();
    capturing.synchronize().unwrap();
    driver.begin_capture(capturing.as_ref(), CaptureMode::Global).unwrap();
    let error = captured.copy_from_host_async(&[1; 100], &staging).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    for value in 0..3 {
        other.copy_from_host_async(&[value; 100], &staging).unwrap();
    }
    driver.end_capture(capturing.as_ref()).unwrap();
    assert_eq!(other.to_host().unwrap(), [2; 100]);
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn default_streams_are_borrowed() {
    let driver: DriverHandle = CudaDriver::open(0).unwrap();
    let _guard = DeviceGuard::new(DeviceId::cuda(0)).unwrap();
    assert!(available_device_memory().unwrap().total > 0);
    for stream in [BorrowedStream::legacy(driver.clone()), BorrowedStream::per_thread(driver.clone())] {
        stream.synchronize().unwrap();
        assert!(stream.query().unwrap());
    }
    let own = Stream::new(driver.clone(), StreamFlags::NON_BLOCKING).unwrap();
    // SAFETY: the handle names a stream that stays alive.
    let raw = unsafe { BorrowedStream::from_raw(driver, own.as_ref().handle()) }.unwrap();
    assert!(raw == own.borrow());
}

/// Copies from a pool that gives no other device access, and from plain memory.
#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn contents_are_copied_between_two_gpus() {
    if cuda::device_count() < 2 {
        return;
    }
    let plain = |device| CudaMemoryResource::new(CudaDriver::open(device).unwrap()).into_any();
    let alone = |device| {
        let layer = PoolLayer::new().peers("none".parse().unwrap());
        CudaMemoryResource::new(CudaDriver::open(device).unwrap()).layer(layer).unwrap().into_any()
    };
    for (from, to) in [(alone(0), alone(1)), (alone(1), plain(0)), (plain(0), alone(1)), (plain(1), plain(0))]
    {
        let (one, other) = (stream(&from), stream(&to));
        let staging = HostStaging::new(from.driver().clone());
        for round in 0..5 {
            let mut source = DeviceVec::<u32>::uninit(LEN, one.as_ref(), Arc::clone(&from)).unwrap();
            source.copy_from_host_async(&numbers(round), &staging).unwrap();
            let copy = DeviceVec::copy_of(&source, other.as_ref(), Arc::clone(&to)).unwrap();
            source.copy_from_host_async(&numbers(77), &staging).unwrap();
            drop(source);
            assert!(copy.to_host().unwrap() == numbers(round), "`{from}` to `{to}`, round {round}");
        }
    }
}

/// Makes, grows, copies and drops containers of one GPU while the other one is current.
#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn containers_end_on_their_own_gpu_whichever_is_current() {
    if cuda::device_count() < 2 {
        return;
    }
    for device in [0, 1] {
        let own = || DeviceGuard::new(DeviceId::cuda(device)).unwrap();
        let other = || DeviceGuard::new(DeviceId::cuda(1 - device)).unwrap();
        let driver = CudaDriver::open(device).unwrap();
        let cuda_async = CudaAsyncMemoryResource::new(driver, CudaAsyncOptions::default()).unwrap();
        let driver_pool = cuda_async.pool().clone();
        for resource in [pool(device), cuda_async.into_any()] {
            let _outer = other();
            let stream = stream(&resource);
            let (mut buffer, vec, mut scalar) = {
                let _inner = own();
                (
                    DeviceBuffer::new(100, StreamRef::LEGACY, resource.clone()).unwrap(),
                    DeviceVec::from_host(&numbers(device), stream.as_ref(), resource.clone()).unwrap(),
                    DeviceScalar::from_value(5_u32, stream.as_ref(), resource.clone()).unwrap(),
                )
            };
            buffer.resize(1 << 20, StreamRef::PER_THREAD).unwrap();
            scalar.set_value_async(&(7 + device), &HostStaging::new(resource.driver().clone())).unwrap();
            let copy = DeviceVec::copy_of(&vec, stream.as_ref(), resource.clone()).unwrap();
            assert!(copy.to_host().unwrap() == numbers(device), "`{resource}`");
            assert_eq!(scalar.value().unwrap(), 7 + device);
            drop((buffer, vec, scalar, copy));
            if let Some(statistics) = resource.statistics() {
                assert_eq!(statistics.blocks_in_use, 0, "`{resource}`");
            }
            resource.driver().synchronize().unwrap();
        }
        assert_eq!(driver_pool.used_bytes().unwrap(), 0);
    }
}
