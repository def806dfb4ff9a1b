//! Waits for all work on the device without ending a capture.
//!
//! `cuCtxSynchronize` ends every capture in the context, seen or not. The end of pinned memory waits for all
//! work as well, that of destroyed streams included, and leaves captures alone: so it was measured
//! (docs/GPU.md). But CUDA promises only that it may wait. So it is used where it was seen to wait on this
//! very driver, once in the life of the process.

use std::ffi::c_void;
use std::ptr;
use std::thread;
use std::time::Duration;

use millpond_core::driver::{Driver, DriverError, DriverResult, Event, EventFlags, HostFlags, HostPtr};

use super::{CudaDriver, abi};

/// A whole page of the host.
const PINNED_BYTES: u64 = 4096;

/// The work that a free is seen to wait for; much longer than any free that waits for nothing.
const NAP: Duration = Duration::from_millis(5);

/// The host's part of that work.
extern "C" fn nap(_nothing: *mut c_void) {
    thread::sleep(NAP);
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

    /// Frees pinned memory while a stream of its own is at work, and says whether that was done afterwards.
    fn watch_a_free(&self) -> DriverResult<bool> {
        let _context = self.enter()?;
        let functions = self.functions();
        let pinned = self.mem_host_alloc(PINNED_BYTES, HostFlags::default())?;
        let mut stream = 0;
        // SAFETY: `stream` takes the result.
        let made =
            unsafe { functions.stream_create_with_priority(&raw mut stream, abi::CU_STREAM_NON_BLOCKING, 0) };
        if let Err(error) = made {
            self.free_pinned(pinned)?;
            return Err(error);
        }
        let watched = self.watch_on(stream, pinned);
        // SAFETY: the stream was made above and no other code knows it; its work goes on to its end.
        unsafe { functions.stream_destroy(stream) }?;
        watched
    }

    fn watch_on(&self, stream: u64, pinned: HostPtr) -> DriverResult<bool> {
        let event = self.event_create(EventFlags::default());
        let begun = event.as_ref().map_err(DriverError::clone).and_then(|event| {
            // SAFETY: the stream is alive; the function takes no argument, makes no call of CUDA, and does
            // not unwind.
            unsafe { self.functions().launch_host_func(stream, nap, ptr::null_mut()) }?;
            // SAFETY: stream and event are alive.
            unsafe { self.functions().event_record(event.0, stream) }
        });
        let freed = self.free_pinned(pinned);
        let Ok(event) = event else { return begun.map(|()| false) };
        let is_done = begun.and(freed).and_then(|()| self.event_query(event));
        self.end_event(event)?;
        is_done
    }

    fn end_event(&self, event: Event) -> DriverResult<()> {
        // SAFETY: every caller has made it, and nothing waits for it any more.
        unsafe { self.event_destroy(event) }
    }
}
