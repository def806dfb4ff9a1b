//! One `?` for several layers needs the trait `LayerResultExt`.

use millpond::adaptors::StatisticsLayer;
use millpond::driver::DeviceSpec;
use millpond::resources::{CudaMemoryResource, PoolLayer};
use millpond::{DeviceMemoryResourceExt, Result};

fn main() -> Result<()> {
    let device = DeviceSpec::default_device().open()?;
    let _stack = CudaMemoryResource::new(device).layer(PoolLayer::new()).layer(StatisticsLayer::new())?;
    Ok(())
}
