//! Tests budgets: their limits, what they lend and call back, their errors, and what they clear.

mod call_back;
mod claims;
mod crowd;
mod zero;

use std::sync::Arc;

use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, DriverHandle, Error, ErrorKind,
    Layout, MemoryInfo, Result, StreamRef, find_trait,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_testkit::mock::{self, Call, MockResource};

use super::{Budget, BudgetLayer, BudgetResourceAdaptor};
use crate::{AllocationBudget, AllocationLimit};

const S: StreamRef = StreamRef::LEGACY;
const MIB: u64 = 1 << 20;

type Tenant = BudgetResourceAdaptor<Arc<MockResource>>;

/// A device with tenants that share an upstream.
struct House {
    upstream: Arc<MockResource>,
    handle: mock::Handle,
    driver: DriverHandle,
}

impl House {
    fn new() -> Self {
        Self::on(SimDevice::new(SimConfig::h200()))
    }

    fn on(driver: DriverHandle) -> Self {
        let (upstream, handle) = mock::resource(DriverHandle::clone(&driver));
        Self { upstream: Arc::new(upstream), handle, driver }
    }

    /// Creates a budget without a tenant.
    fn budget(&self, layer: BudgetLayer) -> Budget {
        layer.open(&*self.driver).unwrap()
    }

    fn tenant(&self, layer: BudgetLayer) -> Tenant {
        self.try_tenant(layer).unwrap()
    }

    fn try_tenant(&self, layer: BudgetLayer) -> Result<Tenant> {
        Arc::clone(&self.upstream).layer(layer)
    }
}

fn take(tenant: &impl DeviceMemoryResource, bytes: u64) -> Result<DevicePtr> {
    tenant.allocate_bytes(bytes, S)
}

fn free(resource: &impl DeviceMemoryResource, ptr: DevicePtr, bytes: u64) {
    // SAFETY: the tests free each block once, with its size; no work uses it.
    unsafe { resource.deallocate_bytes(ptr, bytes, S) }
}

fn table() -> LayerTable {
    LayerTable::new(millpond_resources::LAYERS.iter().copied()).with(crate::LAYERS.iter().copied())
}

fn build_on(driver: &DriverHandle, text: &str) -> Result<AnyResource> {
    text.parse::<StackSpec>()?.build(&table(), driver)
}

/// `used` of a budget, through each way to ask for it.
fn used(tenant: &Tenant) -> u64 {
    let (bytes, report) = (tenant.budget().used_bytes(), tenant.memory_report());
    assert_eq!(report.layers[0].limit_used_bytes, Some(bytes));
    assert_eq!(find_trait::<dyn AllocationLimit>(tenant).unwrap().allocated_bytes(), bytes);
    bytes
}

#[test]
fn each_level_refuses_what_it_has_no_room_for() {
    let house = House::new();
    let root = house.budget(BudgetLayer::new("node", 10 * MIB));
    let job = house.budget(BudgetLayer::new("job", 8 * MIB).parent("node"));
    let etl = house.tenant(BudgetLayer::new("etl", 5 * MIB).parent("job"));
    let train = house.tenant(BudgetLayer::new("train", 5 * MIB).parent("job"));
    let other = house.tenant(BudgetLayer::new("other", 10 * MIB).parent("node"));
    let refusing = |tenant: &Tenant, bytes: u64| -> String {
        let error = take(tenant, bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        let text = error.to_string();
        text.split("the budget `").nth(1).and_then(|rest| rest.split('`').next()).unwrap().to_owned()
    };
    assert_eq!(refusing(&etl, 5 * MIB + 1), "etl");
    let a = take(&etl, 5 * MIB).unwrap();
    assert_eq!(refusing(&train, 3 * MIB + 1), "job");
    let b = take(&train, 3 * MIB - 300).unwrap();
    assert_eq!((used(&train), job.used_bytes()), (3 * MIB - 256, 8 * MIB - 256), "rounded up to 256");
    assert_eq!(refusing(&other, 2 * MIB + 257), "node");
    let c = take(&other, 2 * MIB + 256).unwrap();
    assert_eq!((root.used_bytes(), root.limit_bytes()), (10 * MIB, 10 * MIB));
    assert_eq!(refusing(&train, 1), "node");
    assert_eq!(train.memory_info().unwrap().free, 0);
    free(&etl, a, 5 * MIB);
    assert_eq!(train.memory_info().unwrap().free, 2 * MIB + 256, "what `train` has left");
    free(&train, b, 3 * MIB - 300);
    free(&other, c, 2 * MIB + 256);
    assert_eq!((root.used_bytes(), house.handle.live()), (0, vec![]));
}

#[test]
fn the_error_says_which_budget_refused_and_who_holds_its_bytes() {
    let house = House::new();
    let _job = house.budget(BudgetLayer::new("job", 10 * MIB));
    let etl = house.tenant(BudgetLayer::new("etl", 9 * MIB).parent("job").guaranteed(4 * MIB));
    let train = house.tenant(BudgetLayer::new("train", 9 * MIB).parent("job"));
    take(&etl, 3 * MIB).unwrap();
    take(&train, 6 * MIB).unwrap();
    let error = take(&etl, 2 * MIB).unwrap_err();
    for part in [
        "the budget `job` refused the request: its limit is 10MiB, and 9MiB are in use by `train` 6MiB, \
         `etl` 3MiB (4MiB guaranteed); free blocks",
        "the layer below was not asked",
        "1MiB more is needed",
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert_eq!(error.stack(), Some("mock+budget:name=etl,limit=9MiB,parent=job,guaranteed=4MiB"));
    assert_eq!((error.device(), error.is_impossible()), (Some(etl.device()), false));
    let error = take(&etl, 10 * MIB).unwrap_err();
    assert!(error.is_impossible() && error.to_string().contains("larger than the limit of 9MiB"), "{error}");
    // The budget to raise is the one with the least limit.
    let wide = house.tenant(BudgetLayer::new("wide", 40 * MIB).parent("etl"));
    let _middle = house.budget(BudgetLayer::new("middle", 30 * MIB).parent("job"));
    let low = house.tenant(BudgetLayer::new("low", 40 * MIB).parent("middle"));
    for (tenant, name, limit) in [(&wide, "etl", "9MiB"), (&low, "job", "10MiB")] {
        let error = take(tenant, 35 * MIB).unwrap_err().to_string();
        let words = format!("`{name}` refused the request, which is larger than the limit of {limit}");
        assert!(error.contains(&words), "{error}");
    }
}

#[test]
fn requests_beyond_all_address_spaces_are_refused_without_overflow() {
    let house = House::new();
    let tenant = house.tenant(BudgetLayer::new("all", u64::MAX));
    assert!(take(&tenant, u64::MAX).unwrap_err().is_impossible());
    take(&tenant, 256).unwrap();
    assert!(take(&tenant, u64::MAX - 255).unwrap_err().is_out_of_memory());
    assert_eq!((used(&tenant), house.handle.calls().len()), (256, 1));
}

#[test]
fn what_upstream_refuses_or_never_gave_does_not_count() {
    let house = House::new();
    let tenant = house.tenant(BudgetLayer::new("a", 1024));
    house.handle.fail_next(ErrorKind::OutOfMemory);
    let error = take(&tenant, 1000).unwrap_err();
    assert_eq!((error.stack(), used(&tenant)), (Some("mock"), 0));
    let null = take(&tenant, 0).unwrap();
    free(&tenant, null, 0);
    free(&tenant, DevicePtr::new(256), u64::MAX);
    free(&tenant, DevicePtr::new(256), 5000);
    assert!(null.is_null() && used(&tenant) == 0);
}

/// A free that the upstream refuses frees nothing.
#[test]
fn a_refused_free_leaves_the_count_as_it_is() {
    let driver: DriverHandle = SimDevice::new(SimConfig::h200());
    let stack = build_on(&driver, "cuda+pool+budget:name=a,limit=10MiB").unwrap();
    let [a, _b] = [(); 2].map(|()| take(&stack, 4 * MIB).unwrap());
    let ((), reports) = millpond_testkit::misuse_recorder::record(|| {
        free(&stack, a, 5 * MIB);
        free(&stack, a, 4 * MIB);
        free(&stack, a, 4 * MIB);
    });
    let budget = find_trait::<dyn AllocationBudget>(&stack).unwrap().budget();
    assert_eq!((reports.len(), budget.used_bytes()), (2, 4 * MIB));
}

#[test]
fn the_bytes_of_a_dropped_tenant_come_back() {
    let house = House::new();
    let job = house.budget(BudgetLayer::new("job", 4 * MIB));
    let etl = house.tenant(BudgetLayer::new("etl", 4 * MIB).parent("job"));
    let twin = house.tenant(BudgetLayer::new("etl", 4 * MIB).parent("job"));
    take(&etl, 3 * MIB).unwrap();
    let kept = take(&twin, MIB).unwrap();
    assert_eq!((job.used_bytes(), used(&twin)), (4 * MIB, 4 * MIB), "both charge one budget");
    drop(etl);
    assert_eq!(job.used_bytes(), MIB);
    free(&twin, kept, MIB);
    drop(twin);
    assert_eq!(job.used_bytes(), 0);
    // The name is free again.
    house.tenant(BudgetLayer::new("etl", 2 * MIB));
}

fn wrong(result: Result<impl Sized>, parts: &[&str]) {
    let error = result.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    parts.iter().for_each(|part| assert!(error.to_string().contains(part), "{part}: {error}"));
}

#[test]
fn budgets_that_make_no_sense_are_refused() {
    let house = House::new();
    let layer = |name: &str| BudgetLayer::new(name, 8 * MIB);
    let job = house.tenant(layer("job"));
    let _a = house.budget(layer("a").parent("job").guaranteed(6 * MIB));
    let below = |name: &str| layer(name).parent("a");
    for (layer, parts) in [
        (layer(""), &["the name of a budget is empty"][..]),
        (layer("b").guaranteed(1), &["`b`: it has no parent to guarantee it a share"]),
        (layer("b").parent("job").guaranteed(9 * MIB), &["it guarantees 9MiB, more than its limit of 8MiB"]),
        (
            layer("b").parent("job").guaranteed(3 * MIB),
            &["it guarantees 3MiB, and the other budgets below `job` 6MiB; `job` can guarantee 8MiB in all"],
        ),
        (below("b").guaranteed(7 * MIB), &["`a` can guarantee 6MiB in all"]),
        (layer("b").parent("missing"), &["`b` has the parent `missing`", "it has: a, job)", "name=missing"]),
        (
            layer("a").parent("job"),
            &["a budget `a` with other options: `budget:name=a,limit=8MiB,parent=job,"],
        ),
        (layer("b").wait(std::time::Duration::from_secs(3601)), &["waits for an hour at most"]),
    ] {
        wrong(house.try_tenant(layer), parts);
    }
    wrong(job.layer(below("b")), &["a layer below already charges the budget `job`", "`b` would count"]);
    wrong(house.tenant(layer("left").parent("job")).layer(layer("right").parent("job")), &["`right` would"]);
    wrong(house.tenant(below("low")).layer(layer("job")), &["the budget `low` of the same tree"]);
    // Also if the layer is in another branch.
    let other = || house.tenant(layer("other").parent("job")).into_any();
    let both = Arc::clone(&house.upstream).layer(crate::FallbackLayer::new(other())).unwrap();
    wrong(both.layer(layer("right").parent("job")), &["the budget `other` of the same tree"]);
    let bins = millpond_resources::BinningLayer::new().add_bin_with(MIB, other());
    let bins = Arc::clone(&house.upstream).layer(bins).unwrap();
    let far = Arc::clone(&house.upstream).layer(crate::FallbackLayer::new(bins.into_any())).unwrap();
    wrong(far.layer(layer("right").parent("job")), &["the budget `other` of the same tree"]);
    // A refused budget leaves its guarantee to others.
    house.budget(layer("b").parent("job").guaranteed(2 * MIB));
    let other = House::new();
    wrong(other.try_tenant(layer("b").parent("job")), &["(it has: none)"]);
}

#[test]
fn a_wait_is_rounded_before_it_is_compared() {
    let house = House::new();
    let with = |ns| house.try_tenant(BudgetLayer::new("a", MIB).wait(std::time::Duration::from_nanos(ns)));
    let tenant = with(1500).unwrap();
    assert_eq!(tenant.to_string(), "mock+budget:name=a,limit=1MiB,wait=1us");
    assert!(with(1000).is_ok() && with(2000).is_err());
}

#[test]
fn names_of_dead_budgets_are_not_kept() {
    let house = House::new();
    for number in 0..100 {
        house.budget(BudgetLayer::new(format!("job {number}"), MIB));
    }
    assert_eq!(super::names::count(house.driver.device()), 1);
}

#[test]
fn everything_else_is_the_upstreams() {
    let house = House::new();
    let tenant = house.tenant(BudgetLayer::new("a", 1024));
    house.handle.set_memory_info(MemoryInfo { free: 5000, total: 9000 });
    house.handle.set_trimmed_bytes(77);
    take(&tenant, 200).unwrap();
    assert_eq!(tenant.memory_info().unwrap(), MemoryInfo { free: 768, total: 9000 });
    house.handle.set_memory_info(MemoryInfo { free: 5, total: 9000 });
    assert_eq!(tenant.memory_info().unwrap(), MemoryInfo { free: 5, total: 9000 });
    assert_eq!((tenant.trim(11).unwrap(), tenant.statistics()), (77, house.upstream.statistics()));
    let calls = house.handle.take_calls();
    assert_eq!(calls[0], Call::allocate(Layout::new(200), S));
    assert!(calls.contains(&Call::Trim { keep_bytes: 11 }));
    assert_eq!(tenant.is_stream_ordered(), house.upstream.is_stream_ordered());
    assert!(tenant.is_equal(&tenant) && !tenant.is_equal(&*house.upstream));
    assert!(!tenant.is_equal(&house.tenant(BudgetLayer::new("a", 1024))));
}

#[test]
fn text_builds_it() {
    let driver: DriverHandle = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let build = |text: &str| build_on(&driver, text);
    let same = |text: &str| {
        let stack = build(text).unwrap();
        assert_eq!(stack.to_string(), text);
        assert_eq!(build(text).unwrap().to_string(), text, "again");
        stack
    };
    let job = same("cuda+budget:name=job,limit=50%");
    let etl = same(
        "cuda+pool+budget:name=etl,limit=40MiB,parent=job,guaranteed=2%,priority=3,wait=2s,zero=handover",
    );
    let budget = find_trait::<dyn AllocationBudget>(&etl).unwrap().budget();
    assert_eq!((budget.name(), budget.limit_bytes()), ("etl", 40 * MIB));
    let above = budget.parent().unwrap();
    assert_eq!((above.name(), above.limit_bytes()), ("job", find_limit(&job)));
    assert!(above.parent().is_none() && budget.guaranteed_bytes() > 0);
    assert_eq!(format!("{above:?}"), "Budget(budget:name=job,limit=50%)");
    let named = same("cuda+budget:name=\"a,b+(c)\",limit=1B");
    assert_eq!(find_trait::<dyn AllocationBudget>(&named).unwrap().budget().name(), "a,b+(c)");
    for (wrong, part) in [
        ("cuda+budget", "`budget` needs a name"),
        ("cuda+budget:limit=1MiB", "`budget` needs a name"),
        ("cuda+budget:name=x", "`budget` needs a limit"),
        ("cuda+budget:name=x,limit=1MiB,zero=on", "write off or handover"),
        ("cuda+budget:name=x,limit=1MiB,priority=-1", "not a whole number"),
        ("cuda+budget:name=x,limit=1MiB,wait=2", "is not a time"),
    ] {
        let error: Error = build(wrong).unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidStack && error.to_string().contains(part), "{error}");
    }
}

fn find_limit(stack: &AnyResource) -> u64 {
    find_trait::<dyn AllocationLimit>(stack).unwrap().limit_bytes()
}
