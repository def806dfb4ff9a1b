//! millpond beside cudarc: memory from a pool of millpond's, a kernel that cudarc launches on a stream of
//! millpond's, and cudarc's own copies. On a GPU only: elsewhere it says why not.

use std::error::Error;

use millpond::containers::{CudaBuffer, Stream};
use millpond::core::driver::StreamFlags;
use millpond::driver::cuda::{self, CudaDriver};
use millpond::resources::{CudaMemoryResource, PoolLayer};
use millpond::{AnyResource, DeviceMemoryResourceExt};

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

fn main() -> Result<(), Box<dyn Error>> {
    if let Err(error) = cuda::availability() {
        println!("this example needs a GPU: {error}");
        return Ok(());
    }
    // Both take the device's primary context, so that each can use the other's memory and streams.
    let driver = CudaDriver::open(0)?;
    let context = CudaContext::new(0)?;
    let kernel = context.load_module(Ptx::from_src(TWICE))?.load_function("twice")?;
    let pool: AnyResource = CudaMemoryResource::new(driver.clone()).layer(PoolLayer::new())?.into_any();

    // A stream of millpond's, borrowed. A stream of cudarc's needs no borrowing: pass it directly.
    let owner = Stream::new(driver.clone(), StreamFlags::NON_BLOCKING)?;
    // SAFETY: `owner` lives until the end, longer than everything that uses the stream.
    let stream = unsafe { cuda::cudarc_stream_of(owner.as_ref(), &*driver, &context) }?;

    let numbers: Vec<f32> = (0..50_000_u16).map(f32::from).collect();
    let mut values = CudaBuffer::from_host(&numbers, &stream, pool)?;
    let count = u32::try_from(values.len())?;
    // SAFETY: the kernel takes an address and a count, stays inside of the buffer, and runs on its stream.
    unsafe {
        stream.launch_builder(&kernel).arg(&mut values).arg(&count).launch(LaunchConfig::for_num_elems(count))
    }?;
    let doubled = stream.clone_dtoh(&values)?;
    stream.synchronize()?;
    assert!(doubled.iter().zip(&numbers).all(|(twice, once)| *twice == once + once));
    // SAFETY: the stream lives as long as the buffer, in the same tuple.
    let (buffer, _stream) = unsafe { values.into_buffer() };
    println!("doubled {count} numbers in memory of `{}`", buffer.resource());
    Ok(())
}
