//! The environment variable that turns watching on.

use std::ffi::OsString;

use crate::environment;

/// The environment variable that lets other processes watch this process's stacks.
pub const VARIABLE: &str = "MILLPOND_WATCH";

/// Returns its value, unless that turns watching off.
pub(super) fn value() -> Option<OsString> {
    environment::variable(VARIABLE).filter(|value| value != "0")
}
