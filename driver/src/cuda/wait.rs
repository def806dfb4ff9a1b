//! Waits for all work on the device without ending a capture.
//!
//! `cuCtxSynchronize` ends every capture in the context, known or unknown. Freeing pinned memory also waits
//! for all work, even work of destroyed streams, and leaves captures alone: this was measured
//! (docs/lab/gpu.md). But CUDA promises only that the free may wait. So millpond uses a free only if it was
//! seen to wait on this driver. This is checked once per driver, in three rounds: each runs work that ends
//! when the free returns, and the free must outlast a set time.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millpond_core::driver::{CaptureModeGuard, Driver, DriverError, DriverResult, HostFlags, HostPtr};

use super::{CudaDriver, abi};

/// A whole page of host memory.
const PINNED_BYTES: u64 = 4096;

/// How long the free must block the thread in each round. A free that is slow but waits for nothing returns
/// within one of them, and so does one whose thread was delayed once.
const ROUNDS: [Duration; 3] =
    [Duration::from_millis(2), Duration::from_millis(10), Duration::from_millis(50)];

/// How often the host function checks the free.
const STEP: Duration = Duration::from_micros(100);

/// State shared by the freeing thread and the host function on the stream.
struct Watched {
    /// How long the host function runs while the free is under way.
    patience: Duration,
    has_begun: AtomicBool,
    has_returned: AtomicBool,
    /// The free was under way for that long and had not returned.
    is_waiting: AtomicBool,
}

/// The host function on the stream: it runs until the free has returned or is seen to wait. It makes no CUDA
/// call and does not unwind. The time before the free begins does not count, so only a delay within the free
/// itself can mislead.
extern "C" fn work(watched: *mut c_void) {
    // SAFETY: `watch_on` passed one reference count of the value to this function.
    let watched = unsafe { Arc::from_raw(watched.cast_const().cast::<Watched>()) };
    let mut begun = None;
    while !watched.has_returned.load(Ordering::SeqCst) {
        if watched.has_begun.load(Ordering::SeqCst)
            && begun.get_or_insert_with(Instant::now).elapsed() >= watched.patience
        {
            watched.is_waiting.store(true, Ordering::SeqCst);
            return;
        }
        thread::sleep(STEP);
    }
}

impl CudaDriver {
    /// See [`Driver::synchronize_beside_captures`].
    pub(super) fn synchronize_by_free(&self) -> DriverResult<bool> {
        if self.frees_wait() {
            let pinned = self.mem_host_alloc(PINNED_BYTES, HostFlags::default());
            match pinned.and_then(|pinned| self.free_pinned(pinned)) {
                Err(error) if error.is_capture_refusal() => return Ok(false),
                // No memory is left to allocate and free: the other way needs none.
                Err(error) if error.is_out_of_memory() => {}
                answer => return answer.map(|()| true),
            }
        }
        if self.sees_captures()? {
            return Ok(false);
        }
        match self.synchronize() {
            Err(error) if error.is_capture_refusal() => Ok(false),
            answer => answer.map(|()| true),
        }
    }

    /// Frees pinned memory that was just allocated here and that nothing uses.
    fn free_pinned(&self, pinned: HostPtr) -> DriverResult<()> {
        let _context = self.enter()?;
        // SAFETY: every caller has just allocated it.
        unsafe { self.functions().mem_free_host(pinned.as_mut_ptr().cast()) }
    }

    /// See [`Driver::mem_free_host`].
    ///
    /// # Safety
    /// As for that method.
    pub(super) unsafe fn free_host_after_work(&self, pinned: HostPtr) -> DriverResult<()> {
        if !self.frees_wait() && !self.synchronize_by_free()? {
            return Err(DriverError::new(DriverError::STREAM_CAPTURE_UNSUPPORTED, "cuMemFreeHost")
                .with_detail(
                    "cannot wait for the device while a graph is captured; free the memory after the capture",
                ));
        }
        self.free_pinned(pinned)
    }

    /// Returns whether freeing pinned memory waits for work on other streams. The first call tests this on
    /// the device. If the test itself fails, a later call repeats it.
    pub fn frees_wait(&self) -> bool {
        if let Some(seen) = self.frees_wait.get() {
            return *seen;
        }
        let seen = self.watch_a_free();
        tracing::debug!(target: "millpond::driver", ?seen, "whether a free waits for the device");
        seen.is_ok_and(|seen| *self.frees_wait.get_or_init(|| seen))
    }

    /// Frees pinned memory while its own stream is busy, and returns whether the free waited each time.
    fn watch_a_free(&self) -> DriverResult<bool> {
        let _captures = CaptureModeGuard::relaxed(self);
        let _context = self.enter()?;
        let functions = self.functions();
        let mut stream = 0;
        // SAFETY: `stream` takes the result.
        unsafe { functions.stream_create_with_priority(&raw mut stream, abi::CU_STREAM_NON_BLOCKING, 0) }?;
        let mut rounds = ROUNDS.into_iter().map(|patience| self.watch_on(stream, patience));
        let watched = rounds.find(|waited| *waited != Ok(true)).unwrap_or(Ok(true));
        // SAFETY: the stream was made above and no other code knows it. Its work still completes.
        unsafe { functions.stream_destroy(stream) }?;
        watched
    }

    fn watch_on(&self, stream: u64, patience: Duration) -> DriverResult<bool> {
        let pinned = self.mem_host_alloc(PINNED_BYTES, HostFlags::default())?;
        let flag = || AtomicBool::new(false);
        let (has_begun, has_returned, is_waiting) = (flag(), flag(), flag());
        let watched = Arc::new(Watched { patience, has_begun, has_returned, is_waiting });
        let count = Arc::into_raw(Arc::clone(&watched));
        // SAFETY: the stream is alive; `work` keeps to CUDA's rules and owns a count of its argument.
        let launched =
            unsafe { self.functions().launch_host_func(stream, work, count.cast_mut().cast::<c_void>()) };
        if launched.is_err() {
            // SAFETY: the work does not run, so the count is still ours.
            drop(unsafe { Arc::from_raw(count) });
        }
        watched.has_begun.store(true, Ordering::SeqCst);
        let freed = self.free_pinned(pinned);
        watched.has_returned.store(true, Ordering::SeqCst);
        launched.and(freed)?;
        // SAFETY: the stream is alive.
        unsafe { self.functions().stream_synchronize(stream) }?;
        Ok(watched.is_waiting.load(Ordering::SeqCst))
    }
}
