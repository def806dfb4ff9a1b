//! A value divided into one part per thread, so that counting threads do not contend for a cache line.

use std::fmt;

use crate::sync::{AtomicU64, Ordering, SHARDS, SpinMutex, SpinMutexGuard, shard_of_thread};

/// Aligned so that no other value shares its pair of cache lines, which the hardware fetches together.
#[derive(Default, Debug)]
#[repr(align(128))]
pub(crate) struct Apart<T>(pub(crate) T);

/// The most iterations of a spin loop between two checks of a lock: some microseconds.
#[cfg(not(all(test, millpond_loom)))]
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

    #[cfg(all(test, millpond_loom))]
    fn wait(&self) -> Guard<'_, T> {
        self.0.0.lock()
    }

    /// Checks the lock less and less often, and in the end yields. Each check takes the cache line from the
    /// thread that holds the lock. Without checks, that thread completes many operations meanwhile, which is
    /// faster overall than alternating.
    #[cfg(not(all(test, millpond_loom)))]
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

/// The parts. A thread works on its own part. If there are more threads than parts, threads share parts. A
/// thread that needs the whole value locks all parts that were ever used.
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
        // threads begin at once, at least one of them sees the other's bit. A thread that begins after
        // another has locked all parts also sees what that thread wrote before.
        if self.used.load(Ordering::Relaxed) & 1 << mine == 0 {
            self.used.fetch_or(1 << mine, Ordering::AcqRel);
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
        loop {
            let used = self.used.fetch_or(1 << mine, Ordering::AcqRel) | 1 << mine;
            // All threads lock in the same order, so that no two wait for each other.
            let each = (0..SHARDS).filter(|shard| used & 1 << shard != 0);
            let each: Vec<_> = each.map(|shard| self.each[shard].lock()).collect();
            let all =
                All { each, mine: (used & ((1 << mine) - 1)).count_ones() as usize, of: &self.used, used };
            // A thread that began meanwhile may have taken from a part before it was locked here.
            if all.is_whole() {
                return all;
            }
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

impl Shards<u64> {
    /// Subtracts from the thread's part. If the part is too small, first takes halves of other parts. Returns
    /// false, and subtracts nothing, if that is not enough.
    #[inline]
    pub(crate) fn take(&self, amount: u64) -> bool {
        let mut mine = self.mine();
        match mine.checked_sub(amount) {
            Some(left) => {
                *mine = left;
                true
            }
            None => self.take_from_others(mine, amount),
        }
    }

    #[cold]
    fn take_from_others(&self, mut mine: Guard<'_, u64>, amount: u64) -> bool {
        let enough = self.visit_others(|other| {
            let half = *other / 2;
            if let Some(sum) = mine.checked_add(half) {
                *mine = sum;
                *other -= half;
            }
            *mine >= amount
        });
        if enough {
            *mine -= amount;
        }
        enough
    }
}

/// The parts in use, locked.
pub(crate) struct All<'a, T> {
    pub(crate) each: Vec<Guard<'a, T>>,
    /// The index of the calling thread's part.
    pub(crate) mine: usize,
    of: &'a AtomicU64,
    used: u64,
}

impl<T> All<'_, T> {
    /// Returns whether no thread has begun since the parts were locked.
    pub(crate) fn is_whole(&self) -> bool {
        // A change of nothing, so that a thread that begins later sees the writes of this one.
        self.of.fetch_or(0, Ordering::AcqRel) == self.used
    }
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
