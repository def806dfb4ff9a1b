//! Operations for tests, in addition to the driver's calls.

use std::sync::atomic::Ordering;

use millpond_core::driver::{CaptureMode, DriverResult};
use millpond_core::{DevicePtr, StreamRef};

use super::device::{Observer, SimDevice};
use super::model::access::Access;
use super::model::fault::{FaultPlan, Faults};
use super::model::violation::Violation;
use crate::CallKind;

/// Operations for the test around a device. Unlike the calls of [`Driver`](millpond_core::Driver), these take
/// no virtual time, do not count as calls, and never fail.
impl SimDevice {
    // --- The program ---

    /// Calls `observer` with the name of each driver call, on the calling thread, before the call is made.
    /// `None` removes the observer. The observer may make calls itself, which it then observes too.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU32, Ordering};
    /// use millpond_core::Driver;
    /// use millpond_driver::sim::{SimConfig, SimDevice};
    ///
    /// let (device, calls) = (SimDevice::new(SimConfig::h200()), Arc::new(AtomicU32::new(0)));
    /// let count = Arc::clone(&calls);
    /// device.observe_calls(Some(Arc::new(move |_name| _ = count.fetch_add(1, Ordering::Relaxed))));
    /// device.synchronize()?;
    /// assert_eq!(calls.load(Ordering::Relaxed), 1);
    /// # Ok::<(), millpond_core::DriverError>(())
    /// ```
    pub fn observe_calls(&self, observer: Option<Observer>) {
        self.shared.is_observed.store(observer.is_some(), Ordering::Relaxed);
        let before = std::mem::replace(&mut *self.shared.observer.write(), observer);
        drop(before); // after the lock is released
    }

    // --- The resource under test ---

    /// Reports that the resource under test handed out `bytes` bytes at `ptr` for use on `stream`. Call it
    /// after `allocate` returns.
    ///
    /// The device checks three things. The block lies in one allocation of this device, at a multiple of 256
    /// bytes. No other lent block shares its addresses or the memory behind them. And work submitted to
    /// `stream` from now on happens after everything that earlier owners of the memory may have submitted
    /// before they returned it. The file `order` defines the happens-before order; the file `oracle` defines
    /// the recorded history.
    pub fn lend(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        self.lock().lend(ptr, bytes, stream);
    }

    /// Reports that the resource under test is about to take the block back in the order of `stream`. Call it
    /// before `deallocate`.
    ///
    /// The next owner must come after the present end of `stream`. It must also come after the owner's uses
    /// of the block that `stream` does not happen after.
    pub fn give_back(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        self.lock().give_back(ptr, bytes, stream);
    }

    /// Submits a simulated kernel that makes all these accesses when it runs.
    ///
    /// Checked at submission: each range lies in accessible memory, and every earlier owner's use of it is
    /// ordered before this one. Checked at run time: the tags of [`Access::check`]. In managed memory,
    /// kernels and copies see the bytes of [`Access::write`], but the host does not.
    pub fn launch(&self, stream: StreamRef, accesses: &[Access]) {
        self.launch_lasting(stream, accesses, None);
    }

    /// Does the same as [`launch`](Self::launch) with a kernel that takes `duration_ns` nanoseconds of
    /// virtual time.
    ///
    /// A stream holds 1024 unfinished pieces of work. A further launch waits, on the virtual clock, until the
    /// first one is done.
    pub fn launch_for(&self, stream: StreamRef, accesses: &[Access], duration_ns: u64) {
        self.launch_lasting(stream, accesses, Some(duration_ns));
    }

    fn launch_lasting(&self, stream: StreamRef, accesses: &[Access], duration_ns: Option<u64>) {
        let foreign = |access: &&Access| self.is_foreign(&[access.ptr]);
        if self.shared.machine.is_some() && accesses.iter().any(|access| foreign(&access)) {
            accesses.iter().filter(foreign).for_each(|access| self.launch_foreign(stream, access));
            let own: Vec<Access> = accesses.iter().filter(|access| !foreign(access)).copied().collect();
            return self.lock().launch(stream, &own, duration_ns);
        }
        self.lock().launch(stream, accesses, duration_ns);
    }

    // --- Findings ---

    /// Returns the violations so far, up to the first thousand.
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().effects.log.all().to_vec()
    }

    /// Removes and returns the violations so far.
    pub fn take_violations(&self) -> Vec<Violation> {
        self.lock().effects.log.take()
    }

    /// Returns a hash of every driver call so far, including its addresses, handles and yes-or-no answers.
    /// Equal programs have equal hashes.
    pub fn trace_hash(&self) -> u64 {
        self.lock().trace()
    }

    // --- Live objects ---

    /// Returns the number of objects that were not given back: allocations of any kind (pooled ones while
    /// they are handed out), pinned and registered memory, reservations, physical memory, open IPC handles,
    /// and created pools.
    pub fn live_allocations(&self) -> usize {
        let state = self.lock();
        state.space.live_mappings() + state.vmm.live() + state.pools.created()
    }

    /// Returns the number of streams that were created and not destroyed.
    pub fn live_streams(&self) -> usize {
        self.lock().names.live_streams()
    }

    /// Returns the number of events that were created and not destroyed.
    pub fn live_events(&self) -> usize {
        self.lock().names.live_events()
    }

    /// Returns the number of lent blocks.
    pub fn lent_blocks(&self) -> usize {
        self.lock().oracle.lent_blocks()
    }

    /// Returns the bytes that were allocated and not freed: plain, managed, physical, pooled and host memory.
    /// Each allocation counts with its size rounded up to a multiple of 512.
    pub fn live_bytes(&self) -> u64 {
        self.lock().space.live()
    }

    /// Returns the device memory in bytes that these allocations take, by which `mem_get_info` decreases:
    /// pages of 2 MiB for plain memory, and none for managed memory.
    pub fn used_bytes(&self) -> u64 {
        self.lock().space.used()
    }

    /// Returns the peak of [`used_bytes`](Self::used_bytes).
    pub fn peak_bytes(&self) -> u64 {
        self.lock().space.peak()
    }

    /// Returns the last prefetched range, as start and size in bytes, and whether it went to the host.
    pub fn last_prefetch(&self) -> Option<(DevicePtr, u64, bool)> {
        self.lock().last_prefetch
    }

    /// Returns the bytes of host memory that hold the contents of device memory.
    pub fn committed_bytes(&self) -> u64 {
        self.lock().effects.contents.committed_bytes()
    }

    // --- Time, faults, capture ---

    /// Returns the virtual clock in nanoseconds: the costs of driver calls so far, and the time spent waiting
    /// in them.
    pub fn virtual_time_ns(&self) -> u64 {
        self.lock().work.now_ns()
    }

    /// Advances virtual time outside of the driver.
    pub fn advance(&self, ns: u64) {
        self.lock().let_pass(ns);
    }

    /// Returns the virtual nanoseconds that the driver calls of each kind have cost, without waiting, in the
    /// order of [`CallKind::ALL`](crate::CallKind::ALL).
    pub fn call_costs(&self) -> Vec<(CallKind, u64)> {
        self.lock().call_costs()
    }

    /// Returns the number of driver calls so far that could have failed.
    pub fn driver_calls(&self) -> u64 {
        self.lock().calls()
    }

    /// Replaces the fault plan, counts calls from now on, and restores a lost context.
    pub fn set_faults(&self, faults: FaultPlan) {
        self.lock().faults = Faults::new(faults);
    }

    /// Returns how many calls of a kind the fault plan has failed since it was set.
    pub fn failed_calls(&self, kind: CallKind) -> u64 {
        self.lock().faults.failed(kind)
    }

    /// Returns whether a call failed with a sticky code, so that every later call fails too.
    pub fn is_lost(&self) -> bool {
        self.lock().faults.is_lost()
    }

    /// Begins to capture a graph from the calling thread (`cuStreamBeginCapture`).
    ///
    /// Until [`end_capture`](Self::end_capture), the device refuses the calls that CUDA refuses during such a
    /// capture. They end the capture if they do so in CUDA: see docs/lab/gpu.md. Work submitted to the stream
    /// takes its place in the order as if it ran; no graph is kept. After the capture, captured waits order
    /// nothing, and no work outside the capture has to come after captured work.
    ///
    /// ```
    /// use millpond_core::Driver;
    /// use millpond_core::driver::{CaptureMode, CaptureModeGuard, StreamFlags};
    /// use millpond_driver::sim::{SimConfig, SimDevice};
    ///
    /// let device = SimDevice::new(SimConfig::h200());
    /// let stream = device.stream_create(StreamFlags::NON_BLOCKING)?;
    /// device.begin_capture(stream, CaptureMode::Global)?;
    /// {
    ///     let _guard = CaptureModeGuard::relaxed(&*device);
    ///     device.mem_alloc(1 << 20)?;
    /// }
    /// device.end_capture(stream)?;
    ///
    /// device.begin_capture(stream, CaptureMode::Global)?;
    /// assert!(device.mem_alloc(1 << 20).is_err()); // refused, and the capture is lost
    /// assert!(device.end_capture(stream).is_err());
    /// # Ok::<(), millpond_core::DriverError>(())
    /// ```
    ///
    /// # Errors
    /// [`ILLEGAL_STATE`](millpond_core::DriverError::ILLEGAL_STATE) if the stream already captures,
    /// [`STREAM_CAPTURE_UNSUPPORTED`](millpond_core::DriverError::STREAM_CAPTURE_UNSUPPORTED) for the legacy
    /// default stream.
    pub fn begin_capture(&self, stream: StreamRef, mode: CaptureMode) -> DriverResult<()> {
        let mut state = self.lock();
        state.begin_capture(stream, mode).map_err(|refusal| refusal.named("cuStreamBeginCapture"))
    }

    /// Ends the capture that began on the stream (`cuStreamEndCapture`).
    ///
    /// # Errors
    /// [`STREAM_CAPTURE_INVALIDATED`](millpond_core::DriverError::STREAM_CAPTURE_INVALIDATED) if a call has
    /// already ended the capture; the text names the call. CUDA's codes if the stream does not capture,
    /// another thread began the capture, or one of its streams was not joined.
    pub fn end_capture(&self, stream: StreamRef) -> DriverResult<()> {
        self.lock().end_capture(stream).map_err(|refusal| refusal.named("cuStreamEndCapture"))
    }
}
