//! Measures the nanoseconds that each adaptor adds to a call, over a resource that costs next to nothing.
//!
//! ```sh
//! cargo bench -p millpond-adaptors --bench overhead                # all rows
//! cargo bench -p millpond-adaptors --bench overhead -- tracking    # rows whose text contains the word
//! ```
//!
//! Logs go to the folder of temporary files. Set `TMPDIR` to a folder in memory (`/dev/shm`); otherwise the
//! benchmark measures the speed of the disk. Rows that need more cores than the machine has are left out.
//!
//! A step frees a random block and allocates another, as in the workload `churn` of `millpond-replay bench`.
//! The same steps run without and with the adaptor, alternately. A row shows the median, the minimum and the
//! maximum of the differences, for one of the two calls of a step. Times of several threads are means over
//! the threads. Every block has a new address, in no order, which is harder for a table than any pool's
//! addresses.

use std::cell::Cell;
use std::fmt;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use millpond_adaptors::BudgetLayer;
use millpond_core::stack::{LayerEntry, LayerKind, LayerTable, StackSpec};
use millpond_core::{
    Accessibility, AnyResource, ByteSize, DeviceMemoryResource, DevicePtr, DriverHandle, Layout, MemoryInfo,
    ResourceStatistics, Result, StreamRef, Traits, is_same,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_testkit::Rng;

const RUNS: usize = 7;

/// Adaptor, live blocks of each thread, threads, steps of each thread.
const ROWS: &[(&str, usize, usize, usize)] = &[
    ("statistics", 1000, 1, 1_000_000),
    ("statistics", 1000, 2, 1_000_000),
    ("statistics", 1000, 4, 1_000_000),
    ("statistics", 1000, 16, 1_000_000),
    ("limiting:limit=100%", 1000, 1, 1_000_000),
    ("limiting:limit=100%", 1000, 2, 1_000_000),
    ("limiting:limit=100%", 1000, 4, 1_000_000),
    ("limiting:limit=100%", 1000, 16, 1_000_000),
    ("budget:name=etl,limit=100%,parent=job", 1000, 1, 1_000_000),
    ("budget:name=etl,limit=100%,parent=job", 1000, 2, 1_000_000),
    ("budget:name=etl,limit=100%,parent=job", 1000, 4, 1_000_000),
    ("budget:name=etl,limit=100%,parent=job", 1000, 16, 1_000_000),
    ("failure_callback", 1000, 1, 1_000_000),
    ("retry", 1000, 1, 1_000_000),
    ("fallback:to=(nothing)", 1000, 1, 1_000_000),
    ("aligned:alignment=4KiB,threshold=1MiB", 1000, 1, 1_000_000),
    ("aligned:alignment=4KiB", 1000, 1, 1_000_000),
    ("prefetch", 1000, 1, 1_000_000),
    ("capture_scopes", 1000, 1, 1_000_000),
    ("tracking", 1000, 1, 1_000_000),
    ("tracking", 10_000, 1, 1_000_000),
    ("tracking", 100_000, 1, 1_000_000),
    ("tracking", 1_000_000, 1, 2_000_000),
    ("tracking", 1000, 2, 1_000_000),
    ("tracking", 1000, 4, 1_000_000),
    ("recording", 1000, 1, 1_000_000),
    ("recording", 1000, 2, 1_000_000),
    ("recording:stacks=allocations", 1000, 1, 100_000),
    ("recording:stacks=all", 1000, 1, 100_000),
    ("logging:flush=row", 1000, 1, 200_000),
    ("logging:flush=buffered", 1000, 1, 1_000_000),
    ("logging:flush=async", 1000, 1, 5_000_000),
    ("logging:columns=extended,flush=async", 1000, 1, 5_000_000),
    ("logging:flush=async", 1000, 2, 2_500_000),
    ("logging:flush=async", 1000, 4, 1_000_000),
];

fn main() {
    // Cargo passes options; the remaining arguments are words to look for.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let log = std::env::temp_dir().join(format!("millpond-overhead-{}.csv", std::process::id()));
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("MILLPOND_LOG_FILE", &log) };
    println!(
        "{:<40} {:>9} {:>7} {:>9} {:>7} {:>7}",
        "adaptor", "live", "threads", "ns/call", "least", "most"
    );
    for &(adaptor, live, threads, steps) in ROWS {
        if threads <= cores && words.iter().all(|word| adaptor.contains(word.as_str())) {
            let [median, least, most] = added(adaptor, live, threads, steps);
            println!("{adaptor:<40} {live:>9} {threads:>7} {median:>9.1} {least:>7.1} {most:>7.1}");
        }
    }
    let _ = std::fs::remove_file(log);
}

/// The median, least and most time that the adaptor added to a call.
fn added(adaptor: &str, live: usize, threads: usize, steps: usize) -> [f64; 3] {
    let plans: Vec<Plan> = (0..threads).map(|thread| Plan::new(thread, live, steps)).collect();
    let mut differences: Vec<f64> = (0..RUNS)
        .map(|_| {
            let without = nanoseconds(&stack("nothing"), &plans);
            nanoseconds(&stack(&format!("nothing+{adaptor}")), &plans) - without
        })
        .collect();
    differences.sort_by(f64::total_cmp);
    [differences[RUNS / 2], differences[0], differences[RUNS - 1]]
}

fn stack(text: &str) -> AnyResource {
    let driver: DriverHandle = SimDevice::new(SimConfig::h200());
    // The row `budget` is the third level of a tree.
    let budget = |name| BudgetLayer::new(name, ByteSize::PercentOfFree(100.0));
    let above = budget("node").open(&*driver).and_then(|node| {
        let job = budget("job").parent("node").open(&*driver)?;
        Ok((node, job))
    });
    let _above = above.unwrap_or_else(|e| panic!("{e}"));
    let layers = millpond_adaptors::LAYERS.iter().chain(millpond_resources::LAYERS).copied();
    let table = LayerTable::new(layers).with([NOTHING, FAILURE_CALLBACK]);
    text.parse::<StackSpec>().and_then(|spec| spec.build(&table, &driver)).unwrap_or_else(|e| panic!("{e}"))
}

/// The time of one call, as the mean of the threads.
fn nanoseconds(resource: &AnyResource, plans: &[Plan]) -> f64 {
    let barrier = Barrier::new(plans.len());
    let each = std::thread::scope(|scope| {
        let threads: Vec<_> = plans.iter().map(|plan| scope.spawn(|| plan.run(resource, &barrier))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a plan panicked")).sum::<f64>()
    });
    each / plans.len() as f64
}

/// The steps of one thread, drawn before the clock starts. They are read in order, so that only the adaptor's
/// memory is accessed at random.
struct Plan {
    fill: Vec<Block>,
    steps: Vec<Step>,
    rest: Vec<Block>,
}

#[derive(Clone, Copy)]
struct Block {
    address: u64,
    bytes: u64,
}

struct Step {
    goes: Block,
    comes: Block,
}

impl Plan {
    fn new(thread: usize, live: usize, steps: usize) -> Self {
        let mut rng = Rng::new(thread as u64);
        let mut blocks = (0_u64..).map(|number| {
            let doubling = rng.between(8, 19);
            let bytes = rng.between(1 << doubling, 2 << doubling);
            // The factor is odd, so no address comes twice.
            let address = (thread as u64) << 44 | (1 + number * 0x9E37_79B1 % (1 << 35)) << 8;
            Block { address, bytes }
        });
        let fill: Vec<Block> = blocks.by_ref().take(live).collect();
        let (mut rest, mut slots) = (fill.clone(), Rng::new(!(thread as u64)));
        let step = |comes| {
            let slot = slots.below(live as u64) as usize;
            Step { goes: std::mem::replace(&mut rest[slot], comes), comes }
        };
        Self { fill, steps: blocks.take(steps).map(step).collect(), rest }
    }

    fn run(&self, resource: &AnyResource, barrier: &Barrier) -> f64 {
        let stream = StreamRef::LEGACY;
        let allocate = |block: &Block| {
            NEXT.set(block.address);
            black_box(resource.allocate(Layout::new(block.bytes), stream)).expect("nothing fails");
        };
        let free = |block: &Block| {
            // SAFETY: each block is freed once, with its size; there is no memory behind it.
            unsafe { resource.deallocate(DevicePtr::new(block.address), Layout::new(block.bytes), stream) }
        };
        self.fill.iter().for_each(allocate);
        barrier.wait();
        let start = Instant::now();
        for Step { goes, comes } in &self.steps {
            free(goes);
            allocate(comes);
        }
        let elapsed = start.elapsed();
        self.rest.iter().for_each(free);
        elapsed.as_nanos() as f64 / (2 * self.steps.len()) as f64
    }
}

thread_local! {
    /// The next address that [`Nothing`] returns.
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

const NOTHING: LayerEntry = LayerEntry {
    name: "nothing",
    about: "hands out addresses that the benchmark chooses",
    params: &[],
    kind: LayerKind::Base(|_, driver| Ok(std::sync::Arc::new(Nothing(driver.clone())))),
};

/// Text cannot name a function, so the benchmark has its own layer for it.
const FAILURE_CALLBACK: LayerEntry = LayerEntry {
    name: "failure_callback",
    about: "a function that is never called",
    params: &[],
    kind: LayerKind::Layer(|_, upstream| {
        let layer = millpond_adaptors::FailureCallbackLayer::new(|_| false);
        Ok(std::sync::Arc::new(millpond_core::Layer::layer(layer, upstream)?))
    }),
};

/// Returns the address that the thread sets, and does nothing else.
#[derive(Debug)]
struct Nothing(DriverHandle);

// SAFETY: each block of a plan has its own address, and no code touches memory behind it.
#[deny(clippy::missing_trait_methods)]
unsafe impl DeviceMemoryResource for Nothing {
    fn allocate(&self, _: Layout, _: StreamRef) -> Result<DevicePtr> {
        Ok(DevicePtr::new(NEXT.get()))
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, _: Layout, _: StreamRef) {
        black_box(ptr);
    }

    fn driver(&self) -> &DriverHandle {
        &self.0
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        None
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        Ok(MemoryInfo { free: 1 << 60, total: 1 << 60 })
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    fn is_stream_ordered(&self) -> bool {
        true
    }

    fn accessibility(&self) -> Accessibility {
        Accessibility::DEVICE
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        None
    }

    fn trim(&self, _: u64) -> Result<u64> {
        Ok(0)
    }

    fn provide(&self, _traits: &mut Traits) {}
}

impl fmt::Display for Nothing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing")
    }
}
