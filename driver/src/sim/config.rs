//! The configuration of a simulated device.

use super::model::fault::FaultPlan;
use super::profile::Profile;

/// How many unfinished kernels, copies and fills a stream holds. The next one waits for the first, as in CUDA
/// when a stream's queue is full.
pub(super) const DEEPEST_QUEUE: usize = 1024;

/// The order in which a simulated device completes pending work of different streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Schedule {
    /// The order follows a virtual clock. Each operation takes a certain time. It starts when the earlier
    /// work of its stream is done, and when the events that it waits for are reached. It completes when the
    /// clock reaches the end of its time. A driver call advances the clock by the cost of the call. A
    /// synchronisation advances the clock until the work is done.
    #[default]
    Timed,
    /// An adversary with this seed chooses the order. At each step, it completes some pending work, or none.
    /// It may keep a stream waiting for thousands of steps. If the order of the work allows both answers to a
    /// query, the adversary chooses the answer. Every choice that CUDA is free to make can occur.
    Seeded(u64),
}

/// The configuration of a simulated device.
///
/// ```
/// use millpond_driver::sim::{Schedule, SimConfig, SimDevice};
/// let device = SimDevice::new(SimConfig::with_capacity(1 << 30).schedule(Schedule::Seeded(7)));
/// # drop(device);
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct SimConfig {
    profile: Profile,
    pub(super) seed: u64,
    pub(super) schedule: Schedule,
    pub(super) faults: FaultPlan,
    pub(super) falling_addresses: bool,
    pub(super) peer_access: bool,
    pub(super) pageable_access: bool,
}

impl SimConfig {
    /// Creates a configuration with this profile and with [`Schedule::Timed`]. No call is planned to fail.
    pub fn new(profile: Profile) -> Self {
        Self {
            profile,
            seed: 0,
            schedule: Schedule::Timed,
            faults: FaultPlan::none(),
            falling_addresses: false,
            peer_access: true,
            pageable_access: true,
        }
    }

    /// Creates the configuration of a simulated H200.
    pub fn h200() -> Self {
        Self::new(Profile::h200())
    }

    /// Creates the configuration of a simulated H100 with 80 GB.
    pub fn h100() -> Self {
        Self::new(Profile::h100())
    }

    /// Creates the configuration of a simulated A100 with 80 GB. The costs of an A100's driver calls were not
    /// measured.
    pub fn a100() -> Self {
        Self::new(Profile::a100())
    }

    /// Creates the configuration of a simulated H200 with another capacity in bytes.
    pub fn with_capacity(bytes: u64) -> Self {
        Self::new(Profile::with_capacity(bytes))
    }

    /// Sets the seed of all random choices. [`Schedule::Timed`] makes no random choice.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the order in which the device completes pending work.
    #[must_use]
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// Sets which calls of the device fail. [`SimDevice::set_faults`](super::SimDevice::set_faults) changes
    /// this later.
    #[must_use]
    pub fn faults(mut self, faults: FaultPlan) -> Self {
        self.faults = faults;
        self
    }

    /// Makes the device allocate addresses from the upper end of the address space downwards, as a real
    /// driver may do.
    #[must_use]
    pub fn falling_addresses(mut self) -> Self {
        self.falling_addresses = true;
        self
    }

    /// Makes this device and the other devices of its [machine](super::SimMachine) refuse access to each
    /// other's memory.
    #[must_use]
    pub fn without_peer_access(mut self) -> Self {
        self.peer_access = false;
        self
    }

    /// Makes the device unable to access pageable host memory. Some real devices also cannot access it.
    #[must_use]
    pub fn without_pageable_access(mut self) -> Self {
        self.pageable_access = false;
        self
    }

    /// Returns the profile of the simulated device.
    pub const fn profile(&self) -> &Profile {
        &self.profile
    }
}
