//! The number of threads in a race, and their work.

/// The number of threads, and their work.
#[derive(Clone, Debug)]
pub struct Race {
    /// The number of threads, each with a stream of its own.
    pub threads: u64,
    /// The number of operations of each thread.
    pub operations: u64,
    /// The number of rounds: after each the threads end, and others go on with their blocks and streams.
    pub rounds: u64,
    /// The capacity of the device in bytes.
    pub capacity_bytes: u64,
    /// Whether threads free each other's blocks, renew streams and trim.
    pub wide: bool,
    /// The seed of each thread's choices, and of the device's.
    pub seed: u64,
}

impl Race {
    /// Eight threads on a device of 8 MiB.
    pub const fn new(seed: u64, operations: u64) -> Self {
        Self { threads: 8, operations, rounds: 4, capacity_bytes: 8 << 20, wide: false, seed }
    }

    /// Eight threads on a device of 256 MiB, with blocks of up to a tenth of it. They free each other's
    /// blocks, renew streams and trim.
    pub const fn wide(seed: u64, operations: u64) -> Self {
        Self { capacity_bytes: 256 << 20, wide: true, ..Self::new(seed, operations) }
    }
}
