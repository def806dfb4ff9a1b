//! Helpers that the operations share.

use millpond::{DeviceMemoryResource, DeviceMemoryResourceExt, Result};
use millpond_testkit::faults::{Act, Stage};

pub(crate) fn act(body: impl FnMut() -> Result<()> + 'static) -> Result<Act> {
    Ok(Box::new(body))
}

/// Makes an operation that needs no preparation.
pub(crate) fn on_stage(stage: &Stage, mut body: impl FnMut(&Stage) -> Result<()> + 'static) -> Result<Act> {
    let stage = stage.clone();
    act(move || body(&stage))
}

/// Allocates on two streams and frees everything. The second stream requests the blocks that the first freed.
pub(crate) fn use_of(resource: &dyn DeviceMemoryResource, stage: &Stage) -> Result<()> {
    for stream in [stage.a(), stage.b()] {
        let sizes = [1000, 1 << 20];
        let blocks = sizes.map(|bytes| (resource.allocate_bytes(bytes, stream), bytes));
        for (ptr, bytes) in &blocks {
            if let Ok(ptr) = ptr {
                // SAFETY: the block came from this resource with this size, and nothing uses it.
                unsafe { resource.deallocate_bytes(*ptr, *bytes, stream) };
            }
        }
        blocks.into_iter().try_for_each(|(ptr, _)| ptr.map(drop))?;
    }
    Ok(())
}
