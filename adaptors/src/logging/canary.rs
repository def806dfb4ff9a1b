//! Switches off mechanisms of the log, so that tests can show that they are needed.

/// Returns whether a test has switched off this mechanism.
#[cfg(test)]
pub(super) fn without(mechanism: &str) -> bool {
    std::env::var("MILLPOND_TEST_WITHOUT").is_ok_and(|list| list.split(',').any(|word| word == mechanism))
}

#[cfg(not(test))]
pub(super) const fn without(_mechanism: &str) -> bool {
    false
}
