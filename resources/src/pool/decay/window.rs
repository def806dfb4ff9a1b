//! Computes how many bytes a decaying pool keeps, from its recent needs.

use std::collections::VecDeque;
use std::time::Duration;

/// The bytes that the pool needed in each step of the decay's time.
#[derive(Debug)]
pub(super) struct Window {
    time: Duration,
    /// The time of each step and the bytes needed since the previous step, in order.
    needed: VecDeque<(Duration, u64)>,
}

/// Falls from 1 to 0 as `x` rises from 0 to 1, flat at both ends: 1 minus Perlin's smootherstep, which is
/// also jemalloc's decay curve.
fn fading(x: f64) -> f64 {
    1.0 - x * x * x * (x * (x * 6.0 - 15.0) + 10.0)
}

impl Window {
    pub(super) fn new(time: Duration) -> Self {
        Self { time, needed: VecDeque::new() }
    }

    /// Returns the time of the last step.
    pub(super) fn last_step(&self) -> Option<Duration> {
        self.needed.back().map(|(when, _)| *when)
    }

    /// Adds a step that needed `bytes`, and forgets steps before the window.
    pub(super) fn add(&mut self, now: Duration, bytes: u64) {
        self.needed.push_back((now, bytes));
        while self.needed.front().is_some_and(|(when, _)| now.saturating_sub(*when) >= self.time) {
            self.needed.pop_front();
        }
    }

    /// Returns the bytes to keep now: the maximum of the steps' needs, weighted by age. The last step counts
    /// in full, and older steps count less.
    pub(super) fn keep(&self, now: Duration) -> u64 {
        let faded = |&(when, bytes): &(Duration, u64)| {
            let age = now.saturating_sub(when);
            if age.is_zero() {
                bytes
            } else {
                (bytes as f64 * fading(age.div_duration_f64(self.time))) as u64
            }
        };
        self.needed.iter().map(faded).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_bytes_of_an_old_step_fade() {
        let mut window = Window::new(10 * SECOND);
        window.add(SECOND, 1000);
        assert_eq!(window.keep(SECOND), 1000, "all of it at first");
        let mut kept = Vec::new();
        for second in 2..=12 {
            window.add(second * SECOND, 10);
            kept.push(window.keep(second * SECOND));
        }
        assert!(kept.is_sorted_by(|a, b| a >= b), "{kept:?}");
        assert!(kept[0] > 980 && (490..510).contains(&kept[4]) && kept[8] < 20, "{kept:?}");
        assert_eq!(kept[10], 10, "nothing is kept of steps before the window");
        assert!(window.needed.len() <= 11, "steps before the window are forgotten");
    }

    #[test]
    fn bytes_that_are_needed_repeatedly_stay() {
        let mut window = Window::new(10 * SECOND);
        for second in 0..100 {
            window.add(second * SECOND, if second % 4 == 0 { 1000 } else { 0 });
            assert!(window.keep(second * SECOND) > 800, "at {second} s");
        }
    }
}
