//! Tests that code called by the driver may query the current pool, and change it.

use std::cell::Cell;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use millpond_core::Driver;
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::memory_pool::{MemoryPool, MemoryPoolOptions};

fn device() -> Arc<SimDevice> {
    SimDevice::new(SimConfig::with_capacity(1 << 30))
}

fn pool(device: &Arc<SimDevice>) -> MemoryPool {
    MemoryPool::new(device.clone(), MemoryPoolOptions::new()).unwrap()
}

/// Runs a test on a separate thread, and panics if it does not end.
fn watched(test: impl FnOnce() + Send + 'static) {
    let (done, ended) = channel();
    let test = thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match ended.recv_timeout(Duration::from_secs(60)) {
        Err(RecvTimeoutError::Timeout) => panic!("it hangs"),
        _ => test.join().unwrap(),
    }
}

/// Calls `act` at each driver call, but not from inside `act`: on this thread, or on another that it waits
/// for.
fn observe(device: &Arc<SimDevice>, on_another: bool, act: impl Fn() + Send + Sync + 'static) {
    thread_local! { static IS_INSIDE: Cell<bool> = const { Cell::new(false) }; }
    let act = Arc::new(act);
    device.observe_calls(Some(Arc::new(move |_name| {
        if IS_INSIDE.replace(true) {
            return;
        }
        if on_another {
            let act = Arc::clone(&act);
            let other = thread::spawn(move || {
                IS_INSIDE.set(true);
                act();
            });
            other.join().unwrap();
        } else {
            act();
        }
        IS_INSIDE.set(false);
    })));
}

#[test]
fn issue_29_code_that_the_driver_calls_may_ask_for_the_current_pool_and_change_it() {
    for on_another in [false, true] {
        watched(move || {
            let device = device();
            let default = MemoryPool::default_of(device.clone()).unwrap();
            let [made, other] = [pool(&device), pool(&device)];
            let (inner, wanted) = (device.clone(), other.clone());
            observe(&device, on_another, move || {
                MemoryPool::current_of(inner.clone()).unwrap();
                wanted.set_current().unwrap();
                assert_eq!(MemoryPool::current_of(inner.clone()).unwrap(), wanted);
            });
            made.set_current().unwrap();
            MemoryPool::current_of(device.clone()).unwrap();
            device.observe_calls(None);
            let raw = device.device_get_mem_pool().unwrap();
            let current = MemoryPool::current_of(device.clone()).unwrap();
            assert_eq!(current.raw(), raw);
            assert!([&made, &other].contains(&&current), "it is one that was made here, not a view of it");
            default.set_current().unwrap();
            drop((made, other, current));
            assert_eq!(device.live_allocations(), 0, "a pool that is no longer current is freed");
        });
    }
}

/// A pool is replaced while the driver is asked for it, and another pool gets its handle. The two are not
/// confused.
#[test]
fn issue_29_a_pool_that_is_replaced_while_it_is_asked_for_is_kept_meanwhile() {
    let device = device();
    let default = MemoryPool::default_of(device.clone()).unwrap();
    let made = pool(&device);
    made.set_current().unwrap();
    let last = Mutex::new(Some(made));
    let replaces = default.clone();
    observe(&device, false, move || {
        if let Some(made) = last.lock().unwrap().take() {
            replaces.set_current().unwrap();
            drop(made);
        }
    });
    let current = MemoryPool::current_of(device.clone()).unwrap();
    device.observe_calls(None);
    assert_eq!(current, default);
    assert_eq!(device.live_allocations(), 0);
}

/// Programs of other devices do not affect this device's pools.
#[test]
fn changes_of_another_device_delay_no_end_of_a_replaced_pool() {
    let (device, other) = (device(), device());
    let default = MemoryPool::default_of(device.clone()).unwrap();
    let made = pool(&device);
    made.set_current().unwrap();
    let theirs = pool(&other);
    observe(&device, false, move || theirs.set_current().unwrap());
    default.set_current().unwrap();
    device.observe_calls(None);
    drop(made);
    assert_eq!(device.live_allocations(), 0);
}
