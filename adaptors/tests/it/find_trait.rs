//! Tests finding layers of a stack by the traits that they provide.
#![cfg(feature = "logging")]

use std::sync::Arc;

use millpond_adaptors::{
    AllocationCounters, AllocationLimit, AllocationLog, AllocationTracker, LimitingLayer, LoggingLayer,
    StatisticsLayer, TrackingLayer,
};
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    DeviceMemoryResource, DeviceMemoryResourceExt, DriverHandle, StreamRef, downcast, find_trait,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::{CudaMemoryResource, Pool, PoolLayer};

const S: StreamRef = StreamRef::LEGACY;
const MIB: u64 = 1 << 20;

/// Five layers, each with a trait.
fn typed() -> impl DeviceMemoryResource + Send + Sync {
    let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
    let pool = cuda.layer(PoolLayer::new().maximum_bytes(64 * MIB)).unwrap();
    let limited = pool.layer(TrackingLayer::new()).unwrap().layer(LimitingLayer::new(32 * MIB)).unwrap();
    limited.layer(StatisticsLayer::new()).unwrap().layer(LoggingLayer::new().writer(std::io::sink())).unwrap()
}

/// Finds all of them in a fresh stack.
fn check(stack: &dyn DeviceMemoryResource) {
    stack.allocate_bytes(1000, S).unwrap();
    let log = find_trait::<dyn AllocationLog>(stack).unwrap();
    log.flush().unwrap();
    assert_eq!((log.rows_written(), log.write_errors()), (1, 0));
    let counting = find_trait::<dyn AllocationCounters>(stack).unwrap();
    assert_eq!(counting.push_counters().bytes.current, 1000);
    assert_eq!((counting.counters().bytes.current, counting.pop_counters().unwrap().bytes.current), (0, 0));
    let limit = find_trait::<dyn AllocationLimit>(stack).unwrap();
    assert_eq!((limit.limit_bytes(), limit.allocated_bytes()), (32 * MIB, 1024));
    let tracker = find_trait::<dyn AllocationTracker>(stack).unwrap();
    assert_eq!((tracker.outstanding().len(), tracker.allocated_bytes()), (1, 1000));
    assert!(tracker.report().contains("1000 B"));
    let pool = find_trait::<dyn Pool>(stack).unwrap();
    assert_eq!((pool.options().maximum_bytes, pool.known_streams()), (Some(64 * MIB), 1));
    assert!(pool.pool_bytes() >= 1024);
}

#[test]
fn issue_9_each_layer_is_found_by_its_trait_over_any_types() {
    check(&typed());
    check(&typed().into_any());
    // The search looks through handles on top and in the middle.
    check(&typed().into_any().layer(LimitingLayer::new(32 * MIB)).map(Arc::new).unwrap());
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = format!(
        "cuda+pool:max=64MiB+tracking+limiting:limit=32MiB+statistics+thread_safe+logging:file={}",
        file.path().display()
    );
    let table = LayerTable::new(millpond_resources::LAYERS.iter().copied())
        .with(millpond_adaptors::LAYERS.iter().copied());
    let driver: DriverHandle = SimDevice::new(SimConfig::h200());
    check(&text.parse::<StackSpec>().unwrap().build(&table, &driver).unwrap());
}

/// A trait that no layer provides.
trait Nobodys {}

#[test]
fn the_outermost_is_found_and_nothing_that_is_not_there() {
    let stack = typed().layer(LimitingLayer::new(MIB)).unwrap().into_any();
    assert_eq!(find_trait::<dyn AllocationLimit>(&stack).unwrap().limit_bytes(), MIB);
    let limits = stack.stack().with::<dyn AllocationLimit>();
    assert_eq!(limits.map(AllocationLimit::limit_bytes).collect::<Vec<_>>(), [MIB, 32 * MIB]);
    assert_eq!(stack.stack().with::<dyn Pool>().count(), 1);
    assert_eq!(stack.stack().with::<dyn Nobodys>().count(), 0);
    assert!(find_trait::<dyn Nobodys>(&stack).is_none());
    let base = stack.stack().last().unwrap();
    assert!(downcast::<CudaMemoryResource>(base).is_some() && find_trait::<dyn Pool>(base).is_none());
}
