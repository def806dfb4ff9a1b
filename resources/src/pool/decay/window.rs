//! How much of what was needed lately is kept.

use std::collections::VecDeque;
use std::time::Duration;

/// What was needed at each tick of a time.
#[derive(Debug)]
pub(super) struct Window {
    time: Duration,
    /// When, and how many bytes; the latest last.
    needed: VecDeque<(Duration, u64)>,
}

/// From 1 to 0 as `x` goes from 0 to 1, flat at both ends: 1 less Perlin's smootherstep, by which jemalloc
/// lets unused pages go.
fn fading(x: f64) -> f64 {
    1.0 - x * x * x * (x * (x * 6.0 - 15.0) + 10.0)
}

impl Window {
    pub(super) fn new(time: Duration) -> Self {
        Self { time, needed: VecDeque::new() }
    }

    /// When something was noted last.
    pub(super) fn last_large(&self) -> Option<Duration> {
        self.needed.back().map(|(when, _)| *when)
    }

    /// Notes how many bytes were needed up to now, and forgets what is too long ago.
    pub(super) fn add(&mut self, now: Duration, bytes: u64) {
        self.needed.push_back((now, bytes));
        while self.needed.front().is_some_and(|(when, _)| now.saturating_sub(*when) >= self.time) {
            self.needed.pop_front();
        }
    }

    /// How many bytes are kept now: as many as the latest tick needed, and of earlier ones the less, the
    /// longer they are ago.
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
    fn what_was_needed_fades() {
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
        assert_eq!(kept[10], 10, "nothing is left of what is longer ago");
        assert!(window.needed.len() <= 11, "what is longer ago is forgotten");
    }

    #[test]
    fn what_is_needed_again_and_again_stays() {
        let mut window = Window::new(10 * SECOND);
        for second in 0..100 {
            window.add(second * SECOND, if second % 4 == 0 { 1000 } else { 0 });
            assert!(window.keep(second * SECOND) > 800, "at {second} s");
        }
    }
}
