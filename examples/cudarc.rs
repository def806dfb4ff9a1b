//! Shows how to use millpond together with cudarc: a kernel that cudarc launches and a matrix product of
//! cuBLAS work on memory of both libraries, on a millpond stream. It needs a GPU; without one it prints the
//! reason.

use std::error::Error;

use millpond::containers::{CudaBuffer, DeviceVec, Stream};
use millpond::driver::StreamFlags;
use millpond::driver::cuda::{self, CudaDriver};
use millpond::resources::{CudaMemoryResource, PoolLayer};
use millpond::{AnyResource, DeviceMemoryResourceExt};

use cudarc::cublas::sys::cublasOperation_t::CUBLAS_OP_N;
use cudarc::cublas::{CudaBlas, Gemm, GemmConfig};
use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

/// Adds each of `count` values to itself.
const TWICE: &str = r"
.version 6.4
.target sm_75
.address_size 64

.visible .entry twice(.param .u64 values, .param .u32 count)
{
    .reg .pred %p1;
    .reg .b32 %r<5>;
    .reg .f32 %f1;
    .reg .b64 %rd<4>;

    ld.param.u64 %rd1, [values];
    ld.param.u32 %r1, [count];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r2, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra done;
    cvta.to.global.u64 %rd1, %rd1;
    mul.wide.u32 %rd2, %r2, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.f32 %f1, [%rd3];
    add.f32 %f1, %f1, %f1;
    st.global.f32 [%rd3], %f1;
done:
    ret;
}
";

/// A matrix of `rows` × `columns` values, column by column, as cuBLAS expects them. The values are small
/// whole numbers, so sums are exact.
fn matrix(rows: usize, columns: usize) -> Vec<f32> {
    (0..rows * columns).map(|at| (at * 7 % 23) as f32 - 11.0).collect()
}

/// Multiplies an `M` × `K` matrix by a `K` × `N` matrix on the host.
fn product(a: &[f32], b: &[f32]) -> Vec<f32> {
    let value = |at: usize| (0..K).map(|i| a[i * M + at % M] * b[at / M * K + i]).sum();
    (0..M * N).map(value).collect()
}

const M: usize = 96;
const N: usize = 64;
const K: usize = 128;

fn main() -> Result<(), Box<dyn Error>> {
    if let Err(error) = cuda::availability() {
        println!("this example needs a GPU: {error}");
        return Ok(());
    }
    // Both use the device's primary context, so each can use the other's memory and streams.
    let driver = CudaDriver::open(0)?;
    let context = CudaContext::new(0)?;
    let kernel = context.load_module(Ptx::from_src(TWICE))?.load_function("twice")?;
    let pool: AnyResource = CudaMemoryResource::new(driver.clone()).layer(PoolLayer::new())?.into_any();

    // cudarc borrows a millpond stream. In the other direction no borrowing is needed: pass a cudarc stream
    // directly.
    let owner = Stream::new(driver.clone(), StreamFlags::NON_BLOCKING)?;
    // SAFETY: `owner` lives until the end, longer than all users of the stream.
    let stream = unsafe { cuda::cudarc_stream_of(owner.as_ref(), &*driver, &context) }?;

    // A kernel takes a millpond container directly.
    let numbers = matrix(M, K);
    let mut a = DeviceVec::from_host(&numbers, owner.as_ref(), pool.clone())?;
    let count = u32::try_from(a.len())?;
    // SAFETY: the kernel takes an address and a count, stays inside of the vector, and runs on the vector's
    // stream.
    unsafe {
        stream.launch_builder(&kernel).arg(&mut a).arg(&count).launch(LaunchConfig::for_num_elems(count))
    }?;
    let doubled = a.to_host()?;
    assert!(doubled.iter().zip(&numbers).all(|(twice, once)| *twice == once + once));
    println!("doubled {count} numbers in memory of `{}`", a.resource());

    // Memory that cudarc allocated becomes a millpond buffer, and a cudarc slice again at the end.
    let b = CudaBuffer::adopt(stream.clone_htod(&matrix(K, N))?)?;
    let mut c = CudaBuffer::<f32>::zeroed(M * N, &stream, pool)?;
    // cudarc panics if the library is missing. SAFETY: loading the library runs only its own initializers.
    if !unsafe { cudarc::cublas::sys::is_culib_present() } {
        println!("no matrix product: libcublas is missing; install it or add its folder to LD_LIBRARY_PATH");
        return Ok(());
    }
    let blas = CudaBlas::new(stream.clone())?;
    let [m, n, k] = [M, N, K].map(|size| size as i32);
    let (transa, transb) = (CUBLAS_OP_N, CUBLAS_OP_N);
    let config = GemmConfig { transa, transb, m, n, k, alpha: 1.0, lda: m, ldb: k, beta: 0.0, ldc: m };
    // SAFETY: the matrices have these sizes, and are on the stream of `blas`.
    unsafe { blas.gemm(config, &a.cuda_view(&stream)?, &b, &mut c) }?;
    let b = stream.clone_dtoh(&b.give_back()?)?;
    // Code that asks for a `CudaSlice` can borrow one.
    let c = c.lend_as_cuda_slice(|slice| slice.stream().clone_dtoh(slice))??;
    stream.synchronize()?;
    assert_eq!(c, product(&doubled, &b));
    println!("multiplied {M} × {K} by {K} × {N} numbers, as the host does");
    Ok(())
}
