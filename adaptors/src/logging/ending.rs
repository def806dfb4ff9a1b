//! Ends a log whose destination may hang: a pipe whose reader stopped, or a file system that does not answer.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::status::Status;

/// How long a destination may take nothing before the end of a log gives up.
pub(super) const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });

/// The time between two checks of the destination.
pub(super) const LOOK: Duration = Duration::from_millis(50);

/// Writes the last rows on a separate thread, so that a caller that waits for them never hangs.
#[derive(Debug)]
pub(super) struct Ending {
    /// The thread, and a channel that it closes at its end; `None` if the work was done at once.
    thread: Option<(JoinHandle<()>, Receiver<()>)>,
    status: Arc<Status>,
    progress: Progress,
}

/// Watches whether a destination still takes bytes.
#[derive(Debug)]
pub(super) struct Progress {
    seen_bytes: u64,
    seen_at: Instant,
}

impl Progress {
    pub(super) fn new(status: &Status) -> Self {
        Self { seen_bytes: status.taken_bytes(), seen_at: Instant::now() }
    }

    /// Returns whether the destination has taken nothing for this time.
    pub(super) fn has_stopped(&mut self, status: &Status, patience: Duration) -> bool {
        if status.taken_bytes() != self.seen_bytes {
            *self = Self::new(status);
        }
        self.seen_at.elapsed() >= patience
    }
}

impl Ending {
    /// Calls `write`, which may block for ever. `status` is the destination's.
    pub(super) fn begin(status: Arc<Status>, write: impl Fn() + Send + Sync + 'static) -> Self {
        let write = Arc::new(write);
        let (done, finished) = mpsc::channel();
        let builder = std::thread::Builder::new().name("millpond-log-end".to_owned());
        let spawned = builder.spawn({
            let write = Arc::clone(&write);
            move || {
                write();
                drop((write, done));
            }
        });
        let thread = match spawned {
            Ok(thread) => Some((thread, finished)),
            Err(_) => {
                write();
                None
            }
        };
        let progress = Progress::new(&status);
        Self { thread, status, progress }
    }

    /// Waits until everything is written. If the destination no longer takes anything, records that for a
    /// report and returns false.
    pub(super) fn wait(mut self) -> bool {
        let Some((thread, finished)) = self.thread.take() else { return true };
        while finished.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            if self.progress.has_stopped(&self.status, PATIENCE) {
                self.status.note_hung(PATIENCE.as_secs());
                return false;
            }
        }
        // A panic ends the thread, too: it has written the rows that it could write.
        let _ = thread.join();
        true
    }
}
