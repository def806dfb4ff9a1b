//! Replays with one thread per logged thread, strictly in the order of the log. Only one thread runs at a
//! time, as in a relay race.
//!
//! The baton is a position in the block of operations. The thread with the baton runs its operations from
//! this position on. Then it finds the thread of the next operation, and hands over: it stores the position
//! in that thread's mailbox, and wakes that thread. At the end of the block, the coordinator gets the baton
//! back. Only the clock of the thread with the baton runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Scope, ScopedJoinHandle, Thread};

use parking_lot::RwLock;

use super::clock::Stopwatch;
use super::runner::Runner;
use super::work::StopOnPanic;
use super::work::Work;
use crate::program::Op;
use crate::{Error, Result};

/// The value of an empty mailbox.
const NONE: u64 = u64::MAX;
/// The value that stops a worker.
const OVER: u64 = u64::MAX - 1;

/// How many rounds a thread spins for the baton before it parks. The rounds take about as long as a few
/// operations.
const SPIN_ROUNDS: u32 = 64;

struct Relay<'a, 'b> {
    work: &'a Work<'b>,
    block: RwLock<Arc<[Op]>>,
    /// The mailboxes: one for each worker, and then the mailbox of the coordinator.
    mailboxes: Vec<Mailbox>,
    busy_ns: AtomicU64,
}

/// A mailbox. It is alone on its cache line, because its owner spins on it.
#[repr(align(128))]
struct Mailbox {
    baton: AtomicU64,
    owner: OnceLock<Thread>,
}

impl Mailbox {
    fn new() -> Self {
        Self { baton: AtomicU64::new(NONE), owner: OnceLock::new() }
    }

    fn put(&self, position: u64) {
        self.baton.store(position, Ordering::Release);
        if let Some(owner) = self.owner.get() {
            owner.unpark();
        }
    }

    /// Waits for the baton.
    fn take(&self) -> u64 {
        let mut rounds = 0;
        loop {
            let position = self.baton.load(Ordering::Acquire);
            if position != NONE {
                self.baton.store(NONE, Ordering::Relaxed);
                return position;
            }
            if rounds < SPIN_ROUNDS {
                rounds += 1;
                std::hint::spin_loop();
            } else {
                thread::park();
            }
        }
    }
}

impl Relay<'_, '_> {
    fn coordinator(&self) -> &Mailbox {
        &self.mailboxes[self.work.workers()]
    }

    fn worker(&self, me: usize) {
        let _guard = WakeOnPanic(self);
        let _stop = StopOnPanic(self.work);
        loop {
            let position = self.mailboxes[me].take();
            if position == OVER {
                return;
            }
            let block = self.block.read().clone();
            let start = position as usize;
            let mine = |op: &&Op| self.work.worker_of(op) == me;
            let end = start + block[start..].iter().take_while(mine).count();
            let watch = Stopwatch::start();
            block[start..end].iter().for_each(|op| self.work.execute(op));
            self.busy_ns.fetch_add(watch.nanoseconds(), Ordering::Relaxed);
            let next = block.get(end).map_or(self.work.workers(), |op| self.work.worker_of(op));
            self.mailboxes[next].put(end as u64);
        }
    }
}

impl Runner for &Relay<'_, '_> {
    fn run(&mut self, block: &Arc<[Op]>) -> Result<u64> {
        let Some(first) = block.first() else { return Ok(0) };
        *self.block.write() = block.clone();
        self.busy_ns.store(0, Ordering::Relaxed);
        self.mailboxes[self.work.worker_of(first)].put(0);
        // If a worker panics, it returns no baton. Joining the workers reports the panic.
        self.coordinator().take();
        Ok(self.busy_ns.load(Ordering::Relaxed))
    }
}

/// Wakes the coordinator when a worker panics.
struct WakeOnPanic<'a, 'b, 'c>(&'a Relay<'b, 'c>);

impl Drop for WakeOnPanic<'_, '_, '_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.coordinator().put(OVER);
        }
    }
}

/// Ends the race, even if the coordinator panics.
struct Finish<'a, 'b, 'c>(&'a Relay<'b, 'c>);

impl Drop for Finish<'_, '_, '_> {
    fn drop(&mut self) {
        self.0.mailboxes[..self.0.work.workers()].iter().for_each(|mailbox| mailbox.put(OVER));
    }
}

pub(super) fn with_runner<T>(work: &Work<'_>, body: impl FnOnce(&mut dyn Runner) -> Result<T>) -> Result<T> {
    let relay = Relay {
        work,
        block: RwLock::new(Arc::from([])),
        mailboxes: (0..=work.workers()).map(|_| Mailbox::new()).collect(),
        busy_ns: AtomicU64::new(0),
    };
    thread::scope(|scope| {
        let mut workers = Vec::new();
        let result = {
            let _finish = Finish(&relay);
            spawn_all(scope, &relay, &mut workers).and_then(|()| body(&mut &relay))
        };
        let panics = workers.into_iter().filter_map(|worker| worker.join().err());
        // All workers are joined. The first panic causes all later errors.
        match panics.reduce(|first, _| first) {
            Some(panic) => Err(Error::panicked(&*panic)),
            None => result,
        }
    })
}

fn spawn_all<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    relay: &'scope Relay<'_, '_>,
    workers: &mut Vec<ScopedJoinHandle<'scope, ()>>,
) -> Result<()> {
    relay.coordinator().owner.get_or_init(thread::current);
    for me in 0..relay.work.workers() {
        let worker = thread::Builder::new()
            .name(format!("replay-{me}"))
            .spawn_scoped(scope, move || relay.worker(me))
            .map_err(Error::io("cannot start one thread for each thread of the log; use --threads 1"))?;
        relay.mailboxes[me].owner.get_or_init(|| worker.thread().clone());
        workers.push(worker);
    }
    Ok(())
}
