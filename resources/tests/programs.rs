//! The order programs and the races of the testkit over every sort of pool, with its inside walked. The
//! root's `order` runs many more, over every stack; these end soon enough to run them on each mistake of
//! `tests/museum`.

use std::time::Duration;

use millpond_core::driver::{Driver, DriverHandle, StreamFlags};
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, Result, StreamRef, downcast,
};
use millpond_driver::sim::{Access, SimConfig, SimDevice};
use millpond_resources::{CudaMemoryResource, LAYERS, PagesMode, PoolLayer, PoolMemoryResource};
use millpond_testkit::Several;
use millpond_testkit::conformance::Subject;
use millpond_testkit::program::{self, Config, StatisticsCheck, Summary};
use millpond_testkit::race::Race;

const SEEDS: u64 = if cfg!(miri) { 1 } else { 400 };
const CROWDED_SEEDS: u64 = if cfg!(miri) { 1 } else { 12 };
const RACES: u64 = if cfg!(miri) { 1 } else { 6 };

/// The pools of a stack, or of several stacks.
fn pools(resource: &AnyResource) -> impl Iterator<Item = &PoolMemoryResource<AnyResource>> {
    let stacks = downcast::<Several>(resource).map_or(std::slice::from_ref(resource), Several::resources);
    stacks.iter().flat_map(|stack| stack.stack().filter_map(downcast::<PoolMemoryResource<AnyResource>>))
}

fn validate_pools(resource: &AnyResource) {
    pools(resource).for_each(PoolMemoryResource::validate);
}

fn decay_pools(resource: &AnyResource, now: Duration) -> Result<()> {
    pools(resource).try_for_each(|pool| pool.decay_step(now).map(|_| ()))
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
        let command = "cargo test -p millpond-resources --test programs".to_owned();
        let operations = if cfg!(miri) { 40 } else { 256 };
        let config = Config { command, operations, ..Config::for_subject(subject) };
        for seed in index * SEEDS..(index + 1) * SEEDS {
            if let Err(failure) = program::run(seed, &config, &|driver| subject.build(driver)) {
                panic!("{failure}");
            }
        }
    }
}

/// Stacks for programs over many streams: one pool alone, and pools that compete for the device.
fn crowded_subjects() -> Vec<Subject> {
    let build = |texts: &'static [&'static str]| {
        let table = LayerTable::new(LAYERS.iter().copied());
        let build = move |driver: &DriverHandle| {
            let stacks = texts.iter().map(|text| text.parse::<StackSpec>()?.build(&table, driver));
            Ok(Several::new(stacks.collect::<Result<_>>()?).into_any())
        };
        Subject::new(texts.join(" beside "), build).inspected_by(validate_pools).decayed_by(decay_pools)
    };
    vec![
        build(&["cuda+pool:pages=on"]),
        build(&["cuda+pool:pages=off"]),
        build(&["cuda+pool:pages=on", "cuda+pool:pages=on,reuse=waited", "cuda+pool:pages=off,reuse=own"]),
    ]
}

#[test]
fn programs_over_many_streams_keep_the_order() {
    for subject in crowded_subjects() {
        let command = "cargo test -p millpond-resources --test programs".to_owned();
        let wide = Config::wide(&subject);
        let operations = if cfg!(miri) { 40 } else { wide.operations };
        let config = Config { command, operations, ..wide };
        let mut total = Summary::default();
        for seed in 0..CROWDED_SEEDS {
            match program::run(seed, &config, &|driver| subject.build(driver)) {
                Ok(summary) => total += summary,
                Err(failure) => panic!("{failure}"),
            }
        }
        println!("`{}`: {total}", subject.name());
        assert!(cfg!(miri) || total.faults > 0 && total.streams_destroyed > 100, "{total}");
    }
}

#[test]
fn races_in_which_threads_free_each_others_blocks_keep_the_order() {
    for subject in crowded_subjects() {
        let mut total = Summary::default();
        for seed in 0..RACES {
            match Race::wide(seed, if cfg!(miri) { 40 } else { 2_000 }).run(&subject) {
                Ok(summary) => total += summary,
                Err(message) => panic!("race {seed} over `{}`: {message}", subject.name()),
            }
        }
        println!("`{}`: {total}", subject.name());
        assert!(cfg!(miri) || total.cross_stream_frees > 100 && total.streams_destroyed > 100, "{total}");
    }
}

/// A thread that has used more streams than it keeps fronts for starts anew. It must not use a front from
/// before.
#[test]
fn a_thread_with_seven_hundred_streams_comes_back_to_the_first() {
    let (streams, rounds) = if cfg!(miri) { (520, 1) } else { (700, 6) };
    let device = SimDevice::new(SimConfig::with_capacity(256 << 20));
    let pool = CudaMemoryResource::new(device.clone()).layer(PoolLayer::new()).expect("there is memory");
    let stream = |_| device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
    let streams: Vec<StreamRef> = (0..streams).map(stream).collect();
    for round in 0..rounds {
        for (index, stream) in streams.iter().enumerate() {
            for _ in 0..6 {
                let block = pool.allocate_bytes(1000, *stream).expect("there is memory");
                device.launch(*stream, &[Access::write(block, 1000, round)]);
                // SAFETY: the block came from the pool with this size; its use is in the stream's order.
                unsafe { pool.deallocate_bytes(block, 1000, *stream) };
            }
            // The streams used last are found without a lock: each is used again while others come.
            let earlier = streams[index - index.min(300)];
            let block = pool.allocate_bytes(1000, earlier).expect("there is memory");
            device.launch(earlier, &[Access::write(block, 1000, round)]);
            // SAFETY: as above.
            unsafe { pool.deallocate_bytes(block, 1000, earlier) };
        }
        pool.validate();
        assert_eq!(device.take_violations(), []);
    }
    assert_eq!(pool.statistics().map(|statistics| statistics.blocks_in_use), Some(0));
}

#[test]
fn races_over_every_pool_keep_the_order() {
    for subject in subjects() {
        for seed in 0..RACES {
            let race = Race::new(seed, if cfg!(miri) { 40 } else { 2_000 });
            if let Err(message) = race.run(&subject) {
                panic!("race {seed} over `{}`: {message}", subject.name());
            }
        }
    }
}

/// Under a maximum that the class of a size exceeds and the size does not, its blocks are cut to it: they
/// must not be had for a request that fills the class.
#[test]
fn a_block_of_an_odd_size_is_in_no_class() {
    const MIB: u64 = 1 << 20;
    let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
    let options = PoolLayer::new().maximum_bytes(MIB - 1024).pages(PagesMode::Off);
    let pool = CudaMemoryResource::new(device).layer(options).expect("the device has as much");
    // More often than a stream is called before its thread keeps blocks of it.
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
