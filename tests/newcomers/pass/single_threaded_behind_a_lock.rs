//! `ThreadSafeLayer` makes a single-threaded resource shareable.

use std::cell::Cell;

use millpond::adaptors::{FailedRequest, FailureCallbackLayer, ThreadSafeLayer};
use millpond::prelude::*;

fn main() -> millpond::Result<()> {
    let device = DeviceSpec::default_device().open()?;
    let failures = Cell::new(0);
    let count = move |_: &FailedRequest<'_>| {
        failures.set(failures.get() + 1);
        false
    };
    let stack = CudaMemoryResource::new(device)
        .layer(FailureCallbackLayer::new(count))
        .layer(ThreadSafeLayer::new())?
        .into_any();
    let buffer = std::thread::scope(|scope| {
        let allocate = || DeviceBuffer::new(1000, StreamRef::LEGACY, stack.clone());
        scope.spawn(allocate).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    assert_eq!(buffer.len(), 1000);
    Ok(())
}
