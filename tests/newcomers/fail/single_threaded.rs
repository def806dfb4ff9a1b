//! A callback with a `Cell` makes the resource single-threaded.

use std::cell::Cell;

use millpond::adaptors::{FailedRequest, FailureCallbackLayer};
use millpond::prelude::*;

fn main() -> millpond::Result<()> {
    let device = DeviceSpec::default_device().open()?;
    let failures = Cell::new(0);
    let count = move |_: &FailedRequest<'_>| {
        failures.set(failures.get() + 1);
        false
    };
    let stack = CudaMemoryResource::new(device).layer(FailureCallbackLayer::new(count))?;
    let _shared = stack.into_any();
    Ok(())
}
