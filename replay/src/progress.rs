//! Bars on the standard error while logs are read and replayed.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use millpond_core::stack::StackSpec;

use crate::program::Program;

/// Makes the bars; none are drawn unless asked for, or where the standard error is no terminal.
#[derive(Clone, Copy, Default, Debug)]
pub struct Progress {
    shown: bool,
}

impl Progress {
    /// With `shown`, bars are drawn.
    pub fn new(shown: bool) -> Self {
        Self { shown }
    }

    /// For reading a file of so many bytes.
    pub fn reading(self, name: &str, bytes: u64) -> ProgressBar {
        self.bar(bytes, format!("reading {name}"), "{msg} [{bar:30}] {bytes}/{total_bytes}")
    }

    /// For replaying a program through a stack.
    pub(crate) fn stack(self, spec: &StackSpec, program: &Program, passes: u32) -> ProgressBar {
        let operations = program.summary().operations * u64::from(passes);
        self.bar(
            operations,
            spec.to_string(),
            "{msg} [{bar:30}] {human_pos}/{human_len} operations, {eta} left",
        )
    }

    /// For work of which nobody knows how long it takes; what is done now is its message.
    pub fn waiting(self) -> ProgressBar {
        self.bar(0, String::new(), "{spinner} {msg}, {elapsed} in all")
    }

    fn bar(self, length: u64, message: String, template: &str) -> ProgressBar {
        if !self.shown {
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(length).with_style(style.progress_chars("=> ")).with_message(message);
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }
}
