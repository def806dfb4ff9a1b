//! Runs operations, and keeps the live blocks.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

use millpond_core::{AnyResource, DevicePtr, StreamRef};
use parking_lot::Mutex;

use super::again::{Again, AskedAgain};
use super::streams::Streams;
use super::{Failure, MAX_THREADS};
use crate::program::{Op, OpKind, Program};

/// The value of a slot without a block. No device has an address this high.
const EMPTY: u64 = u64::MAX;
/// The value of a slot whose allocation failed.
const FAILED: u64 = u64::MAX - 1;

/// The state that all threads of a replay share: the resource and streams that operations use, and the live
/// blocks.
#[derive(Debug)]
pub(super) struct Work<'a> {
    resource: &'a AnyResource,
    lanes: Vec<Target>,
    workers: usize,
    /// The addresses of the blocks, by slot.
    slots: Vec<AtomicU64>,
    /// The ticket that may run next on each slot. Only threads that run freely use it.
    turns: Vec<AtomicU16>,
    again: Option<Again<'a>>,
    failures: AtomicU64,
    first_failure: Mutex<Option<Failure>>,
    until_failure: bool,
    /// Whether no more requests are made.
    gave_up: AtomicBool,
    stopped: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
struct Target {
    stream: StreamRef,
    worker: u32,
}

impl<'a> Work<'a> {
    pub(super) fn new(
        program: &Program,
        resource: &'a AnyResource,
        streams: &Streams<'_>,
        again: Option<Again<'a>>,
        until_failure: bool,
    ) -> Self {
        let workers = program.summary().threads.clamp(1, MAX_THREADS);
        let target = |lane: &crate::program::Lane| Target {
            stream: streams.get(lane.stream),
            worker: lane.thread % workers as u32,
        };
        Self {
            resource,
            lanes: program.lanes().iter().map(target).collect(),
            workers,
            slots: (0..program.slots()).map(|_| AtomicU64::new(EMPTY)).collect(),
            turns: (0..program.slots()).map(|_| AtomicU16::new(0)).collect(),
            again,
            failures: AtomicU64::new(0),
            first_failure: Mutex::new(None),
            until_failure,
            gave_up: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        }
    }

    /// Returns the number of threads of a replay as logged.
    pub(super) fn workers(&self) -> usize {
        self.workers
    }

    /// Returns the thread that runs this operation.
    #[inline]
    pub(super) fn worker_of(&self, op: &Op) -> usize {
        self.lanes[op.lane as usize].worker as usize
    }

    /// Ends the replay early.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Runs one operation. All operations before it in the log have run.
    #[inline]
    pub(super) fn execute(&self, op: &Op) {
        let stream = self.lanes[op.lane as usize].stream;
        let is_request = !matches!(op.kind, OpKind::Free | OpKind::FreeNothing);
        if is_request && self.gave_up.load(Ordering::Relaxed) {
            if op.kind == OpKind::Allocate {
                self.slots[op.slot as usize].store(FAILED, Ordering::Release);
            }
            return;
        }
        match op.kind {
            OpKind::Allocate => {
                let address = match self.resource.allocate(op.layout(), stream) {
                    Ok(ptr) => ptr.address(),
                    Err(error) => self.failed(op, &error),
                };
                self.slots[op.slot as usize].store(address, Ordering::Release);
            }
            OpKind::Free => {
                let slot = &self.slots[op.slot as usize];
                let address = slot.load(Ordering::Acquire);
                if address < FAILED {
                    // SAFETY: the address came from `allocate` of this resource with the same layout. The
                    // slot loses the address below, so the block is freed once. No work uses the block.
                    unsafe { self.resource.deallocate(DevicePtr::new(address), op.layout(), stream) };
                }
                slot.store(EMPTY, Ordering::Release);
            }
            OpKind::AllocateNothing => {
                if let Err(error) = self.resource.allocate(op.layout(), stream) {
                    self.failed(op, &error);
                }
            }
            // SAFETY: deallocating null is allowed and does nothing.
            OpKind::FreeNothing => unsafe { self.resource.deallocate(DevicePtr::NULL, op.layout(), stream) },
            OpKind::AskAgain => {
                if let Some(Err(_)) = self.again.as_ref().map(|again| again.ask(self.resource, op, stream)) {
                    self.stop();
                }
            }
        }
    }

    /// Prepares a pass, on one thread.
    pub(super) fn begin_pass(&self) {
        self.turns.iter().for_each(|turn| turn.store(0, Ordering::Relaxed));
    }

    /// Runs one operation as soon as the earlier operations on the same slot have run. If the replay was
    /// stopped before that, returns `false`.
    #[inline]
    pub(super) fn execute_in_turn(&self, op: &Op) -> bool {
        if !matches!(op.kind, OpKind::Allocate | OpKind::Free) {
            self.execute(op);
            return true;
        }
        let turn = &self.turns[op.slot as usize];
        let mut rounds = 0_u32;
        while turn.load(Ordering::Acquire) != op.ticket {
            if self.is_stopped() {
                return false;
            }
            rounds += 1;
            if rounds < 64 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        self.execute(op);
        turn.store(op.ticket.wrapping_add(1), Ordering::Release);
        true
    }

    /// Counts a failure, and returns the value for the slot.
    #[cold]
    fn failed(&self, op: &Op, error: &millpond_core::Error) -> u64 {
        self.failures.fetch_add(1, Ordering::Relaxed);
        if error.is_sticky() {
            self.stop();
        }
        self.gave_up.fetch_or(self.until_failure, Ordering::Relaxed);
        let mut first = self.first_failure.lock();
        first.get_or_insert_with(|| Failure {
            line: u64::from(op.line),
            error: error.to_string(),
            report: error.out_of_memory_report().cloned().map(Box::new),
        });
        FAILED
    }

    /// Returns the number of allocations that failed so far.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    pub(super) fn into_answers(self) -> (u64, Option<Failure>, Option<AskedAgain>) {
        let again = self.again.map(Again::into_answers);
        (self.failures.into_inner(), self.first_failure.into_inner(), again)
    }
}

/// Stops the replay when its thread panics, so that no other thread waits for it forever.
pub(super) struct StopOnPanic<'a, 'b>(pub(super) &'a Work<'b>);

impl Drop for StopOnPanic<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}
