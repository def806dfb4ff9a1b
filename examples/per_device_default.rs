//! Shows per-device defaults: set a resource once, and containers allocate their memory from it.

use millpond::containers::{DeviceBuffer, Stream};
use millpond::driver::DeviceSpec;
use millpond::driver::StreamFlags;
use millpond::resources::{
    CudaMemoryResource, PoolLayer, get_per_device_resource, reset_per_device_resource,
    set_per_device_resource,
};
use millpond::{DeviceMemoryResource, DeviceMemoryResourceExt, Result};

fn main() -> Result<()> {
    let device = DeviceSpec::default_device().open()?;
    let id = device.device();
    println!("{id} starts with `{}`", get_per_device_resource(id)?);

    // Setting a default returns the previous one. Both are owned handles that keep their resources alive.
    let pool = CudaMemoryResource::new(device.clone()).layer(PoolLayer::new())?.into_any();
    let before = set_per_device_resource(id, pool)?;
    println!("`{before}` was replaced by `{}`", get_per_device_resource(id)?);

    // A container allocates its memory from the default, in the order of its stream.
    let stream = Stream::new(device.clone(), StreamFlags::NON_BLOCKING)?;
    let numbers: Vec<u32> = (0..1000).collect();
    let buffer = DeviceBuffer::from_host(&numbers, &stream, get_per_device_resource(id)?)?;
    assert_eq!(buffer.to_host::<u32>()?, numbers);
    println!("{} bytes at {} from `{}`", buffer.len(), buffer.as_ptr(), buffer.resource());

    // A new default does not change the buffer, whose memory returns to the pool that it came from.
    let pool = reset_per_device_resource(id)?;
    drop(buffer);
    println!(
        "the pool has {} blocks in use",
        pool.statistics().map_or(0, |statistics| statistics.blocks_in_use)
    );
    Ok(())
}
