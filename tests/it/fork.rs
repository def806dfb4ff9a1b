//! Tests that a forked process drops its copies of stacks, whatever the other threads are doing. The test has
//! its own process, so all threads are the test's.
#![cfg(all(unix, not(miri)))]

use std::sync::atomic::{AtomicBool, Ordering};

use millpond::driver::sim::{SimConfig, SimDevice};
use millpond::{AnyResource, DeviceMemoryResourceExt, DriverHandle, StreamRef};
use millpond_testkit::Rng;
use millpond_testkit::hooked::HookedDriver;
use millpond_testkit::own_process;

const MIB: u64 = 1 << 20;
const THREADS: u64 = 3;
const ROUNDS: usize = 150;

/// Makes a stack whose pool decays in the background, as on a real device.
fn stack(text: &str) -> AnyResource {
    let driver = HookedDriver::new(SimDevice::new(SimConfig::with_capacity(1024 * MIB)));
    driver.hide_virtual_time();
    let driver: DriverHandle = driver;
    text.parse::<millpond::stack::StackSpec>()
        .and_then(|spec| spec.build(&millpond::layers(), &driver))
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Allocates and frees blocks of many sizes until it is told to end.
fn hammer(stack: &AnyResource, seed: u64, is_over: &AtomicBool) {
    let mut rng = Rng::new(seed);
    let mut blocks = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        if blocks.len() < 40 {
            let bytes = 1 << rng.below(23);
            blocks.extend(stack.allocate_bytes(bytes, StreamRef::LEGACY).ok().map(|ptr| (ptr, bytes)));
        } else {
            let (ptr, bytes) = blocks.swap_remove(rng.below(blocks.len() as u64) as usize);
            // SAFETY: the block came from the stack with this size, and nothing uses it.
            unsafe { stack.deallocate_bytes(ptr, bytes, StreamRef::LEGACY) };
        }
        if rng.below(200) == 0 {
            stack.trim(0).expect("a simulated device can be waited for");
        }
    }
    for (ptr, bytes) in blocks {
        // SAFETY: as above.
        unsafe { stack.deallocate_bytes(ptr, bytes, StreamRef::LEGACY) };
    }
}

/// Forks. The copy drops the stack and ends, either like an ending program or at once.
fn fork_and_drop(stack: &AnyResource, with_handlers: bool) -> bool {
    // SAFETY: the child makes the tested calls, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "a process can be forked");
    if child == 0 {
        // SAFETY: this process has one thread, and does not use the stack any more. The alarm ends it if it
        // would wait forever.
        unsafe {
            libc::alarm(20);
            std::ptr::drop_in_place(std::ptr::from_ref(stack).cast_mut());
            if with_handlers { libc::exit(0) } else { libc::_exit(0) }
        }
    }
    let mut status = 0;
    // SAFETY: the child is this process's own.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

fn forks_of(text: &str) {
    forks_of_stack(text, stack(text));
}

fn forks_of_stack(text: &str, stack: AnyResource) {
    let is_over = AtomicBool::new(false);
    let failed = std::thread::scope(|scope| {
        for seed in 0..THREADS {
            scope.spawn({
                let (stack, is_over) = (&stack, &is_over);
                move || hammer(stack, seed, is_over)
            });
        }
        let failed = (0..ROUNDS).find(|round| !fork_and_drop(&stack, round % 2 == 0));
        is_over.store(true, Ordering::Relaxed);
        failed
    });
    assert_eq!(failed, None, "a copy of a process that uses `{text}` did not end");
}

#[test]
fn issue_9_a_forked_child_drops_a_pool_that_threads_use() {
    own_process::run(|| {
        forks_of("cuda+pool:decay=20ms");
    });
}

#[test]
fn issue_9_a_forked_child_drops_what_stands_on_a_pool() {
    own_process::run(|| {
        forks_of("cuda+pool:decay=20ms+fixed_size:block_size=64KiB+thread_safe");
        forks_of("cuda+pool:decay=20ms+binning:bins=1KiB/64KiB+limiting:limit=1GiB+statistics+tracking");
    });
}

#[test]
fn a_forked_child_drops_a_budget() {
    own_process::run(|| {
        // The threads need more than the limit, so they often hold the lock of the tree.
        forks_of("cuda+pool:decay=20ms+budget:name=job,limit=10MiB");
    });
}

#[test]
fn a_forked_child_drops_a_pool_of_the_driver() {
    own_process::run(|| {
        forks_of("cuda_async");
        forks_of("cuda_async_pinned");
    });
}

#[test]
fn a_forked_child_drops_a_plan() {
    own_process::run(|| {
        forks_of("cuda+pool:decay=20ms+plan:file=../testkit/plans/equal_1024.plan");
    });
}

#[test]
fn issue_9_a_forked_child_drops_a_log() {
    own_process::run(|| {
        for flush in ["row", "buffered", "async"] {
            let name = format!("fork_{}_{flush}.csv", std::process::id());
            let file = format!("{}/{name}", env!("CARGO_TARGET_TMPDIR"));
            forks_of(&format!("cuda+pool:decay=20ms+logging:file={file},flush={flush}"));
            std::fs::remove_file(file).expect("the log is there");
        }
    });
}

#[test]
fn a_forked_child_drops_memory_of_the_host() {
    own_process::run(|| {
        for text in ["host", "system", "sam_headroom:headroom=1MiB"] {
            let stack = stack(text);
            // Threads change the simulated device's tables, so the child must never free the device.
            std::mem::forget(stack.driver().clone());
            forks_of_stack(text, stack);
        }
    });
}
