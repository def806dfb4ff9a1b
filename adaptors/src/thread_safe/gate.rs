//! The lock of `thread_safe`: the thread inside, the waiting threads, and the frees that are left to the
//! thread inside.

use std::cell::Cell;
use std::collections::VecDeque;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::time::Duration;

use millpond_core::{DeviceMemoryResource, DevicePtr, Layout, StreamRef};
use parking_lot::{Mutex, ReentrantMutex, ReentrantMutexGuard};

use crate::panicked::{caught, text_of};
use crate::waiting::{Exclusive, Frees};

type Deallocate<R> = unsafe fn(&R, DevicePtr, Layout, StreamRef);

/// Lets one thread at a time into the upstream. That thread may enter again while it is inside.
pub(super) struct Gate<R> {
    inside: ReentrantMutex<Inside<R>>,
    /// How often a thread entered, without its calls from inside.
    turns: AtomicU64,
    left: Mutex<VecDeque<Free>>,
    /// The upstream's [`deallocate`](DeviceMemoryResource::deallocate).
    deallocate: Deallocate<R>,
    left_count: AtomicUsize,
    /// Wakes the requests that wait for other threads' frees, without the lock.
    pub(super) frees: Frees,
}

struct Inside<R> {
    upstream: R,
    /// The nested calls of the thread inside.
    depth: Cell<u32>,
}

/// A free that a thread left to the thread inside. Its stream is alive until the free is carried out.
#[derive(Clone, Copy, Debug)]
struct Free {
    ptr: DevicePtr,
    layout: Layout,
    stream: StreamRef,
}

/// Access to the upstream for the thread inside.
pub(super) struct Turn<'a, R> {
    gate: &'a Gate<R>,
    /// Set until the end.
    inside: Option<ReentrantMutexGuard<'a, Inside<R>>>,
    pub(super) exclusive: Exclusive,
    /// Dropped last.
    panics: Panics,
}

/// The panics of frees that were left. They are reported at the end, because a subscriber runs without the
/// lock.
#[derive(Default)]
struct Panics(Vec<String>);

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
    /// Enters once no other thread is inside. Returns `None` if one call of another thread does not end for
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

    /// Enters if no other thread is inside.
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
        Turn { gate: self, inside: Some(inside), exclusive: Exclusive::begin(), panics: Panics::default() }
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
        // The thread inside leaves, then looks for frees that were left. This thread leaves a free, then
        // looks whether a thread is inside. So one of the two sees the other.
        fence(Ordering::SeqCst);
        drop(self.try_enter());
    }

    /// Returns a pointer to the upstream, without the lock. A thread that is not inside may use only its
    /// address, unless threads may share the upstream.
    pub(super) fn upstream_ptr(&self) -> *const R {
        // SAFETY: the pointer leads to the lock's value, which lives as long as `self`. No reference to the
        // whole value is made.
        unsafe { &raw const (*self.inside.data_ptr()).upstream }
    }
}

impl<R> Inside<R> {
    /// Carries out the frees that were left before.
    #[cold]
    fn carry_out(&self, gate: &Gate<R>, panics: &mut Panics) {
        for _ in 0..gate.left_count.load(Ordering::SeqCst) {
            let Some(free) = gate.left.lock().pop_front() else { return };
            gate.left_count.fetch_sub(1, Ordering::SeqCst);
            // SAFETY: the thread that left the free gave the guarantees.
            unsafe { panics.carry_out(&self.upstream, gate.deallocate, free) };
            gate.frees.note();
        }
    }
}

impl Panics {
    /// Carries out a free that was left. Such a free may panic, for example in the default hook for misuse.
    /// The calling thread is not at fault, and must still carry out the other frees.
    ///
    /// # Safety
    /// The promises of [`Gate::leave`] hold for this upstream.
    unsafe fn carry_out<R>(&mut self, upstream: &R, deallocate: Deallocate<R>, free: Free) {
        let Free { ptr, layout, stream } = free;
        // SAFETY: the caller's promises.
        let freed = catch_unwind(AssertUnwindSafe(|| unsafe { deallocate(upstream, ptr, layout, stream) }));
        if let Err(payload) = freed {
            self.0.push(text_of(payload));
        }
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        for panic in &self.0 {
            let warn = || {
                tracing::warn!(
                    target: "millpond::thread_safe",
                    %panic,
                    "one thread freed a block for another thread, and the free panicked"
                );
            };
            // The call that ends here has its block, or panics itself. It must not fail because a subscriber
            // panics.
            caught(warn);
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
        // A call that panics leaves the frees to the next one.
        let carries_out = is_outermost && !std::thread::panicking();
        if carries_out && self.gate.left_count.load(Ordering::Relaxed) > 0 {
            inside.carry_out(self.gate, &mut self.panics);
        }
        drop(ending);
        drop(inside);
        fence(Ordering::SeqCst);
        if carries_out && self.gate.left_count.load(Ordering::SeqCst) > 0 {
            // A free was left while the lock was held.
            drop(self.gate.try_enter());
        }
    }
}

/// Counts the end of a call.
struct Ending<'a>(&'a Cell<u32>);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl<R> Drop for Gate<R> {
    fn drop(&mut self) {
        let (upstream, mut panics) = (&self.inside.get_mut().upstream, Panics::default());
        for free in mem::take(self.left.get_mut()) {
            // SAFETY: the thread that queued the free vouched for it.
            unsafe { panics.carry_out(upstream, self.deallocate, free) };
        }
    }
}
