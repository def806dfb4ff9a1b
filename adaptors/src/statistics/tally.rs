//! Counts in one part per thread, and keeps an exact peak.

use millpond_core::{Error, LadderCounts, ResourceStatistics, Result};

use super::counters::{Counter, Counters};
use crate::shards::{All, Guard, Padded, Shards};

/// Counts in parts, one for each thread, with an exact peak.
///
/// The peak is the sum of the parts' allowances, and no part exceeds its allowance. So a thread counts alone
/// while it stays within its allowance, and the sum of all parts stays below the peak. A thread that would
/// exceed its allowance locks all parts. It raises the peak if the sum exceeds the peak, and divides the rest
/// below the peak among the parts again. This is the escrow method (O'Neil, "The escrow transactional
/// method", ACM TODS 11, 1986), for a bound that can rise.
#[derive(Debug)]
pub(crate) struct Tally {
    shards: Shards<Part>,
    /// The levels below the present one. Locked after the parts.
    below: Padded<Vec<Counters>>,
}

/// The counts of one thread in the present level.
#[derive(Default, Debug)]
struct Part {
    bytes: Share,
    allocations: Share,
    failures: u64,
}

/// A thread's share of one quantity.
#[derive(Default, Debug)]
struct Share {
    /// The amount that the thread allocated, minus the amount that it freed, whichever thread allocated the
    /// blocks.
    current: i64,
    /// The most that `current` may reach. The allowances of all threads add up to the peak.
    allowed: i64,
    total: i64,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self { shards: Shards::new(), below: Padded::default() }
    }

    #[inline]
    pub(crate) fn allocated(&self, bytes: u64) {
        let bytes = signed(bytes);
        let mut mine = self.shards.mine();
        if mine.fits(bytes) || self.shards.is_alone() {
            mine.add(bytes);
        } else {
            self.allocated_beyond_share(mine, bytes);
        }
    }

    /// Takes unused allowance from other threads, before it locks all of them.
    #[cold]
    fn allocated_beyond_share(&self, mut mine: Guard<'_, Part>, bytes: i64) {
        let enough = self.shards.visit_others(|other| {
            if !mine.bytes.fits(bytes) {
                mine.bytes.take_half(&mut other.bytes);
            }
            if !mine.allocations.fits(1) {
                mine.allocations.take_half(&mut other.allocations);
            }
            mine.fits(bytes)
        });
        if enough {
            mine.add(bytes);
            return;
        }
        drop(mine);
        let All { mut each, mine, .. } = self.shards.all();
        deal(each.iter_mut().map(|part| &mut part.bytes), mine, bytes);
        deal(each.iter_mut().map(|part| &mut part.allocations), mine, 1);
        each[mine].add(bytes);
    }

    #[inline]
    pub(crate) fn deallocated(&self, bytes: u64) {
        let mut mine = self.shards.mine();
        mine.bytes.subtract(signed(bytes));
        mine.allocations.subtract(1);
    }

    /// Undoes [`deallocated`](Self::deallocated): the block was refused, and stays live.
    #[cold]
    pub(crate) fn not_deallocated(&self, bytes: u64) {
        self.allocated(bytes);
        let mut mine = self.shards.mine();
        mine.bytes.total = mine.bytes.total.saturating_sub(signed(bytes));
        mine.allocations.total = mine.allocations.total.saturating_sub(1);
    }

    pub(crate) fn failed(&self) {
        self.shards.mine().failures += 1;
    }

    pub(super) fn current(&self) -> Counters {
        sum(&self.shards.all())
    }

    pub(super) fn push(&self) -> Counters {
        let mut all = self.shards.all();
        let top = sum(&all);
        set(&mut all, Counters::default());
        self.below.lock().push(top);
        top
    }

    /// Restarts all levels from the live bytes and allocations.
    pub(super) fn clear(&self) {
        let mut all = self.shards.all();
        let mut below = self.below.lock();
        let whole = below.drain(..).rev().fold(sum(&all), |above, level| level.fold(above));
        let anew = |Counter { current, .. }: Counter| Counter { current, peak: current, total: current };
        let (bytes, allocations) = (anew(whole.bytes), anew(whole.allocations));
        set(&mut all, Counters { bytes, allocations, failures: 0 });
    }

    /// Returns the counters as if no level had been pushed.
    fn whole(&self) -> Counters {
        let all = self.shards.all();
        let below = self.below.lock();
        below.iter().rev().fold(sum(&all), |above, level| level.fold(above))
    }

    /// Returns the statistics of `upstream`, or the counts of this tally if the upstream keeps none; adds
    /// `refused` deallocations.
    pub(crate) fn statistics(
        &self,
        upstream: Option<ResourceStatistics>,
        refused: u64,
    ) -> ResourceStatistics {
        let misuses = upstream.map_or(0, |known| known.misuses) + refused;
        let known = upstream.filter(|known| !known.knows_only_misuses());
        known.unwrap_or_else(|| self.as_statistics()).misuses(misuses)
    }

    /// Assumes that the upstream allocates each block with the requested size.
    pub(super) fn as_statistics(&self) -> ResourceStatistics {
        let Counters { bytes, allocations, failures } = self.whole();
        let count = |value: i64| u64::try_from(value).unwrap_or(0);
        let (current, peak) = (count(bytes.current), count(bytes.peak));
        let (blocks, total) = (count(allocations.current), count(allocations.total));
        ResourceStatistics::default()
            .bytes_in_use(current)
            .bytes_requested(current)
            .peak_bytes_in_use(peak)
            .bytes_reserved(current)
            .peak_bytes_reserved(peak)
            .blocks_in_use(blocks)
            .regions(blocks)
            .allocations(total)
            .deallocations(total.saturating_sub(blocks))
            .ladder(LadderCounts::default().grow(total).out_of_memory(failures))
            .is_counted_above(true)
    }

    pub(super) fn pop(&self) -> Result<Counters> {
        let mut all = self.shards.all();
        let below = self.below.lock().pop().ok_or_else(|| {
            Error::invalid_argument("the last level of counters cannot be popped; push one before each pop")
        })?;
        let top = sum(&all);
        set(&mut all, below.fold(top));
        Ok(top)
    }
}

impl Part {
    #[inline]
    fn fits(&self, bytes: i64) -> bool {
        self.bytes.fits(bytes) && self.allocations.fits(1)
    }

    #[inline]
    fn add(&mut self, bytes: i64) {
        self.bytes.add(bytes);
        self.allocations.add(1);
    }
}

impl Share {
    #[inline]
    fn fits(&self, amount: i64) -> bool {
        self.current.saturating_add(amount) <= self.allowed
    }

    #[inline]
    fn add(&mut self, amount: i64) {
        self.current = self.current.saturating_add(amount);
        self.total = self.total.saturating_add(amount);
        self.allowed = self.allowed.max(self.current);
    }

    #[inline]
    fn subtract(&mut self, amount: i64) {
        self.current = self.current.saturating_sub(amount);
    }
}

impl Share {
    /// Takes half of the other part's unused allowance, rounded up. The sum of both stays the same.
    fn take_half(&mut self, other: &mut Self) {
        let left = other.allowed.saturating_sub(other.current);
        let half = left - left / 2;
        if let Some(allowed) = self.allowed.checked_add(half) {
            self.allowed = allowed;
            other.allowed -= half;
        }
    }
}

/// Makes room for `amount` in share number `mine`: raises the peak if needed, and divides the rest evenly.
fn deal<'a>(shares: impl Iterator<Item = &'a mut Share>, mine: usize, amount: i64) {
    let mut shares: Vec<&mut Share> = shares.collect();
    let wide = |sum: fn(&Share) -> i64| shares.iter().map(|share| i128::from(sum(share))).sum::<i128>();
    let wanted = wide(|share| share.current) + i128::from(amount);
    let left = (wide(|share| share.allowed) - wanted).max(0);
    let each = left / shares.len() as i128;
    let odd = left % shares.len() as i128;
    for share in &mut shares {
        share.allowed = clamped(i128::from(share.current) + each);
    }
    shares[mine].allowed = clamped(i128::from(shares[mine].allowed) + odd + i128::from(amount));
}

fn sum(All { each, .. }: &All<'_, Part>) -> Counters {
    let counter = |share: fn(&Part) -> &Share| {
        let wide = |value: fn(&Share) -> i64| {
            clamped(each.iter().map(|part| i128::from(value(share(part)))).sum::<i128>())
        };
        Counter {
            current: wide(|share| share.current),
            peak: wide(|share| share.allowed),
            total: wide(|share| share.total),
        }
    };
    Counters {
        bytes: counter(|part| &part.bytes),
        allocations: counter(|part| &part.allocations),
        failures: each.iter().map(|part| part.failures).sum(),
    }
}

/// Sets the sum to `counters`, all in the calling thread's part.
fn set(All { each, mine, .. }: &mut All<'_, Part>, counters: Counters) {
    let share = |Counter { current, peak, total }| Share { current, allowed: peak, total };
    each.iter_mut().for_each(|part| **part = Part::default());
    *each[*mine] = Part {
        bytes: share(counters.bytes),
        allocations: share(counters.allocations),
        failures: counters.failures,
    };
}

/// Converts a size, and saturates: no block has 2^63 bytes, and a caller's invalid size must not panic or
/// wrap around.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn clamped(wide: i128) -> i64 {
    wide.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}
