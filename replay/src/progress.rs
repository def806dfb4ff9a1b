//! Progress bars on the standard error.

use std::io::{self, IsTerminal};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millpond_core::stack::StackSpec;

use crate::program::Program;

/// The duration of a run below which no bar is drawn.
const PATIENCE: Duration = Duration::from_secs(2);

/// Makes the progress bars; none are drawn unless asked for, or if the standard error is not a terminal.
#[derive(Clone, Copy, Default, Debug)]
pub struct Progress {
    /// The time after which bars are drawn; `None` for never.
    from: Option<Instant>,
}

impl Progress {
    /// With `shown`, bars are drawn.
    pub fn new(shown: bool) -> Self {
        Self { from: shown.then(Instant::now) }
    }

    /// Bars are drawn once two seconds have passed.
    pub fn when_slow() -> Self {
        Self { from: io::stderr().is_terminal().then(|| Instant::now() + PATIENCE) }
    }

    /// A bar for reading a file of `bytes` bytes.
    pub fn reading(self, name: &str, bytes: u64) -> ProgressBar {
        self.bar(bytes, format!("reading {name}"), "{msg} [{bar:30}] {bytes}/{total_bytes}")
    }

    /// A bar for replaying a program through a stack.
    pub(crate) fn stack(self, spec: &StackSpec, program: &Program, passes: u32) -> ProgressBar {
        let operations = program.summary().operations * u64::from(passes);
        self.bar(
            operations,
            spec.to_string(),
            "{msg} [{bar:30}] {human_pos}/{human_len} operations, {eta} left",
        )
    }

    /// A bar for work of unknown length; its message names the current step.
    pub fn waiting(self) -> ProgressBar {
        self.bar(0, String::new(), "{spinner} {msg}, {elapsed} in all")
    }

    fn bar(self, length: u64, message: String, template: &str) -> ProgressBar {
        let Some(from) = self.from else { return ProgressBar::hidden() };
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let target = ProgressDrawTarget::hidden();
        let bar = ProgressBar::with_draw_target(Some(length), target);
        let bar = bar.with_style(style.progress_chars("=> ")).with_message(message);
        match from.saturating_duration_since(Instant::now()) {
            Duration::ZERO => show(&bar),
            wait => show_later(&bar, wait),
        }
        bar
    }
}

fn show(bar: &ProgressBar) {
    bar.set_draw_target(ProgressDrawTarget::stderr());
    bar.enable_steady_tick(Duration::from_millis(200));
}

/// Draws the bar after that time, unless it is finished or dropped by then.
fn show_later(bar: &ProgressBar, wait: Duration) {
    let bar = bar.downgrade();
    // Without the thread there is no bar, and nothing else is lost.
    let _ = thread::Builder::new().name("progress".to_owned()).spawn(move || {
        thread::sleep(wait);
        if let Some(bar) = bar.upgrade().filter(|bar| !bar.is_finished()) {
            show(&bar);
        }
    });
}
