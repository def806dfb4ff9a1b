use std::cmp::Reverse;

use millpond_core::DevicePtr;
use millpond_core::driver::{Driver, DriverResult};

use rustc_hash::FxHashSet;

use super::carry_out::Retired;
use super::handles::{Handle, HandleId, ViewId};
use super::plan::CALLS_FOR_HANDLE;
use super::{LINES, Line, Pages};
use crate::ordered::{ANYONE, Cursor};
use crate::pool::chunk::ChunkId;
use crate::pool::heap::{Heap, LOOKS, next_size};

/// So many mappings in views are kept for each handle, besides those of the policy.
const MAPPINGS_PER_HANDLE: usize = 4;

/// The pool is quiet while at most this part of what it holds is in use (an eighth to a fortieth: no
/// difference; a half: bytes 1.074 instead of 1.063).
const QUIET_SHARE: u64 = 16;

/// Driver calls of one step that gives excess back.
const CALLS_FOR_EXCESS: u64 = 64;

/// Driver calls that a handle costs that is given back and created again later.
const CALLS_FOR_RETURN: u64 = 2 + CALLS_FOR_HANDLE;

/// So many handles of a hole are looked at for one that may go.
const HANDLES_LOOKED_AT: usize = 4;

/// Memory on its way back to the driver. It ends with [`Pages::finish_release`].
#[derive(Debug)]
#[must_use = "a release must be finished, whatever became of it"]
pub(crate) struct Release {
    retired: Vec<Retired>,
    /// Views where something is unmapped.
    views: Vec<ViewId>,
    /// Reservations to end when all is done: base and bytes.
    reservations: Vec<(u64, u64)>,
}

/// A handle that is wholly free for anyone, and the chunk that it is in.
struct Free {
    line: Line,
    chunk: ChunkId,
    home: u64,
    bytes: u64,
    id: HandleId,
}

impl Release {
    /// Makes the driver calls, without the pool's lock: unmaps, releases, frees addresses.
    ///
    /// # Errors
    /// The first that the driver reports. What can be done besides is done; the rest is tried again with the
    /// next release.
    pub(in crate::pool) fn carry_out(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        let mut outcome = Ok(());
        for retired in &mut self.retired {
            let done = retired.carry_out(driver);
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
    pub(in crate::pool) fn released_bytes(&self) -> u64 {
        self.retired.iter().filter(|retired| retired.is_done()).map(|retired| retired.bytes).sum()
    }
}

impl Pages {
    /// Whether more is held than the target, and the pool is quiet.
    pub(in crate::pool) fn has_excess(&self) -> bool {
        let reserved = self.bytes_reserved();
        // Each large request asks this: what is seldom true and needs no division comes first.
        self.used() <= reserved / QUIET_SHARE && reserved > self.target_bytes() + self.granularity
    }

    /// Whether the budget has this many driver calls left, or half of all that may be saved, after this many
    /// operations.
    pub(in crate::pool) fn may_spend(&mut self, calls: u64, operations: u64) -> bool {
        self.note_operations(operations);
        self.budget.available(&self.policy) > calls.min(self.policy.most_saved_calls / 2)
    }

    fn target_bytes(&self) -> u64 {
        self.policy.target(self.peak_live).next_multiple_of(self.granularity)
    }

    /// Takes handles out that are wholly free for anyone, the last of the line first, while more than the
    /// target is held: the next peak starts from memory that is free in a row, and takes small handles. (If
    /// it were never done: bytes 1.065 instead of 1.060, gpt 1.045 instead of 1.031, resnet 1.017 instead
    /// of 1.013, at 12 copies and 60 passes.)
    ///
    /// `calls_of_look` is how many driver calls it took to ask all streams what they have done.
    pub(in crate::pool) fn plan_excess(&mut self, calls_of_look: u64) -> Option<Release> {
        self.budget.spend(calls_of_look);
        let calls = self.budget.available(&self.policy).min(CALLS_FOR_EXCESS);
        let release = self.plan_release_by(self.target_bytes(), calls as usize, |free| Reverse(free.home));
        let handles = release.as_ref().map_or(0, |release| release.retired.len() as u64);
        self.budget.spend(handles * CALLS_FOR_RETURN);
        release
    }

    /// Takes handles out that are wholly free for anyone, while at least `keep_bytes` stay and about
    /// `most_calls` driver calls are enough; large ones first. Where views have grown many, free handles
    /// leave them. `None` where there is nothing to do.
    ///
    /// What failed before is tried again first, and alone: it may be a mapping of a handle that is free now.
    pub(in crate::pool) fn plan_release(&mut self, keep_bytes: u64, most_calls: usize) -> Option<Release> {
        self.plan_release_by(keep_bytes, most_calls, |free| (Reverse(free.bytes), Reverse(free.home)))
    }

    /// The same, with the handles in the order of a key, the least first.
    fn plan_release_by<K: Ord>(
        &mut self,
        keep_bytes: u64,
        most_calls: usize,
        key: impl FnMut(&Free) -> K,
    ) -> Option<Release> {
        let retired = std::mem::take(&mut self.unfinished);
        let mut release = Release { retired, views: Vec::new(), reservations: Vec::new() };
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
            let its_calls = self.handles.get(free.id).views.len() + 2;
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
            self.thin_views(&staying, most_calls.saturating_sub(calls), &mut release);
        }
        // Of one chunk the last goes first: what is before it keeps the chunk's number.
        going.sort_unstable_by_key(|free| Reverse(free.home));
        for free in going {
            self.retire(&free, &mut release);
        }
        (!release.retired.is_empty()).then_some(release)
    }

    /// Takes one handle out that is wholly free for anyone, if at least `keep_bytes` stay: it is looked for
    /// in a few free chunks from the cursor on. What failed before is tried again first.
    pub(in crate::pool) fn plan_bite(&mut self, keep_bytes: u64, at: &mut Cursor) -> Option<Release> {
        let mut release = Release { retired: Vec::new(), views: Vec::new(), reservations: Vec::new() };
        if let Some(retired) = self.unfinished.pop() {
            release.retired.push(retired);
            return Some(release);
        }
        let left = self.handles.bytes.saturating_sub(keep_bytes);
        if left < self.granularity {
            at.is_at_end = true;
            return None;
        }
        let line = Line::ALL[at.part];
        let (mut looks, mut last, mut found) = (0, 0, None);
        for (chunk, hole) in self.heap(line).free_from(ANYONE, at.bytes.max(self.granularity)).take(LOOKS) {
            (looks, last) = (looks + 1, hole.bytes);
            let end = hole.addr + hole.bytes;
            // The first handle may lie in the hole in part.
            let mut handles = self.handles.within(hole.addr, end).take(HANDLES_LOOKED_AT);
            let whole = handles
                .find(|(_, handle)| handle.home >= hole.addr && handle.end() <= end && handle.bytes <= left);
            found =
                whole.map(|(id, handle)| Free { line, chunk, home: handle.home, bytes: handle.bytes, id });
            if found.is_some() {
                break;
            }
        }
        let Some(free) = found else {
            if looks < LOOKS {
                at.end_part(LINES)
            } else {
                at.bytes = next_size(last)
            }
            return None;
        };
        // What is left of the hole is smaller: it comes earlier.
        at.bytes = 0;
        self.retire(&free, &mut release);
        Some(release)
    }

    /// Where views have grown so many that searches take long, some of what is free leaves them.
    pub(in crate::pool) fn plan_tidying(&mut self) -> Option<Release> {
        const CALLS: usize = 64;
        if self.has_many_mappings() { self.plan_release(u64::MAX, CALLS) } else { None }
    }

    fn has_many_mappings(&self) -> bool {
        self.views.mappings > self.mappings_kept()
    }

    fn mappings_kept(&self) -> usize {
        self.policy.mappings + self.handles.len() * MAPPINGS_PER_HANDLE
    }

    /// Free handles leave views, those first in which no block was put for longest, until a quarter fewer
    /// mappings are left than are kept.
    fn thin_views(&mut self, free: &FxHashSet<HandleId>, most_calls: usize, release: &mut Release) {
        let surplus = (self.views.mappings - self.mappings_kept() / 4 * 3).min(most_calls);
        let mut views: Vec<(u64, ViewId)> = self.views.iter().map(|(id, view)| (view.used, id)).collect();
        views.sort_unstable();
        let places = views.into_iter().flat_map(|(_, id)| {
            let maps = self.views.get(id).maps.iter().enumerate();
            maps.filter(|(_, map)| free.contains(&map.handle)).map(move |(place, _)| (id, place as u32))
        });
        let places: Vec<(ViewId, u32)> = places.take(surplus).collect();
        let leave = |(view, place)| self.leave_view(view, place, &mut release.views);
        let mappings: Vec<(u64, u64)> = places.into_iter().map(leave).collect();
        if !mappings.is_empty() {
            release.retired.push(Retired { physical: None, bytes: 0, mappings, home: None });
        }
    }

    fn free_handles(&self) -> Vec<Free> {
        let mut free = Vec::new();
        for line in Line::ALL {
            for (chunk, hole) in self.heap(line).free_from(ANYONE, self.granularity) {
                let end = hole.addr + hole.bytes;
                for (id, handle) in self.handles.within(hole.addr, end) {
                    if handle.home >= hole.addr && handle.end() <= end {
                        free.push(Free { line, chunk, home: handle.home, bytes: handle.bytes, id });
                    }
                }
            }
        }
        free
    }

    /// Forgets a mapping in a view; says where it is.
    fn leave_view(&mut self, view: ViewId, place: u32, views: &mut Vec<ViewId>) -> (u64, u64) {
        if !views.contains(&view) {
            self.views.get_mut(view).busy += 1;
            views.push(view);
        }
        let map = self.views.get(view).maps[place as usize];
        self.handles.get_mut(map.handle).views.retain(|other| *other != (view, place));
        (self.views.forget(view, place as usize), map.bytes)
    }

    fn retire(&mut self, free: &Free, release: &mut Release) {
        let mut mappings = vec![(free.home, free.bytes)];
        for (view, place) in self.handles.get(free.id).views.clone() {
            mappings.push(self.leave_view(view, place, &mut release.views));
        }
        self.heap_mut(free.line).remove_range(free.chunk, free.home, free.bytes);
        let Handle { physical, bytes, home, line, .. } = self.handles.remove(free.id);
        self.retiring += bytes;
        release.retired.push(Retired { physical: Some(physical), bytes, mappings, home: Some((line, home)) });
    }

    /// Ends a release, however far it came: addresses may be used again, and what failed is tried again.
    pub(in crate::pool) fn finish_release(&mut self, release: Release) {
        let Release { retired, views, .. } = release;
        let all_done = retired.iter().all(Retired::is_done);
        for retired in retired {
            if !retired.is_done() {
                self.unfinished.push(retired);
                continue;
            }
            self.retiring -= retired.bytes;
            if let Some((line, home)) = retired.home {
                self.handles.spaces[line as usize].give(home, retired.bytes);
            }
        }
        views.into_iter().for_each(|view| self.views.end_work(view, all_done));
    }

    /// Everything, whatever is in use: when the pool ends. Nothing may be asked of it afterwards, but for
    /// this again, where the release failed.
    pub(in crate::pool) fn release_all(&mut self) -> Release {
        let mut retired = std::mem::take(&mut self.unfinished);
        let ids: Vec<HandleId> = self.handles.iter().map(|(id, _)| id).collect();
        for id in ids {
            let Handle { physical, bytes, home, views, .. } = self.handles.remove(id);
            let mut mappings = vec![(home, bytes)];
            mappings.extend(
                views.iter().map(|(view, place)| (self.views.get(*view).addr(*place as usize), bytes)),
            );
            retired.push(Retired { physical: Some(physical), bytes, mappings, home: None });
        }
        let reserved = self.handles.reserved.iter().chain(self.views.space.reservations());
        let reservations = reserved.copied().collect();
        self.views = Default::default();
        self.handles = super::Handles::new(self.granularity);
        let heap = || Heap::new(super::SCAN);
        self.heaps = [(); LINES].map(|()| heap());
        self.gathered = Default::default();
        (self.planned, self.retiring, self.extra_pieces) = (0, 0, 0);
        Release { retired, views: Vec::new(), reservations }
    }
}
