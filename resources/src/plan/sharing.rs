//! The order of streams in a lane that they share: behind which frees its bytes are free.
//!
//! A free on a stream makes bytes free for that stream at once, and for the others when its work up to there
//! is done. A request of another stream that needs such bytes has an event recorded, which covers all that
//! was freed on that stream before; a free on another stream than the block's own records it at once. A
//! request waits for no event; while one has not passed, the bytes count as used.

use std::collections::VecDeque;

use millpond_core::{StreamId, StreamRef};
use rustc_hash::FxHashMap;

use crate::plan::marks::{Mark, Marks, Question};

/// The id under which plans know the lane that streams share.
pub(crate) const SHARED: StreamId = StreamId::placeholder(u32::MAX);

/// The trial is over after this many tries: is the work of a stream done when the next request comes on
/// another?
const MOST_TRIED: u32 = 64;

/// It is over after this many bodies, too, with a few tries: long phases of one stream have few.
const TRIED_BODIES: u32 = 4;

/// The fewest tries of a trial.
const LEAST_TRIED: u32 = 8;

/// After this many bodies without enough tries nothing is shared.
const MOST_BODIES: u32 = 16;

/// The streams keep up with the host if at most this part of the tried work was not done.
const BEHIND_SHARE: u32 = 16;

/// The events that a stream has in flight at a time. While it has more to wait for, the oldest is asked
/// about.
const MOST_EVENTS: usize = 4;

/// The streams that a lane remembers before it forgets those whose work is done.
const MANY_STREAMS: usize = 64;

/// The frees behind which bytes are free: those on one stream, or on all streams, up to a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Freed {
    /// `None`: all streams.
    on: Option<StreamId>,
    /// The number of the last of the frees; 0 if there is none.
    number: u64,
}

impl Freed {
    /// What bytes wait for of which some wait for this and some for the other.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self.number, other.number) {
            (0, _) => other,
            (_, 0) => self,
            (one, two) => Self { on: self.on.filter(|_| self.on == other.on), number: one.max(two) },
        }
    }
}

/// A stream on which blocks of a shared lane were freed.
#[derive(Debug)]
struct Sharer {
    stream: StreamRef,
    /// The number of the last free on it.
    freed: u64,
    /// The number of the last free on it whose work is known to be done.
    done: u64,
    /// Work that may be done by now, the oldest first, and the number of the last free before it.
    marks: VecDeque<(u64, Mark)>,
}

impl Sharer {
    fn has_done(&self, number: u64) -> bool {
        self.done >= number.min(self.freed)
    }

    /// Marks the present work, unless that is marked, or there are many marks.
    fn mark(&mut self, id: StreamId, marks: &mut Marks) {
        let is_marked = self.marks.back().is_some_and(|(freed, _)| *freed == self.freed);
        if !is_marked && self.marks.len() < MOST_EVENTS {
            self.marks.push_back((self.freed, marks.mark(id, self.stream)));
        }
    }

    /// The question about the oldest mark behind a free; about the oldest of all if there is none.
    fn ask(&mut self, id: StreamId, number: u64, marks: &mut Marks) -> Option<Question> {
        if self.marks.back().is_none_or(|(freed, _)| *freed < number) {
            self.mark(id, marks);
        }
        let behind = self.marks.iter().find(|(freed, _)| *freed >= number);
        behind.or_else(|| self.marks.front()).map(|(_, mark)| marks.ask(mark))
    }
}

/// The streams of a lane that they share.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    streams: FxHashMap<StreamId, Sharer>,
    /// The number of frees so far.
    frees: u64,
    /// What all bytes wait for besides what their slots say: where the lane's memory comes from, blocks that
    /// had no slot, and those of another body.
    rest: Freed,
    /// The streams whose work a refused request waits for, and the number of the last free of each.
    awaited: Vec<(StreamId, u64)>,
    trial: Trial,
}

/// Tries before the lane is taken whether the streams keep up with the host. Where they do not, most bytes
/// that pass between streams would not be free in time, and upstream would serve these requests beside the
/// lane.
#[derive(Debug, Default)]
struct Trial {
    tried: u32,
    behind: u32,
    bodies: u32,
    /// The requests until the next try.
    pause: u32,
    /// Behind which work the next request of another stream would be.
    freed: Option<Freed>,
}

/// What the trial says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trust {
    /// The streams keep up with the host.
    KeepUp,
    /// They do not.
    Behind,
    /// It is not known yet.
    Open,
    /// The driver has to be asked about this.
    Ask(Freed),
}

impl Sharing {
    /// Counts a free on a stream, behind which the bytes are free.
    pub(crate) fn freed(&mut self, stream: StreamRef) -> Freed {
        let id = stream.id();
        self.frees += 1;
        if self.streams.len() >= MANY_STREAMS {
            self.streams.retain(|_, it| it.done < it.freed || !it.marks.is_empty());
        }
        let new = || Sharer { stream, freed: 0, done: 0, marks: VecDeque::new() };
        self.streams.entry(id).or_insert_with(new).freed = self.frees;
        Freed { on: Some(id), number: self.frees }
    }

    /// Marks the work of a stream, which may end soon. Returns the number of the mark, for the stream to
    /// record its event.
    pub(crate) fn mark(&mut self, stream: StreamId, marks: &mut Marks) -> Option<u64> {
        let sharer = self.streams.get_mut(&stream)?;
        sharer.mark(stream, marks);
        sharer.marks.back().filter(|(freed, _)| *freed == sharer.freed).map(|(_, mark)| mark.number())
    }

    /// Goes on with the trial at a request, one in `every`.
    pub(crate) fn try_order(&mut self, stream: StreamRef, every: u32) -> Trust {
        match self.trial.freed {
            Some(freed) if freed.on == Some(stream.id()) => {}
            Some(freed) if !self.is_done_for(freed, stream.id()) => return Trust::Ask(freed),
            Some(freed) => self.end_try(freed),
            None if self.trial.pause > 0 => self.trial.pause -= 1,
            None => {
                let freed = self.freed(stream);
                (self.trial.freed, self.trial.pause) = (Some(freed), every);
            }
        }
        self.trust()
    }

    /// Counts a try, after the driver was asked about it.
    pub(crate) fn end_try(&mut self, freed: Freed) {
        if self.trial.freed.take_if(|tried| *tried == freed).is_some() {
            let on = freed.on.and_then(|id| self.streams.get(&id));
            self.trial.tried += 1;
            self.trial.behind += u32::from(on.is_some_and(|sharer| !sharer.has_done(freed.number)));
        }
    }

    /// Counts a body that went by during the trial.
    pub(crate) fn end_tried_body(&mut self) {
        self.trial.bodies += 1;
    }

    pub(crate) fn trust(&self) -> Trust {
        let Trial { tried, behind, bodies, .. } = self.trial;
        let is_over = tried >= MOST_TRIED || bodies >= TRIED_BODIES && tried >= LEAST_TRIED;
        match is_over {
            true if behind > tried / BEHIND_SHARE => Trust::Behind,
            true => Trust::KeepUp,
            false if bodies >= MOST_BODIES => Trust::Behind,
            false => Trust::Open,
        }
    }

    /// Has all bytes wait for a free, too.
    pub(crate) fn wait_for(&mut self, freed: Freed) {
        self.rest = self.rest.and(freed);
    }

    /// Has all bytes wait for all frees so far: which bytes they freed is forgotten.
    pub(crate) fn wait_for_all(&mut self) {
        self.rest = Freed { on: None, number: self.frees };
    }

    /// Whether bytes that wait for `freed`, beside what all bytes wait for, are free for a stream. Notes the
    /// streams whose work they wait for.
    pub(crate) fn is_free_for(&mut self, freed: Freed, stream: StreamId) -> bool {
        let is_free = self.is_done_for(self.rest, stream) && self.is_done_for(freed, stream);
        if !is_free {
            self.note_awaited(self.rest, stream);
            self.note_awaited(freed, stream);
        }
        is_free
    }

    /// Whether all bytes that no block has are free for a stream.
    pub(crate) fn is_all_free_for(&self, stream: StreamId) -> bool {
        self.is_done_for(Freed { on: None, number: self.frees }, stream)
    }

    /// Whether work is waited for, or would be if it were asked about.
    pub(crate) fn has_waits(&self) -> bool {
        self.streams.values().any(|sharer| sharer.done < sharer.freed)
    }

    fn is_done_for(&self, freed: Freed, stream: StreamId) -> bool {
        let Freed { on, number } = freed;
        if number == 0 || on == Some(stream) {
            return true;
        }
        match on {
            // One that was forgotten has done all its work.
            Some(id) => self.streams.get(&id).is_none_or(|sharer| sharer.has_done(number)),
            None => self.streams.iter().all(|(id, sharer)| *id == stream || sharer.has_done(number)),
        }
    }

    fn note_awaited(&mut self, freed: Freed, stream: StreamId) {
        for (id, sharer) in &self.streams {
            let is_meant = *id != stream && freed.on.is_none_or(|on| on == *id);
            if is_meant && !sharer.has_done(freed.number) {
                let number = freed.number.min(sharer.freed);
                match self.awaited.iter_mut().find(|it| it.0 == *id) {
                    Some(known) => known.1 = known.1.max(number),
                    None => self.awaited.push((*id, number)),
                }
            }
        }
    }

    /// Notes that a request of a stream waits for the work of all others.
    pub(crate) fn await_all(&mut self, stream: StreamId) {
        self.note_awaited(Freed { on: None, number: self.frees }, stream);
    }

    /// Forgets what the last refused request waits for.
    pub(crate) fn forget_awaited(&mut self) {
        self.awaited.clear();
    }

    /// Whether a refused request waits for work of other streams.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// The questions about the work that the last refused request waits for.
    pub(crate) fn ask_awaited(&mut self, marks: &mut Marks, questions: &mut Vec<Question>) {
        for (id, number) in self.awaited.drain(..) {
            let sharer = self.streams.get_mut(&id);
            questions.extend(sharer.and_then(|sharer| sharer.ask(id, number, marks)));
        }
    }

    /// The question about the work behind which some bytes are free.
    pub(crate) fn ask_about(&mut self, freed: Freed, marks: &mut Marks) -> Option<Question> {
        let id = freed.on?;
        self.streams.get_mut(&id)?.ask(id, freed.number, marks)
    }

    /// Marks the present work of all streams that is not known to be done.
    pub(crate) fn mark_all(&mut self, marks: &mut Marks) {
        for (id, sharer) in self.streams.iter_mut().filter(|(_, sharer)| sharer.done < sharer.freed) {
            let is_covered = sharer.marks.back().is_some_and(|(freed, _)| *freed == sharer.freed);
            if sharer.marks.len() == MOST_EVENTS && !is_covered {
                sharer.marks.pop_back().into_iter().for_each(|(_, mark)| marks.forget(mark));
            }
            sharer.mark(*id, marks);
        }
    }

    /// The questions about the newest marks of all streams.
    pub(crate) fn ask_all(&self, marks: &mut Marks, questions: &mut Vec<Question>) {
        let newest = self.streams.values().filter_map(|sharer| sharer.marks.back());
        questions.extend(newest.map(|(_, mark)| marks.ask(mark)));
    }

    pub(crate) fn find_mark(&mut self, number: u64) -> Option<&mut Mark> {
        let marks = self.streams.values_mut().flat_map(|sharer| &mut sharer.marks);
        marks.map(|(_, mark)| mark).find(|mark| mark.number() == number)
    }

    /// Ends the waits for all work whose marks `is_done` names, and for what comes before it on its stream.
    pub(crate) fn end_waits(&mut self, marks: &mut Marks, is_done: impl Fn(u64) -> bool) {
        for sharer in self.streams.values_mut() {
            let Some(last) = sharer.marks.iter().rposition(|(_, mark)| is_done(mark.number())) else {
                continue;
            };
            for (freed, mark) in sharer.marks.drain(..=last) {
                sharer.done = freed;
                marks.forget(mark);
            }
        }
        let Freed { on, number } = self.rest;
        let mut meant = self.streams.iter().filter(|(id, _)| on.is_none_or(|on| on == **id));
        if meant.all(|(_, sharer)| sharer.has_done(number)) {
            self.rest = Freed::default();
        }
    }

    #[cfg(test)]
    pub(crate) fn known_streams(&self) -> usize {
        self.streams.len()
    }

    /// Forgets all frees and marks, as the lane's memory goes back: what is taken next is other memory.
    pub(crate) fn forget(&mut self, marks: &mut Marks) {
        let all = self.streams.values_mut().flat_map(|sharer| sharer.marks.drain(..));
        all.for_each(|(_, mark)| marks.forget(mark));
        self.streams.clear();
        self.awaited.clear();
        (self.rest, self.trial.freed) = (Freed::default(), None);
    }
}

/// What tests say of the trial of streams that share memory.
#[cfg(test)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tried {
    /// It is made.
    Made,
    /// The streams keep up, whatever they do.
    Passed,
}

#[cfg(test)]
thread_local! {
    /// Whether plans of this thread may take no more than the blocks in use, so that streams share memory.
    pub(crate) static SHARING: std::cell::Cell<Option<Tried>> = const { std::cell::Cell::new(None) };
}
