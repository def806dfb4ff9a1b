//! Tests that Rust's layers and a text build the same stack: layers, report, traits and text.
#![cfg(feature = "logging")]

use millpond_adaptors::budget::Zero;
use millpond_adaptors::{
    AlignedLayer, AllocationCounters, AllocationLimit, AllocationLog, AllocationTracker, BudgetLayer,
    FallbackLayer, LimitingLayer, LoggingLayer, PrefetchLayer, RecordStacks, RecordingLayer, RetryLayer,
    StatisticsLayer, ThreadSafeLayer, TrackingLayer,
};
use millpond_core::stack::{FilePath, LayerTable, StackSpec};
use millpond_core::{
    AnyResource, ByteSize, DeviceMemoryResource, DeviceMemoryResourceExt, DriverHandle, Result, StreamRef,
    find_trait,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_plan::PlanLayer;
use millpond_resources::{
    ArenaLayer, BinningLayer, CaptureScopesLayer, CudaMemoryResource, FixedSizeLayer, ManagedMemoryResource,
    PoolLayer,
};

const S: StreamRef = StreamRef::LEGACY;
const SHARE: ByteSize = ByteSize::PercentOfFree(12.5);

fn layers_of_all() -> LayerTable {
    LayerTable::new(millpond_resources::LAYERS.iter().chain(millpond_plan::LAYERS).copied())
        .with(millpond_adaptors::LAYERS.iter().copied())
}

/// The answers of a stack to all questions.
#[derive(PartialEq, Debug)]
struct Seen {
    text: String,
    layers: Vec<String>,
    report: String,
    limit: Option<u64>,
    counted: Option<i64>,
    tracked: Option<u64>,
    log: Option<std::path::PathBuf>,
}

impl Seen {
    fn of<R: DeviceMemoryResource>(stack: &R) -> Self {
        let block = stack.allocate_bytes(1000, S).unwrap();
        let mut report = stack.memory_report();
        // The frames differ with the types.
        report.layers.iter_mut().flat_map(|layer| &mut layer.holders).for_each(|it| it.backtrace = None);
        let seen = Self {
            text: stack.to_string(),
            layers: stack.stack().map(ToString::to_string).collect(),
            report: format!("{:?}", report.layers),
            limit: find_trait::<dyn AllocationLimit>(stack).map(|it| it.limit_bytes()),
            counted: find_trait::<dyn AllocationCounters>(stack).map(|it| it.counters().bytes.current),
            tracked: find_trait::<dyn AllocationTracker>(stack).map(|it| it.allocated_bytes()),
            log: find_trait::<dyn AllocationLog>(stack).and_then(|it| it.file().map(Into::into)),
        };
        // SAFETY: the block came from this stack with this size, once, and nothing uses it.
        unsafe { stack.deallocate_bytes(block, 1000, S) };
        seen
    }
}

fn device() -> DriverHandle {
    SimDevice::new(SimConfig::with_capacity(8 << 30))
}

/// Removes the addresses and the number of the device, which differ on another device.
fn comparable(mut seen: Seen) -> Seen {
    seen.report = seen.report.chars().filter(|letter| !letter.is_ascii_digit()).collect();
    seen
}

fn from_text(text: &str) -> AnyResource {
    let spec: StackSpec = text.parse().unwrap_or_else(|error| panic!("`{text}`: {error}"));
    spec.build(&layers_of_all(), &device()).unwrap_or_else(|error| panic!("`{text}`: {error}"))
}

/// Compares a typed stack, the same stack with a lock over it, and the stack that the typed stack's text
/// builds.
fn check<R: DeviceMemoryResource + Send + Sync>(name: &str, build: impl Fn() -> Result<R>) {
    let built = Seen::of(&build().unwrap());
    assert!(built.text.contains(name), "{}", built.text);
    let text = built.text.clone();
    assert_eq!(comparable(built), comparable(Seen::of(&from_text(&text))), "{text}");
    let locked = Seen::of(&build().unwrap().layer(ThreadSafeLayer::new()).unwrap());
    assert_eq!(
        comparable(locked),
        comparable(Seen::of(&from_text(&format!("{text}+thread_safe")))),
        "{text}+thread_safe"
    );
}

fn cuda() -> CudaMemoryResource {
    CudaMemoryResource::new(device())
}

/// A path of characters that text uses itself, with a name in braces.
fn log() -> (tempfile::TempDir, FilePath) {
    let folder = tempfile::tempdir().unwrap();
    let path = FilePath::new(folder.path().join("new/a+b,(c) \"{x2b}\".{pid}.{device}.csv"));
    (folder, path)
}

#[test]
fn issue_29_each_layer_is_the_same_from_rust_and_from_text() {
    check("aligned", || cuda().layer(AlignedLayer::new(512)));
    check("arena", || cuda().layer(ArenaLayer::new().size_bytes(SHARE).maximum_bytes(1 << 30)));
    check("binning", || {
        let below = cuda();
        let own = CudaMemoryResource::new(DriverHandle::clone(below.driver())).into_any();
        below.layer(BinningLayer::new().add_bin(4096).add_bin_with(1 << 20, own))
    });
    check("budget", || cuda().layer(BudgetLayer::new("a", SHARE).priority(2).zero(Zero::Handover)));
    check("capture_scopes", || cuda().layer(CaptureScopesLayer::new()));
    check("fallback", || {
        let below = cuda();
        let other = ManagedMemoryResource::new(DriverHandle::clone(below.driver())).into_any();
        below.layer(FallbackLayer::new(other))
    });
    check("fixed_size", || cuda().layer(FixedSizeLayer::new().block_bytes(4096).preallocated_blocks(2)));
    check("limiting", || cuda().layer(LimitingLayer::new(SHARE)));
    check("plan", || cuda().layer(PlanLayer::file("../testkit/plans/equal_1024.plan")));
    check("pool", || {
        cuda().layer(PoolLayer::new().initial_bytes(SHARE).maximum_bytes(ByteSize::PercentOfFree(33.0)))
    });
    check("prefetch", || ManagedMemoryResource::new(device()).layer(PrefetchLayer::new()));
    check("retry", || cuda().layer(RetryLayer::new()));
    check("statistics", || cuda().layer(StatisticsLayer::new()));
    check("tracking", || cuda().layer(TrackingLayer::new()));
    check("recording:events=10,stacks=all", || {
        cuda().layer(RecordingLayer::new().events(10).stacks(RecordStacks::All))
    });
}

#[test]
fn issue_29_files_are_the_same_from_rust_and_from_text() {
    let (folder, path) = log();
    let build = || cuda().layer(LoggingLayer::new().file(path.as_path()));
    let built = Seen::of(&build().unwrap());
    let wanted = path.resolve(Some(device().device())).unwrap();
    assert!(built.log.as_ref().unwrap().starts_with(folder.path()));
    assert_eq!(built.log.as_ref().unwrap().parent(), wanted.parent());
    let read = Seen::of(&from_text(&built.text));
    assert_eq!(built.text, read.text);
    // With `{device}`, each device has its own file.
    assert_eq!(std::fs::read_dir(wanted.parent().unwrap()).unwrap().count(), 2);
    let dump = || cuda().layer(ArenaLayer::new().size_bytes(4 << 20).dump_log_on_failure(path.as_path()));
    check("arena", dump);
}

#[test]
fn issue_29_a_stack_prints_what_was_said() {
    for text in [
        "cuda+pool:max=33%",
        "cuda+pool:initial=12.5%,max=50%",
        "cuda+pool:initial=1000B",
        "cuda+limiting:limit=33%",
        "cuda+limiting:limit=1B",
        "cuda+budget:name=a,limit=33%",
        "cuda+arena:size=10%,max=20%",
        "cuda_async:initial=10%,release_threshold=20%,max=50%",
        "cuda+pool:max=48098181KiB",
    ] {
        let device: DriverHandle = SimDevice::new(SimConfig::h200());
        let built = text.parse::<StackSpec>().unwrap().build(&layers_of_all(), &device).unwrap();
        assert_eq!(built.to_string(), text);
    }
}
