//! Tests buffers as RMM's tests test a `device_buffer`, over memory of each kind.

use millpond_core::{AnyResource, DeviceMemoryResourceExt};
use millpond_resources::{
    ManagedMemoryResource, PageableHostMemoryResource, PinnedHostMemoryResource, SystemMemoryResource,
};

use super::*;

/// A device, and each kind of memory on it.
fn each_memory(check: impl Fn(&Arc<SimDevice>, AnyResource, StreamRef)) {
    for kind in 0..5 {
        let device = SimDevice::new(SimConfig::h200());
        let stream = Stream::new(device.clone(), StreamFlags::NON_BLOCKING).unwrap();
        let resource = match kind {
            0 => CudaMemoryResource::new(device.clone()).into_any(),
            1 => ManagedMemoryResource::new(device.clone()).into_any(),
            2 => PinnedHostMemoryResource::new(device.clone()).into_any(),
            3 => SystemMemoryResource::new(device.clone()).unwrap().into_any(),
            _ => {
                let cuda = CudaMemoryResource::new(device.clone());
                PoolMemoryResource::new(cuda, PoolOptions::default()).unwrap().into_any()
            }
        };
        check(&device, resource, stream.as_ref());
        drop(stream);
        assert_eq!((device.live_allocations(), device.live_streams()), (0, 0));
        assert_eq!(device.violations(), []);
    }
}

#[test]
fn a_buffer_has_the_stream_and_the_resource_that_it_was_made_with() {
    each_memory(|device, resource, stream| {
        for stream in [stream, StreamRef::LEGACY, StreamRef::PER_THREAD] {
            let buffer = DeviceBuffer::new(1000, stream, resource.clone()).unwrap();
            assert_eq!((buffer.stream(), buffer.device()), (stream, device.device()));
            assert!(buffer.resource().is_equal(&*resource) && !buffer.as_ptr().is_null());
            assert_eq!((buffer.len(), buffer.capacity(), buffer.is_empty()), (1000, 1000, false));
        }
    });
}

#[test]
fn an_empty_buffer_can_be_resized_reserved_and_shrunk() {
    each_memory(|_, resource, stream| {
        let mut buffer = DeviceBuffer::new(0, stream, resource).unwrap();
        assert!(buffer.as_ptr().is_null() && buffer.is_empty());
        buffer.shrink_to_fit(stream).unwrap();
        buffer.reserve(100, stream).unwrap();
        assert_eq!((buffer.len(), buffer.capacity()), (0, 100));
        let reserved = buffer.as_ptr();
        buffer.resize(50, stream).unwrap();
        assert_eq!((buffer.len(), buffer.capacity(), buffer.as_ptr()), (50, 100, reserved));
        buffer.resize(0, stream).unwrap();
        buffer.shrink_to_fit(stream).unwrap();
        assert_eq!((buffer.capacity(), buffer.as_ptr().is_null()), (0, true));
    });
}

#[test]
fn a_copy_has_the_contents_and_no_more_capacity_than_they_need() {
    each_memory(|_, resource, stream| {
        let mut buffer = DeviceBuffer::from_host(&pattern(1000), stream, resource.clone()).unwrap();
        buffer.resize(400, stream).unwrap();
        let copy = DeviceBuffer::copy_of(&buffer, StreamRef::LEGACY, resource).unwrap();
        assert_eq!((copy.len(), copy.capacity(), copy.stream()), (400, 400, StreamRef::LEGACY));
        assert_ne!(copy.as_ptr(), buffer.as_ptr());
        assert_eq!(copy.to_host::<u8>().unwrap(), pattern(400));
    });
}

#[test]
fn a_buffer_that_shrinks_keeps_its_block_until_it_is_told_to_fit() {
    each_memory(|_, resource, stream| {
        let mut buffer = DeviceBuffer::from_host(&pattern(1000), stream, resource).unwrap();
        let block = buffer.as_ptr();
        buffer.resize(999, stream).unwrap();
        assert_eq!((buffer.as_ptr(), buffer.capacity()), (block, 1000));
        buffer.shrink_to_fit(stream).unwrap();
        assert_ne!(buffer.as_ptr(), block);
        assert_eq!((buffer.capacity(), buffer.to_host::<u8>().unwrap()), (999, pattern(999)));
        buffer.resize(1000, stream).unwrap();
        assert_eq!(buffer.to_host::<u8>().unwrap()[..999], pattern(999));
    });
}

#[test]
fn alignments_are_kept_by_copies_and_moves_and_must_be_powers_of_two() {
    each_memory(|_, resource, stream| {
        for alignment in [1, 2, 64, 256, 1024, 1 << 20] {
            let buffer = DeviceBuffer::with_alignment(100, alignment, stream, resource.clone()).unwrap();
            assert_eq!(buffer.alignment(), alignment.max(256));
            let copy = DeviceBuffer::copy_of(&buffer, stream, resource.clone()).unwrap();
            assert_eq!(copy.alignment(), buffer.alignment());
            let moved = [copy];
            assert!(moved[0].as_ptr().is_aligned_to(alignment));
        }
        for wrong in [0, 3, 768] {
            let error =
                DeviceBuffer::with_alignment(1, wrong, stream, resource.clone()).map(drop).unwrap_err();
            let message = format!("alignment {wrong} is not a power of two; use 256, 512, 1024, …");
            assert_eq!((error.kind(), error.message()), (ErrorKind::InvalidArgument, message.as_str()));
        }
    });
}

#[test]
fn memory_that_the_device_does_not_reach_is_refused() {
    let device = SimDevice::new(SimConfig::h200());
    let resource = PageableHostMemoryResource::new(device.clone()).into_any();
    let errors = [
        DeviceBuffer::new(100, StreamRef::LEGACY, resource.clone()).map(drop).unwrap_err(),
        DeviceVec::<u32>::uninit(100, StreamRef::LEGACY, resource.clone()).map(drop).unwrap_err(),
        DeviceScalar::from_value(1_u8, StreamRef::LEGACY, resource).map(drop).unwrap_err(),
    ];
    for error in errors {
        assert_eq!((error.kind(), error.stack()), (ErrorKind::InvalidArgument, Some("host")));
        assert_eq!(
            error.message(),
            "only the host can access this memory; a buffer needs memory that the device can access, such as \
             cuda, managed or pinned memory; for a pool of host memory, call `set_access` before you make \
             its resource"
        );
    }
    assert_eq!(device.live_allocations(), 0);
}

#[test]
fn values_are_read_into_memory_that_was_not_initialised() {
    each_memory(|_, resource, stream| {
        let buffer = DeviceBuffer::from_host(&[1_u32, 2, 3], stream, resource).unwrap();
        let mut room = [std::mem::MaybeUninit::<u32>::uninit(); 2];
        assert_eq!(buffer.copy_to_uninit(&mut room).unwrap(), &[1, 2]);
        let mut room = vec![std::mem::MaybeUninit::<u8>::uninit(); 13];
        let error = buffer.copy_to_uninit(&mut room).unwrap_err();
        let message = "a copy of 13 bytes at offset 0 does not fit into a buffer of 12 bytes; resize the \
                       buffer first";
        assert_eq!((error.kind(), error.message()), (ErrorKind::InvalidArgument, message));
    });
}

#[test]
fn managed_memory_and_that_of_the_system_is_prefetched_and_other_memory_is_not() {
    each_memory(|device, resource, stream| {
        let moves = ["managed", "system"].contains(&&*resource.to_string());
        let mut buffer = DeviceBuffer::new(5000, stream, resource.clone()).unwrap();
        for (to, to_host) in [(PrefetchTo::Device, false), (PrefetchTo::Host, true)] {
            assert_eq!(buffer.prefetch(to).unwrap(), moves);
            let expected = moves.then_some((buffer.as_ptr(), 5000, to_host));
            assert_eq!(device.last_prefetch(), expected);
        }
        let mut vec = DeviceVec::<u64>::zeroed(100, stream, resource.clone()).unwrap();
        assert_eq!(vec.prefetch(PrefetchTo::Device).unwrap(), moves);
        assert_eq!(device.last_prefetch(), moves.then_some((vec.as_ptr(), 800, false)));
        let mut scalar = DeviceScalar::from_value(1_u32, stream, resource.clone()).unwrap();
        assert_eq!(scalar.prefetch(PrefetchTo::Device).unwrap(), moves);
        assert_eq!(device.last_prefetch(), moves.then_some((scalar.as_ptr(), 4, false)));
        let driver: &dyn Driver = &**device;
        // SAFETY: the range belongs to the scalar, which stays alive.
        let part = unsafe { crate::prefetch(driver, scalar.as_ptr(), 2, PrefetchTo::Host, stream) };
        assert_eq!(part.unwrap(), moves);
        // SAFETY: an empty range has no memory.
        let none = unsafe { crate::prefetch(driver, DevicePtr::NULL, 0, PrefetchTo::Host, stream) };
        assert!(!none.unwrap());
        assert!(!DeviceBuffer::new(0, stream, resource).unwrap().prefetch(PrefetchTo::Host).unwrap());
    });
}

#[test]
fn an_error_of_a_prefetch_is_not_hidden() {
    let bench = Bench::new(SimConfig::h200());
    let resource = ManagedMemoryResource::new(bench.device.clone());
    let mut buffer = DeviceBuffer::new(100, StreamRef::LEGACY, resource).unwrap();
    bench.device.set_faults(FaultPlan::nth_of(CallKind::MemPrefetch, 0, DriverError::INVALID_VALUE));
    let error = buffer.prefetch(PrefetchTo::Device).unwrap_err();
    assert_eq!((error.kind(), error.stack()), (ErrorKind::Driver, Some("managed")), "the memory is managed");
}

/// The type-erased buffer frees the same block, and knows which thread's stream it had.
#[test]
fn a_buffer_is_erased_in_place() {
    let device = SimDevice::new(SimConfig::h200());
    let buffer = std::thread::scope(|scope| {
        let make = || {
            let resource = CudaMemoryResource::new(device.clone());
            DeviceBuffer::from_host(&[1_u32, 2], StreamRef::PER_THREAD, resource).unwrap()
        };
        scope.spawn(make).join().unwrap()
    });
    let (ptr, resource) = (buffer.as_ptr(), buffer.resource().to_string());
    let erased: DeviceBuffer = buffer.into_any();
    assert!(erased.left_its_thread());
    assert_eq!((erased.as_ptr(), erased.resource().to_string()), (ptr, resource));
    assert_eq!(erased.to_host::<u32>().unwrap(), [1, 2]);
    drop(erased);
    assert_eq!((device.live_allocations(), device.violations()), (0, vec![]));
}
