//! Tests buffers, streams and events on the simulated device.

mod device_buffer;
mod device_vec;
mod devices;
mod gone_streams;
#[cfg(feature = "allocator-api2")]
mod host_allocator;
mod other_threads;
mod resets;
mod staging;
mod streams;

use std::sync::Arc;

use millpond_core::driver::{EventFlags, StreamFlags};
use millpond_core::{
    DeviceMemoryResource, DevicePtr, Driver, DriverError, DriverHandle, ErrorKind, Layout, StreamRef,
};
use millpond_driver::CallKind;
use millpond_driver::sim::{Access, FaultPlan, Schedule, SimConfig, SimDevice, ViolationKind};
use millpond_resources::{CudaMemoryResource, PoolMemoryResource, PoolOptions, set_per_device_resource};
use millpond_testkit::mock::{self, Call};
use millpond_testkit::{Checked, Rng};

use crate::{DeviceBuffer, DeviceScalar, DeviceVec, Event, PrefetchTo, RawParts, Stream};

type Pool = Arc<Checked<PoolMemoryResource<CudaMemoryResource>>>;

/// A pool on a simulated device that checks the order of streams and the live blocks.
struct Bench {
    device: Arc<SimDevice>,
    pool: Pool,
}

impl Bench {
    fn new(config: SimConfig) -> Self {
        let device = SimDevice::new(config);
        let upstream = CudaMemoryResource::new(device.clone());
        let pool = PoolMemoryResource::new(upstream, PoolOptions::default()).unwrap();
        Self { pool: Arc::new(Checked::new(pool, Some(device.clone()))), device }
    }

    fn seeded(seed: u64) -> Self {
        Self::new(SimConfig::h200().seed(seed).schedule(Schedule::Seeded(seed)))
    }

    fn stream(&self) -> Stream {
        Stream::new(self.device.clone(), StreamFlags::NON_BLOCKING).unwrap()
    }

    fn filled(&self, bytes: u64, stream: StreamRef) -> DeviceBuffer<Pool> {
        DeviceBuffer::from_host(&pattern(bytes), stream, self.pool.clone()).unwrap()
    }

    fn live_blocks(&self) -> u64 {
        self.pool.shadow(|shadow| shadow.live_blocks())
    }

    /// Checks that no block is live, no deallocation was refused, and no stream used memory out of order.
    #[track_caller]
    fn assert_clean(&self) {
        self.device.synchronize().unwrap();
        assert_eq!(self.live_blocks(), 0);
        assert_eq!(self.pool.take_faults(), []);
        assert_eq!(self.device.take_violations(), []);
    }
}

fn pattern(bytes: u64) -> Vec<u8> {
    (0..bytes).map(|index| (index * 7 + index / 251) as u8).collect()
}

#[test]
fn a_buffer_goes_back_to_its_resource() {
    let bench = Bench::new(SimConfig::h200());
    let stream = bench.stream();
    let buffer = DeviceBuffer::new(1000, stream.as_ref(), bench.pool.clone()).unwrap();
    assert_eq!((buffer.len(), buffer.capacity(), buffer.alignment()), (1000, 1000, 256));
    assert!(!buffer.as_ptr().is_null() && !buffer.is_empty());
    assert_eq!((buffer.stream(), buffer.device()), (stream.as_ref(), bench.device.device()));
    assert_eq!(buffer.resource().to_string(), bench.pool.to_string());
    assert_eq!(bench.live_blocks(), 1);
    drop(buffer);
    bench.assert_clean();
}

#[test]
fn no_bytes_take_no_memory() {
    let (resource, script) = mock::resource(SimDevice::new(SimConfig::h200()));
    let resource = Arc::new(resource);
    let mut buffer = DeviceBuffer::new(0, StreamRef::LEGACY, resource.clone()).unwrap();
    assert!(buffer.as_ptr().is_null() && buffer.is_empty());
    buffer.copy_from_host::<u8>(&[]).unwrap();
    assert!(buffer.to_host::<u32>().unwrap().is_empty());
    buffer.resize(0, StreamRef::LEGACY).unwrap();
    drop((DeviceBuffer::copy_of(&buffer, StreamRef::LEGACY, resource).unwrap(), buffer));
    script.assert_calls([]);
}

#[test]
fn contents_go_to_the_device_and_back() {
    let bench = Bench::new(SimConfig::h200());
    let stream = bench.stream();
    let mut buffer =
        DeviceBuffer::from_host(&[1.5_f64, -2.0, 0.25], stream.as_ref(), bench.pool.clone()).unwrap();
    assert_eq!(buffer.to_host::<f64>().unwrap(), [1.5, -2.0, 0.25]);
    buffer.copy_from_host(&[7.0_f64]).unwrap();
    let mut first = [0.0_f64; 2];
    buffer.copy_to_host(&mut first).unwrap();
    assert_eq!(first, [7.0, -2.0]);
    let too_much = buffer.copy_from_host(&[0_u8; 25]).unwrap_err();
    assert_eq!(too_much.kind(), ErrorKind::InvalidArgument);
    assert_eq!(buffer.copy_to_host(&mut [0_u8; 25]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(buffer.to_host::<[u8; 5]>().unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(buffer.to_host::<[u8; 0]>().unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(buffer.to_host::<f64>().unwrap(), [7.0, -2.0, 0.25]);
    drop(buffer);
    bench.assert_clean();
}

#[test]
fn growth_is_exact_keeps_the_contents_and_shrinks_only_when_asked() {
    let bench = Bench::new(SimConfig::h200());
    let stream = bench.stream();
    let mut buffer = bench.filled(1000, stream.as_ref());
    let contents = pattern(1000);
    buffer.resize(100, stream.as_ref()).unwrap();
    assert_eq!((buffer.len(), buffer.capacity()), (100, 1000));
    buffer.resize(1000, stream.as_ref()).unwrap();
    assert_eq!(buffer.to_host::<u8>().unwrap(), contents, "the same block");
    buffer.resize(1001, stream.as_ref()).unwrap();
    assert_eq!((buffer.len(), buffer.capacity()), (1001, 1001));
    assert_eq!(buffer.to_host::<u8>().unwrap()[..1000], contents);
    buffer.reserve(5000, stream.as_ref()).unwrap();
    buffer.reserve(10, stream.as_ref()).unwrap();
    assert_eq!((buffer.len(), buffer.capacity()), (1001, 5000));
    buffer.shrink_to_fit(stream.as_ref()).unwrap();
    assert_eq!((buffer.len(), buffer.capacity()), (1001, 1001));
    let fitting = buffer.as_ptr();
    buffer.shrink_to_fit(stream.as_ref()).unwrap();
    assert_eq!(buffer.as_ptr(), fitting, "nothing to shrink, nothing to move");
    assert_eq!(buffer.to_host::<u8>().unwrap()[..1000], contents);
    buffer.resize(0, stream.as_ref()).unwrap();
    buffer.shrink_to_fit(stream.as_ref()).unwrap();
    assert!(buffer.as_ptr().is_null());
    buffer.resize(10, stream.as_ref()).unwrap();
    assert_eq!(bench.live_blocks(), 1);
    drop(buffer);
    bench.assert_clean();
}

#[test]
fn the_alignment_stays() {
    let bench = Bench::new(SimConfig::h200());
    let stream = bench.stream();
    let mut buffer = DeviceBuffer::with_alignment(100, 1 << 16, stream.as_ref(), bench.pool.clone()).unwrap();
    buffer.resize(1 << 20, stream.as_ref()).unwrap();
    assert!(buffer.as_ptr().is_aligned_to(1 << 16));
    let copy = DeviceBuffer::copy_of(&buffer, stream.as_ref(), bench.pool.clone()).unwrap();
    assert!(copy.as_ptr().is_aligned_to(1 << 16) && copy.alignment() == 1 << 16);
    let error =
        DeviceBuffer::with_alignment(100, 768, stream.as_ref(), bench.pool.clone()).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    drop((buffer, copy));
    bench.assert_clean();
}

#[test]
fn memory_goes_back_on_the_stream_that_was_named_last() {
    let device = SimDevice::new(SimConfig::h200());
    let (resource, script) = mock::resource(device.clone());
    let (resource, layout) = (Arc::new(resource), Layout::new(100));
    let one = Stream::new(device.clone(), StreamFlags::NON_BLOCKING).unwrap();
    let other = Stream::new(device.clone(), StreamFlags::NON_BLOCKING).unwrap();
    let mut buffer = DeviceBuffer::new(100, one.as_ref(), resource).unwrap();
    let ptr = buffer.as_ptr();
    buffer.set_stream(other.as_ref()).unwrap();
    drop(buffer);
    script
        .assert_calls([Call::allocate(layout, one.as_ref()), Call::deallocate(ptr, layout, other.as_ref())]);
    assert_eq!(device.violations(), []);
}

#[test]
fn parts_make_the_same_buffer_again() {
    let bench = Bench::new(SimConfig::h200());
    let stream = bench.stream();
    let mut buffer = bench.filled(300, stream.as_ref());
    buffer.resize(200, stream.as_ref()).unwrap();
    let RawParts { ptr, len, layout, stream: stored, resource } = buffer.into_raw_parts();
    assert_eq!((len, layout, stored), (200, Layout::new(300), stream.as_ref()));
    assert_eq!(bench.live_blocks(), 1, "nothing was given back");
    // SAFETY: the parts come from a buffer that no longer exists, and the stream is its own.
    let buffer =
        unsafe { DeviceBuffer::from_raw_parts(RawParts { ptr, len, layout, stream: stored, resource }) };
    assert_eq!(buffer.to_host::<u8>().unwrap(), pattern(200));
    drop(buffer);
    bench.assert_clean();
    assert_eq!(Arc::strong_count(&bench.pool), 1, "the resource was moved, not copied");
}

#[test]
fn the_current_devices_resource_is_the_default() {
    let bench = Bench::new(SimConfig::h200());
    let id = bench.device.device();
    bench.device.make_current();
    set_per_device_resource(id, bench.pool.clone()).unwrap();
    let fresh = DeviceBuffer::new_current(100, StreamRef::LEGACY).unwrap();
    let copied = DeviceBuffer::from_host_current(&[1_u64, 2], StreamRef::LEGACY).unwrap();
    assert_eq!((copied.to_host::<u64>().unwrap(), fresh.device()), (vec![1, 2], id));
    assert_eq!(bench.live_blocks(), 2);
    drop((fresh, copied));
    millpond_resources::reset_per_device_resource(id).unwrap();
    bench.assert_clean();
}

/// RMM's plug-in for PyTorch frees to the resource that is the default at that time.
#[test]
fn a_buffer_goes_back_to_its_resource_after_the_default_changed() {
    let bench = Bench::new(SimConfig::h200());
    let id = bench.device.device();
    bench.device.make_current();
    set_per_device_resource(id, bench.pool.clone()).unwrap();
    let buffer = DeviceBuffer::new_current(100, StreamRef::LEGACY).unwrap();
    millpond_resources::reset_per_device_resource(id).unwrap();
    assert_eq!(bench.live_blocks(), 1);
    drop(buffer);
    bench.assert_clean();
}

/// A block that is freed too early is allocated again at once, and overwritten.
fn overwrite(bench: &Bench, bytes: u64, stream: StreamRef) {
    let buffer = DeviceBuffer::new(bytes, stream, bench.pool.clone()).unwrap();
    bench.device.launch(stream, &[Access::write(buffer.as_ptr(), bytes, 0xDEAD)]);
}

#[test]
fn a_copy_outlives_its_source_on_any_streams() {
    for seed in 0..100 {
        let bench = Bench::seeded(seed);
        let (first, second) = (bench.stream(), bench.stream());
        let source = bench.filled(4096, first.as_ref());
        let copy = DeviceBuffer::copy_of(&source, second.as_ref(), bench.pool.clone()).unwrap();
        drop(source);
        overwrite(&bench, 4096, first.as_ref());
        overwrite(&bench, 4096, second.as_ref());
        assert_eq!(copy.to_host::<u8>().unwrap(), pattern(4096), "seed {seed}");
        drop(copy);
        bench.assert_clean();
    }
}

#[test]
fn a_change_of_stream_keeps_the_order() {
    for seed in 0..100 {
        let bench = Bench::seeded(seed);
        let (first, second) = (bench.stream(), bench.stream());
        let mut buffer = DeviceBuffer::new(4096, first.as_ref(), bench.pool.clone()).unwrap();
        bench.device.launch(first.as_ref(), &[Access::write(buffer.as_ptr(), 4096, 42)]);
        buffer.resize(8192, second.as_ref()).unwrap();
        overwrite(&bench, 4096, first.as_ref());
        bench.device.launch(second.as_ref(), &[Access::check(buffer.as_ptr(), 4096, 42)]);
        buffer.set_stream(first.as_ref()).unwrap();
        bench.device.launch(first.as_ref(), &[Access::check(buffer.as_ptr(), 4096, 42)]);
        drop(buffer);
        overwrite(&bench, 8192, second.as_ref());
        bench.assert_clean();
    }
}

/// The canary of the two tests above: the same program without the buffer's order is detected.
#[test]
fn the_device_sees_a_missing_order() {
    let found = (0..100).any(|seed| {
        let bench = Bench::seeded(seed);
        let (first, second) = (bench.stream(), bench.stream());
        let buffer = DeviceBuffer::new(4096, first.as_ref(), bench.pool.clone()).unwrap();
        bench.device.launch(first.as_ref(), &[Access::write(buffer.as_ptr(), 4096, 42)]);
        bench.device.launch(second.as_ref(), &[Access::check(buffer.as_ptr(), 4096, 42)]);
        bench.device.synchronize().unwrap();
        let violations = bench.device.take_violations();
        violations
            .iter()
            .any(|seen| matches!(seen.kind, ViolationKind::StreamOrder | ViolationKind::TagMismatch))
    });
    assert!(found);
}

#[test]
fn a_buffer_on_the_per_thread_stream_may_be_dropped_elsewhere() {
    for seed in 0..50 {
        let bench = Bench::seeded(seed);
        let stream = StreamRef::PER_THREAD;
        let buffer = DeviceBuffer::new(4096, stream, bench.pool.clone()).unwrap();
        bench.device.launch(stream, &[Access::write(buffer.as_ptr(), 4096, 42)]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut contents = [0_u64; 512];
                buffer.copy_to_host(&mut contents).unwrap();
                assert_eq!(contents, [42; 512], "seed {seed}");
                drop(buffer);
                overwrite(&bench, 4096, stream);
            });
        });
        bench.assert_clean();
    }
}

/// Runs random operations against a plain vector, and overwrites another block after each.
#[test]
fn a_buffer_holds_what_a_vector_would() {
    for seed in 0..50 {
        let bench = Bench::seeded(seed);
        let streams = [bench.stream(), bench.stream(), bench.stream()];
        let mut rng = Rng::new(seed);
        let mut buffer = bench.filled(64, streams[0].as_ref());
        let mut model = pattern(64);
        for _ in 0..60 {
            let stream = streams[rng.below(3) as usize].as_ref();
            let bytes = rng.below(5000);
            match rng.below(6) {
                0 => buffer.set_stream(stream).unwrap(),
                1 => buffer.reserve(bytes, stream).unwrap(),
                2 => buffer.shrink_to_fit(stream).unwrap(),
                3 => buffer = DeviceBuffer::copy_of(&buffer, stream, bench.pool.clone()).unwrap(),
                4 => {
                    buffer.resize(bytes, stream).unwrap();
                    let kept = model.len().min(bytes as usize);
                    assert_eq!(buffer.to_host::<u8>().unwrap()[..kept], model[..kept], "seed {seed}");
                    model = pattern(bytes);
                    buffer.copy_from_host(&model).unwrap();
                }
                _ => overwrite(&bench, bytes + 1, stream),
            }
            assert_eq!(buffer.len(), model.len() as u64);
        }
        assert_eq!(buffer.to_host::<u8>().unwrap(), model, "seed {seed}");
        drop(buffer);
        bench.assert_clean();
    }
}

type Change = fn(&mut DeviceBuffer<Pool>, StreamRef) -> millpond_core::Result<()>;

/// Runs everything that takes memory or calls the driver, and checks the state after each failure.
fn scenario(bench: &Bench, streams: &[Stream; 2]) -> millpond_core::Result<()> {
    let [first, second] = [streams[0].as_ref(), streams[1].as_ref()];
    let mut buffer = DeviceBuffer::from_host(&pattern(1000), first, bench.pool.clone())?;
    let changes: [Change; 4] = [
        |buffer, stream| buffer.set_stream(stream),
        |buffer, stream| buffer.resize(5000, stream),
        |buffer, stream| buffer.resize(1000, stream),
        |buffer, stream| buffer.shrink_to_fit(stream),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let before = (buffer.as_ptr(), buffer.len(), buffer.capacity());
        let changed = change(&mut buffer, if index % 2 == 0 { second } else { first });
        if changed.is_err() {
            assert_eq!((buffer.as_ptr(), buffer.len(), buffer.capacity()), before);
            assert!(buffer.to_host::<u8>().unwrap().starts_with(&pattern(1000)), "change {index}");
        }
        changed?;
    }
    let copy = DeviceBuffer::copy_of(&buffer, second, bench.pool.clone())?;
    drop(buffer);
    assert_eq!(copy.to_host::<u8>()?, pattern(1000));
    Ok(())
}

#[test]
fn a_failing_driver_call_leaks_nothing_and_changes_nothing() {
    let kinds = CallKind::ALL.into_iter().filter(|kind| *kind != CallKind::MemFree);
    let mut failures = 0;
    for (kind, n) in kinds.flat_map(|kind| (0..20).map(move |n| (kind, n))) {
        let bench = Bench::new(SimConfig::h200());
        let streams = [bench.stream(), bench.stream()];
        bench.device.set_faults(FaultPlan::nth_of(kind, n, DriverError::NOT_PERMITTED));
        let result = scenario(&bench, &streams);
        bench.device.set_faults(FaultPlan::none());
        failures += usize::from(result.is_err());
        bench.assert_clean();
    }
    assert!(failures >= 10, "only {failures} of the faults hit");
}

#[test]
fn a_refused_allocation_leaves_the_buffer_as_it_was() {
    let (resource, script) = mock::resource(SimDevice::new(SimConfig::h200()));
    let mut buffer = DeviceBuffer::new(100, StreamRef::LEGACY, Arc::new(resource)).unwrap();
    let ptr = buffer.as_ptr();
    script.fail_next(ErrorKind::OutOfMemory);
    assert!(buffer.resize(200, StreamRef::LEGACY).unwrap_err().is_out_of_memory());
    assert_eq!((buffer.as_ptr(), buffer.len(), buffer.capacity()), (ptr, 100, 100));
    drop(buffer);
    assert_eq!(script.live(), []);
}

#[test]
fn streams_and_events_are_destroyed_and_order_work() {
    let bench = Bench::seeded(3);
    let driver: DriverHandle = bench.device.clone();
    let (first, second) = (bench.stream(), bench.stream());
    let event = Event::new(driver.clone(), EventFlags::default()).unwrap();
    let refused = second.wait(&event).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "nothing would be waited for");
    let ptr = driver.mem_alloc(4096).unwrap();
    bench.device.launch(first.as_ref(), &[Access::write(ptr, 4096, 7)]);
    event.record(first.as_ref()).unwrap();
    second.wait(&event).unwrap();
    bench.device.launch(second.as_ref(), &[Access::check(ptr, 4096, 7)]);
    event.synchronize().unwrap();
    assert!(event.query().unwrap());
    second.synchronize().unwrap();
    assert!(second.query().unwrap());
    let (raw_stream, raw_event) = (StreamRef::from(&first), event.raw());
    drop((first, second, event));
    // SAFETY: the memory came from this driver and is no longer used.
    unsafe { driver.mem_free(ptr).unwrap() };
    bench.assert_clean();
    let _ = driver.event_record(raw_event, raw_stream);
    let seen = bench.device.take_violations();
    assert!(seen.iter().any(|violation| violation.kind == ViolationKind::DeadHandle), "{seen:?}");
}

#[test]
fn errors_name_the_device_and_the_stack() {
    let bench = Bench::new(SimConfig::h200());
    let buffer = bench.filled(10, StreamRef::LEGACY);
    bench.device.set_faults(FaultPlan::nth_call(0, DriverError::NOT_PERMITTED));
    let error = buffer.to_host::<u8>().unwrap_err();
    assert_eq!(error.device(), Some(bench.device.device()));
    assert_eq!(error.stack(), Some(&*bench.pool.to_string()));
    assert_ne!(buffer.as_ptr(), DevicePtr::NULL);
}

#[test]
fn a_device_that_is_lost_is_called_no_more() {
    let bench = Bench::new(SimConfig::h200());
    let (device, driver) = (&bench.device, bench.device.clone());
    let (resource, script) = mock::resource(device.clone());
    let resource = Arc::new(resource);
    let stream = bench.stream();
    let event = Event::new(driver.clone(), EventFlags::default()).unwrap();
    event.record(stream.as_ref()).unwrap();
    let mut buffer = DeviceBuffer::new(100, StreamRef::LEGACY, resource.clone()).unwrap();
    let mine = DeviceBuffer::new(100, StreamRef::PER_THREAD, resource.clone()).unwrap();

    device.set_faults(FaultPlan::nth_call(0, DriverError::ILLEGAL_ADDRESS));
    assert_eq!(stream.synchronize().unwrap_err().kind(), ErrorKind::Poisoned);
    assert!(driver.health().is_lost(), "the error was noted");
    let calls = device.driver_calls();

    let errors = [
        stream.synchronize().unwrap_err(),
        stream.query().unwrap_err(),
        stream.wait(&event).unwrap_err(),
        event.record(stream.as_ref()).unwrap_err(),
        event.query().unwrap_err(),
        event.synchronize().unwrap_err(),
        Stream::new(driver.clone(), StreamFlags::NON_BLOCKING).unwrap_err(),
        Event::new(driver.clone(), EventFlags::default()).unwrap_err(),
        buffer.set_stream(stream.as_ref()).unwrap_err(),
        buffer.resize(200, StreamRef::LEGACY).unwrap_err(),
        buffer.copy_from_host(&[1_u8]).unwrap_err(),
        buffer.to_host::<u8>().unwrap_err(),
        DeviceBuffer::copy_of(&buffer, StreamRef::LEGACY, resource).map(drop).unwrap_err(),
    ];
    for error in errors {
        assert_eq!((error.kind(), error.device()), (ErrorKind::Poisoned, Some(driver.device())), "{error}");
    }
    drop((stream, event, buffer));
    std::thread::spawn(move || drop(mine)).join().unwrap();
    assert_eq!(device.driver_calls(), calls);
    assert_eq!(script.live(), [], "the resource has its blocks back");
}

#[test]
fn every_call_that_loses_the_device_is_noted() {
    type Body = fn(&Bench, &Stream, &Event, &mut DeviceBuffer<Pool>) -> millpond_core::Result<()>;
    let bodies: [Body; 9] = [
        |_, stream, _, _| stream.synchronize(),
        |_, stream, _, _| stream.query().map(drop),
        |_, stream, event, _| event.record(stream.as_ref()),
        |_, stream, event, _| stream.wait(event),
        |_, _, event, _| event.query().map(drop),
        |_, _, event, _| event.synchronize(),
        |bench, _, _, _| Stream::new(bench.device.clone(), StreamFlags::NON_BLOCKING).map(drop),
        |_, stream, _, buffer| buffer.set_stream(stream.as_ref()),
        |_, _, _, buffer| buffer.to_host::<u8>().map(drop),
    ];
    for (index, body) in bodies.into_iter().enumerate() {
        let bench = Bench::new(SimConfig::h200());
        let stream = bench.stream();
        let event = Event::new(bench.device.clone(), EventFlags::default()).unwrap();
        event.record(stream.as_ref()).unwrap();
        let mut buffer = bench.filled(100, StreamRef::LEGACY);
        bench.device.set_faults(FaultPlan::nth_call(0, DriverError::ILLEGAL_ADDRESS));
        assert!(body(&bench, &stream, &event, &mut buffer).is_err(), "call {index}");
        assert!(bench.device.health().is_lost(), "call {index}");
    }
}
