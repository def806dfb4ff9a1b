//! Only `unsafe` code can free a raw block, because it could use the block afterwards.

use millpond::prelude::*;

fn main() -> millpond::Result<()> {
    let cuda = CudaMemoryResource::new(DeviceSpec::default_device().open()?);
    let block = cuda.allocate_bytes(1000, StreamRef::LEGACY)?;
    cuda.deallocate_bytes(block, 1000, StreamRef::LEGACY);
    Ok(())
}
