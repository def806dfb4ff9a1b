//! Tests alignments: the requests to the upstream, and upstreams that refuse them.

use millpond_core::misuse::{Misuse, MisuseKind};
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, ErrorKind, Layout, MemoryInfo,
    ResourceStatistics, Result, StreamRef,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_testkit::misuse_recorder::record;
use millpond_testkit::mock::{self, Call, MockResource};

use super::{AlignedLayer, AlignedResourceAdaptor};

const S: StreamRef = StreamRef::LEGACY;

fn mock() -> (MockResource, mock::Handle) {
    mock::resource(SimDevice::new(SimConfig::h200()))
}

fn adaptor(layer: AlignedLayer) -> (AlignedResourceAdaptor<MockResource>, mock::Handle) {
    let (upstream, handle) = mock();
    (upstream.layer(layer).unwrap(), handle)
}

fn layout(bytes: u64, alignment: u64) -> Layout {
    Layout::with_alignment(bytes, alignment).unwrap()
}

fn free(resource: &impl DeviceMemoryResource, ptr: DevicePtr, layout: Layout) -> Vec<Misuse> {
    // SAFETY: the addresses of mocks have no memory behind them.
    record(|| unsafe { resource.deallocate(ptr, layout, S) }).1
}

#[test]
fn an_alignment_is_a_power_of_two() {
    for wrong in [0, 255, 768] {
        let error = mock().0.layer(AlignedLayer::new(wrong)).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let message = format!("alignment {wrong} is not a power of two; use 256, 512, 1024, …");
        assert_eq!(error.message(), message);
    }
}

#[test]
fn the_default_passes_requests_unchanged() {
    for small in [1, 16, 256] {
        let (resource, handle) = adaptor(AlignedLayer::new(small));
        assert_eq!(resource.alignment(), 256, "raised");
        let ptr = resource.allocate_bytes(5, S).unwrap();
        free(&resource, ptr, Layout::new(5));
        handle.assert_calls([Call::allocate(Layout::new(5), S), Call::deallocate(ptr, Layout::new(5), S)]);
    }
}

#[test]
fn requests_below_the_threshold_pass_unchanged() {
    let (resource, handle) = adaptor(AlignedLayer::new(4096).threshold_bytes(65536));
    for bytes in [0, 1, 65535] {
        let ptr = resource.allocate_bytes(bytes, S).unwrap();
        free(&resource, ptr, Layout::new(bytes));
    }
    let calls = handle.take_calls();
    assert!(
        calls.iter().all(|call| !matches!(call, Call::Allocate { layout, .. } if layout.alignment() > 256))
    );
    let ptr = resource.allocate_bytes(65536, S).unwrap();
    free(&resource, ptr, Layout::new(65536));
    let aligned = layout(65536, 4096);
    handle.assert_calls([Call::allocate(aligned, S), Call::deallocate(ptr, aligned, S)]);
}

#[test]
fn the_larger_alignment_counts() {
    let (resource, handle) = adaptor(AlignedLayer::new(4096));
    let own = layout(100, 1 << 16);
    let ptr = resource.allocate(own, S).unwrap();
    assert!(ptr.is_aligned_to(1 << 16));
    free(&resource, ptr, own);
    let ptr = resource.allocate(layout(100, 512), S).unwrap();
    assert!(ptr.is_aligned_to(4096));
    free(&resource, ptr, layout(100, 512));
    let calls = handle.take_calls();
    assert_eq!([calls[0], calls[2]], [Call::allocate(own, S), Call::allocate(layout(100, 4096), S)]);
    assert_eq!(handle.live(), []);
}

/// RMM's tests have the same numbers.
#[test]
fn an_upstream_that_refuses_is_asked_for_more() {
    let (resource, handle) = adaptor(AlignedLayer::new(4096));
    handle.fail_next(ErrorKind::Unsupported);
    for (base, start) in [(0x5000, 0x5000), (0x9300, 0xa000)] {
        handle.answer_next(DevicePtr::new(base));
        let ptr = resource.allocate_bytes(65536, S).unwrap();
        assert_eq!(ptr, DevicePtr::new(start));
    }
    let padded = Layout::new(69376);
    let asked = Call::allocate(padded, S);
    handle.assert_calls([Call::allocate(layout(65536, 4096), S), asked, asked]);
    for (base, start) in [(0x9300, 0xa000), (0x5000, 0x5000)] {
        assert_eq!(free(&resource, DevicePtr::new(start), Layout::new(65536)), []);
        handle.assert_calls([Call::deallocate(DevicePtr::new(base), padded, S)]);
    }
    assert_eq!(handle.live(), []);
}

#[test]
fn several_blocks_are_inside_larger_ones() {
    let (resource, handle) = adaptor(AlignedLayer::new(4096));
    handle.fail_next(ErrorKind::InvalidArgument);
    let layouts = [(1, 256), (5000, 512), (65536, 1 << 14)].map(|(bytes, at)| layout(bytes, at));
    let blocks = layouts.map(|layout| (resource.allocate(layout, S).unwrap(), layout));
    for (ptr, layout) in blocks {
        assert!(ptr.is_aligned_to(layout.alignment().max(4096)));
    }
    let sizes: Vec<u64> = handle.live().iter().map(|(_, layout)| layout.bytes()).collect();
    assert_eq!(sizes, [4096 + 3840, 8192 + 3840, 65536 + 16128]);
    for (ptr, layout) in blocks {
        assert_eq!(free(&resource, ptr, layout), []);
    }
    assert_eq!(handle.live(), []);
}

#[test]
fn a_wrong_size_of_a_block_inside_another_is_refused() {
    let (resource, handle) = adaptor(AlignedLayer::new(4096));
    handle.fail_next(ErrorKind::Unsupported);
    handle.answer_next(DevicePtr::new(0x9300));
    let ptr = resource.allocate_bytes(100, S).unwrap();
    let reports = free(&resource, ptr, Layout::new(101));
    assert_eq!(reports[0].kind, MisuseKind::WrongSize { allocated_bytes: 100 });
    assert_eq!(
        reports[0].to_string(),
        "refused to deallocate 0xa000 (101 bytes, stream 0) in `mock+aligned:alignment=4KiB`: the block was \
         allocated with 100 bytes; pass the same layout to both calls"
    );
    assert_eq!(resource.statistics().unwrap().misuses, 1);
    assert_eq!(free(&resource, ptr, Layout::new(100)), []);
    assert_eq!(handle.live(), []);
}

#[test]
fn sizes_that_overflow_are_refused() {
    let (resource, handle) = adaptor(AlignedLayer::new(4096));
    for bytes in [u64::MAX, u64::MAX - 4095, u64::MAX - 8191] {
        handle.fail_next(ErrorKind::InvalidArgument);
        let error = resource.allocate_bytes(bytes, S).unwrap_err();
        assert_eq!((error.kind(), error.requested_bytes()), (ErrorKind::OutOfMemory, Some(bytes)));
    }
    let ptr = resource.allocate(layout(100, 1 << 40), S).unwrap();
    assert!(ptr.is_aligned_to(1 << 40), "what cannot be served inside a larger block changes nothing");
    handle.fail_next(ErrorKind::OutOfMemory);
    assert!(resource.allocate_bytes(1, S).unwrap_err().is_out_of_memory());
    assert!(resource.allocate_bytes(1, S).unwrap().is_aligned_to(4096));
}

#[test]
fn everything_else_is_the_upstreams() {
    let (resource, handle) = adaptor(AlignedLayer::new(4096));
    handle.set_memory_info(MemoryInfo { free: 5, total: 9 });
    handle.set_statistics(Some(ResourceStatistics::default().misuses(3)));
    handle.set_trimmed_bytes(77);
    assert_eq!(resource.memory_info().unwrap(), MemoryInfo { free: 5, total: 9 });
    assert_eq!((resource.statistics().unwrap().misuses, resource.trim(11).unwrap()), (3, 77));
    assert!(resource.is_equal(&resource) && !resource.is_equal(resource.upstream().unwrap()));
}

/// Threads align blocks of a real pool, and of a pool that refuses alignments.
#[test]
fn threads_share_it() {
    for refuses in [false, true] {
        let (upstream, handle) = mock();
        if refuses {
            handle.fail_next(ErrorKind::Unsupported);
        }
        let resource = upstream.layer(AlignedLayer::new(4096)).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for bytes in 1..300 {
                        let ptr = resource.allocate_bytes(bytes, S).unwrap();
                        assert!(ptr.is_aligned_to(4096));
                        assert_eq!(free(&resource, ptr, Layout::new(bytes)), []);
                    }
                });
            }
        });
        assert_eq!(handle.live(), []);
    }
}

#[test]
fn text_builds_it() {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30)) as _;
    let table =
        LayerTable::new(millpond_resources::LAYERS.iter().copied()).with(crate::LAYERS.iter().copied());
    let build = |text: &str| -> Result<AnyResource> { text.parse::<StackSpec>()?.build(&table, &device) };
    for text in
        ["cuda+aligned", "cuda+aligned:threshold=64KiB", "cuda+pool+aligned:alignment=4KiB,threshold=64KiB"]
    {
        assert_eq!(build(text).unwrap().to_string(), text);
    }
    let plain = build("cuda+aligned:alignment=64,threshold=0").unwrap();
    assert_eq!(plain.to_string(), "cuda+aligned");
    for (wrong, message) in [
        ("cuda+aligned:alignment=768", "alignment 768 is not a power of two; use 256, 512, 1024, …"),
        ("cuda+aligned:alignment=50%", "`alignment=50%` of `aligned`"),
        ("cuda+aligned:threshold=-1", "a size cannot be negative"),
    ] {
        let error = build(wrong).unwrap_err();
        assert!(error.to_string().contains(message), "{wrong}: {error}");
    }
}
