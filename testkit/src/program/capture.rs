//! The captures of a program: which streams and events belong to one, and what a careful caller does then.
//!
//! Captured work does not run: it orders nothing outside of its capture, changes no bytes, and is over when
//! the capture ends. A launch of its graph is other work.

use super::op::{Event, MAX_EVENTS, Stream};
use super::pieces::Piece;

/// A capture, by its number in the program.
pub(super) type CaptureId = u32;

/// The most captures at once.
const MOST: usize = 3;

#[derive(Clone, Debug)]
pub(super) struct Capture {
    pub(super) id: CaptureId,
    pub(super) origin: Stream,
    /// The thread that began it, which ends it.
    pub(super) thread: u8,
    /// Its streams; the first is the origin.
    pub(super) streams: Vec<Stream>,
    /// The ranges that its work uses.
    pub(super) pieces: Vec<Piece>,
}

/// The captures that are under way.
#[derive(Clone, Default, Debug)]
pub(super) struct Captures {
    begun: CaptureId,
    pub(super) live: Vec<Capture>,
    /// The capture in which each event was recorded last.
    events: [Option<CaptureId>; MAX_EVENTS],
}

/// Streams that wait for the legacy default stream, and it for them.
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

    /// Whether work on the stream ends a capture: on the legacy default stream, while a blocking one
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

    /// Whether the stream may wait for the event, which may make it a part of the event's capture.
    /// A stream that is a thread's own joins only captures of its thread, which ends them.
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

    /// Whether the host may ask about the event.
    pub(super) fn can_ask(&self, event: Event) -> bool {
        self.events[usize::from(event)].is_none()
    }

    pub(super) fn note_record(&mut self, event: Event, stream: Stream) {
        self.events[usize::from(event)] = self.of(stream);
    }

    /// Returns whether the stream joins a capture by this wait.
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

    /// Takes out the capture that began on a stream.
    pub(super) fn take(&mut self, origin: Stream) -> Option<Capture> {
        let at = self.live.iter().position(|capture| capture.origin == origin)?;
        Some(self.live.swap_remove(at))
    }
}
