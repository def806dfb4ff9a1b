//! Checks equality and the chain of upstreams.

use std::sync::Arc;

use millpond_core::{AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, Layout, StreamRef};

use super::Outcome::{self, Passed};
use super::context::Context;
use crate::mock;

bodies![
    equal_to_itself,
    equal_through_erased_handles,
    a_copy_of_the_handle_takes_blocks_back,
    equality_is_symmetrical,
    equal_resources_take_each_others_blocks,
    not_equal_to_something_else,
    upstreams_end,
    one_device_all_the_way_down,
];

fn build(context: &Context<'_>) -> AnyResource {
    context.subject.build(&context.driver).unwrap_or_else(|error| panic!("{error}"))
}

fn equal_to_itself(context: &Context<'_>) -> Outcome {
    let resource = build(context);
    assert!(resource.is_equal(&*resource), "before the first allocation");
    let ptr = resource.allocate_bytes(100, StreamRef::LEGACY).unwrap_or_else(|error| panic!("{error}"));
    assert!(resource.is_equal(&*resource), "with a block handed out");
    // SAFETY: the block came from this resource with this size, and nothing uses it.
    unsafe { resource.deallocate_bytes(ptr, 100, StreamRef::LEGACY) };
    Passed
}

fn equal_through_erased_handles(context: &Context<'_>) -> Outcome {
    let resource = build(context);
    let copy: AnyResource = Arc::clone(&resource);
    assert!(resource.is_equal(&copy) && copy.is_equal(&*resource));
    let boxed: AnyResource = Arc::new(Arc::clone(&resource));
    assert!(boxed.is_equal(&*resource), "an erased handle to an erased handle");
    assert!(resource.is_equal(&*boxed), "the other way round");
    Passed
}

/// RMM's tests of shared ownership. The first handle is dropped before the block is freed.
fn a_copy_of_the_handle_takes_blocks_back(context: &Context<'_>) -> Outcome {
    let resource = build(context);
    let copy: AnyResource = Arc::clone(&resource);
    let layout = Layout::new(1000);
    let ptr = resource.allocate(layout, StreamRef::LEGACY).unwrap_or_else(|error| panic!("{error}"));
    drop(resource);
    // SAFETY: the block came from this resource with this layout, and nothing uses it.
    unsafe { copy.deallocate(ptr, layout, StreamRef::LEGACY) };
    Passed
}

fn equality_is_symmetrical(context: &Context<'_>) -> Outcome {
    let (first, second) = (build(context), build(context));
    assert_eq!(first.is_equal(&*second), second.is_equal(&*first));
    Passed
}

fn equal_resources_take_each_others_blocks(context: &Context<'_>) -> Outcome {
    let (first, second) = (build(context), build(context));
    if !first.is_equal(&*second) {
        return Passed;
    }
    let layout = Layout::new(1000);
    let ptr = first.allocate(layout, StreamRef::LEGACY).unwrap_or_else(|error| panic!("{error}"));
    // SAFETY: the block came from an equal resource with this layout, and nothing uses it.
    unsafe { second.deallocate(ptr, layout, StreamRef::LEGACY) };
    Passed
}

fn not_equal_to_something_else(context: &Context<'_>) -> Outcome {
    let resource = build(context);
    let (other, _handle) = mock::resource(Arc::clone(&context.driver));
    assert!(!resource.is_equal(&other));
    Passed
}

fn upstreams_end(context: &Context<'_>) -> Outcome {
    let resource = build(context);
    let layers = resource.stack().take(100).count();
    assert!((1..100).contains(&layers), "{layers} layers");
    let (text, printed) = (resource.to_string(), resource.to_string().split('+').count());
    assert!(layers <= printed, "`{text}` has {layers} layers");
    Passed
}

fn one_device_all_the_way_down(context: &Context<'_>) -> Outcome {
    let resource = build(context);
    for layer in resource.stack() {
        assert_eq!(layer.driver().device(), context.driver.device(), "`{layer}`");
    }
    Passed
}
