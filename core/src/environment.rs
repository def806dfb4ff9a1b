//! Reads environment variables of the process. An empty variable counts as unset.

use std::ffi::{OsStr, OsString};

/// Returns the value of an environment variable; `None` if the variable is unset, empty, or only white space.
///
/// A container or a job description can often empty a variable, but cannot unset it. So an empty variable
/// counts as unset.
pub fn variable(name: impl AsRef<OsStr>) -> Option<OsString> {
    std::env::var_os(name).and_then(set)
}

/// Applies the rule of [`variable`] to a value from another source: returns `None` if the value is empty.
pub fn set(value: OsString) -> Option<OsString> {
    let is_blank = value.to_str().is_some_and(|text| text.trim().is_empty());
    (!is_blank).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_variable_counts_as_unset() {
        for (value, expected) in [("", None), (" \t", None), ("cuda", Some("cuda")), (" a", Some(" a"))] {
            assert_eq!(set(value.into()), expected.map(Into::into), "{value:?}");
        }
        assert_eq!(variable("MILLPOND_TEST_THAT_NOBODY_SETS"), None);
        assert!(variable("PATH").is_some());
    }
}
