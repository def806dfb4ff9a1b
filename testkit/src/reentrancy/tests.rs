//! Tests the check itself: it finds the lock of each canary, and nothing else.

use std::sync::Arc;
use std::time::Duration;

use super::*;

fn soon(case: Case) -> Vec<Finding> {
    check(&case.patience(Duration::from_secs(1)))
}

#[test]
fn a_layer_without_a_lock_passes() {
    let found = check(&Case::new("nothing", Ok));
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn canary_a_lock_that_the_same_thread_waits_for() {
    let found = soon(Case::new("canary", |upstream| Ok(Arc::new(HoldsLock::new(upstream)))));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&*found[0].layer, &*found[0].outcome), ("cuda+holds_lock", "hangs (on the same thread)"));
}

#[test]
fn canary_a_lock_that_another_thread_waits_for() {
    let found = soon(Case::new("canary", |upstream| Ok(Arc::new(HoldsLock::reentrant(upstream)))));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&*found[0].layer, &*found[0].outcome), ("cuda+holds_lock", "hangs (on another thread)"));
}
