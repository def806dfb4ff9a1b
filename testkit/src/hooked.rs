//! A driver that runs other code in the middle of a call. It reproduces one interleaving of two threads on a
//! single thread, which is the same in each run.

mod hook;
mod order;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use millpond_core::driver::{
    AccessFlags, AccessLocation, CaptureMode, DeviceAttribute, Driver, DriverHandle, DriverResult, Event,
    EventFlags, FabricHandle, GraphMemAttribute, Health, HostFlags, HostPtr, IpcMemHandle, MemAdvice,
    MemAllocationType, MemLocation, MemPool, MemPoolAttribute, MemPoolProps, MemPoolPtrData, MemoryInfo,
    MemoryKind, PhysicalHandle, PhysicalProps, StreamFlags,
};
use millpond_core::{DeviceId, DevicePtr, DriverError, Layout, StreamId, StreamRef};
use parking_lot::Mutex;

use hook::Hook;
pub use order::OrderCall;
use order::Watcher;

/// Forwards calls to a driver. Runs a closure once, before or after a chosen call.
///
/// A resource makes its driver calls without holding its locks. So the closure can do anything on this thread
/// that another thread could do at that moment, and can even call the same resource. It must not wait for the
/// interrupted call, because it would wait forever.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// use millpond_core::Driver;
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_testkit::hooked::HookedDriver;
///
/// let driver = HookedDriver::new(SimDevice::new(SimConfig::h200()));
/// let ran = Arc::new(AtomicBool::new(false));
/// let note = Arc::clone(&ran);
/// driver.before_synchronize(move || note.store(true, Ordering::Relaxed));
/// driver.synchronize()?;
/// assert!(ran.load(Ordering::Relaxed));
/// assert_eq!(driver.hooks_left(), 0);
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct HookedDriver {
    inner: DriverHandle,
    before_record: Hook,
    after_wait: Hook,
    before_synchronize: Hook,
    after_synchronize: Hook,
    next_pool: Mutex<Option<MemPool>>,
    before_unmap: Hook,
    before_free: Hook,
    before_query: Hook,
    before_create: Hook,
    after_set_access: Hook,
    before_get_info: Hook,
    before_capture_query: Hook,
    before_stream_create: Hook,
    foreign: Mutex<Vec<StreamId>>,
    takes_time: AtomicBool,
    says_free: AtomicU64,
    says_version: AtomicI32,
    is_integrated: AtomicBool,
    maps_no_host_memory: AtomicBool,
    other_name: Option<DeviceId>,
    is_timeless: AtomicBool,
    is_quiet: AtomicBool,
    is_late: AtomicBool,
    keeps_modes: AtomicBool,
    queries: AtomicU64,
    watcher: OnceLock<Watcher>,
}

/// Each method sets the closure for one place of the next call.
///
/// # Panics
/// If the closure set earlier for that place has not run.
impl HookedDriver {
    /// Runs before the next [`event_record`](Driver::event_record).
    pub fn before_record(&self, hook: impl FnOnce() + Send + 'static) {
        self.before_record.set(hook);
    }

    /// Runs after the next [`stream_wait_event`](Driver::stream_wait_event), before it returns.
    pub fn after_wait(&self, hook: impl FnOnce() + Send + 'static) {
        self.after_wait.set(hook);
    }

    /// Runs before the next [`synchronize`](Driver::synchronize) or
    /// [`synchronize_beside_captures`](Driver::synchronize_beside_captures), which then also waits for the
    /// closure's work.
    pub fn before_synchronize(&self, hook: impl FnOnce() + Send + 'static) {
        self.before_synchronize.set(hook);
    }

    /// Runs after the next [`synchronize_beside_captures`](Driver::synchronize_beside_captures), before it
    /// returns.
    pub fn after_synchronize(&self, hook: impl FnOnce() + Send + 'static) {
        self.after_synchronize.set(hook);
    }

    /// Calls the watcher from now on, after each call that orders work.
    ///
    /// # Panics
    /// If there is a watcher already.
    pub fn watch_order(&self, watcher: impl Fn(OrderCall) + Send + Sync + 'static) {
        assert!(self.watcher.set(Box::new(watcher)).is_ok(), "the driver has a watcher");
    }

    fn tell(&self, has_succeeded: bool, call: OrderCall) {
        if let Some(watcher) = self.watcher.get().filter(|_| has_succeeded) {
            watcher(call);
        }
    }

    /// Gives the next created pool this handle, which a destroyed pool may have had.
    pub fn next_pool_is(&self, pool: MemPool) {
        *self.next_pool.lock() = Some(pool);
    }

    /// Runs before the next [`mem_unmap`](Driver::mem_unmap), on the thread that makes the call.
    pub fn before_unmap(&self, hook: impl FnOnce() + Send + 'static) {
        self.before_unmap.set(hook);
    }

    /// Runs before the next [`mem_free`](Driver::mem_free), on the thread that makes the call.
    pub fn before_free(&self, hook: impl FnOnce() + Send + 'static) {
        self.before_free.set(hook);
    }

    /// Runs before the next [`mem_create`](Driver::mem_create).
    pub fn before_create(&self, hook: impl FnOnce() + Send + 'static) {
        self.before_create.set(hook);
    }

    /// Runs after the next [`mem_set_access`](Driver::mem_set_access), before it returns.
    pub fn after_set_access(&self, hook: impl FnOnce() + Send + 'static) {
        self.after_set_access.set(hook);
    }

    /// Runs before the next [`mem_get_info`](Driver::mem_get_info).
    pub fn before_get_info(&self, hook: impl FnOnce() + Send + 'static) {
        self.before_get_info.set(hook);
    }

    /// Runs before the next [`stream_is_capturing`](Driver::stream_is_capturing).
    pub fn before_capture_query(&self, hook: impl FnOnce() + Send + 'static) {
        self.before_capture_query.set(hook);
    }

    /// Runs before the next [`stream_create`](Driver::stream_create).
    pub fn before_stream_create(&self, hook: impl FnOnce() + Send + 'static) {
        self.before_stream_create.set(hook);
    }

    /// Runs before the next [`event_query`](Driver::event_query).
    pub fn before_query(&self, hook: impl FnOnce() + Send + 'static) {
        self.before_query.set(hook);
    }
}

impl HookedDriver {
    /// Forwards to `inner`, without any closure set.
    pub fn new(inner: DriverHandle) -> Arc<Self> {
        Self::named(inner, None)
    }

    /// Returns the same device under another name, as in another process. Resources of one process recognise
    /// each other by the device's name.
    pub fn in_another_process(inner: DriverHandle, name: DeviceId) -> Arc<Self> {
        Self::named(inner, Some(name))
    }

    fn named(inner: DriverHandle, other_name: Option<DeviceId>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            other_name,
            before_record: Hook::default(),
            after_wait: Hook::default(),
            before_synchronize: Hook::default(),
            after_synchronize: Hook::default(),
            next_pool: Mutex::default(),
            before_unmap: Hook::default(),
            before_free: Hook::default(),
            before_query: Hook::default(),
            before_create: Hook::default(),
            after_set_access: Hook::default(),
            before_get_info: Hook::default(),
            before_capture_query: Hook::default(),
            before_stream_create: Hook::default(),
            foreign: Mutex::default(),
            takes_time: AtomicBool::new(false),
            says_free: AtomicU64::new(u64::MAX),
            says_version: AtomicI32::new(0),
            is_integrated: AtomicBool::new(false),
            maps_no_host_memory: AtomicBool::new(false),
            is_timeless: AtomicBool::new(false),
            is_quiet: AtomicBool::new(false),
            is_late: AtomicBool::new(false),
            keeps_modes: AtomicBool::new(false),
            queries: AtomicU64::new(0),
            watcher: OnceLock::new(),
        })
    }

    /// Hides the device's [virtual time](Driver::virtual_time_ns) from now on, as on a real device. Resources
    /// that wait for time to pass then use the machine's clock.
    pub fn hide_virtual_time(&self) {
        self.is_timeless.store(true, Ordering::Relaxed);
    }

    /// From now on, calls that take or return memory last as long on the machine's clock as on the device's.
    /// So other threads run in between.
    pub fn take_time(&self) {
        self.takes_time.store(true, Ordering::Relaxed);
    }

    /// From now on, the device reports that it cannot map host memory.
    pub fn map_no_host_memory(&self) {
        self.maps_no_host_memory.store(true, Ordering::Relaxed);
    }

    /// From now on, the device shares its memory with the host and [reports](Driver::mem_get_info) at most
    /// `says_free` free bytes.
    pub fn be_integrated(&self, says_free: u64) {
        self.says_free.store(says_free, Ordering::Relaxed);
        self.is_integrated.store(true, Ordering::Relaxed);
    }

    /// From now on, the driver has this version of CUDA, such as 12090 for 12.9. Before 13.0 it lacks the
    /// default pools of managed memory.
    pub fn be_version(&self, version: i32) {
        self.says_version.store(version, Ordering::Relaxed);
    }

    /// The name that the wrapped device itself uses.
    fn own_name_of(&self, id: DeviceId) -> DeviceId {
        if Some(id) == self.other_name { self.inner.device() } else { id }
    }

    fn own_place_of(&self, from: AccessLocation) -> AccessLocation {
        from.device().map_or(from, |device| self.own_name_of(device).into())
    }

    /// Makes a call last as long as it does in the device's time.
    fn timed<T>(&self, call: impl FnOnce() -> T) -> T {
        if !self.takes_time.load(Ordering::Relaxed) {
            return call();
        }
        let (start, before) = (Instant::now(), self.inner.virtual_time_ns().unwrap_or(0));
        let answer = call();
        let took = self.inner.virtual_time_ns().unwrap_or(0) - before;
        while start.elapsed() < Duration::from_nanos(took) {
            thread::yield_now();
        }
        answer
    }

    /// From now on, a [query](Driver::event_query) of an event waits for the event and returns that it is
    /// done. So all devices give the same answers, however fast they are.
    pub fn wait_at_queries(&self) {
        self.is_quiet.store(true, Ordering::Relaxed);
    }

    /// From now on, every other query returns that the event is not done, as a real device may just after a
    /// record.
    pub fn answer_late(&self) {
        self.is_late.store(true, Ordering::Relaxed);
    }

    /// From now on, no thread's capture mode changes: calls behave as in a library that ignores captures.
    pub fn keep_capture_modes(&self) {
        self.keeps_modes.store(true, Ordering::Relaxed);
    }

    /// Treats the stream as made elsewhere. [`event_record_if_alive`](Driver::event_record_if_alive) returns
    /// `Ok(false)` for it and does nothing, as for a stream that another library created.
    pub fn foreign(&self, stream: StreamRef) {
        self.foreign.lock().push(stream.id());
    }

    /// Returns how many closures are set and have not run. A test that uses closures should end with 0.
    pub fn hooks_left(&self) -> usize {
        let hooks = [
            &self.before_record,
            &self.after_wait,
            &self.before_synchronize,
            &self.after_synchronize,
            &self.before_unmap,
            &self.before_free,
            &self.before_query,
            &self.before_create,
            &self.after_set_access,
            &self.before_get_info,
            &self.before_capture_query,
            &self.before_stream_create,
        ];
        hooks.into_iter().filter(|hook| hook.is_set()).count()
    }
}

macro_rules! forward {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {$(
        fn $name(&self, $($arg: $type),*) -> $answer {
            self.inner.$name($($arg),*)
        }
    )*};
}

macro_rules! forward_unsafe {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {$(
        unsafe fn $name(&self, $($arg: $type),*) -> $answer {
            // SAFETY: the caller's promise.
            unsafe { self.inner.$name($($arg),*) }
        }
    )*};
}

#[deny(clippy::missing_trait_methods)]
impl Driver for HookedDriver {
    fn health(&self) -> &Arc<Health> {
        self.inner.health()
    }

    fn synchronize(&self) -> DriverResult<()> {
        self.before_synchronize.run();
        self.inner.synchronize()
    }

    fn thread_exchange_stream_capture_mode(&self, mode: CaptureMode) -> DriverResult<CaptureMode> {
        if self.keeps_modes.load(Ordering::Relaxed) {
            return Ok(CaptureMode::default());
        }
        self.inner.thread_exchange_stream_capture_mode(mode)
    }

    fn synchronize_beside_captures(&self) -> DriverResult<bool> {
        self.before_synchronize.run();
        let answer = self.inner.synchronize_beside_captures();
        self.tell(matches!(answer, Ok(true)), OrderCall::Synchronized);
        self.after_synchronize.run();
        answer
    }

    fn stream_wait_event(&self, stream: StreamRef, event: Event) -> DriverResult<()> {
        let answer = self.inner.stream_wait_event(stream, event);
        self.tell(answer.is_ok(), OrderCall::Waits(stream, event));
        self.after_wait.run();
        answer
    }

    fn stream_create(&self, flags: StreamFlags) -> DriverResult<StreamRef> {
        self.before_stream_create.run();
        self.inner.stream_create(flags)
    }

    fn stream_is_capturing(&self, stream: StreamRef) -> DriverResult<bool> {
        self.before_capture_query.run();
        self.inner.stream_is_capturing(stream)
    }

    fn event_record(&self, event: Event, stream: StreamRef) -> DriverResult<()> {
        self.before_record.run();
        let answer = self.inner.event_record(event, stream);
        self.tell(answer.is_ok(), OrderCall::Recorded(event, stream));
        answer
    }

    fn event_record_if_alive(&self, event: Event, stream: StreamRef) -> DriverResult<bool> {
        if self.foreign.lock().contains(&stream.id()) {
            return Ok(false);
        }
        let answer = self.inner.event_record_if_alive(event, stream);
        self.tell(matches!(answer, Ok(true)), OrderCall::Recorded(event, stream));
        answer
    }

    unsafe fn mem_unmap(&self, ptr: DevicePtr, bytes: u64) -> DriverResult<()> {
        self.before_unmap.run();
        // SAFETY: the caller's promise.
        self.timed(|| unsafe { self.inner.mem_unmap(ptr, bytes) })
    }

    fn device(&self) -> DeviceId {
        self.other_name.unwrap_or_else(|| self.inner.device())
    }

    fn attribute(&self, attribute: DeviceAttribute) -> DriverResult<i64> {
        match attribute {
            DeviceAttribute::Integrated if self.is_integrated.load(Ordering::Relaxed) => Ok(1),
            DeviceAttribute::CanMapHostMemory if self.maps_no_host_memory.load(Ordering::Relaxed) => Ok(0),
            _ => self.inner.attribute(attribute),
        }
    }

    fn mem_get_info(&self) -> DriverResult<MemoryInfo> {
        self.before_get_info.run();
        let MemoryInfo { free, total } = self.inner.mem_get_info()?;
        Ok(MemoryInfo { free: free.min(self.says_free.load(Ordering::Relaxed)), total })
    }

    fn mem_alloc(&self, bytes: u64) -> DriverResult<DevicePtr> {
        self.timed(|| self.inner.mem_alloc(bytes))
    }

    unsafe fn mem_free(&self, ptr: DevicePtr) -> DriverResult<()> {
        self.before_free.run();
        // SAFETY: the caller's promise.
        self.timed(|| unsafe { self.inner.mem_free(ptr) })
    }

    fn mem_create(&self, bytes: u64, props: PhysicalProps) -> DriverResult<PhysicalHandle> {
        self.before_create.run();
        self.timed(|| self.inner.mem_create(bytes, props))
    }

    unsafe fn mem_release(&self, handle: PhysicalHandle) -> DriverResult<()> {
        // SAFETY: the caller's promise.
        self.timed(|| unsafe { self.inner.mem_release(handle) })
    }

    unsafe fn mem_map(&self, ptr: DevicePtr, bytes: u64, handle: PhysicalHandle) -> DriverResult<()> {
        // SAFETY: the caller's promise.
        self.timed(|| unsafe { self.inner.mem_map(ptr, bytes, handle) })
    }

    unsafe fn mem_set_access(
        &self,
        ptr: DevicePtr,
        bytes: u64,
        access: AccessFlags,
        devices: &[DeviceId],
    ) -> DriverResult<()> {
        let devices: Vec<DeviceId> = devices.iter().map(|id| self.own_name_of(*id)).collect();
        // SAFETY: the caller's promise.
        let done = self.timed(|| unsafe { self.inner.mem_set_access(ptr, bytes, access, &devices) });
        self.after_set_access.run();
        done
    }

    fn mem_pool_set_access(
        &self,
        pool: MemPool,
        access: AccessFlags,
        from: &[AccessLocation],
    ) -> DriverResult<()> {
        let from: Vec<AccessLocation> = from.iter().map(|from| self.own_place_of(*from)).collect();
        self.inner.mem_pool_set_access(pool, access, &from)
    }

    fn mem_pool_get_access(&self, pool: MemPool, from: AccessLocation) -> DriverResult<AccessFlags> {
        self.inner.mem_pool_get_access(pool, self.own_place_of(from))
    }

    fn version(&self) -> DriverResult<i32> {
        match self.says_version.load(Ordering::Relaxed) {
            0 => self.inner.version(),
            version => Ok(version),
        }
    }

    fn mem_get_default_mem_pool(
        &self,
        location: MemLocation,
        kind: MemAllocationType,
    ) -> DriverResult<MemPool> {
        if (1..13_000).contains(&self.says_version.load(Ordering::Relaxed)) {
            return Err(DriverError::new(DriverError::NO_SYMBOL, "cuMemGetDefaultMemPool"));
        }
        self.inner.mem_get_default_mem_pool(location, kind)
    }

    fn mem_pool_create(&self, props: MemPoolProps) -> DriverResult<MemPool> {
        let next = self.next_pool.lock().take();
        next.map_or_else(|| self.inner.mem_pool_create(props), Ok)
    }

    fn event_query(&self, event: Event) -> DriverResult<bool> {
        self.before_query.run();
        if self.is_quiet.load(Ordering::Relaxed) {
            return self.event_synchronize(event).map(|()| true);
        }
        if self.is_late.load(Ordering::Relaxed)
            && self.queries.fetch_add(1, Ordering::Relaxed).is_multiple_of(2)
        {
            return Ok(false);
        }
        let answer = self.inner.event_query(event);
        self.tell(matches!(answer, Ok(true)), OrderCall::Reached(event));
        answer
    }

    fn event_synchronize(&self, event: Event) -> DriverResult<()> {
        let answer = self.inner.event_synchronize(event);
        self.tell(answer.is_ok(), OrderCall::Reached(event));
        answer
    }

    fn virtual_time_ns(&self) -> Option<u64> {
        self.inner.virtual_time_ns().filter(|_| !self.is_timeless.load(Ordering::Relaxed))
    }

    forward! {
        fn was_reset() -> bool;
        fn name() -> String;
        fn mem_alloc_managed(bytes: u64) -> DriverResult<DevicePtr>;
        fn mem_get_address_range(ptr: DevicePtr) -> DriverResult<(DevicePtr, u64)>;
        fn pointer_kind(ptr: DevicePtr) -> DriverResult<MemoryKind>;
        fn mem_host_alloc(bytes: u64, flags: HostFlags) -> DriverResult<HostPtr>;
        fn mem_host_get_device_pointer(ptr: HostPtr) -> DriverResult<DevicePtr>;
        fn pageable_alloc(layout: Layout) -> DriverResult<HostPtr>;
        fn host_memory_info() -> DriverResult<MemoryInfo>;
        fn mem_alloc_async(bytes: u64, stream: StreamRef) -> DriverResult<DevicePtr>;
        fn mem_alloc_from_pool_async(bytes: u64, pool: MemPool, stream: StreamRef) -> DriverResult<DevicePtr>;
        fn device_get_default_mem_pool() -> DriverResult<MemPool>;
        fn device_get_mem_pool() -> DriverResult<MemPool>;
        fn device_set_mem_pool(pool: MemPool) -> DriverResult<()>;
        fn mem_get_mem_pool(location: MemLocation, kind: MemAllocationType) -> DriverResult<MemPool>;
        fn mem_set_mem_pool(
            location: MemLocation, kind: MemAllocationType, pool: MemPool
        ) -> DriverResult<()>;
        fn mem_pool_export_to_fd(pool: MemPool) -> DriverResult<i32>;
        fn mem_pool_import_from_fd(fd: i32) -> DriverResult<MemPool>;
        fn mem_pool_export_to_fabric(pool: MemPool) -> DriverResult<FabricHandle>;
        fn mem_pool_import_from_fabric(handle: &FabricHandle) -> DriverResult<MemPool>;
        fn mem_pool_export_pointer(ptr: DevicePtr) -> DriverResult<MemPoolPtrData>;
        fn mem_pool_import_pointer(pool: MemPool, data: &MemPoolPtrData) -> DriverResult<DevicePtr>;
        fn pointer_mem_pool(ptr: DevicePtr) -> DriverResult<Option<MemPool>>;
        fn stream_is_gone(stream: StreamRef) -> bool;
        fn mem_pool_trim_to(pool: MemPool, keep_bytes: u64) -> DriverResult<()>;
        fn mem_pool_get_attribute(pool: MemPool, attribute: MemPoolAttribute) -> DriverResult<u64>;
        fn mem_pool_set_attribute(pool: MemPool, attribute: MemPoolAttribute, value: u64) -> DriverResult<()>;
        fn device_get_graph_mem_attribute(attribute: GraphMemAttribute) -> DriverResult<u64>;
        fn device_reset_graph_mem_attribute(attribute: GraphMemAttribute) -> DriverResult<()>;
        fn device_graph_mem_trim() -> DriverResult<()>;
        fn mem_get_allocation_granularity() -> DriverResult<u64>;
        fn mem_address_reserve(bytes: u64, alignment: u64) -> DriverResult<DevicePtr>;
        fn mem_export_to_fd(handle: PhysicalHandle) -> DriverResult<i32>;
        fn mem_import_from_fd(fd: i32) -> DriverResult<PhysicalHandle>;
        fn can_be_accessed_by(peer: DeviceId) -> DriverResult<bool>;
        fn active_peers() -> DriverResult<Vec<DeviceId>>;
        fn stream_synchronize(stream: StreamRef) -> DriverResult<()>;
        fn stream_query(stream: StreamRef) -> DriverResult<bool>;
        fn stream_capture_id(stream: StreamRef) -> DriverResult<Option<u64>>;
        fn event_create(flags: EventFlags) -> DriverResult<Event>;
        fn ipc_get_mem_handle(ptr: DevicePtr) -> DriverResult<IpcMemHandle>;
        fn ipc_open_mem_handle(handle: &IpcMemHandle) -> DriverResult<DevicePtr>;
    }

    forward_unsafe! {
        fn mem_prefetch_async(
            ptr: DevicePtr, bytes: u64, to_host: bool, stream: StreamRef
        ) -> DriverResult<()>;
        fn mem_advise(ptr: DevicePtr, bytes: u64, advice: MemAdvice) -> DriverResult<()>;
        fn mem_free_host(ptr: HostPtr) -> DriverResult<()>;
        fn pageable_free(ptr: HostPtr, layout: Layout) -> ();
        fn mem_host_register(ptr: HostPtr, bytes: u64, flags: HostFlags) -> DriverResult<()>;
        fn mem_host_unregister(ptr: HostPtr) -> DriverResult<()>;
        fn mem_free_async(ptr: DevicePtr, stream: StreamRef) -> DriverResult<()>;
        fn mem_pool_destroy(pool: MemPool) -> DriverResult<()>;
        fn mem_address_free(ptr: DevicePtr, bytes: u64) -> DriverResult<()>;
        fn stream_ref(handle: u64) -> DriverResult<StreamRef>;
        fn stream_destroy(stream: StreamRef) -> DriverResult<()>;
        fn event_destroy(event: Event) -> DriverResult<()>;
        fn memcpy_htod_async(
            dst: DevicePtr, src: *const u8, bytes: u64, stream: StreamRef
        ) -> DriverResult<()>;
        fn memcpy_dtoh_async(dst: *mut u8, src: DevicePtr, bytes: u64, stream: StreamRef) -> DriverResult<()>;
        fn memcpy_dtod_async(
            dst: DevicePtr, src: DevicePtr, bytes: u64, stream: StreamRef
        ) -> DriverResult<()>;
        fn memcpy_peer_async(
            dst: DevicePtr, src: DevicePtr, src_device: DeviceId, bytes: u64, stream: StreamRef
        ) -> DriverResult<()>;
        fn memset_d8_async(dst: DevicePtr, value: u8, bytes: u64, stream: StreamRef) -> DriverResult<()>;
        fn ipc_close_mem_handle(ptr: DevicePtr) -> DriverResult<()>;
    }
}

impl fmt::Debug for HookedDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookedDriver").field("inner", &self.inner).finish_non_exhaustive()
    }
}
