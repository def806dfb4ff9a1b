//! Compares the models of other allocators with their memory on an H200: docs/lab/benchmarks.md, "One run".

use std::path::Path;

use millpond_core::driver::StreamFlags;
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{DriverHandle, StreamRef};
use millpond_driver::DeviceSpec;
use millpond_engine::log::LogReader;
use millpond_engine::program::{Limits, OpKind, Program};
use millpond_engine::{self as engine, Options};
use millpond_snapshot::peers;
use millpond_testkit::conformance::{self, Refusals, Subject};
use millpond_testkit::program::StatisticsCheck;

/// The models of other allocators, and millpond's resources.
fn layers() -> LayerTable {
    LayerTable::new(millpond_resources::LAYERS.iter().chain(peers::LAYERS).copied())
}

/// Returns the most bytes that a stack took for a log over the most live bytes. The bytes are the stack's own
/// count, without the driver's rounding.
fn taken_over_live(log: &str, stack: &str) -> f64 {
    let program = Program::read(LogReader::open(Path::new(log)).unwrap(), Limits::default()).unwrap();
    let driver: DriverHandle = DeviceSpec::SimH200.open().unwrap();
    let resource = stack.parse::<StackSpec>().unwrap().build(&layers(), &driver).unwrap();
    let outcome = engine::replay(&program, &resource, &driver, Options::default(), &mut ()).unwrap();
    assert_eq!(outcome.failures, 0, "{stack}");
    let taken = resource.statistics().unwrap().peak_bytes_reserved;
    taken as f64 / program.summary().peak_live_bytes as f64
}

#[test]
fn models_take_what_their_originals_took_on_an_h200() {
    let log = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/logs/rmm_cupy_4streams.csv.gz");
    for (stack, taken) in [("rmm_pool", 1.843), ("torch:expandable_segments=True", 1.796)] {
        let model = taken_over_live(log, stack);
        assert!((model - taken).abs() < 0.001, "{stack}: {model}, not {taken}");
    }
    // The driver's addresses decide which of two segments of one size comes first.
    let torch = taken_over_live(log, "torch");
    assert!((torch - 2.595).abs() < 0.005, "{torch}");
}

/// Returns the number of failed allocations of a log, and an FNV hash. The hash covers each block's distance
/// from the first block; a failure has all bits set.
fn offsets(log: &str, stack: &str) -> (u64, u64) {
    let program = Program::read(LogReader::open(Path::new(log)).unwrap(), Limits::default()).unwrap();
    let driver: DriverHandle = DeviceSpec::SimH200.open().unwrap();
    let resource = stack.parse::<StackSpec>().unwrap().build(&layers(), &driver).unwrap();
    let streams: Vec<StreamRef> = (0..program.summary().streams)
        .map(|_| driver.stream_create(StreamFlags::NON_BLOCKING).unwrap())
        .collect();
    let mut slots = vec![None; program.slots() as usize];
    let (mut first, mut failures, mut hash) = (None, 0, 14_695_981_039_346_656_037_u64);
    for block in 0..program.block_count() {
        for op in program.block(block).unwrap().iter() {
            let stream = streams[program.lanes()[op.lane as usize].stream as usize];
            if op.kind == OpKind::Free {
                if let Some(ptr) = slots[op.slot as usize].take() {
                    // SAFETY: the block is of this resource and size, goes back once, and is not used.
                    unsafe { resource.deallocate(ptr, op.layout(), stream) };
                }
                continue;
            }
            let ptr = resource.allocate(op.layout(), stream).ok();
            slots[op.slot as usize] = ptr;
            failures += u64::from(ptr.is_none());
            let offset = ptr.map_or(u64::MAX, |ptr| ptr.address() - *first.get_or_insert(ptr.address()));
            for byte in offset.to_le_bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211);
            }
        }
    }
    (failures, hash)
}

#[test]
fn the_arena_puts_each_block_where_rmms_does() {
    let log = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/logs/rmm_cupy_4streams.csv.gz");
    // From the arenas of RMM 26.10 (`rmm/mr/detail/arena.hpp`), driven with the log on a host.
    for (size, failures, hash) in [
        (605986560, 14, 0x88ee_9d3c_74f2_8385),
        (640947456, 6, 0x84ec_2781_ca55_2c38),
        (757483264, 0, 0x48d8_9129_c699_6fcf),
    ] {
        assert_eq!(offsets(log, &format!("rmm_arena:size={size}")), (failures, hash), "{size}");
    }
}

/// A replay has neither captures nor single driver calls that fail, so the models do not handle them.
const NOT_MODELLED: &[&str] = &[
    "a_captured_allocate_adds_no_work",
    "a_captured_deallocate_adds_no_work",
    "calls_on_other_streams_leave_captures_valid",
    "calls_on_other_threads_leave_captures_valid",
    "a_failed_call_of_allocate_keeps_no_memory",
    "a_failed_call_of_deallocate_keeps_no_memory",
];

#[test]
fn models_keep_the_contract_of_a_resource() {
    let stacks = [
        "torch",
        "torch:expandable_segments=True",
        "torch:max_split_size_mb=32,roundup_power2_divisions=4",
        "torch:expandable_segments=True,max_split_size_mb=21",
        "torch:garbage_collection_threshold=0.5,limit=80%",
        "rmm_pool",
        "rmm_pool:initial=10%,max=75%",
        "rmm_arena:size=80%",
    ];
    for stack in stacks {
        let subject = Subject::from_text(stack, &layers()).refuses(Refusals::ALL);
        let report = conformance::run(&subject.statistics(StatisticsCheck::Counts));
        let failures: Vec<_> = report.failures().filter(|(body, _)| !NOT_MODELLED.contains(body)).collect();
        assert!(failures.is_empty(), "{report}");
    }
}
