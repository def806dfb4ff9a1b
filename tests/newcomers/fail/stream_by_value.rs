//! A call borrows a stream: the stream must outlive it.

use millpond::prelude::*;

fn main() -> millpond::Result<()> {
    let device = DeviceSpec::default_device().open()?;
    let stream = Stream::new(device.clone(), StreamFlags::NON_BLOCKING)?;
    let _buffer = DeviceBuffer::new(1000, stream, CudaMemoryResource::new(device))?;
    Ok(())
}
