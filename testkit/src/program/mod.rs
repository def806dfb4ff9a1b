//! Seeded programs of operations over many streams, run against a resource on the simulated device under
//! the oracles of the design, and shrunk when one fails.
//!
//! | oracle | checked by |
//! |---|---|
//! | 1 no overlap, 2 in bounds and aligned | the simulated device, and the [shadow](crate::shadow) |
//! | 3 a stream gets a block after every release of it | the simulated device, by clocks and by data |
//! | 4 no dead stream or event is named, 7 waits are on recorded events | the simulated device |
//! | 5 what upstream gave is what statistics say | here, against the device's live bytes |
//! | 6 out of memory is the truth | here: after synchronising and trimming, the request fails again |
//! | 8 statistics are the shadow's | here |
//! | 9 memory goes back to the driver after all use | the simulated device |
//!
//! ```
//! use millpond_driver::sim::{SimConfig, SimDevice};
//! use millpond_testkit::canary::{CanaryPool, Wrong};
//! use millpond_testkit::program::{self, Config};
//!
//! let config = Config::new("canary");
//! let correct = |driver: &_| CanaryPool::build(driver, None);
//! let wrong = |driver: &_| CanaryPool::build(driver, Some(Wrong::StealWithoutWait));
//! assert!((0..20).all(|seed| program::run(seed, &config, &correct).is_ok()));
//! let failure = (0..20).find_map(|seed| program::run(seed, &config, &wrong).err()).unwrap();
//! let shrunk = program::shrink(*failure, &config, &wrong);
//! assert!(shrunk.operations.len() < 12, "{shrunk}");
//! ```

mod execute;
mod failure;
mod generate;
mod op;
mod oracle;
mod order;
mod shrink;
mod sweep;

use std::fmt;
use std::ops::AddAssign;

use millpond_core::{AnyResource, DriverHandle, Result};

pub use failure::{Failure, FailureKind};
pub use op::{Block, Event, MAX_EVENTS, MAX_STREAMS, Op, Stream};
pub use shrink::shrink;
pub use sweep::{Sweep, sweep};

use crate::conformance::{Decay, Inspect, Subject};
use execute::Execution;
use generate::Generator;

/// Builds the resource under test on a device.
pub type Build<'a> = dyn Fn(&DriverHandle) -> Result<AnyResource> + Sync + 'a;

/// How much of the statistics of a resource is compared with the shadow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatisticsCheck {
    /// Nothing: the resource keeps none, or keeps those of something below it.
    None,
    /// What was handed out: blocks, bytes as requested, and the number of calls.
    Counts,
    /// The counts, and that the bytes reserved are those that the device has handed out.
    Exact,
}

/// What programs look like and what is checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The stack's text or another name, for people.
    pub subject: String,
    /// The command that a failure names, after the seed and the stack in the environment.
    pub command: String,
    /// How many operations a program has.
    pub operations: usize,
    /// The capacity of the device in bytes. Small, so that memory runs out.
    pub capacity_bytes: u64,
    /// The largest request in bytes.
    pub largest_bytes: u64,
    /// The largest alignment asked for, in bytes.
    pub largest_alignment: u64,
    /// The fewest streams alive at once; programs with fewer than this are not made.
    pub fewest_streams: u16,
    /// The most streams alive at once, the two default ones included.
    pub streams: u16,
    /// No more blocks than this are live at once: the interesting states are the crowded ones.
    pub most_live: usize,
    /// Whether driver calls of the resource fail now and then, with errors that are not for good.
    pub faults: bool,
    /// How much of the statistics is compared.
    pub statistics: StatisticsCheck,
    /// Whether an out-of-memory error is put to the test by trying again after synchronising and trimming.
    pub verify_out_of_memory: bool,
    /// What walks the resource's inside, every 64 operations and at the end.
    pub inspect: Option<Inspect>,
    /// What lets the resource give back what was not needed lately; without it, no time passes.
    pub decay: Option<Decay>,
}

impl Config {
    /// The usual programs for a pool: 256 operations over up to 8 streams on a device of 32 MiB.
    pub fn new(subject: impl Into<String>) -> Self {
        Self {
            subject: subject.into(),
            command: "cargo test --workspace".to_owned(),
            operations: 256,
            capacity_bytes: 32 << 20,
            largest_bytes: 8 << 20,
            largest_alignment: 256,
            fewest_streams: 1,
            streams: 8,
            most_live: 48,
            faults: false,
            statistics: StatisticsCheck::None,
            verify_out_of_memory: true,
            inspect: None,
            decay: None,
        }
    }

    /// Long programs over 60 to 300 streams that come and go, with blocks of up to a tenth of a device of
    /// 256 MiB, and driver calls that fail now and then.
    pub fn wide(subject: &Subject) -> Self {
        const CAPACITY: u64 = 256 << 20;
        Self {
            operations: 4_000,
            capacity_bytes: CAPACITY,
            largest_bytes: (CAPACITY / 10).min(subject.largest_bytes),
            fewest_streams: 60,
            streams: 300,
            most_live: 160,
            faults: true,
            ..Self::for_subject(subject)
        }
    }

    /// The usual programs, with sizes and checks as the subject says.
    pub fn for_subject(subject: &Subject) -> Self {
        let usual = Self::new(subject.name());
        Self {
            largest_bytes: usual.largest_bytes.min(subject.largest_bytes),
            largest_alignment: 64 << 10,
            statistics: subject.statistics,
            inspect: subject.inspect,
            decay: subject.decay,
            ..usual
        }
    }
}

/// What a program did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Summary {
    /// Programs run to their end.
    pub programs: u64,
    /// Operations carried out.
    pub operations: u64,
    /// Blocks handed out.
    pub allocations: u64,
    /// Requests refused because memory was short.
    pub out_of_memory: u64,
    /// Requests refused because the resource does not do the alignment.
    pub refused_alignments: u64,
    /// Blocks given back on another stream than they were allocated for.
    pub cross_stream_frees: u64,
    /// Streams destroyed.
    pub streams_destroyed: u64,
    /// Operations on the resource in which a driver call was made to fail.
    pub faults: u64,
}

impl AddAssign for Summary {
    fn add_assign(&mut self, other: Self) {
        self.programs += other.programs;
        self.operations += other.operations;
        self.allocations += other.allocations;
        self.out_of_memory += other.out_of_memory;
        self.refused_alignments += other.refused_alignments;
        self.cross_stream_frees += other.cross_stream_frees;
        self.streams_destroyed += other.streams_destroyed;
        self.faults += other.faults;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { programs, operations, allocations, out_of_memory, .. } = self;
        write!(f, "{programs} programs, {operations} operations, {allocations} allocations, ")?;
        write!(
            f,
            "{out_of_memory} times out of memory, {} frees on another stream, ",
            self.cross_stream_frees
        )?;
        write!(f, "{} streams destroyed, {} faults", self.streams_destroyed, self.faults)
    }
}

/// Generates the program of a seed and runs it on a fresh device.
///
/// # Errors
/// The first rule that was broken, with the operations up to it; see [`shrink`].
pub fn run(seed: u64, config: &Config, build: &Build<'_>) -> Result<Summary, Box<Failure>> {
    let mut generator = Generator::new(seed, config);
    execute::guarded(seed, config, build, |execution: &mut Execution<'_>| {
        for _ in 0..config.operations {
            let op = generator.next(execution);
            execution.step(op)?;
        }
        Ok(())
    })
}

/// Runs these operations on a fresh device whose schedule has this seed. Operations that would be illegal
/// for the caller are skipped.
///
/// # Errors
/// The first rule that was broken.
pub fn replay(
    schedule: u64,
    operations: &[Op],
    config: &Config,
    build: &Build<'_>,
) -> Result<Summary, Box<Failure>> {
    execute::guarded(schedule, config, build, |execution: &mut Execution<'_>| {
        operations.iter().try_for_each(|&op| execution.step(op))
    })
}
