//! Tests the state after a pool's slow path is interrupted: the driver refuses a call and a subscriber of its
//! events panics, or an error of upstream uses the pool when it is dropped.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};
use std::time::Duration;
use std::{error, fmt};

use millpond_core::driver::Driver;
use millpond_core::{
    DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, DriverError, Error, ErrorKind, Layout, Result,
    StreamRef,
};
use millpond_driver::sim::{FaultPlan, SimConfig, SimDevice, SimMachine};
use millpond_driver::{CallKind, CountingDriver};
use millpond_resources::{
    CallbackMemoryResource, CudaMemoryResource, PagesMode, PoolLayer, PoolMemoryResource,
};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata};

const S: StreamRef = StreamRef::LEGACY;
const MIB: u64 = 1 << 20;

thread_local! {
    /// The text of the event at which the subscriber panics, once.
    static PANICS_AT: RefCell<Option<&'static str>> = const { RefCell::new(None) };
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

struct Panics;

impl tracing::Subscriber for Panics {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let text = format!("{event:?}");
        if PANICS_AT.with_borrow(|at| at.is_some_and(|at| text.contains(at))) {
            PANICS_AT.set(None);
            PANICS.set(PANICS.get() + 1);
            panic!("on purpose");
        }
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Runs a call in which a subscriber panics at an event with this text.
fn panics_at<T>(text: &'static str, call: impl FnOnce() -> T) {
    let _events = millpond_testkit::events::hear(Panics);
    let before = PANICS.get();
    PANICS_AT.set(Some(text));
    let done = catch_unwind(AssertUnwindSafe(call));
    PANICS_AT.set(None);
    assert!(done.is_err() && PANICS.get() > before, "there is no event `{text}`");
}

type Pool = PoolMemoryResource<CudaMemoryResource>;

fn pool_over_pages(device: &Arc<SimDevice>) -> Pool {
    let cuda = CudaMemoryResource::new(device.clone());
    cuda.layer(PoolLayer::new().pages(PagesMode::On)).expect("an empty pool")
}

fn give(pool: &Pool, ptr: DevicePtr, bytes: u64) {
    // SAFETY: each block came from the pool with this size and is freed once.
    unsafe { pool.deallocate_bytes(ptr, bytes, S) };
}

/// The refused growth is reported after the next rung has served the request; the block is free again.
#[test]
fn a_block_that_the_caller_never_got_is_free_again() {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let pool = pool_over_pages(&device);
    let all = device.mem_get_info().expect("a device").free / (2 * MIB) * 2 * MIB;
    give(&pool, pool.allocate_bytes(all, S).expect("there is room"), all);
    panics_at("did not grow", || pool.allocate_bytes(4096, S));
    pool.trim(0).expect("the device is there");
    assert_eq!(pool.pool_bytes(), 0);
    pool.validate();
}

/// Another process took the memory, and the report of that panics. The pool gives up the plan.
#[test]
fn a_plan_whose_report_panics_is_given_up() {
    let device = SimDevice::new(SimConfig::h200());
    let pool = pool_over_pages(&device);
    device.set_faults(FaultPlan::nth_of(CallKind::MemCreate, 0, DriverError::OUT_OF_MEMORY));
    panics_at("took the free memory", || pool.allocate_bytes(2 * MIB, S));
    device.set_faults(FaultPlan::none());
    assert_eq!(pool.pool_bytes(), 0);
    give(&pool, pool.allocate_bytes(2 * MIB, S).expect("there is room"), 2 * MIB);
    pool.validate();
}

/// A request takes the blocks out of the caches, and plans a growth. The report about the caches panics
/// before the growth is begun. So the pool gives it up.
#[test]
fn a_step_that_was_not_begun_is_given_up() {
    for pages in [PagesMode::On, PagesMode::Off] {
        let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
        let cuda = CudaMemoryResource::new(device.clone());
        let pool = cuda.layer(PoolLayer::new().pages(pages)).expect("an empty pool");
        let blocks = [(); 8].map(|()| pool.allocate_bytes(MIB, S).expect("there is room"));
        blocks.into_iter().for_each(|ptr| give(&pool, ptr, MIB));
        panics_at("flushed caches", || pool.allocate_bytes(200 * MIB, S));
        let reserved = pool.pool_bytes();
        assert!(reserved < 200 * MIB, "the growth was not begun");
        pool.validate();
        give(&pool, pool.allocate_bytes(200 * MIB, S).expect("there is room"), 200 * MIB);
        pool.trim(0).expect("the device is there");
        assert_eq!(pool.pool_bytes(), 0);
        pool.validate();
    }
}

/// If the driver refuses to unmap memory, the memory goes back later, even if the report of the refusal
/// panics: in `trim`, and in a request that returns free memory.
#[test]
fn a_release_whose_report_panics_is_tried_again() {
    for text in ["the driver reports an error", "memory could not be released"] {
        for is_request in [false, true] {
            let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
            let pool = pool_over_pages(&device);
            let [free, kept] = [(); 2].map(|()| pool.allocate_bytes(16 * MIB, S).expect("there is room"));
            give(&pool, free, 16 * MIB);
            let faults = FaultPlan::nth_of(CallKind::MemUnmap, 0, DriverError::NOT_PERMITTED);
            device.set_faults(faults.persistent());
            let aligned = Layout::with_alignment(40 * MIB, 4 * MIB).expect("a power of two");
            panics_at(text, || match is_request {
                true => pool.allocate(aligned, S).map(|_| ()),
                false => pool.trim(0).map(|_| ()),
            });
            device.set_faults(FaultPlan::none());
            give(&pool, kept, 16 * MIB);
            pool.trim(0).expect("the device is there");
            pool.trim(0).expect("the device is there");
            assert_eq!(pool.pool_bytes(), 0, "{text}, by a request: {is_request}");
            pool.validate();
        }
    }
}

/// The report of an admission panicked. Afterwards, memory goes back to the driver as before.
#[test]
fn an_admission_whose_report_panics_is_over() {
    let machine = SimMachine::new();
    let first = machine.add_device(SimConfig::h200());
    let pool = pool_over_pages(&first);
    let ptr = pool.allocate_bytes(16 * MIB, S).expect("there is room");
    let second = machine.add_device(SimConfig::h200());
    let faults = FaultPlan::nth_of(CallKind::MemSetAccess, 0, DriverError::OUT_OF_MEMORY);
    first.set_faults(faults.persistent());
    panics_at("the driver is out of memory", || pool.add_peer(second.device()));
    first.set_faults(FaultPlan::none());
    give(&pool, ptr, 16 * MIB);
    pool.trim(0).expect("the device is there");
    assert_eq!(pool.pool_bytes(), 0);
}

type Use = dyn Fn() + Send + Sync;

/// A cause of an error that calls the pool when it is dropped.
struct Cause(Arc<OnceLock<Weak<Use>>>);

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a cause")
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a cause")
    }
}

impl error::Error for Cause {}

impl Drop for Cause {
    fn drop(&mut self) {
        if let Some(call) = self.0.get().and_then(Weak::upgrade) {
            call();
        }
    }
}

/// Plain memory, up to `most` bytes per request, that notes the requested sizes.
fn bounded(
    device: &Arc<SimDevice>,
    most: Arc<AtomicU64>,
    asked: Arc<Mutex<Vec<u64>>>,
    refuse: impl Fn(Layout, StreamRef) -> Error + Send + Sync + 'static,
) -> CallbackMemoryResource {
    let cuda = Arc::new(CudaMemoryResource::new(device.clone()));
    let frees = Arc::clone(&cuda);
    let allocate = move |layout: Layout, stream| -> Result<DevicePtr> {
        asked.lock().expect("no call panics").push(layout.bytes());
        match layout.bytes() > most.load(Ordering::Relaxed) {
            true => Err(refuse(layout, stream)),
            false => cuda.allocate(layout, stream),
        }
    };
    // SAFETY: both functions pass the call to plain memory, or hand out nothing.
    unsafe {
        CallbackMemoryResource::new(device.clone(), allocate, move |ptr, layout, stream| {
            frees.deallocate(ptr, layout, stream);
        })
        .not_stream_ordered()
    }
}

/// An error of upstream is dropped without the pool's lock, so its cause may use the pool.
#[test]
fn an_error_of_upstream_may_use_the_pool_at_its_end() {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        let device = SimDevice::new(SimConfig::h200());
        let at_end = Arc::new(OnceLock::new());
        let cause = Arc::clone(&at_end);
        let refuse = move |layout, stream| {
            let error = Error::new(ErrorKind::OutOfMemory, "too little").for_request(layout, stream);
            error.caused_by(Cause(Arc::clone(&cause)))
        };
        let upstream = bounded(&device, Arc::default(), Arc::default(), refuse);
        let pool = upstream.layer(PoolLayer::new().pages(PagesMode::Off)).expect("an empty pool");
        let pool = Arc::new(pool);
        let same = Arc::clone(&pool);
        let call: Arc<Use> = Arc::new(move || _ = same.pool_bytes());
        at_end.set(Arc::downgrade(&call)).expect("it is set once");
        assert!(pool.allocate_bytes(3 * MIB, S).is_err());
        done.send(()).expect("the test waits");
    });
    assert!(is_done.recv_timeout(Duration::from_secs(60)).is_ok(), "the pool's lock is held");
}

/// After a refusal, upstream is asked again only if free memory goes back to it; memory that went back
/// earlier does not count.
#[test]
fn upstream_is_asked_once_for_the_same_memory() {
    let device = SimDevice::new(SimConfig::h200());
    let (most, asked) = (Arc::new(AtomicU64::new(u64::MAX)), Arc::<Mutex<Vec<u64>>>::default());
    let upstream = bounded(&device, Arc::clone(&most), Arc::clone(&asked), Error::out_of_memory);
    let pool = upstream.layer(PoolLayer::new().pages(PagesMode::Off)).expect("an empty pool");
    let ptr = pool.allocate_bytes(32 * MIB, S).expect("there is room");
    // SAFETY: the block came from the pool with this size and is freed once.
    unsafe { pool.deallocate_bytes(ptr, 32 * MIB, S) };
    most.store(0, Ordering::Relaxed);
    asked.lock().expect("no call panics").clear();
    assert!(pool.allocate_bytes(64 * MIB, S).is_err());
    assert_eq!(*asked.lock().expect("no call panics"), [64 * MIB]);
}

/// A request beyond the pool's maximum asks the driver nothing about the device.
#[test]
fn an_impossible_request_asks_little() {
    for pages in [PagesMode::On, PagesMode::Off] {
        let device = SimDevice::new(SimConfig::h200());
        let layer = PoolLayer::new().pages(pages).maximum_bytes(64 * MIB);
        let pool = CudaMemoryResource::new(device.clone()).layer(layer).expect("an empty pool");
        let calls = Arc::<Mutex<Vec<String>>>::default();
        let noted = Arc::clone(&calls);
        device.observe_calls(Some(Arc::new(move |call: &str| {
            noted.lock().expect("no call panics").push(call.to_owned());
        })));
        assert!(pool.allocate_bytes(128 * MIB, S).is_err());
        device.observe_calls(None);
        let calls = calls.lock().expect("no call panics");
        let capturing = calls.iter().filter(|call| call.contains("IsCapturing")).count();
        assert!(capturing <= 1, "the report alone asks: {calls:?}");
    }
}

/// A growth that maps only free memory of the pool asks the driver nothing about the device.
#[test]
fn a_growth_without_new_memory_does_not_read_the_device() {
    let counter = CountingDriver::new(SimDevice::new(SimConfig::h200()));
    let layer = PoolLayer::new().pages(PagesMode::On);
    let pool = CudaMemoryResource::new(counter.clone()).layer(layer).expect("an empty pool");
    let blocks = [(); 4].map(|()| pool.allocate_bytes(16 * MIB, S).expect("there is room"));
    give(&pool, blocks[0], 16 * MIB);
    give(&pool, blocks[2], 16 * MIB);
    let readings = || counter.counts().get(CallKind::MemGetInfo).calls;
    let (reserved, read, maps) =
        (pool.pool_bytes(), readings(), counter.counts().get(CallKind::MemMap).calls);
    pool.allocate_bytes(32 * MIB, S).expect("both free blocks together");
    assert_eq!((pool.pool_bytes(), readings()), (reserved, read));
    assert!(counter.counts().get(CallKind::MemMap).calls > maps, "the pool maps its memory again");
}
