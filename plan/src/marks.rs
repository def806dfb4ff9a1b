//! The work of streams that must be done before memory is free for every stream, and the events after this
//! work.

use millpond_core::driver::Event;
use millpond_core::{StreamId, StreamRef};

/// The work of one stream up to the moment when the mark was made.
#[derive(Debug)]
pub(crate) struct Mark {
    number: u64,
    id: StreamId,
    stream: StreamRef,
    /// The event that was recorded after the work; `None` until recording is possible.
    event: Option<Event>,
}

impl Mark {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

/// A question to the driver about a mark. It is asked without the layer's lock.
#[derive(Debug)]
pub(crate) struct Question {
    number: u64,
    pub(crate) id: StreamId,
    pub(crate) stream: StreamRef,
    /// The event of the mark, or a new event to record.
    pub(crate) event: Option<Event>,
    /// Whether the event belongs to the mark.
    is_marks: bool,
    /// Whether the event was recorded after the mark's work.
    pub(crate) is_recorded: bool,
    /// Whether the work is done.
    pub(crate) is_done: bool,
}

/// Makes marks, and keeps the events that no mark needs any more.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    made: u64,
    spare: Vec<Event>,
}

impl Marks {
    /// Marks the present work of the stream.
    pub(crate) fn mark(&mut self, id: StreamId, stream: StreamRef) -> Mark {
        self.made += 1;
        Mark { number: self.made, id, stream, event: None }
    }

    /// Returns the number of the last mark.
    pub(crate) fn last(&self) -> u64 {
        self.made
    }

    pub(crate) fn ask(&mut self, mark: &Mark) -> Question {
        let Mark { number, id, stream, event } = *mark;
        let is_marks = event.is_some();
        let event = event.or_else(|| self.spare.pop());
        Question { number, id, stream, event, is_marks, is_recorded: is_marks, is_done: false }
    }

    /// Removes a mark.
    pub(crate) fn forget(&mut self, mark: Mark) {
        self.spare.extend(mark.event);
    }

    /// Stores the driver's answer in the mark, if the mark still exists. Returns whether the work of the mark
    /// is done.
    pub(crate) fn answer(&mut self, question: Question, mark: Option<&mut Mark>) -> bool {
        let Question { event, is_marks, is_recorded, is_done, .. } = question;
        let Some(mark) = mark else {
            // If the event belonged to the mark, it is already a spare event.
            self.spare.extend(event.filter(|_| !is_marks));
            return false;
        };
        debug_assert_eq!(mark.number, question.number);
        if !is_marks && is_recorded && mark.event.is_none() {
            mark.event = event;
        } else if !is_marks {
            self.spare.extend(event);
        }
        is_done
    }

    /// Takes all spare events, to destroy them.
    pub(crate) fn take_spare(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.spare)
    }
}

impl Question {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}
