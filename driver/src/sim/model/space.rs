//! The mappings from addresses to physical memory, and the device capacity in use.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::collections::hash_map::Entry;
use std::ops::Range;

use millpond_core::DriverError;
use millpond_core::driver::{MemPool, PhysicalHandle};
use rustc_hash::FxHashMap;
use smallvec::smallvec;

use super::address::AddressSpace;
use super::answer::{Answer, Refusal};
use super::memory::{Piece, Pieces};
use super::pages::SharedPages;
use crate::plain::{self, PAGE};

/// The page size of virtual memory management, and the alignment of large allocations.
pub(crate) const GRANULARITY: u64 = PAGE;

/// Memory of the driver's own pools is rounded up to multiples of this many bytes.
const CHARGE_UNIT: u64 = 512;

/// No two pieces of physical memory share a page of contents.
const PHYSICAL_UNIT: u64 = 64 << 10;

// The simulator's own addresses: 64 TiB from 16 TiB upwards, where no common system places a process's
// memory.
const SMALL: Range<u64> = 0x1000_0000_0000..0x1400_0000_0000;
const LARGE: Range<u64> = 0x1400_0000_0000..0x5000_0000_0000;

/// The most devices of a machine; they share the addresses.
pub(crate) const MOST_DEVICES: usize = 16;

/// The part of an address range that belongs to one device.
fn part_of(range: Range<u64>, index: usize) -> Range<u64> {
    let bytes = (range.end - range.start) / MOST_DEVICES as u64;
    let start = range.start + index as u64 * bytes;
    start..start + bytes
}

/// The device of a machine that owns this address.
pub(crate) fn slice_of(address: u64) -> Option<usize> {
    (0..MOST_DEVICES)
        .find(|index| [SMALL, LARGE].into_iter().any(|range| part_of(range, *index).contains(&address)))
}

/// The use of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    Plain,
    Managed,
    /// Pinned memory: allocated by the simulator, or registered by the program.
    Host {
        registered: bool,
    },
    /// Memory of the system's allocator.
    Pageable,
    Pool(MemPool),
    /// Another address of an exported pool's allocation, imported into this pool.
    Imported(MemPool),
    /// Mapped by virtual memory management.
    Virtual(PhysicalHandle),
    /// Another address of an allocation, opened through a handle.
    Ipc,
}

/// A range of addresses with memory behind it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    pub(crate) end: u64,
    pub(crate) physical: u64,
    /// The real address behind it, for memory that the host can see; otherwise 0.
    pub(crate) host: usize,
    pub(crate) accessible: bool,
    pub(crate) purpose: Purpose,
    /// The number of the allocation, unique for the life of the device.
    pub(crate) generation: u64,
}

impl Mapping {
    /// The whole mapping that starts here.
    pub(crate) const fn piece(&self, start: u64) -> Piece {
        let several = matches!(self.purpose, Purpose::Virtual(_) | Purpose::Ipc | Purpose::Imported(_));
        let via = if several { start } else { 0 };
        Piece { physical: self.physical, bytes: self.end - start, host: self.host, via }
    }
}

/// The starts of the mappings in order.
///
/// Most programs never need the order. So changes are only recorded, and applied when the order is needed.
#[derive(Debug, Default)]
struct Starts {
    sorted: BTreeSet<u64>,
    /// The starts at which mappings began or ended since then.
    changed: Vec<u64>,
    /// Too many changes to record: `sorted` is invalid.
    is_stale: bool,
}

impl Starts {
    /// Records that a mapping begins or ends; `mappings` is their number.
    fn note(&mut self, start: u64, mappings: usize) {
        if self.is_stale {
            return;
        }
        self.changed.push(start);
        // From here on, sorting all of them is as cheap.
        if self.changed.len() > 64 + mappings {
            self.is_stale = true;
            self.changed.clear();
        }
    }

    fn up_to_date(&mut self, mappings: &FxHashMap<u64, Mapping>) -> &BTreeSet<u64> {
        if std::mem::take(&mut self.is_stale) {
            self.sorted = mappings.keys().copied().collect();
        }
        for start in self.changed.drain(..) {
            if mappings.contains_key(&start) {
                self.sorted.insert(start);
            } else {
                self.sorted.remove(&start);
            }
        }
        &self.sorted
    }
}

/// Addresses, mappings and capacity.
#[derive(Debug)]
pub(crate) struct Space {
    mappings: FxHashMap<u64, Mapping>,
    starts: RefCell<Starts>,
    small: AddressSpace,
    large: AddressSpace,
    shared: SharedPages,
    next_physical: u64,
    next_generation: u64,
    capacity: u64,
    used: u64,
    peak: u64,
    live: u64,
}

impl Space {
    /// A space of `capacity` bytes. Addresses are given from the lower end or from the upper one. `slice` is
    /// the device's index in its machine.
    pub(crate) fn new(capacity: u64, from_above: bool, slice: Option<usize>) -> Self {
        let part = |range: Range<u64>| slice.map_or(range.clone(), |index| part_of(range, index));
        let (small, large) = (part(SMALL), part(LARGE));
        Self {
            mappings: FxHashMap::default(),
            starts: RefCell::default(),
            small: AddressSpace::new(small.start, small.end, CHARGE_UNIT, from_above),
            large: AddressSpace::new(large.start, large.end, GRANULARITY, from_above),
            shared: SharedPages::new(from_above),
            next_physical: PHYSICAL_UNIT,
            next_generation: 0,
            capacity,
            used: 0,
            peak: 0,
            live: 0,
        }
    }

    // --- Capacity ---

    pub(crate) const fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(crate) const fn used(&self) -> u64 {
        self.used
    }

    pub(crate) const fn peak(&self) -> u64 {
        self.peak
    }

    /// The bytes of live allocations, each rounded up to a multiple of 512.
    pub(crate) const fn live(&self) -> u64 {
        self.live
    }

    /// Counts an allocation that takes no device memory.
    pub(crate) const fn add_live(&mut self, bytes: u64) {
        self.live += bytes.next_multiple_of(CHARGE_UNIT);
    }

    /// Undoes [`add_live`](Self::add_live).
    pub(crate) const fn remove_live(&mut self, bytes: u64) {
        self.live -= bytes.next_multiple_of(CHARGE_UNIT);
    }

    /// Takes an allocation of `bytes`, rounded up to 512, from the capacity.
    pub(crate) fn charge(&mut self, bytes: u64) -> Answer<()> {
        let rounded = bytes.checked_next_multiple_of(CHARGE_UNIT).unwrap_or(u64::MAX);
        self.take(rounded, bytes)?;
        self.add_live(bytes);
        Ok(())
    }

    /// Returns the capacity that [`charge`](Self::charge) took for `bytes`.
    pub(crate) const fn credit(&mut self, bytes: u64) {
        self.used -= bytes.next_multiple_of(CHARGE_UNIT);
        self.remove_live(bytes);
    }

    /// Takes bytes from the capacity, for a request of `asked` bytes.
    fn take(&mut self, bytes: u64, asked: u64) -> Answer<()> {
        let free = self.capacity - self.used;
        if bytes <= free {
            self.used += bytes;
            self.peak = self.peak.max(self.used);
            return Ok(());
        }
        let in_pages =
            if bytes <= asked { String::new() } else { format!(", which need {bytes} bytes of pages") };
        let text = format!("{asked} bytes requested{in_pages}; {free} of {} bytes free", self.capacity);
        Err(Refusal::new(DriverError::OUT_OF_MEMORY, text))
    }

    // --- Plain memory ---

    /// The address of a block of plain memory, and the bytes of pages that it takes from the device: 0 if the
    /// block fits into a shared page.
    pub(crate) fn allocate_plain(&mut self, bytes: u64) -> Answer<(u64, u64)> {
        let (start, taken) = if !plain::shares(bytes) {
            let taken = plain::own_pages(bytes);
            (self.new_pages(taken, bytes)?, taken)
        } else if let Some(start) = self.shared.allocate(bytes) {
            (start, 0)
        } else {
            let page = self.new_pages(PAGE, bytes)?;
            (self.shared.allocate_in_new(page, bytes), PAGE)
        };
        self.add_live(bytes);
        Ok((start, taken))
    }

    fn new_pages(&mut self, pages_bytes: u64, bytes: u64) -> Answer<u64> {
        self.take(pages_bytes, bytes)?;
        self.reserve(pages_bytes, 0).inspect_err(|_| self.used -= pages_bytes)
    }

    /// Frees a block of [`allocate_plain`](Self::allocate_plain) and returns the bytes of pages that return
    /// to the device.
    pub(crate) fn free_plain(&mut self, start: u64, bytes: u64) -> u64 {
        self.remove_live(bytes);
        let (first, taken) = if plain::shares(bytes) {
            let Some(page) = self.shared.free(start, bytes) else { return 0 };
            (page, PAGE)
        } else {
            (start, plain::own_pages(bytes))
        };
        self.unreserve(first, taken);
        self.used -= taken;
        taken
    }

    // --- Addresses ---

    /// Reserves addresses: ranges below 2 MiB at multiples of 512, others at multiples of 2 MiB.
    pub(crate) fn reserve(&mut self, bytes: u64, alignment: u64) -> Answer<u64> {
        let found = if bytes.max(alignment) < GRANULARITY {
            self.small.allocate(bytes, alignment)
        } else {
            self.large.allocate(bytes, alignment)
        };
        let full = || {
            Refusal::new(
                DriverError::OUT_OF_MEMORY,
                "the simulated address space has no free range of this size",
            )
        };
        found.ok_or_else(full)
    }

    /// Ends a reservation of `bytes` bytes.
    pub(crate) fn unreserve(&mut self, start: u64, bytes: u64) {
        if SMALL.contains(&start) {
            self.small.free(start, bytes);
        } else {
            self.large.free(start, bytes);
        }
    }

    /// New physical memory. Its place is never reused.
    pub(crate) fn new_physical(&mut self, bytes: u64) -> u64 {
        let physical = self.next_physical;
        self.next_physical = physical.saturating_add(bytes.next_multiple_of(PHYSICAL_UNIT));
        physical
    }

    // --- Mappings ---

    /// Maps memory to addresses.
    pub(crate) fn map(&mut self, start: u64, bytes: u64, physical: u64, host: usize, purpose: Purpose) {
        self.next_generation += 1;
        let mapping = Mapping {
            end: start + bytes,
            physical,
            host,
            accessible: !matches!(purpose, Purpose::Virtual(_)),
            purpose,
            generation: self.next_generation,
        };
        self.mappings.insert(start, mapping);
        self.starts.get_mut().note(start, self.mappings.len());
    }

    /// Removes the mappings that end with the context.
    pub(crate) fn take_mappings_of_context(&mut self) -> Vec<(u64, Mapping)> {
        let stays = |mapping: &Mapping| matches!(mapping.purpose, Purpose::Pool(_) | Purpose::Virtual(_));
        let mut gone: Vec<_> = self.mappings.extract_if(|_, mapping| !stays(mapping)).collect();
        gone.sort_unstable_by_key(|(start, _)| *start);
        for (start, _) in &gone {
            self.starts.get_mut().note(*start, self.mappings.len());
        }
        gone
    }

    pub(crate) fn unmap(&mut self, start: u64) -> Option<Mapping> {
        self.unmap_if(start, |_| true)
    }

    /// Does the same as [`unmap`](Self::unmap), if `is_meant` selects the mapping's purpose.
    pub(crate) fn unmap_if(&mut self, start: u64, is_meant: impl FnOnce(Purpose) -> bool) -> Option<Mapping> {
        match self.mappings.entry(start) {
            Entry::Occupied(mapping) if is_meant(mapping.get().purpose) => {
                let mapping = mapping.remove();
                self.starts.get_mut().note(start, self.mappings.len());
                Some(mapping)
            }
            _ => None,
        }
    }

    /// The mapping that starts exactly here.
    pub(crate) fn at(&self, start: u64) -> Option<&Mapping> {
        self.mappings.get(&start)
    }

    pub(crate) fn at_mut(&mut self, start: u64) -> Option<&mut Mapping> {
        self.mappings.get_mut(&start)
    }

    /// Makes all memory that a pool has handed out accessible to the device, or inaccessible.
    pub(crate) fn set_accessible(&mut self, pool: MemPool, accessible: bool) {
        let of_pool = self.mappings.values_mut().filter(|mapping| mapping.purpose == Purpose::Pool(pool));
        of_pool.for_each(|mapping| mapping.accessible = accessible);
    }

    /// The mapping that holds this address.
    pub(crate) fn holding(&self, address: u64) -> Option<(u64, &Mapping)> {
        let start = if self.mappings.contains_key(&address) { address } else { self.last_before(address)? };
        let mapping = self.mappings.get(&start)?;
        (address < mapping.end).then_some((start, mapping))
    }

    /// The start of the last mapping that begins below an address.
    fn last_before(&self, address: u64) -> Option<u64> {
        self.starts.borrow_mut().up_to_date(&self.mappings).range(..address).next_back().copied()
    }

    /// The mappings that overlap a range, in order.
    pub(crate) fn within(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &Mapping)> {
        let mut starts = self.starts.borrow_mut();
        let starts = starts.up_to_date(&self.mappings);
        let before = starts.range(..range.start).next_back();
        let found: Vec<u64> = before.into_iter().chain(starts.range(range.clone())).copied().collect();
        let mappings = found.into_iter().filter_map(|start| Some((start, self.mappings.get(&start)?)));
        mappings.filter(move |(_, mapping)| mapping.end > range.start)
    }

    /// The memory behind a range, if all of it is accessible and in one allocation. Adjacent mappings of
    /// virtual memory management count as one.
    pub(crate) fn translate(&self, start: u64, bytes: u64) -> Option<Pieces> {
        let (first, mapping) = self.holding(start)?;
        let end = start.checked_add(bytes)?;
        if !mapping.accessible {
            return None;
        }
        let mut piece = mapping.piece(first);
        piece.advance(start - first);
        if end <= mapping.end {
            return Some(smallvec![Piece { bytes, ..piece }]);
        }
        let mut pieces: Pieces = smallvec![piece];
        let mut at = mapping.end;
        while at < end && matches!(mapping.purpose, Purpose::Virtual(_)) {
            let next = self.at(at)?;
            if !next.accessible || !matches!(next.purpose, Purpose::Virtual(_)) {
                return None;
            }
            let piece = next.piece(at);
            pieces.push(Piece { bytes: piece.bytes.min(end - at), ..piece });
            at = next.end;
        }
        (at >= end).then_some(pieces)
    }

    /// The number of mappings, without those from virtual memory management.
    pub(crate) fn live_mappings(&self) -> usize {
        self.mappings.values().filter(|mapping| !matches!(mapping.purpose, Purpose::Virtual(_))).count()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::sim::model::rng::Rng;

    /// The naive model is an ordered map. Between two queries, few starts change, or more than are recorded.
    #[test]
    fn mappings_are_found_in_order_however_many_changed_since_the_last_question() {
        const UNIT: u64 = 512;
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut space = Space::new(1 << 30, false, None);
            let mut model: BTreeMap<u64, u64> = BTreeMap::new();
            for _ in 0..100 {
                let changes = 1 << rng.below(10);
                for _ in 0..changes {
                    let start = UNIT * rng.below(100);
                    let end = start + 1 + rng.below(UNIT);
                    if model.remove(&start).is_some() {
                        assert_eq!(
                            space.unmap_if(start, |purpose| purpose == Purpose::Managed).map(drop),
                            None
                        );
                        assert!(space.unmap(start).is_some());
                    } else {
                        model.insert(start, end);
                        space.map(start, end - start, 0, 0, Purpose::Plain);
                    }
                }
                let from = UNIT * rng.below(100) + rng.below(UNIT);
                let to = from + UNIT * rng.below(5);
                let before = model.range(..=from).next_back().filter(|(_, end)| **end > from);
                let found = space.holding(from).map(|(start, mapping)| (start, mapping.end));
                assert_eq!(found, before.map(|(start, end)| (*start, *end)), "seed {seed}");
                let overlap = model.iter().filter(|(start, end)| **end > from && **start < to);
                let expected: Vec<_> = overlap.map(|(start, end)| (*start, *end)).collect();
                let found: Vec<_> =
                    space.within(from..to).map(|(start, mapping)| (start, mapping.end)).collect();
                assert_eq!(found, expected, "seed {seed}");
            }
        }
    }
}
