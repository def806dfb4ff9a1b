//! Tests how often a thread on many streams asks the driver.

use millpond_core::driver::StreamFlags;
use millpond_core::{DeviceMemoryResourceExt, DevicePtr, Driver, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_driver::{CallKind, CountingDriver};
use millpond_resources::{CudaMemoryResource, PagesMode, PoolLayer};
use millpond_testkit::Rng;

/// Returns 256 B to 1 MiB; each doubling is equally likely.
fn bytes(random: &mut Rng) -> u64 {
    let least = 256 << random.below(12);
    least + random.below(least) + 1
}

/// Counts the calls that ask how far streams are, in a hundred steps. Each step replaces one of 10,000
/// blocks, which lie on random streams.
fn questions_in_100_steps(streams: usize, pages: PagesMode) -> u64 {
    const LIVE: u64 = 10_000;
    const STEPS: u64 = 40_000;
    let driver = CountingDriver::new(SimDevice::new(SimConfig::h200()));
    let new_stream = |_| driver.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
    let streams: Vec<StreamRef> = (0..streams).map(new_stream).collect();
    let pool = CudaMemoryResource::new(driver.clone()).layer(PoolLayer::new().pages(pages)).expect("a pool");
    let mut random = Rng::new(42);
    let allocate = |random: &mut Rng| {
        let (bytes, stream) = (bytes(random), streams[random.below(streams.len() as u64) as usize]);
        (pool.allocate_bytes(bytes, stream).expect("there is room"), bytes, stream)
    };
    let free = |(ptr, bytes, stream): (DevicePtr, u64, StreamRef)| {
        // SAFETY: the block came from the pool with this size and is freed once.
        unsafe { pool.deallocate_bytes(ptr, bytes, stream) };
    };
    let questions = || {
        let counts = driver.counts();
        [CallKind::EventRecord, CallKind::EventQuery].map(|kind| counts.get(kind).calls).iter().sum::<u64>()
    };
    let mut blocks: Vec<_> = (0..LIVE).map(|_| allocate(&mut random)).collect();
    let mut steps = |count| {
        for _ in 0..count {
            let index = random.below(LIVE) as usize;
            free(blocks[index]);
            blocks[index] = allocate(&mut random);
        }
    };
    steps(STEPS);
    let before = questions();
    steps(STEPS);
    let asked = questions() - before;
    blocks.into_iter().for_each(free);
    asked * 100 / STEPS
}

/// Each stream that is asked costs a record and a query. Asking all streams that own anything cost twice as
/// much.
#[test]
fn with_256_streams_a_step_asks_little() {
    const MOST: u64 = 35;
    if cfg!(miri) {
        return; // too many steps
    }
    for pages in [PagesMode::On, PagesMode::Off] {
        let asked = questions_in_100_steps(256, pages);
        println!("{pages:?}: {asked} questions in 100 steps");
        assert!(asked <= MOST, "{pages:?}: {asked} questions in 100 steps, at most {MOST}");
    }
}
