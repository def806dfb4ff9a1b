//! Hands out reserved addresses.

use std::collections::BTreeMap;

/// Reserved addresses, taken and free.
///
/// Addresses cost next to nothing (a reservation of 64 TiB takes a microsecond), but the first mapping in an
/// aligned 512 MiB costs half as much again. So taken addresses are kept close together.
#[derive(Debug, Default)]
pub(super) struct Space {
    /// Base and bytes, in the order in which they were reserved.
    reservations: Vec<(u64, u64)>,
    /// Free ranges by base. Neighbours of one reservation are joined.
    free: BTreeMap<u64, u64>,
}

impl Space {
    /// Adds a reservation. All of it is free except the last `guard` bytes, which are never used.
    pub(super) fn add(&mut self, base: u64, bytes: u64, guard: u64) {
        self.reservations.push((base, bytes));
        self.free.insert(base, bytes - guard);
    }

    pub(super) fn reservations(&self) -> &[(u64, u64)] {
        &self.reservations
    }

    /// Takes the lowest free range that is large enough.
    pub(super) fn take_lowest(&mut self, bytes: u64) -> Option<u64> {
        let base = self.free.iter().find(|(_, free)| **free >= bytes).map(|(base, _)| *base)?;
        self.take_at(base, bytes).then_some(base)
    }

    /// Takes the start of the largest free range, which leaves the most contiguous addresses behind it.
    pub(super) fn take_roomiest(&mut self, bytes: u64) -> Option<u64> {
        let (base, free) =
            self.free.iter().max_by_key(|(_, free)| **free).map(|(base, free)| (*base, *free))?;
        (free >= bytes && self.take_at(base, bytes)).then_some(base)
    }

    /// Takes this range, if a free range starts there and is large enough.
    pub(super) fn take_at(&mut self, base: u64, bytes: u64) -> bool {
        let Some(free) = self.free.get(&base).copied().filter(|free| *free >= bytes) else { return false };
        self.free.remove(&base);
        if free > bytes {
            self.free.insert(base + bytes, free - bytes);
        }
        true
    }

    fn reservation_of(&self, addr: u64) -> Option<usize> {
        self.reservations.iter().position(|(base, bytes)| addr >= *base && addr - base < *bytes)
    }

    /// Frees a range.
    pub(super) fn free(&mut self, mut base: u64, mut bytes: u64) {
        let reservation = self.reservation_of(base);
        debug_assert!(reservation.is_some());
        let next = self.free.get(&(base + bytes)).copied();
        if let Some(next) = next.filter(|_| self.reservation_of(base + bytes) == reservation) {
            self.free.remove(&(base + bytes));
            bytes += next;
        }
        let before = self.free.range(..base).next_back().map(|(base, bytes)| (*base, *bytes));
        if let Some((start, length)) = before
            && start + length == base
            && self.reservation_of(start) == reservation
        {
            (base, bytes) = (start, bytes + length);
        }
        self.free.insert(base, bytes);
    }

    /// Panics if free neighbours are not joined, or if a free range overlaps a range of `taken`. Plans under
    /// way may have taken more.
    pub(super) fn validate(&self, mut taken: Vec<(u64, u64)>) {
        for ((base, bytes), next) in self.free.iter().zip(self.free.keys().skip(1)) {
            let is_one = base + bytes == *next && self.reservation_of(*base) == self.reservation_of(*next);
            assert!(!is_one, "free ranges before and after {next:#x} are apart");
        }
        taken.extend(self.free.iter().map(|(base, bytes)| (*base, *bytes)));
        taken.sort_unstable();
        for pair in taken.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "address ranges overlap: {pair:x?}");
        }
        for (base, bytes) in taken {
            let (start, length) = self.reservations[self.reservation_of(base).expect("a range is reserved")];
            assert!(base + bytes <= start + length, "a range exceeds its reservation");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_ranges_join() {
        let mut space = Space::default();
        space.add(100, 110, 10);
        space.add(210, 50, 0);
        assert_eq!(space.take_roomiest(40), Some(100));
        assert_eq!(space.take_lowest(50), Some(140));
        assert_eq!(space.take_lowest(50), Some(210));
        assert_eq!(space.take_lowest(11), None);
        space.free(210, 50);
        space.free(140, 50);
        assert!(!space.take_at(140, 70), "the guard is not handed out");
        assert!(space.take_at(140, 60));
        assert!(!space.take_at(100, 1));
        space.free(140, 60);
        space.free(100, 40);
        space.validate(Vec::new());
        assert!(space.take_at(100, 40) && space.take_at(140, 60));
        space.free(100, 40);
        space.free(140, 60);
        space.validate(Vec::new());
        assert_eq!(space.free, BTreeMap::from([(100, 100), (210, 50)]));
    }

    /// The roomiest range leaves the most addresses after the taken ones; the lowest range keeps taken
    /// addresses together.
    #[test]
    fn ranges_are_taken_from_the_largest_or_the_lowest() {
        let mut space = Space::default();
        space.add(1000, 50, 0);
        space.add(2000, 90, 0);
        space.add(3000, 70, 0);
        assert_eq!(space.take_roomiest(91), None);
        assert_eq!((space.take_roomiest(30), space.take_roomiest(10)), (Some(2000), Some(3000)));
        assert_eq!((space.take_lowest(50), space.take_lowest(60)), (Some(1000), Some(2030)));
        assert_eq!(space.take_lowest(61), None);
        assert_eq!(space.free, BTreeMap::from([(3010, 60)]));
        space.validate(vec![(1000, 50), (2000, 90), (3000, 10)]);
    }

    /// Free ranges join with both neighbours of their own reservation, and with no other range.
    #[test]
    fn neighbours_of_two_reservations_stay_apart() {
        let mut space = Space::default();
        space.add(100, 100, 0);
        space.add(200, 100, 0);
        for base in [100, 150, 200, 250] {
            assert_eq!(space.take_lowest(50), Some(base));
        }
        for base in [150, 200, 100, 250] {
            space.free(base, 50);
        }
        assert_eq!(space.free, BTreeMap::from([(100, 100), (200, 100)]));
        space.validate(Vec::new());
    }

    #[test]
    #[should_panic(expected = "are apart")]
    fn validate_finds_free_neighbours_of_one_reservation() {
        let mut space = Space::default();
        space.add(100, 100, 50);
        space.free.insert(150, 50);
        space.validate(Vec::new());
    }

    #[test]
    #[should_panic(expected = "address ranges overlap")]
    fn validate_finds_a_range_that_is_free_and_taken() {
        let mut space = Space::default();
        space.add(100, 100, 0);
        space.validate(vec![(150, 10)]);
    }

    #[test]
    #[should_panic(expected = "exceeds its reservation")]
    fn validate_finds_a_range_beyond_its_reservation() {
        let mut space = Space::default();
        space.add(100, 100, 50);
        space.validate(vec![(150, 51)]);
    }
}
