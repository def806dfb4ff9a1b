//! Shows the first allocation: open a device, make a resource, allocate a block on a stream and free it.
//!
//! `cargo run --example first_allocation` runs on the GPU, or on a simulated H200 if there is none.

use millpond::driver::DeviceSpec;
use millpond::driver::cuda;
use millpond::resources::CudaMemoryResource;
use millpond::{DeviceMemoryResource, DeviceMemoryResourceExt, Result, StreamRef};

fn main() -> Result<()> {
    // A driver stands for one device. Without CUDA, millpond does not panic: it returns the reason.
    if let Err(why) = cuda::availability() {
        println!("no GPU here ({why}), so the device is simulated");
    }
    let device = DeviceSpec::default_device().open()?;
    println!("{} with {} bytes free", device.name(), device.mem_get_info()?.free);

    // The simplest resource allocates directly from the driver.
    let resource = CudaMemoryResource::new(device.clone());

    // A block is allocated in the order of one stream, and freed in the order of one stream.
    let stream = StreamRef::LEGACY;
    let block = resource.allocate_bytes(1000, stream)?;
    println!("1000 bytes at {block}, aligned to 256: {}", block.is_aligned_to(256));

    // If no device can serve a request, the error describes the request.
    let error = resource.allocate_bytes(1 << 60, stream).expect_err("an exabyte");
    println!("{error}");
    println!("out of memory: {}, asked for: {:?}", error.is_out_of_memory(), error.requested_bytes());

    // SAFETY: the block came from this resource with this size, once, and nothing uses it.
    unsafe { resource.deallocate_bytes(block, 1000, stream) };

    // A buffer does the same automatically: see containers::DeviceBuffer.
    println!("free again: {} bytes", resource.memory_info()?.free);
    Ok(())
}
