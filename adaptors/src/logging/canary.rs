//! Switches off mechanisms of the log, so that tests can show that they are needed.

/// Whether a test wants to see what happens without one of the mechanisms that keep rows.
#[cfg(test)]
pub(super) fn without(mechanism: &str) -> bool {
    std::env::var("MILLPOND_TEST_WITHOUT").is_ok_and(|list| list.split(',').any(|word| word == mechanism))
}

#[cfg(not(test))]
pub(super) const fn without(_mechanism: &str) -> bool {
    false
}
