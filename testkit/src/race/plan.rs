//! A race's threads and their work.

use crate::program::Habits;

/// A race's threads and their work.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Race {
    /// The number of threads, each with its own stream.
    pub threads: u64,
    /// The number of operations per thread.
    pub operations: u64,
    /// The number of rounds. After each round the threads end, and new threads continue with their blocks and
    /// streams.
    pub rounds: u64,
    /// The device's capacity in bytes.
    pub capacity_bytes: u64,
    /// Whether threads free each other's blocks, replace their streams, and trim.
    pub wide: bool,
    /// Whether threads pause before driver calls, so that other threads run in the middle of a call of the
    /// resource.
    pub pauses: bool,
    /// The habits of an allocator from another project.
    pub habits: Habits,
    /// The seed of the threads' and the device's choices.
    pub seed: u64,
}

impl Race {
    millpond_core::setters! { pauses: bool, habits: Habits }

    /// Returns a race of eight threads on a device of 8 MiB.
    pub const fn new(seed: u64, operations: u64) -> Self {
        Self {
            threads: 8,
            operations,
            rounds: 4,
            capacity_bytes: 8 << 20,
            wide: false,
            pauses: false,
            habits: Habits::NONE,
            seed,
        }
    }

    /// Returns a race of eight threads on a device of 256 MiB, with blocks of up to a tenth of the device.
    /// The threads free each other's blocks, replace their streams, and trim.
    pub const fn wide(seed: u64, operations: u64) -> Self {
        Self { capacity_bytes: 256 << 20, wide: true, ..Self::new(seed, operations) }
    }
}
