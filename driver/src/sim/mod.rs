//! A simulated device.
use std::sync::Arc;

mod config;
mod driver_impl;
mod fault;
mod profile;
mod violation;

pub use config::{Schedule, SimConfig};
pub use fault::{Fault, FaultPlan};
pub use profile::Profile;
pub use violation::{Violation, ViolationKind};

use millpond_core::{DeviceId, DevicePtr, StreamRef};

/// What a simulated kernel does with a range of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    pub(crate) ptr: DevicePtr,
    pub(crate) bytes: u64,
    pub(crate) action: Action,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Read,
    Write(u64),
    Check(u64),
}

impl Access {
    /// Reads `bytes` bytes at `ptr`, whatever they are.
    pub const fn read(ptr: DevicePtr, bytes: u64) -> Self {
        Self { ptr, bytes, action: Action::Read }
    }
    /// Writes the tag over the range.
    pub const fn write(ptr: DevicePtr, bytes: u64, tag: u64) -> Self {
        Self { ptr, bytes, action: Action::Write(tag) }
    }
    /// Reads the range and checks that all of it holds the tag.
    pub const fn check(ptr: DevicePtr, bytes: u64, tag: u64) -> Self {
        Self { ptr, bytes, action: Action::Check(tag) }
    }
}

/// A simulated device.
#[derive(Debug)]
pub struct SimDevice {
    id: DeviceId,
    config: SimConfig,
}

impl SimDevice {
    /// A new device.
    pub fn new(config: SimConfig) -> Arc<Self> {
        Arc::new(Self { id: DeviceId::sim(0), config })
    }
    /// The harness tells that the resource under test handed out a block.
    pub fn lend(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        let _ = (ptr, bytes, stream);
    }
    /// The harness tells that the resource under test took a block back.
    pub fn give_back(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        let _ = (ptr, bytes, stream);
    }
    /// Submits a simulated kernel.
    pub fn launch(&self, stream: StreamRef, accesses: &[Access]) {
        let _ = (stream, accesses);
    }
    /// What was found so far.
    pub fn violations(&self) -> Vec<Violation> {
        Vec::new()
    }
    /// What was found so far; forgets it.
    pub fn take_violations(&self) -> Vec<Violation> {
        Vec::new()
    }
    /// Allocations not freed.
    pub fn live_allocations(&self) -> usize {
        0
    }
    /// Bytes of allocations not freed.
    pub fn live_bytes(&self) -> u64 {
        0
    }
    /// The highest `live_bytes` so far.
    pub fn peak_bytes(&self) -> u64 {
        0
    }
    /// Virtual time in nanoseconds.
    pub fn virtual_time_ns(&self) -> u64 {
        0
    }
    /// How many driver calls were made.
    pub fn driver_calls(&self) -> u64 {
        0
    }
    /// Replaces the fault plan; its calls count from now.
    pub fn set_faults(&self, faults: FaultPlan) {
        let _ = faults;
    }
    /// Says that a stream is capturing a graph.
    pub fn set_capturing(&self, stream: StreamRef, capturing: bool) {
        let _ = (stream, capturing);
    }
    /// Makes this the current device of the thread.
    pub fn make_current(self: &Arc<Self>) {
        let _ = &self.config;
    }
    /// The configuration.
    pub fn config(&self) -> &SimConfig {
        &self.config
    }
}
