//! The configuration of programs.

use millpond_core::{AnyResource, DriverHandle, Result, StreamRef};

use super::StatisticsCheck;
use crate::conformance::{Decay, Inspect, Refusals, Subject};

/// Builds the resource under test on a device.
pub type Build<'a> = dyn Fn(&DriverHandle) -> Result<AnyResource> + Sync + 'a;

/// A scope for captured graphs, as a layer of the resource makes them.
pub trait ScopeOfGraphs: Send {
    /// Opens the scope for a stream, until the returned value is dropped.
    ///
    /// # Errors
    /// The layer's errors.
    fn open(&self, stream: StreamRef) -> Result<Box<dyn Send>>;
}

/// Makes a scope for captured graphs.
///
/// # Errors
/// The layer's errors.
pub type NewScope = fn(&AnyResource) -> Result<Box<dyn ScopeOfGraphs>>;

/// The shape of programs, and the checks.
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
    /// The most blocks that are live at once: states with many live blocks find most errors.
    pub most_live: usize,
    /// Whether driver calls of the resource sometimes fail, with errors that are not sticky.
    pub faults: bool,
    /// How much of the statistics is compared.
    pub statistics: StatisticsCheck,
    /// Whether an out-of-memory error is put to the test by trying again after synchronising and trimming.
    pub verify_out_of_memory: bool,
    /// Whether each out-of-memory error must have a report.
    pub reports: bool,
    /// The function that checks the resource's inside, every 64 operations and at the end.
    pub inspect: Option<Inspect>,
    /// The function that lets the resource release idle memory; without it, no time passes.
    pub decay: Option<Decay>,
    /// Whether streams capture graphs.
    pub captures: bool,
    /// The function that makes scopes for captured graphs; without it, there are none.
    pub new_scope: Option<NewScope>,
    /// Whether a block for a stream of a scope comes from the scope, with no layer in between that keeps
    /// blocks. Then captures also give blocks back behind the other streams that a scope looks after.
    pub direct_scopes: bool,
    /// The mistakes of a caller that are made, and that the resource must refuse.
    pub refuses: Refusals,
    /// Whether [guests](crate::guest) use the resource when it calls callbacks, hooks and subscribers.
    pub guests: bool,
    /// The number of devices of one machine, each with a resource of its own.
    pub devices: u8,
    /// The number of threads, of which one at a time runs.
    pub threads: u8,
    /// Whether a reset of the context, or a sticky error, ends the program.
    pub endings: bool,
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
            reports: false,
            inspect: None,
            decay: None,
            captures: false,
            new_scope: None,
            direct_scopes: false,
            refuses: Refusals::default(),
            guests: false,
            devices: 1,
            threads: 1,
            endings: false,
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
