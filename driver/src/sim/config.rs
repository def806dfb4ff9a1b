//! The configuration of a simulated device.

use super::model::fault::FaultPlan;
use super::profile::Profile;

/// Kernels, copies and fills on one stream that may be unfinished before a call that adds one waits for the
/// first, as CUDA does when a stream's queue is full.
pub(super) const DEEPEST_QUEUE: usize = 1024;

/// The order in which pending work of different streams is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Schedule {
    /// Work takes time, starts as soon as its stream and its waits allow, and is done when the virtual clock
    /// has passed its end. Driver calls advance the clock by their costs; synchronising advances it until the
    /// work is done.
    #[default]
    Timed,
    /// An adversary with this seed chooses. At each step it lets some pending work finish, or none, and
    /// may starve a stream for thousands of steps; a query may get either answer, unless the order of the
    /// work leaves only one. Every choice that CUDA is free to make can occur.
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
    /// A device with this profile, on the timed schedule, whose calls do not fail.
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

    /// A simulated H200.
    pub fn h200() -> Self {
        Self::new(Profile::h200())
    }

    /// A simulated A100 with 80 GB. The costs of its driver calls are not measured.
    pub fn a100() -> Self {
        Self::new(Profile::a100())
    }

    /// A simulated H200 with another capacity in bytes.
    pub fn with_capacity(bytes: u64) -> Self {
        Self::new(Profile::with_capacity(bytes))
    }

    /// Sets the seed that is mixed into every choice; [`Schedule::Timed`] makes none.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the schedule.
    #[must_use]
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// Sets which calls fail; see also [`SimDevice::set_faults`](super::SimDevice::set_faults).
    #[must_use]
    pub fn faults(mut self, faults: FaultPlan) -> Self {
        self.faults = faults;
        self
    }

    /// Hands out addresses from the upper end of the address space on, as a driver may do, too.
    #[must_use]
    pub fn falling_addresses(mut self) -> Self {
        self.falling_addresses = true;
        self
    }

    /// Denies other devices of its [machine](super::SimMachine) access to its memory, and it access to
    /// theirs.
    #[must_use]
    pub fn without_peer_access(mut self) -> Self {
        self.peer_access = false;
        self
    }

    /// Denies the device access to pageable host memory, as on systems without it.
    #[must_use]
    pub fn without_pageable_access(mut self) -> Self {
        self.pageable_access = false;
        self
    }

    /// The profile.
    pub const fn profile(&self) -> &Profile {
        &self.profile
    }
}
