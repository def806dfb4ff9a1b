//! The block of a buffer cannot be used after the buffer has freed it.

use millpond::prelude::*;

fn main() -> millpond::Result<()> {
    let device = DeviceSpec::default_device().open()?;
    let buffer = DeviceBuffer::new(1000, StreamRef::LEGACY, CudaMemoryResource::new(device))?;
    drop(buffer);
    println!("{}", buffer.as_ptr());
    Ok(())
}
