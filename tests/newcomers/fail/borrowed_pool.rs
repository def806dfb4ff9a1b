//! A container keeps its resource, so it takes no reference.

use millpond::prelude::*;

fn main() -> millpond::Result<()> {
    let device = DeviceSpec::default_device().open()?;
    let pool = CudaMemoryResource::new(device).layer(PoolLayer::new())?;
    let _first = DeviceBuffer::new(1000, StreamRef::LEGACY, &pool)?;
    let _second = DeviceBuffer::new(1000, StreamRef::LEGACY, pool)?;
    Ok(())
}
