//! Tests how resources of one device share its free memory: they take no memory for a request that fails
//! anyway, and they serve each request that can be served.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};

use millpond_core::driver::{MemPoolAttribute, StreamFlags};
use millpond_core::{
    DeviceId, DeviceMemoryResource, DeviceMemoryResourceExt, Driver, DriverHandle, Layout, StreamRef,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_driver::{CallKind, CountingDriver};
use millpond_resources::{CudaMemoryResource, FixedSizeLayer, PagesMode, PoolLayer, PoolMemoryResource};
use millpond_testkit::hooked::HookedDriver;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const S: StreamRef = StreamRef::LEGACY;
const MODES: [PagesMode; 2] = [PagesMode::On, PagesMode::Off];

type Pool = PoolMemoryResource<CudaMemoryResource>;

fn pool_over(driver: DriverHandle, pages: PagesMode) -> Pool {
    CudaMemoryResource::new(driver).layer(PoolLayer::new().pages(pages)).expect("a pool needs no memory")
}

/// A device with slow calls.
fn slow_device(bytes: u64) -> Arc<HookedDriver> {
    let driver = HookedDriver::new(SimDevice::new(SimConfig::with_capacity(bytes)));
    driver.take_time();
    driver
}

fn give(resource: &dyn DeviceMemoryResource, ptr: millpond_core::DevicePtr, bytes: u64) {
    // SAFETY: the block came from this resource with this size and is freed once; nothing uses it.
    unsafe { resource.deallocate(ptr, Layout::new(bytes), S) };
}

/// Returns the kinds of calls that `work` makes.
fn calls(counter: &CountingDriver, work: impl FnOnce()) -> BTreeSet<&'static str> {
    let before = counter.counts();
    work();
    let after = counter.counts();
    let more = CallKind::ALL.into_iter().filter(|kind| after.get(*kind).calls > before.get(*kind).calls);
    more.map(CallKind::name).collect()
}

/// A request for more than the device can have only queries the free memory. It takes no memory, queries no
/// event, does not wait, and releases nothing.
#[test]
fn issue_9_a_hopeless_request_asks_what_is_free_and_nothing_else() {
    for pages in MODES {
        let device = SimDevice::new(SimConfig::with_capacity(GIB));
        let elsewhere = device.mem_alloc(512 * MIB).expect("there is room");
        let counter = CountingDriver::new(device.clone());
        let [asking, other] = [(); 2].map(|()| pool_over(counter.clone(), pages));
        let stream = device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
        // Both hold a free block of a stream whose work a request would have to query.
        for pool in [&asking, &other] {
            let ptr = pool.allocate_bytes(64 * MIB, stream).expect("there is room");
            // SAFETY: the block is live, and freed once.
            unsafe { pool.deallocate_bytes(ptr, 64 * MIB, stream) };
        }
        let asked = calls(&counter, || {
            let error = asking.allocate_bytes(513 * MIB, S).expect_err("there is not that much");
            assert!(error.is_out_of_memory(), "{error}");
            let report = error.out_of_memory_report().expect("a report");
            assert_eq!(report.device.map(|device| device.free), Some(384 * MIB), "{error}");
        });
        assert!(
            asked.is_subset(&BTreeSet::from(["mem_get_info", "mem_pool", "stream_is_capturing"])),
            "pages={pages}: {asked:?}"
        );
        assert_eq!((asking.pool_bytes(), other.pool_bytes()), (64 * MIB, 64 * MIB));
        // A request that needs all free memory, of the device and of both pools, is served.
        let all = asking.allocate_bytes(512 * MIB, S).expect("it fits");
        give(&asking, all, 512 * MIB);
        // SAFETY: the block is this test's, and nothing uses it.
        unsafe { device.mem_free(elsewhere).expect("it was allocated") };
    }
}

/// A request takes no memory that cannot suffice, even if other resources might have helped.
#[test]
fn issue_9_nothing_is_taken_that_cannot_suffice() {
    for pages in MODES {
        let device = SimDevice::new(SimConfig::with_capacity(GIB));
        let counter = CountingDriver::new(device.clone());
        let [asking, other] = [(); 2].map(|()| pool_over(counter.clone(), pages));
        // Half of the other pool's memory is free, in pieces that cannot go back.
        let blocks: Vec<_> = (0..512).map(|_| other.allocate_bytes(MIB, S).expect("there is room")).collect();
        blocks.iter().step_by(2).for_each(|ptr| give(&other, *ptr, MIB));
        let asked = calls(&counter, || {
            let error = asking.allocate_bytes(600 * MIB, S).expect_err("it is in pieces");
            assert!(error.is_out_of_memory(), "{error}");
        });
        for taking in ["mem_create", "mem_alloc", "mem_map", "mem_address_reserve"] {
            assert!(!asked.contains(taking), "pages={pages}: {asked:?}");
        }
    }
}

/// The same, while other resources need a little memory.
#[test]
fn issue_9_failing_requests_do_not_disturb_other_resources() {
    for pages in MODES {
        let driver = slow_device(GIB);
        let _elsewhere = driver.mem_alloc(512 * MIB).expect("there is room");
        let hogs: Vec<Pool> = (0..3).map(|_| pool_over(driver.clone(), pages)).collect();
        let pool = pool_over(driver.clone(), pages);
        let (is_over, tries) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for hog in &hogs {
                let (is_over, tries) = (&is_over, &tries);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        let error = hog.allocate_bytes(900 * MIB, S).expect_err("there is not that much");
                        assert!(error.is_out_of_memory(), "{error}");
                        tries.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            while tries.load(Ordering::Relaxed) < 100 {
                let ptr = pool.allocate_bytes(4 * MIB, S);
                let plain = driver.mem_alloc(64 * MIB);
                is_over.store(ptr.is_err() || plain.is_err(), Ordering::Relaxed);
                give(&pool, ptr.expect("500 MiB are free"), 4 * MIB);
                pool.trim(0).expect("free memory can be returned");
                // SAFETY: the block is this test's, and nothing uses it.
                unsafe { driver.mem_free(plain.expect("500 MiB are free")).expect("it was allocated") };
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}

/// A block aligned to more than the device's size exists only by chance, in memory that the pool holds. The
/// pool tries nothing more, however small the block.
#[test]
fn issue_9_a_huge_alignment_is_refused_early() {
    for (pages, integrated) in [(PagesMode::On, false), (PagesMode::On, true), (PagesMode::Off, false)] {
        let hooks = HookedDriver::new(SimDevice::new(SimConfig::h200()));
        if integrated {
            hooks.be_integrated(u64::MAX);
        }
        let counter = CountingDriver::new(hooks);
        let pool = pool_over(counter.clone(), pages);
        let held = pool.allocate_bytes(1000, S).expect("there is room");
        for shift in [38, 46, 54] {
            let layout = Layout::with_alignment(256, 1 << shift).expect("a power of two");
            let asked = calls(&counter, || {
                let error = pool.allocate(layout, S).expect_err("not on this device");
                assert!(error.is_out_of_memory(), "{error}");
            });
            let questions = BTreeSet::from(["mem_get_info", "stream_is_capturing", "other"]);
            assert!(asked.is_subset(&questions), "2^{shift}, pages={pages}: {asked:?}");
        }
        give(&pool, held, 1000);
    }
}

/// If two resources request more than half of the free memory at the same moment, exactly one is served.
fn one_of_two_is_served(drivers: [DriverHandle; 2], modes: [PagesMode; 2], bytes: u64, rounds: usize) {
    let pools = [0, 1].map(|index| pool_over(drivers[index].clone(), modes[index]));
    let barrier = Barrier::new(2);
    let served: Vec<AtomicU64> = (0..rounds).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for pool in &pools {
            let (barrier, served) = (&barrier, &served);
            scope.spawn(move || {
                for served in served {
                    barrier.wait();
                    let answer = pool.allocate_bytes(bytes, S);
                    served.fetch_add(u64::from(answer.is_ok()), Ordering::Relaxed);
                    barrier.wait();
                    if let Ok(ptr) = answer {
                        give(pool, ptr, bytes);
                    }
                    pool.trim(0).expect("free memory can be returned");
                }
            });
        }
    });
    let wrong = served.iter().filter(|served| served.load(Ordering::Relaxed) != 1).count();
    assert_eq!(wrong, 0, "rounds of {rounds} in which not one was served: {modes:?}, {bytes} bytes");
}

#[test]
fn issue_9_of_two_pools_one_is_served() {
    for modes in [[PagesMode::On; 2], [PagesMode::Off; 2], [PagesMode::On, PagesMode::Off]] {
        for (mib, rounds) in [(520, 4), (700, 25), (1000, 4)] {
            let driver = slow_device(GIB);
            one_of_two_is_served([driver.clone(), driver], modes, mib * MIB, rounds);
        }
    }
}

/// Two processes do not know each other's reservations.
#[test]
fn issue_9_of_two_processes_one_is_served() {
    for (mib, rounds) in [(520, 4), (700, 25), (1000, 4)] {
        let device = SimDevice::new(SimConfig::with_capacity(GIB));
        let names = [(); 2].map(|()| SimDevice::new(SimConfig::with_capacity(GIB)).device());
        let drivers = names.map(|name: DeviceId| {
            let driver = HookedDriver::in_another_process(device.clone(), name);
            driver.take_time();
            driver as DriverHandle
        });
        one_of_two_is_served(drivers, [PagesMode::On; 2], mib * MIB, rounds);
    }
}

/// During a growth, a rival takes the memory that was free. The memory taken for the growth goes back at
/// once. As soon as the rival is gone, the pool takes it again.
#[test]
fn issue_9_what_a_rival_made_insufficient_is_undone_and_asked_again() {
    for rival_stays in [true, false] {
        let device = SimDevice::new(SimConfig::with_capacity(GIB));
        let hooks = HookedDriver::new(device.clone());
        let pool = pool_over(hooks.clone(), PagesMode::On);
        let (first, rival) = (hooks.clone(), device.clone());
        hooks.before_create(move || {
            let second = first.clone();
            first.before_create(move || {
                let free = rival.mem_get_info().expect("the device is well").free;
                let taken = rival.mem_alloc(free - 100 * MIB).expect("it is free");
                let ends = rival.clone();
                // The pool asks the driver once whether smaller handles would do, and then for the free
                // memory.
                let third = second.clone();
                second.before_get_info(move || {
                    third.before_get_info(move || {
                        assert_eq!(ends.live_bytes(), taken_bytes(&ends), "all of it went back");
                        if !rival_stays {
                            // SAFETY: nothing uses the rival's block.
                            unsafe { ends.mem_free(taken).expect("it was allocated") };
                        }
                    });
                });
            });
        });
        let answer = pool.allocate_bytes(700 * MIB, S);
        assert_eq!(hooks.hooks_left(), 0);
        assert_eq!(answer.is_ok(), !rival_stays, "{answer:?}");
        pool.validate();
    }
}

/// Returns the bytes of plain allocations on a device that holds nothing else.
fn taken_bytes(device: &SimDevice) -> u64 {
    let info = device.mem_get_info().expect("the device is well");
    info.total - info.free
}

/// If device and host share their memory, the reported free memory is a hint.
#[test]
fn issue_9_what_an_integrated_device_has_free_is_a_hint() {
    for pages in MODES {
        let device = SimDevice::new(SimConfig::with_capacity(GIB));
        let hooks = HookedDriver::new(device.clone());
        hooks.be_integrated(100 * MIB);
        let counter = CountingDriver::new(hooks);
        let pool = pool_over(counter.clone(), pages);
        let ptr = pool.allocate_bytes(700 * MIB, S).expect("the host gives it");
        assert_eq!(counter.counts().get(CallKind::MemCreate).calls, u64::from(pages == PagesMode::On));
        let error = pool.allocate_bytes(400 * MIB, S).expect_err("not even the host has that");
        assert!(error.is_out_of_memory(), "{error}");
        assert_eq!(pool.pool_bytes(), 700 * MIB, "no memory was taken for a failed request");
        give(&pool, ptr, 700 * MIB);
    }
}

/// When memory is short, the driver releases the memory that its default pool keeps. So that memory counts as
/// free.
#[test]
fn issue_9_what_the_drivers_pool_keeps_is_free() {
    for pages in MODES {
        let device = SimDevice::new(SimConfig::with_capacity(GIB));
        let drivers_pool = device.device_get_default_mem_pool().expect("there is one");
        let threshold = MemPoolAttribute::ReleaseThreshold;
        device.mem_pool_set_attribute(drivers_pool, threshold, u64::MAX).expect("it can be set");
        let kept = device.mem_alloc_async(800 * MIB, S).expect("there is room");
        // SAFETY: nothing uses the block.
        unsafe { device.mem_free_async(kept, S).expect("it was allocated") };
        device.synchronize().expect("the device is well");
        assert!(device.mem_get_info().expect("the device is well").free < 300 * MIB, "the pool keeps it");
        let pool = pool_over(device.clone(), pages);
        let ptr = pool.allocate_bytes(700 * MIB, S).expect("the driver gives it back");
        give(&pool, ptr, 700 * MIB);
    }
}

/// Three of eight pools at a time hold or want a block: the memory that the others keep is always reclaimed
/// for them.
#[test]
fn issue_9_a_request_that_fits_is_served_under_pressure() {
    for pages in MODES {
        let driver = slow_device(GIB);
        let pools: Vec<Pool> = (0..8).map(|_| pool_over(driver.clone(), pages)).collect();
        let (turns, changed) = (Mutex::new(3), Condvar::new());
        std::thread::scope(|scope| {
            for (pool, seed) in pools.iter().zip(1..) {
                let (turns, changed) = (&turns, &changed);
                scope.spawn(move || {
                    let mut x = seed * 77_u64;
                    for _ in 0..60 {
                        x ^= x << 13;
                        x ^= x >> 7;
                        x ^= x << 17;
                        let bytes = (20 + x % 220) * MIB;
                        let mut free = changed
                            .wait_while(turns.lock().expect("no thread panicked"), |free| *free == 0)
                            .expect("no thread panicked");
                        *free -= 1;
                        drop(free);
                        let answer = pool.allocate_bytes(bytes, S);
                        if let Ok(ptr) = answer {
                            give(pool, ptr, bytes);
                        }
                        *turns.lock().unwrap_or_else(std::sync::PoisonError::into_inner) += 1;
                        changed.notify_one();
                        answer.expect("it fits");
                    }
                });
            }
        });
        pools.iter().for_each(Pool::validate);
    }
}

/// For blocks of one size, a pool takes the largest regions that fit, and does not ask for more.
#[test]
fn issue_9_regions_are_as_large_as_there_is_room_for() {
    let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
    let counter = CountingDriver::new(device);
    let layer = FixedSizeLayer::new().block_bytes(8 * MIB);
    let blocks = CudaMemoryResource::new(counter.clone()).layer(layer).expect("blocks");
    let held: Vec<_> = std::iter::from_fn(|| blocks.allocate_bytes(8 * MIB, S).ok()).collect();
    assert_eq!(held.len(), 8);
    assert_eq!(counter.counts().get(CallKind::MemAlloc).failures, 0);
}

/// While a driver call gives memory back, that memory is neither held nor free. A request that needs it waits
/// for the call's end.
#[test]
fn issue_9_memory_on_its_way_back_is_not_missed() {
    let cases = [
        (PagesMode::Off, false, false),
        (PagesMode::Off, true, false),
        (PagesMode::On, true, false),
        (PagesMode::On, true, true),
    ];
    for (pages, whole, is_reset) in cases {
        let device = SimDevice::new(SimConfig::with_capacity(GIB));
        let hooks = HookedDriver::new(device.clone());
        let holder = pool_over(hooks.clone(), pages);
        let ptr = holder.allocate_bytes(800 * MIB, S).expect("there is room");
        give(&holder, ptr, 800 * MIB);
        let asking: DriverHandle = if is_reset {
            device.reset_context();
            device.open_again()
        } else {
            hooks.clone()
        };
        let asking = Arc::new(pool_over(asking, pages));
        let (answer, answered) = std::sync::mpsc::channel();
        let hook = {
            let asking = Arc::clone(&asking);
            move || {
                let (begins, begun) = std::sync::mpsc::channel();
                std::thread::spawn(move || {
                    begins.send(()).expect("the receiver lives");
                    answer.send(asking.allocate_bytes(700 * MIB, S)).expect("the receiver lives");
                });
                begun.recv().expect("the thread begins");
                // Enough time for a refusal.
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
        };
        match pages {
            PagesMode::Off => hooks.before_free(hook),
            _ => hooks.before_unmap(hook),
        }
        if whole {
            drop(holder);
        } else {
            holder.trim(0).expect("free memory can be returned");
        }
        let ptr = answered.recv().expect("the thread answers").expect("800 MiB are free by then");
        give(&*asking, ptr, 700 * MIB);
    }
}
