//! Tests prefetching: which blocks, and how refusals and errors end.

use std::sync::Arc;

use millpond_core::driver::{CaptureMode, StreamFlags};
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Driver, DriverError, ErrorKind,
    MemoryInfo, StreamRef, downcast,
};
use millpond_driver::sim::{FaultPlan, SimConfig, SimDevice};
use millpond_driver::{CallKind, CountingDriver};
use millpond_testkit::mock;

use super::{PrefetchLayer, PrefetchResourceAdaptor};
use crate::fallback::FallbackResourceAdaptor;

const S: StreamRef = StreamRef::LEGACY;

struct Bench {
    device: Arc<SimDevice>,
    counting: Arc<CountingDriver>,
    stack: AnyResource,
}

impl Bench {
    fn new(text: &str) -> Self {
        let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
        let counting = CountingDriver::new(device.clone());
        let table =
            LayerTable::new(millpond_resources::LAYERS.iter().copied()).with(crate::LAYERS.iter().copied());
        let stack = text.parse::<StackSpec>().unwrap().build(&table, &(counting.clone() as _)).unwrap();
        assert_eq!(stack.to_string(), text);
        Self { device, counting, stack }
    }

    fn adaptor(&self) -> &PrefetchResourceAdaptor<AnyResource> {
        self.stack.stack().find_map(downcast).unwrap()
    }

    fn free(&self, ptr: DevicePtr, bytes: u64) {
        // SAFETY: the tests free each block once, with its size; no work uses it.
        unsafe { self.stack.deallocate_bytes(ptr, bytes, S) }
    }

    fn prefetches(&self) -> u64 {
        self.counting.counts().get(CallKind::MemPrefetch).calls
    }
}

#[test]
fn blocks_are_moved_to_the_device_once_they_are_allocated() {
    for text in
        ["managed+prefetch", "managed+pool+prefetch", "system+prefetch", "managed+prefetch+statistics"]
    {
        let bench = Bench::new(text);
        for (bytes, count) in [(1000, 1), (5 << 20, 2), (1, 3)] {
            let ptr = bench.stack.allocate_bytes(bytes, S).unwrap();
            assert_eq!(bench.device.last_prefetch(), Some((ptr, bytes, false)), "{text}");
            assert_eq!(bench.prefetches(), count, "{text}");
            bench.free(ptr, bytes);
        }
        assert!(bench.stack.allocate_bytes(0, S).unwrap().is_null());
        assert_eq!(bench.prefetches(), 3, "{text}: nothing is prefetched for nothing");
        assert!(bench.adaptor().is_prefetching());
        assert_eq!(bench.device.violations(), []);
    }
}

#[test]
fn memory_of_the_device_is_never_prefetched() {
    for text in ["cuda+prefetch", "cuda+pool+prefetch"] {
        let bench = Bench::new(text);
        assert!(!bench.adaptor().is_prefetching());
        let ptr = bench.stack.allocate_bytes(1000, S).unwrap();
        bench.free(ptr, 1000);
        assert_eq!(bench.prefetches(), 0, "{text}");
    }
}

/// Before, a free gave the block back at once, while a prefetch of it still ran.
#[test]
fn memory_of_the_host_alone_is_never_prefetched() {
    let bench = Bench::new("host+prefetch");
    assert!(!bench.adaptor().is_prefetching() && !bench.stack.is_stream_ordered());
    let ptr = bench.stack.allocate_bytes(1000, S).unwrap();
    bench.free(ptr, 1000);
    assert_eq!((bench.prefetches(), bench.device.take_violations()), (0, Vec::new()));
}

#[test]
fn a_refusal_is_found_out_once() {
    for text in ["pinned_host+prefetch", "pinned_host+pool+prefetch"] {
        let bench = Bench::new(text);
        assert!(bench.adaptor().is_prefetching(), "the host reaches it");
        let blocks = [(); 5].map(|()| bench.stack.allocate_bytes(4096, S).unwrap());
        assert_eq!((bench.adaptor().is_prefetching(), bench.prefetches()), (false, 1), "{text}");
        blocks.into_iter().for_each(|ptr| bench.free(ptr, 4096));
    }
}

#[test]
fn a_prefetch_that_fails_fails_nothing_else() {
    let bench = Bench::new("managed+prefetch");
    for code in [DriverError::OUT_OF_MEMORY, DriverError::INVALID_VALUE, DriverError::NOT_PERMITTED] {
        bench.device.set_faults(FaultPlan::nth_of(CallKind::MemPrefetch, 0, code));
        let ptr = bench.stack.allocate_bytes(1000, S).unwrap();
        bench.device.set_faults(FaultPlan::none());
        bench.free(ptr, 1000);
        assert!(bench.adaptor().is_prefetching(), "{code}: the memory is managed");
    }
    assert_eq!(bench.device.last_prefetch(), None);
    bench.device.set_faults(FaultPlan::nth_of(CallKind::MemPrefetch, 0, DriverError::NOT_SUPPORTED));
    let ptr = bench.stack.allocate_bytes(1000, S).unwrap();
    bench.device.set_faults(FaultPlan::none());
    bench.free(ptr, 1000);
    assert!(!bench.adaptor().is_prefetching(), "a driver without the call is not asked again");
    assert_eq!(bench.device.live_allocations(), 0);
}

#[test]
fn an_error_that_loses_the_device_is_noted() {
    let bench = Bench::new("managed+prefetch");
    bench.device.set_faults(FaultPlan::nth_of(CallKind::MemPrefetch, 0, DriverError::ILLEGAL_ADDRESS));
    bench.stack.allocate_bytes(1000, S).unwrap();
    bench.device.set_faults(FaultPlan::none());
    assert_eq!(bench.stack.allocate_bytes(1000, S).unwrap_err().kind(), ErrorKind::Poisoned);
}

#[test]
fn a_capture_gets_no_prefetch_and_stays_valid() {
    let bench = Bench::new("managed+pool+prefetch");
    let stream = bench.device.stream_create(StreamFlags::BLOCKING).unwrap();
    bench.device.begin_capture(stream, CaptureMode::Global).unwrap();
    for on in [stream, S] {
        let ptr = bench.stack.allocate_bytes(1000, on).unwrap();
        // SAFETY: the block is live, unused, and freed with its size.
        unsafe { bench.stack.deallocate_bytes(ptr, 1000, on) };
    }
    bench.device.end_capture(stream).unwrap();
    assert_eq!(bench.prefetches(), 0);
    assert!(bench.adaptor().is_prefetching());
}

#[test]
fn everything_else_is_the_upstreams() {
    let device = SimDevice::new(SimConfig::h200());
    let (upstream, handle) = mock::resource(device.clone());
    let resource = upstream.layer(PrefetchLayer::new()).unwrap();
    handle.set_memory_info(MemoryInfo { free: 5, total: 9 });
    handle.set_trimmed_bytes(77);
    assert_eq!(resource.memory_info().unwrap(), MemoryInfo { free: 5, total: 9 });
    assert_eq!((resource.statistics(), resource.trim(11).unwrap()), (None, 77));
    assert!(resource.is_equal(&resource) && !resource.is_equal(resource.upstream().unwrap()));
    handle.fail_next(ErrorKind::OutOfMemory);
    let error = resource.allocate_bytes(1, S).unwrap_err();
    assert_eq!((error.kind(), error.stack()), (ErrorKind::OutOfMemory, Some("mock")));
    let mixed = FallbackResourceAdaptor::new(mock::resource(device.clone()).0, resource).unwrap();
    assert_eq!(mixed.to_string(), "mock+fallback:to=(mock+prefetch)");
}
