//! What is run, and where.

use millpond_driver::DeviceSpec;

use super::{Host, Kernels, Subject};

/// What is run, and where.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The device.
    pub device: DeviceSpec,
    /// What allocates, beside [`Subject::None`], which always runs first.
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
    /// What durations are drawn from; not 0.
    pub seed: u64,
    /// Only this many operations of each log, from the first on.
    pub first: Option<u64>,
}
