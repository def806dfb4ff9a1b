//! Returns memory to the driver: plans, runs and commits releases.

use std::cmp::Reverse;

use millpond_core::DevicePtr;
use millpond_core::driver::{Driver, DriverResult};

use rustc_hash::FxHashSet;

use crate::block_map::ChunkId;
use crate::heap::request::Cursor;
use crate::heap::{Heap, next_size};
use crate::store::pages::driver_calls::Retired;
use crate::store::pages::handles::{AddressRange, RANGES};
use crate::store::pages::handles::{AliasId, Handle, HandleId, Handles};
use crate::store::pages::plan::CALLS_FOR_HANDLE;
use crate::store::pages::policy::target_bytes;
use crate::store::pages::state::Pages;
use crate::stream_order::ANY_STREAM;
use crate::tuning::{CALLS_PER_RELEASE, CHUNKS_COMPARED, FEW_COMPARED, LITTLE};

/// Driver calls of a handle that is released and created again later: the release takes two.
const CALLS_FOR_RETURN: u64 = 2 + CALLS_FOR_HANDLE;

/// Memory that returns to the driver, until [`Pages::commit_release`].
#[derive(Debug)]
#[must_use = "a release must be committed, even if its run failed"]
pub(crate) struct Release {
    retired: Vec<Retired>,
    /// Aliases that lose mappings.
    aliases: Vec<AliasId>,
    /// Reservations to free in the end: base and bytes.
    reservations: Vec<(u64, u64)>,
}

/// An unowned, wholly free handle, and the chunk that it is in.
struct Free {
    range: AddressRange,
    chunk: ChunkId,
    primary: u64,
    bytes: u64,
    id: HandleId,
}

impl Release {
    /// Makes the driver calls, without the pool's lock: unmaps, releases, frees addresses.
    ///
    /// # Errors
    /// The driver's first error. Unless the device is lost, the other handles are released nevertheless; the
    /// next release tries the failed calls again.
    pub(crate) fn run(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        let mut outcome = Ok(());
        for retired in &mut self.retired {
            let done = retired.run(driver);
            if done.as_ref().is_err_and(|error| error.is_sticky()) {
                return done;
            }
            outcome = outcome.and(done);
        }
        if outcome.is_ok() {
            self.reservations.retain(|(base, bytes)| {
                // SAFETY: the reservation is this pool's, which ends, and nothing is mapped there.
                let freed = unsafe { driver.mem_address_free(DevicePtr::new(*base), *bytes) };
                let is_left = freed.is_err();
                if outcome.is_ok() {
                    outcome = freed;
                }
                is_left
            });
        }
        outcome
    }

    /// Returns the bytes that were returned to the driver.
    pub(crate) fn released_bytes(&self) -> u64 {
        self.retired.iter().filter(|retired| retired.is_done()).map(|retired| retired.bytes).sum()
    }
}

impl Pages {
    /// Returns whether the pool holds more than its target, and is quiet.
    pub(crate) fn has_excess(&self) -> bool {
        let reserved = self.held();
        // Each large request asks this: the condition that is seldom true comes first.
        self.used() <= reserved / LITTLE && reserved > self.target_bytes() + self.granularity
    }

    /// Returns whether this many driver calls may be spent after this many operations: whether more are left,
    /// or, where that is less, more than half of those that may be saved.
    pub(crate) fn may_spend(&mut self, calls: u64, operations: u64) -> bool {
        self.note_operations(operations);
        self.budget.available(&self.policy) > calls.min(self.policy.saved_calls / 2)
    }

    fn target_bytes(&self) -> u64 {
        target_bytes(self.peak_live).next_multiple_of(self.granularity)
    }

    /// Plans to release unowned, wholly free handles while the pool holds more than its target, the last of
    /// the address range first: the next peak then starts from contiguous free memory, and what it takes anew
    /// comes in small handles while the pool is near its target. (Without: bytes 1.065 instead of 1.060, gpt
    /// 1.045 instead of 1.031, resnet 1.017 instead of 1.013, at 12 copies and 60 passes.)
    ///
    /// `calls_of_look` is the number of driver calls that the completion check of all streams took.
    pub(crate) fn plan_excess(&mut self, calls_of_look: u64) -> Option<Release> {
        self.budget.spend(calls_of_look);
        let calls = self.budget.available(&self.policy).min(CALLS_PER_RELEASE as u64);
        let release = self.plan_release_by(self.target_bytes(), calls as usize, |free| Reverse(free.primary));
        let handles = release.as_ref().map_or(0, |release| release.retired.len() as u64);
        self.budget.spend(handles * CALLS_FOR_RETURN);
        release
    }

    /// Plans to release unowned, wholly free handles, large ones first, while at least `keep_bytes` stay and
    /// about `most_calls` driver calls suffice. Where there are too many alias mappings, free handles that
    /// stay leave their aliases. Returns `None` where there is nothing to do.
    ///
    /// Releases that failed before are tried again first, and alone: one may hold a mapping of a handle that
    /// is free now.
    pub(super) fn plan_release_of(&mut self, keep_bytes: u64, most_calls: usize) -> Option<Release> {
        self.plan_release_by(keep_bytes, most_calls, |free| (Reverse(free.bytes), Reverse(free.primary)))
    }

    /// Does what [`plan_release_of`](Self::plan_release_of) does, with the handles in the order of `key`.
    fn plan_release_by<K: Ord>(
        &mut self,
        keep_bytes: u64,
        most_calls: usize,
        key: impl FnMut(&Free) -> K,
    ) -> Option<Release> {
        let retired = std::mem::take(&mut self.unfinished);
        let mut release = Release { retired, aliases: Vec::new(), reservations: Vec::new() };
        if !release.retired.is_empty() {
            return Some(release);
        }
        let mut free = self.free_handles();
        free.sort_unstable_by_key(key);
        let mut left = self.handles.bytes.saturating_sub(keep_bytes);
        let mut chosen = Vec::new();
        let mut calls = 0;
        let mut kept = FxHashSet::default();
        for free in free {
            let calls_of_handle = self.handles.get(free.id).aliases.len() + 2;
            // A handle that takes more calls than `most_calls` is released, too, but alone.
            if free.bytes <= left && (calls == 0 || calls + calls_of_handle <= most_calls) {
                calls += calls_of_handle;
                left -= free.bytes;
                chosen.push(free);
            } else {
                kept.insert(free.id);
            }
        }
        if self.has_too_many_mappings() {
            self.thin_aliases(&kept, most_calls.saturating_sub(calls), &mut release);
        }
        // The last handle of a chunk first: the bytes before it keep the chunk's number.
        chosen.sort_unstable_by_key(|free| Reverse(free.primary));
        for free in chosen {
            self.retire(&free, &mut release);
        }
        (!release.retired.is_empty()).then_some(release)
    }

    /// Plans to release one unowned, wholly free handle, if at least `keep_bytes` stay, among a few free
    /// chunks from the cursor on. A release that failed before is tried again first.
    pub(crate) fn plan_release_step(&mut self, keep_bytes: u64, at: &mut Cursor) -> Option<Release> {
        let mut release = Release { retired: Vec::new(), aliases: Vec::new(), reservations: Vec::new() };
        if let Some(retired) = self.unfinished.pop() {
            release.retired.push(retired);
            return Some(release);
        }
        let left = self.handles.bytes.saturating_sub(keep_bytes);
        if left < self.granularity {
            at.is_at_end = true;
            return None;
        }
        let range = AddressRange::ALL[at.part];
        let (mut seen, mut last, mut found) = (0, 0, None);
        for (chunk, extent) in
            self.heap(range).free_from(ANY_STREAM, at.bytes.max(self.granularity)).take(CHUNKS_COMPARED)
        {
            (seen, last) = (seen + 1, extent.bytes);
            let end = extent.addr + extent.bytes;
            // The first handle may lie in the free extent in part.
            let mut handles = self.handles.within(extent.addr, end).take(FEW_COMPARED);
            let whole = handles.find(|(_, handle)| {
                handle.primary >= extent.addr && handle.end() <= end && handle.bytes <= left
            });
            found = whole.map(|(id, handle)| Free {
                range,
                chunk,
                primary: handle.primary,
                bytes: handle.bytes,
                id,
            });
            if found.is_some() {
                break;
            }
        }
        let Some(free) = found else {
            if seen < CHUNKS_COMPARED {
                at.end_part(RANGES)
            } else {
                at.bytes = next_size(last)
            }
            return None;
        };
        // The rest of the free extent is smaller, so it comes earlier.
        at.bytes = 0;
        self.retire(&free, &mut release);
        Some(release)
    }

    /// Plans to unmap free handles from aliases where there are too many mappings, which slow searches down.
    pub(crate) fn plan_tidying(&mut self) -> Option<Release> {
        if self.has_too_many_mappings() { self.plan_release_of(u64::MAX, CALLS_PER_RELEASE) } else { None }
    }

    fn has_too_many_mappings(&self) -> bool {
        self.aliases.mappings > self.policy.mappings
    }

    /// Unmaps free handles from aliases, the least recently used first, down to three quarters of the
    /// mappings kept.
    fn thin_aliases(&mut self, free: &FxHashSet<HandleId>, most_calls: usize, release: &mut Release) {
        let surplus = (self.aliases.mappings - self.policy.mappings / 4 * 3).min(most_calls);
        let mut aliases: Vec<(u64, AliasId)> =
            self.aliases.iter().map(|(id, alias)| (alias.used, id)).collect();
        aliases.sort_unstable();
        let places = aliases.into_iter().flat_map(|(_, id)| {
            let maps = self.aliases.get(id).maps.iter().enumerate();
            maps.filter(|(_, map)| free.contains(&map.handle)).map(move |(place, _)| (id, place as u32))
        });
        let places: Vec<(AliasId, u32)> = places.take(surplus).collect();
        let remove = |(alias, place)| self.remove_mapping(alias, place, &mut release.aliases);
        let mappings: Vec<(u64, u64)> = places.into_iter().map(remove).collect();
        if !mappings.is_empty() {
            release.retired.push(Retired { physical: None, bytes: 0, mappings, primary: None });
        }
    }

    fn free_handles(&self) -> Vec<Free> {
        let mut free = Vec::new();
        for range in AddressRange::ALL {
            for (chunk, extent) in self.heap(range).free_from(ANY_STREAM, self.granularity) {
                let end = extent.addr + extent.bytes;
                for (id, handle) in self.handles.within(extent.addr, end) {
                    if handle.primary >= extent.addr && handle.end() <= end {
                        free.push(Free { range, chunk, primary: handle.primary, bytes: handle.bytes, id });
                    }
                }
            }
        }
        free
    }

    /// Removes a mapping of an alias from the tables, and returns its address and bytes.
    fn remove_mapping(&mut self, alias: AliasId, place: u32, aliases: &mut Vec<AliasId>) -> (u64, u64) {
        if !aliases.contains(&alias) {
            self.aliases.get_mut(alias).busy += 1;
            aliases.push(alias);
        }
        let map = self.aliases.get(alias).maps[place as usize];
        self.handles.get_mut(map.handle).aliases.retain(|other| *other != (alias, place));
        (self.aliases.forget(alias, place as usize), map.bytes)
    }

    fn retire(&mut self, free: &Free, release: &mut Release) {
        let mut mappings = vec![(free.primary, free.bytes)];
        for (alias, place) in self.handles.get(free.id).aliases.clone() {
            mappings.push(self.remove_mapping(alias, place, &mut release.aliases));
        }
        self.heap_mut(free.range).remove_range(free.chunk, free.primary, free.bytes);
        let Handle { physical, bytes, primary, range, .. } = self.handles.remove(free.id);
        self.retiring += bytes;
        release.retired.push(Retired {
            physical: Some(physical),
            bytes,
            mappings,
            primary: Some((range, primary)),
        });
    }

    /// Commits a release, however far its run came: frees its addresses, and keeps what failed for the next
    /// release.
    pub(crate) fn commit_release(&mut self, release: Release) {
        let Release { retired, aliases, .. } = release;
        let is_clean = retired.iter().all(Retired::is_done);
        for retired in retired {
            if !retired.is_done() {
                self.unfinished.push(retired);
                continue;
            }
            self.retiring -= retired.bytes;
            if let Some((range, primary)) = retired.primary {
                self.handles.spaces[range as usize].free(primary, retired.bytes);
            }
        }
        aliases.into_iter().for_each(|alias| self.aliases.end_work(alias, is_clean));
    }

    /// Plans to release everything, in use or not, when the pool ends. Afterwards only this may be called,
    /// again where the release failed.
    pub(crate) fn release_all(&mut self) -> Release {
        let mut retired = std::mem::take(&mut self.unfinished);
        let ids: Vec<HandleId> = self.handles.iter().map(|(id, _)| id).collect();
        for id in ids {
            let Handle { physical, bytes, primary, aliases, .. } = self.handles.remove(id);
            let mut mappings = vec![(primary, bytes)];
            mappings.extend(
                aliases.iter().map(|(alias, place)| (self.aliases.get(*alias).addr(*place as usize), bytes)),
            );
            retired.push(Retired { physical: Some(physical), bytes, mappings, primary: None });
        }
        let reserved = self.handles.reserved.iter().chain(self.aliases.space.reservations());
        let reservations = reserved.copied().collect();
        self.aliases = Default::default();
        self.handles = Handles::new(self.granularity);
        self.heaps = [(); RANGES].map(|()| Heap::new(CHUNKS_COMPARED));
        (self.planned, self.retiring, self.extra_pieces) = (0, 0, 0);
        Release { retired, aliases: Vec::new(), reservations }
    }
}

#[cfg(test)]
mod tests {
    use millpond_core::driver::PhysicalHandle;

    use super::*;
    use crate::store::pages::handles::NONE;
    use crate::tuning::Policy;

    const UNIT: u64 = 2 << 20;

    /// Handles side by side in the tables, none of which the driver has.
    fn with_handles(count: u64, mappings: usize) -> (Pages, Vec<HandleId>) {
        let policy = Policy { mappings, ..Policy::default() };
        let mut pages = Pages::new(UNIT, 1 << 30, u64::MAX, policy);
        let (base, range) = (1 << 40, AddressRange::Large);
        pages.handles.add_reservation(range, base, 1 << 30);
        let handle = |number| Handle {
            physical: PhysicalHandle(number),
            primary: base + number * 2 * UNIT,
            bytes: 2 * UNIT,
            range,
            aliases: Vec::new(),
        };
        let ids = (0..count).map(|number| pages.handles.add(handle(number))).collect();
        (pages, ids)
    }

    /// Free handles leave the aliases that were used least recently, until three quarters of the mappings
    /// kept are left or the calls are spent.
    #[test]
    fn aliases_lose_the_mappings_beyond_three_quarters_of_those_kept() {
        for (most_calls, removed) in [(usize::MAX, 7), (7, 7), (3, 3), (0, 0)] {
            // 16 are kept, so that 12 of 19 stay.
            let (mut pages, ids) = with_handles(3, 16);
            let aliases = [0, 1].map(|number| pages.aliases.add((2 << 40) + number * (1 << 30), 1 << 30));
            for (alias, count) in aliases.into_iter().zip([9, 10]) {
                for at in 0..count {
                    pages.aliases.push(&mut pages.handles, alias, ids[at % ids.len()]);
                }
            }
            pages.aliases.note_block(aliases[0]);
            assert!(pages.has_too_many_mappings());
            // The last handle is in use.
            let free = FxHashSet::from_iter(ids[..2].iter().copied());
            let mut release = Release { retired: Vec::new(), aliases: Vec::new(), reservations: Vec::new() };
            pages.thin_aliases(&free, most_calls, &mut release);
            assert_eq!(pages.aliases.mappings, 19 - removed);
            let unmapped: usize = release.retired.iter().map(|it| it.mappings.len()).sum();
            assert_eq!(unmapped, removed);
            let left = |alias| pages.aliases.get(alias).maps.iter().filter(|map| map.handle != NONE).count();
            // Of the second alias, which was not used last, 7 of 10 may go.
            assert_eq!(aliases.map(left), [9, 10 - removed], "{most_calls} calls");
            assert_eq!(pages.handles.get(ids[2]).aliases.len(), 6, "it is in use");
        }
    }

    /// A walk in steps passes all free chunks that have no whole handle.
    #[test]
    fn a_release_in_steps_passes_chunks_without_a_whole_handle() {
        for small in [0, 1, CHUNKS_COMPARED as u64 - 1, CHUNKS_COMPARED as u64, 3 * CHUNKS_COMPARED as u64] {
            let (mut pages, ids) = with_handles(1, 4);
            let handle = pages.handles.get(ids[0]).primary;
            let heap = pages.heap_mut(AddressRange::Large);
            heap.add_region(handle, 2 * UNIT, ANY_STREAM, 0);
            for number in 0..small {
                heap.add_region((2 << 40) + number * (1 << 30), UNIT + number * 256, ANY_STREAM, 0);
            }
            let (mut at, mut released) = (Cursor::default(), Vec::new());
            while !at.is_at_end {
                released.extend(pages.plan_release_step(0, &mut at));
            }
            let primaries = released.iter().flat_map(|it| &it.retired).map(|it| it.primary);
            let expected = [Some((AddressRange::Large, handle))];
            assert_eq!(primaries.collect::<Vec<_>>(), expected, "{small} chunks are smaller");
        }
    }

    /// A release takes handles as long as their calls suffice, and one in any case.
    #[test]
    fn a_release_takes_as_many_handles_as_its_calls_allow() {
        for (most_calls, taken) in [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 3), (7, 3), (99, 6)] {
            let (mut pages, ids) = with_handles(6, 100);
            let base = pages.handles.get(ids[0]).primary;
            pages.heap_mut(AddressRange::Large).add_region(base, 12 * UNIT, ANY_STREAM, 0);
            let release = pages.plan_release_of(0, most_calls).expect("all is free");
            assert_eq!(release.retired.len(), taken, "{most_calls} calls");
        }
    }

    /// A pool has excess while it holds more than its target and a granule, and nearly all of it is free.
    #[test]
    fn excess_is_what_is_free_beyond_the_target_while_little_is_used() {
        let bytes = |handles: u64| handles * 2 * UNIT;
        // Of 100 handles, with a peak of `peak` of them: the target is 1 % more.
        for (peak, free, has_excess) in [
            (10, 100, true),
            (10, 88, true),
            (10, 87, false),
            (10, 0, false),
            (98, 100, true),
            (100, 100, false),
            (200, 100, false),
        ] {
            let (mut pages, ids) = with_handles(100, 100);
            let base = pages.handles.get(ids[0]).primary;
            if free > 0 {
                pages.heap_mut(AddressRange::Large).add_region(base, bytes(free), ANY_STREAM, 0);
            }
            pages.note_live(bytes(peak));
            assert_eq!(pages.has_excess(), has_excess, "a peak of {peak}, and {free} are free");
        }
        let (mut pages, ids) = with_handles(100, 100);
        let base = pages.handles.get(ids[0]).primary;
        pages.heap_mut(AddressRange::Large).add_region(base, bytes(100), ANY_STREAM, 0);
        pages.note_live(bytes(98) + UNIT);
        assert!(!pages.has_excess(), "it is one granule");
    }
}
