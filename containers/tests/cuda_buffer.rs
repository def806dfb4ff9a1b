//! Buffers that go where cudarc takes a `CudaSlice`, on a device.
#![cfg(feature = "cudarc")]

use std::sync::Arc;

use millpond_containers::{CudaBuffer, DeviceBuffer, Stream};
use millpond_core::driver::StreamFlags;
use millpond_core::{AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, ErrorKind, StreamRef};
use millpond_driver::cuda::cudarc::driver::{CudaContext, CudaStream};
use millpond_driver::cuda::{self, CudaDriver};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::{CudaMemoryResource, PoolLayer};

/// A pool on the first device, and two streams of cudarc's there.
fn bench() -> (AnyResource, [Arc<CudaStream>; 2], Arc<CudaContext>) {
    let pool = CudaMemoryResource::new(CudaDriver::open(0).unwrap()).layer(PoolLayer::new()).unwrap();
    let context = CudaContext::new(0).unwrap();
    (pool.into_any(), [context.new_stream().unwrap(), context.new_stream().unwrap()], context)
}

const LEN: usize = 8 << 20;

fn numbers(first: u32) -> Vec<u32> {
    (first..first + LEN as u32).collect()
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn cudarc_fills_and_copies_a_buffer() {
    let (pool, [stream, _], _context) = bench();
    let mut buffer = CudaBuffer::<u32>::zeros(LEN, &stream, pool.clone()).unwrap();
    assert_eq!(stream.clone_dtoh(&buffer).unwrap(), vec![0; LEN]);
    stream.memcpy_htod(&numbers(7), &mut buffer).unwrap();
    let mut copy = CudaBuffer::from_host(&numbers(0), &stream, pool.clone()).unwrap();
    stream.memcpy_dtod(&buffer, &mut copy).unwrap();
    // The source goes back to the pool with the copy still to come, and another buffer takes its place.
    drop(buffer);
    let other = CudaBuffer::<u32>::zeros(LEN, &stream, pool).unwrap();
    assert_eq!(stream.clone_dtoh(&copy).unwrap(), numbers(7));
    assert_eq!(stream.clone_dtoh(&other).unwrap(), vec![0; LEN]);
}

/// Without an order, the copies on one stream and the fills on the other overtake each other.
#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn uses_on_another_stream_are_ordered() {
    let (pool, [stream, other], context) = bench();
    // A borrowed stream is not counted by cudarc, which then records no events of its own.
    let owner = Stream::new(pool.driver().clone(), StreamFlags::NON_BLOCKING).unwrap();
    // SAFETY: `owner` outlives all uses.
    let borrowed = unsafe { cuda::cudarc_stream_of(owner.as_ref(), &**pool.driver(), &context) }.unwrap();
    for round in 0..20 {
        let mut buffer = CudaBuffer::from_host(&numbers(round), &stream, pool.clone()).unwrap();
        for foreign in [&other, &borrowed] {
            assert_eq!(foreign.clone_dtoh(&buffer).unwrap(), numbers(round));
            foreign.memset_zeros(&mut buffer).unwrap();
            assert_eq!(stream.clone_dtoh(&buffer).unwrap(), vec![0; LEN]);
            stream.memcpy_htod(&numbers(round), &mut buffer).unwrap();
        }
        buffer.set_stream(&other).unwrap();
        assert_eq!(other.clone_dtoh(&buffer).unwrap(), numbers(round));
    }
    drop(borrowed);
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn a_device_buffer_becomes_one_and_back() {
    let (pool, [stream, other], _context) = bench();
    // SAFETY: the stream lives until the end of the test.
    let stream_ref = unsafe { cuda::stream_ref_of(&stream) }.unwrap();
    let bytes = DeviceBuffer::from_host(&numbers(3), stream_ref, pool.clone()).unwrap();
    let values = CudaBuffer::<u32>::from_buffer(bytes, &other).unwrap();
    assert_eq!((values.len(), values.stream().cu_stream()), (LEN, other.cu_stream()));
    assert_eq!(other.clone_dtoh(&values).unwrap(), numbers(3));
    // SAFETY: the stream is kept as long as the buffer.
    let (bytes, kept) = unsafe { values.into_buffer() };
    assert_eq!(bytes.to_host::<u32>().unwrap(), numbers(3));
    drop((bytes, kept));
    let odd = DeviceBuffer::new(7, stream_ref, pool).unwrap();
    let error = CudaBuffer::<u32>::from_buffer(odd, &stream).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn a_stream_of_another_device_is_refused() {
    let (_pool, [stream, _], context) = bench();
    let sim = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
    // SAFETY: the driver is of another device, so that the stream is refused.
    let refused = unsafe { cuda::cudarc_stream_of(StreamRef::LEGACY, &**sim.driver(), &context) };
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let error = CudaBuffer::<u32, _>::zeros(1, &stream, sim).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}
