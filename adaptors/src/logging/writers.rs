//! The threads that write an asynchronous log.

use std::io;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use super::at_exit::{self, KeepsRows};
use super::ending::Ending;
use super::queue::Queue;

/// The threads that write a log. Dropping this value ends them after all rows are written, unless the
/// destination hangs.
#[derive(Debug)]
pub(super) struct Writers {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

impl Writers {
    /// # Errors
    /// The errors of the system, if it cannot start a thread for the log.
    pub(super) fn start(queue: Queue) -> io::Result<Self> {
        let queue = Arc::new(queue);
        let mut writers = Self { queue: Arc::clone(&queue), threads: Vec::new() };
        // A thread takes longer to format and write a row than a caller takes to log it.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if cores < 4 { 1 } else { 2 };
        for number in 0..if super::canary::without("threads") { 0 } else { threads } {
            let queue = Arc::clone(&queue);
            let builder = std::thread::Builder::new().name("millpond-log".to_owned());
            match builder.spawn(move || queue.run(number)) {
                Ok(thread) => writers.threads.push(thread),
                Err(error) if number == 0 => return Err(explained(error)),
                Err(_) => break,
            }
        }
        queue.set_threads(writers.threads.iter().map(|thread| thread.thread().clone()).collect());
        at_exit::register(Arc::downgrade(&queue) as Weak<dyn KeepsRows>);
        Ok(writers)
    }

    #[inline]
    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }
}

impl KeepsRows for Queue {
    fn is_own_process(&self) -> bool {
        Self::is_own_process(self)
    }

    fn write_last(self: Arc<Self>) -> Ending {
        self.begin_end()
    }

    fn wait_for_last(&self, ending: Ending) {
        if self.status().is_inside() {
            return; // The writer itself ends the process: the rows wait for it.
        }
        self.end(ending);
        self.status().report();
    }
}

fn explained(error: io::Error) -> io::Error {
    let advice = "cannot start a thread that writes the log; use flush=row";
    io::Error::new(error.kind(), format!("{advice}: {error}"))
}

impl Drop for Writers {
    fn drop(&mut self) {
        if !self.queue.is_own_process() || super::canary::without("drop") {
            return; // A forked child has no such threads to wait for, and the rows belong to the parent.
        }
        let ending = self.queue.begin_end();
        if self.queue.status().is_inside() {
            // The writer itself drops the log. The last rows are written after it has returned.
            return;
        }
        if self.queue.end(ending) {
            // All rows are written, so no thread hangs, and a panic has been reported.
            self.threads.drain(..).for_each(|thread| drop(thread.join()));
        }
    }
}
