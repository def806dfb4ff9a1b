//! The table of handles: physical memory, its primary mappings, and the handle at an address.

use millpond_core::driver::PhysicalHandle;

use crate::store::pages::address_space::Space;

/// An address range of primary mappings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum AddressRange {
    /// Spans of small blocks, and requests below [`DEVICE_PAGE`](crate::tuning::DEVICE_PAGE).
    #[default]
    Small = 0,
    Large = 1,
}

pub(super) const RANGES: usize = 2;

impl AddressRange {
    pub(super) const ALL: [Self; RANGES] = [Self::Small, Self::Large];
}

/// The number of a handle in [`Handles`].
pub(super) type HandleId = u32;

/// The number of an alias in [`Aliases`](crate::store::pages::aliases::Aliases).
pub(super) type AliasId = u32;

/// No handle.
pub(super) const NONE: HandleId = HandleId::MAX;

/// Physical memory, mapped in the primary mapping and in aliases.
#[derive(Clone, Debug)]
pub(super) struct Handle {
    pub(super) physical: PhysicalHandle,
    /// The address of its primary mapping.
    pub(super) primary: u64,
    pub(super) bytes: u64,
    pub(super) range: AddressRange,
    /// Its other mappings: alias, and index in the alias.
    pub(super) aliases: Vec<(AliasId, u32)>,
}

impl Handle {
    pub(super) fn end(&self) -> u64 {
        self.primary + self.bytes
    }
}

/// All handles, by number and by the address of the primary mapping.
#[derive(Debug)]
pub(super) struct Handles {
    table: Vec<Option<Handle>>,
    vacant: Vec<HandleId>,
    granularity: u64,
    /// The base-two logarithm of the granularity.
    shift: u32,
    /// Reservations for primary mappings: base and bytes.
    pub(super) reserved: Vec<(u64, u64)>,
    /// The addresses of each address range.
    pub(super) spaces: [Space; RANGES],
    /// For each reservation: its base, and the handle at each granule, up to the last that was used.
    granules: Vec<(u64, Vec<HandleId>)>,
    /// Bytes of all handles.
    pub(super) bytes: u64,
}

impl Handles {
    pub(super) fn new(granularity: u64) -> Self {
        Self {
            table: Vec::new(),
            vacant: Vec::new(),
            granularity,
            shift: granularity.trailing_zeros(),
            reserved: Vec::new(),
            spaces: Default::default(),
            granules: Vec::new(),
            bytes: 0,
        }
    }

    /// Adds addresses for primary mappings of an address range.
    pub(super) fn add_reservation(&mut self, range: AddressRange, base: u64, bytes: u64) {
        self.spaces[range as usize].add(base, bytes, self.granularity);
        self.granules.push((base, Vec::new()));
    }

    pub(super) fn get(&self, id: HandleId) -> &Handle {
        self.table[id as usize].as_ref().expect("a handle in the tables exists")
    }

    pub(super) fn get_mut(&mut self, id: HandleId) -> &mut Handle {
        self.table[id as usize].as_mut().expect("a handle in the tables exists")
    }

    /// Returns all handles with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (HandleId, &Handle)> {
        (0..).zip(&self.table).filter_map(|(id, handle)| Some((id, handle.as_ref()?)))
    }

    /// Returns a bound above all numbers of handles.
    pub(super) fn numbers(&self) -> usize {
        self.table.len()
    }

    pub(super) fn len(&self) -> usize {
        self.table.len() - self.vacant.len()
    }

    /// Returns the handle whose primary mapping holds the address.
    pub(super) fn at(&self, addr: u64) -> Option<HandleId> {
        let in_reservation = |(base, granules): &(u64, Vec<HandleId>)| {
            granules.get((addr.checked_sub(*base)? >> self.shift) as usize).copied()
        };
        self.granules.iter().find_map(in_reservation).filter(|id| *id != NONE)
    }

    /// Returns the handles whose primary mappings overlap an interval of addresses, by address.
    pub(super) fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (HandleId, &Handle)> {
        let handle = move |addr: u64| (addr < end).then(|| self.at(addr)).flatten();
        std::iter::successors(handle(start), move |id| handle(self.get(*id).end()))
            .map(|id| (id, self.get(id)))
    }

    pub(super) fn add(&mut self, handle: Handle) -> HandleId {
        let (primary, bytes) = (handle.primary, handle.bytes);
        self.bytes += bytes;
        let id = if let Some(id) = self.vacant.pop() {
            self.table[id as usize] = Some(handle);
            id
        } else {
            self.table.push(Some(handle));
            (self.table.len() - 1) as HandleId
        };
        self.set_granules(primary, bytes, id);
        id
    }

    pub(super) fn remove(&mut self, id: HandleId) -> Handle {
        let handle = self.table[id as usize].take().expect("a handle that is removed exists");
        self.vacant.push(id);
        self.bytes -= handle.bytes;
        self.set_granules(handle.primary, handle.bytes, NONE);
        handle
    }

    fn set_granules(&mut self, primary: u64, bytes: u64, id: HandleId) {
        let reservation =
            self.granules.iter_mut().filter(|(base, _)| *base <= primary).max_by_key(|(base, _)| *base);
        let (base, granules) = reservation.expect("a primary mapping lies in a reservation");
        let first = (primary - *base) as usize >> self.shift;
        let end = first + (bytes as usize >> self.shift);
        if granules.len() < end {
            granules.resize(end, NONE);
        }
        granules[first..end].fill(id);
    }

    /// Panics if tables, sums and addresses disagree.
    pub(super) fn validate(&self) {
        let mut bytes = 0;
        for (id, handle) in self.iter() {
            bytes += handle.bytes;
            assert!(
                handle.primary.is_multiple_of(self.granularity)
                    && handle.bytes.is_multiple_of(self.granularity)
            );
            let granules = handle.bytes / self.granularity;
            let all =
                (0..granules).all(|granule| self.at(handle.primary + granule * self.granularity) == Some(id));
            assert!(all, "handle {id} is missing at its primary mapping");
        }
        assert_eq!(bytes, self.bytes, "bytes of the handles");
        let used = self.granules.iter().flat_map(|(_, granules)| granules).filter(|id| **id != NONE).count();
        assert_eq!(used as u64 * self.granularity, bytes, "a granule names a handle that is not there");
        for range in AddressRange::ALL {
            let primaries = self.iter().filter(|(_, handle)| handle.range == range);
            self.spaces[range as usize].validate(primaries.map(|(_, h)| (h.primary, h.bytes)).collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = 2 << 20;

    /// The check of the tables looks at each granule of a handle, not only at the first.
    #[test]
    #[should_panic(expected = "is missing at its primary mapping")]
    fn a_granule_that_names_another_handle_is_found() {
        let mut handles = Handles::new(UNIT);
        let base = 1 << 40;
        handles.add_reservation(AddressRange::Large, base, 16 * UNIT);
        let handle = |at| Handle {
            physical: PhysicalHandle(at),
            primary: base + at * UNIT,
            bytes: 2 * UNIT,
            range: AddressRange::Large,
            aliases: Vec::new(),
        };
        let [first, second] = [0, 2].map(|at| handles.add(handle(at)));
        let named = handles.granules.iter_mut().flat_map(|(_, granules)| granules);
        *named.filter(|id| **id == first).last().expect("it has two") = second;
        handles.validate();
    }

    /// Each address of a primary mapping has its handle. Addresses before it, after it, or in the unused part
    /// of the reservation have none.
    #[test]
    fn an_address_has_the_handle_that_is_mapped_there() {
        let mut handles = Handles::new(UNIT);
        let (first, second) = (1 << 40, (1 << 40) + 16 * UNIT);
        for base in [second, first] {
            handles.add_reservation(AddressRange::Large, base, 16 * UNIT);
        }
        let handle = |primary, units| Handle {
            physical: PhysicalHandle(primary),
            primary,
            bytes: units * UNIT,
            range: AddressRange::Large,
            aliases: Vec::new(),
        };
        let [a, b, c] = [(first + UNIT, 2), (first + 3 * UNIT, 1), (second, 1)]
            .map(|(primary, units)| handles.add(handle(primary, units)));
        for (addr, id) in [
            (first - 1, None),
            (first, None),
            (first + UNIT - 1, None),
            (first + UNIT, Some(a)),
            (first + 3 * UNIT - 1, Some(a)),
            (first + 3 * UNIT, Some(b)),
            (first + 4 * UNIT - 1, Some(b)),
            (first + 4 * UNIT, None),
            (second - 1, None),
            (second, Some(c)),
            (second + UNIT, None),
            (second + 16 * UNIT, None),
        ] {
            assert_eq!(handles.at(addr), id, "{addr:#x}");
        }
        let within = |start, end| handles.within(start, end).map(|(id, _)| id).collect::<Vec<_>>();
        assert_eq!(within(first + UNIT, first + 3 * UNIT), [a]);
        assert_eq!(within(first + 2 * UNIT, first + 3 * UNIT + 1), [a, b]);
        assert_eq!(within(first + UNIT, second + 16 * UNIT), [a, b]);
        assert!(within(first, second).is_empty());
    }
}
