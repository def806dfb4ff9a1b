//! Tests the map of a stack's segments and blocks against the blocks that a program has.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use millpond::adaptors::tracking::tag;
use millpond::driver::sim::{SimConfig, SimDevice};
use millpond::stack::StackSpec;
use millpond::{
    AnyResource, BlockState, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, DriverHandle,
    MemoryMap, StreamRef,
};
use millpond_core::driver::{Driver, StreamFlags};
use millpond_testkit::Rng;

const MIB: u64 = 1 << 20;

/// The stacks, and whether the map's bytes are those that the outermost pool counts as reserved.
const STACKS: &[(&str, bool)] = &[
    ("cuda+pool", true),
    ("cuda+pool:pages=off", true),
    ("cuda+pool:pages=on,initial=25%", true),
    ("managed+pool", true),
    ("cuda+arena:size=20%", true),
    ("cuda+fixed_size:block_size=8MiB,blocks=4", true),
    ("cuda+pool+statistics+limiting:limit=100%+retry:timeout=1s", true),
    ("cuda+pool+tracking+thread_safe", true),
    ("cuda+pool+pool", false),
    ("cuda+pool+fixed_size:block_size=8MiB,blocks=4", false),
    ("cuda+pool+binning:bins=4KiB/64KiB/1MiB", false),
    ("cuda+pool+binning:bins=64KiB(cuda+pool)", false),
    ("cuda+pool:max=100MiB+fallback:to=(cuda+pool:pages=off)", false),
    ("cuda+pool+capture_scopes", false),
    ("cuda+tracking", false),
];

fn build(text: &str, device: &Arc<SimDevice>) -> AnyResource {
    let driver: DriverHandle = device.clone();
    text.parse::<StackSpec>().unwrap().build(&millpond::layers(), &driver).unwrap()
}

/// Checks that segments do not overlap, and that blocks tile them.
fn check_tiling(map: &MemoryMap, text: &str) {
    let mut end = 0;
    for segment in &map.segments {
        assert!(segment.address >= end, "{text}: {:#x} overlaps the segment before it", segment.address);
        let mut next = segment.address;
        for block in &segment.blocks {
            assert_eq!(block.address, next, "{text}: a gap in the segment at {:#x}", segment.address);
            assert!(block.requested_bytes <= block.bytes && block.bytes > 0, "{text}: {block:?}");
            assert_eq!(block.state == BlockState::Free, block.requested_bytes == 0, "{text}: {block:?}");
            next += block.bytes;
        }
        end = segment.address + segment.bytes;
        assert_eq!(next, end, "{text}: the blocks of the segment at {:#x} do not fill it", segment.address);
        let pieces: u64 = segment.pieces.iter().map(|(_, bytes)| bytes).sum();
        assert!(segment.pieces.is_empty() || pieces == segment.bytes, "{text}: {segment:?}");
    }
}

fn live(map: &MemoryMap) -> BTreeMap<u64, u64> {
    map.live_blocks().map(|block| (block.address, block.requested_bytes)).collect()
}

/// A program on three streams that fills the device, so that pages are stitched. Returns how many maps had
/// a segment of several pieces.
fn run(text: &str, is_reserved: bool, seed: u64) -> usize {
    let device = SimDevice::new(SimConfig::with_capacity(256 * MIB));
    let stack = build(text, &device);
    let own = [(); 2].map(|()| device.stream_create(StreamFlags::NON_BLOCKING).unwrap());
    let streams = [StreamRef::LEGACY, own[0], own[1]];
    let (mut rng, mut blocks, mut stitched) = (Rng::new(seed), Vec::<(DevicePtr, u64, StreamRef)>::new(), 0);
    for step in 0..300 {
        if blocks.is_empty() || rng.percent(55) {
            let bytes = match rng.below(3) {
                0 => rng.between(1, 20_000),
                1 => rng.between(1, 2 * MIB),
                _ => rng.between(MIB, 24 * MIB),
            };
            let bytes = if text.contains("fixed_size") { bytes.min(8 * MIB) } else { bytes };
            let stream = *rng.pick(&streams).unwrap();
            if let Ok(ptr) = stack.allocate_bytes(bytes, stream) {
                blocks.push((ptr, bytes, stream));
            }
        } else {
            let (ptr, bytes, stream) = blocks.swap_remove(rng.below(blocks.len() as u64) as usize);
            // SAFETY: the block came from this stack with this size, and nothing uses it.
            unsafe { stack.deallocate_bytes(ptr, bytes, stream) };
        }
        if step % 25 != 0 {
            continue;
        }
        let map = stack.memory_map().unwrap_or_else(|| panic!("{text} has no map"));
        check_tiling(&map, text);
        let expected = blocks.iter().map(|(ptr, bytes, _)| (ptr.address(), *bytes)).collect();
        assert_eq!(live(&map), expected, "{text}, step {step}");
        if is_reserved {
            assert_eq!(map.bytes_reserved(), stack.statistics().unwrap().bytes_reserved, "{text}");
            assert_eq!(map.pools.len(), 1, "{text}");
        }
        stitched += usize::from(map.segments.iter().any(|segment| segment.pieces.len() > 1));
    }
    for (ptr, bytes, stream) in blocks {
        // SAFETY: as above.
        unsafe { stack.deallocate_bytes(ptr, bytes, stream) };
    }
    stitched
}

#[test]
fn a_map_lists_the_blocks_that_the_program_has() {
    let mut stitched = 0;
    for (text, is_reserved) in STACKS {
        stitched += run(text, *is_reserved, 1);
    }
    assert!(stitched > 0, "no block was ever stitched");
}

#[test]
fn free_blocks_name_their_stream_and_live_blocks_their_tag() {
    let device = SimDevice::new(SimConfig::with_capacity(256 * MIB));
    let stack = build("cuda+pool+tracking:stacks=on", &device);
    let stream = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    let _tag = tag("weights");
    let [kept, small, large] =
        [1000, 2000, 3 * MIB].map(|bytes| stack.allocate_bytes(bytes, stream).unwrap());
    for (ptr, bytes) in [(small, 2000), (large, 3 * MIB)] {
        // SAFETY: the block came from this stack with this size, and nothing uses it.
        unsafe { stack.deallocate_bytes(ptr, bytes, stream) };
    }
    let map = stack.memory_map().unwrap();
    let find = |ptr: DevicePtr| {
        let mut blocks = map.segments.iter().flat_map(|segment| &segment.blocks);
        blocks.find(|block| block.address == ptr.address()).unwrap()
    };
    for freed in [small, large] {
        assert_eq!((find(freed).state, find(freed).stream), (BlockState::Free, Some(stream.handle())));
    }
    let kept = find(kept);
    assert_eq!(
        (kept.state, kept.stream, kept.tag.as_deref()),
        (BlockState::Active, Some(stream.handle()), Some("weights"))
    );
    assert!(kept.backtrace.is_some());
    assert!(build("cuda", &device).memory_map().is_none());
}

/// While threads work, a map is whole, and has the blocks that stay.
#[test]
fn a_map_is_whole_while_threads_work() {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let stack = build("cuda+pool", &device);
    let kept: BTreeMap<u64, u64> = (1..50)
        .map(|number| {
            (stack.allocate_bytes(number * 50_000, StreamRef::LEGACY).unwrap().address(), number * 50_000)
        })
        .collect();
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 0..3 {
            let (stack, is_done) = (&stack, &is_done);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                while !is_done.load(Ordering::Relaxed) {
                    let bytes = rng.between(1, 4 * MIB);
                    let ptr = stack.allocate_bytes(bytes, StreamRef::LEGACY).unwrap();
                    // SAFETY: the block came from this stack with this size, and nothing uses it.
                    unsafe { stack.deallocate_bytes(ptr, bytes, StreamRef::LEGACY) };
                }
            });
        }
        for _ in 0..30 {
            let map = stack.memory_map().unwrap();
            check_tiling(&map, "cuda+pool");
            let found = live(&map);
            assert!(kept.iter().all(|(address, bytes)| found.get(address) == Some(bytes)));
        }
        is_done.store(true, Ordering::Relaxed);
    });
}
