//! Tests the thread that decays pools on real devices: one thread for all pools, while there is a pool. This
//! is one test in a separate process, since it inspects the threads of the process. The device is simulated,
//! and hides its virtual time.
#![cfg(all(target_os = "linux", not(miri)))]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use millpond_core::driver::{Driver, StreamFlags};
use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::{CudaMemoryResource, Decay, PagesMode, PoolLayer, PoolMemoryResource};
use millpond_testkit::hooked::HookedDriver;
use millpond_testkit::own_process;

use crate::forks::in_a_child;

const MIB: u64 = 1 << 20;

fn pool(layer: PoolLayer) -> PoolMemoryResource<CudaMemoryResource> {
    let driver = HookedDriver::new(SimDevice::new(SimConfig::with_capacity(256 * MIB)));
    driver.hide_virtual_time();
    CudaMemoryResource::new(driver).layer(layer).expect("there is memory")
}

fn use_and_free(pool: &PoolMemoryResource<CudaMemoryResource>) {
    let ptr = pool.allocate_bytes(100 * MIB, StreamRef::LEGACY).expect("there is memory");
    // SAFETY: the block came from the pool with this size, and nothing uses it.
    unsafe { pool.deallocate_bytes(ptr, 100 * MIB, StreamRef::LEGACY) };
}

/// Returns how many threads of the process decay pools.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux has it");
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "millpond-decay").count()
}

/// Returns when the condition holds. If it never holds, the test does not end.
fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Ends the process with a failure if the decay thread does not end.
extern "C" fn fail_if_the_thread_is_left() {
    // The system may list a thread for a moment after its end.
    for _ in 0..10_000 {
        if threads() == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: the process is at its end.
    unsafe { libc::_exit(1) };
}

#[test]
fn one_thread_serves_all_pools_while_there_are_any() {
    own_process::run(|| {
        // The handlers of a process run in reverse order: this one after the pools' own.
        // SAFETY: the handler does not unwind.
        assert_eq!(unsafe { libc::atexit(fail_if_the_thread_is_left) }, 0);
        let soon = PoolLayer::new().decay(Decay::Over(Duration::from_millis(20)));
        let never = [PoolLayer::new().decay(Decay::Off), soon.pages(PagesMode::Off)].map(pool);
        never.iter().for_each(use_and_free);
        assert_eq!(threads(), 0, "a pool that does not decay needs no thread");

        // The first pool's next step is far away; the second pool's step is not delayed.
        let late = pool(PoolLayer::new().decay(Decay::Over(Duration::from_secs(24 * 60 * 60))));
        let pools = [soon, soon].map(pool);
        until(|| threads() == 1);
        pools.iter().for_each(use_and_free);
        use_and_free(&late);
        until(|| pools.iter().all(|pool| pool.pool_bytes() == 0));
        assert_eq!(threads(), 1);
        assert!(late.pool_bytes() > 0);

        // The thread is between steps of `late` for hours, so the copy finds no lock taken.
        let mut late = Some(late);
        let forked = in_a_child(|| {
            let fresh = pool(soon);
            use_and_free(&fresh);
            drop((fresh, late.take()));
            threads() == 0
        });
        assert!(forked, "a forked process has a thread, or waits for one");
        pools.iter().for_each(use_and_free);
        until(|| pools.iter().all(|pool| pool.pool_bytes() == 0));
        drop(pools);
        assert_eq!(threads(), 1, "there is one more pool");
        drop((never, late));
        until(|| threads() == 0);
        let forked = in_a_child(|| {
            let _fresh = pool(soon);
            std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
        });
        assert!(forked, "a forked process starts no thread");

        a_fork_waits_for_the_step(soon);
        pools_end_in_the_middle_of_a_step(soon);

        let again = pool(soon);
        use_and_free(&again);
        until(|| again.pool_bytes() == 0);
        // The process ends while the thread runs: the end waits for the thread.
        std::mem::forget(again);
    });
}

/// The copy lacks the thread, but finds no lock taken by it. So it can use the pool, and end it.
fn a_fork_waits_for_the_step(layer: PoolLayer) {
    let driver = HookedDriver::new(SimDevice::new(SimConfig::with_capacity(256 * MIB)));
    driver.hide_virtual_time();
    let (in_step, ending) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (entered, may_go_on) = (Arc::clone(&in_step), Arc::clone(&ending));
    driver.before_query(move || {
        entered.wait();
        may_go_on.wait();
    });
    let pool = CudaMemoryResource::new(driver).layer(layer).expect("there is memory");
    use_and_free(&pool);
    in_step.wait();
    let mut pool = Some(pool);
    let went_well = std::thread::scope(|scope| {
        scope.spawn(|| {
            // The fork begins, and waits.
            std::thread::sleep(Duration::from_millis(50));
            ending.wait();
        });
        in_a_child(|| {
            // SAFETY: it ends a process that would wait for ever.
            unsafe { libc::alarm(20) };
            pool.take().is_some_and(|pool| {
                // The copy may not use the device; it is told so at once.
                let is_refused = pool.allocate_bytes(1 << 20, StreamRef::LEGACY).is_err();
                drop(pool.trim(0));
                is_refused
            })
        })
    });
    assert!(went_well, "the copy waits for a lock of a thread that it has not");
}

/// After a pool has ended, the decay thread does not touch it, whichever step it is in.
fn pools_end_in_the_middle_of_a_step(layer: PoolLayer) {
    static PANICS: AtomicU64 = AtomicU64::new(0);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        before(info);
    }));
    for _ in 0..100 {
        let driver = HookedDriver::new(SimDevice::new(SimConfig::with_capacity(256 * MIB)));
        driver.hide_virtual_time();
        let stream = || driver.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
        let (small, large) = (stream(), stream());
        let pool = CudaMemoryResource::new(driver.clone()).layer(layer).expect("there is memory");
        let (in_step, ending) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
        let (entered, may_go_on) = (Arc::clone(&in_step), Arc::clone(&ending));
        driver.before_query(move || {
            entered.wait();
            may_go_on.wait();
            std::thread::sleep(Duration::from_micros(200)); // likelier, not needed
        });
        // A span of small blocks that is entirely free, and a stream that the step visits later.
        let blocks = std::iter::repeat_n((5000, small), 300).chain([(5 * MIB, large)]);
        let take =
            |(bytes, stream)| (pool.allocate_bytes(bytes, stream).expect("there is memory"), bytes, stream);
        for (ptr, bytes, stream) in blocks.map(take).collect::<Vec<_>>() {
            // SAFETY: the block came from the pool with this size, and nothing uses it.
            unsafe { pool.deallocate_bytes(ptr, bytes, stream) };
        }
        in_step.wait();
        std::thread::scope(|scope| {
            let end = scope.spawn(|| drop(pool));
            ending.wait();
            end.join().expect("a pool can end");
        });
    }
    assert_eq!(PANICS.load(Ordering::Relaxed), 0, "the thread looked at a pool that was over");
}
