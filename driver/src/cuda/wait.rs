//! Waits for all work on the device without ending a capture.
//!
//! `cuCtxSynchronize` ends every capture in the context, seen or not. The end of pinned memory waits for all
//! work as well, that of destroyed streams included, and leaves captures alone: so it was measured
//! (docs/GPU.md). But CUDA promises only that it may wait. So it is used where it was seen to wait on this
//! very driver, once in the life of the process: work that ends when the free returns went on, three times.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millpond_core::driver::{CaptureModeGuard, Driver, DriverError, DriverResult, HostFlags, HostPtr};

use super::{CudaDriver, abi};

/// A whole page of the host.
const PINNED_BYTES: u64 = 4096;

/// How long the free must keep the thread in each round. A free that takes its time and waits for nothing
/// returns in one of them, and so does a thread that was held up once.
const ROUNDS: [Duration; 3] =
    [Duration::from_millis(2), Duration::from_millis(10), Duration::from_millis(50)];

/// How often the host's part of the work looks at the free.
const STEP: Duration = Duration::from_micros(100);

/// State that the freeing thread and the work of the stream share.
struct Watched {
    /// How long the work goes on while the free is under way.
    patience: Duration,
    has_begun: AtomicBool,
    has_returned: AtomicBool,
    /// The free was under way for as long as that, and had not returned.
    is_waiting: AtomicBool,
}

/// The work of a stream: it goes on until the free has returned, or shows that it waits. It makes no call of
/// CUDA, and does not unwind. The time until the free begins does not count, so that only a delay within the
/// free itself can deceive.
extern "C" fn work(watched: *mut c_void) {
    // SAFETY: `watch_on` gave a count of the value to this function.
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
                // There is nothing to free: the other way needs no memory.
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

    /// Frees pinned memory that was just allocated here, and that nothing uses.
    fn free_pinned(&self, pinned: HostPtr) -> DriverResult<()> {
        let _context = self.enter()?;
        // SAFETY: every caller has just allocated it.
        unsafe { self.functions().mem_free_host(pinned.as_mut_ptr().cast()) }
    }

    /// See [`Driver::mem_free_host`].
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn free_host_after_work(&self, pinned: HostPtr) -> DriverResult<()> {
        if !self.frees_wait() && !self.synchronize_by_free()? {
            return Err(DriverError::new(DriverError::STREAM_CAPTURE_UNSUPPORTED, "cuMemFreeHost")
                .with_detail("the device cannot be waited for while a graph is captured"));
        }
        self.free_pinned(pinned)
    }

    /// Whether the end of pinned memory waits for work on other streams; found out at the first call, or
    /// later where that failed.
    pub fn frees_wait(&self) -> bool {
        if let Some(seen) = self.frees_wait.get() {
            return *seen;
        }
        let seen = self.watch_a_free();
        tracing::debug!(target: "millpond::driver", ?seen, "whether a free waits for the device");
        seen.is_ok_and(|seen| *self.frees_wait.get_or_init(|| seen))
    }

    /// Frees pinned memory while a stream of its own is at work, and says whether the free waited each time.
    fn watch_a_free(&self) -> DriverResult<bool> {
        let _captures = CaptureModeGuard::relaxed(self);
        let _context = self.enter()?;
        let functions = self.functions();
        let mut stream = 0;
        // SAFETY: `stream` takes the result.
        unsafe { functions.stream_create_with_priority(&raw mut stream, abi::CU_STREAM_NON_BLOCKING, 0) }?;
        let mut rounds = ROUNDS.into_iter().map(|patience| self.watch_on(stream, patience));
        let watched = rounds.find(|waited| *waited != Ok(true)).unwrap_or(Ok(true));
        // SAFETY: the stream was made above and no other code knows it; its work goes on to its end.
        unsafe { functions.stream_destroy(stream) }?;
        watched
    }

    fn watch_on(&self, stream: u64, patience: Duration) -> DriverResult<bool> {
        let pinned = self.mem_host_alloc(PINNED_BYTES, HostFlags::default())?;
        let flag = || AtomicBool::new(false);
        let (has_begun, has_returned, is_waiting) = (flag(), flag(), flag());
        let watched = Arc::new(Watched { patience, has_begun, has_returned, is_waiting });
        let count = Arc::into_raw(Arc::clone(&watched));
        // SAFETY: the stream is alive; `work` keeps to CUDA's rules, and has a count of its argument.
        let launched =
            unsafe { self.functions().launch_host_func(stream, work, count.cast_mut().cast::<c_void>()) };
        if launched.is_err() {
            // SAFETY: the work does not run, so the count is still here.
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
