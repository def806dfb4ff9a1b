//! The graph captures that are under way. Work submitted to a capturing stream takes its place in the order
//! as if it ran; no graph is kept. When the capture ends, its streams forget the captured order, which holds
//! only for the graph.

use std::thread::{self, ThreadId};

use millpond_core::StreamRef;
use millpond_core::driver::{CaptureMode, Event};

use super::answer::Refusal;
use super::capture_rules::{self as rules};
use super::clock::{Clock, Epoch, Slot};

/// The identity of a capture. It stays unique after the capture ends.
pub(crate) type CaptureId = u64;

#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) id: CaptureId,
    pub(crate) by: ThreadId,
    pub(crate) mode: CaptureMode,
    /// The stream on which the capture began.
    pub(crate) origin: Slot,
    /// All streams that belong to the capture.
    pub(crate) streams: Vec<Member>,
    /// The calls that put work into the graph.
    pub(crate) work: Vec<String>,
    /// The call that invalidated the capture.
    pub(crate) broken_by: Option<String>,
}

/// A stream that belongs to a capture.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) slot: Slot,
    /// The stream's tick when it joined.
    pub(crate) tick: u64,
    /// The clock of the stream's work outside the capture.
    pub(crate) clock: Clock,
}

/// The captures that are under way, and the threads' capture modes.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    pub(crate) live: Vec<Capture>,
    pub(crate) begun: CaptureId,
    /// The threads whose mode is not the default.
    pub(crate) modes: Vec<(ThreadId, CaptureMode)>,
}

/// The stream or event that a call refers to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum About {
    Nothing,
    Stream(StreamRef),
    Event(Event),
    /// A stream that waits for an event.
    Wait(StreamRef, Event),
}

impl About {
    pub(crate) const fn stream(self) -> Option<StreamRef> {
        match self {
            Self::Stream(stream) | Self::Wait(stream, _) => Some(stream),
            Self::Nothing | Self::Event(_) => None,
        }
    }
}

impl Capture {
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.streams.iter().map(|member| member.slot)
    }
}

impl Captures {
    /// Whether the stream captures, and its capture contains this epoch.
    pub(crate) fn has_captured(&self, slot: Slot, epoch: Epoch) -> bool {
        let capture = self.live.iter().find(|capture| capture.slots().any(|of| of == slot));
        let mut members = capture.into_iter().flat_map(|capture| &capture.streams);
        members.any(|member| member.slot == epoch.slot() && epoch.tick() > member.tick)
    }

    /// The capture that a stream belongs to.
    pub(crate) fn of(&self, slot: Slot) -> Option<CaptureId> {
        self.live.iter().find(|capture| capture.slots().any(|of| of == slot)).map(|capture| capture.id)
    }

    /// Whether a call has ended the capture, which its program must still end.
    pub(crate) fn is_broken(&self, id: CaptureId) -> bool {
        self.live.iter().any(|capture| capture.id == id && capture.broken_by.is_some())
    }

    /// Sets the calling thread's mode, and returns the previous one.
    pub(crate) fn exchange_mode(&mut self, mode: CaptureMode) -> CaptureMode {
        let me = this_thread();
        let at = self.modes.iter().position(|(thread, _)| *thread == me);
        let previous = at.map(|at| self.modes.swap_remove(at).1);
        if mode != CaptureMode::Global {
            self.modes.push((me, mode));
        }
        previous.unwrap_or_default()
    }

    /// The thread's mode.
    pub(crate) fn mode_of(&self, thread: ThreadId) -> CaptureMode {
        let mode = self.modes.iter().find(|(other, _)| *other == thread).map(|(_, mode)| *mode);
        mode.unwrap_or_default()
    }

    /// Invalidates the captures that `is_meant` selects; returns whether there were any.
    pub(crate) fn break_where(&mut self, call: &str, code: i32, is_meant: impl Fn(&Capture) -> bool) -> bool {
        let mut any = false;
        for capture in self.live.iter_mut().filter(|capture| is_meant(capture)) {
            capture.broken_by.get_or_insert_with(|| format!("{call} of {:?}: {code}", this_thread()));
            any = true;
        }
        any
    }

    /// Records a call that puts work into a graph. An event is not work.
    pub(crate) fn add_work(&mut self, id: Option<CaptureId>, call: &str) {
        let capture = self.live.iter_mut().find(|capture| Some(capture.id) == id);
        if let Some(capture) = capture.filter(|_| call != "cuEventRecord") {
            capture.work.push(call.to_owned());
        }
    }

    /// Removes all captures, because the context was reset.
    pub(crate) fn clear(&mut self) {
        self.live.clear();
    }

    /// Removes a destroyed stream, and its capture if it began there.
    pub(crate) fn forget(&mut self, slot: Slot, call: &str) {
        self.break_where(call, rules::FORBIDDEN, |capture| capture.slots().any(|of| of == slot));
        self.live.retain(|capture| capture.origin != slot);
        self.live.iter_mut().for_each(|capture| capture.streams.retain(|member| member.slot != slot));
    }
}

/// The calling thread's id, cached in a thread local because [`thread::current`] counts its references.
pub(crate) fn this_thread() -> ThreadId {
    thread_local!(static ID: ThreadId = thread::current().id());
    ID.with(|id| *id)
}

pub(crate) fn refusal(code: i32, call: &str) -> Refusal {
    Refusal::new(code, format!("{call} is refused while a graph is captured"))
}
