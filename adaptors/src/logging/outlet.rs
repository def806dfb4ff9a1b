//! Writes the batches of an asynchronous log in order.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::batch::Batch;
use super::sink::Sink;
use super::status::Status;

/// Writes batches in order, although their texts become ready in any order.
///
/// No thread waits for an earlier batch. It leaves its own batch here, and the thread that brings the due
/// batch also writes the batches that follow.
#[derive(Debug)]
pub(super) struct Outlet {
    state: Mutex<State>,
    /// Notified when a batch was written.
    advanced: Condvar,
    /// Locked by the writing thread. No other thread waits for this lock.
    sink: Mutex<Sink>,
    status: Arc<Status>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the next row to write.
    next_row: u64,
    /// Batches whose text is ready.
    #[expect(clippy::vec_box, reason = "they come from the queue and go back there, and are large")]
    ready: Vec<Box<Batch>>,
    /// Whether a thread is writing.
    writing: bool,
    /// The first error that no caller has received yet.
    error: Option<io::Error>,
}

impl State {
    fn due(&self) -> Option<usize> {
        self.ready.iter().position(|batch| batch.first_row == self.next_row)
    }
}

impl Outlet {
    pub(super) fn new(sink: Sink) -> Self {
        let status = Arc::clone(sink.status());
        Self { state: Mutex::default(), advanced: Condvar::new(), sink: Mutex::new(sink), status }
    }

    /// Takes a batch whose text is ready.
    pub(super) fn bring(&self, batch: Box<Batch>) {
        self.state.lock().ready.push(batch);
    }

    /// Writes at most `most` due batches, unless another thread is writing. `recycle` receives written
    /// batches. Returns whether a batch is due and no thread is writing it.
    ///
    /// Reports nothing: a subscriber may wait for the rows of this very batch.
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

    /// Returns the number of the next row to write: all earlier rows are written.
    pub(super) fn next_row(&self) -> u64 {
        self.state.lock().next_row
    }

    /// Waits, for a limited time, until the next row to write is no longer `row`.
    pub(super) fn wait_while_due(&self, row: u64, patience: Duration) {
        let mut state = self.state.lock();
        if state.next_row == row {
            self.advanced.wait_for(&mut state, patience);
        }
    }

    /// Returns the state of the destination.
    pub(super) fn status(&self) -> &Arc<Status> {
        &self.status
    }

    /// Returns the first error since the last call.
    pub(super) fn take_error(&self) -> Option<io::Error> {
        self.state.lock().error.take()
    }
}
