//! One scenario, run once for every driver call in it, with that call failing.
//!
//! The scenario allocates and frees on two streams, steals, aligns, grows, runs out of memory, trims and
//! drops. It is run once to count the driver calls, and then again for each call and each of [`KINDS`]. In
//! every case there is no panic, no block is freed twice or too early, no memory is left but that of a failed
//! free (or a failed wait when dropping), and afterwards the resource works again, or is poisoned after a
//! sticky error.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use millpond_core::driver::StreamFlags;
use millpond_core::{
    AnyResource, DeviceMemoryResource, DevicePtr, Driver, DriverHandle, Error, Layout, Result, StreamRef,
};
use millpond_driver::sim::{Access, FaultPlan, Schedule, SimConfig, SimDevice};
use millpond_driver::{CallKind, CountingDriver};

use super::failure::Failure;
use super::kind::{FaultKind, KINDS};
use crate::conformance::Subject;
use crate::{Checked, misuse_recorder, text_of};

const CAPACITY: u64 = 64 << 20;

/// Returns the number of driver calls that the scenario makes without faults.
///
/// # Errors
/// The failure of a run without faults.
pub fn count_calls(subject: &Subject) -> Result<u64, Box<Failure>> {
    run(subject, None, KINDS[0])
}

/// Runs the scenario with every driver call failing in every way, and returns the number of runs.
///
/// # Errors
/// The first run with an error.
pub fn exhaust(subject: &Subject) -> Result<u64, Box<Failure>> {
    let calls = count_calls(subject)?;
    let mut runs = 1;
    for call in 0..calls {
        for kind in KINDS {
            run(subject, Some(call), kind)?;
            runs += 1;
        }
    }
    Ok(runs)
}

fn run(subject: &Subject, call: Option<u64>, kind: FaultKind) -> Result<u64, Box<Failure>> {
    let scenario = Scenario::new(subject, call, kind);
    scenario.device.set_faults(call.map_or_else(FaultPlan::none, |call| kind.plan(call)));
    // To the resource, a driver that refuses to free a live block looks like a caller's mistake.
    let (result, _misuses) = misuse_recorder::record(|| catch_unwind(AssertUnwindSafe(|| scenario.run())));
    result.map_err(|panic| {
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
            Err(error) => panic!("no stream can be created: {error}"),
        };
        let streams = [stream(), stream()];
        let counting = CountingDriver::new(Arc::clone(&device) as DriverHandle);
        let sticky = call.is_some() && kind.is_sticky();
        let first_call = device.driver_calls();
        Self { subject, call, sticky, device, counting, streams, first_call }
    }

    fn calls(&self) -> u64 {
        self.device.driver_calls() - self.first_call
    }

    /// Whether the call that fails was made.
    fn was_hit(&self) -> bool {
        self.call.is_some_and(|call| self.calls() > call)
    }

    fn failures(&self, kind: CallKind) -> u64 {
        self.counting.counts().get(kind).failures
    }

    /// The whole scenario; returns how many driver calls it made.
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
            let (calls, lost) = (self.calls(), self.sticky && self.was_hit());
            waits_failed = self.failures(CallKind::Synchronize);
            drop(resource);
            assert!(!lost || self.calls() == calls, "driver calls when a poisoned resource is dropped");
        }
        let calls = self.calls();
        let drop_waited = self.failures(CallKind::Synchronize) == waits_failed;
        self.device.set_faults(FaultPlan::none());
        self.check_device(drop_waited);
        calls
    }

    /// Builds the resource; with a failing driver it may refuse.
    fn build(&self, may_fail: bool) -> Option<Tested> {
        let driver: DriverHandle = Arc::clone(&self.counting) as DriverHandle;
        match self.subject.build(&driver) {
            Ok(resource) => Some(Checked::new(resource, Some(Arc::clone(&self.device)))),
            Err(error) => {
                assert!(may_fail, "the resource cannot be built: {error}");
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

    /// The operations of a program. The scenario itself makes no driver call: all calls that fail are the
    /// resource's.
    fn operate(&self, resource: &Tested, may_fail: bool) {
        let [a, b] = self.streams;
        let mut live: Vec<Block> = Vec::new();
        let get = |bytes, alignment, stream, live: &mut Vec<Block>| match self
            .allocate(resource, bytes, alignment, stream)
        {
            Ok(block) => live.push(block),
            Err(error) => assert!(may_fail || alignment > 256, "{bytes} bytes: {error}"),
        };
        for (bytes, stream) in [(1000, a), (1 << 20, a), (64 << 10, b), (0, b), (3 << 20, b)] {
            get(bytes, 256, stream, &mut live);
        }
        get(5000, 4096, a, &mut live);
        put_all(resource, &mut live);
        // Both streams' blocks are free now; each takes some of the other's.
        for (bytes, stream) in [(1 << 20, b), (3 << 20, a), (1000, b)] {
            get(bytes, 256, stream, &mut live);
        }
        drop(resource.memory_info());
        let _ = resource.statistics();
        let many = 40;
        for index in 0..many {
            match self.allocate(resource, 4 << 20, 256, self.streams[index % 2]) {
                Ok(block) => live.push(block),
                Err(error) => assert!(may_fail || error.is_out_of_memory(), "{error}"),
            }
        }
        let half = live.len() / 2;
        let mut rest = live.split_off(half);
        put_all(resource, &mut live);
        let trimmed = resource.trim(1 << 20);
        assert!(may_fail || trimmed.is_ok(), "{trimmed:?}");
        get(1 << 20, 256, a, &mut live);
        put_all(resource, &mut live);
        put_all(resource, &mut rest);
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

    /// Memory whose free failed stays taken: of plain memory, whose frees all fail, all but one page. A
    /// request may be refused only if the device has too little memory for it, even after the resource
    /// releases its own.
    fn check_refusal(&self, resource: &Tested, bytes: u64, error: &Error) {
        assert!(
            error.is_out_of_memory() && self.failed_frees() > 0,
            "the driver is well again, but: {error}"
        );
        drop(resource.trim(0));
        let free = self.device.mem_get_info().map_or(u64::MAX, |info| info.free);
        let needed = bytes.min(self.subject.largest_bytes).next_multiple_of(PAGE);
        assert!(free < needed, "the device has {free} bytes free, but: {error}");
    }

    /// Calls that failed although they were to give memory back.
    fn failed_frees(&self) -> u64 {
        FREES.iter().map(|&kind| self.failures(kind)).sum()
    }

    /// After the resource is gone. A drop that cannot wait for the device rightly leaves everything.
    fn check_device(&self, drop_waited: bool) {
        if let Some(violation) = self.device.take_violations().first() {
            panic!("{violation}");
        }
        if self.sticky || !drop_waited {
            return;
        }
        let failed_frees = self.failed_frees();
        let left = self.device.live_allocations() as u64;
        // Where pages do not go back, the addresses of their lines and views stay, too.
        let pages = self.failures(CallKind::MemUnmap) + self.failures(CallKind::MemRelease);
        let kept = failed_frees + if pages > 0 { RESERVATIONS } else { 0 };
        // A pool of the driver that could not be destroyed counts as one.
        let kept = kept + u64::from(self.failures(CallKind::MemPool) > 0);
        assert!(left <= kept, "{left} allocations are left, {failed_frees} frees failed");
        let (events, failed) = (self.device.live_events() as u64, self.failures(CallKind::EventDestroy));
        assert!(events <= failed, "{events} events are left, {failed} destructions failed");
    }
}

/// The device hands out memory in pages of this many bytes.
const PAGE: u64 = 2 << 20;

/// How many ranges of addresses a pool reserves.
const RESERVATIONS: u64 = 3;

/// The calls after whose failure memory may be left.
const FREES: [CallKind; 6] = [
    CallKind::MemFree,
    CallKind::MemFreeAsync,
    CallKind::MemFreeHost,
    CallKind::MemRelease,
    CallKind::MemUnmap,
    CallKind::MemAddressFree,
];

fn put_all(resource: &Tested, blocks: &mut Vec<Block>) {
    for block in blocks.drain(..) {
        // SAFETY: each block came from this resource with this layout, is given back once, and was used on
        // its stream only.
        unsafe { resource.deallocate(block.ptr, block.layout, block.stream) }
    }
    if let Some(fault) = resource.take_faults().first() {
        panic!("{fault}");
    }
}
