//! Runs one scenario again and again. In each run, another of its driver calls fails.
//!
//! The scenario allocates and frees on two streams, takes blocks of the other stream, aligns, grows, runs out
//! of memory, trims and drops. The first run finds the driver calls. Then each call fails in some of the ways
//! in [`KINDS`], as [`Ways`] selects.
//!
//! In every case nothing panics, and no block is freed twice or too early. Memory is left only after a failed
//! free, or after a failed wait in the drop. After the fault, the resource works again, or it is poisoned by
//! a sticky error.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use millpond_core::driver::StreamFlags;
use millpond_core::{
    AnyResource, DeviceMemoryResource, DevicePtr, Driver, DriverHandle, Error, Layout, Result, StreamRef,
};
use millpond_driver::sim::{Access, FaultPlan, Schedule, SimConfig, SimDevice};
use millpond_driver::{CallKind, CountingDriver};
use parking_lot::Mutex;

use super::failure::Failure;
use super::kind::{FREES, FaultKind, KINDS};
use crate::conformance::Subject;
use crate::{Checked, misuse_recorder, text_of};

const CAPACITY: u64 = 64 << 20;

/// The number of large requests in the scenario: slightly more than the device has memory for.
const MANY: usize = 20;

/// In how many ways each of a stack's driver calls fails.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Ways {
    /// In each step of the scenario, the first two calls and the last call of each kind fail in every way.
    /// The calls between them are alike, so each of them fails in only one way, and the ways take turns.
    Every,
    /// Each call fails in only one way, and the ways take turns. Use this for stacks whose layers make no
    /// driver calls themselves.
    Turns,
}

/// How many calls of each kind at the start of a step fail in every way.
const FIRST: usize = 2;

/// A driver call of the scenario: its step and its name.
type Site = (u32, &'static str);

/// Returns the number of driver calls that the scenario makes without faults.
///
/// # Errors
/// Returns an error if the run without faults fails.
pub fn count_calls(subject: &Subject) -> Result<u64, Box<Failure>> {
    run(subject, None, KINDS[0]).map(|sites| sites.len() as u64)
}

/// Runs the scenario for every driver call in it, and for each of these ways in which the call can fail.
/// Returns the number of runs.
///
/// # Errors
/// Returns the first run that has an error.
pub fn exhaust(subject: &Subject, ways: Ways) -> Result<u64, Box<Failure>> {
    let sites = run(subject, None, KINDS[0])?;
    let mut runs = 1;
    for call in 0..sites.len() {
        for kind in kinds_of(&sites, call, ways, subject.name().len()) {
            run(subject, Some(call as u64), *kind)?;
            runs += 1;
        }
    }
    Ok(runs)
}

/// The ways in which a call fails. `shift` makes different stacks begin with different ways.
fn kinds_of(sites: &[Site], call: usize, ways: Ways, shift: usize) -> &'static [FaultKind] {
    static ALL: [FaultKind; KINDS.len()] = KINDS;
    let site = &sites[call];
    let before = sites[..call].iter().filter(|other| *other == site).count();
    let is_bound = before < FIRST || !sites[call + 1..].contains(site);
    let turn = (call + shift) % ALL.len();
    if ways == Ways::Every && is_bound { &ALL } else { &ALL[turn..=turn] }
}

fn run(subject: &Subject, call: Option<u64>, kind: FaultKind) -> Result<Vec<Site>, Box<Failure>> {
    let scenario = Scenario::new(subject, call, kind);
    let sites = scenario.watch_calls();
    scenario.device.set_faults(call.map_or_else(FaultPlan::none, |call| kind.plan(call)));
    // If the driver refuses to free a live block, the resource takes that for a caller's mistake.
    let (result, _misuses) = misuse_recorder::record(|| catch_unwind(AssertUnwindSafe(|| scenario.run())));
    scenario.device.observe_calls(None);
    let sites = std::mem::take(&mut *sites.lock());
    result
        .map(|calls| (0..calls).map(|call| sites.get(&call).copied().unwrap_or_default()).collect())
        .map_err(|panic| {
            let failed = scenario.counting.counts();
            let failed = failed.iter().filter(|(_, counts)| counts.failures > 0);
            let kinds: Vec<&str> = failed.map(|(kind, _)| kind.name()).collect();
            let message = format!("{} (failed: {})", text_of(&*panic), kinds.join(", "));
            Box::new(Failure { subject: subject.name().to_owned(), call, kind, message })
        })
}

struct Scenario<'a> {
    subject: &'a Subject,
    call: Option<u64>,
    /// Whether the call fails with a sticky error.
    sticky: bool,
    device: Arc<SimDevice>,
    counting: Arc<CountingDriver>,
    streams: [StreamRef; 2],
    first_call: u64,
    /// The current step.
    step: Arc<AtomicU32>,
}

#[derive(Clone, Copy)]
struct Block {
    ptr: DevicePtr,
    layout: Layout,
    stream: StreamRef,
}

type Tested = Checked<AnyResource>;

impl<'a> Scenario<'a> {
    fn new(subject: &'a Subject, call: Option<u64>, kind: FaultKind) -> Self {
        let device = SimDevice::new(SimConfig::with_capacity(CAPACITY).schedule(Schedule::Seeded(7)));
        let stream = || match device.stream_create(StreamFlags::NON_BLOCKING) {
            Ok(stream) => stream,
            Err(error) => panic!("cannot create a stream: {error}"),
        };
        let streams = [stream(), stream()];
        let counting = CountingDriver::new(Arc::clone(&device) as DriverHandle);
        let sticky = call.is_some() && kind.is_sticky();
        let first_call = device.driver_calls();
        Self { subject, call, sticky, device, counting, streams, first_call, step: Arc::default() }
    }

    /// Records the site of each driver call by its number. Calls that cannot fail share the number of the
    /// next call.
    fn watch_calls(&self) -> Arc<Mutex<BTreeMap<u64, Site>>> {
        let sites: Arc<Mutex<BTreeMap<u64, Site>>> = Arc::default();
        if self.call.is_none() {
            let (device, step, first) =
                (Arc::downgrade(&self.device), Arc::clone(&self.step), self.first_call);
            let noted = Arc::clone(&sites);
            self.device.observe_calls(Some(Arc::new(move |name| {
                let calls = device.upgrade().map_or(first, |device| device.driver_calls());
                noted.lock().insert(calls - first, (step.load(Ordering::Relaxed), name));
            })));
        }
        sites
    }

    fn next_step(&self) {
        self.step.fetch_add(1, Ordering::Relaxed);
    }

    fn calls(&self) -> u64 {
        self.device.driver_calls() - self.first_call
    }

    /// Whether the failing call was made.
    fn was_hit(&self) -> bool {
        self.call.is_some_and(|call| self.calls() > call)
    }

    fn failures(&self, kind: CallKind) -> u64 {
        self.counting.counts().get(kind).failures
    }

    /// Runs the whole scenario; returns the number of driver calls.
    fn run(&self) -> u64 {
        let may_fail = self.call.is_some();
        let mut waits_failed = 0;
        if let Some(resource) = self.build(may_fail) {
            self.operate(&resource, may_fail);
            if self.was_hit() {
                if !self.sticky {
                    self.device.set_faults(FaultPlan::none());
                }
                self.check_afterwards(&resource);
            }
            if let Some(inspect) = self.subject.inspect {
                inspect(resource.inner());
            }
            self.next_step();
            let (calls, lost) = (self.calls(), self.sticky && self.was_hit());
            waits_failed = self.failures(CallKind::Synchronize);
            drop(resource);
            assert!(!lost || self.calls() == calls, "dropping a poisoned resource calls the driver");
        }
        let calls = self.calls();
        let drop_waited = self.failures(CallKind::Synchronize) == waits_failed;
        self.device.set_faults(FaultPlan::none());
        self.check_device(drop_waited);
        calls
    }

    /// Builds the resource; returns `None` if it refuses because the driver fails.
    fn build(&self, may_fail: bool) -> Option<Tested> {
        let driver: DriverHandle = Arc::clone(&self.counting) as DriverHandle;
        match self.subject.build(&driver) {
            Ok(resource) => Some(Checked::new(resource, Some(Arc::clone(&self.device)))),
            Err(error) => {
                assert!(may_fail, "cannot build the resource: {error}");
                None
            }
        }
    }

    fn allocate(&self, resource: &Tested, bytes: u64, alignment: u64, stream: StreamRef) -> Result<Block> {
        let layout = Layout::with_alignment(bytes.min(self.subject.largest_bytes), alignment)?;
        let ptr = resource.allocate(layout, stream)?;
        let block = Block { ptr, layout, stream };
        if layout.bytes() > 0 && resource.accessibility().device {
            let tag = ptr.address();
            self.device.launch(stream, &[Access::write(ptr, layout.bytes(), tag)]);
            self.device.launch(stream, &[Access::check(ptr, layout.bytes(), tag)]);
        }
        Ok(block)
    }

    /// The operations of a program. The scenario itself makes no driver call, so only the resource's calls
    /// fail.
    fn operate(&self, resource: &Tested, may_fail: bool) {
        let [a, b] = self.streams;
        let mut live: Vec<Block> = Vec::new();
        let get = |bytes, alignment, stream, live: &mut Vec<Block>| match self
            .allocate(resource, bytes, alignment, stream)
        {
            Ok(block) => live.push(block),
            Err(error) => assert!(may_fail || alignment > 256, "{bytes} bytes: {error}"),
        };
        self.next_step();
        for (bytes, stream) in [(1000, a), (1 << 20, a), (64 << 10, b), (0, b), (3 << 20, b)] {
            get(bytes, 256, stream, &mut live);
        }
        get(5000, 4096, a, &mut live);
        self.next_step();
        put_all(resource, &mut live);
        self.next_step();
        // Both streams' blocks are free now, and each stream takes some of the other's.
        for (bytes, stream) in [(1 << 20, b), (3 << 20, a), (1000, b)] {
            get(bytes, 256, stream, &mut live);
        }
        drop(resource.memory_info());
        let _ = resource.statistics();
        self.next_step();
        for index in 0..MANY {
            match self.allocate(resource, 4 << 20, 256, self.streams[index % 2]) {
                Ok(block) => live.push(block),
                Err(error) => assert!(may_fail || error.is_out_of_memory(), "{error}"),
            }
        }
        self.next_step();
        let half = live.len() / 2;
        let mut rest = live.split_off(half);
        put_all(resource, &mut live);
        self.next_step();
        let trimmed = resource.trim(1 << 20);
        assert!(may_fail || trimmed.is_ok(), "{trimmed:?}");
        get(1 << 20, 256, a, &mut live);
        put_all(resource, &mut live);
        put_all(resource, &mut rest);
        self.next_step();
        drop(resource.trim(0));
        get(100_000, 256, b, &mut live);
        put_all(resource, &mut live);
    }

    /// Checks that the device works again, or is permanently lost.
    fn check_afterwards(&self, resource: &Tested) {
        for (index, bytes) in [1, 1000, 1 << 20, 3 << 20].into_iter().enumerate() {
            match (self.allocate(resource, bytes, 256, self.streams[index % 2]), self.sticky) {
                (Ok(block), false) => put_all(resource, &mut vec![block]),
                (Ok(_), true) => panic!("{bytes} bytes are handed out after a sticky error"),
                (Err(error), true) => assert!(error.is_sticky(), "{error}"),
                (Err(error), false) => self.check_refusal(resource, bytes, &error),
            }
        }
    }

    /// Memory whose free failed stays taken. If all frees of plain memory fail, that is all memory except one
    /// page. A request may be refused only if the device has too little memory for it, even after the
    /// resource releases its own.
    fn check_refusal(&self, resource: &Tested, bytes: u64, error: &Error) {
        assert!(error.is_out_of_memory() && self.failed_frees() > 0, "the driver works again, but: {error}");
        drop(resource.trim(0));
        let free = self.device.mem_get_info().map_or(u64::MAX, |info| info.free);
        let needed = bytes.min(self.subject.largest_bytes).next_multiple_of(PAGE);
        assert!(free < needed, "the device has {free} bytes free, but: {error}");
    }

    /// Failed calls that should have returned memory.
    fn failed_frees(&self) -> u64 {
        FREES.iter().map(|&kind| self.failures(kind)).sum()
    }

    /// Checks the device after the resource is gone. A drop that could not wait for the device may leave
    /// everything.
    fn check_device(&self, drop_waited: bool) {
        if let Some(violation) = self.device.take_violations().first() {
            panic!("{violation}");
        }
        if self.sticky || !drop_waited {
            return;
        }
        let failed_frees = self.failed_frees();
        let left = self.device.live_allocations() as u64;
        // If pages are not returned, the addresses of their lines and views stay too.
        let pages = self.failures(CallKind::MemUnmap) + self.failures(CallKind::MemRelease);
        let kept = failed_frees + if pages > 0 { RESERVATIONS } else { 0 };
        // A driver pool that could not be destroyed counts as one.
        let kept = kept + u64::from(self.failures(CallKind::MemPool) > 0);
        assert!(left <= kept, "{left} allocations are left, but only {failed_frees} frees failed");
        let (events, failed) = (self.device.live_events() as u64, self.failures(CallKind::EventDestroy));
        assert!(events <= failed, "{events} events are left, but only {failed} destructions failed");
    }
}

/// The device hands out memory in pages of this many bytes.
const PAGE: u64 = 2 << 20;

/// The number of address ranges that a pool reserves.
const RESERVATIONS: u64 = 3;

fn put_all(resource: &Tested, blocks: &mut Vec<Block>) {
    for block in blocks.drain(..) {
        // SAFETY: each block came from this resource with this layout, is freed once, and was used only on
        // its stream.
        unsafe { resource.deallocate(block.ptr, block.layout, block.stream) }
    }
    if let Some(fault) = resource.take_faults().first() {
        panic!("{fault}");
    }
}
