//! The bodies of a program that alternates, such as training and evaluation, or a few shapes of its data.
//!
//! All of them use the same lanes, one at a time. When the program goes from one body to another, the blocks
//! that are in use stay where they are: they become guests of their lanes, like blocks in gaps.

use millpond_core::StreamId;

use crate::plan::body::{Body, NONE};
use crate::plan::gaps::Gaps;
use crate::plan::history::{MOST_EVENTS, Step, key};
use crate::plan::lane::{Bytes, Guests, Lane};
use crate::plan::repetition::GRAM;
use crate::plan::running::{Running, Stage};

/// What repeats while the program is elsewhere than in a plan has to do so over this part of its body: a loop
/// inside another body is none.
const BODY_SHARE: u32 = 16;

/// The most bodies of one plan. A request that has no place in its body is looked up in all of them.
const MOST_BODIES: usize = 8;

impl Running {
    /// Whether bodies may be added to those that there are.
    pub(crate) fn may_grow(&self) -> bool {
        self.body.origin.is_none()
    }

    /// The fewest requests over which another body has to repeat.
    pub(crate) fn least_span(&self) -> usize {
        (self.body.length() / BODY_SHARE) as usize
    }

    /// Whether these steps are one of the bodies, or a loop inside one.
    pub(crate) fn knows(&mut self, steps: &[Step]) -> bool {
        let keys: Vec<u64> = steps.iter().map(|step| key(step.bytes, step.stream)).collect();
        let mut bodies = std::iter::once(&mut self.body).chain(&mut self.others);
        bodies.any(|body| body.is_turned(&keys) || body.has_parts_of(&keys))
    }

    /// Adds a body, in place of those that are loops inside it, and of those that were left longest ago if
    /// there are too many. With it, the plan may take `limit_bytes`. A program that is elsewhere is believed
    /// to be in it.
    pub(crate) fn add(&mut self, mut body: Body, limit_bytes: Option<u64>) {
        self.limit_bytes = self.limit_bytes.max(limit_bytes);
        let mut streams: Vec<StreamId> = self.body.lanes.iter().map(|lane| lane.stream).collect();
        for lane in &body.lanes {
            if !streams.contains(&lane.stream) {
                streams.push(lane.stream);
            }
        }
        self.body.pad_lanes(&streams);
        let new = &self.body.lanes[self.lanes.len()..];
        self.lanes.extend(new.iter().map(Lane::new));
        self.others.iter_mut().for_each(|other| other.pad_lanes(&streams));
        body.renumber_lanes(&streams);
        self.others.insert(0, body);
        if self.is_lost() {
            let next = self.others[0].next;
            self.change_to(0);
            (self.cursor, self.fits, self.slips) = (Some(next), 0, 0);
            (self.stage, self.is_aside, self.bad) = (Stage::Made, false, 0);
            let newest = &mut self.body;
            self.others.retain(|other| !newest.has_parts_of(&other.keys()));
        }
        self.others.truncate(MOST_BODIES - 1);
        let slots = |bodies: &[Body]| bodies.iter().map(|body| body.slots.len()).sum::<usize>();
        while self.others.len() > 1 && self.body.slots.len() + slots(&self.others) > MOST_EVENTS {
            self.others.pop();
        }
        self.forget_streams();
    }

    /// Forgets streams of which neither a body nor a lane has memory any more.
    fn forget_streams(&mut self) {
        let bodies = || std::iter::once(&self.body).chain(&self.others);
        let is_used = |lane: &usize| {
            // A shared one may have marks of a trial.
            let held = &self.lanes[*lane];
            held.base.is_some() || held.sharing.is_some() || bodies().any(|body| body.lanes[*lane].bytes > 0)
        };
        let used: Vec<usize> = (0..self.lanes.len()).filter(is_used).collect();
        // A request that takes a lane knows it by its number.
        if used.len() == self.lanes.len() || self.lanes.iter().any(|lane| lane.is_awaited) {
            return;
        }
        let streams: Vec<StreamId> = used.iter().map(|lane| self.body.lanes[*lane].stream).collect();
        let mut lane = 0..;
        self.lanes.retain(|_| lane.next().is_some_and(|lane| used.binary_search(&lane).is_ok()));
        self.body.renumber_lanes(&streams);
        self.others.iter_mut().for_each(|body| body.renumber_lanes(&streams));
    }

    /// Whether a lane has too little memory for the body in use. One that has some can only be taken anew
    /// while it has no blocks.
    pub(crate) fn is_short(&self, lane: usize) -> bool {
        let held = &self.lanes[lane];
        held.bytes < self.body.lanes[lane].bytes && !held.is_awaited && (held.bytes == 0 || held.is_idle())
    }

    /// Returns the bytes of a lane that has room for the body in use, and `with_others` for those to which
    /// the program has come back: one that it has left for good would keep memory that nothing uses.
    pub(crate) fn lane_bytes(&self, lane: usize, with_others: bool) -> u64 {
        let others = self.others.iter().filter(|other| with_others && other.is_revisited);
        others.fold(self.body.lanes[lane].bytes, |most, other| most.max(other.lanes[lane].bytes))
    }

    /// Returns the bytes that the lanes lack.
    pub(crate) fn missing(&self, with_others: bool) -> u64 {
        let lacks =
            |(lane, held): (usize, &Lane)| self.lane_bytes(lane, with_others).saturating_sub(held.bytes);
        self.lanes.iter().enumerate().map(lacks).sum()
    }

    /// Returns the position of a request in another body, and goes on there: of the first request after the
    /// place where the program left the body before, or of the last of some in a row.
    pub(super) fn find_elsewhere(&mut self, bytes: u64, stream: StreamId) -> Option<u32> {
        if self.others.is_empty() {
            return None;
        }
        // From the end of one to the begin of another, or as it went before.
        let ways = [(0, 0), (self.body.exit, NONE)];
        for (_, entry) in ways.into_iter().filter(|way| self.slips == 1 && self.left_at == Some(way.0)) {
            let entry_of = |body: &Body| if entry == NONE { body.entry } else { entry };
            let comes_here = |body: &Body| body.has(entry_of(body), bytes, stream);
            if let Some(other) = self.others.iter().position(comes_here) {
                return Some(self.go_to(other, entry_of(&self.others[other])));
            }
        }
        let recent = self.recent;
        let found = self.others.iter_mut().enumerate().find_map(|(other, body)| {
            let at = body.find(recent, 0).filter(|at| body.has(*at, bytes, stream))?;
            Some((other, at))
        });
        let (other, at) = found?;
        self.fits = GRAM as u32;
        let body = &mut self.others[other];
        // The requests since the program left are in the other body, too.
        let since = self.slips.min(GRAM as u32) - 1;
        body.entry = (at + body.length() - since % body.length()) % body.length();
        Some(self.go_to(other, at))
    }

    /// Goes to a position of another body.
    fn go_to(&mut self, other: usize, at: u32) -> u32 {
        self.body.exit = self.left_at.unwrap_or(0);
        self.change_to(other);
        self.body.is_revisited = true;
        self.slips = 0;
        self.advance(at)
    }

    /// Puts another body into use.
    fn change_to(&mut self, other: usize) {
        for lane in 0..self.lanes.len() {
            self.keep_as_guests(lane);
        }
        #[cfg(test)]
        if self.mistake == Some(crate::plan::running::Mistake::ForgetsGuests) {
            for lane in &mut self.lanes {
                let bytes = lane.bytes;
                lane.guests.iter_mut().for_each(|guests| guests.gaps = Gaps::between([], bytes));
            }
        }
        std::mem::swap(&mut self.body, &mut self.others[other]);
        self.place.changes += 1;
        // Those that were left last are the first.
        self.others[..=other].rotate_right(1);
    }

    /// Makes guests of the blocks in the slots of a lane, so that the slots of another body are free only
    /// where these are not.
    fn keep_as_guests(&mut self, lane: usize) {
        if let Some(sharing) = &mut self.lanes[lane].sharing {
            // The slots of another body do not know behind which frees these are free.
            sharing.wait_for_all();
        }
        let of_lane = &self.lanes[lane];
        if of_lane.is_idle() && of_lane.foreign.is_empty() {
            return;
        }
        self.open_gaps(lane);
        let evicted = self.body.evict(lane);
        let Lane { guests: Some(guests), foreign, .. } = &mut self.lanes[lane] else { return };
        for (at, requested) in evicted {
            let slot = &self.body.slots[at as usize];
            if let Some(requested) = requested {
                guests.blocks.insert(slot.offset, (requested, slot.bytes));
            }
        }
        for foreign in foreign {
            if let Bytes::Slot(at) = foreign.what {
                let slot = &self.body.slots[at as usize];
                foreign.what = Bytes::Guest { offset: slot.offset, bytes: slot.bytes };
            }
        }
    }

    /// Lets the lane have guests.
    pub(super) fn open_gaps(&mut self, lane: usize) {
        if self.lanes[lane].guests.is_none() {
            let live = self.body.slots.iter().filter(|slot| slot.lane as usize == lane && slot.is_live());
            let mut used: Vec<_> = live.map(|slot| (slot.offset, slot.offset + slot.bytes)).collect();
            used.sort_unstable();
            let gaps = Gaps::between(used, self.lanes[lane].bytes);
            self.lanes[lane].guests = Some(Guests { gaps, blocks: Default::default() });
        }
    }
}
