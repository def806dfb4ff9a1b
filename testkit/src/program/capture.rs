//! The captures of a program: which streams and events belong to a capture, and which operations are legal
//! during it.
//!
//! Captured work does not run. It orders no work outside its capture, changes no bytes, and is over when the
//! capture ends. A launch of the captured graph is separate work.

use super::op::{Event, MAX_EVENTS, Stream};
use super::pieces::Piece;

/// A capture's number in the program.
pub(super) type CaptureId = u32;

/// How many captures may run at once.
const MOST: usize = 3;

#[derive(Clone, Debug)]
pub(super) struct Capture {
    pub(super) id: CaptureId,
    pub(super) origin: Stream,
    /// The thread that began the capture and ends it.
    pub(super) thread: u8,
    /// The capture's streams; the first is the origin.
    pub(super) streams: Vec<Stream>,
    /// The ranges that the captured work uses.
    pub(super) pieces: Vec<Piece>,
}

/// The captures that are under way.
#[derive(Clone, Default, Debug)]
pub(super) struct Captures {
    begun: CaptureId,
    pub(super) live: Vec<Capture>,
    /// The capture in which each event was last recorded.
    events: [Option<CaptureId>; MAX_EVENTS],
}

/// Whether the stream waits for the legacy default stream, and the legacy stream for it.
const fn is_blocking(stream: Stream) -> bool {
    stream % 2 == 1
}

impl Captures {
    pub(super) fn of(&self, stream: Stream) -> Option<CaptureId> {
        self.live.iter().find(|capture| capture.streams.contains(&stream)).map(|capture| capture.id)
    }

    /// The streams of the capture that a stream belongs to.
    pub(super) fn streams_with(&self, stream: Stream) -> &[Stream] {
        let capture = self.live.iter().find(|capture| capture.streams.contains(&stream));
        capture.map_or(&[], |capture| &capture.streams)
    }

    pub(super) fn is_capturing(&self, stream: Stream) -> bool {
        !self.live.is_empty() && self.of(stream).is_some()
    }

    /// Whether work on the stream ends a capture, as on the legacy default stream while a blocking stream
    /// captures.
    pub(super) fn forbids(&self, stream: Stream) -> bool {
        let mut streams = self.live.iter().flat_map(|capture| &capture.streams);
        stream == 0 && streams.any(|stream| is_blocking(*stream))
    }

    pub(super) fn can_begin(&self, stream: Stream) -> bool {
        stream > 0 && self.live.len() < MOST && self.of(stream).is_none()
    }

    pub(super) fn can_end(&self, stream: Stream, thread: u8) -> bool {
        self.live.iter().any(|capture| capture.origin == stream && capture.thread == thread)
    }

    /// Whether the stream may wait for the event, which may make it a part of the event's capture. A thread's
    /// own stream joins only captures of its thread, because that thread ends them.
    pub(super) fn can_wait(&self, stream: Stream, owner: Option<u8>, event: Event) -> bool {
        let recorded = self.events[usize::from(event)];
        let is_its = |thread| owner.is_none_or(|owner| owner == thread);
        let lives = |id| self.live.iter().any(|capture| capture.id == id && is_its(capture.thread));
        match (self.of(stream), recorded) {
            (own, recorded) if own == recorded => true,
            (None, Some(id)) => stream > 0 && lives(id),
            _ => false,
        }
    }

    /// Whether the host may query the event.
    pub(super) fn can_ask(&self, event: Event) -> bool {
        self.events[usize::from(event)].is_none()
    }

    pub(super) fn note_record(&mut self, event: Event, stream: Stream) {
        self.events[usize::from(event)] = self.of(stream);
    }

    /// The streams of the capture that the stream joins if it waits for the event.
    pub(super) fn joined_by(&self, stream: Stream, event: Event) -> Option<&[Stream]> {
        let recorded = self.events[usize::from(event)].filter(|_| self.of(stream).is_none())?;
        let joined = self.live.iter().find(|capture| capture.id == recorded);
        joined.map(|capture| capture.streams.as_slice())
    }

    /// Returns whether this wait makes the stream join a capture.
    pub(super) fn note_wait(&mut self, stream: Stream, event: Event) -> bool {
        let recorded = self.events[usize::from(event)];
        if self.of(stream).is_none()
            && let Some(capture) = self.live.iter_mut().find(|capture| Some(capture.id) == recorded)
        {
            capture.streams.push(stream);
            return true;
        }
        false
    }

    pub(super) fn note_begin(&mut self, origin: Stream, thread: u8) {
        self.begun += 1;
        self.live.push(Capture { id: self.begun, origin, thread, streams: vec![origin], pieces: Vec::new() });
    }

    /// Removes the capture that began on a stream, and returns it.
    pub(super) fn take(&mut self, origin: Stream) -> Option<Capture> {
        let at = self.live.iter().position(|capture| capture.origin == origin)?;
        Some(self.live.swap_remove(at))
    }
}
