//! A value divided into one part per thread, so that counting threads do not contend for a cache line.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use spin::mutex::{SpinMutex, SpinMutexGuard};

/// Aligned so that no other value shares its pair of cache lines, which the hardware fetches together.
#[derive(Default, Debug)]
#[repr(align(128))]
pub(crate) struct Apart<T>(pub(crate) T);

/// The number of parts: one for each bit of [`Shards::used`]. More threads share parts.
const SHARDS: usize = u64::BITS as usize;

/// The most iterations of a spin loop between two checks of a lock: some microseconds.
const LONGEST_PAUSE: u32 = 128;

/// The guard of a spin lock that is held for a few instructions. Its release is a plain store, half the cost
/// of another lock.
pub(crate) type Guard<'a, T> = SpinMutexGuard<'a, T>;

/// A lock on its own cache line.
#[derive(Default)]
pub(crate) struct Padded<T>(Apart<SpinMutex<T>>);

impl<T> Padded<T> {
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.0.0.try_lock().unwrap_or_else(|| self.wait())
    }

    /// Checks the lock less and less often, and in the end yields. Each check takes the cache line from the
    /// thread that holds the lock. Without checks, that thread completes many operations meanwhile, which is
    /// faster overall than alternating.
    #[cold]
    fn wait(&self) -> Guard<'_, T> {
        let mut pause = 1;
        loop {
            for _ in 0..pause {
                std::hint::spin_loop();
            }
            if !self.0.0.is_locked()
                && let Some(guard) = self.0.0.try_lock()
            {
                return guard;
            }
            if pause < LONGEST_PAUSE {
                pause *= 2;
            } else {
                std::thread::yield_now();
            }
        }
    }
}

/// The parts. A thread works on its own part. A thread that needs the whole value locks all parts that were
/// ever used.
pub(crate) struct Shards<T> {
    each: Box<[Padded<T>]>,
    /// A bit for each part that a thread has locked.
    used: AtomicU64,
}

impl<T: Default> Shards<T> {
    pub(crate) fn new() -> Self {
        Self { each: (0..SHARDS).map(|_| Padded::default()).collect(), used: AtomicU64::new(0) }
    }

    /// Returns the calling thread's part.
    #[inline]
    pub(crate) fn mine(&self) -> Guard<'_, T> {
        let mine = shard_of_thread();
        // This is every thread's first access to `used`, and all accesses are to one variable. So if two
        // threads begin at once, at least one of them sees the other's bit.
        if self.used.load(Ordering::Relaxed) & 1 << mine == 0 {
            self.used.fetch_or(1 << mine, Ordering::Relaxed);
        }
        self.each[mine].lock()
    }

    /// Returns whether no other part is in use. This stays true while the caller holds [`mine`](Self::mine):
    /// a thread that begins meanwhile has an empty part, and waits for this one if it needs more.
    #[inline]
    pub(crate) fn is_alone(&self) -> bool {
        self.used.load(Ordering::Relaxed) == 1 << shard_of_thread()
    }

    /// Locks and returns all parts in use: the whole value at one moment.
    pub(crate) fn all(&self) -> All<'_, T> {
        let mine = shard_of_thread();
        let mut used = self.used.fetch_or(1 << mine, Ordering::Relaxed) | 1 << mine;
        loop {
            // All threads lock in the same order, so that no two wait for each other.
            let each = (0..SHARDS).filter(|shard| used & 1 << shard != 0);
            let each: Vec<_> = each.map(|shard| self.each[shard].lock()).collect();
            // A thread that began meanwhile may have taken from a part before it was locked here.
            let now = self.used.load(Ordering::Relaxed);
            if now == used {
                return All { each, mine: (used & ((1 << mine) - 1)).count_ones() as usize };
            }
            used = now;
        }
    }

    /// Locks other parts one by one and passes each to `take`, until it returns true. Skips locked parts,
    /// because the caller holds [`mine`](Self::mine) and must not wait.
    pub(crate) fn visit_others(&self, mut take: impl FnMut(&mut T) -> bool) -> bool {
        let mine = shard_of_thread();
        let used = self.used.load(Ordering::Relaxed);
        // Each thread begins at a different part.
        (1..SHARDS)
            .map(|distance| (mine + distance) % SHARDS)
            .filter(|other| used & 1 << other != 0)
            .filter_map(|other| self.each[other].0.0.try_lock())
            .any(|mut part| take(&mut part))
    }
}

/// The parts in use, locked.
pub(crate) struct All<'a, T> {
    pub(crate) each: Vec<Guard<'a, T>>,
    /// The index of the calling thread's part.
    pub(crate) mine: usize,
}

#[inline]
fn shard_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    // After this local is destroyed, a destructor of another local of the thread may still free memory; any
    // part will do then.
    MINE.try_with(|mine| *mine).unwrap_or(0)
}

impl<T> fmt::Debug for Padded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Padded").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Shards<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.used.load(Ordering::Relaxed).count_ones();
        f.debug_struct("Shards").field("used", &used).finish_non_exhaustive()
    }
}
