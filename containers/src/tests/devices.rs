//! Tests containers on several devices: any device may be current, and copies work between them.

use millpond_core::{AnyResource, DeviceMemoryResourceExt};
use millpond_driver::current_device;
use millpond_driver::sim::SimMachine;
use millpond_resources::ManagedMemoryResource;

use super::*;
use crate::{DeviceGuard, available_device_memory, percent_of_free_device_memory};

/// A container of one of the three kinds, and the operations of the tests on it.
enum Container {
    Buffer(DeviceBuffer<Pool>),
    Vec(DeviceVec<u32, Pool>),
    Scalar(DeviceScalar<u32, Pool>),
}

impl Container {
    fn all(bench: &Bench, stream: StreamRef) -> [Self; 3] {
        let values = [7_u32; 250];
        [
            Self::Buffer(DeviceBuffer::from_host(&values, stream, bench.pool.clone()).unwrap()),
            Self::Vec(DeviceVec::from_host(&values, stream, bench.pool.clone()).unwrap()),
            Self::Scalar(DeviceScalar::from_value(7, stream, bench.pool.clone()).unwrap()),
        ]
    }

    fn resize(&mut self, len: usize, stream: StreamRef) {
        match self {
            Self::Buffer(buffer) => buffer.resize(4 * len as u64, stream).unwrap(),
            Self::Vec(vec) => vec.resize(len, stream).unwrap(),
            Self::Scalar(scalar) => scalar.set_stream(stream).unwrap(),
        }
    }

    fn shrink(&mut self, stream: StreamRef) {
        match self {
            Self::Buffer(buffer) => buffer.shrink_to_fit(stream).unwrap(),
            Self::Vec(vec) => vec.shrink_to_fit(stream).unwrap(),
            Self::Scalar(scalar) => scalar.set_value(7).unwrap(),
        }
    }

    fn first(&self) -> u32 {
        match self {
            Self::Buffer(buffer) => buffer.to_host().unwrap()[0],
            Self::Vec(vec) => vec.first().unwrap(),
            Self::Scalar(scalar) => scalar.value().unwrap(),
        }
    }
}

/// Makes the containers while their own device is current, and does the rest while another is current.
fn with_another_device_current(change: impl Fn(Container, StreamRef)) {
    let (own, other) = (Bench::new(SimConfig::h200()), Bench::new(SimConfig::h200()));
    let stream = own.stream();
    let containers = {
        let _own = DeviceGuard::new(own.device.device()).unwrap();
        Container::all(&own, stream.as_ref())
    };
    let _other = DeviceGuard::new(other.device.device()).unwrap();
    let calls = other.device.driver_calls();
    for container in containers {
        change(container, stream.as_ref());
        assert_eq!(current_device().unwrap(), other.device.device(), "the current device stays");
    }
    assert_eq!(other.device.driver_calls(), calls, "the other device is not called");
    own.assert_clean();
}

#[test]
fn containers_are_dropped_while_another_device_is_current() {
    with_another_device_current(|container, _| drop(container));
}

#[test]
fn containers_are_replaced_while_another_device_is_current() {
    with_another_device_current(|container, _| {
        let mut moved = vec![container];
        assert_eq!(moved[0].first(), 7);
        moved.clear();
        assert!(moved.is_empty());
    });
}

#[test]
fn containers_are_resized_while_another_device_is_current() {
    with_another_device_current(|mut container, stream| {
        for len in [500, 1000] {
            container.resize(len, stream);
        }
        assert_eq!(container.first(), 7);
    });
}

#[test]
fn containers_are_shrunk_while_another_device_is_current() {
    with_another_device_current(|mut container, stream| {
        container.resize(10, stream);
        container.shrink(stream);
        assert_eq!(container.first(), 7);
    });
}

/// Two devices of one machine, and a resource on each.
fn two_devices(config: impl Fn() -> SimConfig) -> [(Arc<SimDevice>, AnyResource); 2] {
    let machine = SimMachine::new();
    [(); 2].map(|()| {
        let device = machine.add_device(config());
        let cuda = CudaMemoryResource::new(device.clone());
        (device.clone(), PoolMemoryResource::new(cuda, PoolOptions::default()).unwrap().into_any())
    })
}

#[test]
fn contents_are_copied_from_another_device_with_and_without_peer_access() {
    for peers in [true, false] {
        for seed in 0..20 {
            let config = || SimConfig::h200().seed(seed).schedule(Schedule::Seeded(seed));
            let config = || if peers { config() } else { config().without_peer_access() };
            let [(first, from), (second, to)] = two_devices(config);
            let [one, other] = [&first, &second]
                .map(|device| Stream::new(device.clone(), StreamFlags::NON_BLOCKING).unwrap());
            let source = DeviceBuffer::new(4096, one.as_ref(), from).unwrap();
            first.launch(one.as_ref(), &[Access::write(source.as_ptr(), 4096, 42)]);
            let copy = DeviceBuffer::copy_of(&source, other.as_ref(), to.clone()).unwrap();
            first.launch(one.as_ref(), &[Access::write(source.as_ptr(), 4096, 0xDEAD)]);
            drop(source);
            assert_eq!((copy.device(), copy.stream()), (second.device(), other.as_ref()));
            assert_eq!(copy.to_host::<u64>().unwrap(), [42; 512], "seed {seed}");
            let vec = DeviceVec::<u64>::zeroed(3, one.as_ref(), first_resource(&first)).unwrap();
            let vec = DeviceVec::copy_of(&vec, other.as_ref(), to.clone()).unwrap();
            let scalar = DeviceScalar::from_value(5_u8, one.as_ref(), first_resource(&first)).unwrap();
            let scalar = DeviceScalar::copy_of(&scalar, other.as_ref(), to).unwrap();
            assert_eq!((vec.to_host().unwrap(), scalar.value().unwrap()), (vec![0; 3], 5));
            assert_eq!((first.violations(), second.violations()), (vec![], vec![]));
        }
    }
}

fn first_resource(device: &Arc<SimDevice>) -> AnyResource {
    CudaMemoryResource::new(device.clone()).into_any()
}

#[test]
fn a_buffer_of_another_threads_stream_is_copied_to_another_device() {
    let [(first, from), (second, to)] = two_devices(|| SimConfig::h200().schedule(Schedule::Seeded(3)));
    let source = DeviceBuffer::new(4096, StreamRef::PER_THREAD, from).unwrap();
    first.launch(StreamRef::PER_THREAD, &[Access::write(source.as_ptr(), 4096, 42)]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let copy = DeviceBuffer::copy_of(&source, StreamRef::LEGACY, to).unwrap();
            assert_eq!(copy.to_host::<u64>().unwrap(), [42; 512]);
        });
    });
    drop(source);
    assert_eq!((first.violations(), second.violations()), (vec![], vec![]));
}

#[test]
fn buffers_of_devices_that_do_not_know_each_other_are_not_copied() {
    let (one, other) = (Bench::new(SimConfig::h200()), Bench::new(SimConfig::h200()));
    let buffer = one.filled(10, StreamRef::LEGACY);
    let error = DeviceBuffer::copy_of(&buffer, StreamRef::LEGACY, other.pool.clone()).map(drop).unwrap_err();
    let (from, to) = (one.device.device(), other.device.device());
    let message = format!("a buffer of {from} cannot be copied to {to} directly; copy through the host");
    assert_eq!((error.kind(), error.message()), (ErrorKind::InvalidArgument, message.as_str()));
    assert_eq!(other.live_blocks(), 0);
    let empty = DeviceBuffer::new(0, StreamRef::LEGACY, one.pool.clone()).unwrap();
    assert!(DeviceBuffer::copy_of(&empty, StreamRef::LEGACY, other.pool.clone()).unwrap().is_empty());
}

#[test]
fn a_copy_between_devices_that_fails_leaves_nothing() {
    for kind in [CallKind::Copy, CallKind::StreamSynchronize] {
        let [(first, from), (second, to)] = two_devices(SimConfig::h200);
        let source = DeviceBuffer::from_host(&pattern(100), StreamRef::LEGACY, from).unwrap();
        for device in [&first, &second] {
            device.set_faults(FaultPlan::nth_of(kind, 0, DriverError::NOT_PERMITTED));
        }
        assert!(DeviceBuffer::copy_of(&source, StreamRef::LEGACY, to.clone()).is_err(), "{kind:?}");
        [&first, &second].iter().for_each(|device| device.set_faults(FaultPlan::none()));
        assert_eq!(to.statistics().unwrap().blocks_in_use, 0);
        assert_eq!(source.to_host::<u8>().unwrap(), pattern(100));
    }
}

#[test]
fn the_current_devices_memory_is_known() {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let _guard = DeviceGuard::new(device.device()).unwrap();
    let memory = ManagedMemoryResource::new(device.clone());
    let before = available_device_memory().unwrap();
    assert_eq!((before.total, before.free <= before.total), (1 << 30, true));
    let block = CudaMemoryResource::new(device.clone()).allocate_bytes(100 << 20, StreamRef::LEGACY).unwrap();
    let after = available_device_memory().unwrap();
    assert_eq!(before.free - after.free, 100 << 20);
    assert_eq!(percent_of_free_device_memory(100.0).unwrap(), after.free);
    for percent in [0.0, 0.1, 33.3, 50.0] {
        let bytes = percent_of_free_device_memory(percent).unwrap();
        let exact = after.free as f64 * percent / 100.0;
        assert!(bytes.is_multiple_of(256) && (0.0..256.0).contains(&(exact - bytes as f64)), "{percent}");
    }
    for wrong in [-1.0, 100.5, f64::NAN] {
        let error = percent_of_free_device_memory(wrong).unwrap_err();
        let message = format!("{wrong} is not a percentage of free memory; use one from 0 to 100");
        assert_eq!((error.kind(), error.message()), (ErrorKind::InvalidArgument, message.as_str()));
    }
    // SAFETY: the block is live, unused, and freed with its size.
    unsafe { CudaMemoryResource::new(device).deallocate_bytes(block, 100 << 20, StreamRef::LEGACY) };
    drop(memory);
}
