//! Threads share such a resource only behind a lock.

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
    std::thread::scope(|scope| {
        scope.spawn(|| stack.allocate_bytes(1000, StreamRef::LEGACY));
    });
    Ok(())
}
