//! The slots of a plan: the address of each allocation, and the slots that use this address before it.

use std::collections::BTreeMap;
use std::hash::Hasher;

use millpond_core::StreamId;
use millpond_planning::ProgramPlan;
use rustc_hash::{FxHashMap, FxHasher};

/// The value that means that no slot has a block at an address.
const NONE: u32 = u32::MAX;

/// Marks a predecessor that uses the address in the previous pass.
const EARLIER_PASS: u32 = 1 << 31;

/// The number of consecutive requests that identify a position.
pub(crate) const GRAM: usize = 6;

/// One allocation of the plan.
///
/// Every byte of a lane moves from slot to slot in the order of the plan, and from the last slot to the first
/// slot of the next pass. A slot owns a byte from the time when its predecessor releases it until the slot
/// itself releases it. So two blocks never share a byte, whatever the program or the planner did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    /// The size in bytes.
    pub(crate) bytes: u64,
    /// The number of the allocation's stream, which is also the number of its lane.
    pub(crate) stream: u32,
    /// The distance from the start of the lane, in bytes.
    pub(crate) offset: u64,
    /// The number of the pair of lane and offset; [`NONE`] if the plan leaves the allocation to upstream.
    place: u32,
    /// The end of the slot's predecessors in the list of all predecessors. They begin where the previous
    /// slot's predecessors end.
    predecessors_end: u32,
    /// How often the slot was used or skipped.
    turns: u64,
    /// Whether the slot holds a block, or a block that was freed on another stream whose work may not be
    /// done.
    is_live: bool,
}

/// The slots of a plan, by their positions.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    predecessors: Vec<u32>,
    /// The streams by their numbers, as far as requests have named them.
    streams: Vec<Option<StreamId>>,
    /// For each lane, the number of each offset at which a slot starts.
    places: Vec<FxHashMap<u64, u32>>,
    /// For each lane and offset, the position of the slot whose block is there; [`NONE`] if there is no
    /// block.
    holders: Vec<u32>,
    /// The requested bytes of each slot's block.
    requested: Vec<u64>,
    /// The hash of each [`GRAM`] consecutive allocations, and the position of the last of them, sorted. The
    /// list is empty until it is needed.
    grams: Vec<(u64, u32)>,
}

impl Slots {
    pub(crate) fn new(plan: &ProgramPlan) -> Self {
        let parts = plan.parts();
        let lanes = parts.lanes.len();
        let mut places = vec![FxHashMap::default(); lanes];
        let mut count = 0;
        let slot = |allocation: &millpond_planning::PlannedAllocation| {
            let (stream, offset) = (allocation.stream, allocation.slot.map_or(0, |slot| slot.offset));
            let place = allocation.slot.map_or(NONE, |slot| {
                *places[stream as usize].entry(slot.offset).or_insert_with(|| {
                    count += 1;
                    count - 1
                })
            });
            let (bytes, predecessors_end) = (allocation.bytes, 0);
            Slot { bytes, stream, offset, place, predecessors_end, turns: 0, is_live: false }
        };
        let slots: Vec<Slot> = parts.allocations.iter().map(slot).collect();
        let mut this = Self {
            requested: vec![0; slots.len()],
            holders: vec![NONE; count as usize],
            streams: vec![None; lanes],
            slots,
            places,
            ..Self::default()
        };
        this.link(lanes);
        this
    }

    /// For each slot, finds the slots that use its addresses before it. Slots are adjacent like rectangles in
    /// a plane, so there are at most three times as many predecessors as slots.
    fn link(&mut self, lanes: usize) {
        let mut owners: Vec<BTreeMap<u64, (u64, u32)>> = vec![BTreeMap::new(); lanes];
        // The first pass only finds the predecessors of the first slots of the second pass.
        for is_second in [false, true] {
            for index in 0..self.slots.len() as u32 {
                let slot = self.slots[index as usize];
                let first = self.predecessors.len();
                if slot.place != NONE {
                    let found = &mut self.predecessors;
                    let owners = &mut owners[slot.stream as usize];
                    occupy(owners, slot.offset, slot.offset + slot.bytes, index, |before| {
                        if is_second {
                            found.push(if before >= index { before | EARLIER_PASS } else { before });
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

    pub(crate) fn length(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns the slot at a position.
    pub(crate) fn at(&self, at: u32) -> &Slot {
        &self.slots[at as usize]
    }

    /// Returns whether the allocation at a position has a slot. If it has none, the plan leaves it to
    /// upstream.
    pub(crate) fn is_placed(&self, at: u32) -> bool {
        self.at(at).place != NONE
    }

    /// Returns whether the allocation at a position has this size and stream.
    pub(crate) fn has(&self, at: u32, bytes: u64, stream: StreamId) -> bool {
        let slot = self.at(at);
        slot.bytes == bytes && self.streams[slot.stream as usize] == Some(stream)
    }

    /// Returns the number of a stream that a request has named.
    pub(crate) fn number_of(&self, stream: StreamId) -> Option<u32> {
        self.streams.iter().position(|known| *known == Some(stream)).map(|number| number as u32)
    }

    /// Returns the stream of a position, if a request has named it.
    pub(crate) fn stream_at(&self, at: u32) -> Option<StreamId> {
        self.streams[self.at(at).stream as usize]
    }

    /// Returns the stream of a lane, if a request has named it.
    pub(crate) fn stream_of(&self, lane: usize) -> Option<StreamId> {
        self.streams[lane]
    }

    /// If the stream number at the position has no stream yet, and the stream has no number yet, connects the
    /// two. Returns whether it did.
    pub(crate) fn name_stream(&mut self, at: u32, bytes: u64, stream: StreamId) -> bool {
        let slot = self.at(at);
        let number = slot.stream as usize;
        let is_it = slot.bytes == bytes && self.streams[number].is_none() && self.number_of(stream).is_none();
        if is_it {
            self.streams[number] = Some(stream);
        }
        is_it
    }

    /// Returns the position of the last of these requests. If they match several times, it is the nearest
    /// match at or after `from`.
    pub(crate) fn find(&mut self, requests: &[(u64, StreamId); GRAM], from: u32) -> Option<u32> {
        if self.grams.is_empty() {
            self.grams = self.all_grams();
        }
        let number = |stream| self.number_of(stream).unwrap_or(NONE);
        let gram = gram_of(requests.map(|(bytes, stream)| key(bytes, number(stream))));
        let next = |from| {
            let index = self.grams.partition_point(|entry| *entry < (gram, from));
            self.grams.get(index).filter(|(found, _)| *found == gram).map(|(_, at)| *at)
        };
        let &(bytes, stream) = requests.last()?;
        // Other requests may have the same hash.
        next(from).or_else(|| next(0)).filter(|at| self.has(*at, bytes, stream))
    }

    fn all_grams(&self) -> Vec<(u64, u32)> {
        let keys: Vec<u64> = self.slots.iter().map(|slot| key(slot.bytes, slot.stream)).collect();
        let before = |at: usize, back: usize| keys[(at + GRAM * keys.len() - back) % keys.len()];
        let gram = |at: usize| gram_of(std::array::from_fn(|index| before(at, GRAM - 1 - index)));
        let mut grams: Vec<(u64, u32)> = (0..keys.len()).map(|at| (gram(at), at as u32)).collect();
        grams.sort_unstable();
        grams
    }

    fn predecessors(&self, index: u32) -> std::ops::Range<usize> {
        let start = index.checked_sub(1).map_or(0, |before| self.slots[before as usize].predecessors_end);
        start as usize..self.slots[index as usize].predecessors_end as usize
    }

    /// Returns whether a predecessor has released its bytes to the slot's next turn.
    #[inline]
    fn has_passed(&self, predecessor: u32, turns: u64) -> bool {
        let before = &self.slots[(predecessor & !EARLIER_PASS) as usize];
        let passed = before.turns - u64::from(before.is_live) + u64::from(predecessor >= EARLIER_PASS);
        passed > turns
    }

    /// Gives the slot to a block, if no block uses any of its bytes.
    pub(crate) fn claim(&mut self, index: u32) -> bool {
        // A request catches up on slots that were skipped before it, but on few at a time.
        let is_free = self.take_turn(index, &mut 64);
        self.slots[index as usize].is_live |= is_free;
        is_free
    }

    /// Stores the block of a claimed slot, and the block's requested bytes.
    pub(crate) fn note_block(&mut self, index: u32, requested: u64) {
        self.holders[self.slots[index as usize].place as usize] = index;
        self.requested[index as usize] = requested;
    }

    /// Returns the position of the slot whose block starts at an offset of a lane, and its requested bytes.
    pub(crate) fn block_at(&self, lane: usize, offset: u64) -> Option<(u32, u64)> {
        let at = self.holders[*self.places[lane].get(&offset)? as usize];
        (at != NONE).then(|| (at, self.requested[at as usize]))
    }

    /// Returns the blocks of a lane, in no particular order: offset, bytes of the slot, and requested bytes.
    pub(crate) fn live(&self, lane: usize) -> impl Iterator<Item = (u64, u64, u64)> {
        self.places[lane].iter().filter_map(|(offset, place)| {
            let at = self.holders[*place as usize];
            (at != NONE).then(|| (*offset, self.slots[at as usize].bytes, self.requested[at as usize]))
        })
    }

    /// Returns whether a slot starts at an offset of a lane.
    pub(crate) fn is_start(&self, lane: usize, offset: u64) -> bool {
        self.places[lane].contains_key(&offset)
    }

    /// Records that a slot's block was freed. The slot keeps its bytes until [`release`](Self::release).
    pub(crate) fn forget_block(&mut self, index: u32) {
        self.holders[self.slots[index as usize].place as usize] = NONE;
    }

    /// Ends a block's use of the slot.
    pub(crate) fn release(&mut self, index: u32) {
        self.slots[index as usize].is_live = false;
    }

    /// Returns the bytes of a lane that its slots use, as offsets from start to end, sorted.
    pub(crate) fn used(&self, lane: usize) -> Vec<(u64, u64)> {
        let live = self.slots.iter().filter(|slot| slot.stream as usize == lane && slot.is_live);
        let mut used: Vec<_> = live.map(|slot| (slot.offset, slot.offset + slot.bytes)).collect();
        used.sort_unstable();
        used
    }

    /// Skips a slot, if no block uses any of its bytes. The bytes move to the next slots.
    pub(crate) fn pass_over(&mut self, index: u32) {
        if self.is_placed(index) && !self.at(index).is_live {
            self.take_turn(index, &mut 4);
        }
    }

    /// Makes the slots before `index` release their bytes, unless a block uses these bytes. The program
    /// skipped these slots, or their requests were served from other memory.
    pub(crate) fn catch_up(&mut self, index: u32) {
        let turns = self.slots[index as usize].turns;
        // The first round ends the previous pass.
        for _round in 0..2 {
            for at in 0..self.length() {
                let slot = self.at(at);
                let due = turns + u64::from(at < index);
                if slot.place != NONE && !slot.is_live && slot.turns < due {
                    self.take_turn(at, &mut 0);
                }
            }
        }
    }

    /// Moves the lowest slots down, except for slots at offset 0. The check does not know of this.
    #[cfg(test)]
    pub(crate) fn shift(&mut self, by: u64) {
        let lowest =
            self.slots.iter().map(|slot| slot.offset).filter(|at| *at > 0).min().expect("there is one");
        for slot in self.slots.iter_mut().filter(|slot| slot.offset == lowest) {
            slot.offset -= by;
            self.places[slot.stream as usize].insert(slot.offset, slot.place);
        }
    }

    /// Takes the slot's next turn. First takes the turns of at most `budget` idle predecessors that were
    /// skipped. Returns whether all predecessors have released their bytes.
    fn take_turn(&mut self, index: u32, budget: &mut u32) -> bool {
        let turns = self.slots[index as usize].turns;
        for at in self.predecessors(index) {
            let predecessor = self.predecessors[at];
            if self.has_passed(predecessor, turns) {
                continue;
            }
            let before = predecessor & !EARLIER_PASS;
            if self.slots[before as usize].is_live || *budget == 0 {
                return false;
            }
            *budget -= 1;
            if before == index || !self.take_turn(before, budget) || !self.has_passed(predecessor, turns) {
                return false;
            }
        }
        // A slot never waits for itself through other slots: in any circle of slots, one slot has released
        // its bytes.
        debug_assert_eq!(self.slots[index as usize].turns, turns, "slots wait for each other");
        self.slots[index as usize].turns += 1;
        true
    }
}

/// Returns a key that identifies an allocation. Two different allocations may have the same key by chance.
/// Then a request may only lose its position in the plan.
fn key(bytes: u64, stream: u32) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write_u64(bytes);
    hasher.write_u64(u64::from(stream));
    hasher.finish()
}

/// Returns the hash of several consecutive keys.
fn gram_of(keys: [u64; GRAM]) -> u64 {
    keys.into_iter().fold(0, |hash: u64, key| (hash.rotate_left(5) ^ key).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// Gives a range of addresses to `owner`. Returns the previous owners of the parts of the range.
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
