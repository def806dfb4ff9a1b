//! The stacks of the tests `contract`, `faults` and `order`: the testkit's list, and three in a scope.

mod scoped;

use std::time::Duration;

use millpond::resources::PoolMemoryResource;
use millpond::stack::LayerTable;
use millpond::{AnyResource, DeviceMemoryResourceExt, Result, downcast};
use millpond_testkit::canary::ZeroingLayer;
use millpond_testkit::conformance::{Refusals, Subject};
use millpond_testkit::stacks::Builder;

/// Stacks whose whole memory belongs to a scope for captured graphs.
const SCOPED: &[&str] =
    &["cuda_async+capture_scopes", "cuda+pool+capture_scopes", "cuda+pool:pages=off+capture_scopes"];

/// Checks every pool of a stack that was built from text.
fn validate_pools(resource: &AnyResource) {
    resource
        .stack()
        .filter_map(downcast::<PoolMemoryResource<AnyResource>>)
        .for_each(PoolMemoryResource::validate);
}

/// Lets every such pool release memory that it has not needed lately.
fn decay_pools(resource: &AnyResource, now: Duration) -> Result<()> {
    let mut pools = resource.stack().filter_map(downcast::<PoolMemoryResource<AnyResource>>);
    pools.try_for_each(|pool| pool.decay_step(now).map(|_| ()))
}

/// Returns every stack.
pub(crate) fn all() -> Vec<Subject> {
    all_up_to(u64::MAX)
}

/// Returns the same, for requests of at most this many bytes.
pub(crate) fn all_up_to(largest_bytes: u64) -> Vec<Subject> {
    let mut all = builder().all(largest_bytes);
    all.extend(SCOPED.iter().map(|text| {
        Subject::new(format!("{text} (in a scope)"), |driver| scoped::build(text, driver))
            .refuses(Refusals::ALL)
            .inspected_by(validate_pools)
            .decayed_by(decay_pools)
    }));
    all
}

/// Returns millpond's layers, and a user's layer that submits work.
pub(crate) fn layers() -> LayerTable {
    millpond::layers().with([ZeroingLayer::ENTRY])
}

/// Returns the builder of the testkit's stacks.
pub(crate) fn builder() -> Builder {
    Builder::new(layers(), validate_pools, decay_pools)
}

/// Returns all stacks, or the one that MILLPOND_SUBJECT names.
#[allow(dead_code, reason = "not every test can be limited to one stack")]
pub(crate) fn wanted() -> Vec<Subject> {
    let only = std::env::var("MILLPOND_SUBJECT").ok();
    let mut subjects = all();
    subjects.retain(|subject| only.as_deref().is_none_or(|only| only == subject.name()));
    assert!(!subjects.is_empty(), "no stack is called {only:?}");
    subjects
}

/// Tests that every layer that a stack's text can name is in one of the stacks.
#[test]
fn every_layer_is_in_a_stack() {
    let stacks: Vec<String> = all().iter().map(|subject| subject.name().to_owned()).collect();
    for entry in millpond::layers().entries() {
        let named =
            |stack: &String| stack.split('+').any(|layer| layer.split(':').next() == Some(entry.name));
        assert!(
            stacks.iter().any(named),
            "no stack has the layer `{}`; add a line to testkit/src/stacks.rs",
            entry.name
        );
    }
}
