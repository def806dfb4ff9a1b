//! Tests the report of a stack's memory while the stack works and when memory is out.

use std::sync::Arc;

use millpond::adaptors::tracking::tag;
use millpond::driver::sim::{Access, SimConfig, SimDevice};
use millpond::stack::StackSpec;
use millpond::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, DriverHandle, Holder, StreamRef,
};
use millpond_core::driver::{Driver, StreamFlags};

const S: StreamRef = StreamRef::LEGACY;
const MIB: u64 = 1 << 20;

fn build(text: &str, device: &Arc<SimDevice>) -> AnyResource {
    let driver: DriverHandle = device.clone();
    text.parse::<StackSpec>().unwrap().build(&millpond::layers(), &driver).unwrap()
}

fn device() -> Arc<SimDevice> {
    SimDevice::new(SimConfig::with_capacity(1 << 30))
}

fn put(resource: &AnyResource, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
    // SAFETY: tests pass each block from `allocate_bytes` once, and no work uses it on other streams.
    unsafe { resource.deallocate_bytes(ptr, bytes, stream) }
}

fn names_and_bytes(holders: &[Holder]) -> Vec<(Option<&str>, u64, u64)> {
    holders.iter().map(|holder| (holder.tag.as_deref(), holder.blocks, holder.bytes)).collect()
}

#[test]
fn every_layer_says_what_it_knows() {
    let device = device();
    let stack = build("cuda+pool:pages=off,max=512MiB+limiting:limit=256MiB+statistics+tracking", &device);
    let kept = {
        let _loading = tag("data loader");
        stack.allocate_bytes(30 * MIB, S).unwrap()
    };
    let model = {
        let _model = tag("model");
        [(); 3].map(|()| stack.allocate_bytes(4 * MIB, S).unwrap())
    };
    let other = stack.allocate_bytes(1000, S).unwrap();
    put(&stack, model[0], 4 * MIB, S);

    let report = stack.memory_report();
    assert_eq!(report.stack, stack.to_string());
    let layers: Vec<&str> = report.layers.iter().map(|layer| layer.layer.as_str()).collect();
    assert_eq!(layers, ["tracking", "statistics", "limiting:limit=256MiB", "pool:max=512MiB,pages=off"]);
    let [tracking, statistics, limiting, pool] = &report.layers[..] else { panic!("{report}") };
    assert_eq!(
        names_and_bytes(&tracking.holders),
        [(Some("data loader"), 1, 30 * MIB), (Some("model"), 2, 8 * MIB), (None, 1, 1000)]
    );
    let counted = statistics.statistics.unwrap();
    assert_eq!((counted.bytes_in_use, counted.blocks_in_use), (38 * MIB + 1000, 4));
    assert_eq!(counted.peak_bytes_in_use, 42 * MIB + 1000);
    assert_eq!(limiting.limit_bytes, Some(256 * MIB));
    assert_eq!((pool.limit_bytes, pool.largest_allocation), (Some(512 * MIB), Some(30 * MIB)));
    let held = pool.statistics.unwrap();
    let listed: u64 = pool.free.iter().map(|free| free.bytes).sum();
    assert_eq!((listed + 4 * MIB, pool.cached_bytes), (held.bytes_free(), Some(4 * MIB)));
    assert_eq!(held.bytes_reserved, device.live_bytes());

    let text = report.to_string();
    for part in [
        "30MiB in 1 block, allocated for `data loader`",
        "1000B in 1 block, allocated without a tag",
        "limit: 38.00MiB of 256MiB in use",
        "limit: 512MiB",
        "largest block so far: 30MiB",
        "could be released now: ",
    ] {
        assert!(text.contains(part), "`{part}` is not in\n{text}");
    }
    report.trace();
    put(&stack, kept, 30 * MIB, S);
    put(&stack, other, 1000, S);
    model[1..].iter().for_each(|ptr| put(&stack, *ptr, 4 * MIB, S));
}

/// Tests that a trim releases as much as the report promises.
#[test]
fn what_could_go_back_goes_back() {
    for text in ["cuda+pool", "cuda+pool:pages=off", "managed+pool", "cuda+arena:size=8MiB"] {
        let device = device();
        let stack = build(text, &device);
        let stream = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
        let kept = stack.allocate_bytes(3 * MIB, S).unwrap();
        let blocks = [(); 8].map(|()| stack.allocate_bytes(10 * MIB, stream).unwrap());
        for block in blocks {
            device.launch(stream, &[Access::write(block, 10 * MIB, 1)]);
            put(&stack, block, 10 * MIB, stream);
        }
        let pool = stack.memory_report().layers.into_iter().next().unwrap();
        let (now, after_sync) = (pool.reclaimable_bytes.unwrap(), pool.reclaimable_after_sync_bytes.unwrap());
        assert!(now < after_sync, "{text}: the stream still works: {now} now, {after_sync} after");
        assert!(after_sync >= 64 * MIB, "{text}: {after_sync}");
        let reserved = stack.statistics().unwrap().bytes_reserved;
        assert!(after_sync <= reserved - 3 * MIB, "{text}: {after_sync} of {reserved} with a block in use");
        let trimmed = stack.trim(0).unwrap();
        assert!(trimmed >= after_sync, "{text}: {after_sync} promised, {trimmed} went back");
        let left = stack.memory_report().layers.into_iter().next().unwrap();
        assert_eq!(left.reclaimable_after_sync_bytes, Some(0), "{text}");
        put(&stack, kept, 3 * MIB, S);
    }
}

#[test]
fn memory_that_streams_own_is_listed_by_stream() {
    let device = device();
    let stack = build("cuda+pool", &device);
    let stream = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    let block = stack.allocate_bytes(20 * MIB, stream).unwrap();
    device.launch(stream, &[Access::write(block, 20 * MIB, 1)]);
    put(&stack, block, 20 * MIB, stream);
    // Another size, so that the block goes from the stream's cache to the heap.
    let other = stack.allocate_bytes(5 * MIB, stream).unwrap();
    let pool = &stack.memory_report().layers[0];
    assert!(pool.free.iter().any(|free| free.stream == Some(stream.handle())), "{pool}");
    put(&stack, other, 5 * MIB, stream);
}

#[test]
fn a_block_says_who_allocated_it() {
    let stack = build("cuda+pool+tracking:stacks=on", &device());
    let _tag = tag("weights");
    stack.allocate_bytes(10, S).unwrap();
    let block = stack.allocate_bytes(1234, S).unwrap();
    let known = stack.block_at(block).unwrap();
    assert_eq!((known.address, known.bytes, known.sequence), (block.address(), 1234, Some(1)));
    assert_eq!((known.stream, known.tag.as_deref()), (Some(0), Some("weights")));
    assert!(known.backtrace.unwrap().contains("a_block_says_who_allocated_it"));
    assert_eq!(stack.block_at(block.offset(256)), None, "inside of a block");
    put(&stack, block, 1234, S);
    assert_eq!(stack.block_at(block), None, "the block is free");
    let pool = build("cuda+pool", &device());
    let block = pool.allocate_bytes(77, S).unwrap();
    assert_eq!(pool.block_at(block).unwrap().bytes, 77, "a pool knows sizes by itself");
}

#[test]
fn tags_nest_and_end() {
    let stack = build("cuda+tracking", &device());
    let allocate = || stack.allocate_bytes(100, S).unwrap();
    let outer = tag("outer");
    let first = allocate();
    {
        let _inner = tag("inner");
        allocate();
    }
    allocate();
    drop(outer);
    allocate();
    std::thread::scope(|scope| {
        let _tag = tag("here");
        scope.spawn(allocate).join().unwrap();
    });
    let tag_of = |ptr| stack.block_at(ptr).unwrap().tag;
    assert_eq!(tag_of(first).as_deref(), Some("outer"));
    let holders = &stack.memory_report().layers[0].holders;
    let mut found = names_and_bytes(holders);
    found.sort_unstable();
    assert_eq!(found, [(None, 2, 200), (Some("inner"), 1, 100), (Some("outer"), 2, 200)]);
}

#[test]
fn counters_begin_anew() {
    let stack = build("cuda+pool+statistics", &device());
    let block = stack.allocate_bytes(MIB, S).unwrap();
    let peak = stack.allocate_bytes(9 * MIB, S).unwrap();
    put(&stack, peak, 9 * MIB, S);
    let counted = || stack.memory_report().layers[0].statistics.unwrap();
    assert_eq!((counted().peak_bytes_in_use, counted().allocations), (10 * MIB, 2));
    stack.clear_counters();
    assert_eq!((counted().bytes_in_use, counted().peak_bytes_in_use), (MIB, MIB));
    assert_eq!((counted().allocations, counted().deallocations), (1, 0));
    put(&stack, block, MIB, S);
    assert_eq!((counted().bytes_in_use, counted().blocks_in_use), (0, 0));
}

#[test]
fn an_error_without_memory_names_the_holders() {
    let stack = build("cuda+pool:max=64MiB+tracking", &device());
    let _tag = tag("activations");
    let block = stack.allocate_bytes(60 * MIB, S).unwrap();
    let mut error = stack.allocate_bytes(30 * MIB, S).unwrap_err();
    assert!(error.to_string().contains("60MiB in 1 block, allocated for `activations`"), "{error}");
    let report = error.take_out_of_memory_report().unwrap();
    assert_eq!(names_and_bytes(&report.holders), [(Some("activations"), 1, 60 * MIB)]);
    put(&stack, block, 60 * MIB, S);
}

#[test]
fn a_report_is_data() {
    let stack = build("cuda+pool+tracking", &device());
    let block = stack.allocate_bytes(MIB, S).unwrap();
    let report = stack.memory_report();
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<millpond::MemoryReport>(&text).unwrap(), report);
    put(&stack, block, MIB, S);
}

#[test]
fn a_lost_device_still_has_a_report() {
    let device = device();
    let stack = build("cuda+pool+statistics", &device);
    device.reset_context();
    assert!(stack.allocate_bytes(MIB, S).is_err());
    let report = stack.memory_report();
    assert_eq!((report.device_memory, report.layers.len()), (None, 2), "{report}");
}
