//! Operations for tests, beside the driver's calls.

use std::sync::atomic::Ordering;

use millpond_core::driver::{CaptureMode, DriverResult};
use millpond_core::{DevicePtr, StreamRef};

use super::device::{Observer, SimDevice};
use super::model::access::Access;
use super::model::fault::{FaultPlan, Faults};
use super::model::violation::Violation;
use crate::CallKind;

/// Operations for the test around a device. Unlike the calls of [`Driver`](millpond_core::Driver), these cost
/// no virtual time, are not counted as calls and never fail.
impl SimDevice {
    // --- The program ---

    /// Calls `observer` with the name of each driver call before it is made, on the thread that makes it;
    /// `None` ends that. The observer may make calls of its own, of which it hears as well.
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
        drop(before); // without the lock
    }

    // --- The resource under test ---

    /// The resource under test handed out `bytes` bytes at `ptr`, for use on `stream`. Call it after
    /// `allocate` returned.
    ///
    /// Checked: the block lies in one allocation of this device, at a multiple of 256 bytes; no other lent
    /// block shares its addresses or the memory behind them; and work submitted to `stream` from now on
    /// happens after everything that earlier owners of the memory may have submitted before they gave it
    /// back. The file `order` defines what happens before what, `oracle` what is remembered.
    pub fn lend(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        self.lock().lend(ptr, bytes, stream);
    }

    /// The resource under test is about to take the block back in the order of `stream`. Call it before
    /// `deallocate`.
    ///
    /// The next owner must come after `stream`'s present end, and after those uses of the block that `stream`
    /// does not happen after, if its owner left any.
    pub fn give_back(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        self.lock().give_back(ptr, bytes, stream);
    }

    /// Submits a simulated kernel that does all these accesses when it runs.
    ///
    /// Checked when it is submitted: each range lies in accessible memory, and every earlier owner's use of
    /// it is ordered before this one. Checked when it runs: the tags of [`Access::check`]. In managed memory,
    /// kernels and copies see the bytes of [`Access::write`], and the host does not.
    pub fn launch(&self, stream: StreamRef, accesses: &[Access]) {
        self.launch_lasting(stream, accesses, None);
    }

    /// Does the same as [`launch`](Self::launch), with a kernel that runs for `duration_ns` nanoseconds of
    /// virtual time.
    ///
    /// A stream has room for 1024 unfinished pieces of work: a further launch waits, on the virtual clock,
    /// until the stream's first one is done.
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

    // --- What was found ---

    /// The violations so far; the first thousand.
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().effects.log.all().to_vec()
    }

    /// The violations so far, which are removed.
    pub fn take_violations(&self) -> Vec<Violation> {
        self.lock().effects.log.take()
    }

    /// A hash of every driver call so far, with the addresses, handles and yes-or-no answers given: equal
    /// for equal programs.
    pub fn trace_hash(&self) -> u64 {
        self.lock().trace()
    }

    // --- What is there ---

    /// The number of allocations of any kind (pooled ones while they are handed out), of pinned and
    /// registered memory, reservations, physical memory, opened IPC handles and created pools that were not
    /// given back.
    pub fn live_allocations(&self) -> usize {
        let state = self.lock();
        state.space.live_mappings() + state.vmm.live() + state.pools.created()
    }

    /// The number of streams that were created and not destroyed.
    pub fn live_streams(&self) -> usize {
        self.lock().names.live_streams()
    }

    /// The number of events that were created and not destroyed.
    pub fn live_events(&self) -> usize {
        self.lock().names.live_events()
    }

    /// The number of lent blocks.
    pub fn lent_blocks(&self) -> usize {
        self.lock().oracle.lent_blocks()
    }

    /// The bytes that were allocated and not freed: plain, managed and physical memory, the memory
    /// of pools, and memory of the host. Each allocation counts with its size rounded up to 512.
    pub fn live_bytes(&self) -> u64 {
        self.lock().space.live()
    }

    /// The device memory in bytes that these take, by which `mem_get_info` decreases: pages of 2 MiB for
    /// plain memory, and none for managed memory.
    pub fn used_bytes(&self) -> u64 {
        self.lock().space.used()
    }

    /// The peak of [`used_bytes`](Self::used_bytes).
    pub fn peak_bytes(&self) -> u64 {
        self.lock().space.peak()
    }

    /// The start and the size in bytes of the range that was prefetched last, and whether it went to the
    /// host.
    pub fn last_prefetch(&self) -> Option<(DevicePtr, u64, bool)> {
        self.lock().last_prefetch
    }

    /// The host memory in bytes behind device memory.
    pub fn committed_bytes(&self) -> u64 {
        self.lock().effects.contents.committed_bytes()
    }

    // --- Time, faults, capture ---

    /// The virtual clock in nanoseconds: the costs of driver calls so far, and the time spent waiting in
    /// them.
    pub fn virtual_time_ns(&self) -> u64 {
        self.lock().work.now_ns()
    }

    /// Lets virtual time pass outside of the driver.
    pub fn advance(&self, ns: u64) {
        self.lock().let_pass(ns);
    }

    /// The virtual nanoseconds that the driver calls of each kind have cost, without waiting, in the order of
    /// [`CallKind::ALL`](crate::CallKind::ALL).
    pub fn call_costs(&self) -> Vec<(CallKind, u64)> {
        self.lock().call_costs()
    }

    /// The number of driver calls that can fail.
    pub fn driver_calls(&self) -> u64 {
        self.lock().calls()
    }

    /// Replaces the fault plan. Its calls count from now, and a lost context is restored.
    pub fn set_faults(&self, faults: FaultPlan) {
        self.lock().faults = Faults::new(faults);
    }

    /// The calls of a kind that the fault plan made fail since it was set.
    pub fn failed_calls(&self, kind: CallKind) -> u64 {
        self.lock().faults.failed(kind)
    }

    /// Whether a call failed with a sticky code, so that every later one fails.
    pub fn is_lost(&self) -> bool {
        self.lock().faults.is_lost()
    }

    /// Begins to capture a graph, by the calling thread (`cuStreamBeginCapture`).
    ///
    /// Until [`end_capture`](Self::end_capture), calls that CUDA refuses beside such a capture are refused
    /// here, and end it if they end it there: see docs/GPU.md. Work that is submitted to the stream takes its
    /// place in the order as if it ran; no graph is kept. Waits that were captured order nothing after the
    /// capture, and no work outside of it has to come after what was captured.
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
    /// [`ILLEGAL_STATE`](millpond_core::DriverError::ILLEGAL_STATE) if the stream captures already,
    /// [`STREAM_CAPTURE_UNSUPPORTED`](millpond_core::DriverError::STREAM_CAPTURE_UNSUPPORTED) for the legacy
    /// default stream.
    pub fn begin_capture(&self, stream: StreamRef, mode: CaptureMode) -> DriverResult<()> {
        let mut state = self.lock();
        state.begin_capture(stream, mode).map_err(|refusal| refusal.named("cuStreamBeginCapture"))
    }

    /// Ends the capture that the stream began (`cuStreamEndCapture`).
    ///
    /// # Errors
    /// [`STREAM_CAPTURE_INVALIDATED`](millpond_core::DriverError::STREAM_CAPTURE_INVALIDATED) if a call ended
    /// the capture before; the text names the call. CUDA's codes if the stream does not capture, another
    /// thread began it, or a stream that belongs to it was not joined.
    pub fn end_capture(&self, stream: StreamRef) -> DriverResult<()> {
        self.lock().end_capture(stream).map_err(|refusal| refusal.named("cuStreamEndCapture"))
    }
}
