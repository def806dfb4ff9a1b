//! The options of the layer `plan`.

use std::fmt;
use std::time::Duration;

use millpond_core::{Error, Result};

/// The time in milliseconds that planning takes at most by default.
pub(crate) const DEFAULT_MS: u64 = 2000;

/// The allocations over which a part has to repeat for the first plan, by default. With 32, loops inside a
/// pass of `gpt_train_dynamic` were planned and dropped four times, and its peak grew by 1.3 %.
pub(crate) const DEFAULT_REPEAT: u32 = 512;

/// The most that may be asked for: the history holds four times as many.
const MOST_REPEAT: u32 = 1 << 18;

/// Options of a [`PlanMemoryResource`](crate::PlanMemoryResource).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlanOptions {
    /// The allocations over which a part of the program has to repeat before it is planned (default 512, at
    /// most 262144).
    pub repeat: u32,
    /// The time of search for each plan (default 2 s, at most an hour). The first placement is always
    /// finished.
    pub time: Duration,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self { repeat: DEFAULT_REPEAT, time: Duration::from_millis(DEFAULT_MS) }
    }
}

impl PlanOptions {
    pub(crate) fn checked(self) -> Result<Self> {
        if self.time > Duration::from_secs(3600) {
            return Err(Error::invalid_argument(
                "a plan may take an hour at most; write for example plan:time=2000 (milliseconds)",
            ));
        }
        if !(1..=MOST_REPEAT).contains(&self.repeat) {
            return Err(Error::invalid_argument(format!(
                "a part cannot repeat over {} allocations; write for example plan:repeat=512",
                self.repeat
            )));
        }
        Ok(self)
    }
}

/// Writes the options as parameters of a stack's text; empty for the defaults.
impl fmt::Display for PlanOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = ':';
        if self.repeat != Self::default().repeat {
            write!(f, "{separator}repeat={}", self.repeat)?;
            separator = ',';
        }
        if self.time != Self::default().time {
            write!(f, "{separator}time={}", self.time.as_millis())?;
        }
        Ok(())
    }
}
