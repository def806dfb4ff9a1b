//! Tests a reset of the context by another library (`cuDevicePrimaryCtxReset`, Numba's `cuda.close()`).
//! Resources made before it are lost: they release memory that outlives the context, and touch nothing else.
//! Resources made after it work.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use millpond_core::driver::{CaptureMode, HandleTypes, StreamFlags};
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Driver, DriverHandle, ErrorKind,
    Layout, StreamRef,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::memory_pool::MemoryPool;
use millpond_resources::{
    BinningLayer, CaptureScope, CudaAsyncMemoryResource, CudaAsyncOptions, CudaMemoryResource,
    FixedSizeLayer, ManagedMemoryResource, PagesMode, PoolLayer, registry,
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn device() -> Arc<SimDevice> {
    SimDevice::new(SimConfig::h200())
}

fn pool(driver: DriverHandle, pages: PagesMode) -> AnyResource {
    CudaMemoryResource::new(driver).layer(PoolLayer::new().pages(pages)).unwrap().into_any()
}

/// Takes memory on two streams, frees half of it, and moves blocks between them, so that there are events.
fn work(resource: &AnyResource, bytes: u64) {
    let driver = resource.driver();
    let streams = [(); 2].map(|()| driver.stream_create(StreamFlags::NON_BLOCKING).unwrap());
    let blocks = bytes / (64 * MIB);
    let mut taken = Vec::new();
    for i in 0..blocks {
        let stream = streams[i as usize % 2];
        taken.push((resource.allocate_bytes(64 * MIB, stream).unwrap(), stream));
    }
    for (ptr, stream) in taken.drain(..blocks as usize / 2) {
        // SAFETY: the block came from this resource with this size, and nothing uses it.
        unsafe { resource.deallocate_bytes(ptr, 64 * MIB, stream) };
    }
    for stream in streams {
        resource.allocate_bytes(100 * MIB, stream).unwrap();
        resource.allocate_bytes(5 * KIB, stream).unwrap();
    }
}

#[test]
fn issue_9_ten_resets_with_a_pool_of_10_gib_leave_the_devices_memory_where_it_was() {
    for pages in [PagesMode::Auto, PagesMode::Off] {
        let first = device();
        let mut driver = Arc::clone(&first);
        let free = driver.mem_get_info().unwrap().free;
        for round in 0..10 {
            let pool = pool(driver.clone(), pages);
            work(&pool, 10 * GIB);
            driver.reset_context();
            // Resources made before the reset are lost, and say why and what to do.
            let error = pool.allocate_bytes(20 * GIB, StreamRef::LEGACY).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
            assert!(error.to_string().contains("was reset") && error.to_string().contains("open the device"));
            assert!(!error.to_string().contains("restart"), "{error}");
            let late = pool.allocate_bytes(4 * KIB, StreamRef::LEGACY).unwrap_err();
            assert!(late.to_string().contains("was reset"), "{late}");
            driver = first.open_again();
            drop(pool);
            assert_eq!(driver.mem_get_info().unwrap().free, free, "round {round}");
            assert_eq!((first.live_allocations(), first.live_events()), (0, 0), "round {round}");
        }
        assert_eq!(first.violations(), []);
    }
}

#[test]
fn issue_9_a_lost_resource_frees_nothing_of_its_successors() {
    let old_device = device();
    let olds: Vec<AnyResource> = vec![
        CudaMemoryResource::new(old_device.clone()).into_any(),
        ManagedMemoryResource::new(old_device.clone()).into_any(),
        pool(old_device.clone(), PagesMode::Off),
        pool(old_device.clone(), PagesMode::Auto),
        CudaMemoryResource::new(old_device.clone())
            .layer(FixedSizeLayer::new().block_bytes(MIB))
            .unwrap()
            .into_any(),
    ];
    let layouts = [Layout::new(MIB), Layout::with_alignment(MIB, 4 * MIB).unwrap()];
    let mut blocks = Vec::new();
    for old in &olds {
        for layout in layouts {
            if let Ok(ptr) = old.allocate(layout, StreamRef::LEGACY) {
                blocks.push((old, ptr, layout));
            }
        }
    }
    assert!(blocks.len() >= 8);
    old_device.reset_context();
    let new_device = old_device.open_again();
    let new = CudaMemoryResource::new(new_device.clone()).into_any();
    let successors: Vec<_> = blocks
        .iter()
        .map(|(_, _, layout)| (new.allocate(*layout, StreamRef::LEGACY).unwrap(), *layout))
        .collect();
    assert!(
        blocks.iter().any(|(_, old, _)| successors.iter().any(|(new, _)| new == old)),
        "the same addresses"
    );
    assert!(olds.iter().all(|old| !old.is_equal(&*new)));
    for (old, ptr, layout) in blocks {
        // SAFETY: the block came from this resource with this layout, and nothing uses it.
        unsafe { old.deallocate(ptr, layout, StreamRef::LEGACY) };
    }
    drop(olds);
    for (ptr, layout) in successors {
        // SAFETY: the block came from this resource with this layout, and nothing uses it.
        unsafe { new.deallocate(ptr, layout, StreamRef::LEGACY) };
    }
    assert_eq!(new.statistics(), None, "each was there, and none a misuse");
    assert_eq!((new_device.live_allocations(), new_device.live_bytes()), (0, 0));
    assert_eq!(new_device.violations(), []);
}

#[test]
fn issue_9_a_lost_pool_without_calls_since_releases_what_outlives_the_context() {
    let first = device();
    let pool = pool(first.clone(), PagesMode::On);
    work(&pool, GIB);
    first.reset_context();
    let now = first.open_again();
    assert!(now.live_bytes() > GIB);
    drop(pool);
    assert_eq!((now.live_bytes(), now.live_allocations()), (0, 0));
    assert_eq!(now.violations(), []);
}

#[test]
fn issue_9_decay_trim_and_pressure_leave_a_lost_pool_alone() {
    let first = device();
    let layer = || PoolLayer::new().decay("1s".parse().unwrap());
    let lost = CudaMemoryResource::new(first.clone()).layer(layer()).unwrap();
    for _ in 0..4 {
        let stream = first.stream_create(StreamFlags::NON_BLOCKING).unwrap();
        let ptr = lost.allocate_bytes(GIB, stream).unwrap();
        // SAFETY: the block came from this resource with this size, and nothing uses it.
        unsafe { lost.deallocate_bytes(ptr, GIB, stream) };
    }
    first.reset_context();
    let now = first.open_again();
    for second in 0..20 {
        let _ = lost.decay_step(Duration::from_secs(second));
    }
    assert!(lost.trim(0).is_err());
    // The request needs all memory except the lost pool's. That pool is asked, and cannot answer.
    let pool = CudaMemoryResource::new(now.clone()).layer(layer()).unwrap();
    assert!(pool.allocate_bytes(now.mem_get_info().unwrap().total, StreamRef::LEGACY).is_err());
    let free = now.mem_get_info().unwrap().free;
    let ptr = pool.allocate_bytes(free / 4 * 3, StreamRef::LEGACY).unwrap();
    // SAFETY: the block came from this resource with this size, and nothing uses it.
    unsafe { pool.deallocate_bytes(ptr, free / 4 * 3, StreamRef::LEGACY) };
    drop((pool, lost));
    assert_eq!((now.live_bytes(), now.live_allocations()), (0, 0));
    assert_eq!(now.violations(), []);
}

#[test]
fn issue_9_the_registrys_default_is_a_new_one_after_a_reset() {
    let first = device();
    let id = first.device();
    let before = registry::get_per_device_resource(id).unwrap();
    before.allocate_bytes(MIB, StreamRef::LEGACY).unwrap();
    first.reset_context();
    let after = registry::get_per_device_resource(id).unwrap();
    assert!(!Arc::ptr_eq(&before, &after));
    assert!(Arc::ptr_eq(&after, &registry::get_per_device_resource(id).unwrap()), "and stays");
    after.allocate_bytes(MIB, StreamRef::LEGACY).unwrap();
    assert!(before.allocate_bytes(MIB, StreamRef::LEGACY).is_err());

    // A default that the program set is lost too, with its memory.
    let own = pool(first.open_again(), PagesMode::Auto);
    own.allocate_bytes(GIB, StreamRef::LEGACY).unwrap();
    registry::set_per_device_resource(id, own).unwrap();
    first.open_again().reset_context();
    let plain = registry::get_per_device_resource(id).unwrap();
    assert_eq!(plain.to_string(), "cuda");
    plain.allocate_bytes(MIB, StreamRef::LEGACY).unwrap();
    assert_eq!(first.live_bytes(), MIB, "the pool returned all memory that the reset left");
    assert_eq!(first.violations(), []);
}

#[test]
fn issue_9_layers_over_a_lost_pool_say_that_they_are_lost() {
    let first = device();
    let binning = pool(first.clone(), PagesMode::Auto).layer(BinningLayer::new()).unwrap().into_any();
    let ptr = binning.allocate_bytes(100 * KIB, StreamRef::LEGACY).unwrap();
    first.reset_context();
    let error = binning.allocate_bytes(3 * GIB, StreamRef::LEGACY).unwrap_err();
    assert!(error.to_string().contains("was reset"), "{error}");
    // SAFETY: the block came from this resource with this size, and nothing uses it.
    unsafe { binning.deallocate_bytes(ptr, 100 * KIB, StreamRef::LEGACY) };
    drop(binning);
    assert_eq!((first.live_bytes(), first.live_allocations()), (0, 0));
    assert_eq!(first.violations(), []);
}

/// Takes blocks, frees some, and captures in a scope if the stack has one. Returns the blocks and the scope
/// to free later.
fn use_all(stack: &AnyResource, device: &SimDevice) -> (Vec<DevicePtr>, Option<CaptureScope>) {
    let s = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    let take = || stack.allocate_bytes(3 * MIB, s).unwrap();
    // SAFETY: each block came from this stack with this size, once, and its uses are on the stream.
    let give = |ptr| unsafe { stack.deallocate_bytes(ptr, 3 * MIB, s) };
    let mut blocks: Vec<_> = (0..8).map(|_| take()).collect();
    blocks.drain(..4).for_each(give);
    device.begin_capture(s, CaptureMode::Relaxed).unwrap();
    give(blocks.remove(0));
    device.end_capture(s).unwrap();
    let scope = CaptureScope::of(stack).ok();
    if let Some(scope) = &scope {
        let opened = scope.begin(s).unwrap();
        let before = take();
        device.begin_capture(s, CaptureMode::Relaxed).unwrap();
        blocks.push(take());
        give(take());
        give(before);
        device.end_capture(s).unwrap();
        drop(opened);
    }
    (blocks, scope)
}

const PLAN: &str = "+plan:file=../testkit/plans/equal_1024.plan";

/// Each resource that may hold memory that outlives a context, alone and below one that holds memory itself.
#[test]
fn every_stack_gives_back_what_outlives_its_context() {
    let bases = ["cuda", "managed", "pinned_host", "system", "cuda_async", "cuda_async_view"];
    let layers = [
        "",
        "+pool",
        "+pool:pages=off",
        "+arena:size=64MiB",
        "+fixed_size:block_size=4MiB",
        "+binning:bins=4MiB",
        "+binning:bins=4MiB(cuda_async+pool)",
        "+capture_scopes",
        PLAN,
    ];
    let table = LayerTable::new(millpond_resources::LAYERS.iter().chain(millpond_plan::LAYERS).copied());
    for (base, layer) in bases.into_iter().flat_map(|base| layers.map(|layer| (base, layer))) {
        let text = format!("{base}{layer}");
        for frees_after in [false, true] {
            let first = device();
            let driver: DriverHandle = first.clone();
            // Some memory that the driver keeps for itself exists before.
            let Ok(spec) = text.parse::<StackSpec>() else { panic!("{text}") };
            let before = (first.used_bytes(), first.live_bytes());
            for round in 0..3 {
                let driver: DriverHandle = if round == 0 { driver.clone() } else { first.open_again() };
                let device = first.open_again();
                let stack = spec.build(&table, &driver).unwrap_or_else(|error| panic!("{text}: {error}"));
                let (blocks, scope) = use_all(&stack, &device);
                device.reset_context();
                // Only the resource that made a pool may free blocks that its user forgot.
                let passes_on = ["", "+capture_scopes", PLAN].contains(&layer);
                if frees_after || (passes_on && base != "cuda_async") {
                    for ptr in blocks {
                        // SAFETY: the block came from this stack with this size, once.
                        unsafe { stack.deallocate_bytes(ptr, 3 * MIB, StreamRef::LEGACY) };
                    }
                }
                drop((scope, stack));
                first.open_again().synchronize().unwrap();
                let after = (first.used_bytes(), first.live_bytes());
                assert_eq!(after, before, "{text}, freed after the reset: {frees_after}, round {round}");
            }
            assert_eq!(first.violations(), [], "{text}");
        }
    }
}

/// An imported pool and its opened blocks end with the context. Exported memory belongs to its exporter.
#[test]
#[cfg(unix)]
fn an_imported_pool_ends_with_its_context() {
    let first = device();
    let before = (first.used_bytes(), first.live_bytes());
    for is_freed in [true, false] {
        let driver: DriverHandle = first.open_again();
        let options = CudaAsyncOptions::default().handles(HandleTypes::POSIX_FD);
        let exporter = CudaAsyncMemoryResource::new(driver.clone(), options).unwrap();
        let ptr = exporter.allocate_bytes(MIB, StreamRef::LEGACY).unwrap();
        let fd = exporter.pool().export_fd().unwrap();
        // SAFETY: no work uses the block, and it is freed here before the exporter frees it.
        let imported = unsafe { MemoryPool::import_fd(driver, fd.as_fd()) }.unwrap();
        let open = || imported.import_pointer(&exporter.pool().export_pointer(ptr).unwrap()).unwrap();
        let blocks = [open(), open()];
        first.open_again().reset_context();
        for block in blocks {
            match is_freed {
                true => {
                    let error = block.free_on(StreamRef::LEGACY).unwrap_err();
                    assert!(error.to_string().contains("was reset"), "{error}");
                }
                false => drop(block),
            }
        }
        let error = imported.access(first.device()).unwrap_err();
        assert!(error.to_string().contains("was reset"), "{error}");
        drop(imported);
        // SAFETY: the block came from this resource with this size, and nothing uses it.
        unsafe { exporter.deallocate_bytes(ptr, MIB, StreamRef::LEGACY) };
        drop(exporter);
        assert_eq!((first.used_bytes(), first.live_bytes()), before, "freed: {is_freed}");
    }
    assert_eq!((first.live_allocations(), first.violations()), (0, vec![]));
}

/// A pool is not kept because it was current.
#[test]
fn a_current_pool_ends_with_its_user_after_a_reset() {
    let first = device();
    let before = first.live_bytes();
    for _ in 0..3 {
        let driver: DriverHandle = first.open_again();
        let stack = CudaAsyncMemoryResource::new(driver.clone(), Default::default()).unwrap();
        stack.pool().set_current().unwrap();
        let ptr = stack.allocate_bytes(MIB, StreamRef::LEGACY).unwrap();
        // SAFETY: the block came from this resource with this size, and nothing uses it.
        unsafe { stack.deallocate_bytes(ptr, MIB, StreamRef::LEGACY) };
        first.open_again().reset_context();
        drop(stack);
        assert_eq!((first.live_bytes(), first.live_allocations()), (before, 0));
    }
    assert_eq!(first.violations(), []);
}
