//! The options of the layer `plan`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use millpond_core::stack::{FilePath, LayerSpec};
use millpond_core::{Error, Result};

/// The time in milliseconds that planning takes at most by default.
pub(crate) const DEFAULT_MS: u64 = 2000;

/// The allocations over which a part has to repeat for the first plan, by default. With 32, loops inside a
/// pass of `gpt_train_dynamic` were planned and dropped four times, and its peak grew by 1.3 %.
pub(crate) const DEFAULT_REPEAT: u32 = 512;

/// The most that may be asked for: the history holds four times as many.
const MOST_REPEAT: u32 = 1 << 18;

/// Options of a [`PlanMemoryResource`](crate::PlanMemoryResource).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlanOptions {
    /// The allocations over which a part of the program has to repeat before it is planned (default 512, at
    /// most 262144).
    pub repeat: u32,
    /// The time of search for each plan (default 2 s, at most an hour). The first placement is always
    /// finished.
    pub time: Duration,
    /// Whether a thread of its own plans, so that no request waits for it (the default). Else the request
    /// that completes the repetition does: the plan then comes at the same request in each run, as replays
    /// want, in which a pass takes less time than planning.
    pub background: bool,
    /// Whether streams share memory of the plan where memory of their own for each of them has no room and
    /// they keep up with the host (default `false`). For programs that repeat exactly: where some steps are
    /// left out now and then, plan and pool together took up to 1.9 times what the pool took alone.
    pub share: bool,
    /// A plan that `millpond-replay plan LOG -o FILE.plan` wrote, with which the program begins (default
    /// none: it begins with what it learns).
    pub file: Option<PathBuf>,
}

impl Default for PlanOptions {
    fn default() -> Self {
        let time = Duration::from_millis(DEFAULT_MS);
        Self { repeat: DEFAULT_REPEAT, time, background: true, share: false, file: None }
    }
}

impl PlanOptions {
    pub(crate) fn check(&self) -> Result<()> {
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
        Ok(())
    }
}

/// Writes the layer with its options, as in a stack's text.
impl fmt::Display for PlanOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut layer = LayerSpec::new("plan");
        if let Some(path) = &self.file {
            // A path that no text can hold is printed as people read it.
            let text = FilePath::literal(path).and_then(|path| path.to_text());
            layer = layer.with("file", text.unwrap_or_else(|_| path.display().to_string()));
        }
        if self.repeat != Self::default().repeat {
            layer = layer.with("repeat", self.repeat.to_string());
        }
        if self.time != Self::default().time {
            layer = layer.with("time", self.time.as_millis().to_string());
        }
        if !self.background {
            layer = layer.with("background", "off");
        }
        if self.share {
            layer = layer.with("share", "on");
        }
        layer.fmt(f)
    }
}
