//! [`Flush::Async`](super::Flush::Async): rows wait in a queue for the threads that write them.
//!
//! A call adds a record to the batch at hand, under a lock that is held for no longer. A full batch is sealed
//! and numbered by its first row. Anybody may take a sealed batch, make its text and leave that at the
//! [outlet](super::outlet), which writes texts in order: the threads of the log most of the time,
//! [`flush`](Queue::flush), drop, the end of the process, and a caller that finds no room, which so makes
//! some. There is a fixed number of batches, so rows take bounded memory; no row is ever dropped, and none
//! depends on the log's threads.

use std::collections::VecDeque;
use std::io;
use std::sync::OnceLock;
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::outlet::Outlet;
use super::record::{Entry, Record, Times};
use super::sink::Sink;
use super::text::Text;
use crate::shards::{Guard, Padded};

/// Rows of a batch: its records and its text stay in a core's second-level cache.
pub(super) const BATCH_ROWS: usize = 4096;

/// Batches there are, beside the one at hand.
pub(super) const BATCHES: usize = 16;

/// What the crate csv collects before it passes it on: it stays in the first-level cache.
const TEXT_BYTES: usize = 8 * 1024;

/// For how long rows gather in a batch that does not fill: what an abort loses at most, beside what is being
/// written.
const GATHER: Duration = Duration::from_millis(5);

/// After so many times [`GATHER`] without a row the writing thread sleeps until there is one.
const IDLE_ROUNDS: u32 = if cfg!(test) { 2 } else { 200 };

/// How long the end of the process waits for a destination that hangs.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many batches a caller writes that only wants room.
const A_CALLERS_SHARE: usize = 2;

#[derive(Debug)]
pub(super) struct Queue {
    waiting: Padded<Waiting>,
    outlet: Outlet,
    /// There if the further columns are written.
    opened: Option<Instant>,
    /// The log's threads.
    threads: OnceLock<Vec<Thread>>,
    /// A fork copies the queue, but not the log's threads.
    process: u32,
}

#[derive(Debug)]
struct Waiting {
    /// The batch at hand.
    records: Vec<Record>,
    /// The number of its first row.
    first_row: u64,
    /// Of the last row.
    last: Times,
    /// Full batches, oldest first.
    sealed: VecDeque<Box<Batch>>,
    /// Empty ones. The last one used is the first to be used again, as the caches know it best.
    #[expect(clippy::vec_box, reason = "they move under the lock that callers take, and are large")]
    spare: Vec<Box<Batch>>,
    /// The first of the log's threads sleeps until there is a row.
    asleep: bool,
    /// The log's threads are gone or may be any moment: who logs a row writes it.
    closed: bool,
}

/// Some rows, one after the other.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) first_row: u64,
    pub(super) records: Vec<Record>,
    text: Text,
}

impl Batch {
    fn make_text(&mut self) {
        for (record, number) in self.records.iter().zip(self.first_row..) {
            self.text.row(record, number);
        }
    }

    /// Empties the batch.
    pub(super) fn write_to(&mut self, sink: &mut Sink) -> io::Result<()> {
        self.records.clear();
        self.text.take(|text, rows| sink.write(text, rows))
    }
}

impl Waiting {
    /// Seals the batch at hand, if that is possible and it has so many rows, and one is there.
    fn seal(&mut self, at_least: usize) -> Option<Box<Batch>> {
        if self.records.len() < at_least.max(1) {
            return None;
        }
        let mut batch = self.spare.pop()?;
        std::mem::swap(&mut batch.records, &mut self.records);
        batch.first_row = self.first_row;
        self.first_row += batch.records.len() as u64;
        Some(batch)
    }
}

impl Queue {
    /// `text` makes what makes text, given how many bytes are expected at a time.
    pub(super) fn new(sink: Sink, opened: Option<Instant>, text: impl Fn(usize) -> Text) -> Self {
        let records = || Vec::with_capacity(BATCH_ROWS);
        let batch = || Box::new(Batch { first_row: 0, records: records(), text: text(TEXT_BYTES) });
        Self {
            waiting: Padded::new(Waiting {
                records: records(),
                first_row: 0,
                last: Times::default(),
                sealed: VecDeque::with_capacity(BATCHES),
                spare: (0..BATCHES).map(|_| batch()).collect(),
                asleep: false,
                closed: false,
            }),
            outlet: Outlet::new(sink),
            opened,
            threads: OnceLock::new(),
            process: std::process::id(),
        }
    }

    /// Says whom to wake.
    pub(super) fn set_threads(&self, threads: Vec<Thread>) {
        let unset = self.threads.set(threads);
        debug_assert!(unset.is_ok(), "threads are started once");
    }

    #[inline]
    pub(super) fn push(&self, entry: Entry) {
        let mut record = Record::now(entry, self.opened);
        let mut waiting = self.waiting.lock();
        if waiting.records.len() == BATCH_ROWS {
            drop(waiting);
            waiting = self.make_room();
        }
        record.follow(&mut waiting.last);
        waiting.records.push(record);
        let call = waiting.records.len() == BATCH_ROWS || waiting.asleep || waiting.closed;
        drop(waiting);
        if call {
            self.call();
        }
    }

    /// Sees to it that there is room for a row in the batch at hand.
    #[cold]
    fn make_room(&self) -> Guard<'_, Waiting> {
        loop {
            let due = self.outlet.next_row();
            let mut waiting = self.waiting.lock();
            if let Some(full) = waiting.seal(BATCH_ROWS) {
                waiting.sealed.push_back(full);
            }
            if waiting.records.len() < BATCH_ROWS {
                return waiting;
            }
            if super::without("room") {
                waiting.records.pop();
                return waiting;
            }
            drop(waiting);
            match self.take(BATCH_ROWS) {
                Some(batch) => self.finish(batch, A_CALLERS_SHARE),
                None => self.outlet.wait_while_due(due, GATHER),
            }
        }
    }

    /// Calls whoever writes.
    #[cold]
    fn call(&self) {
        let mut waiting = self.waiting.lock();
        waiting.asleep = false;
        let (closed, behind) = (waiting.closed, !waiting.sealed.is_empty());
        drop(waiting);
        if closed && !super::without("closing") {
            // Counted and reported in there.
            let _ = self.flush();
        }
        self.wake(if behind { usize::MAX } else { 1 });
    }

    fn wake(&self, threads: usize) {
        self.threads.get().into_iter().flatten().take(threads).for_each(Thread::unpark);
    }

    /// The oldest batch that nobody has taken, if it has so many rows.
    pub(super) fn take(&self, at_least: usize) -> Option<Box<Batch>> {
        let mut waiting = self.waiting.lock();
        waiting.sealed.pop_front().or_else(|| waiting.seal(at_least))
    }

    /// Makes a batch's text, and writes what is due.
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

    /// Writes and flushes everything that was pushed so far.
    ///
    /// # Errors
    /// The first error of a write, whoever wrote, since the last flush.
    pub(super) fn flush(&self) -> io::Result<()> {
        while !self.flush_before(Instant::now() + PATIENCE) {}
        self.outlet.take_error().map_or(Ok(()), Err)
    }

    /// Writes everything that was pushed so far; false if others have it, and do not get done in time.
    fn flush_before(&self, deadline: Instant) -> bool {
        let waiting = self.waiting.lock();
        let end = waiting.first_row + waiting.records.len() as u64;
        drop(waiting);
        loop {
            let due = self.outlet.next_row();
            if due >= end {
                return true;
            }
            match self.take(1) {
                Some(batch) => self.finish(batch, BATCHES),
                None => {
                    self.write_due(BATCHES);
                    self.outlet.wait_while_due(due, GATHER);
                }
            }
            if Instant::now() >= deadline {
                return false;
            }
        }
    }

    /// Asks the sink, after what is being written.
    pub(super) fn ask<T>(&self, question: impl FnOnce(&Sink) -> T) -> T {
        self.outlet.ask(question)
    }

    /// Whether this is the process that opened the log, and has its threads.
    pub(super) fn is_own_process(&self) -> bool {
        self.process == std::process::id() || super::without("process")
    }

    /// From now on every row is written by whoever logs it; the log's threads end.
    pub(super) fn close(&self) {
        self.waiting.lock().closed = true;
        self.wake(usize::MAX);
    }

    /// Writes what waits, and closes.
    pub(super) fn close_at_exit(&self) {
        if !self.is_own_process() {
            return; // The rows are the parent's, which writes them.
        }
        self.close();
        if !self.flush_before(Instant::now() + PATIENCE) {
            tracing::error!(
                target: "millpond::logging",
                "the allocation log's destination hangs; the last rows are lost"
            );
        }
    }

    #[cfg(test)]
    pub(super) fn is_asleep(&self) -> bool {
        self.waiting.lock().asleep
    }

    /// What each of the log's threads does. The first one also takes batches that do not fill.
    pub(super) fn run(&self, number: usize) {
        let mut idle_rounds = 0;
        while !self.waiting.lock().closed {
            self.write_due(usize::MAX);
            if let Some(batch) = self.take(BATCH_ROWS) {
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
                let mut waiting = self.waiting.lock();
                waiting.asleep = waiting.records.is_empty() && !waiting.closed;
                let asleep = waiting.asleep;
                drop(waiting);
                if asleep {
                    std::thread::park();
                }
            }
        }
    }
}
