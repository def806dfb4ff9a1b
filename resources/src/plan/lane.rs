//! The memory of one stream of a plan, or of all: its blocks, and the work that it waits for.

use millpond_core::{DevicePtr, StreamId, StreamRef};
use rustc_hash::FxHashMap;

use crate::plan::body::LanePlan;
use crate::plan::gaps::Gaps;
use crate::plan::marks::{Mark, Marks, Question};
use crate::plan::sharing::{SHARED, Sharing};

/// The blocks about which the driver is asked in one call, the oldest first.
const MOST_ASKED: usize = 64;

/// Memory that the layer took from upstream, for one stream or for all.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    pub(crate) base: Option<DevicePtr>,
    /// The bytes that were taken; 0 without memory.
    pub(crate) bytes: u64,
    /// The stream that it was taken on.
    pub(crate) stream: Option<StreamRef>,
    /// Whether a request is taking the lane's memory from upstream.
    pub(crate) is_awaited: bool,
    /// The blocks that were handed out so far.
    pub(crate) claims: u64,
    /// Those of them that were freed.
    pub(crate) frees: u64,
    /// The blocks that were freed on other streams than the lane's. Nothing uses their bytes before that work
    /// is done.
    pub(crate) foreign: Vec<Foreign>,
    /// The order of the streams, if they share the lane.
    pub(crate) sharing: Option<Sharing>,
    /// The blocks that lie in gaps of the plan, since there were some.
    pub(crate) guests: Option<Guests>,
    /// The work of the lane's own stream, and the blocks that had been handed out when it was marked.
    own: Option<(u64, Mark)>,
    /// The number of blocks that had been handed out when all work of the own stream was known to be done.
    done_claims: Option<u64>,
}

/// A block that was freed on another stream.
#[derive(Debug)]
pub(crate) struct Foreign {
    pub(crate) what: Bytes,
    mark: Mark,
}

/// Bytes of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bytes {
    /// Those of the slot at this position of the body in use.
    Slot(u32),
    Guest {
        offset: u64,
        bytes: u64,
    },
}

/// The blocks of a lane that lie beside the plan. A slot is then free only if none of them has its bytes.
#[derive(Debug)]
pub(crate) struct Guests {
    /// What neither slots nor guests use.
    pub(crate) gaps: Gaps,
    /// The bytes that each guest was asked for, and those that it has, by its offset.
    pub(crate) blocks: FxHashMap<u64, (u64, u64)>,
}

impl Lane {
    /// A lane without memory.
    pub(crate) fn new(plan: &LanePlan) -> Self {
        Self { sharing: (plan.stream == SHARED).then(Sharing::default), ..Self::default() }
    }

    /// Gives the lane memory that was taken on a stream.
    pub(crate) fn put(&mut self, base: DevicePtr, bytes: u64, stream: StreamRef) {
        (self.base, self.bytes, self.stream) = (Some(base), bytes, Some(stream));
        if let Some(sharing) = &mut self.sharing {
            let taken = sharing.freed(stream);
            sharing.wait_for(taken);
        }
    }

    /// Whether none of its blocks is in use.
    pub(crate) fn is_idle(&self) -> bool {
        self.claims == self.frees
    }

    /// Whether bytes wait for work of streams that one of them may ask about.
    pub(crate) fn has_waits(&self) -> bool {
        !self.foreign.is_empty() || self.sharing.as_ref().is_some_and(Sharing::has_waits)
    }

    /// Whether it has guests, or bytes of guests that were freed on other streams.
    pub(crate) fn has_guests(&self) -> bool {
        let is_guest = |foreign: &Foreign| matches!(foreign.what, Bytes::Guest { .. });
        self.guests.as_ref().is_some_and(|guests| !guests.blocks.is_empty())
            || self.foreign.iter().any(is_guest)
    }

    /// Keeps bytes until the work that a stream has now is done; returns the number of the mark.
    pub(crate) fn keep_until(&mut self, what: Bytes, mark: Mark) -> u64 {
        let number = mark.number();
        self.foreign.push(Foreign { what, mark });
        number
    }

    /// Whether all of its memory may pass to the stream, in whose order the lane's `own` blocks were freed,
    /// or whatever stream it is.
    pub(crate) fn may_leave(&self, stream: StreamId, own: StreamId) -> bool {
        if let Some(sharing) = &self.sharing {
            return self.claims == self.frees && sharing.is_all_free_for(stream);
        }
        let is_done = self.done_claims == Some(self.claims);
        self.is_idle() && self.foreign.is_empty() && (stream == own || is_done)
    }

    /// Marks the present work of an idle lane's own stream, or of all that share it, unless that has been
    /// done.
    pub(crate) fn mark_own(&mut self, id: StreamId, marks: &mut Marks) {
        if let Some(sharing) = &mut self.sharing {
            return sharing.mark_all(marks);
        }
        let is_marked = self.own.as_ref().is_some_and(|(claims, _)| *claims == self.claims);
        let Some(stream) = self.stream.filter(|_| self.is_idle() && !is_marked) else { return };
        if self.done_claims != Some(self.claims) {
            let stale = self.own.replace((self.claims, marks.mark(id, stream)));
            stale.into_iter().for_each(|(_, mark)| marks.forget(mark));
        }
    }

    /// The questions about blocks that were freed on other streams.
    pub(crate) fn ask_foreign(&self, marks: &mut Marks, questions: &mut Vec<Question>) {
        let oldest = self.foreign.iter().take(MOST_ASKED);
        questions.extend(oldest.map(|foreign| marks.ask(&foreign.mark)));
    }

    /// The questions about all work that the lane waits for.
    pub(crate) fn ask_all(&self, marks: &mut Marks, questions: &mut Vec<Question>) {
        self.ask_foreign(marks, questions);
        self.sharing.iter().for_each(|sharing| sharing.ask_all(marks, questions));
        questions.extend(self.own.as_ref().map(|(_, mark)| marks.ask(mark)));
    }

    pub(crate) fn find_mark(&mut self, number: u64) -> Option<&mut Mark> {
        let own = self.own.iter_mut().map(|(_, mark)| mark);
        // A free asks for the newest at once.
        let newest_first = self.foreign.iter_mut().rev().map(|foreign| &mut foreign.mark);
        let mut known = newest_first.chain(own);
        let shared = self.sharing.as_mut().and_then(|sharing| sharing.find_mark(number));
        shared.or_else(|| known.find(|it| it.number() == number))
    }

    /// Ends the waits for all work whose marks `is_done` names; returns the bytes that become free.
    pub(crate) fn end_waits(&mut self, marks: &mut Marks, is_done: impl Fn(u64) -> bool) -> Vec<Bytes> {
        if let Some((claims, mark)) = self.own.take_if(|(_, mark)| is_done(mark.number())) {
            self.done_claims = Some(claims);
            marks.forget(mark);
        }
        if let Some(sharing) = &mut self.sharing {
            sharing.end_waits(marks, &is_done);
        }
        let done = self.foreign.extract_if(.., |foreign| is_done(foreign.mark.number()));
        let done: Vec<_> = done.collect();
        done.into_iter()
            .map(|foreign| {
                marks.forget(foreign.mark);
                foreign.what
            })
            .collect()
    }

    /// Takes the memory out of the lane. Returns its start and its bytes.
    pub(crate) fn take_base(&mut self, marks: &mut Marks) -> Option<(DevicePtr, u64)> {
        let base = self.base.take()?;
        let bytes = std::mem::take(&mut self.bytes);
        self.guests = None;
        // What is taken next may have work of its stream.
        self.done_claims = None;
        let foreign = self.foreign.drain(..).map(|foreign| foreign.mark);
        let own = self.own.take().map(|(_, mark)| mark);
        foreign.chain(own).for_each(|mark| marks.forget(mark));
        if let Some(sharing) = &mut self.sharing {
            sharing.forget(marks);
        }
        Some((base, bytes))
    }
}
