//! Measures the time of a workload's steps.

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::setback::Attempt;

/// One in this many steps is timed alone.
const SAMPLE_EVERY: usize = 16;

/// A number of consecutive steps on one thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lap {
    pub(super) start: Instant,
    /// The nanoseconds of the steps, without the time of the measurement itself.
    pub(super) ns: u64,
    pub(super) steps: u64,
}

impl Lap {
    pub(super) fn end(&self) -> Instant {
        self.start + Duration::from_nanos(self.ns)
    }
}

/// Does steps until `count` steps are done or the time `limit` is over. The time of every 16th step is added
/// to `samples`.
#[inline]
pub(super) fn steps(
    count: usize,
    limit: Duration,
    samples: &mut Vec<u64>,
    step: impl FnMut(usize) -> Attempt<()>,
) -> Attempt<Lap> {
    let cost = cost();
    let before = samples.len();
    let (start, done) = run(count, limit, samples, step)?;
    let ns = start.elapsed().as_nanos() as u64;
    let taken = &mut samples[before..];
    taken.iter_mut().for_each(|sample| *sample = sample.saturating_sub(cost.sample_ns));
    let measuring = (taken.len() as f64 * cost.group_ns) as u64;
    Ok(Lap { start, ns: ns.saturating_sub(measuring), steps: done as u64 })
}

#[inline]
fn run(
    count: usize,
    limit: Duration,
    samples: &mut Vec<u64>,
    mut step: impl FnMut(usize) -> Attempt<()>,
) -> Attempt<(Instant, usize)> {
    samples.reserve(count.div_ceil(SAMPLE_EVERY));
    let start = Instant::now();
    let mut done = 0;
    while done < count {
        let before = Instant::now();
        step(done)?;
        let after = Instant::now();
        samples.push((after - before).as_nanos() as u64);
        let group_end = (done + SAMPLE_EVERY).min(count);
        for index in done + 1..group_end {
            step(index)?;
        }
        done = group_end;
        if after - start > limit {
            break;
        }
    }
    Ok((start, done))
}

/// The time that the measurement itself takes. It is subtracted from the results.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// The nanoseconds of the measurement in each sample.
    sample_ns: u64,
    /// The nanoseconds of the measurement in each group of steps that contains a sample.
    group_ns: f64,
}

/// Returns the cost of the measurement. It is measured once on empty steps, as the lowest of several tries.
fn cost() -> Cost {
    static COST: OnceLock<Cost> = OnceLock::new();
    *COST.get_or_init(|| {
        const GROUPS: usize = 2000;
        let mut cost = Cost { sample_ns: u64::MAX, group_ns: f64::MAX };
        let mut samples = Vec::new();
        for _ in 0..10 {
            samples.clear();
            let nothing = |index| {
                black_box(index);
                Ok(())
            };
            // An empty step cannot fail.
            if let Ok((start, _)) = run(GROUPS * SAMPLE_EVERY, Duration::MAX, &mut samples, nothing) {
                let ns = start.elapsed().as_nanos() as f64;
                cost.group_ns = cost.group_ns.min(ns / GROUPS as f64);
                cost.sample_ns = samples.iter().copied().fold(cost.sample_ns, u64::min);
            }
        }
        cost
    })
}

/// Returns the 99th percentile of the samples; 0 if there are none.
pub(super) fn percentile_99(samples: &mut [u64]) -> u64 {
    let index = samples.len() * 99 / 100;
    if samples.is_empty() { 0 } else { *samples.select_nth_unstable(index).1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Setback;

    #[test]
    fn every_step_is_done_once_in_order_and_every_16th_is_a_sample() {
        for count in [0, 1, 16, 17, 1000] {
            let (mut samples, mut seen) = (Vec::new(), Vec::new());
            let lap = steps(count, Duration::MAX, &mut samples, |index| {
                seen.push(index);
                Ok(())
            });
            assert_eq!(lap.unwrap().steps, count as u64);
            assert_eq!(seen, (0..count).collect::<Vec<_>>());
            assert_eq!(samples.len(), count.div_ceil(16));
        }
    }

    #[test]
    fn time_that_is_over_ends_a_lap_after_whole_groups() {
        let lap = steps(1000, Duration::ZERO, &mut Vec::new(), |_| {
            std::thread::sleep(Duration::from_micros(1));
            Ok(())
        });
        assert_eq!(lap.unwrap().steps, 16);
    }

    #[test]
    fn a_step_that_fails_ends_the_lap() {
        let lap = steps(100, Duration::MAX, &mut Vec::new(), |index| {
            if index == 20 { Err(Setback::failed("no memory".to_owned())) } else { Ok(()) }
        });
        assert_eq!(lap.unwrap_err().reason, "no memory");
    }

    #[test]
    fn the_percentile_is_the_rank_it_says() {
        assert_eq!(percentile_99(&mut []), 0);
        assert_eq!(percentile_99(&mut [7]), 7);
        let mut samples: Vec<u64> = (0..1000).rev().collect();
        assert_eq!(percentile_99(&mut samples), 990);
    }
}
