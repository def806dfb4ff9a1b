//! Writes the batches of an asynchronous log in order.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::batch::Batch;
use super::sink::Sink;

/// Writes batches in order, though their texts become ready in any order.
///
/// No thread waits for an earlier batch: it leaves its own here, and the thread that brings the batch that is
/// due also writes those that follow.
#[derive(Debug)]
pub(super) struct Outlet {
    state: Mutex<State>,
    /// Notified when a batch was written.
    advanced: Condvar,
    sink: Mutex<Sink>,
    /// The name of the sink, readable without its lock.
    name: String,
    taken: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the row that is due.
    next_row: u64,
    /// Batches whose text is ready.
    #[expect(clippy::vec_box, reason = "they come from the queue and go back there, and are large")]
    ready: Vec<Box<Batch>>,
    /// A thread is writing.
    writing: bool,
    /// The first error that no caller has received.
    error: Option<io::Error>,
}

impl State {
    fn due(&self) -> Option<usize> {
        self.ready.iter().position(|batch| batch.first_row == self.next_row)
    }
}

impl Outlet {
    pub(super) fn new(sink: Sink) -> Self {
        let (name, taken) = (sink.name().to_owned(), sink.taken());
        Self { state: Mutex::default(), advanced: Condvar::new(), sink: Mutex::new(sink), name, taken }
    }

    /// Takes a batch whose text is ready.
    pub(super) fn bring(&self, batch: Box<Batch>) {
        self.state.lock().ready.push(batch);
    }

    /// Writes at most `most` batches that are due, unless another thread is writing. `recycle` receives
    /// written batches. Returns whether a batch is due and no thread is writing it.
    pub(super) fn write_due(&self, most: usize, recycle: impl Fn(Box<Batch>)) -> bool {
        let mut state = self.state.lock();
        if state.writing {
            return false;
        }
        for _ in 0..most {
            let Some(due) = state.due() else { return false };
            let mut batch = state.ready.swap_remove(due);
            let rows = batch.records.len() as u64;
            state.writing = true;
            let result = MutexGuard::unlocked(&mut state, || {
                let result = batch.write_to(&mut self.sink.lock());
                recycle(batch);
                result
            });
            state.writing = false;
            state.next_row += rows;
            if let Err(error) = result {
                state.error.get_or_insert(error);
            }
            self.advanced.notify_all();
        }
        state.due().is_some()
    }

    /// The number of the row that is due: all earlier rows are written.
    pub(super) fn next_row(&self) -> u64 {
        self.state.lock().next_row
    }

    /// Waits until another row than `row` is due, for a limited time.
    pub(super) fn wait_while_due(&self, row: u64, patience: Duration) {
        let mut state = self.state.lock();
        if state.next_row == row {
            self.advanced.wait_for(&mut state, patience);
        }
    }

    /// The name of the destination in errors.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The counter of the bytes that the destination takes.
    pub(super) fn taken(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.taken)
    }

    /// The first error since the last call.
    pub(super) fn take_error(&self) -> Option<io::Error> {
        self.state.lock().error.take()
    }

    /// Asks the sink, after the present write.
    pub(super) fn ask<T>(&self, question: impl FnOnce(&Sink) -> T) -> T {
        question(&self.sink.lock())
    }
}
