//! Tests which free memory a pool releases: memory that was idle for a while, and memory that another pool
//! needs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

use millpond_core::driver::{CaptureMode, Driver, StreamFlags};
use millpond_core::{DeviceMemoryResourceExt, DevicePtr, StreamRef};
use millpond_driver::sim::{Access, SimConfig, SimDevice};
use millpond_driver::{CallKind, CountingDriver};
use millpond_resources::{CudaMemoryResource, Decay, PagesMode, PoolLayer, PoolMemoryResource};
use millpond_testkit::Checked;
use millpond_testkit::hooked::HookedDriver;

const MIB: u64 = 1 << 20;
const SECOND: Duration = Duration::from_secs(1);

type Pool = PoolMemoryResource<CudaMemoryResource>;

struct Setup {
    device: Arc<SimDevice>,
    hooks: Arc<HookedDriver>,
    counter: Arc<CountingDriver>,
}

impl Setup {
    fn new(bytes: u64) -> Self {
        let device = SimDevice::new(SimConfig::with_capacity(bytes));
        let hooks = HookedDriver::new(device.clone());
        let counter = CountingDriver::new(hooks.clone());
        Self { device, hooks, counter }
    }

    /// A pool under the oracles of the device.
    fn pool(&self, layer: PoolLayer) -> Arc<Checked<Pool>> {
        let pool = CudaMemoryResource::new(self.counter.clone()).layer(layer).expect("there is memory");
        Arc::new(Checked::new(pool, Some(self.device.clone())))
    }

    fn stream(&self) -> StreamRef {
        self.device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream")
    }

    fn calls(&self, kind: CallKind) -> u64 {
        self.counter.counts().get(kind).calls
    }

    fn assert_order_was_kept(&self) {
        assert_eq!(self.device.violations(), []);
    }
}

fn take(pool: &Checked<Pool>, bytes: u64, stream: StreamRef) -> DevicePtr {
    pool.allocate_bytes(bytes, stream).expect("there is memory")
}

fn give(pool: &Checked<Pool>, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
    // SAFETY: the block came from the pool with this size and is freed once; nothing uses it.
    unsafe { pool.deallocate_bytes(ptr, bytes, stream) };
}

/// Blocks of all kinds on several streams.
fn fill(pool: &Checked<Pool>, streams: &[StreamRef]) -> Vec<(DevicePtr, u64, StreamRef)> {
    let sizes = [300, 20_000, 300_000, 3 * MIB, 9 * MIB];
    let all = sizes.iter().cycle().zip(streams.iter().cycle()).take(60);
    all.map(|(bytes, stream)| (take(pool, *bytes, *stream), *bytes, *stream)).collect()
}

#[test]
fn an_idle_pool_gives_all_back_little_by_little() {
    let setup = Setup::new(1024 * MIB);
    let pool = setup.pool(PoolLayer::new());
    let streams: Vec<StreamRef> = (0..3).map(|_| setup.stream()).collect();
    for (ptr, bytes, stream) in fill(&pool, &streams) {
        give(&pool, ptr, bytes, stream);
    }
    let held: Vec<u64> = (0..16)
        .map(|second| {
            pool.inner().decay_step(second * SECOND).expect("the driver gives no error");
            pool.inner().validate();
            pool.inner().pool_bytes()
        })
        .collect();
    assert!(held.is_sorted_by(|a, b| a >= b), "{held:?}");
    assert!(held[2] > held[0] / 2 && held[15] == 0, "{held:?}");
    let steps = held.windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert!(steps > 4, "it went at once: {held:?}");
    assert_eq!(setup.calls(CallKind::Synchronize), 0, "the device was waited for");
    setup.assert_order_was_kept();
}

/// Fronts, arenas and the large heap: the free memory of an idle thread also goes back.
#[test]
fn what_an_idle_thread_keeps_goes_back() {
    let setup = Setup::new(256 * MIB);
    let pool = setup.pool(PoolLayer::new());
    let stream = setup.stream();
    std::thread::scope(|scope| {
        let pool = &pool;
        let (done, wait) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        scope.spawn(move || {
            let blocks: Vec<DevicePtr> = (0..100).map(|_| take(pool, 1000, stream)).collect();
            blocks.into_iter().for_each(|ptr| give(pool, ptr, 1000, stream));
            done.send(()).expect("the test waits");
            ended.recv().expect("the test ends");
        });
        wait.recv().expect("the thread answers");
        assert!(pool.inner().pool_bytes() > 0);
        for second in 0..16 {
            pool.inner().decay_step(second * SECOND).expect("the driver gives no error");
        }
        assert_eq!(pool.inner().pool_bytes(), 0);
        pool.inner().validate();
        end.send(()).expect("the thread waits");
    });
}

#[test]
fn the_initial_size_stays_and_off_is_off() {
    for (layer, least) in [
        (PoolLayer::new().initial_bytes(64 * MIB), 64 * MIB),
        (PoolLayer::new().decay(Decay::Off), 150 * MIB),
    ] {
        let setup = Setup::new(1024 * MIB);
        let pool = setup.pool(layer);
        let stream = setup.stream();
        let ptr = take(&pool, 150 * MIB, stream);
        give(&pool, ptr, 150 * MIB, stream);
        for second in 0..30 {
            pool.inner().decay_step(second * SECOND).expect("the driver gives no error");
        }
        let held = pool.inner().pool_bytes();
        assert!(held >= least && held <= least + 8 * MIB, "{} holds {held}", pool.inner());
    }
}

/// A training loop: every step takes the same blocks.
#[test]
fn what_is_taken_again_and_again_stays() {
    let setup = Setup::new(1024 * MIB);
    let pool = setup.pool(PoolLayer::new());
    let streams = [setup.stream(), setup.stream()];
    for tenth in 0..300 {
        let now = tenth * SECOND / 10;
        let blocks = fill(&pool, &streams);
        pool.inner().decay_step(now).expect("the driver gives no error");
        blocks.into_iter().for_each(|(ptr, bytes, stream)| give(&pool, ptr, bytes, stream));
        pool.inner().decay_step(now + SECOND / 20).expect("the driver gives no error");
    }
    assert_eq!(setup.calls(CallKind::MemRelease), 0);
    setup.assert_order_was_kept();
}

/// Memory with unfinished work stays: the pool queries the driver, and does not wait for it.
#[test]
fn what_a_stream_still_uses_stays() {
    let setup = Setup::new(1024 * MIB);
    let pool = setup.pool(PoolLayer::new());
    let stream = setup.stream();
    let ptr = take(&pool, 100 * MIB, stream);
    // Outlasts the virtual time of the calls below.
    for _ in 0..800 {
        setup.device.launch(stream, &[Access::write(ptr, 100 * MIB, 1)]);
    }
    give(&pool, ptr, 100 * MIB, stream);
    for second in 0..30 {
        pool.inner().decay_step(second * SECOND).expect("the driver gives no error");
    }
    assert!(pool.inner().pool_bytes() >= 100 * MIB, "memory went back that is in use");
    assert!(setup.calls(CallKind::EventQuery) > 0, "the event was never queried");
    setup.device.synchronize().expect("the device is there");
    for second in 30..60 {
        pool.inner().decay_step(second * SECOND).expect("the driver gives no error");
    }
    assert_eq!(pool.inner().pool_bytes(), 0);
    assert_eq!(setup.calls(CallKind::Synchronize), 0);
    setup.assert_order_was_kept();
}

/// If memory is freed during the driver's query, it counts from a time after the query.
#[test]
fn an_answer_is_about_what_was_given_back_before() {
    let setup = Setup::new(1024 * MIB);
    let pool = setup.pool(PoolLayer::new());
    let stream = setup.stream();
    let before = take(&pool, 20 * MIB, stream);
    let apart = take(&pool, 2 * MIB, stream);
    // Adjacent free blocks would join.
    let [later, between, last] = [30, 2, 30].map(|mib| take(&pool, mib * MIB, stream));
    give(&pool, before, 20 * MIB, stream);
    let (device, same) = (Arc::clone(&setup.device), Arc::clone(&pool));
    setup.hooks.before_query(move || {
        for _ in 0..800 {
            device.launch(stream, &[later, last].map(|ptr| Access::write(ptr, 30 * MIB, 1)));
        }
        // The thread keeps one of them, so the pool gets the other.
        [later, last].into_iter().for_each(|ptr| give(&same, ptr, 30 * MIB, stream));
    });
    for second in 0..30 {
        pool.inner().decay_step(second * SECOND).expect("the driver gives no error");
    }
    assert_eq!(setup.hooks.hooks_left(), 0);
    let held = pool.inner().pool_bytes();
    assert!((64 * MIB..80 * MIB).contains(&held), "{held}");
    [apart, between].into_iter().for_each(|ptr| give(&pool, ptr, 2 * MIB, stream));
    setup.assert_order_was_kept();
}

/// While the decay thread is held up in the driver, allocations that hit are not delayed.
#[test]
fn an_allocation_that_hits_never_waits_for_the_driver() {
    let setup = Setup::new(1024 * MIB);
    let pool = setup.pool(PoolLayer::new());
    let stream = setup.stream();
    let sizes = [300, 40_000, 200_000, 3 * MIB];
    let blocks: Vec<Vec<DevicePtr>> =
        sizes.iter().map(|bytes| (0..8).map(|_| take(&pool, *bytes, stream)).collect()).collect();
    let idle = take(&pool, 64 * MIB, stream);
    give(&pool, idle, 64 * MIB, stream);
    let (enter, entered) = mpsc::channel();
    let out_of_driver = Arc::new(Barrier::new(2));
    let (end, leave) = (enter.clone(), Arc::clone(&out_of_driver));
    setup.hooks.before_unmap(move || {
        enter.send(()).expect("the test waits");
        leave.wait();
    });
    std::thread::scope(|scope| {
        let pool = &pool;
        let decaying = scope.spawn(move || {
            let step = |second| pool.inner().decay_step(second * SECOND).expect("no error");
            let released: u64 = (0..30).map(step).sum();
            // If no step unmaps memory, the test fails.
            _ = end.send(());
            released
        });
        entered.recv().expect("the thread has an end of the channel");
        // All ways of a call that needs no new memory: fronts, arenas, the large heap, and another thread's
        // blocks.
        for (bytes, blocks) in sizes.iter().zip(&blocks) {
            for ptr in blocks {
                give(pool, *ptr, *bytes, stream);
                assert!(take(pool, *bytes, stream).address() != 0);
            }
            let fresh = scope.spawn(move || {
                let ptr = take(pool, 300, stream);
                give(pool, ptr, 300, stream);
            });
            fresh.join().expect("it does not fail");
        }
        assert!(!decaying.is_finished() && setup.hooks.hooks_left() == 0);
        out_of_driver.wait();
        assert!(decaying.join().expect("it does not fail") >= 56 * MIB);
    });
    setup.assert_order_was_kept();
}

#[test]
fn a_second_pool_gets_what_decayed() {
    let setup = Setup::new(256 * MIB);
    let (first, second) = (setup.pool(PoolLayer::new()), setup.pool(PoolLayer::new()));
    let stream = setup.stream();
    let ptr = take(&first, 200 * MIB, stream);
    give(&first, ptr, 200 * MIB, stream);
    for at in 0..30 {
        first.inner().decay_step(at * SECOND).expect("the driver gives no error");
    }
    assert_eq!(setup.device.live_bytes(), 0, "another process would not get it");
    let waited = setup.calls(CallKind::Synchronize);
    let ptr = take(&second, 200 * MIB, stream);
    assert_eq!(setup.calls(CallKind::Synchronize), waited);
    give(&second, ptr, 200 * MIB, stream);
    setup.assert_order_was_kept();
}

/// Before memory is out, a pool asks other pools for free memory; it does not wait for the decay.
#[test]
fn a_second_pool_gets_what_the_first_has_free() {
    for first_pages in [PagesMode::On, PagesMode::Off] {
        for second_pages in [PagesMode::On, PagesMode::Off] {
            let setup = Setup::new(256 * MIB);
            let first = setup.pool(PoolLayer::new().pages(first_pages));
            let second = setup.pool(PoolLayer::new().pages(second_pages));
            let (one, other) = (setup.stream(), setup.stream());
            let kept = take(&first, 5 * MIB, one);
            let free: Vec<DevicePtr> = (0..10).map(|_| take(&first, 18 * MIB, one)).collect();
            free.iter().for_each(|ptr| {
                setup.device.launch(one, &[Access::write(*ptr, 18 * MIB, 1)]);
                give(&first, *ptr, 18 * MIB, one);
            });
            // Work on the first pool's blocks is not done, so this waits once.
            let ptr = take(&second, 200 * MIB, other);
            setup.device.launch(other, &[Access::write(ptr, 200 * MIB, 2)]);
            setup.device.launch(one, &[Access::write(kept, 5 * MIB, 3)]);
            let error = first.allocate_bytes(100 * MIB, one).expect_err("the second one uses it");
            assert!(error.is_out_of_memory(), "{error}");
            give(&second, ptr, 200 * MIB, other);
            let back = take(&first, 200 * MIB, one);
            setup.device.launch(one, &[Access::write(back, 200 * MIB, 4)]);
            for pool in [&first, &second] {
                pool.inner().validate();
            }
            setup.assert_order_was_kept();
        }
    }
}

/// A pool asks only pools of the same device, and only if the driver refused.
#[test]
fn a_pools_own_maximum_does_not_concern_other_pools() {
    let setup = Setup::new(256 * MIB);
    let (first, second) =
        (setup.pool(PoolLayer::new()), setup.pool(PoolLayer::new().maximum_bytes(200 * MIB)));
    let stream = setup.stream();
    let ptr = take(&first, 50 * MIB, stream);
    give(&first, ptr, 50 * MIB, stream);
    let most = take(&second, 190 * MIB, stream);
    second.allocate_bytes(20 * MIB, stream).expect_err("that is more than its maximum");
    assert!(first.inner().pool_bytes() >= 50 * MIB);
    give(&second, most, 190 * MIB, stream);
}

/// Two pools ask each other at the same time. Neither holds a lock that the other waits for.
#[test]
fn pools_that_ask_each_other_do_not_wait_for_ever() {
    let setup = Setup::new(128 * MIB);
    let streams = [setup.stream(), setup.stream()];
    let rounds = if cfg!(miri) { 3 } else { 200 };
    for pages in [PagesMode::On, PagesMode::Off] {
        let pools = [(); 2].map(|()| setup.pool(PoolLayer::new().pages(pages)));
        let served = [(); 2].map(|()| AtomicBool::new(false));
        std::thread::scope(|scope| {
            for ((pool, stream), served) in pools.iter().zip(streams).zip(&served) {
                scope.spawn(move || {
                    for round in 0..rounds {
                        let bytes = (40 + round % 40) * MIB;
                        match pool.allocate_bytes(bytes, stream) {
                            Ok(ptr) => {
                                served.store(true, Ordering::Relaxed);
                                give(pool, ptr, bytes, stream);
                            }
                            Err(error) => assert!(error.is_out_of_memory(), "{error}"),
                        }
                    }
                });
            }
        });
        assert!(served.iter().all(|served| served.load(Ordering::Relaxed)));
        pools.iter().for_each(|pool| pool.inner().validate());
    }
    setup.assert_order_was_kept();
}

/// A thread that captures a graph may not query whether work is done, on any pool.
#[test]
fn no_event_is_queried_during_a_capture() {
    let setup = Setup::new(256 * MIB);
    let (first, second) = (setup.pool(PoolLayer::new()), setup.pool(PoolLayer::new()));
    let (one, other) = (setup.stream(), setup.stream());
    let ptr = take(&first, 200 * MIB, one);
    give(&first, ptr, 200 * MIB, one);
    setup.device.begin_capture(other, CaptureMode::Global).expect("it does not capture");
    let questions = || [CallKind::EventQuery, CallKind::EventRecord].map(|kind| setup.calls(kind));
    let before = questions();
    let error = second.allocate_bytes(100 * MIB, other).expect_err("it belongs to a stream of the first's");
    assert!(error.is_out_of_memory(), "{error}");
    assert_eq!(questions(), before, "that would have ended the capture");
    setup.device.end_capture(other).expect("no call ended it");
    let ptr = take(&second, 100 * MIB, other);
    give(&second, ptr, 100 * MIB, other);
    setup.assert_order_was_kept();
}

/// Other pools may hold free memory in larger pieces than the request lacks.
#[test]
fn larger_free_pieces_of_other_pools_serve_a_small_shortage() {
    let setup = Setup::new(256 * MIB);
    let (first, second) = (setup.pool(PoolLayer::new()), setup.pool(PoolLayer::new()));
    let stream = setup.stream();
    let all: Vec<DevicePtr> = std::iter::from_fn(|| first.allocate_bytes(6 * MIB, stream).ok()).collect();
    let rest: Vec<DevicePtr> = std::iter::from_fn(|| first.allocate_bytes(2 * MIB, stream).ok()).collect();
    all.iter().for_each(|ptr| give(&first, *ptr, 6 * MIB, stream));
    let ptr = take(&second, 1000, stream);
    give(&second, ptr, 1000, stream);
    rest.iter().for_each(|ptr| give(&first, *ptr, 2 * MIB, stream));
    setup.assert_order_was_kept();
}

/// Streams made by other libraries can only be waited for.
#[test]
fn memory_freed_on_foreign_streams_is_reclaimed_from_other_pools() {
    let setup = Setup::new(256 * MIB);
    let (first, second) = (setup.pool(PoolLayer::new()), setup.pool(PoolLayer::new()));
    let (one, other) = (setup.stream(), setup.stream());
    setup.hooks.foreign(one);
    let ptr = take(&first, 200 * MIB, one);
    setup.device.launch(one, &[Access::write(ptr, 200 * MIB, 1)]);
    give(&first, ptr, 200 * MIB, one);
    let ptr = take(&second, 200 * MIB, other);
    setup.device.launch(other, &[Access::write(ptr, 200 * MIB, 2)]);
    give(&second, ptr, 200 * MIB, other);
    setup.assert_order_was_kept();
}

#[test]
fn a_step_at_any_time_is_allowed() {
    let setup = Setup::new(64 * MIB);
    let pool = setup.pool(PoolLayer::new());
    for now in [Duration::MAX, Duration::MAX, SECOND, Duration::ZERO] {
        assert_eq!(pool.inner().decay_step(now).expect("the driver gives no error"), 0);
    }
}

/// Steps that come sooner than planned do nothing, so a busy program does not pay for them.
#[test]
fn a_step_before_its_time_releases_nothing() {
    const GIB: u64 = 1 << 30;
    let setup = Setup::new(16 * GIB);
    let pool = setup.pool(PoolLayer::new().decay(Decay::Over(20 * SECOND)));
    let stream = setup.stream();
    let blocks: Vec<DevicePtr> = (0..2048).map(|_| take(&pool, 4 * MIB, stream)).collect();
    blocks.into_iter().for_each(|ptr| give(&pool, ptr, 4 * MIB, stream));
    let step = |now| pool.inner().decay_step(now).expect("the device is there");
    assert_eq!(step(10 * SECOND), 0, "the step saw all memory in use");
    let soon = 10 * SECOND + Duration::from_millis(1200);
    assert_eq!((step(soon), step(soon)), (0, 0));
    assert!(step(29 * SECOND) > 0);
    setup.assert_order_was_kept();
}
