//! A plan in use: where in the body the program is, and the memory of each stream.

use millpond_core::misuse::MisuseKind;
use millpond_core::{DevicePtr, StreamId};

use crate::plan::body::{Body, GRAM, NONE};
use crate::plan::history::key;

/// How far ahead of its place a request is looked for after the program left something out.
const WINDOW: u32 = 8;

/// The fewest requests over which a plan is judged.
const LEAST_WINDOW: u32 = 64;

/// The memory of one stream that the layer took from upstream.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    pub(crate) base: Option<DevicePtr>,
    /// The number of blocks in use.
    pub(crate) live: u32,
    /// The slots of blocks that were freed on another stream. Nothing uses them until the lane has been given
    /// back after a wait for the device.
    pub(crate) foreign: Vec<u32>,
}

/// What became of a plan at the end of a window of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Good,
    /// The program does not follow the plan.
    Dropped,
}

/// A mistake that tests must find.
#[cfg(test)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mistake {
    /// Slots are handed out whatever they hold.
    Unchecked,
    /// A slot is free for its stream as soon as its block was freed on any stream.
    TooEarly,
}

/// A plan in use.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) body: Body,
    pub(crate) lanes: Vec<Lane>,
    /// The most bytes that upstream held before the plan, if it counts them.
    pub(crate) limit_bytes: Option<u64>,
    /// The slot whose block has a place; [`NONE`] if none has.
    holders: Vec<u32>,
    /// The bytes that each slot's block was asked for.
    requested: Vec<u64>,
    /// The position of the next expected request, once it is known.
    cursor: Option<u32>,
    /// Whether a body has begun since the plan was made.
    is_begun: bool,
    /// The last keys that did not fit.
    recent: [u64; GRAM],
    /// The requests in a row that did not fit.
    slips: u32,
    /// The requests of the present window, and those of them that found no slot.
    window: (u32, u32),
    /// The windows in a row with too many misses.
    bad: u32,
    /// No more requests are served, and the lanes go back as soon as they can.
    pub(crate) is_retired: bool,
    /// The mistake that tests must find.
    #[cfg(test)]
    pub(crate) mistake: Option<Mistake>,
}

impl Running {
    pub(crate) fn new(body: Body, limit_bytes: Option<u64>) -> Self {
        Self {
            limit_bytes,
            lanes: body.lanes.iter().map(|_| Lane::default()).collect(),
            holders: vec![NONE; body.places as usize],
            requested: vec![0; body.slots.len()],
            cursor: None,
            is_begun: false,
            recent: [0; GRAM],
            slips: 0,
            window: (0, 0),
            bad: 0,
            is_retired: false,
            body,
            #[cfg(test)]
            mistake: None,
        }
    }

    fn length(&self) -> u32 {
        self.body.slots.len() as u32
    }

    fn fits(&self, at: u32, bytes: u64, stream: StreamId) -> bool {
        let slot = &self.body.slots[at as usize];
        slot.bytes == bytes && slot.stream == stream
    }

    /// Moves to the position after `at`.
    fn advance(&mut self, at: u32) -> u32 {
        self.is_begun |= at == 0;
        self.cursor = Some((at + 1) % self.length());
        at
    }

    /// Returns the slot for a request, which the program may have reached in another order; `None` for a
    /// request that the plan does not know.
    pub(crate) fn locate(&mut self, bytes: u64, stream: StreamId) -> Option<u32> {
        if let Some(at) = self.cursor
            && self.fits(at, bytes, stream)
        {
            self.slips = 0;
            return Some(self.advance(at));
        }
        self.locate_anew(bytes, stream)
    }

    #[cold]
    fn locate_anew(&mut self, bytes: u64, stream: StreamId) -> Option<u32> {
        self.slips = self.slips.saturating_add(1);
        self.recent.rotate_left(1);
        self.recent[GRAM - 1] = key(bytes, stream);
        if let Some(at) = self.cursor {
            let slot = &self.body.slots[at as usize];
            // A smaller request in the place of the expected one.
            if slot.stream == stream && bytes < slot.bytes && bytes >= slot.bytes / 2 {
                return Some(self.advance(at));
            }
            // After one that was in the place of the expected one, or after some that were left out.
            let ahead = |step| (u64::from(at) + u64::from(step)) % u64::from(self.length());
            let found = (1..=WINDOW).map(|step| ahead(step) as u32);
            let found = if self.slips < 2 {
                None
            } else {
                found.into_iter().find(|at| self.fits(*at, bytes, stream))
            };
            if let Some(found) = found {
                self.slips = 0;
                return Some(self.advance(found));
            }
        }
        if self.slips < GRAM as u32 {
            return None;
        }
        let found = self.body.find(self.recent, self.cursor.unwrap_or(0))?;
        self.slips = 0;
        Some(self.advance(found))
    }

    /// Returns whether a request for a slot may be served from it: whether the plan has begun and knows the
    /// life of the block.
    pub(crate) fn lane_of(&self, slot: u32) -> Option<usize> {
        let lane = self.body.slots[slot as usize].lane;
        (lane != NONE && self.is_begun && !self.is_retired).then_some(lane as usize)
    }

    /// Hands out a slot, unless a block has some of its bytes, or its lane has no memory.
    pub(crate) fn claim(&mut self, at: u32, bytes: u64) -> Option<DevicePtr> {
        let slot = self.body.slots[at as usize];
        let base = self.lanes[slot.lane as usize].base?;
        let is_free = self.body.claim(at);
        #[cfg(test)]
        let is_free = is_free || self.mistake == Some(Mistake::Unchecked);
        if !is_free {
            return None;
        }
        self.holders[slot.place as usize] = at;
        self.requested[at as usize] = bytes;
        self.lanes[slot.lane as usize].live += 1;
        Some(base.offset(slot.offset))
    }

    /// Returns the lane that an address lies in.
    pub(crate) fn lane_at(&self, ptr: DevicePtr) -> Option<usize> {
        let holds = |(lane, plan): (&Lane, &crate::plan::body::LanePlan)| {
            lane.base.is_some_and(|base| ptr.address().wrapping_sub(base.address()) < plan.bytes)
        };
        self.lanes.iter().zip(&self.body.lanes).position(holds)
    }

    /// Returns the slot whose block starts at an address of the lane, and the bytes that were asked for.
    pub(crate) fn block_at(&self, lane: usize, ptr: DevicePtr) -> Option<(u32, u64)> {
        let offset = ptr.address() - self.lanes[lane].base?.address();
        let place = *self.body.lanes[lane].places.get(&offset)?;
        let at = self.holders[place as usize];
        (at != NONE).then(|| (at, self.requested[at as usize]))
    }

    /// Takes a block of the lane back, in the order of `stream`.
    pub(crate) fn free(
        &mut self,
        lane: usize,
        ptr: DevicePtr,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), MisuseKind> {
        let (at, requested) = self.block_at(lane, ptr).ok_or(MisuseKind::ForeignPointer)?;
        if bytes != requested {
            return Err(MisuseKind::WrongSize { allocated_bytes: requested });
        }
        self.holders[self.body.slots[at as usize].place as usize] = NONE;
        self.lanes[lane].live -= 1;
        let is_own = stream == self.body.lanes[lane].stream;
        #[cfg(test)]
        let is_own = is_own || self.mistake == Some(Mistake::TooEarly);
        if is_own {
            self.body.release(at);
        } else {
            self.lanes[lane].foreign.push(at);
        }
        Ok(())
    }

    /// Takes the memory of a lane without blocks out of it, for a caller whose stream is `stream`, or who has
    /// waited for the device (`None`). The caller gives it back to upstream.
    pub(crate) fn take_idle(&mut self, lane: usize, stream: Option<StreamId>) -> Option<(DevicePtr, u64)> {
        let idle = &mut self.lanes[lane];
        let is_ordered =
            stream.is_none_or(|id| id == self.body.lanes[lane].stream && idle.foreign.is_empty());
        if idle.live > 0 || !is_ordered {
            return None;
        }
        let base = idle.base.take()?;
        for at in std::mem::take(&mut idle.foreign) {
            self.body.release(at);
        }
        Some((base, self.body.lanes[lane].bytes))
    }

    /// Returns the bytes taken from upstream, and those of them in lanes without blocks.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let taken = self.lanes.iter().zip(&self.body.lanes).filter(|(lane, _)| lane.base.is_some());
        taken.fold((0, 0), |(all, idle), (lane, plan)| {
            (all + plan.bytes, idle + if lane.live == 0 { plan.bytes } else { 0 })
        })
    }

    /// Counts a request, and says at the end of a window whether the plan is worth keeping: it is dropped
    /// after two windows in a row in which more than a quarter of the requests found no slot.
    pub(crate) fn judge(&mut self, is_miss: bool) -> Verdict {
        let (requests, misses) = &mut self.window;
        *requests += 1;
        *misses += u32::from(is_miss);
        if *requests < (self.body.slots.len() as u32).max(LEAST_WINDOW) {
            return Verdict::Good;
        }
        let is_bad = u64::from(*misses) * 4 > u64::from(*requests);
        self.window = (0, 0);
        self.bad = if is_bad { self.bad + 1 } else { 0 };
        if self.bad < 2 { Verdict::Good } else { Verdict::Dropped }
    }
}
