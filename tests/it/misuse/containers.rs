//! Containers that are used wrongly, captures that calls would break, and lost devices.

use std::sync::Arc;

use millpond::containers::{
    DeviceBuffer, DeviceScalar, DeviceVec, Event, HostAllocator, HostStaging, Stream, StreamPool,
    percent_of_free_device_memory,
};
use millpond::driver::sim::{FaultPlan, SimConfig, SimDevice};
use millpond::resources::{CudaMemoryResource, PageableHostMemoryResource};
use millpond::{DeviceMemoryResourceExt, Driver, DriverError};
use millpond_core::driver::{CaptureMode, EventFlags, StreamFlags};

use super::bench::{Bench, MIB, Program, error, program};

fn cuda(bench: &Bench) -> CudaMemoryResource {
    CudaMemoryResource::new(bench.driver())
}

fn buffer(bench: &Bench, bytes: u64) -> DeviceBuffer<CudaMemoryResource> {
    DeviceBuffer::new(bytes, bench.a, cuda(bench)).unwrap()
}

/// Does something while stream A captures a graph.
fn capturing<T>(bench: &Bench, body: impl FnOnce() -> T) -> T {
    bench.device.begin_capture(bench.a, CaptureMode::Global).unwrap();
    body()
}

pub(crate) const CONTAINERS: &[Program] = &[
    program(
        "more data than the buffer holds",
        |bench| error(buffer(bench, 10).copy_from_host(&[0_u32; 4])),
        "invalid argument: a copy of 16 bytes at offset 0 does not fit into a buffer of 10 bytes; resize the \
         buffer first",
    ),
    program(
        "bytes that are no whole number of values",
        |bench| error(buffer(bench, 10).to_host::<u32>()),
        "invalid argument: 10 bytes are not a whole number of values of 4 bytes; resize the buffer, or read \
         values of another type",
    ),
    program(
        "values without a size",
        |bench| error(buffer(bench, 10).to_host::<[u8; 0]>()),
        "invalid argument: values without a size cannot be copied; read another type",
    ),
    program(
        "a buffer over memory that the device does not reach",
        |bench| error(DeviceBuffer::new(10, bench.a, PageableHostMemoryResource::new(bench.driver()))),
        "invalid argument in `host`: only the host can access this memory; a buffer needs memory that \
         the device can access, such as cuda, managed or pinned memory; for a pool of host memory, call \
         `set_access` before you make its resource",
    ),
    program(
        "a copy between devices of two machines",
        |bench| {
            let elsewhere = SimDevice::new(SimConfig::h200());
            bench.call(elsewhere.device(), "ELSEWHERE");
            let resource = CudaMemoryResource::new(elsewhere);
            error(DeviceBuffer::copy_of(&buffer(bench, 10), millpond::StreamRef::LEGACY, resource))
        },
        "invalid argument: a buffer of DEVICE cannot be copied to ELSEWHERE directly; copy through the host",
    ),
    program(
        "staging memory of another device",
        |bench| {
            let staging = HostStaging::new(bench.peer.clone());
            error(buffer(bench, 10).copy_from_host_async(&[1_u8], &staging))
        },
        "invalid argument: the staging memory belongs to PEER, but the buffer is on DEVICE; make staging \
         memory for that device",
    ),
    program(
        "room for fewer values than were copied",
        |bench| {
            let staging = HostStaging::new(bench.driver());
            error(buffer(bench, 16).copy_to_host_async::<u32>(&staging).unwrap().wait_into(&mut [0; 3]))
        },
        "invalid argument: the copy has length 4, but the slice has length 3; pass a slice of the same \
         length as the copy",
    ),
    program(
        "a value behind the end of a vector",
        |bench| error(DeviceVec::from_host(&[1_u8, 2, 3], bench.a, cuda(bench)).unwrap().get(3)),
        "invalid argument: index 3 is outside of the vector, whose length is 3; resize the vector first",
    ),
    program(
        "the first value of an empty vector",
        |bench| error(DeviceVec::<u8, _>::uninit(0, bench.a, cuda(bench)).unwrap().first()),
        "invalid argument: index 0 is outside of the vector, whose length is 0; resize the vector first",
    ),
    program(
        "a vector of a buffer whose bytes are no whole number of values",
        |bench| error(DeviceVec::<u64, _>::from_buffer(buffer(bench, 12))),
        "invalid argument: 12 bytes aligned to 256 are not a whole number of values of 8 bytes aligned to \
         8; make the buffer with that size and alignment",
    ),
    program(
        "a vector that grows beyond any address space",
        |bench| {
            let mut vec = DeviceVec::<u64, _>::uninit(1, bench.a, cuda(bench)).unwrap();
            error(vec.resize(usize::MAX, bench.a))
        },
        "out of memory for 16.00EiB: 18446744073709551615 elements of 8 bytes are more than an address space \
         holds; check the number for an overflow: freeing memory would not help\n\
         \x20 request less at a time",
    ),
    program(
        "a wait for an event that was never recorded",
        |bench| {
            let event = Event::new(bench.driver(), EventFlags::default()).unwrap();
            error(Stream::new(bench.driver(), StreamFlags::NON_BLOCKING).unwrap().wait(&event))
        },
        "invalid argument: a stream cannot wait for an event that was never recorded; record it first",
    ),
    program(
        "a pool without streams",
        |bench| error(StreamPool::new(bench.driver(), 0, StreamFlags::NON_BLOCKING)),
        "invalid argument: a pool of 0 streams cannot lend a stream; use 1 or more",
    ),
    program(
        "150 percent of the free memory",
        |_| error(percent_of_free_device_memory(150.0)),
        "invalid argument: 150 is not a percentage of free memory; use one from 0 to 100",
    ),
    program(
        "a collection of the host over memory of the device",
        |bench| error(HostAllocator::new(cuda(bench).into_any())),
        "invalid argument: the host cannot access the memory of `cuda`; build the stack on `host`, \
         `pinned_host`, `managed` or `system`",
    ),
];

pub(crate) const CAPTURES: &[Program] = &[
    program(
        "a buffer is read while its stream captures a graph",
        |bench| {
            let buffer = buffer(bench, 16);
            capturing(bench, || error(buffer.to_host::<u32>()))
        },
        "driver error on DEVICE in `cuda`: this call is not possible while a graph is being captured; make \
         the call before the capture begins, or after the capture ends (pool:initial=… reserves memory for \
         the graph in advance): cuStreamSynchronize: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (900): \
         cuStreamSynchronize is refused while a graph is captured",
    ),
    program(
        "a copy through staging memory while its stream captures a graph",
        |bench| {
            let (mut buffer, staging) = (buffer(bench, 16), HostStaging::new(bench.driver()));
            capturing(bench, || error(buffer.copy_from_host_async(&[1_u8], &staging)))
        },
        "invalid argument: a copy through staging memory cannot be a part of a graph; make the copy before \
         the capture begins, or after the capture ends",
    ),
    program(
        "a pool is to wait for the stream that captures a graph",
        |bench| {
            let pool = bench.stack("cuda+pool:max=8MiB");
            let ptr = pool.allocate_bytes(8 * MIB, bench.b).unwrap();
            // SAFETY: the block came from this pool with this size, and nothing uses it.
            unsafe { pool.deallocate_bytes(ptr, 8 * MIB, bench.b) };
            bench.device.launch_for(bench.b, &[], 1 << 40);
            capturing(bench, || error(pool.allocate_bytes(8 * MIB, bench.a)))
        },
        "out of memory for 8MiB on stream A of DEVICE in `cuda+pool:max=8MiB`: 8MiB more is needed\n\
         \x20 any of these would have helped:\n\
         \x20 - allocate outside the capture: the resource can then wait for stream B, whose free block of \
         8MiB fits\n\
         \x20 - raise the maximum by 8MiB\n\
         \x20 the resource holds 8MiB: 0B in use in 0 blocks, 8MiB free, largest free block 8MiB; the \
         maximum is 8MiB; the device has 248MiB free of 256MiB\n\
         \x20 free for stream B: 8MiB in 1 block, the largest 8MiB\n\
         \x20 [................................................................................] #: in use, \
         +: partly, .: free",
    ),
    program(
        "cuda_async has too little memory for a stream that captures a graph",
        |bench| {
            let resource = bench.stack("cuda_async:max=8MiB");
            let _taken = resource.allocate_bytes(8 * MIB, bench.b).unwrap();
            capturing(bench, || error(resource.allocate_bytes(MIB, bench.a)))
        },
        "out of memory for 1MiB on stream A of DEVICE in `cuda_async:max=8MiB`: a capturing stream cannot \
         wait for other streams; allocate outside the capture: 1MiB more is needed\n\
         \x20 this would have helped:\n\
         \x20 - raise the maximum by 1MiB\n\
         \x20 the resource holds 8MiB: 8MiB in use in 1 block, 0B free; the maximum is 8MiB; the device has \
         248MiB free of 256MiB\n\
         \x20 caused by: cuMemAllocFromPoolAsync: CUDA_ERROR_OUT_OF_MEMORY (2): the pool holds at most \
         8388608 bytes",
    ),
    program(
        "a scalar is read after a kernel touched an illegal address",
        |bench| {
            let scalar = DeviceScalar::from_value(1_u8, bench.a, cuda(bench)).unwrap();
            bench.device.set_faults(FaultPlan::nth_call(0, DriverError::ILLEGAL_ADDRESS));
            error(scalar.value())
        },
        "poisoned on DEVICE in `cuda`: this process can no longer use the device; restart the process: \
         cuMemcpyDtoHAsync: CUDA_ERROR_ILLEGAL_ADDRESS (700): the fault plan fails this call",
    ),
    program(
        "a request after the device was lost",
        |bench| {
            let pool = bench.stack("cuda+pool");
            bench.device.set_faults(FaultPlan::nth_call(0, DriverError::ECC_UNCORRECTABLE));
            assert!(pool.allocate_bytes(1000, bench.a).is_err());
            error(pool.allocate_bytes(1000, bench.a))
        },
        "poisoned for 1000B on stream A of DEVICE in `cuda+pool`: after an earlier driver error, this \
         process can no longer use the device; restart the process",
    ),
    program(
        "a buffer is written after a reset of the context",
        |bench| {
            let mut buffer = buffer(bench, 16);
            bench.device.reset_context();
            error(buffer.copy_from_host(&[1_u8]))
        },
        "poisoned on DEVICE in `cuda`: the device's context was reset (cuDevicePrimaryCtxReset, \
         cudaDeviceReset, Numba's cuda.close()), and everything made before the reset is lost; open the \
         device again, and make new resources and streams: cuMemcpyHtoDAsync: \
         CUDA_ERROR_CONTEXT_IS_DESTROYED (709)",
    ),
    program(
        "an operation that the driver does not permit",
        |bench| {
            let pool = Arc::new(bench.stack("cuda"));
            bench.device.set_faults(FaultPlan::nth_call(1, DriverError::NOT_PERMITTED));
            error(pool.allocate_bytes(1000, bench.a))
        },
        "driver error for 1000B on stream A of DEVICE in `cuda`: cuMemAlloc: CUDA_ERROR_NOT_PERMITTED \
         (800): the fault plan fails this call",
    ),
];
