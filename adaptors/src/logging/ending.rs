//! Ends a log whose destination may hang: a pipe whose reader stopped, or a file system that does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The time in which a destination may take nothing before the end of a log gives up.
pub(super) const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });

/// The time between two checks of the destination.
const LOOK: Duration = Duration::from_millis(50);

/// Writes the last rows on a thread of its own, so that a caller that waits for them never hangs.
#[derive(Debug)]
pub(super) struct Ending {
    /// The thread, and a channel that it closes when it is done; `None` if it was done at once.
    thread: Option<(JoinHandle<()>, Receiver<()>)>,
    /// The number of bytes that the destination took so far.
    taken: Arc<AtomicU64>,
    seen: u64,
    seen_at: Instant,
}

impl Ending {
    /// Calls `write`, which may block for ever. `taken` counts the bytes that the destination takes.
    pub(super) fn begin(taken: Arc<AtomicU64>, write: impl Fn() + Send + Sync + 'static) -> Self {
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
        let seen = taken.load(Ordering::Relaxed);
        Self { thread, taken, seen, seen_at: Instant::now() }
    }

    /// Waits until everything is written; returns false if the destination takes nothing any more.
    pub(super) fn wait(mut self) -> bool {
        let Some((thread, finished)) = self.thread.take() else { return true };
        while finished.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            let taken = self.taken.load(Ordering::Relaxed);
            if taken != self.seen {
                (self.seen, self.seen_at) = (taken, Instant::now());
            } else if self.seen_at.elapsed() >= PATIENCE {
                return false;
            }
        }
        // A panic ends the thread too: it wrote the rows that it could write.
        let _ = thread.join();
        true
    }
}

pub(super) fn report(name: &str) {
    tracing::error!(
        target: "millpond::logging",
        log = name,
        "the allocation log's destination took nothing for {PATIENCE:?}; the last rows are lost"
    );
}
