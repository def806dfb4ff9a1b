//! Tests collections of the host in memory of a resource.

use allocator_api2::alloc::Allocator;
use allocator_api2::boxed::Box;
use allocator_api2::vec::Vec;
use millpond_core::DeviceMemoryResourceExt;
use millpond_resources::{ManagedMemoryResource, PageableHostMemoryResource, PinnedHostMemoryResource};

use super::*;
use crate::HostAllocator;

fn managed() -> (Arc<SimDevice>, HostAllocator) {
    let device = SimDevice::new(SimConfig::h200());
    let resource = ManagedMemoryResource::new(device.clone()).into_any();
    (device, HostAllocator::new(resource).unwrap())
}

#[test]
fn collections_live_in_memory_that_the_host_reaches() {
    let (device, memory) = managed();
    let mut numbers = Vec::new_in(memory.clone());
    for number in 0..10_000_u32 {
        numbers.push(number);
    }
    let boxed = Box::new_in([7_u64; 100], memory.clone());
    assert_eq!((numbers.iter().sum::<u32>(), boxed.iter().sum::<u64>()), (49_995_000, 700));
    assert_eq!(device.live_allocations(), 2);
    let at = DevicePtr::new(numbers.as_ptr().addr() as u64);
    assert_eq!(device.pointer_kind(at).unwrap(), millpond_core::driver::MemoryKind::Managed);
    drop((numbers, boxed));
    assert_eq!((device.live_allocations(), device.violations()), (0, vec![]));
    assert_eq!(memory.resource().to_string(), "managed");
    assert!(Vec::<u8, HostAllocator>::new_in(memory.resource().clone().into()).is_empty());
}

#[test]
fn collections_live_in_pinned_and_in_pageable_memory() {
    let device = SimDevice::new(SimConfig::h200());
    for resource in [
        PinnedHostMemoryResource::new(device.clone()).into_any(),
        PageableHostMemoryResource::new(device.clone()).into_any(),
    ] {
        let mut numbers = Vec::new_in(HostAllocator::new(resource).unwrap());
        numbers.extend(0..1000_u64);
        assert_eq!(numbers.iter().sum::<u64>(), 499_500);
    }
    assert_eq!((device.live_allocations(), device.violations()), (0, vec![]));
}

#[test]
fn blocks_are_aligned_and_none_are_taken_for_nothing() {
    let (device, memory) = managed();
    for (size, align) in [(1, 1), (100, 256), (100, 1 << 16)] {
        let layout = std::alloc::Layout::from_size_align(size, align).unwrap();
        let block = memory.allocate(layout).unwrap();
        assert_eq!((block.len(), block.as_ptr().cast::<u8>().addr() % align), (size, 0));
        // SAFETY: the block came from this allocator with this layout, and is no longer used.
        unsafe { memory.deallocate(block.cast(), layout) };
    }
    let empty = std::alloc::Layout::from_size_align(0, 64).unwrap();
    let calls = device.driver_calls();
    let block = memory.allocate(empty).unwrap();
    assert_eq!((block.len(), block.as_ptr().cast::<u8>().addr() % 64), (0, 0));
    // SAFETY: as above.
    unsafe { memory.deallocate(block.cast(), empty) };
    assert_eq!((device.driver_calls(), device.live_allocations()), (calls, 0));
}

/// The work of the block's last owner is done before the host writes the block. The pool has room for one
/// block.
#[test]
fn memory_in_stream_order_is_waited_for() {
    const BYTES: u64 = 2 << 20;
    for seed in 0..50 {
        let device = SimDevice::new(SimConfig::h200().seed(seed).schedule(Schedule::Seeded(seed)));
        let options = PoolOptions::default().maximum_bytes(Some(BYTES));
        let pool = PoolMemoryResource::new(ManagedMemoryResource::new(device.clone()), options);
        let pool = pool.unwrap().into_any();
        let stream = Stream::new(device.clone(), StreamFlags::NON_BLOCKING).unwrap();
        let buffer = DeviceBuffer::new(BYTES, stream.as_ref(), pool.clone()).unwrap();
        device.launch(stream.as_ref(), &[Access::write(buffer.as_ptr(), BYTES, 0xDEAD)]);
        let block = buffer.as_ptr();
        drop(buffer);
        let numbers = Vec::<u8, _>::with_capacity_in(BYTES as usize, HostAllocator::new(pool).unwrap());
        assert_eq!(numbers.as_ptr().addr() as u64, block.address());
        assert!(stream.query().unwrap(), "seed {seed}");
        drop(numbers);
        device.synchronize().unwrap();
        assert_eq!(device.violations(), []);
    }
}

#[test]
fn memory_that_the_host_does_not_reach_is_refused() {
    let bench = Bench::new(SimConfig::h200());
    let error = HostAllocator::new(bench.pool.clone()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().starts_with("the host cannot access the memory of `cuda+pool`"), "{error}");
}

/// The second call is the wait.
#[test]
fn errors_are_the_collections() {
    let (device, memory) = managed();
    device.set_faults(FaultPlan::nth_call(0, DriverError::OUT_OF_MEMORY).persistent());
    let mut numbers = Vec::<u64, _>::new_in(memory);
    assert!(numbers.try_reserve(100).is_err());
    device.set_faults(FaultPlan::none());
    numbers.push(7);
    assert_eq!(numbers[..], [7]);

    let device = SimDevice::new(SimConfig::h200());
    let pool = PoolMemoryResource::new(ManagedMemoryResource::new(device.clone()), PoolOptions::default());
    let pool = Arc::new(pool.unwrap());
    let memory = HostAllocator::new(pool.clone()).unwrap();
    device.set_faults(FaultPlan::nth_of(CallKind::StreamSynchronize, 0, DriverError::NOT_PERMITTED));
    assert!(Vec::<u64, _>::new_in(memory).try_reserve(100).is_err(), "the wait fails");
    assert_eq!(pool.statistics().unwrap().blocks_in_use, 0);
}
