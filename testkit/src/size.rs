//! How much a test does: enough in a run of all tests, and more in a nightly run.

use millpond_core::environment::variable;

/// Whether `MILLPOND_THOROUGH` is set: time is no object.
pub fn is_thorough() -> bool {
    variable("MILLPOND_THOROUGH").is_some()
}

/// The first of two sizes, or the second if the tests are to be thorough.
pub fn of(ordinary: u64, thorough: u64) -> u64 {
    if is_thorough() { thorough } else { ordinary }
}

/// The number in a variable of the environment, as in Rust with `_` between digits; `None` if it is not set.
///
/// # Panics
///
/// If something else is in it.
pub fn named(name: &str) -> Option<u64> {
    let text = variable(name)?.to_string_lossy().replace('_', "");
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}
