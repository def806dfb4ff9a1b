//! Tests that a panic of foreign code below a layer loses only the request: the layer keeps its limits, its
//! counts and its memory.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};

use millpond_core::driver::{Driver, StreamFlags};
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::{CallbackMemoryResource, CudaMemoryResource, PoolLayer};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata};

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
                if countdown.fetch_sub(1, Ordering::Relaxed) == 0 {
                    panic!("{ON_PURPOSE}");
                }
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

/// Makes requests of several sizes, and some panic. Frees all blocks, and returns the number of panics.
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

/// Returns how many blocks of 1 MiB fit after all free memory went back to the device.
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

/// The stacks to try over plain memory.
const LAYERS: &[&str] = &[
    "pool:pages=off",
    "pool:pages=off,max=40MiB",
    "arena:size=1MiB,max=40MiB",
    "fixed_size:blocks=4",
    "binning:min=12,max=21",
    "binning:bins=64KiB/2MiB(cuda+pool:max=8MiB)",
    "capture_scopes",
    "budget:name=a,limit=40MiB",
    "budget:name=a,limit=40MiB,zero=handover+pool:pages=off",
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
];

/// Hides the panics that tests cause from their output.
fn hide_panics_on_purpose() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let text = panic.payload().downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.payload().downcast_ref::<&str>().copied());
            if text.is_none_or(|text| !text.starts_with(ON_PURPOSE)) {
                usual(panic);
            }
        }));
    });
}

#[test]
fn a_panic_below_a_layer_costs_the_request_alone() {
    hide_panics_on_purpose();
    for text in LAYERS {
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

/// Panics when the thread's countdown ends. Counts the calls that could have panicked.
fn count_down(what: &str) {
    COUNTDOWN.with(|countdown| {
        let left = countdown.replace(countdown.get().wrapping_sub(1));
        if left == 0 {
            panic!("{ON_PURPOSE}: {what}");
        }
    });
}

thread_local! {
    static COUNTDOWN: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Counts down at every call of the subscriber.
struct Subscriber;

impl tracing::Subscriber for Subscriber {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        count_down("a new span");
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        count_down(&format!("{event:?}"));
    }

    fn enter(&self, _: &Id) {
        count_down("an entered span");
    }

    fn exit(&self, _: &Id) {
        count_down("a span that ends");
    }
}

/// Allocates and frees on two streams with work on each, until memory is out. Returns the calls that
/// panicked.
fn use_with_work(stack: &AnyResource, device: &SimDevice, streams: [StreamRef; 2]) -> Vec<String> {
    let mut panics = Vec::new();
    let mut tried = |call: &mut dyn FnMut()| {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(call)) {
            panics.push(panic.downcast_ref::<String>().cloned().unwrap_or_default());
        }
    };
    let mut blocks = Vec::new();
    let sizes = [3 * MIB, 300, 5 * MIB, 2 * MIB, 40 << 10, 9 * MIB, 7 * MIB, 11 * MIB, 17 * MIB, 23 * MIB];
    for (round, bytes) in sizes.into_iter().cycle().take(30).enumerate() {
        let [own, other] = if round % 3 == 0 { streams } else { [streams[1], streams[0]] };
        tried(&mut || {
            if let Ok(ptr) = stack.allocate_bytes(bytes, own) {
                blocks.push((ptr, bytes, own));
            }
        });
        let left = COUNTDOWN.replace(u64::MAX);
        device.launch_for(own, &[], 1000);
        if round % 4 == 3 {
            device.stream_synchronize(other).unwrap();
        }
        COUNTDOWN.set(left);
        for _ in 0..[0, 2, 1, 1][round % 4] {
            let at = round % blocks.len().max(1);
            if at < blocks.len() {
                let (ptr, bytes, stream) = blocks.swap_remove(at);
                // SAFETY: the block came from the stack with this size, once; it is ordered on its stream.
                tried(&mut || unsafe { stack.deallocate_bytes(ptr, bytes, stream) });
            }
        }
        if round % 10 == 9 {
            tried(&mut || drop(stack.trim(MIB)));
        }
    }
    for (ptr, bytes, stream) in blocks {
        // SAFETY: as above.
        tried(&mut || unsafe { stack.deallocate_bytes(ptr, bytes, stream) });
    }
    panics
}

#[test]
fn a_panic_of_the_driver_or_of_a_subscriber_costs_the_call_alone() {
    hide_panics_on_purpose();
    let _events = millpond_testkit::events::hear(Subscriber);
    for text in LAYERS {
        let mut stacks = vec![text.to_string()];
        if text.starts_with("pool") {
            stacks.push(text.replace("pages=off", "pages=on"));
        }
        for text in stacks {
            let mut expected = None;
            let mut all = 0;
            for at in std::iter::once(u64::MAX).chain(0..) {
                let device = SimDevice::new(SimConfig::with_capacity(CAPACITY));
                let streams = [(); 2].map(|()| device.stream_create(StreamFlags::NON_BLOCKING).unwrap());
                let stack = build(&text, CudaMemoryResource::new(device.clone()).into_any());
                device.observe_calls(Some(Arc::new(count_down)));
                COUNTDOWN.set(at);
                let panics = use_with_work(&stack, &device, streams);
                let left = COUNTDOWN.replace(u64::MAX);
                if at == u64::MAX {
                    all = at - left;
                }
                device.observe_calls(None);
                let context = || format!("{text}: {at}: {panics:?}");
                assert!(panics.len() <= 1, "{}", context());
                if let Some(statistics) = stack.statistics() {
                    let (bytes, blocks) = (statistics.bytes_in_use, statistics.blocks_in_use);
                    assert_eq!((bytes, blocks), (0, 0), "{}", context());
                }
                let room = room(&stack);
                drop(stack);
                // If a free panicked, plain memory cannot tell whether the driver took the block back.
                let is_lost = |panic: &String| {
                    panic.contains("cuMemFree") || panic.contains("CaptureMode") && !text.contains("pages=on")
                };
                if !panics.iter().any(is_lost) {
                    assert_eq!(room, *expected.get_or_insert(room), "{}", context());
                    assert_eq!(device.live_allocations(), 0, "{}", context());
                }
                assert_eq!(device.violations(), [], "{}", context());
                if at == all {
                    assert!(panics.is_empty() && all > 20, "{}", context());
                    break;
                }
            }
        }
    }
}

/// Others ask a thread to record its event. The thread does so when it next allocates. A panic then fails
/// that request, and loses no block.
#[test]
fn a_panic_of_a_record_for_others_loses_no_block() {
    const OWN: StreamRef = StreamRef::PER_THREAD;
    hide_panics_on_purpose();
    let mut panics = 0;
    for at in 0..6 {
        let device = SimDevice::new(SimConfig::with_capacity(CAPACITY));
        let pool = CudaMemoryResource::new(device.clone()).layer(PoolLayer::new()).unwrap();
        device.observe_calls(Some(Arc::new(count_down)));
        let take = |bytes| pool.allocate_bytes(bytes, OWN);
        // SAFETY: each block comes from the pool with the size, once; no work uses it.
        let give = |ptr, bytes| unsafe { pool.deallocate_bytes(ptr, bytes, OWN) };
        let kept = take(40 * MIB).unwrap();
        give(take(MIB).unwrap(), MIB);
        std::thread::scope(|scope| {
            scope.spawn(|| give(take(MIB).unwrap(), MIB));
        });
        COUNTDOWN.set(at);
        let taken = catch_unwind(AssertUnwindSafe(|| take(MIB)));
        COUNTDOWN.set(u64::MAX);
        panics += u64::from(taken.is_err());
        if let Ok(ptr) = taken {
            give(ptr.unwrap(), MIB);
        }
        give(kept, 40 * MIB);
        pool.trim(0).unwrap();
        let statistics = pool.statistics().unwrap();
        assert_eq!((statistics.blocks_in_use, statistics.bytes_reserved), (0, 0), "call {at}");
        pool.validate();
    }
    assert!(panics > 0, "the thread was not asked");
}
