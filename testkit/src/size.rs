//! How much a test does: enough in a run of all tests, and more in a nightly run.

use millpond_core::environment::variable;

/// Returns whether `MILLPOND_THOROUGH` is set. Tests then do more, and may take long.
pub fn is_thorough() -> bool {
    variable("MILLPOND_THOROUGH").is_some()
}

/// Returns `ordinary`, or `thorough` if [`is_thorough`] returns true.
pub fn of(ordinary: u64, thorough: u64) -> u64 {
    if is_thorough() { thorough } else { ordinary }
}

/// Returns the number in an environment variable; `None` if it is not set. As in Rust, `_` may stand between
/// digits.
///
/// # Panics
///
/// If the variable holds anything else.
pub fn named(name: &str) -> Option<u64> {
    let text = variable(name)?.to_string_lossy().replace('_', "");
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}
