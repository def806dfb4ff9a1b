//! Tests the rule of forked children: a child of a process that has resources frees nothing, and calls no
//! driver. Each test has its own process.
#![cfg(all(unix, not(miri)))]

use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{AnyResource, DeviceMemoryResourceExt, DriverHandle, ErrorKind, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_testkit::own_process;

const S: StreamRef = StreamRef::LEGACY;

/// Runs `body` in a forked child, and returns whether it was true.
pub(crate) fn in_a_child(body: impl FnOnce() -> bool) -> bool {
    // SAFETY: this process has one thread that uses millpond, and the child ends by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "a process can be forked");
    if child == 0 {
        let went_well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
        // SAFETY: nothing of the parent is cleaned up.
        unsafe { libc::_exit(i32::from(!went_well)) };
    }
    let mut status = 0;
    // SAFETY: this process made the child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

#[test]
fn a_forked_child_frees_nothing_and_calls_no_driver() {
    own_process::run(|| {
        let layers = LayerTable::new(millpond_resources::LAYERS.iter().copied())
            .with(millpond_adaptors::LAYERS.iter().copied());
        for text in [
            "cuda",
            "managed",
            "pinned_host",
            "host",
            "system",
            "cuda_async",
            "cuda_async_view",
            "cuda_async_managed",
            "cuda_async_pinned",
            "cuda+pool",
            "cuda+pool:pages=off",
            "cuda+arena",
            "cuda+fixed_size:block_size=4MiB",
            "cuda+binning:bins=1MiB/4MiB",
            "cuda+pool+capture_scopes",
            "cuda_async+limiting:limit=1GiB+statistics+tracking",
            "cuda+pool+budget:name=forked,limit=1GiB",
        ] {
            let device = SimDevice::new(SimConfig::h200());
            let driver: DriverHandle = device.clone();
            let stack: AnyResource = text.parse::<StackSpec>().unwrap().build(&layers, &driver).unwrap();
            // More than the caches of a thread take.
            let sizes = [1000, 1 << 20, 3 << 20];
            let blocks: Vec<_> = sizes
                .into_iter()
                .cycle()
                .take(300)
                .map(|bytes| (stack.allocate_bytes(bytes, S).unwrap(), bytes))
                .collect();
            let put = |(ptr, bytes): (_, u64)| {
                // SAFETY: the block came from the stack with this size, and nothing uses it.
                unsafe { stack.deallocate_bytes(ptr, bytes, S) }
            };
            let (calls, live) = (device.driver_calls(), device.live_bytes());
            let obeys = in_a_child(|| {
                // SAFETY: it ends the child if a call waits forever.
                unsafe { libc::alarm(20) };
                blocks.iter().copied().for_each(put);
                let refused = stack.allocate_bytes(4 << 20, S).unwrap_err();
                // SAFETY: the child does not use the stack any more.
                unsafe { std::ptr::drop_in_place(std::ptr::from_ref(&stack).cast_mut()) };
                let is_told = refused.to_string().contains("was forked");
                eprintln!("{text}: {} calls: {refused}", device.driver_calls() - calls);
                let is_same = (device.driver_calls(), device.live_bytes()) == (calls, live);
                // The child may open a device of its own.
                let own: DriverHandle = SimDevice::new(SimConfig::h200());
                let own = "cuda+pool".parse::<StackSpec>().unwrap().build(&layers, &own).unwrap();
                is_same
                    && is_told
                    && refused.kind() == ErrorKind::Unsupported
                    && own.allocate_bytes(1, S).is_ok()
            });
            assert!(obeys, "a child of a process with `{text}`");
            blocks.into_iter().for_each(put);
        }
    });
}
