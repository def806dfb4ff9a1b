//! Functions that check and decay the pools of a stack while a program runs over it.

use std::time::Duration;

use millpond_core::{AnyResource, DeviceMemoryResourceExt, Result, downcast};
use millpond_resources::PoolMemoryResource;
use millpond_testkit::Several;

/// The pools of a stack, or of several stacks.
fn pools(resource: &AnyResource) -> impl Iterator<Item = &PoolMemoryResource<AnyResource>> {
    let stacks = downcast::<Several>(resource).map_or(std::slice::from_ref(resource), Several::resources);
    stacks.iter().flat_map(|stack| stack.stack().filter_map(downcast::<PoolMemoryResource<AnyResource>>))
}

pub(crate) fn validate_pools(resource: &AnyResource) {
    pools(resource).for_each(PoolMemoryResource::validate);
}

pub(crate) fn decay_pools(resource: &AnyResource, now: Duration) -> Result<()> {
    pools(resource).try_for_each(|pool| pool.decay_step(now).map(|_| ()))
}
