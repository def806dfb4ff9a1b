//! The queue of [`Flush::Async`](super::Flush::Async): threads of the log write rows from it.
//!
//! Each thread has its own lane, so callers contend only for the counter that numbers the rows. Gathering
//! locks all lanes at one moment. The rows in the lanes are then all rows up to a number; they become a
//! batch, in order. Any thread may take a batch, format it, and leave it at the [outlet](super::outlet),
//! which writes batches in order. Mostly the log's threads do this. Otherwise [`flush`](Queue::flush) does
//! it, or drop, the end of the process, or a caller with a full lane.
//!
//! The number of batches and the length of lanes are fixed, so rows take bounded memory. No row is ever
//! dropped, and no row depends on the log's threads. Lanes grow longer only because of the program's own
//! writer: by rows that it logs itself, and by rows of threads that it may be waiting for.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::batch::Batch;
use super::ending::{Ending, Progress};
use super::outlet::Outlet;
use super::record::{Entry, Record, Times};
use super::sink::Sink;
use super::status::{self, Status, WRITER_PATIENCE};
use super::text::Text;
use crate::shards::{Apart, Guard, Shards};

/// The rows that a lane holds. They and their text stay in a core's second-level cache.
pub(super) const LANE_ROWS: usize = 4096;

/// The rows in a lane at which the log's thread is woken.
const MANY_ROWS: usize = LANE_ROWS / 2;

/// The number of batches.
pub(super) const BATCHES: usize = 16;

/// The bytes that the crate csv collects before it passes them on. They fit in the first-level cache.
const TEXT_BYTES: usize = 8 * 1024;

/// The time after which even a few rows are written. An abort loses at most the rows of this time, and the
/// rows that are being written.
const GATHER: Duration = Duration::from_millis(5);

/// After this many [`GATHER`] periods without a row, the writing thread sleeps until there is one.
const IDLE_ROUNDS: u32 = if cfg!(test) { 2 } else { 200 };

/// The most batches that a caller writes if it only needs room.
const A_CALLERS_SHARE: usize = 2;

#[derive(Debug)]
pub(super) struct Queue {
    lanes: Shards<Vec<Record>>,
    /// The number of the next row. Incremented under the lock of the row's lane.
    next_row: Apart<AtomicU64>,
    /// Whether a thread that adds a row must [wake](Self::call) the log's thread, because that thread sleeps
    /// or has ended.
    must_call: AtomicBool,
    waiting: Mutex<Waiting>,
    outlet: Outlet,
    /// The moment at which the log was opened; set if the extended columns are written.
    opened: Option<Instant>,
    /// The log's threads.
    threads: OnceLock<Vec<Thread>>,
    /// Whether the destination hung while the log was ending. From then on rows are dropped, and no caller
    /// waits.
    abandoned: AtomicBool,
    /// The process that opened the log. A fork copies the queue, but not the log's threads.
    process: u32,
}

#[derive(Debug)]
struct Waiting {
    /// The number of the first row in a lane.
    first_row: u64,
    /// The times of the row before it.
    last: Times,
    /// Batches that no thread has taken yet, oldest first.
    gathered: VecDeque<Box<Batch>>,
    /// Empty batches. The last one used is reused first, since it is most likely in the caches.
    #[expect(clippy::vec_box, reason = "they go from hand to hand, and are large")]
    spare: Vec<Box<Batch>>,
    /// Empty lanes, which replace gathered lanes.
    empty: Vec<Vec<Record>>,
    /// Whether the log's threads have ended or are ending. A thread that logs a row then writes it itself.
    closed: bool,
}

impl Waiting {
    /// Makes a batch of the rows in the lanes, if there is a spare batch and there are at least `at_least`
    /// rows, and at least one.
    fn gather(&mut self, queue: &Queue, at_least: u64) -> Option<Box<Batch>> {
        if queue.next_row.0.load(Ordering::SeqCst) - self.first_row < at_least.max(1) {
            return None;
        }
        let mut batch = self.spare.pop()?;
        let mut taken: Vec<Vec<Record>> = Vec::new();
        for lane in &mut queue.lanes.all().each {
            if !lane.is_empty() {
                taken.push(std::mem::replace(lane, self.empty.pop().unwrap_or_default()));
            }
        }
        batch.first_row = self.first_row;
        if let [lane] = &mut *taken {
            std::mem::swap(lane, &mut batch.records);
        } else if let Some(&any) = taken.first().and_then(|lane| lane.first()) {
            batch.records.resize(taken.iter().map(Vec::len).sum(), any);
            for record in taken.iter().flatten() {
                batch.records[(record.number - self.first_row) as usize] = *record;
            }
        }
        self.first_row += batch.records.len() as u64;
        batch.records.iter_mut().for_each(|record| record.follow(&mut self.last));
        self.empty.extend(taken.into_iter().map(|mut lane| {
            lane.clear();
            lane
        }));
        Some(batch)
    }
}

impl Queue {
    /// `text` creates a formatter for the given number of bytes.
    pub(super) fn new(sink: Sink, opened: Option<Instant>, text: impl Fn(usize) -> Text) -> Self {
        let batch = || Box::new(Batch::new(text(TEXT_BYTES)));
        Self {
            lanes: Shards::new(),
            next_row: Apart::default(),
            must_call: AtomicBool::new(false),
            waiting: Mutex::new(Waiting {
                first_row: 0,
                last: Times::default(),
                gathered: VecDeque::with_capacity(BATCHES),
                spare: (0..BATCHES).map(|_| batch()).collect(),
                empty: Vec::new(),
                closed: false,
            }),
            outlet: Outlet::new(sink),
            opened,
            threads: OnceLock::new(),
            abandoned: AtomicBool::new(false),
            process: std::process::id(),
        }
    }

    /// Sets the threads to wake.
    pub(super) fn set_threads(&self, threads: Vec<Thread>) {
        let unset = self.threads.set(threads);
        debug_assert!(unset.is_ok(), "threads are started once");
    }

    #[inline]
    pub(super) fn push(&self, entry: Entry) {
        let mut record = Record::now(entry, self.opened);
        let mut lane = self.lanes.mine();
        if lane.len() >= LANE_ROWS && !self.status().is_inside() {
            drop(lane);
            if super::canary::without("room") {
                return;
            }
            let Some(room) = self.make_room() else { return };
            lane = room;
        }
        // Earlier calls of this thread have lower numbers. Later calls have higher numbers, even on other
        // threads that are ordered after it. So the rows are in the order in which an address goes from
        // thread to thread.
        record.number = self.next_row.0.fetch_add(1, Ordering::SeqCst);
        lane.push(record);
        let rows = lane.len();
        drop(lane);
        if rows == MANY_ROWS || self.must_call.load(Ordering::SeqCst) {
            self.call();
        }
        self.status().report();
    }

    /// Returns the calling thread's lane once there is room in it, or once the program's own writer may be
    /// waiting for this thread. `None` if the log was abandoned.
    #[cold]
    fn make_room(&self) -> Option<Guard<'_, Vec<Record>>> {
        let status = self.status();
        let mut progress = Progress::new(status);
        loop {
            if self.is_abandoned() {
                return None;
            }
            let due = self.outlet.next_row();
            let mut waiting = self.waiting.lock();
            let lane = self.lanes.mine();
            if lane.len() < LANE_ROWS {
                return Some(lane);
            }
            drop(lane);
            if let Some(batch) = waiting.gather(self, 1) {
                waiting.gathered.push_back(batch);
                continue;
            }
            drop(waiting);
            match self.take(1) {
                Some(batch) => self.finish(batch, A_CALLERS_SHARE),
                None if status.waits_for_others() => return Some(self.lanes.mine()),
                None => self.outlet.wait_while_due(due, GATHER),
            }
            if status.is_programs() && progress.has_stopped(status, WRITER_PATIENCE) {
                status.note_wait_in_vain();
            }
        }
    }

    /// Wakes the writing thread.
    #[cold]
    fn call(&self) {
        let waiting = self.waiting.lock();
        let (closed, behind) = (waiting.closed, !waiting.gathered.is_empty());
        self.must_call.store(closed, Ordering::SeqCst);
        drop(waiting);
        if closed && !super::canary::without("closing") {
            // The status counts errors.
            let _ = self.flush();
        }
        self.wake(if behind { usize::MAX } else { 1 });
    }

    fn wake(&self, threads: usize) {
        self.threads.get().into_iter().flatten().take(threads).for_each(Thread::unpark);
    }

    /// Returns the oldest batch that no thread has taken. Gathers one from the lanes only if they hold at
    /// least `at_least` rows.
    pub(super) fn take(&self, at_least: u64) -> Option<Box<Batch>> {
        let mut waiting = self.waiting.lock();
        waiting.gathered.pop_front().or_else(|| waiting.gather(self, at_least))
    }

    /// Formats a batch, and writes the batches that are due.
    pub(super) fn finish(&self, mut batch: Box<Batch>, most: usize) {
        batch.make_text();
        self.outlet.bring(batch);
        self.write_due(most);
    }

    fn write_due(&self, most: usize) {
        if self.outlet.write_due(most, |batch| self.waiting.lock().spare.push(batch)) {
            self.wake(1);
        }
    }

    /// Writes and flushes all rows that were pushed so far. Waits as long as the destination takes.
    ///
    /// # Errors
    /// The first write error of any thread since the last flush; [`WouldBlock`](io::ErrorKind::WouldBlock)
    /// from inside the program's own writer, and [`TimedOut`](io::ErrorKind::TimedOut) if that writer does
    /// not return.
    pub(super) fn flush(&self) -> io::Result<()> {
        if self.status().is_inside() {
            return Err(status::from_inside());
        }
        let written = self.write_all(self.status().is_programs());
        self.status().report();
        written
    }

    /// Writes all rows that were pushed so far. If `gives_up`, it fails when the destination takes nothing
    /// for a long time.
    fn write_all(&self, gives_up: bool) -> io::Result<()> {
        let status = self.status();
        let mut progress = Progress::new(status);
        let end = self.next_row.0.load(Ordering::SeqCst);
        while !self.is_abandoned() {
            let due = self.outlet.next_row();
            if due >= end {
                break;
            }
            match self.take(1) {
                Some(batch) => self.finish(batch, BATCHES),
                None => {
                    self.write_due(BATCHES);
                    self.outlet.wait_while_due(due, GATHER);
                }
            }
            if gives_up && progress.has_stopped(status, WRITER_PATIENCE) {
                return Err(status::in_vain());
            }
        }
        self.outlet.take_error().map_or(Ok(()), Err)
    }

    /// Returns the state of the destination.
    pub(super) fn status(&self) -> &Status {
        self.outlet.status()
    }

    /// Returns whether this is the process that opened the log, and has its threads.
    pub(super) fn is_own_process(&self) -> bool {
        self.process == std::process::id() || super::canary::without("process")
    }

    /// From now on, each thread writes the rows that it logs; the log's threads end.
    pub(super) fn close(&self) {
        let mut waiting = self.waiting.lock();
        waiting.closed = true;
        self.must_call.store(true, Ordering::SeqCst);
        drop(waiting);
        self.wake(usize::MAX);
    }

    /// Closes the queue, and starts writing the remaining rows. The log's threads may hang, or have ended.
    pub(super) fn begin_end(self: &Arc<Self>) -> Ending {
        self.close();
        let queue = Arc::clone(self);
        Ending::begin(Arc::clone(self.outlet.status()), move || {
            // The status counts errors. The second round writes the rows that the writer logged during the
            // first, but not the rows that it logs during the second.
            for _ in 0..2 {
                let _ = queue.write_all(false);
            }
        })
    }

    /// Waits for the end of [`begin_end`](Self::begin_end). Returns false if the destination hangs.
    pub(super) fn end(&self, ending: Ending) -> bool {
        let ended = ending.wait();
        if !ended {
            self.abandoned.store(true, Ordering::SeqCst);
        }
        ended
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::SeqCst)
    }

    #[cfg(test)]
    pub(super) fn is_asleep(&self) -> bool {
        self.must_call.load(Ordering::SeqCst)
    }

    /// The loop of each of the log's threads. Only the first one takes batches of few rows.
    pub(super) fn run(&self, number: usize) {
        let mut idle_rounds = 0;
        while !self.waiting.lock().closed {
            self.write_due(usize::MAX);
            if let Some(batch) = self.take(MANY_ROWS as u64) {
                idle_rounds = 0;
                self.finish(batch, usize::MAX);
            } else if number > 0 {
                std::thread::park();
            } else if idle_rounds < IDLE_ROUNDS {
                idle_rounds += 1;
                std::thread::park_timeout(GATHER);
                if let Some(batch) = self.take(1) {
                    idle_rounds = 0;
                    self.finish(batch, usize::MAX);
                }
            } else {
                idle_rounds = 0;
                if self.falls_asleep() {
                    std::thread::park();
                }
            }
        }
    }

    /// Makes the next row wake this thread, if there is no row now. A thread that adds a row takes its
    /// number, then checks whether to wake this thread. This function works in the opposite order, so one of
    /// the two sees the other.
    fn falls_asleep(&self) -> bool {
        let waiting = self.waiting.lock();
        self.must_call.store(true, Ordering::SeqCst);
        let asleep = self.next_row.0.load(Ordering::SeqCst) == waiting.first_row && !waiting.closed;
        self.must_call.store(asleep || waiting.closed, Ordering::SeqCst);
        asleep
    }
}
