//! Tests that a panic of foreign code below a layer costs the request alone: the layer keeps its limits, its
//! counts and its memory.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::{CallbackMemoryResource, CudaMemoryResource};

const S: StreamRef = StreamRef::LEGACY;
const MIB: u64 = 1 << 20;
const CAPACITY: u64 = 64 * MIB;
const ON_PURPOSE: &str = "a request panics on purpose";

/// Plain memory whose requests panic when the countdown ends.
fn base(device: &Arc<SimDevice>, countdown: &Arc<AtomicU64>) -> AnyResource {
    let cuda = Arc::new(CudaMemoryResource::new(device.clone()));
    let (countdown, frees) = (Arc::clone(countdown), Arc::clone(&cuda));
    // SAFETY: both functions pass the call to plain memory, or hand out nothing.
    let base = unsafe {
        CallbackMemoryResource::new(
            device.clone(),
            move |layout, stream| {
                assert_ne!(countdown.fetch_sub(1, Ordering::Relaxed), 0, "{ON_PURPOSE}");
                cuda.allocate(layout, stream)
            },
            move |ptr, layout, stream| frees.deallocate(ptr, layout, stream),
        )
        .not_stream_ordered()
    };
    base.into_any()
}

fn build(text: &str, base: AnyResource) -> AnyResource {
    let table = LayerTable::new(millpond_resources::LAYERS.iter().copied())
        .with(millpond_adaptors::LAYERS.iter().copied());
    let spec: StackSpec = text.parse().unwrap();
    spec.build_on(base, &table).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn free(stack: &AnyResource, blocks: &mut Vec<(DevicePtr, u64)>) {
    for (ptr, bytes) in blocks.drain(..) {
        // SAFETY: each block came from the stack with this size, once; nothing uses it.
        unsafe { stack.deallocate_bytes(ptr, bytes, S) };
    }
}

/// Makes requests of several sizes, some of which panic, and gives all back; returns the number of panics.
fn use_it(stack: &AnyResource) -> usize {
    let mut panics = 0;
    let mut blocks = Vec::new();
    for bytes in [MIB, 300, 40 << 10, 5 * MIB, MIB, 9 * MIB, 300, 2 * MIB, 7 * MIB, 3 * MIB] {
        match catch_unwind(AssertUnwindSafe(|| stack.allocate_bytes(bytes, S))) {
            Ok(Ok(ptr)) => blocks.push((ptr, bytes)),
            Ok(Err(_)) => {}
            Err(_) => panics += 1,
        }
    }
    free(stack, &mut blocks);
    panics
}

/// How many blocks of 1 MiB there are, once all that is free is with the device again.
fn room(stack: &AnyResource) -> usize {
    stack.trim(0).unwrap();
    let mut blocks = Vec::new();
    while let Ok(ptr) = stack.allocate_bytes(MIB, S) {
        blocks.push((ptr, MIB));
    }
    let room = blocks.len();
    free(stack, &mut blocks);
    room
}

#[test]
fn a_panic_below_a_layer_costs_the_request_alone() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str().is_none_or(|text| !text.contains(ON_PURPOSE)) {
            usual(panic);
        }
    }));
    for text in [
        "pool:pages=off",
        "pool:pages=off,max=40MiB",
        "arena:size=1MiB,max=40MiB",
        "fixed_size:blocks=4",
        "binning:min=12,max=21",
        "binning:bins=64KiB/2MiB(cuda+pool:max=8MiB)",
        "capture_scopes",
        "limiting:limit=40MiB",
        "pool:pages=off+limiting:limit=40MiB",
        "limiting:limit=40MiB+pool:pages=off",
        "statistics",
        "tracking",
        "retry:timeout=1ms",
        "thread_safe",
        "thread_safe+pool:pages=off,max=40MiB+thread_safe",
        "aligned:alignment=4KiB",
        "fallback:to=(cuda+pool:max=8MiB)",
        "logging:file=/dev/null",
        "logging:file=/dev/null,flush=async",
        "prefetch",
    ] {
        let never = Arc::new(AtomicU64::new(u64::MAX));
        let device = SimDevice::new(SimConfig::with_capacity(CAPACITY));
        let untouched = build(text, base(&device, &never));
        use_it(&untouched);
        let expected = room(&untouched);
        let mut seen = 0;
        for at in 0..12 {
            let device = SimDevice::new(SimConfig::with_capacity(CAPACITY));
            let countdown = Arc::new(AtomicU64::new(u64::MAX));
            let stack = build(text, base(&device, &countdown));
            countdown.store(at, Ordering::Relaxed);
            let panics = use_it(&stack);
            countdown.store(u64::MAX, Ordering::Relaxed);
            assert!(panics <= 1, "{text}");
            seen += panics;
            let _ = use_it(&stack);
            assert_eq!(room(&stack), expected, "{text}: the request {at} of the layer panicked");
            if let Some(statistics) = stack.statistics() {
                let (bytes, blocks) = (statistics.bytes_in_use, statistics.blocks_in_use);
                assert_eq!((bytes, blocks), (0, 0), "{text}: the request {at} of the layer panicked");
            }
            drop(stack);
            assert_eq!(device.live_allocations(), 0, "{text}: the request {at} of the layer panicked");
            assert_eq!(device.violations(), [], "{text}");
        }
        assert!(seen > 0, "{text}: no request panicked");
    }
}
