//! Operations for tests, in addition to the driver's calls.

use std::sync::atomic::Ordering;

use millpond_core::driver::{CaptureMode, DriverResult};
use millpond_core::{DevicePtr, StreamRef};

use super::device::{Observer, SimDevice};
use super::model::access::Access;
use super::model::fault::{FaultPlan, Faults};
use super::model::violation::Violation;
use crate::CallKind;

/// Operations for tests. Unlike the calls of [`Driver`](millpond_core::Driver), they take no virtual time, do
/// not count as calls, and never fail.
impl SimDevice {
    // --- The program ---

    /// Calls `observer` with the name of each driver call, on the calling thread, before the call is made.
    /// `None` removes the observer. If the observer makes driver calls itself, it is called for these calls,
    /// too.
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

    /// Lends a block: reports that the resource under test handed out `bytes` bytes at `ptr` for use on
    /// `stream`. Call it after `allocate` returns.
    ///
    /// The device checks three things:
    /// - The block lies in one allocation of this device, at a multiple of 256 bytes.
    /// - No other lent block shares its addresses or the memory behind them.
    /// - Later work on `stream` happens after all work that earlier owners of the memory may have submitted
    ///   before they freed it.
    ///
    /// The source file `model/order` defines which work happens before which. `model/oracle` defines the
    /// history that the device records.
    pub fn lend(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        self.lock().lend(ptr, bytes, stream);
    }

    /// Ends the loan of a block: reports that the resource under test is about to take the block back, in the
    /// order of `stream`. Call it before `deallocate`.
    ///
    /// The work of the next owner must be ordered after all work that was submitted to `stream` so far. The
    /// present owner may have used the block on another stream, without ordering `stream` after that use.
    /// Then the next owner's work must be ordered after that use, too.
    pub fn give_back(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        self.lock().give_back(ptr, bytes, stream);
    }

    /// Submits a simulated kernel that makes all these accesses when it runs.
    ///
    /// At submission, the device checks each range: it must lie in accessible memory, and every use by an
    /// earlier owner must be ordered before this use. When the kernel runs, the device checks the tags of
    /// [`Access::check`]. In managed memory, kernels and copies see the bytes of [`Access::write`], but the
    /// host does not.
    pub fn launch(&self, stream: StreamRef, accesses: &[Access]) {
        self.launch_lasting(stream, accesses, None);
    }

    /// Does the same as [`launch`](Self::launch), with a kernel that takes `duration_ns` nanoseconds of
    /// virtual time.
    ///
    /// A stream can hold 1024 unfinished pieces of work. A further launch waits, on the virtual clock, until
    /// the oldest one is done.
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

    /// Returns the violations so far; only the first thousand if there are more.
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().effects.log.all().to_vec()
    }

    /// Removes and returns the violations so far.
    pub fn take_violations(&self) -> Vec<Violation> {
        self.lock().effects.log.take()
    }

    /// Returns a hash of all driver calls so far, including their addresses, handles and yes-or-no answers.
    /// If two programs make the same calls, their hashes are equal.
    pub fn trace_hash(&self) -> u64 {
        self.lock().trace()
    }

    // --- Live objects ---

    /// Returns the number of objects that the program has not freed yet. These are allocations, pinned and
    /// registered memory, reserved addresses, physical memory, open IPC handles, and created pools.
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

    /// Returns the number of blocks that are [lent](Self::lend).
    pub fn lent_blocks(&self) -> usize {
        self.lock().oracle.lent_blocks()
    }

    /// Returns the bytes of plain, managed, physical, pooled and host memory that were allocated and not
    /// freed. Each allocation counts with its size rounded up to a multiple of 512.
    pub fn live_bytes(&self) -> u64 {
        self.lock().space.live()
    }

    /// Returns the bytes of device memory that these allocations use. The free memory in `mem_get_info` is
    /// smaller by this number. Plain memory counts as pages of 2 MiB, and managed memory does not count.
    pub fn used_bytes(&self) -> u64 {
        self.lock().space.used()
    }

    /// Returns the highest [`used_bytes`](Self::used_bytes) so far.
    pub fn peak_bytes(&self) -> u64 {
        self.lock().space.peak()
    }

    /// Returns the start and the size in bytes of the last range that was prefetched, and whether it went to
    /// the host.
    pub fn last_prefetch(&self) -> Option<(DevicePtr, u64, bool)> {
        self.lock().last_prefetch
    }

    /// Returns how many bytes of real host memory hold the contents of the simulated device memory.
    pub fn committed_bytes(&self) -> u64 {
        self.lock().effects.contents.committed_bytes()
    }

    // --- Time, faults, capture ---

    /// Returns the virtual clock in nanoseconds. It counts the costs of all driver calls so far, and the time
    /// that they have spent waiting.
    pub fn virtual_time_ns(&self) -> u64 {
        self.lock().work.now_ns()
    }

    /// Advances the virtual clock by `ns` nanoseconds, without a driver call.
    pub fn advance(&self, ns: u64) {
        self.lock().let_pass(ns);
    }

    /// Returns the virtual nanoseconds that the driver calls of each kind have cost, without the time spent
    /// waiting, in the order of [`CallKind::ALL`](crate::CallKind::ALL).
    pub fn call_costs(&self) -> Vec<(CallKind, u64)> {
        self.lock().call_costs()
    }

    /// Returns the number of driver calls so far, without the calls that can never fail.
    pub fn driver_calls(&self) -> u64 {
        self.lock().calls()
    }

    /// Replaces the fault plan, and starts to count calls from 0. If the context was lost, restores it.
    pub fn set_faults(&self, faults: FaultPlan) {
        self.lock().faults = Faults::new(faults);
    }

    /// Returns how many calls of this kind have failed since the fault plan was set.
    pub fn failed_calls(&self, kind: CallKind) -> u64 {
        self.lock().faults.failed(kind)
    }

    /// Returns whether a call has failed with a sticky code. Every later call then fails, too.
    pub fn is_lost(&self) -> bool {
        self.lock().faults.is_lost()
    }

    /// Begins a capture of a graph, on the calling thread (`cuStreamBeginCapture`).
    ///
    /// Until [`end_capture`](Self::end_capture), the device refuses the calls that CUDA refuses during such a
    /// capture. If such a call ends the capture in CUDA, it also ends it here: see docs/lab/gpu.md.
    ///
    /// The device keeps no graph. During the capture, it orders the work that is submitted to the stream as
    /// if that work ran. After the capture, captured waits order nothing, and no work outside the capture
    /// needs to be ordered after captured work.
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
    /// [`ILLEGAL_STATE`](millpond_core::DriverError::ILLEGAL_STATE) if the stream already captures.
    /// [`STREAM_CAPTURE_UNSUPPORTED`](millpond_core::DriverError::STREAM_CAPTURE_UNSUPPORTED) if it is the
    /// legacy default stream.
    pub fn begin_capture(&self, stream: StreamRef, mode: CaptureMode) -> DriverResult<()> {
        let mut state = self.lock();
        state.begin_capture(stream, mode).map_err(|refusal| refusal.named("cuStreamBeginCapture"))
    }

    /// Ends the capture that began on the stream (`cuStreamEndCapture`).
    ///
    /// # Errors
    /// [`STREAM_CAPTURE_INVALIDATED`](millpond_core::DriverError::STREAM_CAPTURE_INVALIDATED) if a call has
    /// already ended the capture. The message names the call. Also CUDA's error codes if the stream does not
    /// capture, if another thread began the capture, or if a forked stream was not joined.
    pub fn end_capture(&self, stream: StreamRef) -> DriverResult<()> {
        self.lock().end_capture(stream).map_err(|refusal| refusal.named("cuStreamEndCapture"))
    }
}
