//! Tests that a snapshot of a living stack says the same as the stack, when our own importer reads it.

use std::collections::BTreeMap;
use std::sync::Arc;

use millpond::adaptors::{RecordOptions, Recorder, Recording, Snapshot};
use millpond::driver::sim::{SimConfig, SimDevice};
use millpond::stack::StackSpec;
use millpond::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, DriverHandle, StreamRef,
    find_trait, memory_snapshot,
};
use millpond_core::driver::{Driver, StreamFlags};
use millpond_snapshot::import::{self, Options};
use millpond_snapshot::recording::{EventKind, Recording as Imported};
use millpond_testkit::Rng;

const MIB: u64 = 1 << 20;

fn build(text: &str, device: &Arc<SimDevice>) -> AnyResource {
    let driver: DriverHandle = device.clone();
    text.parse::<StackSpec>().unwrap().build(&millpond::layers(), &driver).unwrap()
}

fn imported(pickle: &[u8]) -> Imported {
    import::read("snapshot.pickle", pickle, &Options::default()).unwrap()
}

/// The blocks of a program: address, and bytes.
type Blocks = BTreeMap<u64, u64>;

struct Program {
    stack: AnyResource,
    streams: [StreamRef; 3],
    rng: Rng,
    blocks: Vec<(DevicePtr, u64, StreamRef)>,
    /// The bytes that the stack had reserved after each allocation.
    reserved: Vec<u64>,
}

impl Program {
    fn new(text: &str, seed: u64) -> Self {
        Self::on(SimDevice::new(SimConfig::with_capacity(256 * MIB)), text, seed)
    }

    fn on(device: Arc<SimDevice>, text: &str, seed: u64) -> Self {
        let own = [(); 2].map(|()| device.stream_create(StreamFlags::NON_BLOCKING).unwrap());
        let streams = [StreamRef::LEGACY, own[0], own[1]];
        let (stack, rng) = (build(text, &device), Rng::new(seed));
        Self { stack, streams, rng, blocks: Vec::new(), reserved: Vec::new() }
    }

    /// Not inlined, so that stacks name it.
    #[inline(never)]
    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            let Self { stack, rng, .. } = self;
            if self.blocks.is_empty() || rng.percent(55) {
                let largest = [20_000, 2 * MIB, 24 * MIB][rng.below(3) as usize];
                let (bytes, stream) = (rng.between(1, largest), *rng.pick(&self.streams).unwrap());
                if let Ok(ptr) = stack.allocate_bytes(bytes, stream) {
                    self.blocks.push((ptr, bytes, stream));
                    self.reserved.push(stack.memory_map().unwrap().bytes_reserved());
                }
            } else {
                let (ptr, bytes, stream) =
                    self.blocks.swap_remove(rng.below(self.blocks.len() as u64) as usize);
                // SAFETY: the block came from this stack with this size, and nothing uses it.
                unsafe { stack.deallocate_bytes(ptr, bytes, stream) };
            }
        }
    }

    fn blocks(&self) -> Blocks {
        self.blocks.iter().map(|(ptr, bytes, _)| (ptr.address(), *bytes)).collect()
    }
}

/// Checks that a snapshot has the live blocks, that its events lead to them, and that its segments hold every
/// block at every moment, as PyTorch's viewer needs it. After each allocation, the segments have the bytes
/// that the stack had reserved.
fn check(program: &Program, text: &str) -> Imported {
    let read = imported(&memory_snapshot(&program.stack).unwrap());
    let check = read.check().expect("the snapshot has a state");
    assert!(check.is_equal(), "{text}: {check:?}");
    let end = read.moment(read.len());
    let found: Blocks = end.blocks().iter().map(|block| (block.address, block.bytes)).collect();
    assert_eq!(found, program.blocks(), "{text}");
    let reserved: u64 = end.segments().iter().map(|segment| segment.bytes).sum();
    let map = program.stack.memory_map().unwrap();
    assert_eq!(reserved, map.bytes_reserved(), "{text}: {:?}", read.unknowns());
    let odd = read.unknowns().iter().find(|unknown| unknown.code == "odd_segments");
    assert!(odd.is_none(), "{text}: {odd:?}");
    let traced = check_segments(&read, text);
    // A full ring has only the last allocations.
    assert!(traced.len() <= program.reserved.len(), "{text}");
    assert_eq!(traced, program.reserved[program.reserved.len() - traced.len()..], "{text}");
    read
}

/// Returns the bytes of the segments after each allocation.
fn check_segments(read: &Imported, text: &str) -> Vec<u64> {
    let mut segments: BTreeMap<u64, u64> = BTreeMap::new();
    let mut reserved = Vec::new();
    for (at, event) in read.events().enumerate() {
        let (start, end) = (event.address, event.address + event.bytes);
        match event.kind {
            EventKind::SegmentAllocate | EventKind::SegmentMap => {
                let before = segments.range(..end).next_back().is_none_or(|(_, end)| *end <= start);
                assert!(before, "{text}, event {at}: {start:#x} is in a segment already");
                segments.insert(start, end);
            }
            EventKind::SegmentFree | EventKind::SegmentUnmap => {
                let mut rest = start;
                while rest < end {
                    let found = segments.range(..=rest).next_back().map(|(from, to)| (*from, *to));
                    let (from, to) = found.filter(|(_, to)| *to > rest).unwrap_or_else(|| {
                        panic!("{text}, event {at}: {rest:#x} of {start:#x} is in no segment");
                    });
                    segments.remove(&from);
                    [(from, rest), (end, to)].iter().filter(|(a, b)| a < b).for_each(|(a, b)| {
                        segments.insert(*a, *b);
                    });
                    rest = to;
                }
            }
            EventKind::Allocate => {
                let is_held = segments.range(..=start).next_back().is_some_and(|(_, end)| *end > start);
                assert!(is_held, "{text}, event {at}: the block at {start:#x} is in no segment");
                if !event.is_before {
                    reserved.push(segments.iter().map(|(start, end)| end - start).sum());
                }
            }
            _ => {}
        }
    }
    reserved
}

const STACKS: &[&str] = &[
    "cuda+pool",
    "cuda+pool:pages=off",
    "cuda+pool:pages=on,initial=25%",
    "cuda+arena:size=20%",
    "cuda+pool+pool",
    "cuda+pool+binning:bins=4KiB/64KiB/1MiB",
    "cuda+pool+tracking",
    "cuda",
];

/// With debug information, a frame has a file and a short name.
fn is_of_program(frame: &millpond_snapshot::recording::Frame<'_>) -> bool {
    frame.function.contains("memory_snapshot::Program") || frame.file.ends_with("memory_snapshot.rs")
}

#[test]
fn a_snapshot_says_what_the_stack_says() {
    for text in STACKS {
        for seed in 0..4 {
            let mut program = Program::new(&format!("{text}+recording:stacks=allocations"), seed);
            // Some blocks, and none.
            for steps in [1, 5, 400] {
                program.run(steps);
                check(&program, text);
            }
            let stacks = check(&program, text);
            let has_stack = |event: &&millpond_snapshot::recording::Event| {
                let mut frames = event.stack.into_iter().flat_map(|stack| stacks.stack(stack));
                frames.any(|frame| is_of_program(&frame))
            };
            let allocations = stacks.events().filter(|event| event.kind == EventKind::Allocate);
            assert_eq!(allocations.clone().filter(has_stack).count(), allocations.count(), "{text}");
            program.stack.trim(0).unwrap();
            check(&program, text);
        }
    }
}

/// On a device that the program fills, the pool moves much memory. The sums of the segments are then the
/// bytes that the device counts.
#[test]
fn the_segments_of_a_full_device_have_the_bytes_that_the_device_counts() {
    let mut largest = 0;
    for text in ["cuda+pool", "cuda+pool+binning:bins=4KiB/64KiB/1MiB"] {
        for seed in 0..8 {
            let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
            let mut program = Program::on(Arc::clone(&device), &format!("{text}+recording"), seed);
            for _ in 0..20 {
                program.run(20);
                check(&program, text);
                let memory = device.mem_get_info().unwrap();
                let reserved = program.stack.memory_map().unwrap().bytes_reserved();
                assert_eq!(reserved, memory.total - memory.free, "{text}");
                largest = largest.max(reserved);
            }
            // The recorder hears the end of the pool, which returns all blocks.
            let recorder = Arc::clone(find_trait::<dyn Recording>(&program.stack).unwrap().recorder());
            drop(program);
            // Other tests have pools, too.
            let (events, _) = recorder.events();
            let own = events.iter().filter(|event| event.device == device.device());
            let left: i128 = own.map(|event| bytes_added(event.action.name(), event.bytes)).sum();
            assert_eq!(left, 0, "{text}");
        }
    }
    assert!(largest >= 62 * MIB, "no program filled the device");
}

/// Returns the bytes that an event adds to the segments.
fn bytes_added(action: &str, bytes: u64) -> i128 {
    match action {
        "segment_alloc" | "segment_map" => i128::from(bytes),
        "segment_free" | "segment_unmap" => -i128::from(bytes),
        _ => 0,
    }
}

/// A small ring forgets the beginning. The state is still whole, and the events lead to it.
#[test]
fn a_ring_that_wrapped_is_a_trace_that_began_late() {
    for text in ["cuda+pool+recording:events=200", "cuda+pool:pages=off+recording:events=64"] {
        for seed in 0..4 {
            let mut program = Program::new(text, seed);
            program.run(600);
            let recorder = find_trait::<dyn Recording>(&program.stack).unwrap().recorder();
            assert!(recorder.events().1 > 100, "{text}: the ring did not wrap");
            check(&program, text);
        }
    }
}

/// Without the adaptor there is no history, but all blocks. `tracking` adds their stacks.
#[test]
fn a_stack_without_a_recorder_has_a_state() {
    let mut program = Program::new("cuda+pool+tracking:stacks=on", 1);
    program.run(20);
    let read = check(&program, "tracking");
    assert!(read.unknowns().iter().any(|unknown| unknown.code == "no_trace"));
    for block in read.moment(read.len()).blocks() {
        let mut frames = block.stack.into_iter().flat_map(|stack| read.stack(stack));
        assert!(frames.any(|frame| is_of_program(&frame)));
    }
    let plain = build("cuda", &SimDevice::new(SimConfig::h200()));
    let error = memory_snapshot(&plain).unwrap_err();
    assert!(error.to_string().contains("recording"), "{error}");
}

#[test]
fn a_failed_request_is_in_the_snapshot() {
    let mut program = Program::new("cuda+pool+recording", 3);
    program.run(50);
    program.stack.allocate_bytes(1 << 40, StreamRef::LEGACY).unwrap_err();
    let read = check(&program, "cuda+pool");
    let failed: Vec<u64> =
        read.events().filter(|it| it.kind == EventKind::AllocateFailure).map(|it| it.bytes).collect();
    assert_eq!(failed, [1 << 40]);
    assert_eq!(read.settings().iter().find(|(key, _)| key == "millpond").unwrap().1, "cuda+pool+recording");
}

/// Each device has its segments and its own trace.
#[test]
fn devices_are_apart() {
    let programs = [1, 2].map(|seed| {
        let mut program = Program::new("cuda+pool:pages=off", seed);
        program.run(100);
        program
    });
    let recorder = Recorder::new(RecordOptions::default());
    let mut snapshot = Snapshot::new();
    for program in &programs {
        let stack = &program.stack;
        recorder.allocated(stack.device(), DevicePtr::new(1 << 50), 512, StreamRef::LEGACY);
        recorder.free(stack.device(), DevicePtr::new(1 << 50), 512, StreamRef::LEGACY);
        snapshot.add(stack.device(), &stack.to_string(), stack.memory_map().unwrap());
    }
    let pickle = snapshot.to_pickle(Some(&recorder));
    for program in &programs {
        let device = Some(program.stack.device().ordinal() % 128);
        let options = Options::default().device(device);
        let read = import::read("snapshot.pickle", &pickle[..], &options).unwrap();
        assert!(read.check().unwrap().is_equal(), "{:?}", read.check());
        let end = read.moment(read.len());
        let found: Blocks = end.blocks().iter().map(|block| (block.address, block.bytes)).collect();
        assert_eq!((found, read.device()), (program.blocks(), device));
        let is_own = |event: &&millpond_snapshot::recording::Event| {
            !event.is_before && matches!(event.kind, EventKind::Allocate | EventKind::Free)
        };
        assert_eq!(read.events().filter(is_own).count(), 2);
    }
}

/// While threads work, each snapshot reads back. Afterwards it is equal to the stack.
#[test]
fn a_snapshot_while_threads_work_reads_back() {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let stack = build("cuda+pool+recording:events=1000", &device);
    let kept = stack.allocate_bytes(1000, StreamRef::LEGACY).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let stack = &stack;
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                for _ in 0..2000 {
                    let bytes = rng.between(1, 4 * MIB);
                    let ptr = stack.allocate_bytes(bytes, StreamRef::LEGACY).unwrap();
                    // SAFETY: the block came from this stack with this size, and nothing uses it.
                    unsafe { stack.deallocate_bytes(ptr, bytes, StreamRef::LEGACY) };
                }
            });
        }
        for _ in 0..20 {
            imported(&memory_snapshot(&stack).unwrap());
        }
    });
    let read = imported(&memory_snapshot(&stack).unwrap());
    let end = read.moment(read.len());
    let left: Vec<u64> = end.blocks().iter().map(|block| block.address).collect();
    assert!(read.check().unwrap().is_equal() && left == [kept.address()], "{:?}", read.check());
}
