//! Tests stream order on a real GPU: a kernel writes tags into blocks, and another kernel checks them before
//! the blocks are freed. Each launch takes 1 to 16 blocks, because launches cost the most.
//!
//! Host threads with several streams each allocate, free, pass blocks between streams and between threads,
//! destroy streams and trim, all on one shared resource. If a resource gives a block to a stream too early,
//! or to two owners, one owner overwrites another owner's tag, and mismatches are counted.
//! `tests/it/order.rs` runs similar programs on the simulated device, which can produce every order of
//! execution; here the hardware chooses.
//!
//! | variable | setting | default |
//! |---|---|---|
//! | `MILLPOND_SOAK_OPS` | operations on each stack | 1000000 |
//! | `MILLPOND_SOAK_STACKS` | the stacks, separated by `;` | several over `cuda` |
//! | `MILLPOND_SOAK_SEED` | the seed of all random choices | 1 |

pub(crate) mod kernels;
mod worker;

use std::env;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use millpond::driver::cuda::CudaDriver;
use millpond::stack::StackSpec;
use millpond::{AnyResource, DeviceMemoryResource, DriverHandle, ResourceStatistics, Result, misuse};
use millpond_testkit::canary::{CanaryPool, Wrong};

use kernels::Kernels;
use worker::{Shared, Trims, Worker};

const DEFAULT_STACKS: &str =
    "cuda+pool; cuda+pool:initial=64MiB+statistics; cuda+pool+binning:bins=1KiB/64KiB/1MiB";

/// How the operations are split: first one thread, then several. Each thread has its own streams.
const PHASES: [Phase; 2] = [Phase { threads: 1, streams: 8 }, Phase { threads: 4, streams: 4 }];

#[derive(Clone, Copy, Debug)]
struct Phase {
    threads: u64,
    streams: usize,
}

/// The result of one soak.
#[derive(Debug)]
struct Report {
    stack: String,
    operations: u64,
    mismatched_bytes: u32,
    time: Duration,
    statistics: Option<ResourceStatistics>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stack, operations, mismatched_bytes, time, statistics } = self;
        let phases =
            PHASES.map(|Phase { threads, streams }| format!("{threads} threads x {streams} streams"));
        write!(f, "soak of {stack}: {operations} operations, {}, ", phases.join(" then "))?;
        write!(f, "{mismatched_bytes} mismatches, {:.1} s", time.as_secs_f64())?;
        match statistics {
            Some(statistics) => {
                write!(f, ", peak {} bytes, {:?}", statistics.peak_bytes_reserved, statistics.ladder)
            }
            None => Ok(()),
        }
    }
}

fn soak(
    driver: &Arc<CudaDriver>,
    resource: &AnyResource,
    trims: Trims,
    operations: u64,
    seed: u64,
) -> Result<Report> {
    let kernels = Kernels::load(driver)?;
    let start = Instant::now();
    let mut done = 0;
    for Phase { threads, streams } in PHASES {
        let shared = Shared { driver, resource, trims, kernels: &kernels, handed_over: Mutex::default() };
        let each = operations.div_ceil(PHASES.len() as u64 * threads);
        thread::scope(|scope| {
            let run = |thread| {
                let shared = &shared;
                scope.spawn(move || Worker::new(shared, streams, seed + thread)?.run(each))
            };
            let workers: Vec<_> = (0..threads).map(run).collect();
            for worker in workers {
                done += worker.join().expect("a worker panicked")?;
            }
            Ok::<(), millpond::Error>(())
        })?;
    }
    Ok(Report {
        stack: resource.to_string(),
        operations: done,
        mismatched_bytes: kernels.mismatches()?,
        time: start.elapsed(),
        statistics: resource.statistics(),
    })
}

#[test]
#[ignore = "needs a CUDA GPU; the GPU lane runs it"]
fn no_block_is_shared_or_handed_out_too_early() {
    let (operations, seed) = (setting("MILLPOND_SOAK_OPS", 1_000_000), setting("MILLPOND_SOAK_SEED", 1));
    let stacks = setting("MILLPOND_SOAK_STACKS", DEFAULT_STACKS.to_owned());
    let driver = CudaDriver::open(0).expect("a CUDA GPU");
    for stack in stacks.split(';').map(str::trim) {
        let handle: DriverHandle = driver.clone();
        let spec: StackSpec = stack.parse().expect("MILLPOND_SOAK_STACKS is a list of stacks");
        let resource = spec.build(&millpond::layers(), &handle).expect("the stack can be built");
        let report = soak(&driver, &resource, Trims::Yes, operations, seed).expect("every call succeeds");
        println!("{report}");
        assert_eq!(report.mismatched_bytes, 0, "seed {seed}: {report}");
        resource.trim(0).expect("free memory can be returned");
        if let Some(after) = resource.statistics() {
            let reused = after.ladder.served() - after.ladder.grow;
            assert!(reused > 0, "nothing was reused, so nothing was tested: {report}");
            assert_eq!((after.blocks_in_use, after.bytes_reserved, after.misuses), (0, 0, 0), "{after:?}");
        }
    }
}

/// The canary: the soak must see these mistakes of a pool, or it proves nothing.
#[test]
#[ignore = "needs a CUDA GPU; the GPU lane runs it"]
fn wrong_pools_are_seen() {
    const OPERATIONS: u64 = 200_000;
    // An owner of a shared block frees a block that the pool took back from the other owner.
    let hook = misuse::set_hook(Some(Arc::new(|_misuse| {})));
    let driver = CudaDriver::open(0).expect("a CUDA GPU");
    let handle: DriverHandle = driver.clone();
    for wrong in [
        None,
        Some(Wrong::StealWithoutWait),
        Some(Wrong::FreesToAllocatingStream),
        Some(Wrong::HandsOutTwice),
    ] {
        let pool = CanaryPool::build(&handle, wrong).expect("the pool can be built");
        // A pool that shares blocks would return memory to the driver that an owner still uses.
        let trims = if wrong == Some(Wrong::HandsOutTwice) { Trims::No } else { Trims::Yes };
        let report = soak(&driver, &pool, trims, OPERATIONS, 1).expect("every call succeeds");
        println!("{wrong:?}: {report}");
        assert_eq!(report.mismatched_bytes > 0, wrong.is_some(), "{wrong:?}: {report}");
    }
    misuse::set_hook(hook);
}

/// Returns a setting from the environment.
fn setting<T: FromStr>(name: &str, default: T) -> T {
    match env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} cannot be read")),
        Err(_not_set) => default,
    }
}
