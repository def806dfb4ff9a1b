//! Tests a reset of the context by another library (`cuDevicePrimaryCtxReset`, Numba's `cuda.close()`):
//! resources made before it are lost, release what outlives the context and touch nothing else; resources
//! made after it work.

use std::sync::Arc;
use std::time::Duration;

use millpond_core::driver::StreamFlags;
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, Driver, DriverHandle, ErrorKind, Layout,
    StreamRef,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::{
    BinningLayer, CudaMemoryResource, FixedSizeLayer, ManagedMemoryResource, PagesMode, PoolLayer, registry,
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

/// Takes memory on two streams, gives half of it back, and crosses between them, so that there are events.
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
            // What was made before is lost, and says why and what to do.
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
    // All that the lost pool has not: it is asked, and cannot answer.
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

    // One's own default goes, too, with what it holds.
    let own = pool(first.open_again(), PagesMode::Auto);
    own.allocate_bytes(GIB, StreamRef::LEGACY).unwrap();
    registry::set_per_device_resource(id, own).unwrap();
    first.open_again().reset_context();
    let plain = registry::get_per_device_resource(id).unwrap();
    assert_eq!(plain.to_string(), "cuda");
    plain.allocate_bytes(MIB, StreamRef::LEGACY).unwrap();
    assert_eq!(first.live_bytes(), MIB, "the pool gave back what the reset left");
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
