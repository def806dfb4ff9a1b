//! Measures the time of single calls, and summarises the times.

use std::time::Instant;

use millpond_core::driver::{Driver, DriverResult};

/// The nanoseconds of the calls of one kind, in any order.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples(Vec<u64>);

/// The percentage of slowest samples that are left out. An interrupt made them slow, which is not a cost of
/// the call.
const SLOWEST_PERCENT: usize = 5;

impl Samples {
    pub(super) fn push(&mut self, ns: u64) {
        self.0.push(ns);
    }

    pub(super) fn extend(&mut self, others: &Self) {
        self.0.extend(&others.0);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the typical cost of a call that is one of many: the mean without the slowest samples. The time
    /// of a replay is the sum over its calls. The median is lower than the mean, so it would predict too
    /// little.
    pub(super) fn typical(&self) -> u64 {
        let sorted = self.sorted();
        let kept = sorted.len() - sorted.len() * SLOWEST_PERCENT / 100;
        mean(&sorted[..kept])
    }

    pub(super) fn median(&self) -> u64 {
        self.sorted().get(self.0.len() / 2).copied().unwrap_or(0)
    }

    /// Describes the samples as text for people, in nanoseconds.
    pub(super) fn describe(&self) -> String {
        let sorted = self.sorted();
        let p90 = sorted.get(sorted.len() * 9 / 10).copied().unwrap_or(0);
        let (median, mean, count) = (self.median(), mean(&sorted), sorted.len());
        format!("median {median}, mean {mean}, p90 {p90} of {count}")
    }

    fn sorted(&self) -> Vec<u64> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        sorted
    }
}

fn mean(values: &[u64]) -> u64 {
    values.iter().sum::<u64>() / (values.len() as u64).max(1)
}

/// A driver that times each call separately, as [`CountingDriver`](millpond_driver::CountingDriver) does.
/// Each time includes the time of reading the clock. On a simulated device, the time is virtual.
pub(super) struct Timed<'a> {
    pub(super) driver: &'a dyn Driver,
    /// Memory that is read between two calls of a real driver. It displaces the driver's data from the
    /// processor's caches.
    other_work: Vec<u64>,
}

/// How many bytes are read between two calls. This stands for the work of a pool, and is somewhat more than
/// the nearest cache holds. With 2 MiB, an H200's cuMemCreate took 26 µs, but in a pool's first pass it took
/// only 10 µs.
const OTHER_WORK_BYTES: usize = 64 << 10;

impl<'a> Timed<'a> {
    pub(super) fn new(driver: &'a dyn Driver) -> Self {
        let words = if driver.virtual_time_ns().is_some() { 0 } else { OTHER_WORK_BYTES / 8 };
        Self { driver, other_work: vec![1; words] }
    }

    /// Measures the time of one call in a tight loop.
    pub(super) fn call<T>(
        &self,
        samples: &mut Samples,
        call: impl FnOnce(&dyn Driver) -> DriverResult<T>,
    ) -> DriverResult<T> {
        let virtual_before = self.driver.virtual_time_ns();
        let start = Instant::now();
        let answer = call(self.driver);
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let virtual_ns = self.driver.virtual_time_ns().zip(virtual_before);
        let answer = answer?;
        samples.push(virtual_ns.map_or(ns, |(after, before)| after - before));
        Ok(answer)
    }

    /// Measures the time of one call. If `is_cold` is set, other work comes before the call. Otherwise the
    /// measured calls follow each other.
    pub(super) fn call_after<T>(
        &mut self,
        is_cold: bool,
        samples: &mut Samples,
        call: impl FnOnce(&dyn Driver) -> DriverResult<T>,
    ) -> DriverResult<T> {
        if is_cold { self.call_cold(samples, call) } else { self.call(samples, call) }
    }

    /// Measures the time of one call after other work.
    pub(super) fn call_cold<T>(
        &mut self,
        samples: &mut Samples,
        call: impl FnOnce(&dyn Driver) -> DriverResult<T>,
    ) -> DriverResult<T> {
        // One access for each cache line.
        self.other_work.iter_mut().step_by(8).for_each(|word| *word = word.wrapping_mul(3));
        std::hint::black_box(&self.other_work);
        self.call(samples, call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_slow_calls_change_nothing() {
        let samples = |values: &[u64]| Samples(values.to_vec());
        let mut values = vec![10; 95];
        values.extend([1_000_000; 5]);
        assert_eq!((samples(&values).typical(), samples(&values).median()), (10, 10));
        assert_eq!(samples(&[10, 20, 60]).typical(), 30);
        assert_eq!(samples(&[10, 20, 60]).median(), 20);
        assert_eq!((samples(&[]).typical(), samples(&[]).median()), (0, 0));
        assert!(samples(&[7]).describe().contains("median 7, mean 7, p90 7 of 1"));
    }
}
