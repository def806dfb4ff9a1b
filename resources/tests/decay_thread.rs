//! The thread that lets pools on real devices decay: one for all, as long as there is a pool. One test, since
//! it looks at the threads of the process. The device is simulated, and hides its time.
#![cfg(all(target_os = "linux", not(miri)))]

use std::time::Duration;

use millpond_core::{DeviceMemoryResourceExt, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::{CudaMemoryResource, Decay, PagesMode, PoolLayer, PoolMemoryResource};
use millpond_testkit::hooked::HookedDriver;

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

/// How many threads of the process decay pools.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux has it");
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "millpond-decay").count()
}

/// Returns when it is so. Where it never is, the test does not end.
fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What a forked process does with the pools that it has a copy of; its exit code says how it went.
fn in_a_fork(body: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child makes no call that needs another thread of the parent's, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "a process can be forked");
    if child == 0 {
        let went_well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
        // SAFETY: nothing of the parent's is cleaned up.
        unsafe { libc::_exit(i32::from(!went_well)) };
    }
    let mut status = 0;
    // SAFETY: the child is this process's own.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

#[test]
fn one_thread_serves_all_pools_while_there_are_any() {
    let soon = PoolLayer::new().decay(Decay::Over(Duration::from_millis(20)));
    let never = [PoolLayer::new().decay(Decay::Off), soon.pages(PagesMode::Off)].map(pool);
    never.iter().for_each(use_and_free);
    assert_eq!(threads(), 0, "a pool that does not decay needs no thread");

    // The first one's next step is far away; that of the second is not kept waiting.
    let late = pool(PoolLayer::new().decay(Decay::Over(Duration::from_secs(24 * 60 * 60))));
    let pools = [soon, soon].map(pool);
    until(|| threads() == 1);
    pools.iter().for_each(use_and_free);
    use_and_free(&late);
    until(|| pools.iter().all(|pool| pool.pool_bytes() == 0));
    assert_eq!(threads(), 1);
    assert!(late.pool_bytes() > 0);

    // The thread is between steps of `late` for hours: it has no lock that the copy would find taken.
    let mut late = Some(late);
    let forked = in_a_fork(|| {
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

    let again = pool(soon);
    use_and_free(&again);
    until(|| again.pool_bytes() == 0);
    // The process ends with the thread running: its end waits for it.
    std::mem::forget(again);
}
