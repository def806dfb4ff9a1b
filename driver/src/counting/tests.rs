//! Tests the counts of calls and of bytes.

use std::sync::Arc;

use millpond_core::driver::{DriverError, MemPoolProps, PhysicalProps};
use parking_lot::Mutex;

use super::*;
use crate::sim::{SimConfig, SimDevice};

const MIB: u64 = 1 << 20;

fn counting() -> (Arc<SimDevice>, Arc<CountingDriver>) {
    let device = SimDevice::new(SimConfig::with_capacity(256 * MIB));
    (Arc::clone(&device), CountingDriver::new(device))
}

#[test]
fn calls_and_failures_are_counted_by_kind() {
    let (device, driver) = counting();
    let ptr = driver.mem_alloc(MIB).unwrap();
    assert!(driver.mem_alloc(1 << 40).unwrap_err().is_out_of_memory());
    // SAFETY: the pointer came from this driver and is not used again.
    unsafe { driver.mem_free(ptr) }.unwrap();
    let stream = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    let event = driver.event_create(EventFlags::default()).unwrap();
    driver.event_record(event, stream).unwrap();
    driver.stream_wait_event(StreamRef::LEGACY, event).unwrap();
    driver.stream_synchronize(stream).unwrap();
    assert_eq!(driver.event_query(event), Ok(true));

    let counts = driver.counts();
    let calls = |kind| (counts.get(kind).calls, counts.get(kind).failures);
    assert_eq!(calls(CallKind::MemAlloc), (2, 1));
    for kind in [
        CallKind::MemFree,
        CallKind::StreamCreate,
        CallKind::EventCreate,
        CallKind::EventRecord,
        CallKind::StreamWaitEvent,
        CallKind::StreamSynchronize,
        CallKind::EventQuery,
    ] {
        assert_eq!(calls(kind), (1, 0), "{kind}");
    }
    assert_eq!(counts.total_calls(), 9);
    assert_eq!(counts.iter().count(), 8);
    assert_eq!(driver.virtual_time_ns(), Some(device.virtual_time_ns()));
    assert_eq!((driver.device(), driver.name()), (device.device(), device.name()));
}

#[test]
fn a_record_that_was_not_made_is_no_call() {
    let (_device, driver) = counting();
    let event = driver.event_create(EventFlags::default()).unwrap();
    let stream = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    assert_eq!(driver.event_record_if_alive(event, stream), Ok(true));
    // SAFETY: the stream came from this driver; the calls below accept a dead stream.
    unsafe { driver.stream_destroy(stream) }.unwrap();
    assert_eq!(driver.event_record_if_alive(event, stream), Ok(false));
    assert_eq!(driver.counts().get(CallKind::EventRecord).calls, 1);
    // SAFETY: the default stream is always alive.
    assert_eq!(unsafe { driver.stream_ref(0) }, Ok(StreamRef::LEGACY));
    assert_eq!(driver.counts().get(CallKind::StreamGetId).calls, 0);
}

#[test]
fn bytes_of_every_way_to_take_them_are_followed() {
    let (_device, driver) = counting();
    let stream = StreamRef::LEGACY;
    let page = driver.mem_get_allocation_granularity().unwrap();
    let pool = driver.mem_pool_create(MemPoolProps::default()).unwrap();
    let plain = driver.mem_alloc(MIB).unwrap();
    let managed = driver.mem_alloc_managed(2 * MIB).unwrap();
    let ordered = driver.mem_alloc_async(4 * MIB, stream).unwrap();
    let pooled = driver.mem_alloc_from_pool_async(8 * MIB, pool, stream).unwrap();
    let handle = driver.mem_create(page, PhysicalProps::default()).unwrap();
    let all = 16 * MIB + page; // the plain block takes one page
    assert_eq!(driver.bytes_taken(), all);
    // SAFETY: all of these came from this driver and are not used again.
    unsafe {
        driver.mem_free(plain).unwrap();
        driver.mem_free(managed).unwrap();
        driver.mem_free_async(ordered, stream).unwrap();
        driver.mem_free_async(pooled, stream).unwrap();
        driver.mem_release(handle).unwrap();
    }
    assert_eq!((driver.bytes_taken(), driver.peak_bytes_taken()), (0, all));
    driver.reset();
    assert_eq!((driver.counts(), driver.peak_bytes_taken()), (CallCounts::default(), 0));
}

#[test]
fn a_refused_free_leaves_the_bytes_taken() {
    let (_device, driver) = counting();
    let ptr = driver.mem_alloc(MIB).unwrap();
    // SAFETY: the address points inside a block, so the driver refuses it.
    let refused = unsafe { driver.mem_free(ptr.offset(256)) };
    assert_eq!(refused.unwrap_err().code(), DriverError::INVALID_VALUE);
    assert_eq!(driver.bytes_taken(), 2 * MIB);
}

#[test]
fn bytes_are_followed_across_threads() {
    let (_device, driver) = counting();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let ptr = driver.mem_alloc(MIB).unwrap();
                    // SAFETY: the pointer came from this driver and is not used again.
                    unsafe { driver.mem_free(ptr) }.unwrap();
                }
            });
        }
    });
    assert_eq!(driver.bytes_taken(), 0);
    assert!((MIB..=4 * MIB).contains(&driver.peak_bytes_taken()), "{}", driver.peak_bytes_taken());
    assert_eq!(driver.counts().total_calls(), 1600);
}

#[test]
fn the_difference_of_two_counts_is_what_lies_between() {
    let (_device, driver) = counting();
    driver.mem_get_info().unwrap();
    let before = driver.counts();
    driver.mem_get_info().unwrap();
    driver.synchronize().unwrap();
    let between = driver.counts().since(&before);
    let calls: Vec<_> = between.iter().map(|(kind, counts)| (kind, counts.calls)).collect();
    assert_eq!(calls, [(CallKind::MemGetInfo, 1), (CallKind::Synchronize, 1)]);
    assert_eq!(between.total_wall_ns(), driver.counts().total_wall_ns() - before.total_wall_ns());
    let wall_ns = between.iter().map(|(_, counts)| counts.wall_ns);
    assert_eq!(between.total_wall_ns(), wall_ns.sum::<u64>());
}

#[cfg(feature = "serde")]
#[test]
fn serde_writes_the_kinds_that_occurred_by_name() {
    let (_device, driver) = counting();
    driver.mem_get_info().unwrap();
    let json = serde_json::to_value(driver.counts()).unwrap();
    let entries = json.as_object().unwrap();
    assert_eq!(entries.len(), 1);
    assert_eq!(entries["mem_get_info"]["calls"], 1);
    assert_eq!(entries["mem_get_info"]["failures"], 0);
    assert!(entries["mem_get_info"]["wall_ns"].is_u64());
}

#[test]
fn every_kind_has_its_own_name_and_place() {
    for (place, kind) in CallKind::ALL.into_iter().enumerate() {
        assert_eq!((kind as usize, kind.to_string().as_str()), (place, kind.name()));
        #[cfg(feature = "serde")]
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.to_string());
        assert_eq!(CallKind::ALL.into_iter().filter(|other| other.name() == kind.name()).count(), 1);
    }
}

#[test]
fn a_pool_of_the_driver_counts_with_what_it_holds() {
    let (device, driver) = counting();
    let pool = driver.mem_pool_create(MemPoolProps::default()).unwrap();
    assert_eq!((driver.bytes_held(), driver.peak_bytes_held()), (0, 0));
    let stream = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    let ptr = driver.mem_alloc_from_pool_async(MIB, pool, stream).unwrap();
    let held = device.mem_pool_get_attribute(pool, MemPoolAttribute::ReservedMemCurrent).unwrap();
    assert!(held > MIB, "a pool takes more than its users asked for: {held}");
    assert_eq!((driver.bytes_taken(), driver.bytes_held(), driver.peak_bytes_held()), (MIB, held, held));
    // SAFETY: the pointer came from this driver and is not used again.
    unsafe { driver.mem_free_async(ptr, stream) }.unwrap();
    driver.stream_synchronize(stream).unwrap();
    driver.mem_pool_trim_to(pool, 0).unwrap();
    assert_eq!((driver.bytes_held(), driver.peak_bytes_held()), (0, held));
    // SAFETY: the pool came from this driver and is not used again.
    unsafe { driver.mem_pool_destroy(pool) }.unwrap();
    assert_eq!(driver.peak_bytes_held(), held);
    driver.reset_peak();
    assert_eq!(driver.peak_bytes_held(), 0);
}

/// Allocations that name no pool come from the device's current pool, which may change.
#[test]
fn the_current_pool_counts_after_a_named_one_and_when_it_changes() {
    let (_device, driver) = counting();
    let [named, other] = [(); 2].map(|()| driver.mem_pool_create(MemPoolProps::default()).unwrap());
    let stream = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    driver.mem_alloc_from_pool_async(MIB, named, stream).unwrap();
    let one = driver.bytes_held();
    driver.mem_alloc_async(MIB, stream).unwrap();
    assert_eq!(driver.bytes_held(), 2 * one, "the current pool has the same size of segments");
    driver.device_set_mem_pool(other).unwrap();
    driver.mem_alloc_async(MIB, stream).unwrap();
    assert_eq!(driver.bytes_held(), 3 * one);
    // SAFETY: the pool came from this driver and is not used again.
    unsafe { driver.mem_pool_destroy(named) }.unwrap();
    assert_eq!((driver.bytes_held(), driver.peak_bytes_held()), (2 * one, 2 * one), "the others count on");
}

/// The inner driver counts the queries of the outer one.
#[test]
fn the_device_is_queried_at_new_peaks_that_are_far_enough_above_the_last() {
    const KIB: u64 = 1 << 10;
    let (_device, inner) = counting();
    let driver = CountingDriver::new(Arc::<CountingDriver>::clone(&inner));
    let queries = || inner.counts().get(CallKind::MemGetInfo).calls;
    let block = driver.mem_alloc(4 * MIB).unwrap();
    assert_eq!((queries(), driver.probed_peak_bytes()), (0, 0), "not asked for yet");
    driver.probe_device().unwrap();
    let first = queries();
    for (bytes, expected) in [(4 * MIB, 1), (8 * KIB, 1), (1, 2), (1, 2), (16 * KIB, 3)] {
        driver.mem_alloc_managed(bytes).unwrap();
        assert_eq!(queries() - first, expected, "{bytes}");
    }
    // SAFETY: the pointer came from this driver and is not used again.
    unsafe { driver.mem_free(block) }.unwrap();
    driver.mem_alloc(4 * MIB).unwrap();
    assert_eq!(queries() - first, 3, "no new peak");
    let peak = driver.probed_peak_bytes();
    driver.mem_alloc(64 * MIB).unwrap();
    assert_eq!((queries() - first, driver.probed_peak_bytes()), (4, peak + 64 * MIB));
    assert_eq!(driver.counts().get(CallKind::MemGetInfo).calls, 0, "a query is not counted as a call");

    let refusing = CountingDriver::new(Arc::new(Odd { refuses: true, ..Odd::default() }));
    assert_eq!(refusing.probe_device().unwrap_err().code(), 4321);
}

/// A driver whose answers no other driver has. It notes the methods that are called, and their arguments.
#[derive(Debug, Default)]
struct Odd {
    health: Arc<Health>,
    refuses: bool,
    calls: Mutex<Vec<(&'static str, String)>>,
}

impl Odd {
    fn called(&self, name: &'static str, arguments: &dyn fmt::Debug) {
        self.calls.lock().push((name, format!("{arguments:?}")));
    }

    /// Returns the arguments with which a method was called.
    fn arguments_of(&self, name: &str) -> Vec<String> {
        let calls = self.calls.lock();
        calls.iter().filter(|(other, _)| *other == name).map(|(_, arguments)| arguments.clone()).collect()
    }

    fn answer<T>(&self, answer: T) -> DriverResult<T> {
        if self.refuses { Err(DriverError::new(4321, "odd")) } else { Ok(answer) }
    }
}

/// Makes the driver [`Odd`] from rows, and a test that makes the call of each row on a [`CountingDriver`]
/// over it. A row has the kind of the counted call, the method with its arguments, and the answer in an `Ok`.
macro_rules! rows {
    (@kind not_counted) => { None };
    (@kind $kind:ident) => { Some(CallKind::$kind) };
    ($($kind:ident: $([$unsafe:tt])? fn $name:ident($($arg:ident: $type:ty = $value:expr),*)
        -> $answer_type:ty = $answer:expr;)*) => {
        #[deny(clippy::missing_trait_methods)]
        impl Driver for Odd {
            fn device(&self) -> DeviceId {
                DeviceId::cuda(31)
            }
            fn name(&self) -> String {
                "odd".to_owned()
            }
            fn health(&self) -> &Arc<Health> {
                &self.health
            }
            fn was_reset(&self) -> bool {
                true
            }
            fn virtual_time_ns(&self) -> Option<u64> {
                Some(77)
            }
            unsafe fn pageable_free(&self, ptr: HostPtr, layout: Layout) {
                self.called("pageable_free", &(ptr, layout));
            }
            fn stream_is_gone(&self, stream: StreamRef) -> bool {
                self.called("stream_is_gone", &stream);
                true
            }
            $($($unsafe)? fn $name(&self, $($arg: $type),*) -> DriverResult<$answer_type> {
                self.called(stringify!($name), &($($arg,)*));
                self.answer($answer)
            })*
        }

        #[test]
        fn a_call_reaches_the_wrapped_driver_with_its_arguments_and_answer_and_counts_by_its_kind() {
            for refuses in [false, true] {
                $({
                    let odd = Arc::new(Odd { refuses, ..Odd::default() });
                    let driver = CountingDriver::new(Arc::<Odd>::clone(&odd));
                    // SAFETY: the driver does nothing.
                    #[allow(unused_unsafe)]
                    let answer = unsafe { driver.$name($($value),*) };
                    assert_eq!(answer, odd.answer($answer), "{}", stringify!($name));
                    $(let $arg: $type = $value;)*
                    let arguments = format!("{:?}", ($($arg,)*));
                    assert_eq!(odd.arguments_of(stringify!($name)), [arguments], "{}", stringify!($name));
                    let counts = driver.counts();
                    let counts = counts.iter().map(|(kind, counts)| (kind, counts.calls, counts.failures));
                    let expected = rows!(@kind $kind).map(|kind: CallKind| (kind, 1, u64::from(refuses)));
                    assert!(counts.eq(expected), "{}: {:?}", stringify!($name), driver.counts());
                })*
            }
        }
    };
}

const PTR: DevicePtr = DevicePtr::new(0x7000_0000_1234);
const OTHER: DevicePtr = DevicePtr::new(0x7000_0000_5678);
const HOST: HostPtr = HostPtr(0x1230);
const POOL: MemPool = MemPool(0x50);
const HANDLE: PhysicalHandle = PhysicalHandle(0x60);
const EVENT: Event = Event(0x80);
const STREAM: StreamRef = StreamRef::PER_THREAD;
const INFO: MemoryInfo = MemoryInfo { free: 3, total: 5 };
const PEER: DeviceId = DeviceId::cuda(30);
const FABRIC: FabricHandle = FabricHandle([0xfa; 64]);
const DATA: MemPoolPtrData = MemPoolPtrData([0xda; 64]);
const IPC: IpcMemHandle = IpcMemHandle([0x1c; 64]);
const ON: MemLocation = MemLocation::HostNuma(9);
const OF: MemAllocationType = MemAllocationType::Managed;
const BYTES: *mut u8 = std::ptr::without_provenance_mut(0x9990);

rows! {
    Other: fn version() -> i32 = 98_765;
    Other: fn attribute(attribute: DeviceAttribute = DeviceAttribute::Integrated) -> i64 = -4;
    MemGetInfo: fn mem_get_info() -> MemoryInfo = INFO;
    Synchronize: fn synchronize() -> () = ();
    Synchronize: fn synchronize_beside_captures() -> bool = false;
    not_counted: fn can_be_accessed_by(peer: DeviceId = PEER) -> bool = true;
    not_counted: fn active_peers() -> Vec<DeviceId> = vec![PEER];
    not_counted: fn thread_exchange_stream_capture_mode(mode: CaptureMode = CaptureMode::Relaxed)
        -> CaptureMode = CaptureMode::ThreadLocal;

    MemAlloc: fn mem_alloc(bytes: u64 = 11) -> DevicePtr = PTR;
    MemAllocManaged: fn mem_alloc_managed(bytes: u64 = 12) -> DevicePtr = PTR;
    MemFree: [unsafe] fn mem_free(ptr: DevicePtr = PTR) -> () = ();
    PointerQuery: fn mem_get_address_range(ptr: DevicePtr = PTR) -> (DevicePtr, u64) = (OTHER, 13);
    PointerQuery: fn pointer_kind(ptr: DevicePtr = PTR) -> MemoryKind = MemoryKind::Managed;
    MemPrefetch: [unsafe] fn mem_prefetch_async(
        ptr: DevicePtr = PTR, bytes: u64 = 14, to_host: bool = true, stream: StreamRef = STREAM
    ) -> () = ();
    MemAdvise: [unsafe] fn mem_advise(
        ptr: DevicePtr = PTR, bytes: u64 = 15, advice: MemAdvice = MemAdvice::ReadMostly
    ) -> () = ();

    MemHostAlloc: fn mem_host_alloc(
        bytes: u64 = 16, flags: HostFlags = HostFlags::default().mapped(true)
    ) -> HostPtr = HOST;
    MemFreeHost: [unsafe] fn mem_free_host(ptr: HostPtr = HOST) -> () = ();
    MemHostRegister: [unsafe] fn mem_host_register(
        ptr: HostPtr = HOST, bytes: u64 = 17, flags: HostFlags = HostFlags::default().portable(true)
    ) -> () = ();
    MemHostRegister: [unsafe] fn mem_host_unregister(ptr: HostPtr = HOST) -> () = ();
    PointerQuery: fn mem_host_get_device_pointer(ptr: HostPtr = HOST) -> DevicePtr = PTR;
    PageableAlloc: fn pageable_alloc(layout: Layout = Layout::new(18)) -> HostPtr = HOST;
    Other: fn host_memory_info() -> MemoryInfo = INFO;

    MemAllocAsync: fn mem_alloc_async(bytes: u64 = 19, stream: StreamRef = STREAM) -> DevicePtr = PTR;
    MemAllocAsync: fn mem_alloc_from_pool_async(
        bytes: u64 = 20, pool: MemPool = POOL, stream: StreamRef = STREAM
    ) -> DevicePtr = PTR;
    MemFreeAsync: [unsafe] fn mem_free_async(ptr: DevicePtr = PTR, stream: StreamRef = STREAM) -> () = ();
    MemPool: fn mem_pool_create(props: MemPoolProps = MemPoolProps::default().max_bytes(21))
        -> MemPool = POOL;
    MemPool: [unsafe] fn mem_pool_destroy(pool: MemPool = POOL) -> () = ();
    MemPool: fn device_get_default_mem_pool() -> MemPool = POOL;
    MemPool: fn device_get_mem_pool() -> MemPool = POOL;
    MemPool: fn device_set_mem_pool(pool: MemPool = POOL) -> () = ();
    MemPool: fn mem_get_default_mem_pool(location: MemLocation = ON, kind: MemAllocationType = OF)
        -> MemPool = POOL;
    MemPool: fn mem_get_mem_pool(location: MemLocation = ON, kind: MemAllocationType = OF)
        -> MemPool = POOL;
    MemPool: fn mem_set_mem_pool(
        location: MemLocation = ON, kind: MemAllocationType = OF, pool: MemPool = POOL
    ) -> () = ();
    MemPool: fn mem_pool_set_access(
        pool: MemPool = POOL,
        access: AccessFlags = AccessFlags::Read,
        from: &[AccessLocation] = &[AccessLocation::Host, AccessLocation::Device(PEER)]
    ) -> () = ();
    MemPool: fn mem_pool_get_access(pool: MemPool = POOL, from: AccessLocation = AccessLocation::Host)
        -> AccessFlags = AccessFlags::Read;
    Ipc: fn mem_pool_export_to_fd(pool: MemPool = POOL) -> i32 = 77;
    Ipc: fn mem_pool_import_from_fd(fd: i32 = 78) -> MemPool = POOL;
    Ipc: fn mem_pool_export_to_fabric(pool: MemPool = POOL) -> FabricHandle = FABRIC;
    Ipc: fn mem_pool_import_from_fabric(handle: &FabricHandle = &FABRIC) -> MemPool = POOL;
    Ipc: fn mem_pool_export_pointer(ptr: DevicePtr = PTR) -> MemPoolPtrData = DATA;
    Ipc: fn mem_pool_import_pointer(pool: MemPool = POOL, data: &MemPoolPtrData = &DATA) -> DevicePtr = PTR;
    PointerQuery: fn pointer_mem_pool(ptr: DevicePtr = PTR) -> Option<MemPool> = Some(POOL);
    MemPoolTrim: fn mem_pool_trim_to(pool: MemPool = POOL, keep_bytes: u64 = 22) -> () = ();
    MemPool: fn mem_pool_get_attribute(
        pool: MemPool = POOL, attribute: MemPoolAttribute = MemPoolAttribute::UsedMemHigh
    ) -> u64 = 23;
    MemPool: fn mem_pool_set_attribute(
        pool: MemPool = POOL, attribute: MemPoolAttribute = MemPoolAttribute::UsedMemHigh, value: u64 = 24
    ) -> () = ();
    MemPool: fn device_get_graph_mem_attribute(
        attribute: GraphMemAttribute = GraphMemAttribute::UsedMemHigh
    ) -> u64 = 25;
    MemPool: fn device_reset_graph_mem_attribute(
        attribute: GraphMemAttribute = GraphMemAttribute::UsedMemHigh
    ) -> () = ();
    MemPoolTrim: fn device_graph_mem_trim() -> () = ();

    Other: fn mem_get_allocation_granularity() -> u64 = 26;
    MemAddressReserve: fn mem_address_reserve(bytes: u64 = 27, alignment: u64 = 28) -> DevicePtr = PTR;
    MemAddressFree: [unsafe] fn mem_address_free(ptr: DevicePtr = PTR, bytes: u64 = 29) -> () = ();
    MemCreate: fn mem_create(
        bytes: u64 = 30, props: PhysicalProps = PhysicalProps::default().rdma(true)
    ) -> PhysicalHandle = HANDLE;
    MemRelease: [unsafe] fn mem_release(handle: PhysicalHandle = HANDLE) -> () = ();
    MemMap: [unsafe] fn mem_map(ptr: DevicePtr = PTR, bytes: u64 = 31, handle: PhysicalHandle = HANDLE)
        -> () = ();
    MemUnmap: [unsafe] fn mem_unmap(ptr: DevicePtr = PTR, bytes: u64 = 32) -> () = ();
    MemSetAccess: [unsafe] fn mem_set_access(
        ptr: DevicePtr = PTR,
        bytes: u64 = 33,
        access: AccessFlags = AccessFlags::Read,
        devices: &[DeviceId] = &[PEER]
    ) -> () = ();
    Ipc: fn mem_export_to_fd(handle: PhysicalHandle = HANDLE) -> i32 = 79;
    Ipc: fn mem_import_from_fd(fd: i32 = 80) -> PhysicalHandle = HANDLE;

    StreamCreate: fn stream_create(flags: StreamFlags = StreamFlags::NON_BLOCKING.priority(-3))
        -> StreamRef = STREAM;
    StreamDestroy: [unsafe] fn stream_destroy(stream: StreamRef = STREAM) -> () = ();
    StreamGetId: [unsafe] fn stream_ref(handle: u64 = 3) -> StreamRef = STREAM;
    StreamSynchronize: fn stream_synchronize(stream: StreamRef = STREAM) -> () = ();
    StreamQuery: fn stream_query(stream: StreamRef = STREAM) -> bool = true;
    StreamWaitEvent: fn stream_wait_event(stream: StreamRef = STREAM, event: Event = EVENT) -> () = ();
    StreamIsCapturing: fn stream_is_capturing(stream: StreamRef = STREAM) -> bool = true;
    StreamIsCapturing: fn stream_capture_id(stream: StreamRef = STREAM) -> Option<u64> = Some(34);

    EventCreate: fn event_create(flags: EventFlags = EventFlags::default().timing(true)) -> Event = EVENT;
    EventDestroy: [unsafe] fn event_destroy(event: Event = EVENT) -> () = ();
    EventRecord: fn event_record(event: Event = EVENT, stream: StreamRef = STREAM) -> () = ();
    EventRecord: fn event_record_if_alive(event: Event = EVENT, stream: StreamRef = STREAM) -> bool = true;
    EventQuery: fn event_query(event: Event = EVENT) -> bool = true;
    EventSynchronize: fn event_synchronize(event: Event = EVENT) -> () = ();

    Copy: [unsafe] fn memcpy_htod_async(
        dst: DevicePtr = PTR, src: *const u8 = BYTES, bytes: u64 = 35, stream: StreamRef = STREAM
    ) -> () = ();
    Copy: [unsafe] fn memcpy_dtoh_async(
        dst: *mut u8 = BYTES, src: DevicePtr = PTR, bytes: u64 = 36, stream: StreamRef = STREAM
    ) -> () = ();
    Copy: [unsafe] fn memcpy_dtod_async(
        dst: DevicePtr = PTR, src: DevicePtr = OTHER, bytes: u64 = 37, stream: StreamRef = STREAM
    ) -> () = ();
    Copy: [unsafe] fn memcpy_peer_async(
        dst: DevicePtr = PTR,
        src: DevicePtr = OTHER,
        src_device: DeviceId = PEER,
        bytes: u64 = 38,
        stream: StreamRef = STREAM
    ) -> () = ();
    Fill: [unsafe] fn memset_d8_async(
        dst: DevicePtr = PTR, value: u8 = 39, bytes: u64 = 40, stream: StreamRef = STREAM
    ) -> () = ();

    Ipc: fn ipc_get_mem_handle(ptr: DevicePtr = PTR) -> IpcMemHandle = IPC;
    Ipc: fn ipc_open_mem_handle(handle: &IpcMemHandle = &IPC) -> DevicePtr = PTR;
    Ipc: [unsafe] fn ipc_close_mem_handle(ptr: DevicePtr = PTR) -> () = ();
}

#[test]
fn what_cannot_fail_is_asked_of_the_wrapped_driver_and_not_counted() {
    let odd = Arc::new(Odd::default());
    let driver = CountingDriver::new(Arc::<Odd>::clone(&odd));
    assert_eq!((driver.device(), driver.name().as_str()), (DeviceId::cuda(31), "odd"));
    assert!(Arc::ptr_eq(driver.health(), &odd.health));
    assert_eq!((driver.was_reset(), driver.virtual_time_ns()), (true, Some(77)));
    assert!(driver.stream_is_gone(STREAM));
    assert!(format!("{driver:?}").starts_with("CountingDriver { inner: Odd"), "{driver:?}");
    // SAFETY: the driver does nothing.
    unsafe { driver.pageable_free(HOST, Layout::new(18)) };
    assert_eq!(odd.arguments_of("stream_is_gone"), [format!("{STREAM:?}")]);
    assert_eq!(odd.arguments_of("pageable_free"), [format!("{:?}", (HOST, Layout::new(18)))]);
    assert_eq!(driver.counts(), CallCounts::default());
}
