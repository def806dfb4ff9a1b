//! Bytes are `u64`, lengths of vectors are `usize`.

use millpond::prelude::*;

fn main() -> millpond::Result<()> {
    let device = DeviceSpec::default_device().open()?;
    let cuda = CudaMemoryResource::new(device).into_any();
    let data = vec![0_u8; 1000];
    let _bytes = DeviceBuffer::new(data.len(), StreamRef::LEGACY, cuda.clone())?;
    let count: u64 = 1000;
    let _values = DeviceVec::<f32>::zeroed(count, StreamRef::LEGACY, cuda.clone())?;
    let _pool = cuda.layer(PoolLayer::new().initial_bytes(data.len()))?;
    Ok(())
}
