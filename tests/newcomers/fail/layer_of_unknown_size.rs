//! A layer chosen at run time is an `option_layer`, or text.

use millpond::AnyResource;
use millpond::prelude::*;

fn main() -> millpond::Result<()> {
    let cuda = CudaMemoryResource::new(DeviceSpec::default_device().open()?).into_any();
    let layer: Box<dyn Layer<AnyResource, Resource = AnyResource>> = Box::new(millpond::Identity);
    let _boxed = cuda.clone().layer(layer)?;
    let layer: Box<dyn Layer<AnyResource, Resource = AnyResource>> = Box::new(millpond::Identity);
    let _unsized = cuda.layer(*layer)?;
    Ok(())
}
