//! Returns memory to the driver: plans, runs and commits releases.

use std::cmp::Reverse;

use millpond_core::DevicePtr;
use millpond_core::driver::{Driver, DriverResult};

use rustc_hash::FxHashSet;

use crate::block_map::ChunkId;
use crate::heap::chunk::Chunk;
use crate::heap::request::Cursor;
use crate::heap::{Heap, next_size};
use crate::store::pages::driver_calls::Retired;
use crate::store::pages::handles::{AddressRange, AliasId, Handle, HandleId, Handles, RANGES};
use crate::store::pages::plan::CALLS_FOR_HANDLE;
use crate::store::pages::policy::target_bytes;
use crate::store::pages::state::Pages;
use crate::stream_order::ANY_STREAM;
use crate::tuning::{CALLS_PER_RELEASE, CHUNKS_COMPARED, FEW_COMPARED, LITTLE};

/// Driver calls for a handle that is released, and created again later. The release takes two of them.
const CALLS_FOR_RETURN: u64 = 2 + CALLS_FOR_HANDLE;

/// Memory that returns to the driver, until [`Pages::commit_release`].
#[derive(Debug, Default)]
#[must_use = "a release must be committed, even if its run failed"]
pub(crate) struct Release {
    retired: Vec<Retired>,
    /// Aliases that lose mappings.
    aliases: Vec<AliasId>,
    /// Reservations to free at the end: base and bytes.
    reservations: Vec<(u64, u64)>,
}

impl Release {
    /// Makes the driver calls, without the pool's lock: unmaps, releases, frees addresses.
    ///
    /// # Errors
    /// The driver's first error. Unless the device is lost, the run still releases the other handles, and the
    /// next release tries the failed calls again.
    pub(crate) fn make_calls(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        let mut outcome = Ok(());
        for retired in &mut self.retired {
            let done = retired.make_calls(driver);
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

    /// Returns the primary mappings of the handles that were returned to the driver: address and bytes.
    pub(crate) fn released(&self) -> impl Iterator<Item = (u64, u64)> {
        let done = self.retired.iter().filter(|retired| retired.is_done());
        done.filter_map(|retired| Some((retired.primary?.1, retired.bytes)))
    }

    /// Returns the bytes that were returned to the driver.
    pub(crate) fn released_bytes(&self) -> u64 {
        self.retired.iter().filter(|retired| retired.is_done()).map(|retired| retired.bytes).sum()
    }
}

impl Pages {
    /// Returns whether the pool holds more than its target while nearly all of it is free.
    pub(crate) fn has_excess(&self) -> bool {
        let reserved = self.held();
        // Each large request asks this: the condition that is seldom true comes first.
        self.used() <= reserved / LITTLE && reserved > self.target_bytes() + self.granularity
    }

    /// Returns whether this many driver calls may be spent after this many operations: whether more calls are
    /// left than this, or than half of the most that may be saved.
    pub(crate) fn may_spend(&mut self, calls: u64, operations: u64) -> bool {
        self.note_operations(operations);
        self.budget.available(&self.policy) > calls.min(self.policy.saved_calls / 2)
    }

    fn target_bytes(&self) -> u64 {
        target_bytes(self.peak_live).next_multiple_of(self.granularity)
    }

    /// Plans to release unowned, wholly free handles while the pool holds more than its target, the last of
    /// the address range first. The next peak then starts from contiguous free memory, and its new memory
    /// comes in small handles while the pool is near its target. (Without this order: bytes 1.065 instead of
    /// 1.060, gpt 1.045 instead of 1.031, resnet 1.017 instead of 1.013, at 12 copies and 60 passes.)
    ///
    /// `calls_of_look` is the number of driver calls that the check of all streams took.
    pub(crate) fn plan_excess(&mut self, calls_of_look: u64) -> Option<Release> {
        self.budget.spend(calls_of_look);
        let calls = self.budget.available(&self.policy).min(CALLS_PER_RELEASE as u64);
        let release = self.plan_release_of(self.target_bytes(), calls as usize, true);
        let handles = release.as_ref().map_or(0, |release| release.retired.len() as u64);
        self.budget.spend(handles * CALLS_FOR_RETURN);
        release
    }

    /// Plans to release unowned, wholly free handles, large ones or (`by_address`) the last ones first, while
    /// at least `keep_bytes` stay and about `most_calls` driver calls suffice. If there are too many alias
    /// mappings, the free handles that stay leave their aliases. Returns `None` if there is nothing to do.
    ///
    /// It first retries releases that failed before, and only these, since one may hold a mapping of a handle
    /// that is free now.
    pub(super) fn plan_release_of(
        &mut self,
        keep_bytes: u64,
        most_calls: usize,
        by_address: bool,
    ) -> Option<Release> {
        let mut release = Release { retired: std::mem::take(&mut self.unfinished), ..Release::default() };
        if !release.retired.is_empty() {
            return Some(release);
        }
        let free_in = |range| {
            let extents = self.heap(range).free_from(ANY_STREAM, self.granularity);
            extents.flat_map(|(chunk, extent)| self.whole_in(extent).map(move |(id, _)| (chunk, id)))
        };
        let mut free: Vec<(ChunkId, HandleId)> = AddressRange::ALL.into_iter().flat_map(free_in).collect();
        free.sort_unstable_by_key(|(_, id)| {
            let Handle { bytes, primary, .. } = self.handles.get(*id);
            Reverse((if by_address { 0 } else { *bytes }, *primary))
        });
        let mut left = self.handles.bytes.saturating_sub(keep_bytes);
        let mut calls = 0;
        let mut kept = FxHashSet::default();
        free.retain(|(_, id)| {
            let handle = self.handles.get(*id);
            let calls_of_handle = handle.aliases.len() + 2;
            // A handle that takes more calls than `most_calls` is also released, but alone.
            let is_chosen = handle.bytes <= left && (calls == 0 || calls + calls_of_handle <= most_calls);
            if is_chosen {
                calls += calls_of_handle;
                left -= handle.bytes;
            } else {
                kept.insert(*id);
            }
            is_chosen
        });
        if self.has_too_many_mappings() {
            self.thin_aliases(&kept, most_calls.saturating_sub(calls), &mut release);
        }
        // A chunk's last handle comes first, because the bytes before it then keep the chunk's number.
        free.sort_unstable_by_key(|(_, id)| Reverse(self.handles.get(*id).primary));
        for (chunk, id) in free {
            self.retire(chunk, id, &mut release);
        }
        (!release.retired.is_empty()).then_some(release)
    }

    /// Plans to release one unowned, wholly free handle among a few free chunks from the cursor on, if at
    /// least `keep_bytes` stay. It first retries a release that failed before.
    pub(crate) fn plan_release_step(&mut self, keep_bytes: u64, at: &mut Cursor) -> Option<Release> {
        if let Some(retired) = self.unfinished.pop() {
            return Some(Release { retired: vec![retired], ..Release::default() });
        }
        let left = self.handles.bytes.saturating_sub(keep_bytes);
        if left < self.granularity {
            at.is_at_end = true;
            return None;
        }
        let (mut seen, mut last) = (0, 0);
        let from = at.bytes.max(self.granularity);
        let extents = self.heap(AddressRange::ALL[at.part]).free_from(ANY_STREAM, from);
        let found = extents.take(CHUNKS_COMPARED).find_map(|(chunk, extent)| {
            (seen, last) = (seen + 1, extent.bytes);
            let mut handles = self.whole_in(extent).take(FEW_COMPARED);
            handles.find(|(_, handle)| handle.bytes <= left).map(|(id, _)| (chunk, id))
        });
        let Some((chunk, id)) = found else {
            if seen < CHUNKS_COMPARED {
                at.end_part(RANGES)
            } else {
                at.bytes = next_size(last)
            }
            return None;
        };
        // The rest of the free extent is smaller, so it comes earlier.
        at.bytes = 0;
        let mut release = Release::default();
        self.retire(chunk, id, &mut release);
        Some(release)
    }

    /// Plans to unmap free handles from aliases if there are too many mappings, which slow searches down.
    pub(crate) fn plan_tidying(&mut self) -> Option<Release> {
        if self.has_too_many_mappings() {
            self.plan_release_of(u64::MAX, CALLS_PER_RELEASE, false)
        } else {
            None
        }
    }

    fn has_too_many_mappings(&self) -> bool {
        self.aliases.mappings > self.policy.mappings
    }

    /// Unmaps free handles from aliases, the least recently used first, down to three quarters of the mapping
    /// limit.
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

    /// Returns the handles that lie wholly in a free chunk.
    fn whole_in(&self, extent: &Chunk) -> impl Iterator<Item = (HandleId, &Handle)> {
        let (start, end) = (extent.addr, extent.addr + extent.bytes);
        let is_whole =
            move |(_, handle): &(HandleId, &Handle)| handle.primary >= start && handle.end() <= end;
        self.handles.within(start, end).filter(is_whole)
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

    fn retire(&mut self, chunk: ChunkId, id: HandleId, release: &mut Release) {
        let Handle { physical, primary, bytes, range, aliases } = self.handles.get(id).clone();
        let mut mappings = vec![(primary, bytes)];
        for (alias, place) in aliases {
            mappings.push(self.remove_mapping(alias, place, &mut release.aliases));
        }
        self.heap_mut(range).remove_range(chunk, primary, bytes);
        self.handles.remove(id);
        self.retiring += bytes;
        let (physical, primary) = (Some(physical), Some((range, primary)));
        release.retired.push(Retired { physical, bytes, mappings, primary });
    }

    /// Commits a release, however far its run got: frees its addresses, and keeps the failed parts for the
    /// next release.
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

    /// Plans to release everything, in use or not, when the pool ends. After that only this method may be
    /// called, and only if the release failed.
    pub(crate) fn release_all(&mut self) -> Release {
        self.note_all_freed();
        let mut retired = std::mem::take(&mut self.unfinished);
        let ids: Vec<HandleId> = self.handles.iter().map(|(id, _)| id).collect();
        for id in ids {
            let Handle { physical, bytes, primary, range, aliases } = self.handles.remove(id);
            let mut mappings = vec![(primary, bytes)];
            mappings.extend(
                aliases.iter().map(|(alias, place)| (self.aliases.get(*alias).addr(*place as usize), bytes)),
            );
            let (physical, primary) = (Some(physical), Some((range, primary)));
            retired.push(Retired { physical, bytes, mappings, primary });
        }
        let reserved = self.handles.reserved.iter().chain(self.aliases.space.reservations());
        let reservations = reserved.copied().collect();
        self.aliases = Default::default();
        self.handles = Handles::new(self.granularity);
        self.heaps = [(); RANGES].map(|()| Heap::new(CHUNKS_COMPARED));
        (self.planned, self.retiring, self.extra_pieces) = (0, 0, 0);
        Release { retired, reservations, ..Release::default() }
    }
}

#[cfg(test)]
mod tests {
    use millpond_core::driver::PhysicalHandle;

    use super::*;
    use crate::store::pages::handles::NONE;
    use crate::tuning::Policy;

    const UNIT: u64 = 2 << 20;

    /// Adjacent handles in the tables that the driver does not have.
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

    /// Free handles leave the least recently used aliases, until three quarters of the mapping limit are left
    /// or the calls are spent.
    #[test]
    fn aliases_lose_the_mappings_beyond_three_quarters_of_those_kept() {
        for (most_calls, removed) in [(usize::MAX, 7), (7, 7), (3, 3), (0, 0)] {
            // The limit is 16, so that 12 of 19 stay.
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
            let mut release = Release::default();
            pages.thin_aliases(&free, most_calls, &mut release);
            assert_eq!(pages.aliases.mappings, 19 - removed);
            let unmapped: usize = release.retired.iter().map(|it| it.mappings.len()).sum();
            assert_eq!(unmapped, removed);
            let left = |alias| pages.aliases.get(alias).maps.iter().filter(|map| map.handle != NONE).count();
            // The second alias was not used last: 7 of its 10 mappings may go.
            assert_eq!(aliases.map(left), [9, 10 - removed], "{most_calls} calls");
            assert_eq!(pages.handles.get(ids[2]).aliases.len(), 6, "it is in use");
        }
    }

    /// A walk in steps skips all free chunks that hold no whole handle.
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

    /// A step retries one part of a release that failed, before anything else is released.
    #[test]
    fn a_release_in_steps_retries_what_failed() {
        let (mut pages, ids) = with_handles(3, 4);
        let base = pages.handles.get(ids[0]).primary;
        pages.heap_mut(AddressRange::Large).add_region(base, 6 * UNIT, ANY_STREAM, 0);
        let failed = pages.plan_release_of(2 * UNIT, usize::MAX, false).expect("all is free");
        assert_eq!(failed.retired.len(), 2);
        // It was not run, so all of it is left.
        pages.commit_release(failed);
        let (mut at, mut handles) = (Cursor::default(), Vec::new());
        while !at.is_at_end {
            let retired = pages.plan_release_step(0, &mut at).into_iter().flat_map(|it| it.retired);
            handles.extend(retired.map(|it| it.physical.expect("it was not released").0));
        }
        assert_eq!(handles.pop(), Some(0), "it is free, and no release of it failed");
        handles.sort_unstable();
        assert_eq!(handles, [1, 2]);
    }

    /// A step releases even a last handle of one granule, if no bytes are to be kept.
    #[test]
    fn a_release_in_steps_keeps_the_bytes_it_should() {
        for (keep_bytes, is_released) in [(0, true), (1, false), (2 * UNIT, false)] {
            let (mut pages, ids) = with_handles(1, 4);
            pages.granularity = 2 * UNIT;
            let base = pages.handles.get(ids[0]).primary;
            pages.heap_mut(AddressRange::Large).add_region(base, 2 * UNIT, ANY_STREAM, 0);
            let (mut at, mut released) = (Cursor::default(), Vec::new());
            while !at.is_at_end {
                released.extend(pages.plan_release_step(keep_bytes, &mut at));
            }
            assert_eq!(released.len() == 1, is_released, "{keep_bytes} bytes stay");
        }
    }

    /// A release takes handles as long as the calls suffice, but always at least one.
    #[test]
    fn a_release_takes_as_many_handles_as_its_calls_allow() {
        for (most_calls, taken) in [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 3), (7, 3), (99, 6)] {
            let (mut pages, ids) = with_handles(6, 100);
            let base = pages.handles.get(ids[0]).primary;
            pages.heap_mut(AddressRange::Large).add_region(base, 12 * UNIT, ANY_STREAM, 0);
            let release = pages.plan_release_of(0, most_calls, false).expect("all is free");
            assert_eq!(release.retired.len(), taken, "{most_calls} calls");
        }
    }

    /// A release of excess costs the calls of its look, and the calls for each handle and its return.
    #[test]
    fn a_release_of_excess_spends_its_calls() {
        for count in [1, 2, 6] {
            let (mut pages, ids) = with_handles(count, 100);
            let base = pages.handles.get(ids[0]).primary;
            pages.heap_mut(AddressRange::Large).add_region(base, count * 2 * UNIT, ANY_STREAM, 0);
            let before = pages.budget.available(&pages.policy);
            let release = pages.plan_excess(7).expect("all is free");
            assert_eq!(release.retired.len() as u64, count);
            assert_eq!(before - pages.budget.available(&pages.policy), 7 + count * CALLS_FOR_RETURN);
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
