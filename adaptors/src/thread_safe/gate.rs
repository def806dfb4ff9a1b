//! The lock of `thread_safe`: the thread inside, those that wait, and the frees that are left to the inside.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::time::Duration;

use millpond_core::{DeviceMemoryResource, DevicePtr, Layout, StreamRef};
use parking_lot::{Mutex, ReentrantMutex, ReentrantMutexGuard};

use crate::waiting::{Exclusive, Frees};

/// Lets one thread at a time into the upstream, and that thread as often as it comes.
pub(super) struct Gate<R> {
    inside: ReentrantMutex<Inside<R>>,
    /// How often a thread came in, without its calls from inside.
    turns: AtomicU64,
    left: Mutex<VecDeque<Free>>,
    /// The upstream's [`deallocate`](DeviceMemoryResource::deallocate).
    deallocate: unsafe fn(&R, DevicePtr, Layout, StreamRef),
    left_count: AtomicUsize,
    /// Wakes the requests that wait for other threads' frees, without the lock.
    pub(super) frees: Frees,
}

struct Inside<R> {
    upstream: R,
    /// The calls of the thread that is inside.
    depth: Cell<u32>,
}

/// A free that a thread left to the one inside. Its stream is alive until it is carried out.
#[derive(Clone, Copy, Debug)]
struct Free {
    ptr: DevicePtr,
    layout: Layout,
    stream: StreamRef,
}

/// The upstream of the thread that is inside.
pub(super) struct Turn<'a, R> {
    gate: &'a Gate<R>,
    /// Set until the end.
    inside: Option<ReentrantMutexGuard<'a, Inside<R>>>,
    pub(super) exclusive: Exclusive,
}

impl<R: DeviceMemoryResource> Gate<R> {
    pub(super) fn new(upstream: R) -> Self {
        Self {
            inside: ReentrantMutex::new(Inside { upstream, depth: Cell::new(0) }),
            turns: AtomicU64::new(0),
            left: Mutex::default(),
            deallocate: R::deallocate,
            left_count: AtomicUsize::new(0),
            frees: Frees::default(),
        }
    }
}

impl<R> Gate<R> {
    /// Goes in once no other thread is inside. `None` if one call of another thread has not ended for
    /// `patience`: it may be waiting for this thread.
    #[inline]
    pub(super) fn enter(&self, patience: Duration) -> Option<Turn<'_, R>> {
        loop {
            let seen = self.turns.load(Ordering::Relaxed);
            if let Some(inside) = self.inside.try_lock_for(patience) {
                return Some(self.begin(inside));
            }
            if self.turns.load(Ordering::Relaxed) == seen {
                return None;
            }
        }
    }

    /// Goes in if no other thread is inside.
    pub(super) fn try_enter(&self) -> Option<Turn<'_, R>> {
        self.inside.try_lock().map(|inside| self.begin(inside))
    }

    #[inline]
    fn begin<'a>(&'a self, inside: ReentrantMutexGuard<'a, Inside<R>>) -> Turn<'a, R> {
        let depth = inside.depth.get();
        inside.depth.set(depth + 1);
        if depth == 0 {
            self.turns.fetch_add(1, Ordering::Relaxed);
        }
        Turn { gate: self, inside: Some(inside), exclusive: Exclusive::begin() }
    }

    /// Leaves a free to the thread inside, or to the next one.
    ///
    /// # Safety
    /// The caller's promises of [`deallocate`](DeviceMemoryResource::deallocate) hold for the upstream, and
    /// the stream lives until the free is carried out.
    #[cold]
    pub(super) unsafe fn leave(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        self.left.lock().push_back(Free { ptr, layout, stream });
        self.left_count.fetch_add(1, Ordering::SeqCst);
        // The thread inside goes out, then looks for frees that are left; this one leaves a free, then looks
        // whether a thread is inside. One of the two sees the other.
        fence(Ordering::SeqCst);
        drop(self.try_enter());
    }

    /// The upstream, without the lock: only its address may be used by a thread that is not inside, unless
    /// threads may share it.
    pub(super) fn upstream_ptr(&self) -> *const R {
        // SAFETY: the pointer leads to the lock's value, which lives as long as `self`; no reference to the
        // whole is made.
        unsafe { &raw const (*self.inside.data_ptr()).upstream }
    }
}

impl<R> Inside<R> {
    /// Carries out the frees that were left before.
    #[cold]
    fn carry_out(&self, gate: &Gate<R>) {
        for _ in 0..gate.left_count.load(Ordering::SeqCst) {
            let Some(Free { ptr, layout, stream }) = gate.left.lock().pop_front() else { return };
            gate.left_count.fetch_sub(1, Ordering::SeqCst);
            // SAFETY: the thread that left the free vouched for it.
            unsafe { (gate.deallocate)(&self.upstream, ptr, layout, stream) };
            gate.frees.note();
        }
    }
}

impl<R> Turn<'_, R> {
    #[inline]
    pub(super) fn upstream(&self) -> &R {
        match &self.inside {
            Some(inside) => &inside.upstream,
            None => unreachable!("a turn has its guard until it ends"),
        }
    }
}

impl<R> Drop for Turn<'_, R> {
    fn drop(&mut self) {
        let Some(inside) = self.inside.take() else { return };
        let is_outermost = inside.depth.get() == 1;
        let ending = Ending(&inside.depth);
        // A free may panic, as the default hook for misuse does; the next call carries out the rest.
        let carries_out = is_outermost && !std::thread::panicking();
        if carries_out && self.gate.left_count.load(Ordering::Relaxed) > 0 {
            inside.carry_out(self.gate);
        }
        drop(ending);
        drop(inside);
        fence(Ordering::SeqCst);
        if carries_out && self.gate.left_count.load(Ordering::SeqCst) > 0 {
            // Left while the lock was held.
            drop(self.gate.try_enter());
        }
    }
}

/// Counts the end of a call, also if a free that was left panics.
struct Ending<'a>(&'a Cell<u32>);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl<R> Drop for Gate<R> {
    fn drop(&mut self) {
        for Free { ptr, layout, stream } in std::mem::take(self.left.get_mut()) {
            // SAFETY: the thread that left the free vouched for it.
            unsafe { (self.deallocate)(&self.inside.get_mut().upstream, ptr, layout, stream) };
        }
    }
}
