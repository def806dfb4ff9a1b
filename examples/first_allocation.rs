//! The first allocation: a device, a resource, a stream, a block.
//!
//! `cargo run --example first_allocation` runs on the GPU if there is one, else on a simulated H200.

use millpond::driver::DeviceSpec;
use millpond::driver::cuda;
use millpond::resources::CudaMemoryResource;
use millpond::{DeviceMemoryResource, DeviceMemoryResourceExt, Result, StreamRef};

fn main() -> Result<()> {
    // A driver is one device. Millpond never panics without CUDA: it returns the reason.
    if let Err(why) = cuda::availability() {
        println!("no GPU here ({why}), so the device is simulated");
    }
    let device = DeviceSpec::default_device().open()?;
    println!("{} with {} bytes free", device.name(), device.mem_get_info()?.free);

    // The plainest resource hands the driver's own memory on.
    let resource = CudaMemoryResource::new(device.clone());

    // Memory is asked for in the order of a stream, and given back in the order of a stream.
    let stream = StreamRef::LEGACY;
    let block = resource.allocate_bytes(1000, stream)?;
    println!("1000 bytes at {block}, aligned to 256: {}", block.is_aligned_to(256));

    // A request that no device can serve is an error that says what it was about.
    let error = resource.allocate_bytes(1 << 60, stream).expect_err("an exabyte");
    println!("{error}");
    println!("out of memory: {}, asked for: {:?}", error.is_out_of_memory(), error.requested_bytes());

    // SAFETY: the block came from this resource with this size, once, and nothing uses it.
    unsafe { resource.deallocate_bytes(block, 1000, stream) };

    // A buffer does the same automatically: see containers::DeviceBuffer.
    println!("free again: {} bytes", resource.memory_info()?.free);
    Ok(())
}
