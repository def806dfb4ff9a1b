//! Tests the `tracing` events of resources, in every configuration.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millpond_core::driver::StreamFlags;
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Driver, DriverError, DriverHandle,
    StreamRef,
};
use millpond_driver::CallKind;
use millpond_driver::sim::{FaultPlan, SimConfig, SimDevice, SimMachine};
use millpond_resources::{CudaMemoryResource, PoolLayer};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::looks::decay_pools;

const MIB: u64 = 1 << 20;
const S: StreamRef = StreamRef::LEGACY;

/// An event. Its text is the field `message`.
#[derive(Clone, Debug)]
struct Seen {
    level: Level,
    fields: BTreeMap<&'static str, String>,
}

impl Seen {
    fn number(&self, field: &str) -> u64 {
        let text = self.fields.get(field).unwrap_or_else(|| panic!("no {field}: {self:?}"));
        text.trim_start_matches("Some(").trim_end_matches(')').parse().expect("a number")
    }
}

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        write!(text, "{value:?}").expect("memory");
        self.0.insert(field.name(), text);
    }
}

/// Collects all events of the pool, and counts spans.
#[derive(Clone, Default)]
struct Collector {
    events: Arc<Mutex<Vec<Seen>>>,
    spans: Arc<Mutex<u64>>,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Collector {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == "millpond::pool" {
            let mut fields = Fields::default();
            event.record(&mut fields);
            let seen = Seen { level: *event.metadata().level(), fields: fields.0 };
            self.events.lock().expect("no thread panicked").push(seen);
        }
    }

    fn on_enter(&self, _: &tracing::span::Id, _: Context<'_, S>) {
        *self.spans.lock().expect("no thread panicked") += 1;
    }
}

impl Collector {
    /// Returns the events with this text.
    fn seen(&self, text: &str) -> Vec<Seen> {
        let events = self.events.lock().expect("no thread panicked");
        events
            .iter()
            .filter(|seen| seen.fields.get("message").is_some_and(|it| it == text))
            .cloned()
            .collect()
    }

    fn len(&self) -> usize {
        self.events.lock().expect("no thread panicked").len()
    }

    /// Runs `work` and collects its events.
    fn of(work: impl FnOnce(&Self)) {
        let collector = Self::default();
        let subscriber = tracing_subscriber::registry().with(collector.clone());
        millpond_testkit::events::heard_by(subscriber, || work(&collector));
    }
}

fn stack(text: &str, device: &Arc<SimDevice>) -> AnyResource {
    let driver: DriverHandle = device.clone();
    let table = LayerTable::new(millpond_resources::LAYERS.iter().copied());
    text.parse::<StackSpec>().expect("a stack").build(&table, &driver).expect("a resource")
}

fn give(resource: &dyn DeviceMemoryResource, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
    let layout = millpond_core::Layout::new(bytes);
    // SAFETY: the block came from this resource with this size and is freed once; nothing uses it.
    unsafe { resource.deallocate(ptr, layout, stream) };
}

#[test]
fn issue_9_each_growth_and_each_refusal_is_an_event_in_every_configuration() {
    for text in [
        "cuda+pool",
        "cuda+pool:pages=off",
        "cuda+pool:max=40MiB",
        "cuda+pool:max=40MiB,pages=off",
        "cuda+fixed_size:block_size=8MiB,blocks=1",
        "cuda+pool+binning:bins=8MiB",
        "cuda+pool:pages=off+fixed_size:block_size=8MiB,blocks=1",
    ] {
        Collector::of(|collector| {
            let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
            let resource = stack(text, &device);
            let (mut blocks, mut grown, mut refused) = (Vec::new(), 0, 0);
            for _ in 0..12 {
                let reserved = device.live_bytes();
                match resource.allocate_bytes(8 * MIB, S) {
                    Ok(ptr) => blocks.push(ptr),
                    Err(_) => refused += 1,
                }
                grown += usize::from(device.live_bytes() > reserved);
            }
            assert!(grown > 0 && refused > 0, "{text}: {grown}, {refused}");
            let growths = collector.seen("grew");
            assert!(growths.len() >= grown, "{text}: {grown} growths, {growths:?}");
            for growth in &growths {
                assert!(growth.number("bytes") >= growth.number("asked"), "{text}: {growth:?}");
                assert!(growth.number("duration_ns") > 0 && growth.number("id") > 0, "{text}: {growth:?}");
                assert!(growth.fields["stack"].starts_with("cuda+"), "{text}: {growth:?}");
            }
            let errors = collector.seen("out of memory");
            assert!(errors.len() >= refused, "{text}: {refused} refused, {errors:?}");
            assert!(
                errors.iter().all(|error| error.level == Level::WARN && error.number("bytes") >= 8 * MIB)
            );
            assert!(!collector.seen("did not grow").is_empty(), "{text}");
            assert!(*collector.spans.lock().expect("no thread panicked") > 0, "{text}");
            // Memory that goes back is reported, too.
            blocks.into_iter().for_each(|ptr| give(&*resource, ptr, 8 * MIB, S));
            let before = device.live_bytes();
            resource.trim(0).expect("free memory can be returned");
            let given: u64 = collector.seen("released memory").iter().map(|it| it.number("bytes")).sum();
            assert!(given >= before - device.live_bytes() && given > 0, "{text}: {given}");
        });
    }
}

/// A hit emits no event.
#[test]
fn issue_9_a_hit_leaves_no_event() {
    Collector::of(|collector| {
        let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
        let pool = stack("cuda+pool", &device);
        let sizes = [300, 5000, 3 * MIB];
        let warm = || {
            for bytes in sizes {
                let ptr = pool.allocate_bytes(bytes, S).expect("there is room");
                give(&*pool, ptr, bytes, S);
            }
        };
        (0..10).for_each(|_| warm());
        let before = collector.len();
        (0..1000).for_each(|_| warm());
        assert_eq!(collector.len(), before);
    });
}

#[test]
fn issue_9_waits_and_errors_of_the_driver_are_events() {
    Collector::of(|collector| {
        let device = SimDevice::new(SimConfig::with_capacity(16 * MIB));
        let pool = stack("cuda+pool", &device);
        let [one, other] =
            [(); 2].map(|()| device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream"));
        let ptr = pool.allocate_bytes(12 * MIB, one).expect("there is room");
        let write = [millpond_driver::sim::Access::write(ptr, 12 * MIB, 1)];
        device.launch_for(one, &write, 1_000_000_000);
        give(&*pool, ptr, 12 * MIB, one);
        let ptr = pool.allocate_bytes(12 * MIB, other).expect("the same block");
        let waits = collector.seen("a stream waits for another stream's work");
        assert_eq!((waits.len(), waits[0].number("bytes")), (1, 12 * MIB));
        give(&*pool, ptr, 12 * MIB, other);
        device.set_faults(FaultPlan::nth_of(CallKind::MemUnmap, 0, DriverError::INVALID_VALUE));
        pool.trim(0).expect("what cannot go back stays");
        let errors = collector.seen("the driver reports an error");
        assert_eq!((errors.len(), errors[0].number("code")), (1, DriverError::INVALID_VALUE as u64));
        device.set_faults(FaultPlan::none());
        pool.trim(0).expect("free memory can be returned");
        assert!(!collector.seen("waited for work to end").is_empty());
    });
}

#[test]
fn issue_9_what_decays_and_what_another_asks_for_are_events() {
    Collector::of(|collector| {
        let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
        let cuda = || CudaMemoryResource::new(device.clone());
        let [idle, asking] = [(); 2].map(|()| cuda().layer(PoolLayer::new()).expect("a pool"));
        let stream = device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
        let fill = || {
            let ptr = idle.allocate_bytes(40 * MIB, stream).expect("there is room");
            give(&idle, ptr, 40 * MIB, stream);
        };
        fill();
        for second in 0..40 {
            idle.decay_step(Duration::from_secs(second)).expect("no error");
        }
        let decayed: u64 = collector.seen("released idle memory").iter().map(|it| it.number("bytes")).sum();
        assert_eq!(decayed, 40 * MIB);
        fill();
        asking.allocate_bytes(60 * MIB, stream).expect("the other one gives it");
        let asked = collector.seen("another resource asked for memory");
        assert_eq!(asked.iter().map(|it| it.number("bytes")).sum::<u64>(), 40 * MIB);
    });
}

/// The counts and events of frees: blocks that a cache took, blocks that it evicted, and blocks that the pool
/// took back.
#[test]
fn each_free_is_counted_where_the_block_went() {
    Collector::of(|collector| {
        let pool = stack("cuda+pool", &SimDevice::new(SimConfig::h200()));
        let frees = || pool.statistics().expect("a pool keeps statistics").frees;
        let take = |bytes| pool.allocate_bytes(bytes, S).expect("there is room");
        let all = |count: usize, bytes| (0..count).map(|_| take(bytes)).collect::<Vec<_>>();
        let free =
            |blocks: Vec<DevicePtr>, bytes| blocks.into_iter().for_each(|it| give(&*pool, it, bytes, S));
        // The first calls on a stream have no cache.
        free(all(2, 256), 256);
        assert_eq!((frees().heap, frees().cached), (2, 0));
        (0..8).for_each(|_| free(all(1, 256), 256));
        let (heap, cached) = (frees().heap, frees().cached);
        assert!(heap < 10 && heap + cached == 10, "{:?}", frees());

        // A full class goes to the arena, with half of its cached blocks.
        free(all(200, 256), 256);
        let counts = frees();
        assert!(counts.past_cache > 0 && counts.evicted > counts.past_cache, "{counts:?}");
        assert_eq!(counts.cached + counts.past_cache + counts.heap, 210);

        // The last large block stays cached until the pool needs it.
        free(all(2, 3 * MIB), 3 * MIB);
        assert_eq!(frees().evicted, counts.evicted + 1);
        let before = frees().flushed;
        pool.trim(0).expect("the device works");
        assert!(frees().flushed > before, "{:?}", frees());
        let told = |text| collector.seen(text).iter().map(|it| it.number("blocks")).sum::<u64>();
        assert_eq!(told("evicted cached blocks"), frees().evicted);
        assert_eq!(told("flushed caches"), frees().flushed);
        assert_eq!(pool.statistics().expect("as before").deallocations, 212);
    });
}

/// The blocks that decay flushes from an idle thread's caches are counted.
#[test]
fn each_block_that_decay_flushes_is_counted() {
    Collector::of(|collector| {
        let pool = stack("cuda+pool:pages=on", &SimDevice::new(SimConfig::h200()));
        let use_small = |count: usize| {
            let blocks: Vec<_> = (0..count).map(|_| pool.allocate_bytes(256, S).expect("room")).collect();
            blocks.into_iter().for_each(|ptr| give(&*pool, ptr, 256, S));
        };
        (0..8).for_each(|_| use_small(1));
        use_small(5);
        let flushed = || pool.statistics().expect("a pool keeps statistics").frees.flushed;
        assert_eq!(flushed(), 0);
        for second in 0..3 {
            decay_pools(&pool, Duration::from_secs(second)).expect("the device works");
        }
        assert_eq!(flushed(), 5);
        let told: u64 = collector.seen("flushed caches").iter().map(|it| it.number("blocks")).sum();
        assert_eq!(told, 5);
    });
}

/// If the driver refuses access for a device, that is a warning. The loss of the pool's device is an error.
#[test]
fn a_refused_peer_is_a_warning_and_a_lost_device_an_error() {
    for (code, warnings) in [(DriverError::NOT_SUPPORTED, 1), (DriverError::ILLEGAL_ADDRESS, 0)] {
        let machine = SimMachine::new();
        let first = machine.add_device(SimConfig::h200());
        let stack = stack("cuda+pool:pages=on", &first);
        stack.allocate_bytes(5 * MIB, S).expect("there is room");
        let _others = [(); 2].map(|()| machine.add_device(SimConfig::h200()));
        let fails = |nth, code| FaultPlan::nth_of(CallKind::MemSetAccess, nth, code);
        // The call for both devices, and the call for one alone.
        first.set_faults(fails(0, DriverError::NOT_SUPPORTED).and(fails(1, code)));
        Collector::of(|collector| {
            let outcome = stack.allocate_bytes(500 * MIB, S);
            let error = outcome.err().and_then(|error| error.driver_error().map(DriverError::code));
            assert_eq!(error, (warnings == 0).then_some(code));
            let text = "a device gets no access to the pool's memory, and can copy it only with cuMemcpyPeer";
            assert_eq!(collector.seen(text).len(), warnings, "after {code}");
        });
    }
}
