//! Progress bars on the standard error.

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millpond_core::stack::StackSpec;
use millpond_engine::program::Program;
use millpond_engine::text::plain;

/// Runs shorter than this show no bar.
const PATIENCE: Duration = Duration::from_secs(2);

/// Makes the progress bars, if the user wants them. If the standard error is not a terminal, each step
/// becomes a plain line instead of a bar.
#[derive(Clone, Copy, Default, Debug)]
pub struct Progress {
    /// The time from which bars are drawn; `None` if bars are never drawn.
    from: Option<Instant>,
    /// Whether each step is a plain line instead of a bar.
    is_plain: bool,
}

impl Progress {
    /// Makes bars that are drawn from the start if `shown` is true, and never otherwise.
    pub fn new(shown: bool) -> Self {
        Self { from: shown.then(Instant::now), is_plain: shown && !io::stderr().is_terminal() }
    }

    /// Makes bars that are drawn on a terminal only, if the work takes longer than two seconds.
    pub fn when_slow() -> Self {
        let from = io::stderr().is_terminal().then(|| Instant::now() + PATIENCE);
        Self { from, is_plain: false }
    }

    /// Returns a bar for reading a file of `bytes` bytes.
    pub fn reading(self, name: &str, bytes: u64) -> ProgressBar {
        self.bar(bytes, format!("reading {name}"), "{msg} [{bar:30}] {bytes}/{total_bytes}")
    }

    /// Returns a bar for replaying a program through a stack.
    pub(crate) fn stack(self, spec: &StackSpec, program: &Program, passes: u32) -> ProgressBar {
        let operations = program.summary().operations * u64::from(passes);
        self.replaying(operations, format!("replaying {spec}"))
    }

    /// Returns a bar for replaying a program through several stacks at once.
    pub(crate) fn stacks(self, count: usize, program: &Program, passes: u32) -> ProgressBar {
        let operations = program.summary().operations * u64::from(passes) * count as u64;
        self.replaying(operations, format!("replaying {count} stacks"))
    }

    fn replaying(self, operations: u64, message: String) -> ProgressBar {
        self.bar(operations, message, "{msg} [{bar:30}] {human_pos}/{human_len} operations, {eta} left")
    }

    /// Returns a bar for work of unknown length; [`step`](Self::step) names the current step.
    pub fn waiting(self) -> ProgressBar {
        self.bar(0, String::new(), "{spinner} {msg}, {elapsed} in all")
    }

    /// Names the current step of a [`waiting`](Self::waiting) bar.
    pub fn step(self, bar: &ProgressBar, step: &str) {
        let step = plain(step);
        self.line(&step);
        bar.set_message(step);
    }

    /// If there are no bars, prints a step as a line. If the standard error is closed, nothing fails.
    fn line(self, step: &str) {
        if self.is_plain && !step.is_empty() {
            let _ = io::stderr().lock().write_all(format!("{step}\n").as_bytes());
        }
    }

    fn bar(self, length: u64, message: String, template: &str) -> ProgressBar {
        let message = plain(&message);
        self.line(&message);
        let Some(from) = self.from.filter(|_| !self.is_plain) else { return ProgressBar::hidden() };
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

/// Draws the bar after `wait`. A bar that is finished or dropped by then is not drawn.
fn show_later(bar: &ProgressBar, wait: Duration) {
    let bar = bar.downgrade();
    // If the thread cannot start, the only effect is that the bar is missing.
    let _ = thread::Builder::new().name("progress".to_owned()).spawn(move || {
        thread::sleep(wait);
        if let Some(bar) = bar.upgrade().filter(|bar| !bar.is_finished()) {
            show(&bar);
        }
    });
}
