//! A failed program, and how to run it again.

use std::fmt;

use millpond_driver::sim::ViolationKind;

use super::Op;

/// The rule that a program broke.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FailureKind {
    /// The simulated device found a violation.
    Device(ViolationKind),
    /// The shadow allocator disagrees about an address or layout.
    Shadow,
    /// The resource reported out of memory, but the same request succeeds after synchronising and trimming.
    EarlyOutOfMemory,
    /// An error that is not out of memory, and that the program did not cause.
    UnexpectedError,
    /// Statistics differ from the shadow's or the device's.
    Statistics,
    /// The resource refused to free a block that was handed out.
    Misuse,
    /// Memory, events or streams are left after the resource was dropped.
    Leak,
    /// The resource could not be built.
    Build,
    /// A call ended a capture that it was not part of.
    Capture,
    /// A wrong deallocation was not refused, or was reported more than once.
    Unrefused,
    /// After a reset, or on a lost device, a call does not report the reset or the loss.
    Outlived,
    /// A panic.
    Panic,
}

/// A program that broke a rule, and how to run it again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failure {
    /// The broken rule.
    pub kind: FailureKind,
    /// The message of the failure.
    pub message: String,
    /// The seed of the program.
    pub seed: u64,
    /// The seed of the device's schedule. It equals the seed of the program, until [`shrink`](super::shrink)
    /// finds that fewer operations fail under another schedule.
    pub schedule: u64,
    /// The operations up to the one that broke the rule.
    pub operations: Vec<Op>,
    /// The number of operations before shrinking.
    pub operations_found: usize,
    /// The text of the stack, or another name.
    pub subject: String,
    /// The command that runs the seed again.
    pub command: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, message, seed, schedule, operations, operations_found, subject, command } = self;
        writeln!(f, "{kind:?} in `{subject}`: {message}")?;
        writeln!(
            f,
            "seed {seed}, schedule {schedule}; {} of {operations_found} operations:",
            operations.len()
        )?;
        for (index, op) in operations.iter().enumerate() {
            writeln!(f, "  {:>3}  {op}", index + 1)?;
        }
        writeln!(f, "  end  the host waits for the device, frees every block and drops the resource")?;
        write!(f, "run it again: MILLPOND_SEED={seed} MILLPOND_SUBJECT='{subject}' {command}")
    }
}

impl std::error::Error for Failure {}
