//! Allocates as OpenVM does, from a pool of millpond.

use std::error::Error;
use std::mem::ManuallyDrop;

use millpond_openvm::{d_free, d_malloc_on, use_stack};
use openvm_cuda_common::copy::MemCopyD2H;
use openvm_cuda_common::d_buffer::DeviceBuffer;
use openvm_cuda_common::stream::GpuDeviceCtx;

fn main() -> Result<(), Box<dyn Error>> {
    use_stack(0, "cuda+pool")?;
    let context = GpuDeviceCtx::for_device(0)?;
    let ptr = d_malloc_on(4 << 20, &context.stream)?;
    // SAFETY: the block has that many bytes. The buffer is not dropped: it would call upstream's `d_free`.
    let words = ManuallyDrop::new(unsafe { DeviceBuffer::<u32>::from_raw_parts(ptr.cast(), 1 << 20) });
    words.fill_zero_on(&context)?;
    assert!(words.to_host_on(&context)?.iter().all(|word| *word == 0));
    // SAFETY: the block came from `d_malloc_on`, and all its work is on the stream that allocated it.
    unsafe { d_free(ptr) }?;
    println!("4 MiB from `{}`", millpond::resources::get_current_device_resource()?);
    Ok(())
}
