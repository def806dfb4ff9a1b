//! Tests buffers that cudarc takes as a `CudaSlice`, on a GPU.
#![cfg(feature = "cudarc")]

use std::io::Write;
use std::sync::Arc;

use cudarc::cublas::sys::cublasOperation_t::CUBLAS_OP_N;
use cudarc::cublas::{CudaBlas, Gemm, GemmConfig};
use cudarc::driver::{LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use millpond_containers::{CudaBuffer, DeviceBuffer, DeviceVec, Stream};
use millpond_core::driver::StreamFlags;
use millpond_core::{AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, ErrorKind, StreamRef};
use millpond_driver::cuda::cudarc::driver::{CudaContext, CudaStream};
use millpond_driver::cuda::{self, CudaDriver};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::{CudaMemoryResource, PoolLayer};

/// A pool on the first device, and two streams of cudarc there.
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
    let mut buffer = CudaBuffer::<u32>::zeroed(LEN, &stream, pool.clone()).unwrap();
    assert_eq!(stream.clone_dtoh(&buffer).unwrap(), vec![0; LEN]);
    stream.memcpy_htod(&numbers(7), &mut buffer).unwrap();
    let mut copy = CudaBuffer::from_host(&numbers(0), &stream, pool.clone()).unwrap();
    stream.memcpy_dtod(&buffer, &mut copy).unwrap();
    // The source goes back to the pool before the copy runs, and another buffer takes its place.
    drop(buffer);
    let other = CudaBuffer::<u32>::zeroed(LEN, &stream, pool).unwrap();
    assert_eq!(stream.clone_dtoh(&copy).unwrap(), numbers(7));
    assert_eq!(stream.clone_dtoh(&other).unwrap(), vec![0; LEN]);
}

/// Without an order, the copies on one stream and the fills on the other overtake each other.
#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn uses_on_another_stream_are_ordered() {
    let (pool, [stream, other], context) = bench();
    // cudarc does not count a borrowed stream, and then records no events itself.
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
    // SAFETY: the stream lives as long as the buffer.
    let (bytes, kept) = unsafe { values.into_buffer() };
    assert_eq!(bytes.to_host::<u32>().unwrap(), numbers(3));
    drop((bytes, kept));
    let odd = DeviceBuffer::new(7, stream_ref, pool).unwrap();
    let refused = CudaBuffer::<u32>::from_buffer(odd, &stream).unwrap_err();
    assert_eq!(refused.error().kind(), ErrorKind::InvalidArgument);
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn a_stream_of_another_device_is_refused() {
    let (_pool, [stream, _], context) = bench();
    let sim = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
    // SAFETY: the driver belongs to another device, so the stream is refused.
    let refused = unsafe { cuda::cudarc_stream_of(StreamRef::LEGACY, &**sim.driver(), &context) };
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let error = CudaBuffer::<u32, _>::zeroed(1, &stream, sim).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

/// cudarc's events order its streams with the container's, in both directions. If an order is missing,
/// numbers of another round appear.
#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn a_slice_is_taken_over_and_given_back() {
    let (pool, [stream, other], _context) = bench();
    let owner = Stream::new(pool.driver().clone(), StreamFlags::NON_BLOCKING).unwrap();
    let mut slice = stream.alloc_zeros::<u32>(LEN).unwrap();
    for round in 0..20 {
        other.memcpy_htod(&numbers(round), &mut slice).unwrap();
        let values = CudaBuffer::adopt(slice).unwrap().into_vec(owner.as_ref()).unwrap();
        let copy = DeviceVec::copy_of(&values, owner.as_ref(), pool.clone()).unwrap();
        let values = CudaBuffer::from_vec(values, &other).unwrap();
        slice = values.give_back().unwrap();
        other.memset_zeros(&mut slice).unwrap();
        assert!(copy.to_host().unwrap() == numbers(round), "round {round}");
        assert_eq!(stream.clone_dtoh(&slice).unwrap(), vec![0; LEN]);
    }
    // cudarc frees it, on a thread without a context, and stores the result of its free.
    let values = CudaBuffer::adopt(slice).unwrap();
    std::thread::spawn(move || drop(values)).join().unwrap();
    stream.context().check_err().unwrap();
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn a_buffer_is_lent_as_a_slice() {
    let (pool, [stream, other], context) = bench();
    let mut values = CudaBuffer::<u32>::zeroed(LEN, &stream, pool.clone()).unwrap();
    for round in 0..20 {
        let write = |slice: &mut _| other.memcpy_htod(&numbers(round), slice);
        // SAFETY: the slice stays in its place.
        unsafe { values.lend_as_cuda_slice_mut(write) }.unwrap().unwrap();
        let copy = values.lend_as_cuda_slice(|slice| other.clone_dtod(slice)).unwrap().unwrap();
        stream.memset_zeros(&mut values).unwrap();
        assert!(other.clone_dtoh(&copy).unwrap() == numbers(round), "round {round}");
        let fill = |mut view: cudarc::driver::CudaViewMut<'_, u32>| other.memcpy_htod(&[round], &mut view);
        values.lend_as_cuda_view_mut(fill).unwrap().unwrap();
        assert_eq!(stream.clone_dtoh(&values.as_view().try_slice(..2).unwrap()).unwrap(), [round, 0]);
    }
    let panics = || values.lend_as_cuda_slice(|_slice| panic!("on purpose"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
    // The pool still owns the block: the next request gets it, and CUDA has not freed it.
    drop(values);
    let again = CudaBuffer::<u32>::zeroed(LEN, &stream, pool).unwrap();
    assert_eq!(stream.clone_dtoh(&again).unwrap(), vec![0; LEN]);
    context.check_err().unwrap();
}

/// Doubles the value of each thread of one block.
const TWICE: &str = r"
.version 6.4
.target sm_75
.address_size 64

.visible .entry twice(.param .u64 values)
{
    .reg .b32 %r1;
    .reg .f32 %f1;
    .reg .b64 %rd<4>;

    ld.param.u64 %rd1, [values];
    mov.u32 %r1, %tid.x;
    cvta.to.global.u64 %rd1, %rd1;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.f32 %f1, [%rd3];
    add.f32 %f1, %f1, %f1;
    st.global.f32 [%rd3], %f1;
    ret;
}
";

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn a_kernel_takes_containers() {
    let (pool, [stream, _], context) = bench();
    let kernel = context.load_module(Ptx::from_src(TWICE)).unwrap().load_function("twice").unwrap();
    // SAFETY: the stream lives until the end of the test.
    let on = unsafe { cuda::stream_ref_of(&stream) }.unwrap();
    let mut a = DeviceVec::from_host(&[1.0_f32, 2.0, 3.0, 4.0, 5.0], on, pool.clone()).unwrap();
    let config =
        |threads| LaunchConfig { grid_dim: (1, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the kernel takes an address, has a thread for each value, and runs on the vector's stream.
    unsafe {
        stream.launch_builder(&kernel).arg(&mut a).launch(config(5)).unwrap();
        let mut view = a.cuda_view_mut(&stream).unwrap();
        stream.launch_builder(&kernel).arg(&mut view.try_slice_mut(4..).unwrap()).launch(config(1)).unwrap();
    }
    assert_eq!(a.to_host().unwrap(), [2.0, 4.0, 6.0, 8.0, 20.0]);
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn a_matrix_product_takes_containers() {
    // SAFETY: loading the library runs only its own initialisers.
    if !unsafe { cudarc::cublas::sys::is_culib_present() } {
        // Writes past the test harness, which hides the output of a test that passes.
        writeln!(std::io::stderr(), "a_matrix_product_takes_containers is skipped: no libcublas").unwrap();
        return;
    }
    let (pool, [stream, _], _context) = bench();
    // SAFETY: the stream lives until the end of the test.
    let on = unsafe { cuda::stream_ref_of(&stream) }.unwrap();
    let a = DeviceVec::from_host(&[2.0_f32, 4.0, 6.0, 8.0, 20.0], on, pool.clone()).unwrap();
    // Column by column: [2 6; 4 8] times [1 0 1; 0 1 1].
    let b = CudaBuffer::adopt(stream.clone_htod(&[1.0_f32, 0.0, 0.0, 1.0, 1.0, 1.0]).unwrap()).unwrap();
    let mut c = CudaBuffer::from_host(&[1.0; 6], &stream, pool).unwrap();
    let (transa, transb, m, n, k) = (CUBLAS_OP_N, CUBLAS_OP_N, 2, 3, 2);
    let config = GemmConfig { transa, transb, m, n, k, alpha: 2.0, lda: m, ldb: k, beta: 1.0, ldc: m };
    let blas = CudaBlas::new(stream.clone()).unwrap();
    let view = a.cuda_view(&stream).unwrap();
    // SAFETY: the sizes match the matrices.
    unsafe { blas.gemm(config, &view.try_slice(..4).unwrap(), &b, &mut c) }.unwrap();
    assert_eq!(stream.clone_dtoh(&c).unwrap(), [5.0, 9.0, 13.0, 17.0, 17.0, 25.0]);
}
