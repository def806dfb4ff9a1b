//! Tests that streams far behind the host keep the blocks that they free: which blocks, and for how long.

use std::sync::Arc;

use millpond_core::driver::StreamFlags;
use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Driver, StreamRef};
use millpond_driver::sim::{Access, SimConfig, SimDevice};
use millpond_resources::{CudaMemoryResource, PagesMode, PoolLayer, PoolMemoryResource};

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;

type Pool = PoolMemoryResource<CudaMemoryResource>;

fn setup(pages: PagesMode) -> (Arc<SimDevice>, Pool) {
    let device = SimDevice::new(SimConfig::h200());
    let layer = PoolLayer::new().pages(pages);
    let pool = CudaMemoryResource::new(device.clone()).layer(layer).expect("a pool is made");
    (device, pool)
}

fn stream(device: &SimDevice) -> StreamRef {
    device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream")
}

fn take(pool: &Pool, bytes: u64, stream: StreamRef) -> DevicePtr {
    pool.allocate_bytes(bytes, stream).expect("there is memory")
}

fn give(pool: &Pool, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
    // SAFETY: each test gives a block back once, with its size, and the device is simulated.
    unsafe { pool.deallocate_bytes(ptr, bytes, stream) };
}

/// Allocates a block, gives its stream a kernel of 10 ms, and frees the block while the kernel runs.
fn fall_behind(device: &SimDevice, pool: &Pool, bytes: u64, stream: StreamRef) {
    let ptr = take(pool, bytes, stream);
    device.launch_for(stream, &[Access::write(ptr, bytes, 1)], 10 * MS);
    give(pool, ptr, bytes, stream);
    device.advance(2 * MS);
}

#[test]
fn a_backlog_is_over_when_the_device_was_idle_for_long() {
    for is_behind in [false, true] {
        let (device, pool) = setup(PagesMode::On);
        let [first, second] = [(); 2].map(|()| stream(&device));
        let blocks: Vec<DevicePtr> = (0..32).map(|_| take(&pool, 64 * MIB, first)).collect();
        if is_behind {
            fall_behind(&device, &pool, 64 * MIB, second);
            let found = take(&pool, 40 * MIB, first);
            give(&pool, found, 40 * MIB, first);
        }
        blocks.into_iter().for_each(|ptr| give(&pool, ptr, 64 * MIB, first));
        device.synchronize().expect("the device is there");
        device.advance(60_000 * MS);
        let before = pool.pool_bytes();
        (0..32).for_each(|_| _ = take(&pool, 60 * MIB, second));
        let grew = pool.pool_bytes() - before;
        assert!(grew <= 128 * MIB, "behind at first: {is_behind}: it grew by {} MiB", grew / MIB);
        assert_eq!(device.take_violations(), []);
    }
}

#[test]
fn regions_make_room_again_after_a_backlog() {
    for is_behind in [false, true] {
        let (device, pool) = setup(PagesMode::Off);
        let stream = stream(&device);
        if is_behind {
            (1..4).for_each(|n| fall_behind(&device, &pool, n * 64 * MIB, stream));
        }
        device.synchronize().expect("the device is there");
        for n in 5..=20 {
            let ptr = take(&pool, n * 64 * MIB, stream);
            give(&pool, ptr, n * 64 * MIB, stream);
            device.synchronize().expect("the device is there");
            device.advance(1_000 * MS);
        }
        let held = pool.pool_bytes();
        assert!(held <= 2 * 20 * 64 * MIB, "behind at first: {is_behind}: it holds {} MiB", held / MIB);
    }
}

#[test]
fn small_blocks_do_not_break_the_large_hole_of_their_stream() {
    let (device, pool) = setup(PagesMode::On);
    let stream = stream(&device);
    // Enough that the pool may grow by a few pages before it saves memory.
    take(&pool, 2048 * MIB, stream);
    let hole = take(&pool, 1024 * MIB, stream);
    give(&pool, hole, 1024 * MIB, stream);
    let is_inside = |ptr: &DevicePtr| (hole.address()..hole.address() + 1024 * MIB).contains(&ptr.address());
    let sizes = (0..200).map(|n| 4096 + n * 64).chain([200 << 10, MIB]);
    let blocks: Vec<DevicePtr> = sizes.map(|bytes| take(&pool, bytes, stream)).collect();
    assert_eq!(blocks.iter().filter(|ptr| is_inside(ptr)).count(), 0);
    let grown = pool.statistics().expect("a pool counts").ladder.grow;
    assert!(grown < 20, "the small blocks lie in spans: {grown} growths");
}
