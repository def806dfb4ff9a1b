//! The settings of a replay with kernels running.

use millpond_driver::DeviceSpec;

use super::{Capacity, Host, Kernels, Subject};

/// The device, the allocators, and the work that they do.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The device of the replay.
    pub device: DeviceSpec,
    /// The allocators, in addition to [`Subject::None`], which always runs first.
    pub subjects: Vec<Subject>,
    /// The ranges of the kernels' random durations.
    pub kernels: Vec<Kernels>,
    /// The modes of the host: how far it runs ahead of the device.
    pub hosts: Vec<Host>,
    /// The time that the host takes for an allocation on a simulated device, in nanoseconds. The least memory
    /// that needs no wait also depends on this time.
    pub host_ns: u64,
    /// How many times each log is replayed on the same stack.
    pub passes: u32,
    /// The seed of the random durations; not 0.
    pub seed: u64,
    /// If set, only this number of first operations of each log is replayed.
    pub first: Option<u64>,
    /// How much of the device's memory is left to each subject. The replay first reserves the rest. If a
    /// capacity is set, a failed allocation is counted, and the pass continues.
    pub capacity: Option<Capacity>,
}

impl Settings {
    /// Returns settings with three passes for each combination of a range of durations (short and long) and a
    /// [`Host`].
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
