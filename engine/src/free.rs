//! Replays with one thread per logged thread. All threads run at once, and only the operations on each block
//! keep their order.
//!
//! An operation waits for the previous operation on the same slot. A free waits for its allocation, and an
//! allocation waits for the free of the slot's previous block. The previous operation is earlier in the log,
//! and each thread follows the log's order. So the earliest unfinished operation can always run, and there is
//! no deadlock.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use super::runner::Runner;
use super::work::StopOnPanic;
use super::work::Work;
use crate::program::Op;
use crate::{Error, Result};

/// A thread that gets its share of a block of operations, and sends back the times at which it started and
/// finished.
struct Worker {
    shares: Sender<Vec<Op>>,
    times: Receiver<(Instant, Instant)>,
}

struct Free<'a, 'b> {
    work: &'a Work<'b>,
    workers: Vec<Worker>,
}

impl Runner for Free<'_, '_> {
    fn run(&mut self, block: &Arc<[Op]>) -> Result<u64> {
        let mut shares = vec![Vec::new(); self.workers.len()];
        for op in block.iter() {
            shares[self.work.worker_of(op)].push(*op);
        }
        let busy: Vec<bool> = shares.iter().map(|share| !share.is_empty()).collect();
        for (worker, share) in self.workers.iter().zip(shares) {
            if !share.is_empty() {
                // If a worker has ended, it panicked. Joining the worker reports the panic.
                let _ = worker.shares.send(share);
            }
        }
        let replies = self.workers.iter().zip(busy).filter(|(_, busy)| *busy);
        let times: Vec<_> = replies.filter_map(|(worker, _)| worker.times.recv().ok()).collect();
        let start = times.iter().map(|(start, _)| *start).min();
        let end = times.iter().map(|(_, end)| *end).max();
        Ok(start.zip(end).map_or(0, |(start, end)| (end - start).as_nanos() as u64))
    }
}

fn serve(work: &Work<'_>, shares: &Receiver<Vec<Op>>, times: &Sender<(Instant, Instant)>) {
    let _guard = StopOnPanic(work);
    while let Ok(share) = shares.recv() {
        let start = Instant::now();
        // After a stop, the remaining operations are skipped. The replay ends with this block of operations.
        share.iter().all(|op| work.execute_in_turn(op));
        if times.send((start, Instant::now())).is_err() {
            return;
        }
    }
}

pub(super) fn with_runner<T>(work: &Work<'_>, body: impl FnOnce(&mut dyn Runner) -> Result<T>) -> Result<T> {
    thread::scope(|scope| {
        let mut threads: Vec<ScopedJoinHandle<'_, ()>> = Vec::new();
        let mut free = Free { work, workers: Vec::new() };
        for number in 0..work.workers() {
            let (shares, inbox) = mpsc::channel();
            let (outbox, times) = mpsc::channel();
            let thread = thread::Builder::new()
                .name(format!("replay-{number}"))
                .spawn_scoped(scope, move || serve(work, &inbox, &outbox))
                .map_err(Error::io("cannot start one thread for each thread of the log; use --threads 1"))?;
            threads.push(thread);
            free.workers.push(Worker { shares, times });
        }
        let result = body(&mut free);
        drop(free); // hangs up, and so ends the workers
        let panics = threads.into_iter().filter_map(|thread| thread.join().err());
        match panics.reduce(|first, _| first) {
            Some(panic) => Err(Error::panicked(&*panic)),
            None => result,
        }
    })
}
