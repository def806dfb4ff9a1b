//! Counts of a program's actions.

use std::fmt;
use std::ops::AddAssign;

/// Counts of a program's actions.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Summary {
    /// The number of programs that ran to their end.
    pub programs: u64,
    /// The number of operations that were carried out.
    pub operations: u64,
    /// The number of allocated blocks.
    pub allocations: u64,
    /// The number of requests that failed because there was no memory.
    pub out_of_memory: u64,
    /// The number of requests that were refused because of their alignment.
    pub refused_alignments: u64,
    /// The number of blocks that were freed on a stream other than the stream of their allocation.
    pub cross_stream_frees: u64,
    /// The number of streams that were destroyed.
    pub streams_destroyed: u64,
    /// The number of operations on the resource in which a driver call failed.
    pub faults: u64,
    /// The number of captures that were ended.
    pub captures: u64,
    /// The number of graphs that were launched.
    pub launches: u64,
    /// The number of streams that were opened in a scope for captured graphs.
    pub scopes: u64,
    /// The number of blocks that were freed with a mistake.
    pub misuses: u64,
    /// The number of programs that a reset of the context ended.
    pub resets: u64,
    /// The number of programs that a sticky error ended.
    pub losses: u64,
    /// The number of operations on devices other than the first.
    pub on_other_devices: u64,
    /// The number of operations on threads other than the first.
    pub on_other_threads: u64,
    /// The number of calls that [guests](crate::guest) made in the middle of other calls.
    pub guest_calls: u64,
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
        self.captures += other.captures;
        self.launches += other.launches;
        self.scopes += other.scopes;
        self.misuses += other.misuses;
        self.resets += other.resets;
        self.losses += other.losses;
        self.on_other_devices += other.on_other_devices;
        self.on_other_threads += other.on_other_threads;
        self.guest_calls += other.guest_calls;
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
        write!(f, "{} streams destroyed, {} faults", self.streams_destroyed, self.faults)?;
        let special = [
            (self.captures, "captures"),
            (self.launches, "launches"),
            (self.scopes, "opened scopes"),
            (self.misuses, "mistakes"),
            (self.resets, "resets"),
            (self.losses, "lost devices"),
            (self.on_other_devices, "operations on other devices"),
            (self.on_other_threads, "operations on other threads"),
            (self.guest_calls, "guest calls"),
        ];
        special.iter().filter(|(count, _)| *count > 0).try_for_each(|(count, of)| write!(f, ", {count} {of}"))
    }
}
