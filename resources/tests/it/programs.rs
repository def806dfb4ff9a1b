//! The testkit's order programs and races over every kind of pool, with checks of the pool's inside. The
//! root's `order` runs many more, over every stack. These end soon enough to run on each mistake of
//! `tests/it/museum`.

use millpond_core::stack::LayerTable;
use millpond_core::{DeviceMemoryResourceExt, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::{CudaMemoryResource, LAYERS, PagesMode, PoolLayer};
use millpond_testkit::conformance::Subject;
use millpond_testkit::program::{self, Config, StatisticsCheck};
use millpond_testkit::race::Race;
use millpond_testkit::size;

use crate::looks::{decay_pools, validate_pools};

const SEEDS: u64 = if cfg!(miri) { 1 } else { 400 };

fn races() -> u64 {
    if cfg!(miri) { 1 } else { size::of(3, 6) }
}

fn subjects() -> Vec<Subject> {
    use StatisticsCheck::{Counts, Exact};
    let table = LayerTable::new(LAYERS.iter().copied());
    let pools = [
        ("cuda+pool:pages=off", Exact),
        ("cuda+pool:pages=off,reuse=own,max=50%", Exact),
        ("cuda+pool:pages=on", Exact),
        ("cuda+pool:pages=on,reuse=waited,max=50%", Exact),
        ("cuda+pool:pages=on+pool", Counts),
    ];
    let subject = |(text, statistics)| Subject::from_text(text, &table).statistics(statistics);
    pools.map(|pool| subject(pool).inspected_by(validate_pools).decayed_by(decay_pools)).into()
}

#[test]
fn programs_over_every_pool_keep_the_order() {
    for (subject, index) in subjects().iter().zip(0..) {
        let command = "cargo test -p millpond-resources --test it programs::".to_owned();
        let operations = if cfg!(miri) { 40 } else { 256 };
        let config = Config::for_subject(subject).command(command).operations(operations);
        for seed in index * SEEDS..(index + 1) * SEEDS {
            if let Err(failure) = program::run(seed, &config, &|driver| subject.build(driver)) {
                panic!("{failure}");
            }
        }
    }
}

#[test]
fn races_over_every_pool_keep_the_order() {
    for subject in subjects() {
        for seed in 0..races() {
            let race = Race::new(seed, if cfg!(miri) { 40 } else { 2_000 });
            if let Err(message) = race.run(&subject) {
                panic!("race {seed} over `{}`: {message}", subject.name());
            }
        }
    }
}

/// If a maximum lies between a request's size and its class, the pool cuts blocks to the request's size. Such
/// blocks must not serve a request that fills the class.
#[test]
fn a_block_of_an_odd_size_is_in_no_class() {
    const MIB: u64 = 1 << 20;
    let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
    let options = PoolLayer::new().maximum_bytes(MIB - 1024).pages(PagesMode::Off);
    let pool = CudaMemoryResource::new(device).layer(options).expect("the device has as much");
    // More calls than a stream needs before its thread caches its blocks.
    for _ in 0..10 {
        let odd = MIB - 2048;
        let block = pool.allocate_bytes(odd, StreamRef::LEGACY).expect("it is within the maximum");
        pool.validate();
        // SAFETY: the block came from the pool with this size, and nothing uses it.
        unsafe { pool.deallocate_bytes(block, odd, StreamRef::LEGACY) };
        pool.validate();
        assert!(pool.allocate_bytes(MIB, StreamRef::LEGACY).is_err());
    }
}
