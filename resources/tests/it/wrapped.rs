//! Tests pools over wrappers. Over a wrapper of `cuda`, a pool maps no pages, and reports that. Over a
//! wrapper that submits work, a pool's `trim` counts only memory that reaches the device.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, DriverHandle, Layout, MemoryInfo,
    ResourceStatistics, Result, StreamRef,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::{CudaMemoryResource, PagesMode, PoolLayer};
use tracing::field::{Field, Visit};

/// Passes every call on.
#[derive(Debug)]
struct Wrapper(CudaMemoryResource);

impl fmt::Display for Wrapper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+wrapper", self.0)
    }
}

// SAFETY: every call goes to the resource below.
unsafe impl DeviceMemoryResource for Wrapper {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        self.0.allocate(layout, stream)
    }
    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        // SAFETY: the caller's promise.
        unsafe { self.0.deallocate(ptr, layout, stream) }
    }
    fn driver(&self) -> &DriverHandle {
        self.0.driver()
    }
    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        Some(&self.0)
    }
    fn memory_info(&self) -> Result<MemoryInfo> {
        self.0.memory_info()
    }
    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        self.0.is_equal(other)
    }
    fn statistics(&self) -> Option<ResourceStatistics> {
        self.0.statistics()
    }
}

/// Keeps the text of events.
#[derive(Default)]
struct Events(Mutex<Vec<String>>, AtomicU64);
struct Text(String);
impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!("{field}={value:?} ");
    }
}
impl tracing::Subscriber for Events {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(self.1.fetch_add(1, Ordering::Relaxed) + 1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn issue_9_a_wrapper_below_the_pool_is_said_to_cost_its_pages() {
    let events = Arc::new(Events::default());
    let device = SimDevice::new(SimConfig::h200());
    let cuda = || CudaMemoryResource::new(device.clone());
    let wrapped = || Wrapper(cuda());
    millpond_testkit::events::heard_by(Arc::clone(&events), || {
        let plain = cuda().layer(PoolLayer::new()).unwrap();
        assert!(plain.maps_pages());
        let off = wrapped().layer(PoolLayer::new().pages(PagesMode::Off)).unwrap();
        assert!(!off.maps_pages());
        assert_eq!(events.0.lock().unwrap().len(), 0, "nothing to say");
        let over_wrapper = wrapped().layer(PoolLayer::new()).unwrap();
        assert!(!over_wrapper.maps_pages());
    });
    let said = events.0.lock().unwrap().clone();
    assert!(said.len() == 1 && said[0].contains("put the layer above the pool"), "{said:?}");
}

/// A wrapper that says nothing about its order counts as one that submits work.
#[test]
fn a_wrapper_is_stream_ordered_unless_it_says_otherwise() {
    let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
    assert!(!cuda.is_stream_ordered());
    assert!(Wrapper(cuda).is_stream_ordered());
}

/// `trim` counts each byte that reached the device once. A wrapper passes regions on at once. A pool, or the
/// driver's pool, keeps them until it is trimmed itself.
#[test]
fn trim_counts_what_reached_the_device() {
    let layers = millpond_resources::LAYERS.iter().chain(millpond_adaptors::LAYERS);
    let layers = layers.chain(millpond_plan::LAYERS).copied();
    let table = LayerTable::new(layers);
    for text in [
        "managed+prefetch+pool",
        "managed+prefetch+statistics+pool",
        "managed+prefetch+binning:min=20,max=26",
        "managed+pool",
        "managed+pool+pool",
        "managed+prefetch+pool+pool",
        "cuda+pool:pages=off+binning:min=20,max=26",
        "managed+plan:file=../testkit/plans/equal_1024.plan+pool",
    ] {
        let device = SimDevice::new(SimConfig::h200());
        let driver: DriverHandle = device.clone();
        let stack = text.parse::<StackSpec>().unwrap().build(&table, &driver).unwrap();
        let ptr = stack.allocate_bytes(48 << 20, StreamRef::LEGACY).unwrap();
        // SAFETY: the block came from this stack with this size, and no work uses it.
        unsafe { stack.deallocate_bytes(ptr, 48 << 20, StreamRef::LEGACY) };
        let before = device.live_bytes();
        let trimmed = stack.trim(0).unwrap();
        assert!(trimmed >= 48 << 20, "{text}: {trimmed}");
        assert_eq!(trimmed, before - device.live_bytes(), "{text}");
        assert_eq!(device.take_violations(), [], "{text}");
    }
}
