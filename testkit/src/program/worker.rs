//! A program's thread that carries out operations while the first thread waits for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use super::FailureKind;
use super::broken::{Broken, Checks};
use super::execution::Execution;
use super::op::Op;
use crate::{guest, misuse_recorder, text_of};

/// A thread that carries out one operation after another.
pub(super) struct Worker {
    tasks: Option<Sender<(Box<Execution>, Op)>>,
    done: Receiver<(Box<Execution>, Checks)>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub(super) fn start() -> Self {
        let (tasks, inbox) = channel();
        let (outbox, done) = channel();
        let thread = thread::spawn(move || work(inbox, &outbox));
        Self { tasks: Some(tasks), done, thread: Some(thread) }
    }

    /// Lets the thread carry out an operation; `None` if the thread has ended.
    pub(super) fn step(&self, execution: Box<Execution>, op: Op) -> Option<(Box<Execution>, Checks)> {
        self.tasks.as_ref()?.send((execution, op)).ok()?;
        self.done.recv().ok()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.tasks.take());
        if let Some(thread) = self.thread.take() {
            // The thread panics only if the program's own checks do.
            let _ = thread.join();
        }
    }
}

fn work(inbox: Receiver<(Box<Execution>, Op)>, outbox: &Sender<(Box<Execution>, Checks)>) {
    let mut listening = None;
    for (mut execution, op) in inbox {
        if execution.config.guests && listening.is_none() {
            listening = Some(guest::listen());
        }
        let step = AssertUnwindSafe(|| execution.step(op));
        let (result, misuses) = misuse_recorder::record(|| catch_unwind(step));
        let result = match (result, misuses.first()) {
            (Err(panic), _) => Err(Broken::new(FailureKind::Panic, text_of(&*panic))),
            (Ok(Ok(())), Some(misuse)) => Err(Broken::new(FailureKind::Misuse, misuse)),
            (Ok(result), _) => result,
        };
        if outbox.send((execution, result)).is_err() {
            break;
        }
    }
}
