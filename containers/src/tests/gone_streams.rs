//! Tests containers whose stream was destroyed before them: the contents stay, and the order is kept.

use millpond_core::AnyResource;
use millpond_core::stack::{LayerTable, StackSpec};

use super::*;
use crate::{HostStaging, StreamAllocator};

/// One second on the virtual clock: work that is in progress when the stream is destroyed.
const LONG_NS: u64 = 1_000_000_000;

/// Bytes that a stream fills with zeros after a second's work. The stream is destroyed by then.
fn orphan(bench: &Bench, bytes: u64) -> DeviceBuffer<Pool> {
    let stream = bench.stream();
    let mut buffer = bench.filled(bytes, stream.as_ref());
    bench.device.launch_for(stream.as_ref(), &[], LONG_NS);
    buffer.write_zeros(0, bytes).unwrap();
    buffer
}

/// A use of an orphan: its name, the use, and the contents afterwards.
type Use = (&'static str, fn(&Bench, &mut DeviceBuffer<Pool>, StreamRef), fn() -> Vec<u8>);

const BYTES: u64 = 5000;

fn zeros() -> Vec<u8> {
    vec![0; BYTES as usize]
}

fn overwritten() -> Vec<u8> {
    let mut bytes = zeros();
    bytes[..3].copy_from_slice(&[7, 8, 9]);
    bytes
}

const USES: &[Use] = &[
    ("read", |_, _, _| (), zeros),
    (
        "read twice",
        |_, buffer, _| {
            let mut part = [9_u8; 10];
            buffer.copy_to_host(&mut part).unwrap();
            assert_eq!(part, [0; 10]);
        },
        zeros,
    ),
    ("written", |_, buffer, _| buffer.copy_from_host(&[7_u8, 8, 9]).unwrap(), overwritten),
    (
        "written through staging memory",
        |bench, buffer, _| {
            let staging = HostStaging::new(bench.device.clone());
            buffer.copy_from_host_async(&[7_u8, 8, 9], &staging).unwrap();
        },
        overwritten,
    ),
    (
        "read through staging memory",
        |bench, buffer, _| {
            let staging = HostStaging::new(bench.device.clone());
            let copy = buffer.copy_to_host_async::<u8>(&staging).unwrap();
            assert_eq!(copy.wait().unwrap(), zeros());
        },
        zeros,
    ),
    (
        "copied",
        |bench, buffer, other| {
            let copy = DeviceBuffer::copy_of(buffer, other, bench.pool.clone()).unwrap();
            assert_eq!(copy.to_host::<u8>().unwrap(), zeros());
        },
        zeros,
    ),
    (
        "used on a stream of a function",
        |bench, buffer, other| {
            let check = |ptr| {
                bench.device.launch(other, &[Access::check(ptr, BYTES, 0)]);
                Ok(())
            };
            buffer.use_on(other, check).unwrap();
        },
        zeros,
    ),
    (
        "read, which keeps the name of its stream, and overwritten",
        |_, buffer, _| {
            let gone = buffer.stream();
            buffer.to_host::<u8>().unwrap();
            assert_eq!(buffer.stream(), gone);
            buffer.write_zeros(0, BYTES).unwrap();
            assert_eq!(buffer.stream(), StreamRef::LEGACY);
        },
        zeros,
    ),
    ("moved to a stream", |_, buffer, other| buffer.set_stream(other).unwrap(), zeros),
    (
        "grown on a stream",
        |_, buffer, other| {
            buffer.reserve(10 * BYTES, other).unwrap();
            assert_eq!(buffer.stream(), other);
        },
        zeros,
    ),
    (
        "grown on the stream that it names",
        |_, buffer, _| {
            buffer.reserve(10 * BYTES, buffer.stream()).unwrap();
            assert_eq!(buffer.stream(), StreamRef::LEGACY);
        },
        zeros,
    ),
    (
        "shrunk",
        |_, buffer, other| {
            buffer.resize(BYTES / 2, other).unwrap();
            buffer.shrink_to_fit(other).unwrap();
        },
        || vec![0; BYTES as usize / 2],
    ),
    ("prefetched", |_, buffer, _| assert!(!buffer.prefetch(PrefetchTo::Device).unwrap()), zeros),
];

/// The other stream gets the memory as soon as the buffer is dropped.
#[test]
fn a_buffer_outlives_its_stream() {
    for (name, apply, contents) in USES {
        for seed in 0..4 {
            let bench = Bench::seeded(seed);
            let other = bench.stream();
            let mut buffer = orphan(&bench, BYTES);
            apply(&bench, &mut buffer, other.as_ref());
            assert_eq!(buffer.to_host::<u8>().unwrap(), contents(), "{name}");
            drop(buffer);
            let next = bench.filled(BYTES, other.as_ref());
            assert_eq!(next.to_host::<u8>().unwrap(), pattern(BYTES), "{name}");
            drop(next);
            bench.assert_clean();
        }
    }
}

/// A buffer that is dropped unread waits for the work of its destroyed stream, on every kind of upstream.
#[test]
fn a_buffer_that_outlived_its_stream_is_freed() {
    let table = LayerTable::new(millpond_resources::LAYERS.iter().copied());
    for text in ["cuda", "managed", "cuda_async", "cuda+pool", "cuda_async+pool", "cuda+binning"] {
        let device = SimDevice::new(SimConfig::h200());
        let driver: DriverHandle = device.clone();
        let stack = text.parse::<StackSpec>().unwrap().build(&table, &driver).unwrap();
        let stack: Arc<Checked<AnyResource>> = Arc::new(Checked::new(stack, Some(device.clone())));
        let other = Stream::new(driver.clone(), StreamFlags::NON_BLOCKING).unwrap();
        let make = |stream: StreamRef| DeviceBuffer::from_host(&pattern(1 << 20), stream, stack.clone());
        let buffer = {
            let stream = Stream::new(driver.clone(), StreamFlags::NON_BLOCKING).unwrap();
            let mut buffer = make(stream.as_ref()).unwrap();
            device.launch_for(stream.as_ref(), &[], LONG_NS);
            buffer.write_zeros(0, 1 << 20).unwrap();
            buffer
        };
        drop(buffer);
        assert_eq!(stack.shadow(|shadow| shadow.live_blocks()), 0, "{text}");
        assert_eq!(make(other.as_ref()).unwrap().to_host::<u8>().unwrap(), pattern(1 << 20), "{text}");
        assert_eq!(stack.take_faults(), [], "{text}");
        drop(stack);
        assert_eq!((device.take_violations(), device.live_allocations()), (vec![], 0), "{text}");
    }
}

/// Vectors and scalars behave like buffers.
#[test]
fn vectors_and_scalars_outlive_their_streams() {
    let bench = Bench::new(SimConfig::h200());
    let (mut vec, mut scalar) = {
        let stream = bench.stream();
        let vec = DeviceVec::from_host(&[1_u32, 2, 3], stream.as_ref(), bench.pool.clone()).unwrap();
        let scalar = DeviceScalar::from_value(4_u64, stream.as_ref(), bench.pool.clone()).unwrap();
        bench.device.launch_for(stream.as_ref(), &[], LONG_NS);
        (vec, scalar)
    };
    vec.set(1, 9).unwrap();
    vec.set_to_zero_async(0).unwrap();
    assert_eq!((vec.to_host().unwrap(), scalar.value().unwrap()), (vec![0, 9, 3], 4));
    scalar.set_to_zero_async().unwrap();
    assert_eq!(scalar.value().unwrap(), 0);
    drop((vec, scalar));
    bench.assert_clean();
}

/// A destroyed stream cannot be stored; the buffer stays unchanged.
#[test]
fn a_buffer_moves_to_no_stream_that_is_gone() {
    let bench = Bench::new(SimConfig::h200());
    let gone = bench.stream().as_ref();
    for mut buffer in [orphan(&bench, BYTES), bench.filled(BYTES, StreamRef::LEGACY)] {
        let stream = buffer.stream();
        assert!(buffer.set_stream(gone).is_err());
        assert_eq!((buffer.stream(), buffer.len()), (stream, BYTES));
    }
    bench.device.take_violations();
}

/// If nothing can wait for the destroyed stream's work, the block is leaked and not reused.
#[test]
fn a_block_that_cannot_be_waited_for_is_not_given_back() {
    let bench = Bench::new(SimConfig::h200());
    let buffer = orphan(&bench, BYTES);
    bench.device.set_faults(FaultPlan::nth_of(CallKind::Synchronize, 0, DriverError::OUT_OF_MEMORY));
    drop(buffer);
    bench.device.set_faults(FaultPlan::none());
    assert_eq!(bench.live_blocks(), 1);
}

/// `{:?}` prints one short line for any resource, and `{:#?}` a few lines.
#[test]
fn a_container_prints_its_stack_and_not_what_the_stack_holds() {
    let bench = Bench::new(SimConfig::h200());
    let memory = StreamAllocator::new(bench.pool.clone(), StreamRef::LEGACY);
    let buffer = memory.buffer(1).unwrap();
    let vec = DeviceVec::<u32, _>::uninit(2, StreamRef::LEGACY, bench.pool.clone()).unwrap();
    let scalar = DeviceScalar::<u32, _>::uninit(StreamRef::LEGACY, bench.pool.clone()).unwrap();
    let shown: [&dyn std::fmt::Debug; 4] = [&memory, &buffer, &vec, &scalar];
    for container in shown {
        let line = format!("{container:?}");
        assert!(!line.contains('\n') && line.len() < 200, "{line}");
        assert!(line.contains("resource: cuda+pool"), "{line}");
        let lines = format!("{container:#?}").lines().count();
        assert!(lines < 20, "{lines} lines");
    }
    #[cfg(feature = "allocator-api2")]
    {
        let managed = millpond_resources::ManagedMemoryResource::new(bench.device.clone());
        let memory = crate::HostAllocator::new(Arc::new(managed)).unwrap();
        assert_eq!(format!("{memory:?}"), "HostAllocator { resource: managed }");
    }
    let parts = buffer.into_raw_parts();
    assert!(format!("{parts:?}").ends_with("resource: cuda+pool }"), "{parts:?}");
    // SAFETY: the parts make up a whole buffer.
    drop(unsafe { DeviceBuffer::from_raw_parts(parts) });
}
