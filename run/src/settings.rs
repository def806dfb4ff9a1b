//! The settings that `millpond-replay run` passes in the environment.

use std::path::PathBuf;

use millpond_core::environment;

/// The tasks of the library in this process.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    /// The file of the recording, if the process is recorded.
    pub(crate) record: Option<PathBuf>,
    /// The most bytes that the process may take on each device.
    pub(crate) budget: Option<u64>,
    /// The text of the stack that serves the process's allocations.
    pub(crate) stack: Option<String>,
    /// Whether `millpond-replay top` may watch the process.
    pub(crate) is_watched: bool,
}

impl Settings {
    /// Reads the settings. A setting that cannot be read is absent: `millpond-replay run` has checked it.
    pub(crate) fn from_environment() -> Self {
        let set = |name: &str| environment::variable(name);
        Self {
            record: set("MILLPOND_RUN_RECORD").map(PathBuf::from),
            budget: set("MILLPOND_RUN_BUDGET").and_then(|value| value.to_str()?.parse().ok()),
            stack: set("MILLPOND_RUN_STACK").and_then(|value| value.into_string().ok()),
            is_watched: set("MILLPOND_RUN_TOP").is_some(),
        }
    }

    /// Returns whether there is anything to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.record.is_none() && self.budget.is_none() && self.stack.is_none() && !self.is_watched
    }
}
