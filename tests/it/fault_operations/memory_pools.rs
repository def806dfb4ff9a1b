//! The operations of `millpond-resources` on driver pools.

use std::os::fd::AsFd;

use millpond::resources::memory_pool::{GraphMemory, MemoryPool, MemoryPoolOptions, PoolReuse};
use millpond::resources::{
    CudaAsyncManagedMemoryResource, CudaAsyncMemoryResource, CudaAsyncOptions, CudaAsyncPinnedMemoryResource,
    CudaAsyncPinnedOptions, CudaAsyncViewMemoryResource,
};
use millpond::{DeviceId, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Result};
use millpond_core::driver::{
    AccessFlags, AccessLocation, HandleTypes, MemAllocationType, MemLocation, MemPoolPtrData, call,
};
use millpond_testkit::faults::{Act, Operation, Stage};
use millpond_testkit::hooked::HookedDriver;

use super::support::{act, on_stage, use_of};

fn pool(stage: &Stage) -> Result<MemoryPool> {
    MemoryPool::new(stage.driver(), MemoryPoolOptions::new().release_threshold(u64::MAX))
}

fn on_pool(stage: &Stage, mut body: impl FnMut(&MemoryPool) -> Result<()> + 'static) -> Result<Act> {
    let pool = pool(stage)?;
    act(move || body(&pool))
}

fn on_graphs(stage: &Stage, body: impl Fn(&GraphMemory) -> Result<()> + 'static) -> Result<Act> {
    let graphs = GraphMemory::of(stage.driver());
    act(move || body(&graphs))
}

fn exportable(stage: &Stage) -> Result<MemoryPool> {
    MemoryPool::new(stage.driver(), MemoryPoolOptions::new().handles(HandleTypes::POSIX_FD))
}

fn of_fabric(stage: &Stage) -> Result<MemoryPool> {
    MemoryPool::new(stage.driver(), MemoryPoolOptions::new().handles(HandleTypes::FABRIC))
}

/// A pool with one block, and the same pool as another process imports it.
struct Shared {
    resource: CudaAsyncViewMemoryResource,
    imported: MemoryPool,
    ptr: DevicePtr,
    data: MemPoolPtrData,
    stage: Stage,
}

const BYTES: u64 = 1 << 20;

fn import(stage: &Stage, pool: &MemoryPool) -> Result<MemoryPool> {
    let driver = HookedDriver::in_another_process(stage.driver(), DeviceId::sim(9_999));
    let fd = pool.export_fd()?;
    // SAFETY: the operations free imported blocks first.
    unsafe { MemoryPool::import_fd(driver, fd.as_fd()) }
}

impl Shared {
    fn new(stage: &Stage) -> Result<Self> {
        let pool = exportable(stage)?;
        let imported = import(stage, &pool)?;
        let resource = CudaAsyncViewMemoryResource::new(pool.clone())?;
        let ptr = resource.allocate_bytes(BYTES, stage.a())?;
        stage.driver().stream_synchronize(stage.a())?;
        let data = pool.export_pointer(ptr)?;
        Ok(Self { resource, imported, ptr, data, stage: stage.clone() })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the block came from this resource with this size, and its imports are freed.
        unsafe { self.resource.deallocate_bytes(self.ptr, BYTES, self.stage.a()) }
    }
}

fn on_shared(stage: &Stage, mut body: impl FnMut(&Shared) -> Result<()> + 'static) -> Result<Act> {
    let shared = Shared::new(stage)?;
    act(move || body(&shared))
}

/// Makes the default pool current again.
struct Current(Stage);

impl Drop for Current {
    fn drop(&mut self) {
        let default = MemoryPool::default_of(self.0.driver());
        drop(default.and_then(|default| default.set_current()));
    }
}

pub(crate) const OPERATIONS: &[Operation] = &[
    Operation::new("MemoryPool::new", |stage| {
        on_stage(stage, |stage| {
            let options = MemoryPoolOptions::new().release_threshold(5).reuse(PoolReuse::OWN_STREAM);
            MemoryPool::new(stage.driver(), options.handles(HandleTypes::POSIX_FD)).map(drop)
        })
    }),
    Operation::new("MemoryPool::default_of", |stage| {
        on_stage(stage, |stage| MemoryPool::default_of(stage.driver()).map(drop))
    }),
    Operation::new("MemoryPool::default_for", |stage| {
        on_stage(stage, |stage| {
            let at = MemLocation::Device;
            MemoryPool::default_for(stage.driver(), at, MemAllocationType::Pinned)?;
            MemoryPool::default_for(stage.driver(), at, MemAllocationType::Managed).map(drop)
        })
    }),
    Operation::new("MemoryPool::current_of", |stage| {
        on_stage(stage, |stage| MemoryPool::current_of(stage.driver()).map(drop))
    }),
    Operation::new("MemoryPool::set_current", |stage| {
        let (pool, restored) = (pool(stage)?, Current(stage.clone()));
        act(move || {
            let _ = &restored;
            pool.set_current()
        })
    }),
    Operation::new("MemoryPool::properties", |stage| {
        let pool = MemoryPool::default_of(stage.driver())?;
        act(move || pool.properties().map(drop))
    }),
    Operation::new("MemoryPool::trim", |stage| {
        let resource = CudaAsyncViewMemoryResource::new(pool(stage)?)?;
        on_stage(stage, move |stage| {
            use_of(&resource, stage)?;
            resource.pool().trim(0).map(drop)
        })
    }),
    Operation::new("MemoryPool::release_threshold", |stage| {
        on_pool(stage, |pool| pool.release_threshold().map(|bytes| assert_eq!(bytes, u64::MAX)))
    }),
    Operation::new("MemoryPool::set_release_threshold", |stage| {
        on_pool(stage, |pool| pool.set_release_threshold(5))
    }),
    Operation::new("MemoryPool::reserved_bytes", |stage| {
        on_pool(stage, |pool| pool.reserved_bytes().map(drop))
    }),
    Operation::new("MemoryPool::reserved_high", |stage| {
        on_pool(stage, |pool| pool.reserved_high().map(drop))
    }),
    Operation::new("MemoryPool::reset_reserved_high", |stage| {
        on_pool(stage, MemoryPool::reset_reserved_high)
    }),
    Operation::new("MemoryPool::used_bytes", |stage| on_pool(stage, |pool| pool.used_bytes().map(drop))),
    Operation::new("MemoryPool::used_high", |stage| on_pool(stage, |pool| pool.used_high().map(drop))),
    Operation::new("MemoryPool::reset_used_high", |stage| on_pool(stage, MemoryPool::reset_used_high)),
    Operation::new("MemoryPool::reuse", |stage| on_pool(stage, |pool| pool.reuse().map(drop))),
    Operation::new("MemoryPool::set_reuse", |stage| {
        on_pool(stage, |pool| {
            pool.set_reuse(PoolReuse::OWN_STREAM)?;
            assert_eq!(pool.reuse()?, PoolReuse::OWN_STREAM);
            Ok(())
        })
    }),
    Operation::with_peer("MemoryPool::access", |stage| {
        let peer = stage.peer().device();
        on_pool(stage, move |pool| {
            pool.access(peer)?;
            pool.access(AccessLocation::Host).map(drop)
        })
    }),
    Operation::with_peer("MemoryPool::set_access", |stage| {
        let peer = stage.peer().device();
        on_pool(stage, move |pool| pool.set_access(AccessFlags::ReadWrite, &[peer]))
    }),
    Operation::new("MemoryPool::export_fd", |stage| {
        let pool = exportable(stage)?;
        act(move || pool.export_fd().map(drop))
    }),
    Operation::new("MemoryPool::import_fd", |stage| {
        let pool = exportable(stage)?;
        on_stage(stage, move |stage| import(stage, &pool).map(drop))
    }),
    // A pool remembers that the driver permits no export, so each call has a new pool.
    Operation::new("MemoryPool::export_fabric", |stage| {
        on_stage(stage, |stage| of_fabric(stage)?.export_fabric().map(drop))
    }),
    Operation::new("MemoryPool::import_fabric", |stage| {
        on_stage(stage, |stage| {
            let pool = of_fabric(stage)?;
            let driver = HookedDriver::in_another_process(stage.driver(), DeviceId::sim(9_999));
            // SAFETY: nothing is imported from the pool.
            unsafe { MemoryPool::import_fabric(driver, &pool.export_fabric()?) }.map(drop)
        })
    }),
    Operation::new("MemoryPool::export_pointer", |stage| {
        on_shared(stage, |shared| shared.resource.pool().export_pointer(shared.ptr).map(drop))
    }),
    Operation::new("MemoryPool::import_pointer", |stage| {
        on_shared(stage, |shared| shared.imported.import_pointer(&shared.data).map(drop))
    }),
    Operation::new("ImportedAllocation::free_on", |stage| {
        on_shared(stage, |shared| {
            let block = shared.imported.import_pointer(&shared.data)?;
            let stage = &shared.stage;
            stage.device().read(block.device_pointer(), BYTES, stage.b());
            block.free_on(stage.b())?;
            // The handshake tells the exporter only then.
            call(&*stage.driver(), |driver| driver.stream_synchronize(stage.b()))
        })
    }),
    // --- The resources on top of them ---
    Operation::new("CudaAsyncMemoryResource::new", |stage| {
        on_stage(stage, |stage| {
            let options = CudaAsyncOptions::default()
                .initial_bytes(BYTES)
                .maximum_bytes(Some(8 * BYTES))
                .release_threshold(Some(0));
            use_of(&CudaAsyncMemoryResource::new(stage.driver(), options)?, stage)
        })
    }),
    Operation::new("CudaAsyncMemoryResource (a request during a capture)", |stage| {
        let resource = CudaAsyncMemoryResource::new(stage.driver(), CudaAsyncOptions::default())?;
        on_stage(stage, move |stage| {
            let device = stage.device();
            device.begin_capture(stage.a())?;
            let taken = resource.allocate_bytes(BYTES, stage.a());
            if let Ok(ptr) = taken {
                // SAFETY: the block came from this resource with this size, and nothing uses it.
                unsafe { resource.deallocate_bytes(ptr, BYTES, stage.a()) }
            }
            device.end_capture(stage.a());
            taken?;
            use_of(&resource, stage)
        })
    }),
    Operation::new("CudaAsyncViewMemoryResource::new", |stage| {
        let pool = pool(stage)?;
        on_stage(stage, move |stage| use_of(&CudaAsyncViewMemoryResource::new(pool.clone())?, stage))
    }),
    Operation::new("CudaAsyncViewMemoryResource::of_default", |stage| {
        on_stage(stage, |stage| use_of(&CudaAsyncViewMemoryResource::of_default(stage.driver())?, stage))
    }),
    Operation::new("CudaAsyncViewMemoryResource::of_current", |stage| {
        on_stage(stage, |stage| use_of(&CudaAsyncViewMemoryResource::of_current(stage.driver())?, stage))
    }),
    Operation::new("CudaAsyncManagedMemoryResource::new", |stage| {
        on_stage(stage, |stage| use_of(&CudaAsyncManagedMemoryResource::new(stage.driver())?, stage))
    }),
    Operation::new("CudaAsyncPinnedMemoryResource::new", |stage| {
        on_stage(stage, |stage| {
            let options = CudaAsyncPinnedOptions::default();
            use_of(&CudaAsyncPinnedMemoryResource::new(stage.driver(), options)?, stage)
        })
    }),
    Operation::new("GraphMemory::used_bytes", |stage| {
        on_graphs(stage, |graphs| graphs.used_bytes().map(drop))
    }),
    Operation::new("GraphMemory::used_high", |stage| on_graphs(stage, |graphs| graphs.used_high().map(drop))),
    Operation::new("GraphMemory::reserved_bytes", |stage| {
        on_graphs(stage, |graphs| graphs.reserved_bytes().map(drop))
    }),
    Operation::new("GraphMemory::reserved_high", |stage| {
        on_graphs(stage, |graphs| graphs.reserved_high().map(drop))
    }),
    Operation::new("GraphMemory::reset_highs", |stage| on_graphs(stage, GraphMemory::reset_highs)),
    Operation::new("GraphMemory::trim", |stage| on_graphs(stage, GraphMemory::trim)),
    Operation::new("CudaAsyncMemoryResource::memory_info", |stage| {
        let resource = CudaAsyncMemoryResource::new(stage.driver(), CudaAsyncOptions::default())?;
        act(move || resource.memory_info().map(drop))
    }),
];
