//! Driver pools, and blocks of other processes.

use std::os::fd::{AsFd, OwnedFd};

use millpond::resources::memory_pool::{MemoryPool, MemoryPoolOptions, PoolReuse};
use millpond::resources::share::ImportedBlock;
use millpond::resources::{
    CudaAsyncMemoryResource, CudaAsyncOptions, CudaAsyncViewMemoryResource, CudaMemoryResource, PoolLayer,
    Share,
};
use millpond::{DeviceId, DeviceMemoryResourceExt, DevicePtr, Driver};
use millpond_core::driver::{
    AccessFlags, AccessLocation, CaptureMode, FabricHandle, HandleTypes, MemLocation,
};
use millpond_testkit::hooked::HookedDriver;

use super::bench::{Bench, MIB, Program, error, program};

fn exportable(bench: &Bench) -> MemoryPool {
    MemoryPool::new(bench.driver(), MemoryPoolOptions::new().handles(HandleTypes::POSIX_FD)).unwrap()
}

/// The pool as another process has it.
fn imported(bench: &Bench, pool: &MemoryPool) -> MemoryPool {
    bench.call(DeviceId::sim(9_999), "DEVICE");
    let driver = HookedDriver::in_another_process(bench.driver(), DeviceId::sim(9_999));
    // SAFETY: the programs free imported blocks first, or refuse to.
    unsafe { MemoryPool::import_fd(driver, pool.export_fd().unwrap().as_fd()) }.unwrap()
}

fn of_another_process(bench: &Bench, body: impl FnOnce(&MemoryPool) -> String) -> String {
    let pool = exportable(bench);
    body(&imported(bench, &pool))
}

pub(crate) const PROGRAMS: &[Program] = &[
    program(
        "a pool without handles is exported",
        |bench| error(MemoryPool::new(bench.driver(), MemoryPoolOptions::new()).unwrap().export_fd()),
        "invalid argument on DEVICE: the pool was made without file descriptors; make it with handles=fd",
    ),
    program(
        "a fabric handle of a pool with file descriptors",
        |bench| error(exportable(bench).export_fabric()),
        "invalid argument on DEVICE: the pool was made without fabric handles; make it with handles=fabric",
    ),
    program(
        "a block of a pool without handles is exported",
        |bench| {
            let pool = MemoryPool::new(bench.driver(), MemoryPoolOptions::new()).unwrap();
            error(pool.export_pointer(DevicePtr::new(4096)))
        },
        "invalid argument on DEVICE: the pool was made without handles for other processes; make it with \
         handles=fd or handles=fabric",
    ),
    program(
        "a fabric handle that names no pool is imported",
        |bench| {
            // SAFETY: nothing is imported.
            error(unsafe { MemoryPool::import_fabric(bench.driver(), &FabricHandle([0; 64])) })
        },
        "invalid argument on DEVICE: the handle names no pool that this device can reach; pass the 64 bytes \
         that `export_fabric` returned, while the exporter's pool exists: driver error on DEVICE: \
         cuMemPoolImportFromShareableHandle: CUDA_ERROR_INVALID_VALUE (1): the handle does not name a pool \
         of DEVICE",
    ),
    program(
        "the highs of an imported pool are reset",
        |bench| of_another_process(bench, |pool| error(pool.reset_used_high())),
        "not supported on DEVICE: an imported pool cannot count its memory; do this in the process that made \
         the pool",
    ),
    program(
        "a descriptor that names no pool is imported",
        |bench| {
            let (reader, _writer) = std::io::pipe().unwrap();
            // SAFETY: nothing is imported.
            error(unsafe { MemoryPool::import_fd(bench.driver(), reader.as_fd()) })
        },
        "invalid argument on DEVICE: the descriptor names no pool of this device; pass a descriptor that \
         `export_fd` returned: driver error on DEVICE: cuMemPoolImportFromShareableHandle: \
         CUDA_ERROR_INVALID_VALUE (1): Illegal seek (os error 29)",
    ),
    program(
        "a block of another pool is exported",
        |bench| {
            let ptr = bench.block(&bench.stack("cuda"), 1000);
            error(exportable(bench).export_pointer(ptr))
        },
        "invalid argument on DEVICE: P is in no block of this pool; export the block from the pool that \
         allocated it",
    ),
    program(
        "a block is imported into the pool that it is of",
        |bench| {
            let pool = exportable(bench);
            let resource = CudaAsyncViewMemoryResource::new(pool.clone()).unwrap();
            let ptr = resource.allocate_bytes(1000, bench.a).unwrap();
            error(pool.import_pointer(&pool.export_pointer(ptr).unwrap()))
        },
        "invalid argument on DEVICE: this process made the pool; import blocks into a pool that this \
         process imported",
    ),
    program(
        "a block is imported after it was freed",
        |bench| {
            let pool = exportable(bench);
            let resource = CudaAsyncViewMemoryResource::new(pool.clone()).unwrap();
            let ptr = resource.allocate_bytes(1000, bench.a).unwrap();
            let data = pool.export_pointer(ptr).unwrap();
            assert_eq!(bench.free(&resource, ptr, 1000), "");
            error(imported(bench, &pool).import_pointer(&data))
        },
        "invalid argument on DEVICE: the data describes no live block of the imported pool; export the block \
         again, from that pool: driver error on DEVICE: cuMemPoolImportPointer: CUDA_ERROR_INVALID_VALUE \
         (1): the allocation was freed",
    ),
    program(
        "an imported pool is to hand out blocks",
        |bench| of_another_process(bench, |pool| error(CudaAsyncViewMemoryResource::new(pool.clone()))),
        "not supported on DEVICE: an imported pool cannot allocate; do this in the process that made the \
         pool",
    ),
    program(
        "an imported pool is trimmed",
        |bench| of_another_process(bench, |pool| error(pool.trim(0))),
        "not supported on DEVICE: an imported pool cannot be trimmed; do this in the process that made the \
         pool",
    ),
    program(
        "an imported pool is to be the device's current one",
        |bench| of_another_process(bench, |pool| error(pool.set_current())),
        "not supported on DEVICE: an imported pool cannot be a device's current pool; do this in the \
         process that made the pool",
    ),
    program(
        "an imported block is freed by a graph",
        |bench| {
            let pool = exportable(bench);
            let resource = CudaAsyncViewMemoryResource::new(pool.clone()).unwrap();
            let ptr = resource.allocate_bytes(1000, bench.a).unwrap();
            bench.device.stream_synchronize(bench.a).unwrap();
            let block = imported(bench, &pool).import_pointer(&pool.export_pointer(ptr).unwrap()).unwrap();
            bench.device.begin_capture(bench.a, CaptureMode::Global).unwrap();
            error(block.free_on(bench.a))
        },
        "invalid argument on DEVICE: a block of another process cannot be freed by a graph; free it outside \
         the capture",
    ),
    program(
        "a pool of managed memory with handles",
        |bench| {
            let options = MemoryPoolOptions::new().managed().handles(HandleTypes::POSIX_FD);
            error(MemoryPool::new(bench.driver(), options))
        },
        "not supported on DEVICE: pools of managed memory cannot be exported; leave out the handles, or use \
         device memory",
    ),
    program(
        "a pool of host memory without a NUMA node, with handles",
        |bench| {
            let options = MemoryPoolOptions::new().location(MemLocation::Host);
            error(MemoryPool::new(bench.driver(), options.handles(HandleTypes::POSIX_FD)))
        },
        "not supported on DEVICE: pools of host memory on any NUMA node cannot be exported; leave out the \
         handles, or name a NUMA node, as in `numa=0`",
    ),
    program(
        "a pool with handles that the device has not",
        |bench| {
            let options = MemoryPoolOptions::new().handles(HandleTypes::WIN32);
            error(MemoryPool::new(bench.driver(), options))
        },
        "not supported on DEVICE: the device does not support pools with these handles; choose another kind \
         of handle, or none",
    ),
    program(
        "access for a device that is not there",
        |bench| error(exportable(bench).set_access(AccessFlags::ReadWrite, &[DeviceId::cuda(77)])),
        "invalid argument on DEVICE: one of the devices cannot access memory of DEVICE; name only devices \
         that cuDeviceCanAccessPeer allows: no device (DEVICE): cuMemPoolSetAccess: \
         CUDA_ERROR_INVALID_DEVICE (101): cuda:77 cannot use memory of DEVICE",
    ),
    program(
        "access of the host to device memory",
        |bench| error(exportable(bench).set_access(AccessFlags::ReadWrite, &[AccessLocation::Host])),
        "invalid argument on DEVICE: the driver refuses this access of the host to the pool; the host always \
         accesses pools of host memory, and never pools of device memory: not supported on DEVICE: \
         cuMemPoolSetAccess: CUDA_ERROR_NOT_SUPPORTED (801): the pool has no such access from the host",
    ),
    program(
        "a step of reuse that there is not",
        |_| error("follow/all".parse::<PoolReuse>()),
        "invalid argument: `all` is none of follow, opportunistic and internal; write for example \
         follow/opportunistic, or own",
    ),
    program(
        "initial bytes beyond the most of cuda_async",
        |bench| {
            let options = CudaAsyncOptions::default().initial_bytes(2 * MIB).maximum_bytes(Some(MIB));
            error(CudaAsyncMemoryResource::new(bench.driver(), options))
        },
        "invalid argument on DEVICE in `cuda_async:initial=2MiB,max=1MiB`: the initial size of 2MiB exceeds \
         the maximum of 1MiB; raise `max`",
    ),
    program(
        "half a description of a shared block",
        |bench| error(ImportedBlock::open(&bench.driver(), b"half", Vec::new())),
        "invalid argument: the description of the shared block is not valid: its first bytes are wrong; pass \
         on everything that the export returned",
    ),
    program(
        "a shared block without its descriptors",
        |bench| {
            let layer = PoolLayer::new().share(Share::Fd);
            let pool = CudaMemoryResource::new(bench.driver()).layer(layer).unwrap();
            let ptr = pool.allocate_bytes(MIB, bench.a).unwrap();
            let (description, _) = pool.export_block(ptr, MIB).unwrap().into_parts();
            error(ImportedBlock::open(&bench.driver(), &description, Vec::<OwnedFd>::new()))
        },
        "invalid argument: the description of the shared block is not valid: the number of its parts differs \
         from the number of descriptors; pass on everything that the export returned",
    ),
];
