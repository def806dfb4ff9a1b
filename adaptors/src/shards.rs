//! A value in parts, one for each thread, so that threads which count do not take turns at a cache line.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use spin::Yield;
use spin::mutex::{SpinMutex, SpinMutexGuard};

/// One for each bit of [`Shards::used`]. Threads beyond that share.
const SHARDS: usize = u64::BITS as usize;

/// Held for a handful of instructions: giving it back is a plain store, half of what another lock costs.
pub(crate) type Guard<'a, T> = SpinMutexGuard<'a, T, Yield>;

/// Apart from its neighbours' cache lines, which the hardware fetches in pairs.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(SpinMutex<T, Yield>);

impl<T> Padded<T> {
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.0.lock()
    }
}

/// The parts. A thread works on its own; whoever needs the whole locks those that were ever used.
pub(crate) struct Shards<T> {
    each: Box<[Padded<T>]>,
    /// A bit for each part that a thread has locked.
    used: AtomicU64,
}

impl<T: Default> Shards<T> {
    pub(crate) fn new() -> Self {
        Self { each: (0..SHARDS).map(|_| Padded::default()).collect(), used: AtomicU64::new(0) }
    }

    /// The calling thread's part.
    #[inline]
    pub(crate) fn mine(&self) -> Guard<'_, T> {
        let mine = shard_of_thread();
        // Every thread's first access to `used` is this one, or comes after it, and all accesses are to one
        // variable: of two threads that begin, at least one knows of the other.
        if self.used.load(Ordering::Relaxed) & 1 << mine == 0 {
            self.used.fetch_or(1 << mine, Ordering::Relaxed);
        }
        self.each[mine].lock()
    }

    /// Whether no other part is in use. True as long as the caller holds [`mine`](Self::mine): a thread that
    /// begins meanwhile has nothing yet, and waits for this one if it needs more.
    #[inline]
    pub(crate) fn is_alone(&self) -> bool {
        self.used.load(Ordering::Relaxed) == 1 << shard_of_thread()
    }

    /// All parts in use, locked: the whole at one moment.
    pub(crate) fn all(&self) -> All<'_, T> {
        let mine = shard_of_thread();
        let used = self.used.fetch_or(1 << mine, Ordering::Relaxed) | 1 << mine;
        // In one order for everybody, so that no two wait for each other.
        let each = (0..SHARDS).filter(|shard| used & 1 << shard != 0);
        let mine = (used & ((1 << mine) - 1)).count_ones() as usize;
        All { each: each.map(|shard| self.each[shard].lock()).collect(), mine }
    }
}

/// The parts in use, locked.
pub(crate) struct All<'a, T> {
    pub(crate) each: Vec<Guard<'a, T>>,
    /// Which one is the calling thread's.
    pub(crate) mine: usize,
}

#[inline]
fn shard_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    // A destructor of a thread's local may free memory after this one is gone; any part will do.
    MINE.try_with(|mine| *mine).unwrap_or(0)
}

impl<T> fmt::Debug for Shards<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.used.load(Ordering::Relaxed).count_ones();
        f.debug_struct("Shards").field("used", &used).finish_non_exhaustive()
    }
}
