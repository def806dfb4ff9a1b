//! Broken rules, and their log.

use std::fmt;

/// The kind of rule that the program broke.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum ViolationKind {
    /// Two lent blocks overlap, in their addresses or in their physical memory. Or the program gave back a
    /// block that it had not lent with this address and size.
    Overlap,
    /// A block or an access is null, misaligned, or not inside accessible memory of this device.
    OutOfBounds,
    /// A stream got a block, or the owner used a block, but this was not ordered after all work of the
    /// earlier owners.
    StreamOrder,
    /// A simulated kernel found other bytes than the expected tag.
    TagMismatch,
    /// A call named a stream or event that does not exist.
    DeadHandle,
    /// A stream waited for an event that was never recorded. CUDA ignores such a wait.
    UnrecordedEvent,
    /// Memory was returned to the driver, but some use of the memory was not ordered before the return.
    EarlyReturn,
    /// Memory was returned to the driver while a block in it was lent.
    LentReturned,
    /// A call passed a pointer or a handle that the driver does not know.
    UnknownPointer,
}

impl ViolationKind {
    /// Returns the number of the broken invariant:
    /// - 1: live ranges never overlap;
    /// - 2: pointers are in bounds, aligned, and belong to their device;
    /// - 3: if a stream gets a block, its work on the block runs after every earlier free of the block;
    /// - 4: no call names a destroyed stream or event;
    /// - 7: every wait is for a recorded event;
    /// - 9: memory returns to the driver only after all recorded uses.
    pub const fn number(self) -> u32 {
        match self {
            Self::Overlap => 1,
            Self::OutOfBounds | Self::UnknownPointer => 2,
            Self::StreamOrder | Self::TagMismatch => 3,
            Self::DeadHandle => 4,
            Self::UnrecordedEvent => 7,
            Self::EarlyReturn | Self::LentReturned => 9,
        }
    }
}

/// Describes a rule that the program broke on the simulated device.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Violation {
    /// The kind of the broken rule.
    pub kind: ViolationKind,
    /// A text that describes the violation to people.
    pub message: String,
    /// The step at which the device found the violation, counted from 1. Every driver call, `lend`,
    /// `give_back` and `launch` is a step. For a [`ViolationKind::TagMismatch`], this is the step of the
    /// launch.
    pub step: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: invariant {} ({:?}): {}", self.step, self.kind.number(), self.kind, self.message)
    }
}

/// The first violations. Later ones are dropped, so a program with many does not fill the memory.
#[derive(Debug, Default)]
pub(crate) struct ViolationLog {
    all: Vec<Violation>,
    /// How many of them were taken for reporting.
    reported: usize,
}

const MOST_KEPT: usize = 1000;

impl ViolationLog {
    #[cold]
    pub(crate) fn add(&mut self, kind: ViolationKind, step: u64, message: impl FnOnce() -> String) {
        if self.all.len() < MOST_KEPT {
            self.all.push(Violation { kind, message: message(), step });
        }
    }

    /// The violations not yet reported. Subscribers are foreign code, so the caller reports them after it has
    /// released the device's lock.
    #[inline]
    pub(crate) fn take_unreported(&mut self) -> Vec<Violation> {
        let unreported = self.all[self.reported..].to_vec();
        self.reported = self.all.len();
        unreported
    }

    pub(crate) fn all(&self) -> &[Violation] {
        &self.all
    }

    pub(crate) fn take(&mut self) -> Vec<Violation> {
        self.reported = 0;
        std::mem::take(&mut self.all)
    }
}
