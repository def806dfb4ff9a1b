//! Facts about a stack that follow from its layers' names.

use millpond_core::stack::LayerSpec;

use crate::conformance::Refusals;
use crate::program::StatisticsCheck;

/// Layers that pass on every request and free one for one.
const PASSING: [&str; 11] = [
    "budget",
    "statistics",
    "limiting",
    "logging",
    "retry",
    "thread_safe",
    "prefetch",
    "recording",
    "failure_callback",
    "capture_scopes",
    "plan",
];

/// Layers that know all their blocks and count them.
const COUNTING: [&str; 3] = ["pool", "arena", "fixed_size"];

/// Layers that know all their blocks.
const KNOWING: [&str; 5] = ["pool", "arena", "fixed_size", "tracking", "cuda_async"];

/// The outermost layer that does not pass everything on.
fn deciding(layers: &[LayerSpec], passing: &[&str]) -> Option<String> {
    let mut outermost = layers.iter().rev().map(|layer| layer.name.clone());
    outermost.find(|name| !passing.contains(&name.as_str()))
}

/// Which part of the statistics is right.
pub(super) fn statistics(layers: &[LayerSpec]) -> StatisticsCheck {
    let passing: Vec<&str> = PASSING.into_iter().filter(|name| *name != "plan").chain(["tracking"]).collect();
    match deciding(layers, &passing) {
        Some(name) if COUNTING.contains(&name.as_str()) => StatisticsCheck::Counts,
        _ => StatisticsCheck::None,
    }
}

/// Whether the outermost layer that creates scopes receives each request unchanged.
pub(super) fn has_direct_scopes(layers: &[LayerSpec]) -> bool {
    let is_inside = |name: &&str| !["capture_scopes", "plan"].contains(name);
    let passing: Vec<&str> = PASSING.into_iter().filter(is_inside).chain(["tracking", "aligned"]).collect();
    deciding(layers, &passing).is_some_and(|name| name == "capture_scopes")
}

/// The mistakes that the stack must refuse.
pub(super) fn refusals(layers: &[LayerSpec]) -> Refusals {
    match deciding(layers, &PASSING) {
        Some(name) if KNOWING.contains(&name.as_str()) => Refusals::ALL,
        _ => Refusals::default(),
    }
}

/// The largest request in bytes that makes sense.
pub(super) fn largest_bytes(layers: &[LayerSpec]) -> u64 {
    let of = |layer: &LayerSpec| match layer.param("block_size").and_then(|value| value.as_text()) {
        Some("64KiB") => 64 << 10,
        Some("4MiB") => 4 << 20,
        _ => 1 << 20,
    };
    layers.iter().filter(|layer| layer.name == "fixed_size").map(of).min().unwrap_or(u64::MAX)
}

/// Whether a refused request is refused again after a trim, with nothing else in between. That fails if the
/// stack contains another stack, which may hold memory that it does not need.
pub(super) fn is_out_of_memory_for_good(layers: &[LayerSpec]) -> bool {
    let has_other = layers.iter().any(|layer| layer.to_string().contains('('));
    !has_other && !named(layers, "failure_callback")
}

/// Whether a layer has this name.
pub(super) fn named(layers: &[LayerSpec], name: &str) -> bool {
    layers.iter().any(|layer| layer.name == name)
}
