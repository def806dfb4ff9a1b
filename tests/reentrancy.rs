//! Tests that no layer hangs when its upstream, the driver, the misuse hook or a subscriber calls the stack
//! back: on the same thread, and on another one that it waits for.

use millpond::DeviceMemoryResourceExt;
use millpond::adaptors::{FailedRequest, FailureCallbackLayer};
use millpond_testkit::reentrancy::{Case, Finding, check};

/// The stacks that are checked. Each layer that text can name is in one of them, or in [`NOT_YET`].
const STACKS: &[&str] = &[
    "cuda+limiting:limit=40MiB+statistics",
    "cuda+tracking+aligned:alignment=4KiB",
    "cuda+limiting:limit=30MiB+fallback:to=(cuda)",
    "cuda+logging:file=/dev/null",
    "cuda+logging:file=/dev/null,flush=buffered",
    "cuda+limiting:limit=40MiB+retry:timeout=1ms",
    "managed+prefetch",
    "host",
    "pinned_host",
    "system+tracking",
    "sam_headroom:headroom=1MiB",
    "cuda+binning:bins=none+statistics",
    "cuda+plan:repeat=4,background=off",
    "cuda+limiting:limit=40MiB+statistics+plan:repeat=4,background=off",
    "cuda+tracking+plan:repeat=4,background=off+tracking",
];

/// Stacks with a layer that lets one thread in at a time, by its purpose.
const SERIAL: &[&str] = &[
    "cuda+thread_safe",
    "cuda+limiting:limit=40MiB+retry:timeout=1ms+thread_safe",
    "cuda+thread_safe+tracking+thread_safe",
];

/// Layers over a pool, ours or the driver's, whose slow path holds locks while it calls others.
const NOT_YET: &[&str] =
    &["cuda_async", "cuda_async_view", "cuda_async_managed", "pool", "arena", "fixed_size", "capture_scopes"];

fn assert_well(found: Vec<Finding>) {
    let text: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert!(text.is_empty(), "\n{}", text.join("\n"));
}

fn check_all(cases: impl Iterator<Item = Case>) {
    assert_well(cases.flat_map(|case| check(&case)).collect());
}

#[test]
fn no_layer_holds_a_lock_while_foreign_code_runs() {
    let table = millpond::layers();
    check_all(STACKS.iter().map(|text| Case::from_text(text, &table)));
}

#[test]
fn a_layer_that_serialises_lets_its_thread_back_in() {
    let table = millpond::layers();
    check_all(SERIAL.iter().map(|text| Case::from_text(text, &table).one_thread_at_a_time()));
}

#[test]
fn a_failure_callback_may_use_the_stack() {
    check_all(std::iter::once(Case::with_probe("failure_callback", |upstream, probe| {
        let probe = probe.clone();
        let callback = FailureCallbackLayer::new(move |_: &FailedRequest<'_>| {
            probe.call("the failure callback");
            false
        });
        Ok(upstream.layer(callback)?.into_any())
    })));
}

#[test]
fn every_layer_is_checked() {
    let all: Vec<&str> = STACKS.iter().chain(SERIAL).copied().collect();
    for entry in millpond::layers().entries() {
        let is_in = |stack: &&str| stack.split('+').any(|layer| layer.split(':').next() == Some(entry.name));
        let is_known = NOT_YET.contains(&entry.name) || all.iter().any(is_in);
        assert!(is_known, "no stack has the layer `{}`; add a line to tests/reentrancy.rs", entry.name);
    }
}
