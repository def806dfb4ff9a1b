//! Tests the statistics of stacks over plain CUDA memory, which keeps none itself.

use std::sync::Arc;

use millpond_adaptors::{AllocationCounters, StatisticsLayer, StatisticsResourceAdaptor, TrackingLayer};
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, ResourceStatistics, StreamRef,
    find_trait,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::{CudaMemoryResource, PoolLayer};
use millpond_testkit::misuse_recorder;

const S: StreamRef = StreamRef::LEGACY;
const MIB: u64 = 1 << 20;

fn build(text: &str) -> AnyResource {
    let table = LayerTable::new(millpond_resources::LAYERS.iter().copied())
        .with(millpond_adaptors::LAYERS.iter().copied());
    let driver = SimDevice::new(SimConfig::h200()) as _;
    text.parse::<StackSpec>().unwrap().build(&table, &driver).unwrap()
}

fn free(resource: &AnyResource, ptr: DevicePtr, bytes: u64) {
    // SAFETY: the pointer is a block of this resource with this size, or the device refuses it.
    unsafe { resource.deallocate_bytes(ptr, bytes, S) }
}

fn counts(known: &ResourceStatistics) -> [u64; 5] {
    [known.bytes_requested, known.blocks_in_use, known.allocations, known.deallocations, known.misuses]
}

#[test]
fn issue_9_layers_over_plain_cuda_know_what_passed_through_them() {
    for text in ["cuda+statistics", "cuda+tracking", "cuda+binning", "cuda+tracking+statistics+thread_safe"] {
        let resource = build(text);
        let statistics = || resource.statistics().unwrap_or_else(|| panic!("`{text}` knows nothing"));
        assert_eq!(counts(&statistics()), [0; 5], "{text}");
        let sizes = [100 * MIB, 7 * MIB, 300_000];
        let [a, b, c] = sizes.map(|bytes| resource.allocate_bytes(bytes, S).unwrap());
        resource.allocate_bytes(1 << 50, S).unwrap_err();
        let full = statistics();
        assert_eq!(counts(&full), [sizes.iter().sum(), 3, 3, 0, 0], "{text}");
        assert!(
            full.bytes_reserved >= full.bytes_in_use && full.ladder.out_of_memory == 1,
            "{text}: {full:?}"
        );
        free(&resource, a, sizes[0]);
        assert_eq!(counts(&statistics()), [sizes[1] + sizes[2], 2, 3, 1, 0], "{text}");
        free(&resource, b, sizes[1]);
        free(&resource, c, sizes[2]);
        let empty = statistics();
        assert_eq!(counts(&empty), [0, 0, 3, 3, 0], "{text}");
        assert!(empty.peak_bytes_in_use >= sizes.iter().sum(), "{text}: {empty:?}");

        let ((), said) = misuse_recorder::record(|| free(&resource, DevicePtr::new(0x1000), 50 * MIB));
        assert_eq!(said.len(), 1, "{text}: {said:?}");
        let refused = statistics();
        assert_eq!((refused.misuses, refused.bytes_requested), (1, 0), "{text}");
        assert!(refused.allocations == 3, "what was counted stays: {refused:?}");
    }
}

#[test]
fn levels_do_not_show_in_statistics() {
    let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
    let resource = StatisticsResourceAdaptor::new(cuda);
    resource.allocate_bytes(1000, S).unwrap();
    resource.push_counters();
    resource.allocate_bytes(10, S).unwrap();
    resource.push_counters();
    resource.allocate_bytes(1, S).unwrap();
    let known = resource.statistics().unwrap();
    assert_eq!((known.bytes_requested, known.peak_bytes_in_use, known.allocations), (1011, 1011, 3));
    assert_eq!(resource.counters().bytes.current, 1, "the levels are unchanged");
}

#[test]
fn what_the_upstream_counts_stays_as_it_is() {
    for text in ["cuda+pool+statistics", "cuda+pool+tracking", "cuda+pool+binning:bins=none"] {
        let resource = build(text);
        resource.allocate_bytes(1000, S).unwrap();
        let known = resource.statistics().unwrap();
        assert_eq!((known.bytes_in_use, known.bytes_requested, known.allocations), (1024, 1000, 1), "{text}");
        assert!(known.bytes_reserved > known.bytes_in_use, "{text}: {known:?}");
    }
}

#[test]
fn issue_9_a_layer_of_any_type_is_reported_by_its_name() {
    let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
    let pool = cuda.layer(PoolLayer::new().maximum_bytes(64 * MIB)).unwrap();
    let typed = pool.layer(TrackingLayer::new()).unwrap().layer(StatisticsLayer::new()).unwrap();
    let erased = build("cuda+pool:max=64MiB+tracking+statistics");
    for layers in [typed.memory_report().layers, erased.memory_report().layers] {
        let find = |name: &str| layers.iter().find(|it| it.layer.split(':').next() == Some(name));
        assert_eq!(find("pool").unwrap().layer, "pool:max=64MiB");
        assert!(find("pool").unwrap().statistics.is_some() && find("statistics").is_some());
        assert!(find("binning").is_none() && find("poo").is_none());
    }
}

/// RMM's test MultiTracking: an upper adaptor counts the calls that pass through it, the lower one counts
/// all.
#[test]
fn counting_adaptors_on_each_other_count_what_passed_through_them() {
    let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
    let below = Arc::new(cuda.layer(StatisticsLayer::new()).unwrap().layer(TrackingLayer::new()).unwrap());
    let middle = Arc::new(Arc::clone(&below).layer(TrackingLayer::new()).unwrap());
    let above = Arc::new(Arc::clone(&middle).layer(StatisticsLayer::new()).unwrap());
    let counts = || {
        let [deep, high] = [below.upstream(), Some(&*above as &dyn DeviceMemoryResource)]
            .map(|it| find_trait::<dyn AllocationCounters>(it.unwrap()).unwrap().counters().bytes.current);
        [deep as u64, below.allocated_bytes(), middle.allocated_bytes(), high as u64]
    };
    let (below_any, above_any): (AnyResource, AnyResource) = (below.clone(), above.clone());
    let early = below_any.allocate_bytes(10 * MIB, S).unwrap();
    let late = above_any.allocate_bytes(5 * MIB, S).unwrap();
    assert_eq!(counts(), [15 * MIB, 15 * MIB, 5 * MIB, 5 * MIB]);
    free(&below_any, early, 10 * MIB);
    assert_eq!(counts(), [5 * MIB; 4]);
    free(&above_any, late, 5 * MIB);
    assert_eq!((counts(), below.outstanding().len(), middle.outstanding().len()), ([0; 4], 0, 0));
}
