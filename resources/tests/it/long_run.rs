//! Tests the memory of a pool over pages after many passes, and that a quiet pool gives excess back.

use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::{CudaMemoryResource, PoolLayer, PoolMemoryResource};
use millpond_testkit::Rng;

const MIB: u64 = 1 << 20;
const STREAM: StreamRef = StreamRef::LEGACY;

type TestPool = PoolMemoryResource<CudaMemoryResource>;

fn pool(layer: PoolLayer) -> TestPool {
    CudaMemoryResource::new(SimDevice::new(SimConfig::h200())).layer(layer).expect("a pool")
}

fn allocate(pool: &TestPool, bytes: u64) -> (DevicePtr, u64) {
    (pool.allocate_bytes(bytes, STREAM).expect("there is room"), bytes)
}

fn free(pool: &TestPool, (ptr, bytes): (DevicePtr, u64)) {
    // SAFETY: the block came from the pool with this size and is freed once.
    unsafe { pool.deallocate_bytes(ptr, bytes, STREAM) };
}

/// One pass of a job: about 2 GiB are live while blocks of many sizes come and go; then all go.
fn pass(pool: &TestPool, seed: u64) {
    let mut random = Rng::new(seed);
    let (mut blocks, mut live) = (Vec::new(), 0);
    for _ in 0..1500 {
        let bytes = (1 + random.below(64)) * MIB + random.below(MIB);
        while live + bytes > 2048 * MIB {
            let block: (DevicePtr, u64) = blocks.swap_remove(random.below(blocks.len() as u64) as usize);
            live -= block.1;
            free(pool, block);
        }
        live += bytes;
        blocks.push(allocate(pool, bytes));
    }
    blocks.into_iter().for_each(|block| free(pool, block));
}

fn ratio(pool: &TestPool) -> f64 {
    let statistics = pool.statistics().expect("a pool keeps statistics");
    statistics.peak_bytes_reserved as f64 / statistics.peak_bytes_in_use as f64
}

/// A repeated job needs hardly more memory than the first time.
#[test]
fn the_fortieth_pass_takes_little_more_than_what_is_live() {
    if cfg!(miri) {
        return; // too many steps
    }
    let pool = pool(PoolLayer::new());
    (0..40).for_each(|seed| pass(&pool, seed % 4));
    let taken = ratio(&pool);
    println!("taken / live {taken:.4}");
    assert!(taken < 1.12, "{taken}");
    pool.validate();
}

/// If stitching costs more driver calls than the pool earns, it takes memory, and counts how much.
#[test]
fn what_is_taken_beyond_the_slack_is_counted() {
    if cfg!(miri) {
        return; // too many steps
    }
    let pool = pool(PoolLayer::new());
    let beyond = || {
        let statistics = pool.statistics().expect("a pool keeps statistics");
        let above = statistics.peak_bytes_reserved - statistics.peak_bytes_in_use;
        (statistics.bytes_beyond_slack, above, statistics.peak_bytes_in_use)
    };
    // Whole pages that are all live at once are not beyond the slack.
    let blocks: Vec<(DevicePtr, u64)> = (1..=32).map(|pages| allocate(&pool, pages * 2 * MIB)).collect();
    blocks.into_iter().for_each(|block| free(&pool, block));
    assert_eq!(beyond().0, 0);
    (0..10).for_each(|seed| pass(&pool, seed));
    let (beyond, above, live) = beyond();
    println!("{beyond} beyond, {above} above {live}");
    assert!(beyond > 0 && beyond <= above, "{beyond} of {above}");
}

/// A quiet pool gives memory beyond its slack back, a little at a time, and nothing else.
#[test]
fn a_quiet_pool_gives_excess_back() {
    if cfg!(miri) {
        return; // too many steps
    }
    let pool = pool(PoolLayer::new());
    (0..10).for_each(|seed| pass(&pool, seed));
    let before = pool.statistics().expect("a pool keeps statistics");
    let target = before.peak_bytes_in_use + before.peak_bytes_in_use / 100;
    assert!(before.bytes_reserved > target + 32 * MIB, "there is excess: {before:?}");
    // Little is in use, and the memory at hand serves requests. The pool must first earn the calls that it
    // overspent.
    for step in 0..160_000 {
        let one = allocate(&pool, 3 * MIB);
        let other = allocate(&pool, (5 + step % 3) * MIB);
        free(&pool, one);
        free(&pool, other);
    }
    let after = pool.statistics().expect("a pool keeps statistics");
    println!("{} before, {} after, target {target}", before.bytes_reserved, after.bytes_reserved);
    assert!(after.bytes_reserved < before.bytes_reserved - 16 * MIB);
    assert!(after.bytes_reserved + 64 * MIB > target, "the rest is kept for the next pass");
    pool.validate();
}
