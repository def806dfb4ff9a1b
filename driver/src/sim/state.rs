use std::collections::BTreeSet;

use millpond_core::driver::{Event, StreamFlags};
use millpond_core::{DeviceId, DriverError, StreamRef};

use super::SimConfig;
use super::answer::{Answer, Refusal};
use super::capture::Captures;
use super::clock::{Epoch, Slot};
use super::fault::Faults;
use super::host::HostMemory;
use super::ipc::Openings;
use super::oracle::Oracle;
use super::order::{Order, StreamKind, Waits};
use super::pools::Pools;
use super::profile::Profile;
use super::rng::mix;
use super::space::Space;
use super::streams::Names;
use super::violation::ViolationKind;
use super::vmm::VirtualMemory;
use super::work::{Effects, Operation, Work};
use crate::CallKind;

/// Destroyed streams whose work is not done, before a call that creates one waits for theirs.
const MOST_DEAD_AT_WORK: usize = 128;

/// All that a simulated device is, behind its lock.
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
    /// How often the context was reset.
    pub(super) generation: u64,
    /// Whether somebody opened the device, and nobody reset its context since.
    pub(super) is_context_active: bool,
    /// The devices whose plain memory this one's kernels may use.
    pub(super) peers_enabled: BTreeSet<DeviceId>,
    pub(super) captures: Captures,
    step: u64,
    calls: u64,
    /// The call that began last, and the virtual nanoseconds of each kind.
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
            // Ids are unique in the process: each device has a range of its own.
            names: Names::new((u64::from(device.ordinal()) << 32) + 1),
            space: Space::new(profile.capacity(), config.falling_addresses, slice),
            oracle: Oracle::default(),
            pools: Pools::new(),
            vmm: VirtualMemory::default(),
            host: HostMemory::beside(profile.capacity()),
            openings: Openings::new(device),
            captures: Captures::default(),
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

    /// Begins a driver call: counts it, lets time pass, and says whether it fails.
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

    /// Lets virtual time pass in the call that began last.
    #[inline]
    pub(super) fn pass(&mut self, ns: u64) {
        self.spent_ns[self.call as usize] += ns;
        self.let_pass(ns);
    }

    /// Lets virtual time pass outside of calls.
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

    // --- Streams ---

    /// The slot of a stream; a stream that does not exist is a violation.
    pub(super) fn slot(&mut self, stream: StreamRef, call: &str) -> Option<Slot> {
        let found = self.names.slot(stream);
        if found.is_some() {
            return found;
        }
        if stream.is_per_thread() {
            let slot = self.order.open(StreamKind::Blocking, stream.handle())?;
            self.work.open(slot);
            self.names.add_per_thread(stream, slot);
            return Some(slot);
        }
        self.violation(ViolationKind::DeadHandle, || {
            let (handle, id) = (stream.handle(), stream.id().get());
            format!("{call} names stream {handle:#x} (id {id}), which does not exist, or not any more")
        });
        None
    }

    /// The same for a driver call.
    pub(super) fn stream_slot(&mut self, stream: StreamRef, call: &str) -> Answer<Slot> {
        self.slot(stream, call).ok_or_else(|| {
            Refusal::new(DriverError::INVALID_HANDLE, format!("stream {stream} does not exist"))
        })
    }

    pub(super) fn stream_create(&mut self, flags: StreamFlags) -> Answer<StreamRef> {
        if self.order.wants_folding() {
            self.fold_streams();
        }
        let kind = if flags.non_blocking { StreamKind::NonBlocking } else { StreamKind::Blocking };
        let handle = self.names.next_stream_handle();
        let slot = self
            .order
            .open(kind, handle)
            .ok_or_else(|| Refusal::new(DriverError::OUT_OF_MEMORY, "the simulator has no more streams"))?;
        self.work.open(slot);
        let stream = self.names.add_stream(slot);
        self.note(stream.handle());
        Ok(stream)
    }

    pub(super) fn stream_destroy(&mut self, stream: StreamRef) -> Answer<()> {
        if stream.handle() <= 2 {
            return Err(Refusal::new(DriverError::INVALID_HANDLE, "a default stream cannot be destroyed"));
        }
        let slot = self.stream_slot(stream, "cuStreamDestroy")?;
        self.captures.forget(slot, "cuStreamDestroy");
        self.order.close(slot);
        self.names.remove_stream(stream);
        Ok(())
    }

    /// Forgets destroyed streams that nobody can ask about any more.
    fn fold_streams(&mut self) {
        if self.order.dead().len() > MOST_DEAD_AT_WORK {
            for slot in self.order.dead().to_vec() {
                self.work.finish(self.order.end(slot), &mut self.effects);
            }
        }
        let mut referenced = vec![false; self.order.len()];
        self.oracle.for_each_epoch(|epoch| referenced[epoch.slot()] = true);
        self.pools.for_each_epoch(|epoch| referenced[epoch.slot()] = true);
        self.names.for_each_epoch(|epoch| referenced[epoch.slot()] = true);
        self.order.fold(&referenced, |slot| self.work.is_idle(slot));
        self.oracle.forget_slots(|slot| self.order.is_free(slot));
    }

    pub(super) fn stream_synchronize(&mut self, stream: StreamRef) -> Answer<()> {
        let slot = self.stream_slot(stream, "cuStreamSynchronize")?;
        self.work.finish(self.order.end(slot), &mut self.effects);
        self.order.host_learns_stream(slot);
        self.trim_pools();
        Ok(())
    }

    pub(super) fn stream_query(&mut self, stream: StreamRef) -> Answer<bool> {
        let slot = self.stream_slot(stream, "cuStreamQuery")?;
        let done = self.work.is_done(self.order.end(slot));
        if done {
            self.order.host_learns_stream(slot);
        }
        self.note(u64::from(done));
        Ok(done)
    }

    /// Waits for everything (`cuCtxSynchronize`, `cuMemFree`).
    pub(super) fn synchronize(&mut self) {
        self.work.finish_all(&mut self.effects);
        self.order.host_learns_all();
        self.trim_pools();
    }

    // --- Work ---

    /// Gives a stream's next work its place in the order.
    pub(super) fn place(&mut self, slot: Slot) -> (Epoch, Waits) {
        let mut waits = Waits::new();
        self.order.join_implicit(slot, &mut waits);
        (self.order.advance(slot), waits)
    }

    /// Submits work that has its place.
    pub(super) fn submit(&mut self, (epoch, waits): (Epoch, Waits), operation: Operation, duration_ns: u64) {
        self.work.push(epoch, waits, operation, duration_ns, &mut self.effects);
    }

    // --- Events ---

    pub(super) fn event_create(&mut self) -> Event {
        let event = self.names.add_event();
        self.note(event.0);
        event
    }

    pub(super) fn event_destroy(&mut self, event: Event) -> Answer<()> {
        self.known_event(event, "cuEventDestroy")?;
        self.names.remove_event(event);
        Ok(())
    }

    fn known_event(&mut self, event: Event, call: &str) -> Answer<()> {
        if self.names.has_event(event) {
            return Ok(());
        }
        self.violation(ViolationKind::DeadHandle, || {
            format!("{call} names event {:#x}, which does not exist, or not any more", event.0)
        });
        Err(Refusal::new(DriverError::INVALID_HANDLE, format!("event {:#x} does not exist", event.0)))
    }

    pub(super) fn event_record(&mut self, event: Event, stream: StreamRef) -> Answer<()> {
        self.known_event(event, "cuEventRecord")?;
        let slot = self.stream_slot(stream, "cuEventRecord")?;
        if slot == super::order::LEGACY {
            self.pass(self.profile.legacy_record_extra_ns());
        }
        let mut waits = Waits::new();
        self.order.join_implicit(slot, &mut waits);
        if !waits.is_empty() {
            let epoch = self.order.advance(slot);
            self.submit((epoch, waits), Operation::Nothing, 0);
        }
        let captured_in = self.captures.of(slot);
        self.names.set_record(event, self.order.end(slot), self.order.clock(slot), captured_in);
        Ok(())
    }

    /// Whether [`event_record`](Self::event_record) may be called: see the trait.
    pub(super) fn is_surely_alive(&self, stream: StreamRef) -> bool {
        let is_free = |slot| !self.is_captured(slot);
        !stream.is_per_thread() && self.names.slot(stream).is_some_and(is_free)
    }

    pub(super) fn stream_wait_event(&mut self, stream: StreamRef, event: Event) -> Answer<()> {
        self.known_event(event, "cuStreamWaitEvent")?;
        let slot = self.stream_slot(stream, "cuStreamWaitEvent")?;
        let mut waits = Waits::new();
        self.order.join_implicit(slot, &mut waits);
        match self.names.record(event) {
            None => self.violation(ViolationKind::UnrecordedEvent, || {
                format!("stream {stream} was made to wait for event {:#x}, which was never recorded", event.0)
            }),
            Some(record) => {
                if self.order.join_event(slot, record.epoch, &record.clock) {
                    waits.push(record.epoch);
                }
            }
        }
        if !waits.is_empty() {
            let epoch = self.order.advance(slot);
            self.submit((epoch, waits), Operation::Nothing, 0);
        }
        Ok(())
    }

    pub(super) fn event_query(&mut self, event: Event) -> Answer<bool> {
        self.known_event(event, "cuEventQuery")?;
        let Some(record) = self.names.record(event) else { return Ok(true) };
        let done = self.work.is_done(record.epoch);
        if done {
            self.order.host_learns(&record.clock);
        }
        self.note(u64::from(done));
        Ok(done)
    }

    pub(super) fn event_synchronize(&mut self, event: Event) -> Answer<()> {
        self.known_event(event, "cuEventSynchronize")?;
        let Some(record) = self.names.record(event) else { return Ok(()) };
        self.work.finish(record.epoch, &mut self.effects);
        self.order.host_learns(&record.clock);
        self.trim_pools();
        Ok(())
    }
}
