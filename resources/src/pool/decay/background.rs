//! The decay thread, which makes the decay steps of all pools of the process on real devices.
//!
//! The first pool that decays starts the thread, and the last one ends it and waits for its end. The end of
//! the process waits too, but only briefly. A forked process has no decay thread, since it inherits neither
//! threads nor CUDA, and it leaves its copies of the pools unchanged ([`process`](crate::process)). A fork
//! still waits for the step in progress. Otherwise a pool could stay locked in the forked process, by a
//! thread that does not exist there.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::pool::decay::PoolDecay;
use crate::process::{Origin, leave as leave_in_place};
use crate::tuning::PATIENCE;

/// The process that has the decay thread; 0 if none has had it yet.
static PROCESS: AtomicU32 = AtomicU32::new(0);
static POOLS: Mutex<Pools> = Mutex::new(Pools { all: Vec::new(), thread: None });

/// Held during a step, and during a fork.
static STEP: ForkLock = ForkLock(AtomicBool::new(false));

/// A lock made of one flag. It has no list of waiters, so a forked child can unlock it.
struct ForkLock(AtomicBool);

impl ForkLock {
    /// Waits at most `patience` for the lock; returns whether it got the lock.
    fn lock(&self, patience: Duration) -> bool {
        let start = Instant::now();
        while self.0.swap(true, Ordering::Acquire) {
            if start.elapsed() > patience {
                return false;
            }
            thread::sleep(Duration::from_micros(20));
        }
        true
    }

    fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Runs `work` under the lock.
    fn with<T>(&self, work: impl FnOnce() -> T) -> T {
        struct Unlock<'a>(&'a ForkLock);
        impl Drop for Unlock<'_> {
            fn drop(&mut self) {
                self.0.unlock();
            }
        }
        while !self.lock(Duration::MAX) {}
        let _unlock = Unlock(self);
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

/// Wakes the decay thread from its pause.
#[derive(Default)]
struct WakeUp {
    signal: Mutex<Signal>,
    changed: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Signal {
    #[default]
    No,
    /// A pool was added.
    PoolAdded,
    /// The thread must end.
    End,
}

impl WakeUp {
    fn wake(&self, why: Signal) {
        *self.signal.lock() = why;
        self.changed.notify_all();
    }

    /// Waits at most `time` for a signal; returns whether the thread must end.
    fn wait(&self, time: Duration) -> bool {
        let mut signal = self.signal.lock();
        if *signal == Signal::No {
            self.changed.wait_for(&mut signal, time);
        }
        if *signal == Signal::PoolAdded {
            *signal = Signal::No;
        }
        *signal == Signal::End
    }

    fn is_end(&self) -> bool {
        *self.signal.lock() == Signal::End
    }
}

/// The decay of a pool. Dropping the last one ends the decay thread.
#[derive(Debug)]
pub(crate) struct DecayHandle {
    decay: Arc<PoolDecay>,
    /// Whether the decay thread makes this pool's steps.
    is_in_background: bool,
    origin: Origin,
}

impl DecayHandle {
    /// Lets the decay thread make this pool's steps, if the device is real. A simulated device has its own
    /// time, so tests make its steps.
    pub(crate) fn new(decay: PoolDecay) -> Self {
        let decay = Arc::new(decay);
        let is_in_background = decay.driver.virtual_time_ns().is_none() && add_pool(&decay);
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
            remove_pool(&self.decay);
        }
    }
}

/// Returns whether this process was forked from the one with the decay thread.
fn is_forked() -> bool {
    let owner = PROCESS.load(Ordering::Relaxed);
    owner != 0 && owner != process::id()
}

/// Adds a pool; returns whether the decay thread runs.
fn add_pool(decay: &Arc<PoolDecay>) -> bool {
    if is_forked() {
        return false;
    }
    let mut pools = POOLS.lock();
    if pools.thread.is_none() {
        match start() {
            Ok(thread) => pools.thread = Some(thread),
            Err(error) => {
                // A subscriber may create or drop a pool.
                drop(pools);
                tracing::warn!(
                    target: "millpond::pool", %error,
                    "the decay thread did not start: idle memory stays until `trim`"
                );
                return false;
            }
        }
    }
    pools.all.push(Arc::downgrade(decay));
    if let Some(thread) = &pools.thread {
        thread.wake_up.wake(Signal::PoolAdded);
    }
    true
}

fn start() -> std::io::Result<Thread> {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    // Stored before the thread starts, since another thread may fork at any time.
    PROCESS.store(process::id(), Ordering::Relaxed);
    if !IS_REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler does not unwind, and uses only statics, which are never dropped.
        unsafe { libc::atexit(at_exit) };
        #[cfg(unix)]
        forks::watch();
    }
    let wake_up = Arc::<WakeUp>::default();
    let own = Arc::clone(&wake_up);
    let handle = thread::Builder::new().name("millpond-decay".to_owned()).spawn(move || run(&own))?;
    Ok(Thread { handle, wake_up })
}

/// Removes a dropped pool, and ends the decay thread if it was the last.
fn remove_pool(decay: &Arc<PoolDecay>) {
    let thread = {
        let mut pools = POOLS.lock();
        pools.all.retain(|pool| !std::ptr::eq(pool.as_ptr(), Arc::as_ptr(decay)));
        if pools.all.is_empty() { pools.thread.take() } else { None }
    };
    let Some(Thread { handle, wake_up }) = thread else { return };
    wake_up.wake(Signal::End);
    if handle.join().is_err() {
        tracing::error!(target: "millpond::pool", "the decay thread had panicked");
    }
}

/// Ends the decay thread before the process unloads the driver. The wait is bounded, since the exiting thread
/// may hold a lock that the decay thread needs.
extern "C" fn at_exit() {
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
        let mut pause = Duration::MAX;
        for pool in pools {
            pause = pause.min(pool.interval());
            let step = || pool.step(start.elapsed());
            match STEP.with(|| catch_unwind(AssertUnwindSafe(step))) {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    tracing::warn!(target: "millpond::pool", %error, "idle memory could not be released");
                }
                // A panic here is a bug, but it must not stop the decay of other pools.
                Err(_) => forget(&pool),
            }
            if wake_up.is_end() {
                return;
            }
        }
        // A very short decay must not keep a core busy.
        if wake_up.wait(pause.max(Duration::from_millis(1))) {
            return;
        }
    }
}

/// Stops the decay of a pool whose step panicked.
fn forget(pool: &Arc<PoolDecay>) {
    tracing::error!(target: "millpond::pool", "a decay step panicked; the pool does not decay any more");
    POOLS.lock().all.retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(pool)));
}

/// Handlers that hold the lock during a fork, so that the fork happens between steps.
#[cfg(unix)]
mod forks {
    use super::STEP;
    use crate::tuning::PATIENCE;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Whether the forking thread holds the lock. It does not hold it if the step took too long.
    static IS_LOCKED: AtomicBool = AtomicBool::new(false);

    pub(super) fn watch() {
        // SAFETY: the handlers do not unwind, and use only statics, which are never dropped.
        unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
    }

    extern "C" fn before() {
        if STEP.lock(PATIENCE) {
            IS_LOCKED.store(true, Ordering::Relaxed);
        }
    }

    /// Runs in the parent and in the child.
    extern "C" fn after() {
        if IS_LOCKED.swap(false, Ordering::Relaxed) {
            STEP.unlock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that waits for the lock gives up after its patience, and not earlier.
    #[test]
    fn a_lock_is_waited_for_with_patience() {
        let lock = ForkLock(AtomicBool::new(false));
        assert!(lock.lock(Duration::ZERO));
        assert!(!lock.lock(Duration::from_micros(1)));
        thread::scope(|scope| {
            let waits = scope.spawn(|| lock.lock(Duration::MAX));
            lock.unlock();
            assert!(waits.join().expect("it does not panic"));
        });
        lock.unlock();
        assert!(!lock.with(|| lock.lock(Duration::ZERO)));
        assert!(lock.lock(Duration::ZERO), "it is free after the work");
    }

    /// A new pool wakes the thread once. The signal to end stays set.
    #[test]
    fn a_signal_wakes_the_thread() {
        let wake_up = WakeUp::default();
        assert!(!wake_up.wait(Duration::ZERO) && !wake_up.is_end());
        wake_up.wake(Signal::PoolAdded);
        assert!(!wake_up.is_end());
        assert!(!wake_up.wait(Duration::MAX), "it returns at once");
        assert!(*wake_up.signal.lock() == Signal::No);
        wake_up.wake(Signal::End);
        assert!(wake_up.is_end());
        assert!(wake_up.wait(Duration::MAX) && wake_up.wait(Duration::MAX));
    }

    /// A pool whose step panicked makes no more steps; other pools do.
    #[test]
    fn a_pool_is_forgotten_and_others_are_not() {
        use crate::{CudaMemoryResource, PoolLayer};
        use millpond_core::DeviceMemoryResourceExt;
        use millpond_driver::sim::{SimConfig, SimDevice};

        let pool = || {
            let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
            cuda.layer(PoolLayer::new()).expect("an empty pool")
        };
        let pools = [pool(), pool()];
        let decays = pools.each_ref().map(|pool| &pool.decay.as_ref().expect("pools decay").decay);
        POOLS.lock().all.extend(decays.iter().map(|decay| Arc::downgrade(decay)));
        let are_known = || {
            let all = &POOLS.lock().all;
            decays.map(|decay| all.iter().any(|other| std::ptr::eq(other.as_ptr(), Arc::as_ptr(decay))))
        };
        assert_eq!(are_known(), [true, true]);
        forget(decays[0]);
        assert_eq!(are_known(), [false, true]);
        forget(decays[1]);
        assert_eq!(are_known(), [false, false]);
    }
}
