//! The plan of one body: a slot for each allocation, and the slots that had its addresses before it.

use std::collections::BTreeMap;

use millpond_core::StreamId;
use millpond_planning::ProgramPlan;
use rustc_hash::FxHashMap;

use crate::plan::history::key;
use crate::plan::repetition::{GRAM, gram_of};
use crate::plan::sharing::Freed;

/// No lane, or no slot.
pub(crate) const NONE: u32 = u32::MAX;

/// Marks a predecessor that has the address in the body before.
const EARLIER_BODY: u32 = 1 << 31;

/// The place of one allocation of the body.
///
/// Every byte of a lane passes from slot to slot in the order of the body, and from the last one to the first
/// one of the next body. A slot has a byte from the time when its predecessor is free of it until it is free
/// itself. So two blocks never share a byte, whatever the program does, and whatever the planner did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    /// The size in bytes.
    pub(crate) bytes: u64,
    /// The stream of the allocation.
    pub(crate) stream: StreamId,
    /// The lane; [`NONE`] for an allocation that the plan leaves to upstream.
    pub(crate) lane: u32,
    /// The distance from the start of the lane, in bytes.
    pub(crate) offset: u64,
    /// The number of the pair of lane and offset.
    pub(crate) place: u32,
    /// The end of the slot's part of the predecessors; it begins where that of the slot before ends.
    predecessors_end: u32,
    /// How often the slot was used or left out.
    turns: u64,
    /// Whether it holds a block.
    is_live: bool,
}

impl Slot {
    /// A slot that has no place yet.
    pub(super) fn new(bytes: u64, stream: StreamId, lane: u32) -> Self {
        Self { bytes, stream, lane, offset: 0, place: NONE, predecessors_end: 0, turns: 0, is_live: false }
    }

    /// Whether it holds a block, or one that was freed on another stream.
    pub(crate) fn is_live(&self) -> bool {
        self.is_live
    }
}

/// The memory of one stream, or what streams share.
#[derive(Debug)]
pub(crate) struct LanePlan {
    /// [`SHARED`] for what streams share.
    pub(crate) stream: StreamId,
    /// The size in bytes.
    pub(crate) bytes: u64,
    /// The place of each offset.
    pub(crate) places: FxHashMap<u64, u32>,
}

impl LanePlan {
    pub(super) fn new(stream: StreamId, bytes: u64) -> Self {
        Self { stream, bytes, places: FxHashMap::default() }
    }
}

/// Where a plan from a file comes from.
#[derive(Debug)]
pub(crate) struct FileOrigin {
    /// The hash of its log.
    pub(crate) log: String,
    /// The bytes that allocations without a slot have in use at a time, at most.
    pub(crate) beside: u64,
    /// The number of allocations before the first one that has a slot.
    pub(crate) lead: u32,
    /// The number of its streams.
    streams: usize,
    /// Those of them that a request has named.
    named: Vec<StreamId>,
}

/// Whether a slot was handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    Yes,
    /// A block has some of its bytes.
    Taken,
    /// Some of its bytes are free for another stream alone.
    Waits,
}

/// A body with its slots.
#[derive(Debug, Default)]
pub(crate) struct Body {
    pub(crate) slots: Vec<Slot>,
    pub(crate) lanes: Vec<LanePlan>,
    /// `None` for one that the layer planned.
    pub(crate) origin: Option<FileOrigin>,
    /// The number of places.
    pub(crate) places: u32,
    /// The slot whose block has a place; [`NONE`] if none has.
    pub(crate) holders: Vec<u32>,
    /// The bytes that each slot's block was asked for.
    pub(crate) requested: Vec<u64>,
    /// The position of the request after those that the body was learnt from.
    pub(crate) next: u32,
    /// Where the program came to this body from another one, and where it left, when it last did so.
    pub(crate) entry: u32,
    pub(crate) exit: u32,
    /// Whether it may be served. One that is short beside what was watched may be a loop inside a larger
    /// body, and has to settle first.
    pub(crate) is_trusted: bool,
    /// Whether the program has come to it from another body.
    pub(crate) is_revisited: bool,
    predecessors: Vec<u32>,
    /// Behind which frees the bytes of each slot are free, if streams share a lane.
    pub(super) freed: Vec<Freed>,
    /// The hash of each [`GRAM`] allocations in a row and the position of the last one, sorted; none until
    /// they are needed.
    pub(super) grams: Vec<(u64, u32)>,
}

impl Body {
    /// The body of a plan that was made before. Its streams are placeholders until requests name them.
    pub(crate) fn of_plan(plan: &ProgramPlan) -> Self {
        let parts = plan.parts();
        let mut body = Self::default();
        let mut lanes = Vec::new();
        for (number, &bytes) in (0..).zip(&parts.lanes) {
            lanes.push(if bytes > 0 { body.lanes.len() as u32 } else { NONE });
            if bytes > 0 {
                body.lanes.push(LanePlan::new(StreamId::placeholder(number), bytes));
            }
        }
        for allocation in &parts.allocations {
            let stream = StreamId::placeholder(allocation.stream);
            let lane = allocation.slot.map_or(NONE, |_| lanes[allocation.stream as usize]);
            let mut slot = Slot::new(allocation.bytes, stream, lane);
            if let Some(placed) = allocation.slot {
                (slot.offset, slot.place) = (placed.offset, body.place_at(lane as usize, placed.offset));
            }
            body.slots.push(slot);
        }
        body.link();
        body.is_trusted = true;
        body.origin = Some(FileOrigin {
            log: parts.log.to_string(),
            beside: parts.beside,
            lead: body.slots.iter().take_while(|slot| slot.lane == NONE).count() as u32,
            streams: parts.lanes.len(),
            named: Vec::new(),
        });
        body
    }

    /// The hash of the log that the plan was made from, if it is from a file.
    pub(crate) fn log(&self) -> Option<&str> {
        self.origin.as_ref().map(|origin| &*origin.log)
    }

    /// Takes the stream of a request for the one of the slot `at`, if the slot's is not known yet, and this
    /// one is not known as another.
    pub(crate) fn name_stream(&mut self, at: u32, bytes: u64, stream: StreamId) -> bool {
        let Some(origin) = self.origin.as_mut().filter(|origin| origin.named.len() < origin.streams) else {
            return false;
        };
        let Slot { bytes: expected, stream: unknown, .. } = self.slots[at as usize];
        if expected != bytes || !unknown.is_placeholder() || origin.named.contains(&stream) {
            return false;
        }
        origin.named.push(stream);
        let streams = self.slots.iter_mut().map(|slot| &mut slot.stream);
        let streams = streams.chain(self.lanes.iter_mut().map(|lane| &mut lane.stream));
        streams.filter(|known| **known == unknown).for_each(|known| *known = stream);
        self.grams.clear();
        true
    }

    /// Returns the number of the place at an offset of a lane.
    pub(super) fn place_at(&mut self, lane: usize, offset: u64) -> u32 {
        *self.lanes[lane].places.entry(offset).or_insert_with(|| {
            self.places += 1;
            self.places - 1
        })
    }

    /// Finds the slots that have each slot's addresses before it. Two neighbours touch each other like
    /// rectangles in a plane, so there are at most three times as many predecessors as slots.
    pub(super) fn link(&mut self) {
        self.holders = vec![NONE; self.places as usize];
        self.requested = vec![0; self.slots.len()];
        let mut owners: Vec<BTreeMap<u64, (u64, u32)>> = vec![BTreeMap::new(); self.lanes.len()];
        // The first body only says what the second one follows.
        for is_second in [false, true] {
            for index in 0..self.slots.len() as u32 {
                let slot = self.slots[index as usize];
                let first = self.predecessors.len();
                if slot.lane != NONE {
                    let found = &mut self.predecessors;
                    let owners = &mut owners[slot.lane as usize];
                    occupy(owners, slot.offset, slot.offset + slot.bytes, index, |before| {
                        if is_second {
                            found.push(if before >= index { before | EARLIER_BODY } else { before });
                        }
                    });
                    self.predecessors[first..].sort_unstable();
                    let mut distinct = self.predecessors.split_off(first);
                    distinct.dedup();
                    self.predecessors.append(&mut distinct);
                }
                self.slots[index as usize].predecessors_end = self.predecessors.len() as u32;
            }
        }
    }

    pub(super) fn all_grams(&self) -> Vec<(u64, u32)> {
        let keys: Vec<u64> = self.slots.iter().map(|slot| key(slot.bytes, slot.stream)).collect();
        let before = |at: usize, back: usize| keys[(at + GRAM * keys.len() - back) % keys.len()];
        let gram = |at: usize| gram_of(std::array::from_fn(|index| before(at, GRAM - 1 - index)));
        let mut grams: Vec<(u64, u32)> = (0..keys.len()).map(|at| (gram(at), at as u32)).collect();
        grams.sort_unstable();
        grams
    }

    /// Returns the position of the last of these allocations, the nearest one at or after `from`.
    pub(crate) fn find(&mut self, keys: [u64; GRAM], from: u32) -> Option<u32> {
        if self.grams.is_empty() {
            self.grams = self.all_grams();
        }
        let gram = gram_of(keys);
        let next = |from| {
            let index = self.grams.partition_point(|entry| *entry < (gram, from));
            self.grams.get(index).filter(|(found, _)| *found == gram).map(|(_, at)| *at)
        };
        next(from).or_else(|| next(0))
    }

    pub(crate) fn length(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Whether the allocation at a position is of this size and stream.
    pub(crate) fn has(&self, at: u32, bytes: u64, stream: StreamId) -> bool {
        let slot = &self.slots[at as usize];
        slot.bytes == bytes && slot.stream == stream
    }

    /// Has a lane for each of these streams, the first of which are its own.
    pub(crate) fn pad_lanes(&mut self, streams: &[StreamId]) {
        self.lanes.extend(streams[self.lanes.len()..].iter().map(|stream| LanePlan::new(*stream, 0)));
    }

    /// Numbers the lanes as in `streams`, which has the streams of all those that need memory.
    pub(crate) fn renumber_lanes(&mut self, streams: &[StreamId]) {
        let mut lanes: Vec<LanePlan> = streams.iter().map(|stream| LanePlan::new(*stream, 0)).collect();
        let mut numbers = Vec::with_capacity(self.lanes.len());
        for lane in self.lanes.drain(..) {
            let number = streams.iter().position(|stream| *stream == lane.stream);
            debug_assert!(number.is_some() || lane.bytes == 0, "a stream has no lane");
            numbers.push(number.map_or(NONE, |number| number as u32));
            if let Some(number) = number {
                lanes[number] = lane;
            }
        }
        self.lanes = lanes;
        for slot in self.slots.iter_mut().filter(|slot| slot.lane != NONE) {
            slot.lane = numbers[slot.lane as usize];
        }
    }

    /// Takes all blocks out of the slots of a lane. Returns the position of each slot that had one, and what
    /// was asked for it if it is in use and not only kept for another stream.
    pub(crate) fn evict(&mut self, lane: usize) -> Vec<(u32, Option<u64>)> {
        let mut evicted = Vec::new();
        for at in 0..self.length() {
            let slot = &mut self.slots[at as usize];
            if slot.is_live && slot.lane as usize == lane {
                slot.is_live = false;
                let holder = &mut self.holders[slot.place as usize];
                let is_in_use = *holder == at;
                if is_in_use {
                    *holder = NONE;
                }
                evicted.push((at, is_in_use.then(|| self.requested[at as usize])));
            }
        }
        evicted
    }

    /// Whether these are the keys of the body, from any of its positions on.
    pub(crate) fn is_turned(&mut self, keys: &[u64]) -> bool {
        let length = keys.len();
        if length != self.slots.len() {
            return false;
        }
        let Some(last) = self.find(std::array::from_fn(|index| keys[index % length]), 0) else {
            return false;
        };
        let first = last as usize + GRAM * length - (GRAM - 1);
        let own = self.keys();
        keys.iter().zip(first..).all(|(key, at)| *key == own[at % length])
    }

    pub(crate) fn keys(&self) -> Vec<u64> {
        self.slots.iter().map(|slot| key(slot.bytes, slot.stream)).collect()
    }

    /// Whether nearly all of what is in a shorter body with these keys is in this one, too: that one is a
    /// loop inside it.
    pub(crate) fn has_parts_of(&mut self, keys: &[u64]) -> bool {
        let gram = |at: usize| std::array::from_fn(|index| keys[(at + index) % keys.len()]);
        let found = (0..keys.len()).filter(|at| self.find(gram(*at), 0).is_some()).count();
        keys.len() < self.slots.len() && found * 20 >= keys.len() * 19
    }

    /// Returns the bytes of all lanes.
    pub(crate) fn bytes(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.bytes).sum()
    }

    fn predecessors(&self, index: u32) -> std::ops::Range<usize> {
        let start = index.checked_sub(1).map_or(0, |before| self.slots[before as usize].predecessors_end);
        start as usize..self.slots[index as usize].predecessors_end as usize
    }

    /// Returns whether a predecessor has passed its bytes on to the slot's next turn.
    #[inline]
    fn has_passed(&self, predecessor: u32, turns: u64) -> bool {
        let before = &self.slots[(predecessor & !EARLIER_BODY) as usize];
        let passed = before.turns - u64::from(before.is_live) + u64::from(predecessor >= EARLIER_BODY);
        passed > turns
    }

    /// Gives the slot to a block, if no block has any of its bytes, and `is_done` all that they wait for.
    pub(crate) fn claim(&mut self, index: u32, mut is_done: impl FnMut(Freed) -> bool) -> Claim {
        // A request pays for the slots that were left out before it, but not for many at once.
        let mut budget = 64;
        if !self.has_bytes(index, &mut budget) {
            return Claim::Taken;
        }
        if self.is_shared() {
            // Each of them is asked about, as the answer notes what is waited for.
            let freed = self.predecessors(index).map(|at| self.freed_by(at));
            let waiting = freed.filter(|freed| !is_done(*freed)).count();
            if waiting > 0 {
                return Claim::Waits;
            }
        }
        let slot = &mut self.slots[index as usize];
        slot.turns += 1;
        slot.is_live = true;
        Claim::Yes
    }

    /// Behind which frees the bytes of a predecessor are free.
    fn freed_by(&self, predecessor: usize) -> Freed {
        self.freed[(self.predecessors[predecessor] & !EARLIER_BODY) as usize]
    }

    /// Whether streams share a lane.
    pub(crate) fn is_shared(&self) -> bool {
        !self.freed.is_empty()
    }

    /// Leaves a slot out, if no block has any of its bytes: they pass on.
    pub(crate) fn pass_over(&mut self, index: u32) {
        let is_placed = self.slots[index as usize].lane != NONE;
        if is_placed && !self.slots[index as usize].is_live {
            self.take_turn(index, &mut 4);
        }
    }

    /// Lets the slots before `index` in the body have passed their bytes on, as far as no block has them: the
    /// program left them out, or was served otherwise.
    pub(crate) fn catch_up(&mut self, index: u32) {
        let turns = self.slots[index as usize].turns;
        // The first round ends the body before.
        for _round in 0..2 {
            for at in 0..self.slots.len() as u32 {
                let slot = &self.slots[at as usize];
                let due = turns + u64::from(at < index);
                if slot.lane != NONE && !slot.is_live && slot.turns < due {
                    self.take_turn(at, &mut 0);
                }
            }
        }
    }

    /// Leaves the slot's next turn out, after the turns of idle predecessors that were left out.
    fn take_turn(&mut self, index: u32, budget: &mut u32) -> bool {
        if !self.has_bytes(index, budget) {
            return false;
        }
        self.slots[index as usize].turns += 1;
        if self.is_shared() {
            let freed = self.predecessors(index).map(|at| self.freed_by(at));
            self.freed[index as usize] = freed.reduce(Freed::and).unwrap_or_default();
        }
        true
    }

    /// Whether all predecessors have passed their bytes on. Leaves out the turns of idle ones.
    fn has_bytes(&mut self, index: u32, budget: &mut u32) -> bool {
        let turns = self.slots[index as usize].turns;
        for at in self.predecessors(index) {
            let predecessor = self.predecessors[at];
            if self.has_passed(predecessor, turns) {
                continue;
            }
            let before = predecessor & !EARLIER_BODY;
            if self.slots[before as usize].is_live || *budget == 0 {
                return false;
            }
            *budget -= 1;
            if before == index || !self.take_turn(before, budget) || !self.has_passed(predecessor, turns) {
                return false;
            }
        }
        // A slot never waits for itself through others: one of any circle of slots has passed its bytes on.
        debug_assert_eq!(self.slots[index as usize].turns, turns, "slots wait for each other");
        true
    }

    /// Ends a block's use of the slot.
    pub(crate) fn release(&mut self, index: u32) {
        self.slots[index as usize].is_live = false;
    }

    /// Notes behind which frees the bytes of a slot that streams share are free.
    pub(crate) fn note_freed(&mut self, index: u32, freed: Freed) {
        self.freed[index as usize] = freed;
    }
}

/// Gives a range of addresses to `owner`, and names those who had parts of it.
fn occupy(
    owners: &mut BTreeMap<u64, (u64, u32)>,
    start: u64,
    end: u64,
    owner: u32,
    mut had: impl FnMut(u32),
) {
    if let Some((&first, &(last, before))) = owners.range(..start).next_back()
        && last > start
    {
        had(before);
        owners.insert(first, (start, before));
        if last > end {
            owners.insert(end, (last, before));
        }
    }
    while let Some((&first, &(last, before))) = owners.range(start..end).next() {
        had(before);
        owners.remove(&first);
        if last > end {
            owners.insert(end, (last, before));
        }
    }
    owners.insert(start, (end, owner));
}
