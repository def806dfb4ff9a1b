//! Tests what pools tell a memory checker, with a stand-in for the checker. `examples/memory_checker.rs` runs
//! under the real one.
#![cfg(target_os = "linux")]

use std::ffi::OsStr;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock};

use libloading::Library;
use millpond_core::driver::{CaptureMode, StreamFlags, is_capturing};
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Driver, DriverHandle, Layout,
    Result, StreamRef, debug_as_text, forward_to_upstream,
};
use millpond_driver::nvtx::MemoryChecker;
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::LAYERS;
use millpond_testkit::own_process;
use millpond_testkit::program::{self, Config};
use parking_lot::Mutex;

const VARIABLE: &str = "NVTX_INJECTION64_PATH";
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The stand-in, compiled as a library.
static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (fresh, path) =
        (folder.join(format!("fake_{}.so", std::process::id())), folder.join("fake_checker.so"));
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()));
    rustc.args(["--crate-type=cdylib", "--crate-name=fake", "--edition=2024", "-o"]).arg(&fresh);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/memory_checker/fake.rs");
    let output = rustc.arg(source).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Another process may load the library now.
    std::fs::rename(&fresh, &path).unwrap();
    path
});

/// Runs `body` in a process to which a stand-in of this kind is attached.
fn with<F: FnOnce()>(kind: &str, body: F) {
    let library = std::env::var_os(VARIABLE).unwrap_or_else(|| LIBRARY.clone().into());
    own_process::run_with(&[(VARIABLE, &*library), ("FAKE_CHECKER", OsStr::new(kind))], body);
}

/// The stand-in that is attached to this process.
struct Fake {
    state: unsafe extern "C" fn(usize) -> u32,
    count: unsafe extern "C" fn() -> u64,
    reset: unsafe extern "C" fn(),
}

impl Fake {
    fn new() -> Self {
        // SAFETY: the stand-in has no initialisers, and its functions have these types.
        unsafe {
            let library = Box::leak(Box::new(Library::new(std::env::var_os(VARIABLE).unwrap()).unwrap()));
            Self {
                state: *library.get("fake_checker_state").unwrap(),
                count: *library.get("fake_checker_count").unwrap(),
                reset: *library.get("fake_checker_reset").unwrap(),
            }
        }
    }

    /// Returns whether the checker would report an access to this byte of the block.
    fn reports(&self, block: DevicePtr, at: u64) -> bool {
        self.state(block, at) == Byte::Reported
    }

    fn state(&self, block: DevicePtr, at: u64) -> Byte {
        // SAFETY: the function takes any address.
        match unsafe { (self.state)((block.address() + at) as usize) } {
            0 => Byte::Unknown,
            1 => Byte::Accessible,
            _ => Byte::Reported,
        }
    }

    /// Returns the number of regions, and 1 000 000 for each wrong call.
    fn count(&self) -> u64 {
        // SAFETY: the function has no conditions.
        unsafe { (self.count)() }
    }
}

/// The checker's view of a byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Byte {
    /// It is in no pool.
    Unknown,
    Accessible,
    Reported,
}

fn stack(text: &str, device: &DriverHandle) -> AnyResource {
    let table = LayerTable::new(LAYERS.iter().chain(millpond_adaptors::LAYERS).copied());
    text.parse::<StackSpec>().unwrap().build(&table, device).unwrap()
}

fn free(stack: &AnyResource, block: DevicePtr, bytes: u64, stream: StreamRef) {
    // SAFETY: the tests free each block once, with its size; no work uses it.
    unsafe { stack.deallocate_bytes(block, bytes, stream) }
}

const STACKS: [&str; 10] = [
    "cuda+pool",
    "cuda+pool:max=50%",
    "managed+pool",
    "cuda+statistics+pool",
    "cuda+arena:size=4MiB",
    "cuda+fixed_size:block_size=1MiB,blocks=8",
    "cuda+pool+pool",
    "cuda+pool+fixed_size:block_size=1MiB,blocks=8",
    "cuda+pool+binning",
    // Larger requests go to `cuda`, whose allocations the checker knows by itself.
    "cuda+binning:bins=1MiB/8MiB",
];

#[test]
fn a_free_in_a_pool_that_refuses_it_changes_nothing() {
    with("", || {
        let fake = Fake::new();
        let driver: DriverHandle = SimDevice::new(SimConfig::h200());
        let [owner, other] = [(); 2].map(|()| stack("cuda+pool", &driver));
        let block = owner.allocate_bytes(1000, StreamRef::LEGACY).unwrap();
        // In a debug build, a refused free panics.
        let refused = catch_unwind(AssertUnwindSafe(|| free(&other, block, 1000, StreamRef::LEGACY)));
        assert!(refused.is_err());
        assert_eq!(fake.state(block, 999), Byte::Accessible);
        free(&owner, block, 1000, StreamRef::LEGACY);
        assert_ne!(fake.state(block, 999), Byte::Accessible);
    });
}

#[test]
fn after_a_reset_the_checker_hears_of_no_earlier_memory() {
    with("", || {
        let fake = Fake::new();
        let first = SimDevice::new(SimConfig::h200());
        for is_dropped_first in [true, false] {
            let handle: DriverHandle = first.open_again();
            let lost = stack("cuda+pool+pool", &handle);
            let take = |stack: &AnyResource| stack.allocate_bytes(1000, StreamRef::LEGACY).unwrap();
            let blocks = [(); 3].map(|()| take(&lost));
            free(&lost, blocks[0], 1000, StreamRef::LEGACY);
            first.reset_context();
            // SAFETY: the function has no conditions.
            unsafe { (fake.reset)() };
            free(&lost, blocks[1], 1000, StreamRef::LEGACY);
            let lost = (!is_dropped_first).then_some(lost);
            let again: DriverHandle = first.open_again();
            let stack = stack("cuda+pool+pool", &again);
            let anew = [(); 3].map(|()| take(&stack));
            assert!(anew.contains(&blocks[2]), "the new pool has the addresses of the lost one");
            assert_eq!(fake.count(), 3);
            drop(lost);
            assert_eq!((fake.count(), fake.state(anew[2], 999)), (3, Byte::Accessible));
            free(&stack, anew[1], 1000, StreamRef::LEGACY);
            assert_eq!((fake.count(), fake.reports(anew[1], 0)), (2, true));
        }
    });
}

#[test]
fn a_block_is_accessible_from_its_first_to_its_last_byte_while_it_lives() {
    with("", || {
        let fake = Fake::new();
        for text in STACKS {
            let device: DriverHandle = SimDevice::new(SimConfig::with_capacity(256 * MIB));
            let stack = stack(text, &device);
            for bytes in [1, 100, 255, 1000, 64 * KIB + 1, MIB - 1] {
                // More calls than a stream needs before a thread would cache its blocks.
                for _ in 0..20 {
                    let block = stack.allocate_bytes(bytes, StreamRef::LEGACY).unwrap();
                    let reported = [0, bytes - 1, bytes].map(|at| fake.reports(block, at));
                    assert_eq!(reported, [false, false, true], "{bytes} bytes of `{text}`");
                    free(&stack, block, bytes, StreamRef::LEGACY);
                    assert!(fake.reports(block, 0) && fake.reports(block, bytes - 1), "`{text}`: it is free");
                }
            }
            assert!(stack.allocate_bytes(0, StreamRef::LEGACY).unwrap().is_null());
            let left = stack.allocate_bytes(100, StreamRef::LEGACY).unwrap();
            assert_eq!((fake.count(), fake.reports(left, 0)), (1, false));
            drop(stack);
            assert_eq!((fake.count(), fake.reports(left, 0)), (0, true), "`{text}` ended");
        }
    });
}

/// Compares each call with the checker's view.
struct Watched {
    upstream: AnyResource,
    fake: Fake,
    /// The blocks that a captured graph may use.
    captured: Mutex<Vec<DevicePtr>>,
}

impl Watched {
    fn is_capturing(&self, stream: StreamRef) -> bool {
        is_capturing(&**self.upstream.driver(), stream) != Ok(false)
    }
}

// SAFETY: every call goes to the upstream with the same arguments.
unsafe impl DeviceMemoryResource for Watched {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let block = self.upstream.allocate(layout, stream)?;
        self.captured.lock().retain(|captured| *captured != block);
        if self.is_capturing(stream) {
            self.captured.lock().push(block);
        }
        if layout.bytes() > 0 {
            let known = [0, layout.bytes() - 1].map(|at| self.fake.state(block, at));
            assert_eq!(known, [Byte::Accessible; 2], "{block}");
            let is_padded = !layout.bytes().is_multiple_of(256);
            assert!(
                !is_padded || self.fake.reports(block, layout.bytes()),
                "the padding of {block} is accessible"
            );
        }
        Ok(block)
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        let is_captured = self.is_capturing(stream) || self.captured.lock().contains(&ptr);
        // SAFETY: the caller's promises.
        unsafe { self.upstream.deallocate(ptr, layout, stream) };
        if let Some(last) = layout.bytes().checked_sub(1) {
            for at in [0, last] {
                let is_accessible = self.fake.state(ptr, at) == Byte::Accessible;
                assert!(is_captured || !is_accessible, "{ptr} is free, but accessible");
            }
        }
    }

    forward_to_upstream!(except allocate, deallocate);
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.upstream)
    }
}

debug_as_text!(Watched);

/// Runs random programs over each stack.
fn programs(seeds: u64) {
    let fake = Fake::new();
    for (text, index) in STACKS.iter().zip(0..) {
        let largest = if text.contains("fixed_size") { MIB } else { 8 * MIB };
        let config = Config::new(*text).largest_bytes(largest).captures(true).faults(index % 2 == 0);
        for seed in index * seeds..(index + 1) * seeds {
            let outcome = program::run(seed, &config, &|driver| {
                let watched =
                    Watched { upstream: stack(text, driver), fake: Fake::new(), captured: Mutex::default() };
                Ok(Arc::new(watched) as AnyResource)
            });
            if let Err(failure) = outcome {
                panic!("{failure}");
            }
            assert_eq!(fake.count(), 0, "`{text}`, seed {seed}");
        }
    }
}

#[test]
fn the_checker_knows_every_block_of_random_programs() {
    with("", || programs(30));
}

/// Returns the failure of random programs with a stand-in that makes mistakes.
fn failure() -> String {
    let found = catch_unwind(AssertUnwindSafe(|| programs(1))).expect_err("the mistake is noticed");
    *found.downcast::<String>().expect("a message")
}

#[test]
fn a_checker_that_loses_the_end_of_regions_is_noticed() {
    with("forgetful", || assert!(failure().contains("is free, but accessible")));
}

#[test]
fn a_checker_that_ignores_accesses_to_padding_is_noticed() {
    with("wide", || assert!(failure().contains("the padding of")));
}

/// A launch of the graph may use the block, until another request has its address.
#[test]
fn a_block_of_a_captured_graph_stays_accessible() {
    with("", || {
        let fake = Fake::new();
        let sim = SimDevice::new(SimConfig::with_capacity(64 * MIB));
        let driver: DriverHandle = sim.clone();
        let stack = stack("cuda+pool", &driver);
        let stream = sim.stream_create(StreamFlags::NON_BLOCKING).unwrap();
        let before = stack.allocate_bytes(1000, stream).unwrap();
        sim.begin_capture(stream, CaptureMode::Global).unwrap();
        let within = stack.allocate_bytes(1000, stream).unwrap();
        let after = stack.allocate_bytes(1000, stream).unwrap();
        free(&stack, before, 1000, stream);
        free(&stack, within, 1000, stream);
        sim.end_capture(stream).unwrap();
        free(&stack, after, 1000, stream);
        assert_eq!([before, within, after].map(|block| fake.reports(block, 999)), [false; 3]);
        let next = [(); 3].map(|()| stack.allocate_bytes(900, stream).unwrap());
        for block in next {
            assert!([before, within, after].contains(&block), "the pool reuses the blocks");
            assert_eq!((fake.reports(block, 899), fake.reports(block, 900)), (false, true));
            free(&stack, block, 900, stream);
            assert!(fake.reports(block, 0));
        }
        drop(stack);
        assert_eq!(fake.count(), 0);
    });
}

#[test]
fn a_tool_that_is_no_checker_gets_no_calls() {
    with("profiler", || assert_eq!((byte_of_a_pool(), is_attached()), (Byte::Unknown, false)));
}

#[test]
fn a_tool_that_refuses_gets_no_calls() {
    with("refuses", || assert_eq!((byte_of_a_pool(), is_attached()), (Byte::Unknown, false)));
}

#[test]
fn a_tool_with_a_part_of_the_functions_gets_no_calls() {
    with("partial", || assert_eq!((byte_of_a_pool(), is_attached()), (Byte::Unknown, false)));
}

#[test]
fn a_library_that_is_missing_is_no_checker() {
    own_process::run_with(&[(VARIABLE, OsStr::new("/nowhere/tool.so"))], || {
        assert!(!is_attached());
    });
}

#[test]
fn a_library_without_the_extension_is_no_checker() {
    own_process::run_with(&[(VARIABLE, OsStr::new("libc.so.6"))], || {
        assert!(!is_attached());
    });
}

fn is_attached() -> bool {
    let device = SimDevice::new(SimConfig::h200());
    MemoryChecker::attached(device.device()).is_some()
}

/// Memory that a pool must map, and memory of CUDA's own pools, is nothing that the checker accepts.
#[test]
fn memory_that_the_checker_cannot_know_is_not_registered() {
    with("", || {
        let fake = Fake::new();
        for text in
            ["cuda+pool:pages=on", "cuda+pool:share=fd", "cuda+pool:pages=on+binning", "cuda_async+pool"]
        {
            let device: DriverHandle = SimDevice::new(SimConfig::h200());
            let stack = stack(text, &device);
            let block = stack.allocate_bytes(1000, StreamRef::LEGACY).unwrap();
            assert_eq!((fake.state(block, 0), fake.count()), (Byte::Unknown, 0), "`{text}`");
            free(&stack, block, 1000, StreamRef::LEGACY);
        }
    });
}

/// Uses a pool, and returns the stand-in's view of its block.
fn byte_of_a_pool() -> Byte {
    let device: DriverHandle = SimDevice::new(SimConfig::h200());
    let stack = stack("cuda+pool", &device);
    let block = stack.allocate_bytes(1000, StreamRef::LEGACY).unwrap();
    let byte = Fake::new().state(block, 0);
    free(&stack, block, 1000, StreamRef::LEGACY);
    byte
}
