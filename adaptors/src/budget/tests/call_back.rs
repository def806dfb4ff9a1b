//! Tests that borrowed bytes come back: from holders that are idle, busy or gone, and within the wait.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use millpond_core::driver::{CaptureMode, StreamFlags};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, Driver, DriverHandle, Result,
    forward_to_upstream,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_testkit::mock::Call;
use parking_lot::Mutex;

use super::{House, MIB, S, Tenant, build_on, free, take, used};
use crate::budget::BudgetLayer;
use crate::{ThreadSafeLayer, probe::Probe};

const LONG: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_millis(1);

/// `job` has 10 MiB, `train` is guaranteed 6 MiB of them, and others have borrowed all.
fn layer(name: &str) -> BudgetLayer {
    BudgetLayer::new(name, 10 * MIB).parent("job")
}

fn house() -> (House, crate::Budget) {
    let house = House::new();
    let job = house.budget(BudgetLayer::new("job", 10 * MIB));
    (house, job)
}

fn train(house: &House, wait: Duration) -> Tenant {
    house.tenant(layer("train").guaranteed(6 * MIB).wait(wait))
}

fn is_awaited(tenant: &Tenant) -> bool {
    tenant.member.node.is_awaited()
}

#[test]
fn an_idle_holder_is_called() {
    let (house, job) = house();
    let (etl, train) = (Arc::new(house.tenant(layer("etl"))), train(&house, LONG));
    let cache = Mutex::new((0..10).map(|_| take(&etl, MIB).unwrap()).collect::<Vec<_>>());
    let (asked, memory) = (Arc::new(AtomicU64::new(0)), Arc::downgrade(&etl));
    let seen = Arc::clone(&asked);
    etl.budget().on_call_back(move |bytes| {
        seen.fetch_add(bytes, Ordering::Relaxed);
        let etl = memory.upgrade().unwrap();
        // The function may use the stack, and does not wait.
        assert!(take(&etl, MIB).is_err());
        for _ in 0..bytes / MIB {
            let block = cache.lock().pop().unwrap();
            free(&etl, block, MIB);
        }
    });
    let block = take(&train, 6 * MIB).unwrap();
    assert_eq!((asked.load(Ordering::Relaxed), used(&etl), job.used_bytes()), (6 * MIB, 4 * MIB, 10 * MIB));
    assert!(!is_awaited(&train) && train.memory_info().unwrap().free == 0);
    // The rest is `etl`'s: a request beyond the guarantee makes no call.
    assert!(take(&train, 256).is_err());
    assert_eq!(asked.load(Ordering::Relaxed), 6 * MIB);
    free(&train, block, 6 * MIB);
    take(&etl, 6 * MIB).expect("the share is lent again");
}

/// The pool above an idle budget keeps freed memory. It is trimmed.
#[test]
fn an_idle_pool_gives_back_its_free_memory() {
    let driver: DriverHandle = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let _job = BudgetLayer::new("job", 64 * MIB).open(&*driver).unwrap();
    let etl = build_on(&driver, "cuda+budget:name=etl,limit=64MiB,parent=job+pool:decay=off").unwrap();
    let text = "cuda+budget:name=train,limit=64MiB,parent=job,guaranteed=32MiB,wait=3600s+pool";
    let train = build_on(&driver, text).unwrap();
    let blocks: Vec<_> = (0..48).map(|_| take(&etl, MIB).unwrap()).collect();
    blocks.into_iter().for_each(|block| free(&etl, block, MIB));
    take(&train, 30 * MIB).unwrap();
}

/// The holder frees and allocates all the time. The freed bytes go to the request that waits.
#[test]
fn a_busy_holder_cannot_borrow_what_another_waits_for() {
    let (house, job) = house();
    let (etl, train) = (house.tenant(layer("etl")), train(&house, LONG));
    let is_done = AtomicBool::new(false);
    let blocks: Vec<_> = (0..10).map(|_| take(&etl, MIB).unwrap()).collect();
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let block = take(&train, 6 * MIB);
            is_done.store(true, Ordering::Relaxed);
            block
        });
        scope.spawn(|| {
            let mut blocks: std::collections::VecDeque<_> = blocks.into();
            while !is_done.load(Ordering::Relaxed) {
                blocks.pop_front().into_iter().for_each(|block| free(&etl, block, MIB));
                blocks.extend(take(&etl, MIB));
            }
            blocks.into_iter().for_each(|block| free(&etl, block, MIB));
        });
        free(&train, waits.join().unwrap().unwrap(), 6 * MIB);
    });
    assert_eq!((job.used_bytes(), house.handle.live()), (0, vec![]));
}

#[test]
fn the_share_of_a_holder_that_is_gone_comes_back() {
    let (house, job) = house();
    let (etl, train) = (house.tenant(layer("etl")), train(&house, LONG));
    take(&etl, 10 * MIB).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| take(&train, 6 * MIB));
        while !is_awaited(&train) {
            thread::yield_now();
        }
        drop(etl);
        waits.join().unwrap().unwrap();
    });
    assert_eq!(job.used_bytes(), 6 * MIB);
}

/// A free that comes while a request waits serves it: it does not stay in the stock of the thread that frees.
#[test]
fn one_free_ends_a_wait() {
    let (house, _job) = house();
    let (etl, train) = (house.tenant(layer("etl")), train(&house, LONG));
    let block = take(&etl, 10 * MIB).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| take(&train, 6 * MIB));
        while !is_awaited(&train) {
            thread::yield_now();
        }
        free(&etl, block, 10 * MIB);
        waits.join().unwrap().unwrap();
    });
}

#[test]
fn a_wait_ends_with_an_error_that_names_those_who_were_asked() {
    let (house, job) = house();
    let (etl, train) = (house.tenant(layer("etl").priority(1)), train(&house, SOON));
    let other = house.tenant(layer("other"));
    let calls = Arc::new(AtomicU32::new(0));
    for tenant in [&etl, &other] {
        let calls = Arc::clone(&calls);
        tenant.budget().on_call_back(move |_| _ = calls.fetch_add(1, Ordering::Relaxed));
    }
    take(&etl, 8 * MIB).unwrap();
    let block = take(&other, 2 * MIB).unwrap();
    let error = take(&train, MIB).unwrap_err().to_string();
    assert!(error.contains("the budget `job` refused the request: its limit is 10MiB"), "{error}");
    assert!(error.contains("; other, etl did not give back enough within 1ms"), "{error}");
    assert_eq!(calls.load(Ordering::Relaxed), 2, "each was asked once");
    assert!(!is_awaited(&train));
    // Nothing is kept for the request that failed.
    free(&other, block, 2 * MIB);
    assert!(take(&other, 2 * MIB).is_ok() && job.used_bytes() == 10 * MIB);
}

/// The lowest priority is asked first, then the largest debt; a budget within its guarantee is not asked.
#[test]
fn holders_are_asked_in_order_until_there_is_enough() {
    let (house, _job) = house();
    let order = Arc::new(Mutex::new(Vec::new()));
    let names = [("high", 2, 0), ("low", 0, 0), ("small", 1, 0), ("large", 1, 0), ("safe", 0, 2)];
    let tenants = names.map(|(name, priority, guaranteed)| {
        Arc::new(house.tenant(layer(name).priority(priority).guaranteed(guaranteed * MIB)))
    });
    let train = house.tenant(layer("train").guaranteed(5 * MIB).wait(SOON));
    for (tenant, mib) in tenants.iter().zip([2, 1, 1, 4, 2]) {
        let block = Mutex::new(Some(take(tenant, mib * MIB).unwrap()));
        let (seen, memory) = (Arc::clone(&order), Arc::downgrade(tenant));
        tenant.budget().on_call_back(move |_| {
            let tenant = memory.upgrade().unwrap();
            seen.lock().push(tenant.budget().name().to_owned());
            block.lock().take().into_iter().for_each(|block| free(&tenant, block, mib * MIB));
        });
    }
    take(&train, 5 * MIB).unwrap();
    assert_eq!(*order.lock(), ["low", "large"]);
    assert!(take(&train, 256).is_err(), "beyond the guarantee");
    assert_eq!(order.lock().len(), 2);
}

/// Bytes within a group's guarantee are the group's: only what lies outside the group is called back.
#[test]
fn a_group_keeps_its_guarantee() {
    let (house, _job) = house();
    let _group = house.budget(layer("group").guaranteed(6 * MIB));
    let below = |name: &str| BudgetLayer::new(name, 10 * MIB).parent("group");
    let sibling = house.tenant(below("sibling"));
    let member = house.tenant(below("member").wait(SOON));
    let outside = house.tenant(layer("outside").wait(SOON));
    let strong = house.tenant(layer("strong").guaranteed(4 * MIB).wait(SOON));
    let asked = Arc::new(Mutex::new(Vec::new()));
    for tenant in [&sibling, &outside] {
        let (asked, name) = (Arc::clone(&asked), tenant.budget().name().to_owned());
        tenant.budget().on_call_back(move |_| asked.lock().push(name.clone()));
    }
    take(&sibling, 5 * MIB).unwrap();
    take(&outside, 5 * MIB).unwrap();
    // The group's guarantee covers the request of its member, whose own guarantee is nothing.
    assert!(take(&member, MIB).is_err());
    assert_eq!(*asked.lock(), ["outside"]);
    // `sibling` borrows inside the group only.
    assert!(take(&strong, MIB).is_err());
    assert_eq!(*asked.lock(), ["outside"; 2]);
    assert!(take(&outside, MIB).is_err());
    assert_eq!(asked.lock().len(), 2);
}

/// A group has a function, and its member has two stacks. Each function runs once for a request.
#[test]
fn the_functions_up_to_the_shared_budget_run_once() {
    let (house, job) = house();
    let group = house.budget(layer("group"));
    let member = || house.tenant(BudgetLayer::new("member", 10 * MIB).parent("group"));
    let (one, two, other) = (member(), member(), house.tenant(layer("other")));
    let train = train(&house, SOON);
    let calls = Arc::new(Mutex::new(Vec::new()));
    for budget in [job, group, one.budget(), other.budget(), train.budget()] {
        let (calls, name) = (Arc::clone(&calls), budget.name().to_owned());
        budget.on_call_back(move |_| calls.lock().push(name.clone()));
    }
    take(&one, 4 * MIB).unwrap();
    take(&other, 3 * MIB).unwrap();
    take(&two, 2 * MIB).unwrap();
    let error = take(&train, 2 * MIB).unwrap_err().to_string();
    assert_eq!(*calls.lock(), ["member", "group", "other"]);
    assert!(error.contains("; member, group, other did not give back enough"), "{error}");
}

/// What lies below the budgets belongs to all of them.
#[test]
fn a_call_back_trims_nothing_below_the_budget() {
    let (house, _job) = house();
    let (etl, train) = (Arc::new(house.tenant(layer("etl"))), train(&house, SOON));
    let stack: AnyResource = etl.clone();
    etl.member.account().set_stack(Arc::downgrade(&stack));
    take(&*etl, 10 * MIB).unwrap();
    let (weak, calls) = (Arc::downgrade(&stack), Arc::new(AtomicU64::new(0)));
    let seen = Arc::clone(&calls);
    etl.budget().on_call_back(move |_| {
        assert_eq!(weak.upgrade().unwrap().trim(0).unwrap(), 0);
        seen.fetch_add(1, Ordering::Relaxed);
    });
    assert!(take(&train, MIB).unwrap_err().is_out_of_memory());
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert!(!house.handle.calls().iter().any(|call| matches!(call, Call::Trim { .. })));
    stack.trim(0).unwrap();
    assert!(house.handle.calls().contains(&Call::Trim { keep_bytes: 0 }));
}

/// A stack that panics when it is trimmed, and a function that panics when it is dropped.
#[test]
fn a_holder_that_panics_is_not_the_requests_fault() {
    struct Bomb(Arc<AtomicU32>);
    impl Drop for Bomb {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            panic!("a function's drop");
        }
    }
    let (house, _job) = house();
    let (etl, train) = (house.tenant(layer("etl")), train(&house, SOON));
    take(&etl, 10 * MIB).unwrap();
    let (panics, budget) = (Arc::new(AtomicU32::new(0)), etl.budget());
    let bomb = Bomb(Arc::clone(&panics));
    etl.budget().on_call_back(move |_| {
        let _bomb = &bomb;
        budget.on_call_back(|_| {});
    });
    let stack: AnyResource = Arc::new(PanicsOnTrim(Arc::clone(&house.upstream), Arc::clone(&panics)));
    etl.member.account().set_stack(Arc::downgrade(&stack));
    assert!(take(&train, MIB).unwrap_err().is_out_of_memory());
    assert_eq!(panics.load(Ordering::Relaxed), 2);
}

#[derive(Debug)]
struct PanicsOnTrim(Arc<millpond_testkit::mock::MockResource>, Arc<AtomicU32>);

// SAFETY: every call except `trim` goes to the upstream with the same arguments, so its contract holds.
#[deny(clippy::missing_trait_methods)]
unsafe impl DeviceMemoryResource for PanicsOnTrim {
    fn trim(&self, _: u64) -> Result<u64> {
        self.1.fetch_add(1, Ordering::Relaxed);
        panic!("a layer's trim");
    }

    forward_to_upstream!(self.0, except trim);
}

impl std::fmt::Display for PanicsOnTrim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("panics")
    }
}

#[test]
fn a_function_that_panics_is_not_the_requests_fault() {
    let (house, _job) = house();
    let (etl, train) = (house.tenant(layer("etl")), train(&house, SOON));
    take(&etl, 10 * MIB).unwrap();
    etl.budget().on_call_back(|_| panic!("no"));
    assert!(take(&train, MIB).unwrap_err().is_out_of_memory());
    etl.budget().on_call_back(|_| {});
    assert!(take(&train, MIB).unwrap_err().is_out_of_memory());
}

/// On a stream that captures, others are not asked: they might wait for the device.
#[test]
fn a_request_in_a_capture_makes_no_call() {
    let device = SimDevice::new(SimConfig::h200());
    let house = House::on(device.clone());
    let _job = house.budget(BudgetLayer::new("job", 10 * MIB));
    let (etl, train) = (house.tenant(layer("etl")), train(&house, SOON));
    take(&etl, 10 * MIB).unwrap();
    let calls = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&calls);
    etl.budget().on_call_back(move |_| _ = seen.fetch_add(1, Ordering::Relaxed));
    let stream = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    device.begin_capture(stream, CaptureMode::Global).unwrap();
    assert!(train.allocate_bytes(MIB, stream).unwrap_err().is_out_of_memory());
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    device.end_capture(stream).unwrap();
    assert!(train.allocate_bytes(MIB, stream).unwrap_err().is_out_of_memory());
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

/// Below a lock, the request leaves the wait to the lock, so that a free gets through.
#[test]
fn a_request_below_a_lock_waits_without_the_lock() {
    let (house, _job) = house();
    let etl = house.tenant(layer("etl"));
    let block = take(&etl, 10 * MIB).unwrap();
    let locked = Arc::new(train(&house, LONG).layer(ThreadSafeLayer::new()).unwrap());
    let (begun, begins) = mpsc::channel();
    let shared = Arc::clone(&locked);
    let waits = thread::spawn(move || {
        begun.send(()).unwrap();
        take(&*shared, 6 * MIB).map(drop)
    });
    begins.recv().unwrap();
    assert!(locked.memory_info().is_ok(), "the lock is free, or soon is");
    free(&etl, block, 10 * MIB);
    waits.join().unwrap().unwrap();
}

/// Upstream runs without any lock of the tree: it may use another tenant.
#[test]
fn upstream_may_use_the_tree() {
    let (house, job) = house();
    let etl = Arc::new(house.tenant(layer("etl")));
    let inner = Arc::clone(&etl);
    let before = move |call: &str| {
        if call == "allocate" {
            let block = take(&inner, MIB).unwrap();
            free(&inner, block, MIB);
        }
    };
    let probed = Probe { upstream: Arc::clone(&house.upstream), before };
    let tenant = probed.layer(layer("train")).unwrap();
    let block = take(&tenant, 5 * MIB).unwrap();
    assert_eq!(job.used_bytes(), 5 * MIB);
    free(&tenant, block, 5 * MIB);
    assert_eq!((used(&etl), S.handle()), (0, 0));
}
