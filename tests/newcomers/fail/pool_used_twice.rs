//! A container takes its resource; several containers share a handle.

use millpond::prelude::*;

fn main() -> millpond::Result<()> {
    let device = DeviceSpec::default_device().open()?;
    let pool = CudaMemoryResource::new(device).layer(PoolLayer::new())?;
    let _first = DeviceVec::from_host(&[1.0_f32], StreamRef::LEGACY, pool)?;
    let _second = DeviceVec::from_host(&[2.0_f32], StreamRef::LEGACY, pool)?;
    Ok(())
}
