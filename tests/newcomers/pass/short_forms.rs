//! The short forms compile: a stream as `&stream`, sizes as `mib(64)`, one `?` for several layers.

use millpond::prelude::*;

fn main() -> millpond::Result<()> {
    let device = DeviceSpec::default_device().open()?;
    let stream = Stream::new(device.clone(), StreamFlags::NON_BLOCKING)?;
    let pool = CudaMemoryResource::new(device)
        .layer(PoolLayer::new().initial_bytes(mib(64)))
        .layer(StatisticsLayer::new())?
        .into_any();
    let buffer = DeviceBuffer::new(mib(1), &stream, pool.clone())?;
    let other = DeviceBuffer::new(mib(1), stream.as_ref(), pool.clone())?;
    let block = pool.allocate_bytes(kib(4), &stream)?;
    // SAFETY: the block came from this stack with this size, once, and nothing uses it.
    unsafe { pool.deallocate_bytes(block, kib(4), &stream) };
    drop((buffer, other));
    stream.synchronize()
}
