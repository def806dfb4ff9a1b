//! A simulated device's state behind its lock, and the steps that all calls share.

use std::collections::BTreeSet;

use millpond_core::{DeviceId, DevicePtr};

use super::config::SimConfig;
use super::model::answer::Answer;
use super::model::capture::Captures;
use super::model::clock::{Epoch, Slot};
use super::model::fault::Faults;
use super::model::host::HostMemory;
use super::model::ipc::Openings;
use super::model::oracle::Oracle;
use super::model::order::{Order, Waits};
use super::model::pools::Pools;
use super::model::rng::mix;
use super::model::space::Space;
use super::model::streams::Names;
use super::model::violation::ViolationKind;
use super::model::vmm::VirtualMemory;
use super::model::work::{Effects, Operation, Work};
use super::profile::Profile;
use crate::CallKind;

/// The whole state of a simulated device, behind its lock.
#[derive(Debug)]
pub(super) struct State {
    pub(super) profile: Profile,
    pub(super) faults: Faults,
    pub(super) order: Order,
    pub(super) work: Work,
    pub(super) effects: Effects,
    pub(super) names: Names,
    pub(super) space: Space,
    pub(super) oracle: Oracle,
    pub(super) pools: Pools,
    pub(super) vmm: VirtualMemory,
    pub(super) host: HostMemory,
    pub(super) openings: Openings,
    /// How many times the context was reset.
    pub(super) generation: u64,
    /// Whether the device was opened and its context was not reset after that.
    pub(super) is_context_active: bool,
    /// The devices whose plain memory this device's kernels may use.
    pub(super) peers_enabled: BTreeSet<DeviceId>,
    pub(super) captures: Captures,
    /// Whether the device can reach pageable host memory.
    pub(super) pageable_access: bool,
    /// The last prefetched range, and whether it went to the host.
    pub(super) last_prefetch: Option<(DevicePtr, u64, bool)>,
    step: u64,
    calls: u64,
    /// The most recent call, and the virtual nanoseconds of each kind.
    call: CallKind,
    spent_ns: [u64; CallKind::ALL.len()],
    trace: u64,
}

impl State {
    pub(super) fn new(config: SimConfig, device: DeviceId, slice: Option<usize>) -> Self {
        let profile = config.profile().clone();
        let mut state = Self {
            faults: Faults::new(config.faults),
            order: Order::new(),
            work: Work::new(config.schedule, config.seed),
            effects: Effects::default(),
            // Ids are unique in the process, because each device has its own range.
            names: Names::new((u64::from(device.ordinal()) << 32) + 1),
            space: Space::new(profile.capacity(), config.falling_addresses, slice),
            oracle: Oracle::default(),
            pools: Pools::new(slice),
            vmm: VirtualMemory::default(),
            host: HostMemory::beside(profile.capacity()),
            openings: Openings::new(device),
            captures: Captures::default(),
            pageable_access: config.pageable_access,
            last_prefetch: None,
            profile,
            generation: 0,
            is_context_active: false,
            peers_enabled: BTreeSet::new(),
            step: 0,
            calls: 0,
            call: CallKind::Other,
            spent_ns: [0; CallKind::ALL.len()],
            trace: 0,
        };
        for slot in 0..state.order.len() {
            state.work.open(slot);
        }
        state
    }

    // --- Every step ---

    /// Begins a driver call: counts it, advances time, and decides whether it fails.
    #[inline]
    pub(super) fn begin_call(&mut self, kind: CallKind) -> Answer<()> {
        self.begin_step();
        self.calls += 1;
        self.call = kind;
        self.note(kind as u64);
        self.faults.call(kind)?;
        self.pass(self.profile.call_ns(kind).unwrap_or(0));
        Ok(())
    }

    /// Begins a step: the adversary makes a choice.
    #[inline]
    pub(super) fn begin_step(&mut self) {
        self.step += 1;
        self.work.begin_step(self.step, &mut self.effects);
    }

    /// Advances virtual time within the most recent call.
    #[inline]
    pub(super) fn pass(&mut self, ns: u64) {
        self.spent_ns[self.call as usize] += ns;
        self.let_pass(ns);
    }

    /// Advances virtual time outside of calls.
    #[inline]
    pub(super) fn let_pass(&mut self, ns: u64) {
        self.work.pass(ns, &mut self.effects);
    }

    pub(super) fn call_costs(&self) -> Vec<(CallKind, u64)> {
        CallKind::ALL.into_iter().zip(self.spent_ns).collect()
    }

    /// Adds to the trace's hash.
    #[inline]
    pub(super) fn note(&mut self, value: u64) {
        self.trace = mix(self.trace ^ value);
    }

    pub(super) const fn trace(&self) -> u64 {
        self.trace
    }

    pub(super) const fn calls(&self) -> u64 {
        self.calls
    }

    pub(super) fn violation(&mut self, kind: ViolationKind, message: impl FnOnce() -> String) {
        self.effects.log.add(kind, self.step, message);
    }

    // --- Work ---

    /// Gives a stream's next work its place in the order.
    pub(super) fn place(&mut self, slot: Slot) -> (Epoch, Waits) {
        let mut waits = Waits::new();
        self.order.join_implicit(slot, &mut waits);
        (self.order.advance(slot), waits)
    }

    /// Submits work whose place is already assigned.
    pub(super) fn submit(&mut self, (epoch, waits): (Epoch, Waits), operation: Operation, duration_ns: u64) {
        self.work.push(epoch, waits, operation, duration_ns, &mut self.effects);
    }
}
