use std::cmp::Reverse;

use millpond_core::DevicePtr;
use millpond_core::driver::{Driver, DriverResult};

use rustc_hash::FxHashSet;

use crate::backing::paged::driver_calls::Retired;
use crate::backing::paged::handles::{AliasId, Handle, HandleId};
use crate::backing::paged::plan::CALLS_FOR_HANDLE;
use crate::backing::paged::{AddressRange, Pages, RANGES};
use crate::block_map::ChunkId;
use crate::heap::request::Cursor;
use crate::heap::{CHUNKS_PER_STEP, Heap, next_size};
use crate::stream_order::ANY_STREAM;

/// So many mappings in aliases are kept for each handle, besides those of the policy.
const MAPPINGS_PER_HANDLE: usize = 4;

/// The pool is quiet while at most this part of what it holds is in use (an eighth to a fortieth: no
/// difference; a half: bytes 1.074 instead of 1.063).
const QUIET_SHARE: u64 = 16;

/// Driver calls of one step that gives excess back.
const CALLS_FOR_EXCESS: u64 = 64;

/// Driver calls that a handle costs that is given back and created again later.
const CALLS_FOR_RETURN: u64 = 2 + CALLS_FOR_HANDLE;

/// So many handles of a free extent are looked at for one that may go.
const HANDLES_LOOKED_AT: usize = 4;

/// Memory on its way back to the driver. It ends with [`Pages::commit_release`].
#[derive(Debug)]
#[must_use = "a release must be finished, whatever became of it"]
pub(crate) struct Release {
    retired: Vec<Retired>,
    /// Aliases where something is unmapped.
    aliases: Vec<AliasId>,
    /// Reservations to end when all is done: base and bytes.
    reservations: Vec<(u64, u64)>,
}

/// A handle that is wholly free for anyone, and the chunk that it is in.
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
    /// The first that the driver reports. What can be done besides is done; the rest is tried again with the
    /// next release.
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
                // SAFETY: the reservation is this pool's, which is over, and nothing is mapped there.
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

    /// Bytes that went back to the driver.
    pub(crate) fn released_bytes(&self) -> u64 {
        self.retired.iter().filter(|retired| retired.complete_if_reached()).map(|retired| retired.bytes).sum()
    }
}

impl Pages {
    /// Whether more is held than the target, and the pool is quiet.
    pub(crate) fn has_excess(&self) -> bool {
        let reserved = self.bytes_reserved();
        // Each large request asks this: what is seldom true and needs no division comes first.
        self.used() <= reserved / QUIET_SHARE && reserved > self.target_bytes() + self.granularity
    }

    /// Whether the budget has this many driver calls left, or half of all that may be saved, after this many
    /// operations.
    pub(crate) fn may_spend(&mut self, calls: u64, operations: u64) -> bool {
        self.note_operations(operations);
        self.budget.available(&self.policy) > calls.min(self.policy.most_saved_calls / 2)
    }

    fn target_bytes(&self) -> u64 {
        self.policy.target(self.peak_live).next_multiple_of(self.granularity)
    }

    /// Takes handles out that are wholly free for anyone, the last of the address range first, while more
    /// than the target is held: the next peak starts from memory that is free in a row, and takes small
    /// handles. (If it were never done: bytes 1.065 instead of 1.060, gpt 1.045 instead of 1.031, resnet
    /// 1.017 instead of 1.013, at 12 copies and 60 passes.)
    ///
    /// `calls_of_look` is how many driver calls it took to ask all streams what they have done.
    pub(crate) fn plan_excess(&mut self, calls_of_look: u64) -> Option<Release> {
        self.budget.spend(calls_of_look);
        let calls = self.budget.available(&self.policy).min(CALLS_FOR_EXCESS);
        let release = self.plan_release_by(self.target_bytes(), calls as usize, |free| Reverse(free.primary));
        let handles = release.as_ref().map_or(0, |release| release.retired.len() as u64);
        self.budget.spend(handles * CALLS_FOR_RETURN);
        release
    }

    /// Takes handles out that are wholly free for anyone, while at least `keep_bytes` stay and about
    /// `most_calls` driver calls are enough; large ones first. Where aliases have grown many, free handles
    /// leave them. `None` where there is nothing to do.
    ///
    /// What failed before is tried again first, and alone: it may be a mapping of a handle that is free now.
    pub(crate) fn plan_release(&mut self, keep_bytes: u64, most_calls: usize) -> Option<Release> {
        self.plan_release_by(keep_bytes, most_calls, |free| (Reverse(free.bytes), Reverse(free.primary)))
    }

    /// The same, with the handles in the order of a key, the least first.
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
        let mut going = Vec::new();
        let mut calls = 0;
        let mut staying = FxHashSet::default();
        for free in free {
            let its_calls = self.handles.get(free.id).aliases.len() + 2;
            // One that takes more calls than that goes, too, but alone.
            if free.bytes <= left && (calls == 0 || calls + its_calls <= most_calls) {
                calls += its_calls;
                left -= free.bytes;
                going.push(free);
            } else {
                staying.insert(free.id);
            }
        }
        if self.has_many_mappings() {
            self.thin_aliases(&staying, most_calls.saturating_sub(calls), &mut release);
        }
        // Of one chunk the last goes first: what is before it keeps the chunk's number.
        going.sort_unstable_by_key(|free| Reverse(free.primary));
        for free in going {
            self.retire(&free, &mut release);
        }
        (!release.retired.is_empty()).then_some(release)
    }

    /// Takes one handle out that is wholly free for anyone, if at least `keep_bytes` stay: it is looked for
    /// in a few free chunks from the cursor on. What failed before is tried again first.
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
        let (mut looks, mut last, mut found) = (0, 0, None);
        for (chunk, extent) in
            self.heap(range).free_from(ANY_STREAM, at.bytes.max(self.granularity)).take(CHUNKS_PER_STEP)
        {
            (looks, last) = (looks + 1, extent.bytes);
            let end = extent.addr + extent.bytes;
            // The first handle may lie in the free extent in part.
            let mut handles = self.handles.within(extent.addr, end).take(HANDLES_LOOKED_AT);
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
            if looks < CHUNKS_PER_STEP {
                at.end_part(RANGES)
            } else {
                at.bytes = next_size(last)
            }
            return None;
        };
        // What is left of the free extent is smaller: it comes earlier.
        at.bytes = 0;
        self.retire(&free, &mut release);
        Some(release)
    }

    /// Where aliases have grown so many that searches take long, some of what is free leaves them.
    pub(crate) fn plan_tidying(&mut self) -> Option<Release> {
        const CALLS: usize = 64;
        if self.has_many_mappings() { self.plan_release(u64::MAX, CALLS) } else { None }
    }

    fn has_many_mappings(&self) -> bool {
        self.aliases.mappings > self.mappings_kept()
    }

    fn mappings_kept(&self) -> usize {
        self.policy.mappings + self.handles.len() * MAPPINGS_PER_HANDLE
    }

    /// Free handles leave aliases, those first in which no block was put for longest, until a quarter fewer
    /// mappings are left than are kept.
    fn thin_aliases(&mut self, free: &FxHashSet<HandleId>, most_calls: usize, release: &mut Release) {
        let surplus = (self.aliases.mappings - self.mappings_kept() / 4 * 3).min(most_calls);
        let mut aliases: Vec<(u64, AliasId)> =
            self.aliases.iter().map(|(id, alias)| (alias.used, id)).collect();
        aliases.sort_unstable();
        let places = aliases.into_iter().flat_map(|(_, id)| {
            let maps = self.aliases.get(id).maps.iter().enumerate();
            maps.filter(|(_, map)| free.contains(&map.handle)).map(move |(place, _)| (id, place as u32))
        });
        let places: Vec<(AliasId, u32)> = places.take(surplus).collect();
        let remove_block = |(alias, place)| self.remove_alias_entry(alias, place, &mut release.aliases);
        let mappings: Vec<(u64, u64)> = places.into_iter().map(remove_block).collect();
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

    /// Forgets a mapping in an alias; says where it is.
    fn remove_alias_entry(&mut self, alias: AliasId, place: u32, aliases: &mut Vec<AliasId>) -> (u64, u64) {
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
            mappings.push(self.remove_alias_entry(alias, place, &mut release.aliases));
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

    /// Ends a release, however far it came: addresses may be used again, and what failed is tried again.
    pub(crate) fn commit_release(&mut self, release: Release) {
        let Release { retired, aliases, .. } = release;
        let all_done = retired.iter().all(Retired::complete_if_reached);
        for retired in retired {
            if !retired.complete_if_reached() {
                self.unfinished.push(retired);
                continue;
            }
            self.retiring -= retired.bytes;
            if let Some((range, primary)) = retired.primary {
                self.handles.spaces[range as usize].free(primary, retired.bytes);
            }
        }
        aliases.into_iter().for_each(|alias| self.aliases.end_work(alias, all_done));
    }

    /// Everything, whatever is in use: when the pool ends. Nothing may be asked of it afterwards, but for
    /// this again, where the release failed.
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
        self.handles = crate::backing::paged::Handles::new(self.granularity);
        let heap = || Heap::new(crate::backing::paged::SCAN);
        self.heaps = [(); RANGES].map(|()| heap());
        (self.planned, self.retiring, self.extra_pieces) = (0, 0, 0);
        Release { retired, aliases: Vec::new(), reservations }
    }
}
