//! The settings of a replay with work in flight.

use millpond_driver::DeviceSpec;

use super::{Capacity, Host, Kernels, Subject};

/// The device, the allocators and the work.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The device.
    pub device: DeviceSpec,
    /// The allocators, in addition to [`Subject::None`], which always runs first.
    pub subjects: Vec<Subject>,
    /// The ranges for the random durations of kernels.
    pub kernels: Vec<Kernels>,
    /// How far ahead the host is.
    pub hosts: Vec<Host>,
    /// How long an allocation takes the host on a simulated device, in nanoseconds. The least memory that
    /// needs no wait also depends on it.
    pub host_ns: u64,
    /// How many times each log is replayed on the same stack.
    pub passes: u32,
    /// The seed of the durations; not 0.
    pub seed: u64,
    /// Replay only this many first operations of each log.
    pub first: Option<u64>,
    /// How much of the device is left to each subject; the replay reserves the rest first. If it is set, a
    /// failed allocation is counted, and the pass continues.
    pub capacity: Option<Capacity>,
}

impl Settings {
    /// Returns settings of three passes for each combination of kernels (short and long) and [`Host`].
    pub fn new(device: DeviceSpec, subjects: Vec<Subject>) -> Self {
        Self {
            device,
            subjects,
            kernels: vec![Kernels::SHORT, Kernels::LONG],
            hosts: Host::ALL.to_vec(),
            host_ns: 4000,
            passes: 3,
            seed: 42,
            first: None,
            capacity: None,
        }
    }

    millpond_core::setters! {
        kernels: Vec<Kernels>,
        hosts: Vec<Host>,
        host_ns: u64,
        passes: u32,
        seed: u64,
        first: Option<u64>,
        capacity: Option<Capacity>,
    }
}
