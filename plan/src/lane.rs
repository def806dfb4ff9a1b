//! The memory of one stream of a plan: its blocks, and the work that it waits for.

use millpond_core::{DevicePtr, StreamId, StreamRef};
use rustc_hash::FxHashMap;

use crate::gaps::Gaps;
use crate::marks::{Mark, Marks, Question};

/// The most blocks about which one call asks the driver. It asks about the oldest blocks first.
const MOST_ASKED: usize = 64;

/// Memory that the layer allocates from upstream for one stream.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// The bytes that the plan needs for the stream.
    pub(crate) bytes: u64,
    /// The address of these bytes, if they are allocated.
    pub(crate) base: Option<DevicePtr>,
    /// The stream on which the bytes were allocated.
    stream: Option<StreamRef>,
    /// Whether a request is allocating the lane's memory from upstream now.
    pub(crate) is_awaited: bool,
    /// The number of blocks that the lane has served so far.
    pub(crate) claims: u64,
    /// How many of these blocks were freed.
    pub(crate) frees: u64,
    /// The blocks that were freed on streams other than the lane's stream. Their bytes are used again only
    /// when that work is done.
    foreign: Vec<(Bytes, Mark)>,
    /// The blocks in gaps of the plan. There are none until the first such block.
    pub(crate) guests: Option<Guests>,
    /// The marked work of the lane's own stream, and the number of blocks that were served when the mark was
    /// made.
    own: Option<(u64, Mark)>,
    /// The number of blocks that were served when all work of the lane's own stream was known to be done.
    done_claims: Option<u64>,
}

/// Bytes of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bytes {
    /// The bytes of the slot at this position.
    Slot(u32),
    Guest {
        offset: u64,
        bytes: u64,
    },
}

/// The blocks of a lane that lie outside the plan. While there are such blocks, a slot is free only if none
/// of them uses its bytes.
#[derive(Debug)]
pub(crate) struct Guests {
    /// The bytes that neither slots nor guests use.
    pub(crate) gaps: Gaps,
    /// For each guest, by its offset: the requested bytes, and the bytes that it uses.
    pub(crate) blocks: FxHashMap<u64, (u64, u64)>,
}

impl Lane {
    /// Makes a lane without memory.
    pub(crate) fn new(bytes: u64) -> Self {
        Self { bytes, ..Self::default() }
    }

    /// Returns the bytes that are allocated from upstream.
    pub(crate) fn held_bytes(&self) -> u64 {
        if self.base.is_some() { self.bytes } else { 0 }
    }

    /// Returns the blocks that lie outside the plan, in no particular order: offset, bytes, and requested
    /// bytes.
    pub(crate) fn guests(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let guests = self.guests.iter().flat_map(|guests| &guests.blocks);
        guests.map(|(offset, (requested, bytes))| (*offset, *bytes, *requested))
    }

    /// Gives the lane memory that was allocated on a stream.
    pub(crate) fn put(&mut self, base: DevicePtr, stream: StreamRef) {
        (self.base, self.stream) = (Some(base), Some(stream));
    }

    /// Returns the distance of an address in the lane from its start.
    pub(crate) fn offset_of(&self, ptr: DevicePtr) -> Option<u64> {
        let offset = ptr.address().wrapping_sub(self.base?.address());
        (offset < self.bytes).then_some(offset)
    }

    /// Returns whether no block of the lane is in use.
    pub(crate) fn is_idle(&self) -> bool {
        self.claims == self.frees
    }

    /// Returns whether blocks were freed on other streams and the work of these streams may not be done.
    pub(crate) fn has_waits(&self) -> bool {
        !self.foreign.is_empty()
    }

    /// Returns whether the lane has guests, or bytes of guests that were freed on other streams.
    pub(crate) fn has_guests(&self) -> bool {
        let is_guest = |(what, _): &(Bytes, Mark)| matches!(what, Bytes::Guest { .. });
        self.guests.as_ref().is_some_and(|guests| !guests.blocks.is_empty())
            || self.foreign.iter().any(is_guest)
    }

    /// Keeps bytes until the present work of a stream is done. Returns the number of the mark.
    pub(crate) fn keep_until(&mut self, what: Bytes, mark: Mark) -> u64 {
        let number = mark.number();
        self.foreign.push((what, mark));
        number
    }

    /// Returns whether all memory of the lane may move to a stream. The lane's own stream may always get it,
    /// because its blocks were freed in that order. Other streams may get it when the work on the blocks is
    /// done.
    pub(crate) fn may_leave(&self, is_own: bool) -> bool {
        let is_done = self.done_claims == Some(self.claims);
        self.is_idle() && self.foreign.is_empty() && (is_own || is_done)
    }

    /// Marks the present work of an idle lane's own stream, unless that work is already done.
    pub(crate) fn mark_own(&mut self, id: StreamId, marks: &mut Marks) {
        let is_marked = self.own.as_ref().is_some_and(|(claims, _)| *claims == self.claims);
        let Some(stream) = self.stream.filter(|_| self.is_idle() && !is_marked) else { return };
        if self.done_claims != Some(self.claims) {
            let stale = self.own.replace((self.claims, marks.mark(id, stream)));
            stale.into_iter().for_each(|(_, mark)| marks.forget(mark));
        }
    }

    /// Adds the questions about blocks that were freed on other streams.
    pub(crate) fn ask_foreign(&self, marks: &mut Marks, questions: &mut Vec<Question>) {
        let oldest = self.foreign.iter().take(MOST_ASKED);
        questions.extend(oldest.map(|(_, mark)| marks.ask(mark)));
    }

    /// Adds the questions about all work that the lane waits for.
    pub(crate) fn ask_all(&self, marks: &mut Marks, questions: &mut Vec<Question>) {
        self.ask_foreign(marks, questions);
        questions.extend(self.own.as_ref().map(|(_, mark)| marks.ask(mark)));
    }

    pub(crate) fn find_mark(&mut self, number: u64) -> Option<&mut Mark> {
        let own = self.own.iter_mut().map(|(_, mark)| mark);
        // A free asks at once whether the newest mark is done.
        let newest_first = self.foreign.iter_mut().rev().map(|(_, mark)| mark);
        newest_first.chain(own).find(|it| it.number() == number)
    }

    /// Ends the waits for work whose marks `is_done` accepts. Returns the bytes that become free.
    pub(crate) fn end_waits(&mut self, marks: &mut Marks, is_done: impl Fn(u64) -> bool) -> Vec<Bytes> {
        if let Some((claims, mark)) = self.own.take_if(|(_, mark)| is_done(mark.number())) {
            self.done_claims = Some(claims);
            marks.forget(mark);
        }
        let done = self.foreign.extract_if(.., |(_, mark)| is_done(mark.number()));
        done.map(|(what, mark)| {
            marks.forget(mark);
            what
        })
        .collect()
    }

    /// Removes the memory from the lane.
    pub(crate) fn take_base(&mut self, marks: &mut Marks) -> Option<DevicePtr> {
        let base = self.base.take()?;
        self.guests = None;
        // The lane's next memory may have unfinished work on its stream.
        self.done_claims = None;
        let foreign = self.foreign.drain(..).map(|(_, mark)| mark);
        let own = self.own.take().map(|(_, mark)| mark);
        foreign.chain(own).for_each(|mark| marks.forget(mark));
        Some(base)
    }
}
