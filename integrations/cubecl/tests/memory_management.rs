//! Runs cubecl's memory manager over resources of millpond, on a simulated device that checks the order of
//! streams and the contents of memory.

use std::sync::Arc;

use cubecl_runtime::server::IoError;
use cubecl_runtime::storage::{ComputeStorage, StorageHandle, StorageUtilization};
use cubecl_server::logging::ServerLogger;
use cubecl_server::memory_management::{
    Cleanup, ErrorGraph, ManagedMemoryHandle, MemoryAllocationMode, MemoryConfiguration, MemoryManagement,
    MemoryManagementOptions, PageUpdate,
};
use millpond::containers::Event;
use millpond::driver::sim::{Access, SimConfig, SimDevice};
use millpond::driver::{DriverHandle, EventFlags, StreamFlags};
use millpond::stack::StackSpec;
use millpond::{AnyResource, DevicePtr, Driver, StreamRef};
use millpond_cubecl::MillpondStorage;
use millpond_testkit::{Checked, Rng};

/// cubecl-cuda's alignment.
const ALIGNMENT: u64 = 512;
const MIB: u64 = 1 << 20;
const STACKS: [&str; 5] = ["cuda", "cuda_async", "cuda+pool", "cuda+pool:pages=off", "cuda+arena"];

type Storage = MillpondStorage<AnyResource>;
type Properties = cubecl_ir::MemoryDeviceProperties;

fn stack_on(text: &str, device: &Arc<SimDevice>) -> Arc<Checked<AnyResource>> {
    let driver: DriverHandle = device.clone();
    let stack = text.parse::<StackSpec>().unwrap().build(&millpond::layers(), &driver).unwrap();
    Arc::new(Checked::new(stack, Some(device.clone())))
}

fn storage(stack: &AnyResource, stream: StreamRef) -> Storage {
    // SAFETY: the tests destroy no stream, and the simulated device reports uses in a wrong order.
    unsafe { MillpondStorage::new(stack.clone(), stream, ALIGNMENT) }.unwrap()
}

/// One of cubecl's streams: its memory manager, and the raw stream.
struct Stream {
    raw: StreamRef,
    memory: MemoryManagement<Storage>,
}

/// What cubecl's server for CUDA does with memory, over a simulated device.
struct Server {
    device: Arc<SimDevice>,
    streams: Vec<Stream>,
    failures: ErrorGraph,
    /// Memory of one stream in use on another: cubecl's `GcThread` drops it after the event.
    pinned: Vec<(Event, ManagedMemoryHandle)>,
}

/// A live reservation. Its memory is filled with the tag.
struct Block {
    handle: ManagedMemoryHandle,
    owner: usize,
    at: DevicePtr,
    bytes: u64,
    tag: u64,
}

impl Server {
    fn new(device: &Arc<SimDevice>, stack: &AnyResource, config: &MemoryConfiguration) -> Self {
        let streams = (0..3).map(|_| {
            let raw = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
            let memory = MemoryManagement::from_configuration(
                storage(stack, raw),
                &Properties::new(64 * MIB, ALIGNMENT),
                config.clone(),
                Arc::new(ServerLogger::default()),
                MemoryManagementOptions::new("test").mode(MemoryAllocationMode::Auto),
            );
            Stream { raw, memory }
        });
        let streams = streams.collect();
        Self { device: device.clone(), streams, failures: ErrorGraph::default(), pinned: Vec::new() }
    }

    fn reserve(&mut self, owner: usize, bytes: u64, tag: u64) -> Result<Block, IoError> {
        let stream = &mut self.streams[owner];
        let handle = stream.memory.reserve(bytes, PageUpdate::Allow, &mut self.failures)?;
        let at = DevicePtr::new(stream.memory.get_resource(handle.clone().binding(), None, None)?);
        self.device.launch(stream.raw, &[Access::write(at, bytes, tag)]);
        Ok(Block { handle, owner, at, bytes, tag })
    }

    /// Reads the block on a stream. If `is_pinned`, keeps the block until the read is done, as cubecl does.
    fn read(&mut self, block: &Block, user: usize, is_pinned: bool) {
        let (origin, stream) = (self.streams[block.owner].raw, self.streams[user].raw);
        if user != block.owner {
            self.event_of(origin).make_wait(stream).unwrap();
        }
        // 1 ms: much longer than the calls, so the work of several streams overlaps.
        self.device.launch_for(stream, &[Access::check(block.at, block.bytes, block.tag)], 1_000_000);
        if user != block.owner && is_pinned {
            self.pinned.push((self.event_of(stream), block.handle.clone()));
        }
    }

    fn event_of(&self, stream: StreamRef) -> Event {
        let event = Event::new(self.device.clone(), EventFlags::default()).unwrap();
        event.record(stream).unwrap();
        event
    }

    /// Drops the pinned memory whose use is done; with `wait`, all pinned memory.
    fn collect(&mut self, wait: bool) {
        self.pinned.retain(|(event, _)| {
            if wait {
                event.synchronize().unwrap();
            }
            !event.query().unwrap()
        });
    }

    fn cleanup(&mut self, cleanup: Cleanup) {
        for stream in &mut self.streams {
            stream.memory.cleanup(cleanup, &mut self.failures);
        }
    }

    fn bytes(&self) -> u64 {
        self.streams.iter().map(|stream| stream.memory.bytes_allocated()).sum()
    }
}

/// A size as programs have them: mostly small, sometimes a large share of a page.
fn random_bytes(rng: &mut Rng) -> u64 {
    let bits = rng.between(4, 23);
    rng.between(1, 1 << bits)
}

fn run_program(text: &str, config: &MemoryConfiguration, seed: u64) {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30).seed(seed));
    let checked = stack_on(text, &device);
    let stack: AnyResource = checked.clone();
    let mut server = Server::new(&device, &stack, config);
    let (mut rng, mut live) = (Rng::new(seed), Vec::<Block>::new());
    let mut peak = 0;
    for step in 0..400 {
        match rng.below(10) {
            0..4 => {
                let owner = rng.below(3) as usize;
                let bytes = random_bytes(&mut rng);
                let block = server.reserve(owner, bytes, step + 1).expect("the device is large enough");
                assert!(block.at.is_aligned_to(ALIGNMENT), "{text}, seed {seed}: {}", block.at);
                let (start, end) = (block.at.address(), block.at.address() + bytes);
                let apart =
                    |other: &Block| end <= other.at.address() || other.at.address() + other.bytes <= start;
                assert!(live.iter().all(apart), "{text}, seed {seed}: {} overlaps", block.at);
                live.push(block);
            }
            4..7 if !live.is_empty() => {
                let block = &live[rng.below(live.len() as u64) as usize];
                server.read(block, rng.below(3) as usize, true);
            }
            7..9 if !live.is_empty() => {
                let block = live.swap_remove(rng.below(live.len() as u64) as usize);
                server.read(&block, block.owner, true);
            }
            9 => {
                server.collect(rng.percent(20));
                server.cleanup(if rng.percent(50) { Cleanup::Explicit } else { Cleanup::Periodic });
            }
            _ => {}
        }
        peak = peak.max(server.bytes());
    }
    for block in std::mem::take(&mut live) {
        server.read(&block, block.owner, true);
    }
    server.collect(true);
    server.cleanup(Cleanup::Explicit);
    assert!(peak > 8 * MIB, "{text}, seed {seed}: the program used only {peak} bytes");
    assert_eq!(server.bytes(), 0, "{text}, seed {seed}: cubecl keeps pages");
    assert_eq!(checked.shadow(|shadow| shadow.live_blocks()), 0, "{text}, seed {seed}: pages are live");
    drop((server, stack));
    assert!(checked.take_faults().is_empty());
    drop(checked);
    device.synchronize().unwrap();
    assert_eq!(device.violations(), [], "{text}, seed {seed}");
    assert_eq!(device.live_bytes(), 0, "{text}, seed {seed}: the device misses memory");
}

#[test]
fn random_programs_get_their_own_memory_and_return_all_of_it() {
    for text in STACKS {
        for config in [MemoryConfiguration::Adaptive, MemoryConfiguration::ExclusivePages] {
            (0..10).for_each(|seed| run_program(text, &config, seed));
        }
    }
}

/// The device finds what cubecl's pins prevent, so the programs above would find a page that is freed before
/// the last read.
#[test]
fn without_pins_a_page_is_reused_under_a_read() {
    for is_pinned in [true, false] {
        let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
        let stack: AnyResource = stack_on("cuda+pool", &device);
        let mut server = Server::new(&device, &stack, &MemoryConfiguration::ExclusivePages);
        let block = server.reserve(0, MIB, 7).unwrap();
        server.read(&block, 1, is_pinned);
        drop(block);
        server.cleanup(Cleanup::Explicit);
        let _next = server.reserve(0, MIB, 8).unwrap();
        device.synchronize().unwrap();
        assert_eq!(device.take_violations().is_empty(), is_pinned);
    }
}

#[test]
fn a_page_of_one_stream_serves_another_stream() {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let stack: AnyResource = stack_on("cuda+pool", &device);
    let mut server = Server::new(&device, &stack, &MemoryConfiguration::ExclusivePages);
    let first = server.reserve(0, 32 * MIB, 1).unwrap();
    drop(first);
    server.cleanup(Cleanup::Explicit);
    device.synchronize().unwrap(); // the pool would grow rather than let the second stream wait
    let held = device.used_bytes();
    let _second = server.reserve(1, 32 * MIB, 2).unwrap();
    assert_eq!(device.used_bytes(), held);
    device.synchronize().unwrap();
    assert_eq!(device.violations(), []);
}

#[test]
fn out_of_memory_is_an_error_and_ends_after_a_cleanup() {
    let device = SimDevice::new(SimConfig::with_capacity(256 * MIB));
    let stack: AnyResource = stack_on("cuda+pool:max=128MiB", &device);
    let mut server = Server::new(&device, &stack, &MemoryConfiguration::ExclusivePages);
    let mut live = Vec::new();
    let error = loop {
        match server.reserve(live.len() % 2, 8 * MIB, 1) {
            Ok(block) => live.push(block),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, IoError::OutOfMemory { .. }), "{error}");
    assert!(live.len() >= 8, "{} blocks", live.len());
    live.clear();
    server.cleanup(Cleanup::Explicit);
    assert_eq!(server.bytes(), 0);
    server.reserve(0, 8 * MIB, 2).unwrap();
    device.synchronize().unwrap();
    assert_eq!(device.violations(), []);
}

#[test]
fn a_size_that_no_device_has_is_too_big() {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let stack: AnyResource = stack_on("cuda+pool", &device);
    let mut storage = storage(&stack, StreamRef::LEGACY);
    assert!(matches!(storage.alloc(u64::MAX), Err(IoError::BufferTooBig { size: u64::MAX, .. })));
    assert!(matches!(storage.alloc(1 << 40), Err(IoError::OutOfMemory { .. })));
    assert_eq!(storage.bytes_allocated(), 0);
}

#[test]
fn a_retired_page_is_held_until_the_flush() {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let checked = stack_on("cuda", &device);
    let stack: AnyResource = checked.clone();
    let mut storage = storage(&stack, StreamRef::LEGACY);
    let empty = storage.alloc(0).unwrap();
    let page = storage.alloc(1000).unwrap();
    let inside = StorageHandle::new(page.id, StorageUtilization { offset: 512, size: 488 });
    assert_eq!(storage.get(&inside).unwrap(), storage.get(&page).unwrap() + 512);
    assert_eq!(storage.get(&empty).unwrap(), 0);
    storage.dealloc(page.id);
    storage.dealloc(page.id);
    assert!(matches!(storage.get(&page), Err(IoError::StorageHandleNotFound { .. })));
    let live = || checked.shadow(|shadow| shadow.live_blocks());
    assert_eq!((storage.bytes_allocated(), live()), (1000, 1));
    storage.flush();
    storage.flush();
    assert_eq!((storage.bytes_allocated(), live()), (0, 0));
}

#[test]
fn a_dropped_storage_waits_and_returns_its_pages() {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let checked = stack_on("cuda+pool", &device);
    let stack: AnyResource = checked.clone();
    let other = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    let mut first = storage(&stack, StreamRef::LEGACY);
    let [kept, retired] = [MIB, 2 * MIB].map(|bytes| first.alloc(bytes).unwrap());
    let at = DevicePtr::new(first.get(&kept).unwrap());
    device.synchronize().unwrap();
    device.launch_for(other, &[Access::write(at, MIB, 1)], 1_000_000_000);
    first.dealloc(retired.id);
    drop(first);
    assert_eq!(checked.shadow(|shadow| shadow.live_blocks()), 0);
    assert!(device.stream_query(other).unwrap(), "the drop has waited");
    assert_eq!(device.violations(), []);
}
