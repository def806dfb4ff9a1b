//! Blocks that are freed wrongly, and requests that no memory can serve.

use millpond::adaptors::tracking::Stacks;
use millpond::adaptors::{
    FallbackResourceAdaptor, LimitingLayer, StatisticsResourceAdaptor, TrackingResourceAdaptor,
};
use millpond::resources::{
    CallbackMemoryResource, CudaMemoryResource, HostResource, ManagedMemoryResource,
    PageableHostMemoryResource, PinnedHostMemoryResource, PoolLayer, PoolMemoryResource,
    SystemMemoryResource,
};
use millpond::{DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Driver, Layout, StreamRef};

use super::bench::{Bench, MIB, Program, error, program};

/// Frees a block once correctly, and then wrongly with these bytes.
fn freed_twice(bench: &Bench, stack: &str, bytes: u64) -> String {
    let resource = bench.stack(stack);
    let ptr = bench.block(&resource, bytes);
    assert_eq!(bench.free(&resource, ptr, bytes), "");
    bench.free(&resource, ptr, bytes)
}

/// Frees a block of 1000 bytes with another size.
fn freed_with(bench: &Bench, stack: &str, bytes: u64) -> String {
    let resource = bench.stack(stack);
    let ptr = bench.block(&resource, 1000);
    let told = bench.free(&resource, ptr, bytes);
    assert_eq!(bench.free(&resource, ptr, 1000), "", "it is as before");
    told
}

/// Frees a block of one stack in another stack.
fn freed_in_another(bench: &Bench, from: &str, to: &str) -> String {
    let (from, to) = (bench.stack(from), bench.stack(to));
    let ptr = bench.block(&from, 1000);
    bench.free(&to, ptr, 1000)
}

pub(crate) const POOLS: &[Program] = &[
    program(
        "a small block of a pool is freed twice",
        |bench| freed_twice(bench, "cuda+pool", 1000),
        "refused to deallocate P (1000 bytes, stream A) in `cuda+pool`: the block is free already; \
         deallocate each block once",
    ),
    program(
        "a large block of a pool is freed twice",
        |bench| freed_twice(bench, "cuda+pool", 9 * MIB),
        "refused to deallocate P (9437184 bytes, stream A) in `cuda+pool`: the block is free already; \
         deallocate each block once",
    ),
    program(
        "a block is freed twice and its region has gone back in between",
        |bench| {
            let pool = bench.stack("cuda+pool:pages=off");
            let ptr = bench.block(&pool, 1000);
            assert_eq!(bench.free(&pool, ptr, 1000), "");
            pool.trim(0).unwrap();
            bench.free(&pool, ptr, 1000)
        },
        "refused to deallocate P (1000 bytes, stream A) in `cuda+pool:pages=off`: no live block of this \
         resource starts there: the block is another resource's, or was freed before; free each block once, \
         on the resource that allocated it",
    ),
    program(
        "a pointer that no device has is freed in a pool",
        |bench| {
            let pool = bench.stack("cuda+pool");
            bench.free(&pool, DevicePtr::new(0x1234_5600), 1000)
        },
        "refused to deallocate 0x12345600 (1000 bytes, stream A) in `cuda+pool`: no live block of this \
         resource starts there: the block is another resource's, or was freed before; free each block once, \
         on the resource that allocated it",
    ),
    program(
        "a pointer into a block is freed",
        |bench| {
            let pool = bench.stack("cuda+pool");
            let ptr = pool.allocate_bytes(5000, bench.a).unwrap().offset(256);
            bench.call(ptr, "P");
            bench.free(&pool, ptr, 4744)
        },
        "refused to deallocate P (4744 bytes, stream A) in `cuda+pool`: no live block of this resource \
         starts there: the block is another resource's, or was freed before; free each block once, on the \
         resource that allocated it",
    ),
    program(
        "a block is freed with fewer bytes",
        |bench| freed_with(bench, "cuda+pool", 900),
        "refused to deallocate P (900 bytes, stream A) in `cuda+pool`: the block was allocated with 1000 \
         bytes; pass the same layout to both calls",
    ),
    program(
        "a block of a pool over regions is freed with more bytes",
        |bench| freed_with(bench, "cuda+pool:pages=off", 5000),
        "refused to deallocate P (5000 bytes, stream A) in `cuda+pool:pages=off`: the block was allocated \
         with 1000 bytes; pass the same layout to both calls",
    ),
    program(
        "a block of one pool is freed in another",
        |bench| freed_in_another(bench, "cuda+pool", "cuda+pool"),
        "refused to deallocate P (1000 bytes, stream A) in `cuda+pool`: no live block of this resource \
         starts there: the block is another resource's, or was freed before; free each block once, on the \
         resource that allocated it",
    ),
    program(
        "a block of plain CUDA is freed in a pool over regions",
        |bench| freed_in_another(bench, "cuda", "cuda+pool:pages=off"),
        "refused to deallocate P (1000 bytes, stream A) in `cuda+pool:pages=off`: no live block of this \
         resource starts there: the block is another resource's, or was freed before; free each block once, \
         on the resource that allocated it",
    ),
    program(
        "a peer is added to a pool without pages",
        |bench| {
            let cuda = CudaMemoryResource::new(bench.driver());
            let pool = cuda.layer(PoolLayer::new().pages(millpond::resources::PagesMode::Off)).unwrap();
            error(pool.add_peer(bench.peer.device()))
        },
        "not supported in `cuda+pool:pages=off`: the pool maps no pages, so its memory is plain memory; \
         enable peer access in the other device's context instead (cuCtxEnablePeerAccess, \
         cudaDeviceEnablePeerAccess)",
    ),
    program(
        "a device that is not there is to be a pool's peer",
        |bench| {
            let pool = CudaMemoryResource::new(bench.driver()).layer(PoolLayer::new()).unwrap();
            error(pool.add_peer(millpond::DeviceId::cuda(77)))
        },
        "invalid argument in `cuda+pool`: cuda:77 cannot use memory of DEVICE: cuda:77 does not exist, \
         or there is no direct path between the two (cuDeviceCanAccessPeer); name other devices, or copy \
         with cuMemcpyPeer, which needs no access",
    ),
    program(
        "a block of a pool that shares none is exported",
        |bench| {
            let pool = CudaMemoryResource::new(bench.driver()).layer(PoolLayer::new()).unwrap();
            let ptr = bench.block(&pool, 1000);
            error(pool.export_block(ptr, 1000))
        },
        "not supported in `cuda+pool`: the pool's memory cannot be exported; build the pool with share=fd",
    ),
    program(
        "a block that is free is exported",
        |bench| {
            let layer = PoolLayer::new().share(millpond::resources::Share::Fd);
            let pool: PoolMemoryResource<_> = CudaMemoryResource::new(bench.driver()).layer(layer).unwrap();
            let ptr = bench.block(&pool, 1000);
            assert_eq!(bench.free(&pool, ptr, 1000), "");
            error(pool.export_block(ptr, 1000))
        },
        "invalid argument in `cuda+pool:share=fd`: P is not a block of 1000 bytes from this pool; pass \
         the pointer that `allocate` returned, and the size that was requested",
    ),
];

pub(crate) const DIVIDERS: &[Program] = &[
    program(
        "a block of fixed_size is freed twice",
        |bench| freed_twice(bench, "cuda+fixed_size:block_size=64KiB", 1000),
        "refused to deallocate P (1000 bytes, stream A) in `cuda+fixed_size:block_size=64KiB`: the block is \
         free already; deallocate each block once",
    ),
    program(
        "a block of fixed_size is freed with the size of its slot",
        |bench| freed_with(bench, "cuda+fixed_size:block_size=64KiB", 65536),
        "refused to deallocate P (65536 bytes, stream A) in `cuda+fixed_size:block_size=64KiB`: the block \
         was allocated with 1000 bytes; pass the same layout to both calls",
    ),
    program(
        "a request exceeds the blocks of fixed_size",
        |bench| error(bench.stack("cuda+fixed_size:block_size=64KiB").allocate_bytes(100_000, bench.a)),
        "out of memory for 97.66KiB on stream A of DEVICE in `cuda+fixed_size:block_size=64KiB`: each \
         block has only 64KiB; raise block_size, or use binning for several sizes: freeing memory would not \
         help\n\
         \x20 request less at a time",
    ),
    program(
        "a request of fixed_size wants a large alignment",
        |bench| {
            let resource = bench.stack("cuda+fixed_size");
            error(resource.allocate(Layout::with_alignment(1000, 4096).unwrap(), bench.a))
        },
        "invalid argument for 1000B aligned to 4096 on stream A of DEVICE in `cuda+fixed_size`: blocks are \
         aligned to 256 bytes; for larger alignments, use a pool",
    ),
    program(
        "a block is freed with the size of another bin",
        |bench| freed_with(bench, "cuda+binning:bins=4KiB/64KiB", 60_000),
        "refused to deallocate P (60000 bytes, stream A) in `cuda+fixed_size:block_size=64KiB`: no live \
         block of this resource starts there: the block is another resource's, or was freed before; free \
         each block once, on the resource that allocated it",
    ),
    program(
        "a block of an arena is freed twice",
        |bench| freed_twice(bench, "cuda+arena:size=16MiB", 1000),
        "refused to deallocate P (1000 bytes, stream A) in `cuda+arena:size=16MiB`: the block is free \
         already; deallocate each block once",
    ),
    program(
        "a block from below an arena is freed in the arena",
        |bench| freed_in_another(bench, "cuda", "cuda+arena:size=16MiB"),
        "refused to deallocate P (1000 bytes, stream A) in `cuda+arena:size=16MiB`: no live block of this \
         resource starts there: the block is another resource's, or was freed before; free each block once, \
         on the resource that allocated it",
    ),
];

pub(crate) const BASES: &[Program] = &[
    program(
        "a block of plain CUDA is freed twice",
        |bench| freed_twice(bench, "cuda", 1000),
        "refused to deallocate P (1000 bytes, stream A) in `cuda`: no live block of this resource starts \
         there: the block is another resource's, or was freed before; free each block once, on the resource \
         that allocated it",
    ),
    program(
        "a pointer into a block of plain CUDA is freed",
        |bench| {
            let cuda = bench.stack("cuda");
            let ptr = cuda.allocate_bytes(5000, bench.a).unwrap().offset(512);
            bench.call(ptr, "P");
            bench.free(&cuda, ptr, 5000)
        },
        "refused to deallocate P (5000 bytes, stream A) in `cuda`: no live block of this resource starts \
         there: the block is another resource's, or was freed before; free each block once, on the resource \
         that allocated it",
    ),
    program(
        "a block of another device is freed in plain CUDA",
        |bench| {
            let other = CudaMemoryResource::new(bench.peer.clone());
            let ptr = bench.block(&other, 1000);
            bench.free(&bench.stack("cuda"), ptr, 1000)
        },
        "refused to deallocate P (1000 bytes, stream A) in `cuda`: no live block of this resource starts \
         there: the block is another resource's, or was freed before; free each block once, on the resource \
         that allocated it",
    ),
    program(
        "memory of the device is freed as pinned memory",
        |bench| freed_in_another(bench, "cuda", "pinned_host"),
        "refused to deallocate P (1000 bytes, stream A) in `pinned_host`: no live block of this resource \
         starts there: the block is another resource's, or was freed before; free each block once, on the \
         resource that allocated it",
    ),
    program(
        "pageable memory is freed twice",
        |bench| freed_twice(bench, "host", 1000),
        "refused to deallocate P (1000 bytes, stream A) in `host`: no live block of this resource starts \
         there: the block is another resource's, or was freed before; free each block once, on the resource \
         that allocated it",
    ),
    program(
        "pageable memory is freed with more bytes",
        |bench| freed_with(bench, "host", 1001),
        "refused to deallocate P (1001 bytes, stream A) in `host`: the block was allocated with 1000 bytes; \
         pass the same layout to both calls",
    ),
    program(
        "memory of `system` on one device is freed on another",
        |bench| {
            let other = SystemMemoryResource::new(bench.peer.clone()).unwrap();
            let ptr = bench.block(&other, 1000);
            let told = bench.free(&bench.stack("system"), ptr, 1000);
            assert_eq!(bench.free(&other, ptr, 1000), "");
            told
        },
        "refused to deallocate P (1000 bytes, stream A) in `system`: the block belongs to another device; \
         free it on the resource that allocated it",
    ),
    program(
        "pageable memory is freed as managed memory",
        |bench| {
            let host = PageableHostMemoryResource::new(bench.driver());
            let ptr = bench.block(&host, 1000);
            let told = bench.free(&ManagedMemoryResource::new(bench.driver()), ptr, 1000);
            assert_eq!(bench.free(&host, ptr, 1000), "");
            told
        },
        "refused to deallocate P (1000 bytes, stream A) in `managed`: no live block of this resource starts \
         there: the block is another resource's, or was freed before; free each block once, on the resource \
         that allocated it",
    ),
    program(
        "an allocator for the host over memory of the device",
        |bench| error(HostResource::new(bench.stack("cuda+pool"))),
        "invalid argument: the host cannot access the memory of `cuda+pool`; build the stack on `host`, \
         `pinned_host`, `managed` or `system`",
    ),
    program(
        "system memory where the device does not reach it",
        |_| {
            let config = millpond::driver::sim::SimConfig::h200().without_pageable_access();
            let device = millpond::driver::sim::SimDevice::new(config);
            let id = device.device().to_string();
            error(SystemMemoryResource::new(device)).replace(&id, "DEVICE")
        },
        "not supported: DEVICE cannot access pageable host memory; use `managed` or `pinned_host` instead",
    ),
    program(
        "a function of a callback resource returns memory that is not aligned",
        |bench| {
            let allocate = |_: Layout, _: StreamRef| Ok(DevicePtr::new(0x1234));
            // SAFETY: the call breaks the contract on purpose, and nothing uses the memory.
            let resource = unsafe { CallbackMemoryResource::new(bench.driver(), allocate, |_, _, _| {}) };
            error(resource.allocate_bytes(1000, bench.a))
        },
        "invalid argument for 1000B on stream A of DEVICE in `callback`: the function returned 0x1234, but \
         the address must be a multiple of 256 bytes",
    ),
];

pub(crate) const CUDA_ASYNC: &[Program] = &[
    program(
        "a block of cuda_async is freed twice",
        |bench| freed_twice(bench, "cuda_async", 1000),
        "refused to deallocate P (1000 bytes, stream A) in `cuda_async`: no live block of this resource \
         starts there: the block is another resource's, or was freed before; free each block once, on the \
         resource that allocated it",
    ),
    program(
        "a block of cuda_async is freed with fewer bytes",
        |bench| freed_with(bench, "cuda_async", 1),
        "refused to deallocate P (1 bytes, stream A) in `cuda_async`: the block was allocated with 1000 \
         bytes; pass the same layout to both calls",
    ),
    program(
        "a block is freed on a stream that was destroyed",
        |bench| {
            let resource = bench.stack("cuda_async");
            let ptr = bench.block(&resource, 1000);
            // SAFETY: the stream is the bench's own.
            unsafe { bench.device.stream_destroy(bench.a) }.unwrap();
            bench.free(&resource, ptr, 1000)
        },
        "deallocated P (1000 bytes, stream A) in `cuda_async`: the stream was destroyed before the call, so \
         the block becomes free only after all work on the device has ended; pass a stream that is alive and \
         is ordered after the block's uses",
    ),
    program(
        "a block is freed after its pool is gone, in a new one",
        |bench| {
            let gone = bench.stack("cuda_async");
            let ptr = bench.block(&gone, 1000);
            drop(gone);
            bench.free(&bench.stack("cuda_async"), ptr, 1000)
        },
        "refused to deallocate P (1000 bytes, stream A) in `cuda_async`: no live block of this resource \
         starts there: the block is another resource's, or was freed before; free each block once, on the \
         resource that allocated it",
    ),
    program(
        "a block of plain CUDA is freed in a view of the default pool",
        |bench| freed_in_another(bench, "cuda", "cuda_async_view"),
        "refused to deallocate P (1000 bytes, stream A) in `cuda_async_view`: no live block of this resource \
         starts there: the block is another resource's, or was freed before; free each block once, on the \
         resource that allocated it",
    ),
    program(
        "a request exceeds the most of cuda_async",
        |bench| error(bench.stack("cuda_async:max=32MiB").allocate_bytes(64 * MIB, bench.a)),
        "out of memory for 64MiB on stream A of DEVICE in `cuda_async:max=32MiB`: the request is larger than \
         the pool's maximum; raise the maximum: 32MiB more is needed\n\
         \x20 this would have helped:\n\
         \x20 - raise the maximum by 32MiB\n\
         \x20 the maximum is 32MiB; the device has 256MiB free of 256MiB\n\
         \x20 caused by: cuMemAllocFromPoolAsync: CUDA_ERROR_OUT_OF_MEMORY (2): the pool holds at most \
         33554432 bytes",
    ),
];

pub(crate) const ADAPTORS: &[Program] = &[
    program(
        "a block that is tracked is freed twice",
        |bench| freed_twice(bench, "cuda+tracking", 1000),
        "refused to deallocate P (1000 bytes, stream A) in `cuda+tracking`: no live block of this resource \
         starts there: the block is another resource's, or was freed before; free each block once, on the \
         resource that allocated it",
    ),
    program(
        "a block that is tracked is freed with fewer bytes",
        |bench| freed_with(bench, "cuda+tracking", 10),
        "refused to deallocate P (10 bytes, stream A) in `cuda+tracking`: the block was allocated with 1000 \
         bytes; pass the same layout to both calls",
    ),
    program(
        "a block that was taken below the tracking is freed above it",
        |bench| {
            let cuda = CudaMemoryResource::new(bench.driver());
            let ptr = bench.block(&cuda, 1000);
            bench.free(&TrackingResourceAdaptor::new(cuda, Stacks::Off), ptr, 1000)
        },
        "refused to deallocate P (1000 bytes, stream A) in `cuda+tracking`: no live block of this resource \
         starts there: the block is another resource's, or was freed before; free each block once, on the \
         resource that allocated it",
    ),
    program(
        "a request exceeds the limit",
        |bench| {
            let limited =
                CudaMemoryResource::new(bench.driver()).layer(LimitingLayer::new(10 * MIB)).unwrap();
            bench.block(&limited, 8 * MIB);
            error(limited.allocate_bytes(4 * MIB, bench.a))
        },
        "out of memory for 4MiB on stream A of DEVICE in `cuda+limiting:limit=10MiB`: the maximum (`limit`) \
         is 10MiB and 8MiB are in use; free blocks, or raise it; the layer below was not asked: 2MiB more is \
         needed\n\
         \x20 this is needed:\n\
         \x20 - raise the maximum by 2MiB\n\
         \x20 8MiB are in use; the maximum is 10MiB",
    ),
    program(
        "a pointer behind the start of an aligned block is freed",
        |bench| {
            let resource = bench.stack("cuda+pool+aligned:alignment=4KiB");
            let ptr = resource.allocate_bytes(1000, bench.a).unwrap().offset(256);
            bench.call(ptr, "P");
            bench.free(&resource, ptr, 1000)
        },
        "refused to deallocate P (1000 bytes, stream A) in `cuda+pool`: no live block of this resource \
         starts there: the block is another resource's, or was freed before; free each block once, on the \
         resource that allocated it",
    ),
    program(
        "a block of the fallback is freed twice",
        |bench| {
            let resource = bench.stack("cuda+pool:max=2MiB+fallback:to=(cuda+pool)");
            let ptr = bench.block(&resource, 16 * MIB);
            assert_eq!(bench.free(&resource, ptr, 16 * MIB), "");
            bench.free(&resource, ptr, 16 * MIB)
        },
        "refused to deallocate P (16777216 bytes, stream A) in `cuda+pool:max=2MiB`: no live block of this \
         resource starts there: the block is another resource's, or was freed before; free each block once, \
         on the resource that allocated it",
    ),
    program(
        "a fallback on another device",
        |bench| {
            let fallback = PinnedHostMemoryResource::new(bench.peer.clone());
            error(FallbackResourceAdaptor::new(CudaMemoryResource::new(bench.driver()), fallback))
        },
        "invalid argument: the fallback allocates on PEER, but the resource below on DEVICE; use two \
         resources of one device",
    ),
    program(
        "more levels of counters are popped than were pushed",
        |bench| {
            let counted = StatisticsResourceAdaptor::new(CudaMemoryResource::new(bench.driver()));
            counted.push_counters();
            counted.pop_counters().unwrap();
            error(counted.pop_counters())
        },
        "invalid argument: the last level of counters cannot be popped; push one before each pop",
    ),
];

pub(crate) const REQUESTS: &[Program] = &[
    program(
        "an alignment of 48 bytes",
        |_| error(Layout::with_alignment(1000, 48)),
        "invalid argument: alignment 48 is not a power of two; use 256, 512, 1024, …",
    ),
    program(
        "a size that overflowed to nearly 2^64",
        |bench| error(bench.stack("cuda+pool").allocate_bytes(u64::MAX - 3, bench.a)),
        "out of memory for 16.00EiB on stream A of DEVICE in `cuda+pool`: no device has so much memory; \
         check the size for an overflow: freeing memory would not help\n\
         \x20 request less at a time",
    ),
    program(
        "an array whose bytes overflow",
        |_| error(Layout::array::<u64>(u64::MAX / 2)),
        "out of memory for 16.00EiB: 9223372036854775807 elements of 8 bytes are more than an address space \
         holds; check the number for an overflow: freeing memory would not help\n\
         \x20 request less at a time",
    ),
    program(
        "a request exceeds the device",
        |bench| error(bench.stack("cuda").allocate_bytes(1 << 40, bench.a)),
        "out of memory for 1TiB on stream A of DEVICE in `cuda`: the request is larger than the device's \
         memory\n\
         \x20 the device has 256MiB in all: request less at a time, or use managed memory if the device \
         has it\n\
         \x20 the device has 256MiB free of 256MiB\n\
         \x20 caused by: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): 1099511627776 bytes requested; 268435456 \
         of 268435456 bytes free",
    ),
];
