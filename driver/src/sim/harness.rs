//! Operations for tests, in addition to the driver's calls.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millpond_core::driver::{CaptureMode, DriverResult};
use millpond_core::{DevicePtr, StreamRef};

use super::call::after_reset;
use super::device::{Observer, SimDevice};
use super::model::access::Access;
use super::model::fault::{FaultPlan, Faults};
use super::model::violation::Violation;
use crate::CallKind;

/// Operations for tests. Unlike the calls of [`Driver`](millpond_core::Driver), they take no virtual time, do
/// not count as calls, and never fail.
impl SimDevice {
    // --- The program ---

    /// Installs an observer. The device calls the observer with the name of each driver call, on the calling
    /// thread, before the device makes the call. `None` removes the observer. If the observer makes driver
    /// calls itself, the device calls the observer for these calls, too.
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

    /// Lends a block: tells the device that the resource under test allocated `bytes` bytes at `ptr` for use
    /// on `stream`. Call this method after `allocate` returns.
    ///
    /// The device checks three conditions:
    /// - The block lies in one allocation of this device, at a multiple of 256 bytes.
    /// - No other lent block shares an address, or physical memory, with this block.
    /// - Later work on `stream` runs after all work that earlier owners of the memory may have submitted
    ///   before they freed it.
    ///
    /// The source file `model/order` defines when one operation counts as ordered before another.
    /// `model/oracle` defines the history that the device records.
    pub fn lend(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        self.lock().lend(ptr, bytes, stream);
    }

    /// Ends the loan of a block: tells the device that the resource under test is about to free the block in
    /// the order of `stream`. Call this method before `deallocate`.
    ///
    /// The work of the next owner must be ordered after all work that was submitted to `stream` so far. The
    /// present owner may have used the block on another stream, without ordering `stream` after that use. In
    /// this case, the next owner's work must be ordered after that use, too.
    pub fn give_back(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        self.lock().give_back(ptr, bytes, stream);
    }

    /// Submits a simulated kernel. The kernel makes all these accesses when it runs.
    ///
    /// When the kernel is submitted, the device checks each range. The range must lie in accessible memory,
    /// and every use by an earlier owner must be ordered before the kernel. When the kernel runs, the device
    /// checks the tags of [`Access::check`]. In managed memory, kernels and copies see the bytes of
    /// [`Access::write`], but the host does not.
    pub fn launch(&self, stream: StreamRef, accesses: &[Access]) {
        self.launch_lasting(stream, accesses, None);
    }

    /// Submits a simulated kernel, like [`launch`](Self::launch). The kernel takes `duration_ns` nanoseconds
    /// of virtual time.
    ///
    /// A stream can hold 1024 unfinished operations. A further launch waits, on the virtual clock, until the
    /// oldest operation is done.
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

    /// Returns whether the work of the stream and the work of the legacy default stream are ordered by their
    /// submission. For the legacy default stream itself and for destroyed streams, returns `false`.
    ///
    /// ```
    /// use millpond_core::{Driver, StreamRef};
    /// use millpond_core::driver::StreamFlags;
    /// use millpond_driver::sim::{SimConfig, SimDevice};
    ///
    /// let device = SimDevice::new(SimConfig::h200());
    /// assert!(device.is_blocking(device.stream_create(StreamFlags::default())?));
    /// assert!(!device.is_blocking(device.stream_create(StreamFlags::NON_BLOCKING)?));
    /// assert!(device.is_blocking(StreamRef::PER_THREAD) && !device.is_blocking(StreamRef::LEGACY));
    /// # Ok::<(), millpond_core::DriverError>(())
    /// ```
    pub fn is_blocking(&self, stream: StreamRef) -> bool {
        self.lock().is_blocking(stream)
    }

    /// Returns a function that waits for the work which the stream has now. It waits like a function of the
    /// host in stream order (`cuLaunchHostFunc`). After a reset of the context, or if the device is lost, it
    /// returns at once.
    ///
    /// ```
    /// use millpond_core::{Driver, StreamRef};
    /// use millpond_driver::sim::{SimConfig, SimDevice};
    ///
    /// let device = SimDevice::new(SimConfig::h200());
    /// device.launch_for(StreamRef::LEGACY, &[], 1_000_000_000);
    /// let wait = device.wait_of(StreamRef::LEGACY)?;
    /// assert!(!device.stream_query(StreamRef::LEGACY)?);
    /// wait();
    /// assert!(device.stream_query(StreamRef::LEGACY)?);
    /// # Ok::<(), millpond_core::DriverError>(())
    /// ```
    ///
    /// # Errors
    /// [`INVALID_HANDLE`](millpond_core::DriverError::INVALID_HANDLE) if the stream does not exist, and
    /// [`CONTEXT_IS_DESTROYED`](millpond_core::DriverError::CONTEXT_IS_DESTROYED) after a reset of the
    /// context.
    pub fn wait_of(self: &Arc<Self>, stream: StreamRef) -> DriverResult<impl FnOnce() + Send + use<>> {
        const CALL: &str = "cuLaunchHostFunc";
        let mut state = self.lock();
        if state.generation != self.generation {
            return Err(after_reset(CALL));
        }
        let point = state.point(stream).map_err(|refusal| refusal.named(CALL))?;
        drop(state);
        let device = Arc::clone(self);
        Ok(move || {
            let mut state = device.lock();
            if state.generation == device.generation {
                state.wait_for_point(&point);
            }
        })
    }

    // --- Findings ---

    /// Returns the violations so far. If there are more than a thousand, only the first thousand are
    /// returned.
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().effects.log.all().to_vec()
    }

    /// Returns the violations so far, and removes them from the device.
    pub fn take_violations(&self) -> Vec<Violation> {
        self.lock().effects.log.take()
    }

    /// Returns a hash of all driver calls so far, including their addresses, handles and yes-or-no answers.
    /// If two programs make the same calls and get the same answers, the hashes are equal.
    pub fn trace_hash(&self) -> u64 {
        self.lock().trace()
    }

    // --- Live objects ---

    /// Returns the number of objects that the program has created and not freed yet. These objects are
    /// allocations, pinned and registered memory, reserved addresses, physical memory, open IPC handles, and
    /// pools.
    pub fn live_allocations(&self) -> usize {
        let state = self.lock();
        state.space.live_mappings() + state.vmm.live() + state.pools.created()
    }

    /// Returns the number of streams that were created and not destroyed yet.
    pub fn live_streams(&self) -> usize {
        self.lock().names.live_streams()
    }

    /// Returns the number of events that were created and not destroyed yet.
    pub fn live_events(&self) -> usize {
        self.lock().names.live_events()
    }

    /// Returns the number of blocks that are [lent](Self::lend).
    pub fn lent_blocks(&self) -> usize {
        self.lock().oracle.lent_blocks()
    }

    /// Returns the number of bytes of plain, managed, physical, pooled and host memory that are allocated
    /// now. The size of each allocation is rounded up to a multiple of 512.
    pub fn live_bytes(&self) -> u64 {
        self.lock().space.live()
    }

    /// Returns the number of bytes of device memory in use. The free memory in `mem_get_info` is smaller by
    /// this number. Plain memory counts by pages of 2 MiB, and managed memory does not count.
    pub fn used_bytes(&self) -> u64 {
        self.lock().space.used()
    }

    /// Returns the highest [`used_bytes`](Self::used_bytes) so far.
    pub fn peak_bytes(&self) -> u64 {
        self.lock().space.peak()
    }

    /// Returns the last range that was prefetched, as its start and its size in bytes. The third value is
    /// `true` if the range went to the host, and `false` if it went to the device.
    pub fn last_prefetch(&self) -> Option<(DevicePtr, u64, bool)> {
        self.lock().last_prefetch
    }

    /// Returns the number of bytes of real host memory that hold the contents of the simulated device memory.
    pub fn committed_bytes(&self) -> u64 {
        self.lock().effects.contents.committed_bytes()
    }

    // --- Time, faults, capture ---

    /// Returns the time of the virtual clock in nanoseconds. This is the sum of the costs of all driver calls
    /// so far, and of the time that calls have spent waiting.
    pub fn virtual_time_ns(&self) -> u64 {
        self.lock().work.now_ns()
    }

    /// Advances the virtual clock by `ns` nanoseconds, without a driver call.
    pub fn advance(&self, ns: u64) {
        self.lock().let_pass(ns);
    }

    /// Returns the virtual nanoseconds that the driver calls of each kind have cost, in the order of
    /// [`CallKind::ALL`](crate::CallKind::ALL). The time that calls have spent waiting is not included.
    pub fn call_costs(&self) -> Vec<(CallKind, u64)> {
        self.lock().call_costs()
    }

    /// Returns the number of driver calls so far. Calls that can never fail are not included.
    pub fn driver_calls(&self) -> u64 {
        self.lock().calls()
    }

    /// Replaces the plan of failing calls, and restarts the count of calls at 0. If the context was lost,
    /// restores the context.
    pub fn set_faults(&self, faults: FaultPlan) {
        self.lock().faults = Faults::new(faults);
    }

    /// Returns how many calls of this kind have failed since the fault plan was set.
    pub fn failed_calls(&self, kind: CallKind) -> u64 {
        self.lock().faults.failed(kind)
    }

    /// Returns whether a call has failed with a sticky error code. After such a failure, every later call
    /// fails, too.
    pub fn is_lost(&self) -> bool {
        self.lock().faults.is_lost()
    }

    /// Begins a capture of a graph, on the calling thread (`cuStreamBeginCapture`).
    ///
    /// Until [`end_capture`](Self::end_capture), the device refuses the calls that CUDA refuses during such a
    /// capture. If such a call ends the capture in CUDA, the call also ends the capture on the simulated
    /// device. The document docs/lab/gpu.md lists these calls.
    ///
    /// The device does not build a graph. During the capture, the device orders the work on the stream as if
    /// the work ran. After the capture, the captured waits have no effect on the order of work. Work outside
    /// the capture need not be ordered after captured work.
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
    /// [`ILLEGAL_STATE`](millpond_core::DriverError::ILLEGAL_STATE) if the stream is already capturing.
    /// [`STREAM_CAPTURE_UNSUPPORTED`](millpond_core::DriverError::STREAM_CAPTURE_UNSUPPORTED) if the stream
    /// is the legacy default stream.
    pub fn begin_capture(&self, stream: StreamRef, mode: CaptureMode) -> DriverResult<()> {
        let mut state = self.lock();
        state.begin_capture(stream, mode).map_err(|refusal| refusal.named("cuStreamBeginCapture"))
    }

    /// Returns the names of the driver calls that put work into the graph that the stream captures, in the
    /// order of the calls. Events are not work. If the stream captures no graph, returns nothing.
    ///
    /// ```
    /// use millpond_core::Driver;
    /// use millpond_core::driver::{CaptureMode, StreamFlags};
    /// use millpond_driver::sim::{SimConfig, SimDevice};
    ///
    /// let device = SimDevice::new(SimConfig::h200());
    /// let (ptr, stream) = (device.mem_alloc(256)?, device.stream_create(StreamFlags::NON_BLOCKING)?);
    /// device.begin_capture(stream, CaptureMode::Global)?;
    /// // SAFETY: the memory has 256 bytes, and nothing else uses it.
    /// unsafe { device.memset_d8_async(ptr, 0, 256, stream)? };
    /// assert_eq!(device.captured_work(stream), ["cuMemsetD8Async"]);
    /// device.end_capture(stream)?;
    /// # Ok::<(), millpond_core::DriverError>(())
    /// ```
    pub fn captured_work(&self, stream: StreamRef) -> Vec<String> {
        self.lock().captured_work(stream)
    }

    /// Ends the capture that began on the stream (`cuStreamEndCapture`).
    ///
    /// # Errors
    /// [`STREAM_CAPTURE_INVALIDATED`](millpond_core::DriverError::STREAM_CAPTURE_INVALIDATED) if another call
    /// has already ended the capture. The message names that call. Also CUDA's error codes in three cases: if
    /// the stream is not capturing, if another thread began the capture, or if a forked stream was not
    /// joined.
    pub fn end_capture(&self, stream: StreamRef) -> DriverResult<()> {
        self.lock().end_capture(stream).map_err(|refusal| refusal.named("cuStreamEndCapture"))
    }
}
