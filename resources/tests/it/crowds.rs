//! Tests many streams and many threads. Programs run over 60 to 300 streams that come and go, with driver
//! calls that fail. In races, threads free each other's blocks. In both, pools compete for the device's
//! memory.

use millpond_core::driver::{Driver, DriverHandle, StreamFlags};
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, Result, StreamRef};
use millpond_driver::sim::{Access, SimConfig, SimDevice};
use millpond_resources::{CudaMemoryResource, LAYERS, PoolLayer};
use millpond_testkit::Several;
use millpond_testkit::conformance::Subject;
use millpond_testkit::program::{self, Config, Summary};
use millpond_testkit::race::Race;
use millpond_testkit::size;

use crate::looks::{decay_pools, validate_pools};

const SEEDS: u64 = if cfg!(miri) { 1 } else { 12 };

fn races() -> u64 {
    if cfg!(miri) { 1 } else { size::of(3, 6) }
}

/// Stacks for programs over many streams: one pool alone, and pools that compete for the device.
fn subjects() -> Vec<Subject> {
    let build = |texts: &'static [&'static str]| {
        let table = LayerTable::new(LAYERS.iter().copied());
        let build = move |driver: &DriverHandle| {
            let stacks = texts.iter().map(|text| text.parse::<StackSpec>()?.build(&table, driver));
            Ok(Several::new(stacks.collect::<Result<_>>()?).into_any())
        };
        Subject::new(texts.join(" next to "), build).inspected_by(validate_pools).decayed_by(decay_pools)
    };
    vec![
        build(&["cuda+pool:pages=on"]),
        build(&["cuda+pool:pages=off"]),
        build(&["cuda+pool:pages=on", "cuda+pool:pages=on,reuse=waited", "cuda+pool:pages=off,reuse=own"]),
    ]
}

#[test]
fn programs_over_many_streams_keep_the_order() {
    for subject in subjects() {
        let command = "cargo test -p millpond-resources --test it crowds::".to_owned();
        let wide = Config::wide(&subject);
        let operations = if cfg!(miri) { 40 } else { wide.operations };
        let config = wide.command(command).operations(operations);
        let mut total = Summary::default();
        for seed in 0..SEEDS {
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
    for subject in subjects() {
        let mut total = Summary::default();
        for seed in 0..races() {
            match Race::wide(seed, if cfg!(miri) { 40 } else { 2_000 }).run(&subject) {
                Ok(summary) => total += summary,
                Err(message) => panic!("race {seed} over `{}`: {message}", subject.name()),
            }
        }
        println!("`{}`: {total}", subject.name());
        assert!(cfg!(miri) || total.cross_stream_frees > 100 && total.streams_destroyed > 100, "{total}");
    }
}

/// A thread that has used more streams than it keeps fronts for starts again. It must not use an earlier
/// front.
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
            // A thread finds its most recent streams without a lock. Each is used again while new ones come.
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
