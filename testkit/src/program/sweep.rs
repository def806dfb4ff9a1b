//! Runs many seeds on several threads.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use millpond_core::{AnyResource, DriverHandle, Result as Built, environment};
use parking_lot::Mutex;

use super::{Build, Config, Failure, Summary, run, shrink};

/// Many seeds of one configuration, on several threads.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Sweep {
    /// The seeds of the programs.
    pub seeds: Range<u64>,
    /// The number of operations after which the sweep stops, even if seeds are left.
    pub operations: u64,
    /// The number of threads.
    pub threads: usize,
}

impl Sweep {
    millpond_core::setters! { seeds: Range<u64>, threads: usize }

    /// Returns a sweep over seeds from 0 until `operations` operations are done, on as many threads as the
    /// machine has.
    pub fn operations(operations: u64) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { seeds: 0..u64::MAX, operations, threads }
    }

    /// Restricts the sweep to the seed in the environment variable `MILLPOND_SEED`, if that is set and a
    /// number.
    #[must_use]
    pub fn or_seed_of_environment(self) -> Self {
        let text = environment::variable("MILLPOND_SEED");
        let seed = text.and_then(|text| text.to_str()?.trim().parse::<u64>().ok());
        match seed {
            Some(seed) => Self { seeds: seed..seed + 1, threads: 1, ..self },
            None => self,
        }
    }
}

/// The programs of one seed: their shape, and the resource that they use.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "a program needs its shape and its resource")]
pub struct Case<B> {
    /// The shape of the programs.
    pub config: Config,
    /// Builds the resource on a device.
    pub build: B,
}

/// Runs programs until all seeds have run, enough operations are done, or a program fails.
///
/// If only `seeds` and `operations` limit the sweep, every machine runs the same seeds.
///
/// # Errors
/// Returns the lowest failing seed that was found, [shrunk](shrink).
pub fn sweep(sweep: &Sweep, config: &Config, build: &Build<'_>) -> Result<Summary, Box<Failure>> {
    sweep_cases(sweep, &|_| Some(Case { config: config.clone(), build }))
}

/// Works like [`sweep`], with another resource and shape for each seed. `None` skips the seed.
///
/// # Errors
/// Returns the errors of [`sweep`].
pub fn sweep_cases<B: Fn(&DriverHandle) -> Built<AnyResource> + Sync>(
    sweep: &Sweep,
    case: &(dyn Fn(u64) -> Option<Case<B>> + Sync),
) -> Result<Summary, Box<Failure>> {
    let next = AtomicU64::new(sweep.seeds.start);
    let operations = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let total = Mutex::new(Summary::default());
    let failed: Mutex<Option<Box<Failure>>> = Mutex::new(None);
    let worker = || {
        let mut mine = Summary::default();
        while !stop.load(Ordering::Relaxed) && operations.load(Ordering::Relaxed) < sweep.operations {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= sweep.seeds.end {
                break;
            }
            let Some(Case { config, build }) = case(seed) else { continue };
            match run(seed, &config, &build) {
                Ok(summary) => {
                    operations.fetch_add(summary.operations, Ordering::Relaxed);
                    mine += summary;
                }
                Err(failure) => {
                    stop.store(true, Ordering::Relaxed);
                    let mut failed = failed.lock();
                    if failed.as_ref().is_none_or(|other| failure.seed < other.seed) {
                        *failed = Some(failure);
                    }
                }
            }
        }
        *total.lock() += mine;
    };
    std::thread::scope(|scope| {
        for _ in 0..sweep.threads.max(1) {
            scope.spawn(worker);
        }
    });
    match (failed.lock().take(), total) {
        (Some(failure), _) => match case(failure.seed) {
            Some(Case { config, build }) => Err(Box::new(shrink(*failure, &config, &build))),
            None => Err(failure),
        },
        (None, total) => Ok(total.into_inner()),
    }
}
