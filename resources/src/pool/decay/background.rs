//! The thread that makes the steps on real devices: one for all pools of the process.
//!
//! It starts with the first pool that decays, and ends with the last, which waits for its end; at the end of
//! the process the pools that are left wait for it, too, but not for long. A process that was forked has
//! none: threads are not inherited, and nor is CUDA. It leaves the pools that it has copies of as they are
//! ([`process`](crate::process)). A fork waits for the end of a step all the same: a copy that goes on using
//! a pool, of which no other thread was in a call, finds no lock taken by the thread that it has not.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::pool::decay::PoolDecay;
use crate::process::{Origin, leave as leave_in_place};

/// The thread is not busy with a decay that is very short.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// The process that has the thread; 0 before there was one.
static PROCESS: AtomicU32 = AtomicU32::new(0);
static POOLS: Mutex<Pools> = Mutex::new(Pools { all: Vec::new(), thread: None });

/// Held through a step, and through a fork.
static STEP: ForkLock = ForkLock(AtomicBool::new(false));

/// A lock that a copy of the process can give back: a flag, and nobody who waits is known.
struct ForkLock(AtomicBool);

impl ForkLock {
    /// Waits for it, for so long at most; says whether it was had.
    fn take(&self, patience: Duration) -> bool {
        let start = Instant::now();
        while self.0.swap(true, Ordering::Acquire) {
            if start.elapsed() > patience {
                return false;
            }
            thread::sleep(Duration::from_micros(20));
        }
        true
    }

    fn free_entry(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Does work in its turn.
    fn with<T>(&self, work: impl FnOnce() -> T) -> T {
        struct GiveBack<'a>(&'a ForkLock);
        impl Drop for GiveBack<'_> {
            fn drop(&mut self) {
                self.0.free_entry();
            }
        }
        while !self.take(Duration::MAX) {}
        let _turn = GiveBack(self);
        work()
    }
}

struct Pools {
    all: Vec<Weak<PoolDecay>>,
    thread: Option<Thread>,
}

struct Thread {
    handle: JoinHandle<()>,
    wake_up: Arc<WakeUp>,
}

/// Wakes the thread.
#[derive(Default)]
struct WakeUp {
    signal: Mutex<Signal>,
    changed: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Signal {
    #[default]
    No,
    /// There are other pools.
    Look,
    End,
}

impl WakeUp {
    fn wake(&self, why: Signal) {
        *self.signal.lock() = why;
        self.changed.notify_all();
    }

    /// Waits until it rings, for so long at most; whether the thread is to end.
    fn wait(&self, time: Duration) -> bool {
        let mut signal = self.signal.lock();
        if *signal == Signal::No {
            self.changed.wait_for(&mut signal, time);
        }
        if *signal == Signal::Look {
            *signal = Signal::No;
        }
        *signal == Signal::End
    }

    fn is_end(&self) -> bool {
        *self.signal.lock() == Signal::End
    }
}

/// A pool that decays. It ends the thread if it was the last.
#[derive(Debug)]
pub(crate) struct DecayHandle {
    decay: Arc<PoolDecay>,
    /// Whether the thread makes its steps.
    is_in_background: bool,
    origin: Origin,
}

impl DecayHandle {
    /// The thread makes this pool's steps from here on, if the device is real. Simulated time passes where
    /// its tests let it.
    pub(crate) fn new(decay: PoolDecay) -> Self {
        let decay = Arc::new(decay);
        let is_in_background = decay.driver.virtual_time_ns().is_none() && join(&decay);
        Self { decay, is_in_background, origin: Origin::here() }
    }

    pub(crate) fn decay(&self) -> &PoolDecay {
        &self.decay
    }
}

impl Drop for DecayHandle {
    fn drop(&mut self) {
        if self.origin.is_elsewhere() {
            leave_in_place(&self.decay);
        } else if self.is_in_background {
            leave(&self.decay);
        }
    }
}

/// Whether this process is a copy of one that had the thread.
fn is_forked() -> bool {
    let owner = PROCESS.load(Ordering::Relaxed);
    owner != 0 && owner != process::id()
}

/// Adds a pool; whether there is a thread for it.
fn join(decay: &Arc<PoolDecay>) -> bool {
    if is_forked() {
        return false;
    }
    let mut pools = POOLS.lock();
    if pools.thread.is_none() {
        match start() {
            Ok(thread) => pools.thread = Some(thread),
            Err(error) => {
                tracing::warn!(target: "millpond::pool", %error, "no thread: idle memory stays until `trim`");
                return false;
            }
        }
    }
    pools.all.push(Arc::downgrade(decay));
    if let Some(thread) = &pools.thread {
        thread.wake_up.wake(Signal::Look);
    }
    true
}

fn start() -> std::io::Result<Thread> {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    // Before the thread is there: a fork can happen at any time.
    PROCESS.store(process::id(), Ordering::Relaxed);
    if !IS_REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler does not unwind, and uses statics only, which are never dropped.
        unsafe { libc::atexit(at_exit) };
        #[cfg(unix)]
        forks::watch();
    }
    let wake_up = Arc::<WakeUp>::default();
    let heard = Arc::clone(&wake_up);
    let handle = thread::Builder::new().name("millpond-decay".to_owned()).spawn(move || run(&heard))?;
    Ok(Thread { handle, wake_up })
}

/// Removes a pool, which is over.
fn leave(decay: &Arc<PoolDecay>) {
    let thread = {
        let mut pools = POOLS.lock();
        pools.all.retain(|pool| !std::ptr::eq(pool.as_ptr(), Arc::as_ptr(decay)));
        if pools.all.is_empty() { pools.thread.take() } else { None }
    };
    let Some(Thread { handle, wake_up }) = thread else { return };
    wake_up.wake(Signal::End);
    if handle.join().is_err() {
        tracing::error!(target: "millpond::pool", "the thread that gives idle memory back had panicked");
    }
}

/// At the end of the process the driver goes away: the thread goes first. Where it is held up, by a lock that
/// the ending thread holds, the process ends all the same.
extern "C" fn at_exit() {
    const PATIENCE: Duration = Duration::from_millis(500);
    if is_forked() {
        return;
    }
    let Some(mut pools) = POOLS.try_lock_for(PATIENCE) else { return };
    let Some(Thread { handle, wake_up }) = pools.thread.take() else { return };
    drop(pools);
    wake_up.wake(Signal::End);
    let start = Instant::now();
    while !handle.is_finished() && start.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(1));
    }
}

fn run(wake_up: &WakeUp) {
    let start = Instant::now();
    loop {
        let all = || POOLS.lock().all.iter().filter_map(Weak::upgrade).collect();
        let pools: Vec<Arc<PoolDecay>> = STEP.with(all);
        let mut pause = Duration::from_secs(60);
        for pool in pools {
            pause = pause.min(pool.tick());
            let step = || pool.step(start.elapsed());
            match STEP.with(|| catch_unwind(AssertUnwindSafe(step))) {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    tracing::warn!(target: "millpond::pool", %error, "idle memory could not be given back");
                }
                // A bug, which is that pool's alone.
                Err(_) => forget(&pool),
            }
            if wake_up.is_end() {
                return;
            }
        }
        if wake_up.wait(pause.max(SHORTEST_PAUSE)) {
            return;
        }
    }
}

/// No more steps are made for this pool.
fn forget(pool: &Arc<PoolDecay>) {
    tracing::error!(target: "millpond::pool", "giving idle memory back panicked; the pool does not decay");
    POOLS.lock().all.retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(pool)));
}

/// A fork takes the turn, so that it finds the thread between steps.
#[cfg(unix)]
mod forks {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::STEP;

    /// Whether the thread that forks has its turn: steps that take very long are not waited for.
    static FORKS: AtomicBool = AtomicBool::new(false);

    pub(super) fn watch() {
        // SAFETY: the handlers do not unwind, and use statics only, which are never dropped.
        unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
    }

    extern "C" fn before() {
        const PATIENCE: Duration = Duration::from_secs(1);
        if STEP.take(PATIENCE) {
            FORKS.store(true, Ordering::Relaxed);
        }
    }

    /// In both processes.
    extern "C" fn after() {
        if FORKS.swap(false, Ordering::Relaxed) {
            STEP.free_entry();
        }
    }
}
