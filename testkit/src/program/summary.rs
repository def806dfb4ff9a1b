//! Counts of a program's actions.

use std::fmt;
use std::ops::AddAssign;

/// Counts of a program's actions.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Summary {
    /// Programs that ran to their end.
    pub programs: u64,
    /// Operations that were carried out.
    pub operations: u64,
    /// Blocks that were handed out.
    pub allocations: u64,
    /// Requests refused because memory was short.
    pub out_of_memory: u64,
    /// Requests refused because of their alignment.
    pub refused_alignments: u64,
    /// Blocks freed on another stream than the one they were allocated for.
    pub cross_stream_frees: u64,
    /// Streams that were destroyed.
    pub streams_destroyed: u64,
    /// Operations on the resource with a failing driver call.
    pub faults: u64,
    /// Captures that were ended.
    pub captures: u64,
    /// Graphs that were launched.
    pub launches: u64,
    /// Streams opened in a scope for captured graphs.
    pub scopes: u64,
    /// Blocks freed in a wrong way.
    pub misuses: u64,
    /// Programs ended by a reset of the context.
    pub resets: u64,
    /// Programs ended by a sticky error.
    pub losses: u64,
    /// Operations on devices other than the first.
    pub on_other_devices: u64,
    /// Operations on threads other than the first.
    pub on_other_threads: u64,
    /// Calls that [guests](crate::guest) made in the middle of other calls.
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
