//! Text, options and resources are no layers.

use millpond::prelude::*;
use millpond::resources::PoolOptions;

fn main() -> millpond::Result<()> {
    let device = DeviceSpec::default_device().open()?;
    let _text = CudaMemoryResource::new(device.clone()).layer("pool")?;
    let _options = CudaMemoryResource::new(device.clone()).layer(PoolOptions::default())?;
    let _resource = CudaMemoryResource::new(device.clone()).layer(ManagedMemoryResource::new(device))?;
    Ok(())
}
