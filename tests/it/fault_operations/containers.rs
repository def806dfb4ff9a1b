//! The operations of `millpond-containers`.

use std::sync::Arc;

use allocator_api2::vec::Vec as VecIn;
use millpond::containers::{
    BorrowedStream, DeviceBuffer, DeviceGuard, DeviceScalar, DeviceVec, Event, HostAllocator, HostStaging,
    PrefetchTo, Stream, StreamAllocator, StreamPool, available_device_memory, percent_of_free_device_memory,
    prefetch,
};
use millpond::resources::{
    CudaMemoryResource, ManagedMemoryResource, PinnedHostMemoryResource, PoolMemoryResource, PoolOptions,
};
use millpond::{DeviceMemoryResourceExt, DevicePtr, Error, Layout, Result, StreamRef};
use millpond_core::driver::{EventFlags, StreamFlags, call};
use millpond_testkit::faults::{Act, Operation, Stage};

use super::support::{act, on_stage};

type Pool = Arc<PoolMemoryResource<CudaMemoryResource>>;

const VALUES: [u32; 4] = [1, 2, 3, 4];
const FLAGS: StreamFlags = StreamFlags::NON_BLOCKING;

fn cuda(stage: &Stage) -> CudaMemoryResource {
    CudaMemoryResource::new(stage.driver())
}

fn managed(stage: &Stage) -> ManagedMemoryResource {
    ManagedMemoryResource::new(stage.driver())
}

/// Makes a pool in stream order. Its requests make no call while it has free memory.
fn pool(stage: &Stage) -> Result<Pool> {
    PoolMemoryResource::new(cuda(stage), PoolOptions::default()).map(Arc::new)
}

fn staging(stage: &Stage) -> HostStaging {
    HostStaging::new(stage.driver())
}

fn buffer(stage: &Stage) -> Result<DeviceBuffer<Pool>> {
    DeviceBuffer::from_host(&VALUES, stage.a(), pool(stage)?)
}

fn vec(stage: &Stage) -> Result<DeviceVec<u32, Pool>> {
    DeviceVec::from_host(&VALUES, stage.a(), pool(stage)?)
}

fn scalar(stage: &Stage) -> Result<DeviceScalar<u32, Pool>> {
    DeviceScalar::from_value(7, stage.a(), pool(stage)?)
}

/// An operation on a buffer of [`VALUES`]. The buffer keeps the values even if the operation fails.
fn on_buffer(
    stage: &Stage,
    mut body: impl FnMut(&mut DeviceBuffer<Pool>, &Stage) -> Result<()> + 'static,
) -> Result<Act> {
    let (mut buffer, stage) = (buffer(stage)?, stage.clone());
    act(move || {
        body(&mut buffer, &stage)?;
        assert_eq!(buffer.to_host::<u32>()?[..4], VALUES);
        Ok(())
    })
}

fn on_vec(
    stage: &Stage,
    mut body: impl FnMut(&mut DeviceVec<u32, Pool>, &Stage) -> Result<()> + 'static,
) -> Result<Act> {
    let (mut vec, stage) = (vec(stage)?, stage.clone());
    act(move || body(&mut vec, &stage))
}

fn read_on_b(stage: &Stage, ptr: DevicePtr) -> Result<()> {
    stage.device().read(ptr, 4, stage.b());
    Ok(())
}

fn on_scalar(
    stage: &Stage,
    mut body: impl FnMut(&mut DeviceScalar<u32, Pool>, &Stage) -> Result<()> + 'static,
) -> Result<Act> {
    let (mut scalar, stage) = (scalar(stage)?, stage.clone());
    act(move || body(&mut scalar, &stage))
}

/// Changes a buffer. A failed change leaves size and capacity as they were.
fn changes(
    buffer: &mut DeviceBuffer<Pool>,
    change: impl FnOnce(&mut DeviceBuffer<Pool>) -> Result<()>,
) -> Result<()> {
    let before = (buffer.len(), buffer.capacity());
    change(buffer).inspect_err(|_| assert_eq!((buffer.len(), buffer.capacity()), before))
}

pub(crate) const OPERATIONS: &[Operation] = &[
    Operation::new("DeviceBuffer::new", |stage| {
        on_stage(stage, |stage| DeviceBuffer::new(1000, stage.a(), cuda(stage)).map(drop))
    }),
    Operation::new("DeviceBuffer::with_alignment", |stage| {
        let pool = pool(stage)?;
        on_stage(stage, move |stage| {
            DeviceBuffer::with_alignment(1000, 4096, stage.a(), pool.clone()).map(drop)
        })
    }),
    Operation::new("DeviceBuffer::new_current", |stage| {
        on_stage(stage, |stage| {
            stage.device().make_current();
            DeviceBuffer::new_current(1000, stage.a()).map(drop)
        })
    }),
    Operation::new("DeviceBuffer::from_host_current", |stage| {
        on_stage(stage, |stage| {
            stage.device().make_current();
            let buffer = DeviceBuffer::from_host_current(&VALUES, stage.a())?;
            assert_eq!(buffer.to_host::<u32>()?, VALUES);
            Ok(())
        })
    }),
    Operation::new("DeviceBuffer::from_host", |stage| {
        on_stage(stage, |stage| DeviceBuffer::from_host(&VALUES, stage.a(), cuda(stage)).map(drop))
    }),
    Operation::new("DeviceBuffer::copy_of", |stage| {
        on_buffer(stage, |buffer, stage| {
            let copy = DeviceBuffer::copy_of(buffer, stage.b(), cuda(stage))?;
            assert_eq!(copy.to_host::<u32>()?, VALUES);
            Ok(())
        })
    }),
    Operation::with_peer("DeviceBuffer::copy_of (to another device)", |stage| {
        on_buffer(stage, |buffer, stage| {
            let resource = CudaMemoryResource::new(stage.peer());
            let copy = DeviceBuffer::copy_of(buffer, stage.on_peer(), resource)?;
            assert_eq!(copy.to_host::<u32>()?, VALUES);
            Ok(())
        })
    }),
    Operation::new("DeviceBuffer::use_on", |stage| {
        on_buffer(stage, |buffer, stage| buffer.use_on(stage.b(), |ptr| read_on_b(stage, ptr)))
    }),
    Operation::new("DeviceBuffer::copy_from_host", |stage| {
        on_buffer(stage, |buffer, _| buffer.copy_from_host(&VALUES))
    }),
    Operation::new("DeviceBuffer::copy_from_host_async", |stage| {
        let staging = staging(stage);
        on_buffer(stage, move |buffer, _| buffer.copy_from_host_async(&VALUES, &staging))
    }),
    Operation::new("DeviceBuffer::copy_to_host", |stage| {
        on_buffer(stage, |buffer, _| {
            let mut values = [0_u32; 4];
            buffer.copy_to_host(&mut values)?;
            assert_eq!(values, VALUES);
            Ok(())
        })
    }),
    Operation::new("DeviceBuffer::copy_to_uninit", |stage| {
        on_buffer(stage, |buffer, _| {
            let mut values = Vec::<u32>::with_capacity(4);
            assert_eq!(buffer.copy_to_uninit(&mut values.spare_capacity_mut()[..4])?, VALUES);
            Ok(())
        })
    }),
    Operation::new("DeviceBuffer::to_host", |stage| {
        on_buffer(stage, |buffer, _| buffer.to_host::<u32>().map(drop))
    }),
    Operation::new("DeviceBuffer::copy_to_host_async", |stage| {
        let staging = staging(stage);
        on_buffer(stage, move |buffer, _| {
            assert_eq!(buffer.copy_to_host_async::<u32>(&staging)?.wait()?, VALUES);
            Ok(())
        })
    }),
    Operation::new("DeviceBuffer::resize", |stage| {
        on_buffer(stage, |buffer, stage| {
            let larger = buffer.capacity() + 5000;
            changes(buffer, |buffer| buffer.resize(larger, stage.b()))?;
            buffer.resize(16, stage.a())
        })
    }),
    Operation::new("DeviceBuffer::reserve", |stage| {
        on_buffer(stage, |buffer, stage| {
            let larger = buffer.capacity() + 5000;
            changes(buffer, |buffer| buffer.reserve(larger, stage.b()))
        })
    }),
    Operation::new("DeviceBuffer::shrink_to_fit", |stage| {
        on_buffer(stage, |buffer, stage| {
            buffer.reserve(9000, stage.a())?;
            changes(buffer, |buffer| buffer.shrink_to_fit(stage.b()))?;
            assert_eq!(buffer.capacity(), 16);
            Ok(())
        })
    }),
    Operation::new("DeviceBuffer::set_stream", |stage| {
        on_buffer(stage, |buffer, stage| {
            let before = buffer.stream();
            buffer.set_stream(stage.b()).inspect_err(|_| assert_eq!(buffer.stream(), before))?;
            buffer.set_stream(stage.a())
        })
    }),
    Operation::new("DeviceBuffer::prefetch", |stage| {
        let mut buffer = DeviceBuffer::new(1 << 20, stage.a(), managed(stage))?;
        act(move || {
            buffer.prefetch(PrefetchTo::Device)?;
            buffer.prefetch(PrefetchTo::Host).map(drop)
        })
    }),
    Operation::new("DeviceBuffer (dropped on another thread than its stream's)", |stage| {
        let pool = pool(stage)?;
        on_stage(stage, move |_| {
            let pool = pool.clone();
            let made = std::thread::spawn(|| DeviceBuffer::new(1000, StreamRef::PER_THREAD, pool)).join();
            drop(made.expect("the thread does not panic")?);
            Ok(())
        })
    }),
    // --- Vectors and scalars ---
    Operation::new("DeviceVec::uninit", |stage| {
        on_stage(stage, |stage| DeviceVec::<u32, _>::uninit(9, stage.a(), cuda(stage)).map(drop))
    }),
    Operation::new("DeviceVec::zeroed", |stage| {
        on_stage(stage, |stage| {
            assert_eq!(DeviceVec::<u32, _>::zeroed(3, stage.a(), cuda(stage))?.to_host()?, [0; 3]);
            Ok(())
        })
    }),
    Operation::new("DeviceVec::from_host", |stage| {
        on_stage(stage, |stage| DeviceVec::from_host(&VALUES, stage.a(), cuda(stage)).map(drop))
    }),
    Operation::new("DeviceVec::copy_of", |stage| {
        on_vec(stage, |vec, stage| DeviceVec::copy_of(vec, stage.b(), cuda(stage)).map(drop))
    }),
    Operation::new("DeviceVec::use_on", |stage| {
        on_vec(stage, |vec, stage| vec.use_on(stage.b(), |ptr| read_on_b(stage, ptr)))
    }),
    Operation::new("DeviceVec::from_buffer", |stage| {
        on_stage(stage, |stage| {
            let buffer = DeviceBuffer::from_host(&VALUES, stage.a(), cuda(stage))?;
            assert_eq!(DeviceVec::<u32, _>::from_buffer(buffer)?.to_host()?, VALUES);
            Ok(())
        })
    }),
    Operation::new("DeviceVec::resize", |stage| {
        on_vec(stage, |vec, stage| {
            vec.resize(vec.capacity() + 99, stage.b())?;
            vec.resize(4, stage.a())
        })
    }),
    Operation::new("DeviceVec::reserve", |stage| {
        on_vec(stage, |vec, stage| vec.reserve(vec.capacity() + 99, stage.b()))
    }),
    Operation::new("DeviceVec::shrink_to_fit", |stage| {
        on_vec(stage, |vec, stage| {
            vec.reserve(99, stage.a())?;
            vec.shrink_to_fit(stage.b())
        })
    }),
    Operation::new("DeviceVec::set_stream", |stage| {
        on_vec(stage, |vec, stage| {
            vec.set_stream(stage.b())?;
            vec.set_stream(stage.a())
        })
    }),
    Operation::new("DeviceVec::prefetch", |stage| {
        let mut vec = DeviceVec::from_host(&VALUES, stage.a(), managed(stage))?;
        act(move || vec.prefetch(PrefetchTo::Device).map(drop))
    }),
    Operation::new("DeviceVec::copy_from_host", |stage| on_vec(stage, |vec, _| vec.copy_from_host(&VALUES))),
    Operation::new("DeviceVec::copy_from_host_async", |stage| {
        let staging = staging(stage);
        on_vec(stage, move |vec, _| vec.copy_from_host_async(&VALUES, &staging))
    }),
    Operation::new("DeviceVec::copy_to_host", |stage| on_vec(stage, |vec, _| vec.copy_to_host(&mut [0; 4]))),
    Operation::new("DeviceVec::copy_to_host_async", |stage| {
        let staging = staging(stage);
        on_vec(stage, move |vec, _| vec.copy_to_host_async(&staging)?.wait().map(drop))
    }),
    Operation::new("DeviceVec::to_host", |stage| on_vec(stage, |vec, _| vec.to_host().map(drop))),
    Operation::new("DeviceVec::set_to_zero_async", |stage| on_vec(stage, |vec, _| vec.set_to_zero_async(1))),
    Operation::new("DeviceVec::get", |stage| on_vec(stage, |vec, _| vec.get(2).map(drop))),
    Operation::new("DeviceVec::first", |stage| on_vec(stage, |vec, _| vec.first().map(drop))),
    Operation::new("DeviceVec::last", |stage| on_vec(stage, |vec, _| vec.last().map(drop))),
    Operation::new("DeviceVec::set", |stage| on_vec(stage, |vec, _| vec.set(2, 9))),
    Operation::new("DeviceVec::set_async", |stage| {
        let staging = staging(stage);
        on_vec(stage, move |vec, _| vec.set_async(2, &9, &staging))
    }),
    Operation::new("DeviceScalar::uninit", |stage| {
        on_stage(stage, |stage| DeviceScalar::<u32, _>::uninit(stage.a(), cuda(stage)).map(drop))
    }),
    Operation::new("DeviceScalar::from_value", |stage| {
        on_stage(stage, |stage| DeviceScalar::from_value(5_u64, stage.a(), cuda(stage)).map(drop))
    }),
    Operation::new("DeviceScalar::copy_of", |stage| {
        on_scalar(stage, |scalar, stage| DeviceScalar::copy_of(scalar, stage.b(), cuda(stage)).map(drop))
    }),
    Operation::new("DeviceScalar::set_to_zero_async", |stage| {
        on_scalar(stage, |scalar, _| scalar.set_to_zero_async())
    }),
    Operation::new("DeviceScalar::set_stream", |stage| {
        on_scalar(stage, |scalar, stage| {
            scalar.set_stream(stage.b())?;
            scalar.set_stream(stage.a())
        })
    }),
    Operation::new("DeviceScalar::prefetch", |stage| {
        let mut scalar = DeviceScalar::from_value(5_u64, stage.a(), managed(stage))?;
        act(move || scalar.prefetch(PrefetchTo::Host).map(drop))
    }),
    Operation::new("DeviceScalar::value", |stage| {
        on_scalar(stage, |scalar, _| scalar.value().map(|value| assert_eq!(value, 7)))
    }),
    Operation::new("DeviceScalar::set_value", |stage| on_scalar(stage, |scalar, _| scalar.set_value(7))),
    Operation::new("DeviceScalar::set_value_async", |stage| {
        let staging = staging(stage);
        on_scalar(stage, move |scalar, _| scalar.set_value_async(&7, &staging))
    }),
    // --- Staging memory ---
    Operation::new("HostStaging::trim", |stage| {
        let (staging, stage) = (staging(stage), stage.clone());
        let mut buffer = buffer(&stage)?;
        act(move || {
            buffer.copy_from_host_async(&VALUES, &staging)?;
            buffer.copy_from_host_async(&[0_u32; 2], &staging)?;
            call(&*stage.driver(), |driver| driver.synchronize())?;
            staging.trim().map(drop)
        })
    }),
    Operation::new("HostCopy::is_done", |stage| {
        let staging = staging(stage);
        on_buffer(stage, move |buffer, _| buffer.copy_to_host_async::<u32>(&staging)?.is_done().map(drop))
    }),
    Operation::new("HostCopy::wait", |stage| {
        let staging = staging(stage);
        on_buffer(stage, move |buffer, _| {
            let copies = [buffer.copy_to_host_async::<u32>(&staging)?, buffer.copy_to_host_async(&staging)?];
            copies.into_iter().try_for_each(|copy| copy.wait().map(|values| assert_eq!(values, VALUES)))
        })
    }),
    Operation::new("HostCopy::wait_into", |stage| {
        let staging = staging(stage);
        on_buffer(stage, move |buffer, _| buffer.copy_to_host_async(&staging)?.wait_into(&mut [0_u32; 4]))
    }),
    // --- Streams and events ---
    Operation::new("Stream::new", |stage| {
        on_stage(stage, |stage| Stream::new(stage.driver(), FLAGS).map(drop))
    }),
    Operation::new("Stream::synchronize", |stage| {
        let stream = Stream::new(stage.driver(), FLAGS)?;
        act(move || stream.synchronize())
    }),
    Operation::new("Stream::query", |stage| {
        let stream = Stream::new(stage.driver(), FLAGS)?;
        act(move || stream.query().map(drop))
    }),
    Operation::new("Stream::wait", |stage| {
        let (stream, event) = (Stream::new(stage.driver(), FLAGS)?, recorded(stage)?);
        act(move || stream.wait(&event))
    }),
    Operation::new("Event::new", |stage| {
        on_stage(stage, |stage| Event::new(stage.driver(), EventFlags::default()).map(drop))
    }),
    Operation::new("Event::record", |stage| {
        let event = Event::new(stage.driver(), EventFlags::default())?;
        on_stage(stage, move |stage| {
            event.record(stage.a())?;
            event.make_wait(stage.b())
        })
    }),
    Operation::new("Event::make_wait", |stage| {
        let event = recorded(stage)?;
        on_stage(stage, move |stage| event.make_wait(stage.b()))
    }),
    Operation::new("Event::query", |stage| {
        let event = recorded(stage)?;
        act(move || event.query().map(drop))
    }),
    Operation::new("Event::synchronize", |stage| {
        let event = recorded(stage)?;
        act(move || event.synchronize())
    }),
    Operation::new("StreamPool::new", |stage| {
        on_stage(stage, |stage| StreamPool::new(stage.driver(), 3, FLAGS).map(drop))
    }),
    Operation::new("BorrowedStream::from_raw", |stage| {
        on_stage(stage, |stage| {
            // SAFETY: the stream lives as long as the device.
            unsafe { BorrowedStream::from_raw(stage.driver(), stage.a().handle()) }.map(drop)
        })
    }),
    Operation::new("BorrowedStream::synchronize", |stage| {
        on_stage(stage, |stage| BorrowedStream::legacy(stage.driver()).synchronize())
    }),
    Operation::new("BorrowedStream::query", |stage| {
        on_stage(stage, |stage| BorrowedStream::legacy(stage.driver()).query().map(drop))
    }),
    Operation::new("BorrowedStream::wait", |stage| {
        let event = recorded(stage)?;
        on_stage(stage, move |stage| BorrowedStream::legacy(stage.driver()).wait(&event))
    }),
    // --- Devices, allocators and questions ---
    Operation::with_peer("DeviceGuard::new", |stage| {
        on_stage(stage, |stage| {
            let guard = DeviceGuard::new(stage.peer().device())?;
            let resource = CudaMemoryResource::new(stage.driver());
            let buffer = DeviceBuffer::from_host(&VALUES, stage.a(), resource)?;
            drop(guard);
            buffer.to_host::<u32>().map(drop)
        })
    }),
    Operation::new("StreamAllocator::allocate", |stage| {
        let memory = StreamAllocator::new(cuda(stage), stage.a());
        act(move || {
            let layout = Layout::new(1000);
            let block = memory.allocate(layout)?;
            // SAFETY: the block is live and unused, and is freed with its layout.
            unsafe { memory.deallocate(block, layout) };
            Ok(())
        })
    }),
    Operation::new("StreamAllocator::buffer", |stage| {
        let memory = StreamAllocator::new(pool(stage)?, stage.a());
        act(move || memory.buffer(1000).map(drop))
    }),
    Operation::new("HostAllocator::new", |stage| {
        on_stage(stage, |stage| HostAllocator::new(managed(stage).into_any()).map(drop))
    }),
    Operation::new("HostAllocator (a vector that grows)", |stage| {
        let memory = PoolMemoryResource::new(
            PinnedHostMemoryResource::new(stage.driver()),
            PoolOptions::default().maximum_bytes(Some(1 << 20)),
        )?;
        let allocator = HostAllocator::new(memory.into_any())?;
        on_stage(stage, move |stage| {
            let mut values = VecIn::new_in(allocator.clone());
            for value in 0..300_u32 {
                // An error of `allocator_api2` has no text.
                if values.try_reserve(1).is_err() {
                    let driver = stage.driver();
                    let health = driver.health();
                    let refused = || Error::invalid_argument("no memory for the vector");
                    return Err(if health.is_lost() { health.error() } else { refused() });
                }
                values.push(value);
            }
            assert_eq!(values.iter().sum::<u32>(), 299 * 150);
            Ok(())
        })
    }),
    Operation::new("prefetch", |stage| {
        let buffer = DeviceBuffer::new(1 << 20, stage.a(), managed(stage))?;
        on_stage(stage, move |stage| {
            // SAFETY: the buffer is freed on this stream.
            unsafe { prefetch(&*stage.driver(), buffer.as_ptr(), 4096, PrefetchTo::Device, stage.a()) }
                .map(drop)
        })
    }),
    Operation::new("available_device_memory", |stage| {
        on_stage(stage, |stage| {
            stage.device().make_current();
            available_device_memory().map(drop)
        })
    }),
    Operation::new("percent_of_free_device_memory", |stage| {
        on_stage(stage, |stage| {
            stage.device().make_current();
            percent_of_free_device_memory(50.0).map(drop)
        })
    }),
];

/// Returns an event after the present work of the first stream.
fn recorded(stage: &Stage) -> Result<Event> {
    let event = Event::new(stage.driver(), EventFlags::default())?;
    event.record(stage.a())?;
    Ok(event)
}
