//! The bytes that a process takes on each device, and the limit on them.

use std::ffi::c_int;

use rustc_hash::FxHashMap;

/// The driver takes device memory from the device in pieces of this size.
const PIECE: u64 = 2 << 20;

/// Blocks below this size share pieces.
const LARGE: u64 = 1 << 20;

/// Small blocks have sizes that are multiples of this size.
const UNIT: u64 = 512;

/// The sums of one device, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    /// Whole pieces.
    large: u64,
    /// Blocks that share pieces.
    small: u64,
}

impl Sums {
    fn taken(self) -> u64 {
        self.large.saturating_add(self.small.next_multiple_of(PIECE))
    }

    /// Returns the sums with a further block.
    fn with(self, bytes: u64) -> Self {
        match bytes {
            LARGE.. => Self { large: self.large.saturating_add(pieces(bytes)), ..self },
            _ => Self { small: self.small.saturating_add(bytes.next_multiple_of(UNIT)), ..self },
        }
    }

    fn without(self, bytes: u64) -> Self {
        match bytes {
            LARGE.. => Self { large: self.large.saturating_sub(pieces(bytes)), ..self },
            _ => Self { small: self.small.saturating_sub(bytes.next_multiple_of(UNIT)), ..self },
        }
    }
}

/// Returns the bytes of the pieces that a large block takes.
fn pieces(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(PIECE).unwrap_or(u64::MAX)
}

/// The bytes of a process on each device.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    limit: Option<u64>,
    devices: FxHashMap<c_int, Sums>,
}

impl Budget {
    pub(crate) fn new(limit: Option<u64>) -> Self {
        Self { limit, devices: FxHashMap::default() }
    }

    /// Counts a block that is about to be allocated. Returns whether the limit allows it.
    pub(crate) fn take(&mut self, device: c_int, bytes: u64) -> bool {
        let sums = self.devices.entry(device).or_default();
        let with = sums.with(bytes);
        let fits = self.limit.is_none_or(|limit| with.taken() <= limit);
        if fits {
            *sums = with;
        }
        fits
    }

    /// Counts a block that the limit cannot refuse, because the driver has taken it already.
    pub(crate) fn add(&mut self, device: c_int, bytes: u64) {
        let sums = self.devices.entry(device).or_default();
        *sums = sums.with(bytes);
    }

    pub(crate) fn give_back(&mut self, device: c_int, bytes: u64) {
        let sums = self.devices.entry(device).or_default();
        *sums = sums.without(bytes);
    }

    /// Returns the bytes that the process may still take on a device, if there is a limit.
    pub(crate) fn free(&self, device: c_int) -> Option<u64> {
        let taken = self.devices.get(&device).map_or(0, |sums| sums.taken());
        Some(self.limit?.saturating_sub(taken))
    }

    /// Returns the limit in bytes.
    pub(crate) fn limit(&self) -> Option<u64> {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn no_sum_passes_the_limit_and_what_is_given_back_can_be_taken_again() {
        let mut budget = Budget::new(Some(8 * MIB));
        assert!(budget.take(0, 5 * MIB), "three pieces");
        assert_eq!(budget.free(0), Some(2 * MIB));
        assert!(budget.take(0, 1) && !budget.take(0, 2 * MIB), "the small block needs the last piece");
        assert!((0..2).all(|_| budget.take(0, MIB - UNIT)) && !budget.take(0, 1000), "that piece is full");
        assert!(budget.take(1, 8 * MIB), "each device has its own limit");
        budget.give_back(0, 5 * MIB);
        assert!(budget.take(0, 6 * MIB));
        assert!(!budget.take(0, u64::MAX));
        assert_eq!(Budget::new(None).free(0), None);
    }
}
