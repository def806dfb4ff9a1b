//! Tests the methods of [`Driver`] that a driver may leave out, and the functions that call a driver.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ptr;
use std::sync::{Arc, Mutex};

use super::*;
use crate::{DeviceId, DevicePtr, ErrorKind, Layout, StreamRef};

/// A driver of plain memory, which has only the methods that each driver must have.
#[derive(Debug, Default)]
struct Plain {
    health: Arc<Health>,
}

macro_rules! refused {
    ($($name:ident($($type:ty),*) -> $answer:ty;)*) => {
        $(fn $name(&self $(, _: $type)*) -> DriverResult<$answer> {
            defaults::unsupported(stringify!($name))
        })*
    };
}

macro_rules! refused_unsafe {
    ($($name:ident($($type:ty),*);)*) => {
        $(unsafe fn $name(&self $(, _: $type)*) -> DriverResult<()> {
            defaults::unsupported(stringify!($name))
        })*
    };
}

/// The methods that each driver must have. They refuse every call.
macro_rules! required {
    () => {
        fn health(&self) -> &Arc<Health> {
            &self.health
        }

        fn stream_is_gone(&self, _: StreamRef) -> bool {
            false
        }

        refused! {
            mem_get_info() -> MemoryInfo;
            synchronize() -> ();
            mem_alloc(u64) -> DevicePtr;
            stream_create(StreamFlags) -> StreamRef;
            stream_synchronize(StreamRef) -> ();
            stream_query(StreamRef) -> bool;
            stream_wait_event(StreamRef, Event) -> ();
            event_create(EventFlags) -> Event;
            event_query(Event) -> bool;
            event_synchronize(Event) -> ();
        }

        refused_unsafe! {
            mem_free(DevicePtr);
            stream_destroy(StreamRef);
            event_destroy(Event);
            memcpy_htod_async(DevicePtr, *const u8, u64, StreamRef);
            memcpy_dtoh_async(*mut u8, DevicePtr, u64, StreamRef);
            memcpy_dtod_async(DevicePtr, DevicePtr, u64, StreamRef);
            memset_d8_async(DevicePtr, u8, u64, StreamRef);
        }
    };
}

impl Driver for Plain {
    fn device(&self) -> DeviceId {
        DeviceId::cuda(3)
    }

    refused! {
        event_record(Event, StreamRef) -> ();
    }

    required!();
}

/// Returns the call that the driver does not support.
fn lacks<T: std::fmt::Debug>(answer: DriverResult<T>) -> String {
    let error = answer.unwrap_err();
    assert!(error.is_unsupported(), "{error}");
    error.to_string().split(':').next().unwrap_or_default().to_owned()
}

#[test]
fn a_function_that_a_driver_lacks_is_unsupported() {
    let driver = Plain::default();
    let (null, host, pool, stream) = (DevicePtr::NULL, HostPtr(0), MemPool(1), StreamRef::LEGACY);
    let (place, kind) = (MemLocation::Device, MemAllocationType::Pinned);
    let (handle, fabric, pointer) = (PhysicalHandle(1), FabricHandle([0; 64]), MemPoolPtrData([0; 64]));
    let attribute = MemPoolAttribute::ReleaseThreshold;
    // SAFETY: the driver does nothing.
    let said = unsafe {
        [
            lacks(driver.attribute(DeviceAttribute::MultiprocessorCount)),
            lacks(driver.thread_exchange_stream_capture_mode(CaptureMode::Relaxed)),
            lacks(driver.mem_alloc_managed(1)),
            lacks(driver.mem_get_address_range(null)),
            lacks(driver.pointer_kind(null)),
            lacks(driver.mem_prefetch_async(null, 1, false, stream)),
            lacks(driver.mem_advise(null, 1, MemAdvice::ReadMostly)),
            lacks(driver.mem_host_alloc(1, HostFlags::default())),
            lacks(driver.mem_free_host(host)),
            lacks(driver.mem_host_register(host, 1, HostFlags::default())),
            lacks(driver.mem_host_unregister(host)),
            lacks(driver.mem_host_get_device_pointer(host)),
            lacks(driver.mem_alloc_async(1, stream)),
            lacks(driver.mem_alloc_from_pool_async(1, pool, stream)),
            lacks(driver.mem_free_async(null, stream)),
            lacks(driver.mem_pool_create(MemPoolProps::default())),
            lacks(driver.mem_pool_destroy(pool)),
            lacks(driver.device_get_default_mem_pool()),
            lacks(driver.device_get_mem_pool()),
            lacks(driver.device_set_mem_pool(pool)),
            lacks(driver.mem_get_default_mem_pool(place, kind)),
            lacks(driver.mem_get_mem_pool(place, kind)),
            lacks(driver.mem_set_mem_pool(place, kind, pool)),
            lacks(driver.mem_pool_set_access(pool, AccessFlags::ReadWrite, &[])),
            lacks(driver.mem_pool_get_access(pool, AccessLocation::Host)),
            lacks(driver.mem_pool_export_to_fd(pool)),
            lacks(driver.mem_pool_import_from_fd(1)),
            lacks(driver.mem_pool_export_to_fabric(pool)),
            lacks(driver.mem_pool_import_from_fabric(&fabric)),
            lacks(driver.mem_pool_export_pointer(null)),
            lacks(driver.mem_pool_import_pointer(pool, &pointer)),
            lacks(driver.mem_pool_trim_to(pool, 0)),
            lacks(driver.mem_pool_get_attribute(pool, attribute)),
            lacks(driver.mem_pool_set_attribute(pool, attribute, 1)),
            lacks(driver.device_get_graph_mem_attribute(GraphMemAttribute::UsedMemCurrent)),
            lacks(driver.device_reset_graph_mem_attribute(GraphMemAttribute::UsedMemHigh)),
            lacks(driver.device_graph_mem_trim()),
            lacks(driver.mem_get_allocation_granularity()),
            lacks(driver.mem_address_reserve(1, 1)),
            lacks(driver.mem_address_free(null, 1)),
            lacks(driver.mem_create(1, PhysicalProps::default())),
            lacks(driver.mem_release(handle)),
            lacks(driver.mem_map(null, 1, handle)),
            lacks(driver.mem_unmap(null, 1)),
            lacks(driver.mem_set_access(null, 1, AccessFlags::ReadWrite, &[])),
            lacks(driver.mem_export_to_fd(handle)),
            lacks(driver.mem_import_from_fd(1)),
            lacks(driver.memcpy_peer_async(null, null, DeviceId::cuda(1), 1, stream)),
            lacks(driver.ipc_get_mem_handle(null)),
            lacks(driver.ipc_open_mem_handle(&IpcMemHandle([0; 64]))),
            lacks(driver.ipc_close_mem_handle(null)),
            lacks(driver.stream_ref(77)),
        ]
    };
    assert!(said.iter().all(|call| call.starts_with("cu")), "{said:?}");
}

#[test]
fn other_methods_have_an_answer_without_the_driver() {
    let driver = Plain::default();
    assert_eq!((driver.name(), driver.version(), driver.was_reset()), ("cuda:3".to_owned(), Ok(0), false));
    assert_eq!((driver.virtual_time_ns(), driver.can_be_accessed_by(DeviceId::cuda(1))), (None, Ok(false)));
    assert_eq!((driver.active_peers(), driver.pointer_mem_pool(DevicePtr::NULL)), (Ok(Vec::new()), Ok(None)));
    let stream = StreamRef::LEGACY;
    assert_eq!((driver.stream_is_capturing(stream), driver.stream_capture_id(stream)), (Ok(false), Ok(None)));
    assert_eq!(driver.event_record_if_alive(Event(1), stream), Ok(false));
    assert_eq!(lacks(driver.host_memory_info()), "host_memory_info");
    assert_eq!(lacks(driver.synchronize_beside_captures()), "synchronize", "the wait is the usual one");
    for (handle, default) in [(0, StreamRef::LEGACY), (1, StreamRef::LEGACY), (2, StreamRef::PER_THREAD)] {
        // SAFETY: the default streams are always alive.
        assert_eq!(unsafe { driver.stream_ref(handle) }, Ok(default));
    }
}

#[test]
fn pageable_memory_is_the_systems() {
    let driver = Plain::default();
    let ptr = driver.pageable_alloc(Layout::new(100)).unwrap();
    // SAFETY: the memory has 100 bytes, and is freed once.
    unsafe {
        ptr::write_bytes(ptr.as_mut_ptr(), 7, 100);
        driver.pageable_free(ptr, Layout::new(100));
    }
    assert!(driver.pageable_alloc(Layout::new(0)).unwrap_err().is_out_of_memory());
    assert!(driver.pageable_alloc(Layout::new(u64::MAX)).unwrap_err().is_out_of_memory());
}

thread_local! {
    static MODE: Cell<CaptureMode> = const { Cell::new(CaptureMode::Global) };
}

/// A driver with capture modes. It answers queries with the answers that a test gives it.
#[derive(Debug)]
struct Asked {
    device: DeviceId,
    health: Arc<Health>,
    /// The code with which the driver refuses to change a thread's mode; 0 for none.
    refusal: i32,
    /// The modes that threads were set to.
    modes: Mutex<Vec<CaptureMode>>,
    answers: Mutex<VecDeque<Result<i64, i32>>>,
    records: Mutex<Vec<(Event, StreamRef)>>,
}

impl Asked {
    fn new(ordinal: u32) -> Self {
        let (health, modes, answers) = Default::default();
        let records = Mutex::default();
        Self { device: DeviceId::cuda(ordinal), health, refusal: 0, modes, answers, records }
    }

    fn answering(answers: &[Result<i64, i32>]) -> Self {
        let driver = Self::new(0);
        driver.answers.lock().unwrap().extend(answers);
        driver
    }

    fn answer(&self) -> DriverResult<i64> {
        let answer = self.answers.lock().unwrap().pop_front().expect("no more calls were expected");
        answer.map_err(|code| DriverError::new(code, "asked"))
    }

    fn modes(&self) -> Vec<CaptureMode> {
        self.modes.lock().unwrap().clone()
    }
}

impl Driver for Asked {
    fn device(&self) -> DeviceId {
        self.device
    }

    fn thread_exchange_stream_capture_mode(&self, mode: CaptureMode) -> DriverResult<CaptureMode> {
        if self.refusal != 0 {
            return Err(DriverError::new(self.refusal, "asked"));
        }
        self.modes.lock().unwrap().push(mode);
        Ok(MODE.replace(mode))
    }

    fn attribute(&self, _: DeviceAttribute) -> DriverResult<i64> {
        self.answer()
    }

    fn stream_is_capturing(&self, _: StreamRef) -> DriverResult<bool> {
        self.answer().map(|answer| answer != 0)
    }

    fn event_record(&self, event: Event, stream: StreamRef) -> DriverResult<()> {
        self.records.lock().unwrap().push((event, stream));
        Ok(())
    }

    required!();
}

#[test]
fn a_guard_relaxes_its_thread_once_for_each_device() {
    use CaptureMode::{Relaxed, ThreadLocal};
    let [one, other] = [1, 2].map(Asked::new);
    MODE.set(ThreadLocal);
    let outer = CaptureModeGuard::relaxed(&one);
    drop(CaptureModeGuard::relaxed(&one));
    assert_eq!((MODE.get(), one.modes()), (Relaxed, vec![Relaxed]), "a guard inside another needs no call");
    let inner = CaptureModeGuard::relaxed(&other);
    assert_eq!((MODE.get(), other.modes()), (Relaxed, vec![Relaxed]));
    assert!(format!("{inner:?}").contains("previous: Some((Relaxed, "), "{inner:?}");
    drop(inner);
    assert_eq!((MODE.get(), other.modes()), (Relaxed, vec![Relaxed; 2]), "the mode of the outer guard");
    drop(CaptureModeGuard::relaxed(&one));
    assert_eq!(one.modes(), [Relaxed], "the outer guard is known again");
    drop(outer);
    assert_eq!((MODE.get(), one.modes()), (ThreadLocal, vec![Relaxed, ThreadLocal]));
    drop(CaptureModeGuard::relaxed(&one));
    assert_eq!(one.modes().len(), 4, "no guard is left");
}

#[test]
fn a_guard_does_nothing_for_a_lost_device_or_without_modes() {
    let lost = Asked::new(1);
    lost.health.note(&DriverError::new(DriverError::ILLEGAL_ADDRESS, "test"));
    drop(CaptureModeGuard::relaxed(&lost));
    assert_eq!(lost.modes(), []);

    for (code, is_lost) in [(DriverError::NOT_SUPPORTED, false), (DriverError::ILLEGAL_ADDRESS, true)] {
        let refusing = Asked { refusal: code, ..Asked::new(1) };
        let outer = CaptureModeGuard::relaxed(&refusing);
        assert_eq!((MODE.get(), refusing.health.is_lost()), (CaptureMode::Global, is_lost));
        // The outer guard does not protect the thread.
        let same = Asked::new(1);
        let inner = CaptureModeGuard::relaxed(&same);
        assert_eq!(MODE.get(), CaptureMode::Relaxed);
        drop(inner);
        drop(outer);
        assert_eq!(MODE.get(), CaptureMode::Global);
    }
}

#[test]
fn a_query_that_a_capture_refuses_finds_a_capture_and_other_errors_come_out() {
    let ask = |answer| is_capturing(&Asked::answering(&[answer]), StreamRef::LEGACY);
    assert_eq!((ask(Ok(0)), ask(Ok(1))), (Ok(false), Ok(true)));
    assert!((900..=908).all(|code| ask(Err(code)) == Ok(true)));
    for code in [DriverError::NO_SYMBOL, DriverError::NOT_SUPPORTED] {
        assert_eq!(ask(Err(code)), Ok(false));
    }
    for code in [1, 201, 400, 800, 899, 909] {
        assert_eq!(ask(Err(code)), Err(DriverError::new(code, "asked")));
    }
    let lost = Asked::answering(&[Err(DriverError::ILLEGAL_ADDRESS)]);
    assert!(is_capturing(&lost, StreamRef::LEGACY).is_err() && lost.health.is_lost());
}

#[test]
fn an_event_is_recorded_unless_a_capture_may_get_it() {
    const CAPTURED: Result<bool, i32> = Err(DriverError::CAPTURED_EVENT);
    let (event, stream) = (Event(5), StreamRef::PER_THREAD);
    for (answers, expected, is_recorded) in [
        (&[Ok(0), Ok(0)][..], Ok(true), true),
        (&[Ok(1)], Ok(false), false),
        (&[Err(906)], Ok(false), false),
        (&[Err(400)], Err(400), false),
        (&[Ok(0), Ok(1)], CAPTURED, true),
        (&[Ok(0), Err(906)], CAPTURED, true),
        (&[Ok(0), Err(400)], Err(400), true),
    ] {
        let driver = Asked::answering(answers);
        let recorded = record_unless_capturing(&driver, event, stream).map_err(|error| error.code());
        assert_eq!(recorded, expected, "{answers:?}");
        assert_eq!(*driver.records.lock().unwrap(), vec![(event, stream); usize::from(is_recorded)]);
    }
}

#[test]
fn an_attribute_is_there_if_the_driver_says_1() {
    let ask = |driver: &Asked| has_attribute(driver, DeviceAttribute::Integrated);
    for (answer, expected) in
        [(Ok(0), false), (Ok(1), true), (Ok(2), false), (Err(DriverError::NOT_SUPPORTED), false)]
    {
        assert!(ask(&Asked::answering(&[answer])).is_ok_and(|has| has == expected), "{answer:?}");
    }
    let driver = Asked::answering(&[Err(DriverError::ILLEGAL_ADDRESS)]);
    for _ in 0..2 {
        // The second call does not reach the driver.
        let error = ask(&driver).unwrap_err();
        assert_eq!((error.kind(), error.device()), (ErrorKind::Poisoned, Some(driver.device)));
    }
}

#[test]
fn a_set_of_handle_types_is_the_union_of_its_parts() {
    for (one, other) in (0..16).flat_map(|one| (0..16).map(move |other| (one, other))) {
        let [first, second] = [one, other].map(HandleTypes::from_bits);
        assert_eq!((first | second).bits(), one | other);
        assert_eq!(first.contains(second), one | other == one);
        assert_eq!(first.is_none(), first == HandleTypes::NONE);
    }
}

#[test]
fn a_place_that_accesses_a_pool_has_a_name() {
    use AccessLocation::{Device, Host, HostNuma, HostNumaCurrent};
    let names = [Device(DeviceId::cuda(1)), Host, HostNuma(2), HostNumaCurrent].map(|it| it.to_string());
    assert_eq!(
        names,
        ["cuda:1", "the host", "NUMA node 2 of the host", "the thread's NUMA node of the host"]
    );
}

/// A reset is the stronger reason: the device can be opened again.
#[test]
fn a_device_is_lost_after_a_sticky_error_or_a_reset() {
    let code = |code| DriverError::new(code, "test");
    let is = |health: &Health| (health.is_lost(), health.is_reset());
    let sticky = Health::default();
    sticky.note(&code(DriverError::INVALID_VALUE));
    assert_eq!(is(&sticky), (false, false));
    sticky.note(&code(DriverError::ILLEGAL_ADDRESS));
    assert_eq!(is(&sticky), (true, false));
    assert!(sticky.error().to_string().contains("restart the process"));
    sticky.note_reset();
    assert_eq!(is(&sticky), (true, true));

    let reset = Health::default();
    for later in [DriverError::CONTEXT_IS_DESTROYED, DriverError::ILLEGAL_ADDRESS] {
        reset.note(&code(later));
        assert_eq!(is(&reset), (true, true));
    }
    assert!(reset.error().to_string().contains("open the device again"));
    assert!(!reset.is_elsewhere(), "this process opened it");
}
