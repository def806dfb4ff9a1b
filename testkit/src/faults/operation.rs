//! Runs one operation again and again. In each run, another of its driver calls fails.
//!
//! An operation is prepared on fresh devices without faults. Then it runs while one of its driver
//! calls fails. After that, there are two cases: it runs again without faults and ends, or it ends at once
//! while later calls fail as planned. In every case, these conditions must hold:
//! - nothing panics, the devices find no violation, and no `deallocate` is refused;
//! - no memory of the driver, event or stream is left, unless a failed free, destruction or wait explains it;
//! - the same operation then works without faults on the same devices. But after a sticky error, it reports
//!   that the device is lost, and neither the operation nor its end calls the driver any more.
//!
//! The devices are simulated, or the caller's own ([`FaultyDevice`](super::FaultyDevice)). They see only
//! driver calls and launched work. To check also the blocks that a pool hands out, put
//! [`Checked`](crate::Checked) on top of the resource in the operation. `Checked` reports each block to the
//! device; its [`shadow`](crate::Checked::shadow) counts the blocks that are left.

use std::fmt;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use millpond_core::Result;
use millpond_driver::CallKind;
use millpond_driver::sim::{Violation, ViolationKind};

use super::failure::Failure;
use super::kind::{FREES, FaultKind, KINDS};
use super::stack::Ways;
use super::stage::{Live, Stage};
use crate::{misuse_recorder, text_of};

/// The closure that each run calls. It owns everything that was prepared.
pub type Act = Box<dyn FnMut() -> Result<()>>;

/// Prepares an operation on fresh devices.
pub type Prepare = fn(&Stage) -> Result<Act>;

/// A public operation that calls the driver.
///
/// ```
/// use millpond_core::Driver;
/// use millpond_core::driver::{EventFlags, call};
/// use millpond_testkit::faults::{Operation, exhaust_operation};
///
/// let operation = Operation::new("an event", |stage| {
///     let driver = stage.driver();
///     Ok(Box::new(move || {
///         let event = call(&*driver, |driver| driver.event_create(Default::default()))?;
///         // SAFETY: the event is new, and nothing waits for it.
///         call(&*driver, |driver| unsafe { driver.event_destroy(event) })
///     }))
/// });
/// // Two calls fail in seven ways each; then the operation acts again or ends.
/// assert!(exhaust_operation(&operation).unwrap() > 28);
/// ```
#[derive(Clone, Copy)]
pub struct Operation {
    name: &'static str,
    prepare: Prepare,
    needs_peer: bool,
}

impl Operation {
    /// Creates an operation with this name.
    pub const fn new(name: &'static str, prepare: Prepare) -> Self {
        Self { name, prepare, needs_peer: false }
    }

    /// Creates an operation that needs the stage's other device.
    pub const fn with_peer(name: &'static str, prepare: Prepare) -> Self {
        Self { name, prepare, needs_peer: true }
    }

    /// Returns the name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns whether the operation needs the stage's other device.
    pub const fn needs_peer(&self) -> bool {
        self.needs_peer
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The driver call that fails, and how.
#[derive(Clone, Copy)]
struct Fault {
    device: usize,
    call: u64,
    kind: FaultKind,
}

/// The step after the act with the fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Then {
    /// The operation acts again without faults, then ends.
    Again,
    /// The operation ends, and the faults stay.
    End,
}

/// The driver calls of each device, up to the end of the act and in total.
struct Calls {
    act: Vec<u64>,
    all: Vec<u64>,
}

/// The runs of an operation.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Runs {
    /// How many runs there were.
    pub count: u64,
    /// The runs that had an error.
    pub failed: Vec<Failure>,
}

/// Runs the operation on fresh simulated devices for every driver call in it, and for every way in [`KINDS`]
/// in which this call can fail. Returns the number of runs.
///
/// # Errors
/// Returns the first run that has an error.
pub fn exhaust_operation(operation: &Operation) -> Result<u64, Box<Failure>> {
    let runs = exhaust_operation_on(&Stage::simulated, operation, &KINDS, Ways::Every);
    runs.failed.into_iter().next().map_or(Ok(runs.count), |failure| Err(Box::new(failure)))
}

/// Runs the operation for every driver call in it, and for these ways in which the call can fail: for each of
/// them, or in turns. `stage` returns the devices of each run. They may be the same devices each time: only
/// the objects that a run creates count as left. If the operation fails without faults, that is the only run.
pub fn exhaust_operation_on(
    stage: &dyn Fn() -> Stage,
    operation: &Operation,
    kinds: &[FaultKind],
    ways: Ways,
) -> Runs {
    let mut runs = Runs::default();
    let mut each = |fault: Option<Fault>, then: Then| {
        runs.count += 1;
        run(stage(), operation, fault, then).map_err(|failure| runs.failed.push(failure)).ok()
    };
    let calls = each(None, Then::Again).and_then(|_| each(None, Then::End));
    let Some(calls) = calls else { return runs };
    for (device, all) in calls.all.iter().enumerate() {
        for call in 0..*all {
            let is_turn = |turn: usize| ways == Ways::Every || call as usize % kinds.len() == turn;
            for (_, kind) in kinds.iter().enumerate().filter(|(turn, _)| is_turn(*turn)) {
                let fault = Some(Fault { device, call, kind: *kind });
                if call < calls.act[device] {
                    each(fault, Then::Again);
                }
                each(fault, Then::End);
            }
        }
    }
    runs
}

fn run(stage: Stage, operation: &Operation, fault: Option<Fault>, then: Then) -> Result<Calls, Failure> {
    let before = stage.devices().iter().map(|device| device.live()).collect();
    let run = Run { stage, before, prepare: operation.prepare, fault, then };
    let (result, misuses) = misuse_recorder::record(|| catch_unwind(AssertUnwindSafe(|| run.run())));
    let result = result.map_err(|panic| text_of(&*panic)).and_then(|(calls, frees_failed)| {
        // If the driver refuses to free a live block, a resource takes that for a caller's mistake.
        let refused = misuses.first().filter(|_| frees_failed == 0);
        refused.map_or(Ok(calls), |misuse| Err(misuse.to_string()))
    });
    result.map_err(|message| {
        let (call, kind) = (fault.map(|fault| fault.call), fault.map_or(KINDS[0], |fault| fault.kind));
        let of_peer =
            if fault.is_some_and(|fault| fault.device == 1) { " (of the other device)" } else { "" };
        let name = fault.and_then(|fault| run.stage.devices()[fault.device].failed_name());
        let name = name.map_or_else(String::new, |name| format!("{name}, "));
        let message = format!("{name}then {then:?}{of_peer}: {message}");
        Failure { subject: operation.name.to_owned(), call, kind, message }
    })
}

struct Run {
    stage: Stage,
    /// The living objects of each device before the run.
    before: Vec<Live>,
    prepare: Prepare,
    fault: Option<Fault>,
    then: Then,
}

/// The calls that failed before the fault plan was cleared.
#[derive(Clone, Copy, Default)]
struct Failed {
    frees: u64,
    pages: u64,
    /// Waits for a stream or an event.
    waits: u64,
    /// Waits for the device.
    device_waits: u64,
    events: u64,
    streams: u64,
}

impl Run {
    /// Runs the operation; returns the calls, and how many frees and waits failed.
    fn run(&self) -> (Calls, u64) {
        let mut act = (self.prepare)(&self.stage)
            .unwrap_or_else(|error| panic!("the operation cannot be prepared without faults: {error}"));
        let start = self.calls();
        if let Some(Fault { device, call, kind }) = self.fault {
            self.stage.devices()[device].set_fault(Some((call, kind)));
        }
        let since_start = || self.calls().iter().zip(&start).map(|(now, then)| now - then).collect();
        let answer = act();
        let acted = since_start();
        self.check_answer(&answer);
        let mut failed = Failed::default();
        if self.then == Then::Again && self.check_lost().is_continue() {
            failed = self.failed();
            self.clear();
            act().unwrap_or_else(|error| panic!("the operation does not work afterwards: {error}"));
        }
        let calls = self.calls();
        let was_lost = self.is_lost();
        if was_lost && let Err(error) = act() {
            assert!(error.is_sticky(), "the device is lost, but the error is: {error}");
        }
        drop(act);
        let all = since_start();
        if was_lost {
            let lost = self.fault.map_or(0, |fault| fault.device);
            assert_eq!(self.calls()[lost], calls[lost], "driver calls although the device is lost");
        }
        failed = failed.and(self.failed());
        self.check_next();
        self.check_devices(failed);
        (Calls { act: acted, all }, failed.frees + failed.waits)
    }

    /// The driver calls of each device so far.
    fn calls(&self) -> Vec<u64> {
        self.stage.devices().iter().map(|device| device.calls()).collect()
    }

    /// Removes the faults.
    fn clear(&self) {
        self.stage.devices().iter().for_each(|device| device.set_fault(None));
    }

    /// Whether the planned call failed, and lost its device.
    fn is_lost(&self) -> bool {
        self.fault.is_some_and(|fault| self.stage.devices()[fault.device].is_lost())
    }

    fn check_answer(&self, answer: &Result<()>) {
        match answer {
            Err(error) if self.fault.is_none() => panic!("without faults: {error}"),
            Err(error) if self.is_lost() => {
                assert!(error.is_sticky(), "the device was lost, but the error is: {error}");
            }
            _ => {}
        }
    }

    /// Breaks if the device is lost. Then its health record must say so.
    fn check_lost(&self) -> ControlFlow<()> {
        match self.fault {
            Some(fault) if self.is_lost() => {
                let driver = self.stage.devices()[fault.device].driver();
                assert!(
                    driver.health().is_lost(),
                    "a call lost the device, but its health record does not say so"
                );
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        }
    }

    fn failed(&self) -> Failed {
        let devices = self.stage.devices();
        let failed = |kinds: &[CallKind]| {
            devices.iter().flat_map(|device| kinds.iter().map(|kind| device.failed_calls(*kind))).sum::<u64>()
        };
        let is_persistent = self.fault.is_some_and(|fault| fault.kind.persistent);
        Failed {
            // The second attempt destroys a driver pool.
            frees: failed(&FREES)
                + failed(&ENDS)
                + if is_persistent { failed(&[CallKind::MemPool]) } else { 0 },
            pages: failed(&[CallKind::MemUnmap, CallKind::MemRelease]),
            waits: failed(&[CallKind::StreamSynchronize, CallKind::EventSynchronize]),
            device_waits: failed(&[CallKind::Synchronize]),
            events: failed(&[CallKind::EventDestroy]),
            streams: failed(&[CallKind::StreamDestroy]),
        }
    }

    /// Runs the same operation again on the same devices.
    fn check_next(&self) {
        let lost = self.is_lost();
        if !lost {
            self.clear();
        }
        let again = (self.prepare)(&self.stage).and_then(|mut act| act());
        match again {
            Err(error) if !lost => panic!("the next operation does not work: {error}"),
            Err(error) => assert!(error.is_sticky(), "the device is lost, but the next error is: {error}"),
            Ok(()) => {}
        }
    }

    /// Checks the objects that are left. If an end could not wait for the device, it may leave everything.
    fn check_devices(&self, failed: Failed) {
        let lost = self.is_lost();
        self.clear();
        let before = self.before.iter().zip(self.stage.at_first());
        for (device, (before, at_first)) in self.stage.devices().iter().zip(before) {
            // Memory that another process could not close is still open when its owner frees it.
            let may_be_open = failed.frees + failed.waits + failed.device_waits > 0;
            let is_left_open =
                |violation: &Violation| may_be_open && violation.kind == ViolationKind::EarlyReturn;
            if let Some(violation) = device.take_violations().iter().find(|found| !is_left_open(found)) {
                panic!("{violation}");
            }
            if lost || failed.device_waits > 0 {
                continue;
            }
            // If pages are not returned, their addresses stay too.
            let kept = failed.frees + failed.waits + if failed.pages > 0 { RESERVATIONS } else { 0 };
            let now = device.live();
            at_most("allocations", now.allocations - before.allocations, kept);
            // The decay thread may still ask a pool that an earlier run had to leave.
            let older = before.allocations.saturating_sub(at_first.allocations).max(0) as u64;
            at_most("events", now.events - before.events, failed.events + older * STREAMS);
            at_most("streams", now.streams - before.streams, failed.streams);
        }
    }
}

impl Failed {
    fn and(self, later: Self) -> Self {
        Self {
            frees: self.frees + later.frees,
            pages: self.pages + later.pages,
            waits: self.waits + later.waits,
            device_waits: self.device_waits + later.device_waits,
            events: self.events + later.events,
            streams: self.streams + later.streams,
        }
    }
}

fn at_most(what: &str, left: i64, explained: u64) {
    assert!(left <= explained as i64, "{left} {what} are left, but failed calls explain only {explained}");
}

/// The streams whose work a pool may ask for: the stage's two, and the legacy default stream.
const STREAMS: u64 = 3;

/// The number of address ranges that a pool reserves.
const RESERVATIONS: u64 = 3;

/// These kinds include the calls that end a registration or close a handle, so memory may be left, too.
const ENDS: [CallKind; 2] = [CallKind::MemHostRegister, CallKind::Ipc];

/// Tests that [`exhaust_operation`] finds the mistakes that it should find.
#[cfg(test)]
mod tests {
    use millpond_core::driver::call;
    use millpond_core::{DevicePtr, DriverHandle, Error};

    use super::*;

    fn alloc(driver: &DriverHandle) -> Result<DevicePtr> {
        call(&**driver, |driver| driver.mem_alloc(1000))
    }

    fn free(driver: &DriverHandle, ptr: DevicePtr) -> Result<()> {
        // SAFETY: the block is live, or the test makes that mistake on purpose.
        call(&**driver, |driver| unsafe { driver.mem_free(ptr) })
    }

    /// Allocates two blocks; calls `give_up` on the first one if there is no memory for the second.
    fn two_blocks(stage: &Stage, give_up: fn(&DriverHandle, DevicePtr)) -> Result<Act> {
        let driver = stage.driver();
        Ok(Box::new(move || {
            let first = alloc(&driver)?;
            let second = alloc(&driver).inspect_err(|_| give_up(&driver, first))?;
            let freed = free(&driver, first);
            free(&driver, second).and(freed)
        }))
    }

    fn message_of(prepare: Prepare) -> String {
        exhaust_operation(&Operation::new("canary", prepare)).unwrap_err().to_string()
    }

    #[test]
    fn an_operation_without_mistakes_passes() {
        let right = |stage: &Stage| two_blocks(stage, |driver, first| drop(free(driver, first)));
        // Four calls, seven kinds, and both ends.
        assert_eq!(exhaust_operation(&Operation::new("right", right)).unwrap(), 2 + 4 * 7 * 2);
    }

    #[test]
    fn a_leak_on_a_failing_path_is_found() {
        let message = message_of(|stage| two_blocks(stage, |_, _| {}));
        let expected = "`canary`, driver call 1 failing: out of memory once: then Again: 1 allocations are \
                        left, but failed calls explain only 0";
        assert_eq!(message, expected);
    }

    #[test]
    fn a_second_free_on_a_failing_path_is_found() {
        let message = message_of(|stage| {
            two_blocks(stage, |driver, first| {
                drop(free(driver, first));
                drop(free(driver, first));
            })
        });
        assert!(message.contains("driver call 1 failing: out of memory once"), "{message}");
        assert!(message.contains("cuMemFree"), "{message}");
    }

    #[test]
    fn a_panic_on_a_failing_path_is_found() {
        let message = message_of(|stage| {
            let driver = stage.driver();
            Ok(Box::new(move || {
                let ptr = alloc(&driver).unwrap();
                free(&driver, ptr)
            }))
        });
        assert!(message.contains("driver call 0 failing: out of memory once"), "{message}");
        assert!(message.contains("called `Result::unwrap()` on an `Err` value"), "{message}");
    }

    #[test]
    fn an_operation_that_does_not_work_afterwards_is_found() {
        let message = message_of(|stage| {
            let (driver, mut is_spoilt) = (stage.driver(), false);
            Ok(Box::new(move || {
                if is_spoilt {
                    return Err(Error::invalid_argument("the state never changes"));
                }
                let ptr = alloc(&driver).inspect_err(|_| is_spoilt = true)?;
                free(&driver, ptr)
            }))
        });
        assert!(message.contains("the operation does not work afterwards: invalid argument"), "{message}");
    }

    #[test]
    fn calls_of_a_lost_device_are_found() {
        let message = message_of(|stage| {
            let driver = stage.driver();
            Ok(Box::new(move || driver.mem_get_info().map(drop).map_err(Error::from)))
        });
        assert!(message.contains("sticky illegal address: then Again"), "{message}");
        assert!(message.contains("its health record does not say so"), "{message}");
    }
}
