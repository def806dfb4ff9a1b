//! The settings of a replay with work in flight.

use millpond_driver::DeviceSpec;

use super::{Capacity, Host, Kernels, Subject};

/// The device, the allocators and the work.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The device.
    pub device: DeviceSpec,
    /// The allocators, beside [`Subject::None`], which always runs first.
    pub subjects: Vec<Subject>,
    /// The ranges that kernels' durations are drawn from.
    pub kernels: Vec<Kernels>,
    /// How far ahead the host is.
    pub hosts: Vec<Host>,
    /// Nanoseconds that an allocation takes the host on a simulated device, and for the least memory that
    /// needs no wait.
    pub host_ns: u64,
    /// How often each log is replayed on the same stack.
    pub passes: u32,
    /// The seed of the durations; not 0.
    pub seed: u64,
    /// Only this many operations of each log, from the first on.
    pub first: Option<u64>,
    /// How much of the device is left to each subject; the rest is reserved before. With it, allocations
    /// that fail are counted, and the pass goes on.
    pub capacity: Option<Capacity>,
}
