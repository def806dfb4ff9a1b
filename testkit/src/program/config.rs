//! The configuration of programs.

use millpond_core::{AnyResource, DriverHandle, Result, StreamRef};

use super::{Habits, StatisticsCheck};
use crate::conformance::{Decay, Inspect, Refusals, Subject};

/// Builds the resource under test on a device.
pub type Build<'a> = dyn Fn(&DriverHandle) -> Result<AnyResource> + Sync + 'a;

/// A scope for captured graphs, as a layer of the resource creates it.
pub trait ScopeOfGraphs: Send {
    /// Opens the scope for a stream, until the returned value is dropped.
    ///
    /// # Errors
    /// Returns the errors of the layer.
    fn open(&self, stream: StreamRef) -> Result<Box<dyn Send>>;
}

/// Creates a scope for captured graphs.
///
/// # Errors
/// The layer's errors.
pub type NewScope = fn(&AnyResource) -> Result<Box<dyn ScopeOfGraphs>>;

/// Tells the resource that a capture begins (`true`), or that it has ended.
pub type OnCapture = fn(&AnyResource, bool);

/// The shape of programs, and which checks run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The text of the stack, or another name.
    pub subject: String,
    /// The command that repeats a failing program. A failure prints it after two environment variables: the
    /// seed and the stack.
    pub command: String,
    /// The number of operations in a program.
    pub operations: usize,
    /// The capacity of the device in bytes. It is small, so that the device runs out of memory.
    pub capacity_bytes: u64,
    /// The largest request in bytes.
    pub largest_bytes: u64,
    /// The largest requested alignment in bytes.
    pub largest_alignment: u64,
    /// The fewest streams alive at once; no program has fewer.
    pub fewest_streams: u16,
    /// The most streams alive at once, including the two default ones.
    pub streams: u16,
    /// The most live blocks at one time. Programs with many live blocks find most errors.
    pub most_live: usize,
    /// Whether programs destroy streams before their end.
    pub destroys: bool,
    /// Whether the resource's driver calls sometimes fail, with errors that are not sticky.
    pub faults: bool,
    /// How much of the statistics is compared.
    pub statistics: StatisticsCheck,
    /// Whether out-of-memory errors are verified. To verify an error, the program synchronises, trims, and
    /// repeats the request.
    pub verify_out_of_memory: bool,
    /// Whether each out-of-memory error must have a report.
    pub reports: bool,
    /// The function that checks the resource's internal state, every 64 operations and at the end.
    pub inspect: Option<Inspect>,
    /// The function that lets the resource release idle memory as time passes. Without this function, no time
    /// passes in a program.
    pub decay: Option<Decay>,
    /// Whether streams capture graphs.
    pub captures: bool,
    /// Creates scopes for captured graphs. Without this function, there are no scopes.
    pub new_scope: Option<NewScope>,
    /// The function that tells the resource of captures. Without this function, the resource must find out.
    pub on_capture: Option<OnCapture>,
    /// Whether no layer above the scopes keeps blocks. A block for a stream in a scope then always comes from
    /// the scope, so captures also free blocks after uses on other streams of the scope.
    pub direct_scopes: bool,
    /// The mistakes that the program makes as a caller. The resource must refuse each of them.
    pub refuses: Refusals,
    /// Whether [guests](crate::guest) use the resource when it calls callbacks, hooks and subscribers.
    pub guests: bool,
    /// The number of devices in the machine, each with its own resource.
    pub devices: u8,
    /// The number of threads; only one runs at a time.
    pub threads: u8,
    /// Whether a reset of the context or a sticky error may end the program.
    pub endings: bool,
    /// The habits of an allocator from another project.
    pub habits: Habits,
}

impl Config {
    millpond_core::setters! {
        command: String,
        operations: usize,
        capacity_bytes: u64,
        largest_bytes: u64,
        largest_alignment: u64,
        fewest_streams: u16,
        streams: u16,
        most_live: usize,
        destroys: bool,
        faults: bool,
        statistics: StatisticsCheck,
        verify_out_of_memory: bool,
        reports: bool,
        inspect: Option<Inspect>,
        decay: Option<Decay>,
        captures: bool,
        new_scope: Option<NewScope>,
        on_capture: Option<OnCapture>,
        direct_scopes: bool,
        refuses: Refusals,
        guests: bool,
        devices: u8,
        threads: u8,
        endings: bool,
        habits: Habits,
    }

    /// Returns the usual programs for a pool: 256 operations over up to 8 streams on a device of 32 MiB.
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
            destroys: true,
            faults: false,
            statistics: StatisticsCheck::None,
            verify_out_of_memory: true,
            reports: false,
            inspect: None,
            decay: None,
            captures: false,
            new_scope: None,
            on_capture: None,
            direct_scopes: false,
            refuses: Refusals::default(),
            guests: false,
            devices: 1,
            threads: 1,
            endings: false,
            habits: Habits::default(),
        }
    }

    /// Returns long programs over 60 to 300 streams, which are created and destroyed. Blocks have up to a
    /// tenth of a device of 256 MiB, and driver calls sometimes fail.
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

    /// Returns the usual programs, with the subject's sizes and checks.
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
