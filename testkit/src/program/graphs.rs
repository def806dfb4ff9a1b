//! What a program does with captures and with scopes for captured graphs, and the duties of a careful caller.

use millpond_core::driver::CaptureMode;

use super::FailureKind;
use super::broken::{Broken, Checks, unexpected};
use super::execution::Execution;
use super::op::{Block, Event, MAX_EVENTS, MAX_SCOPES, Scope, Stream};
use super::order::{Clock, Point};
use super::scope::{Open, Owned};
use crate::watch;

/// The layer that makes scopes, to the watchdog.
const SCOPES: &str = "capture_scopes";

/// The event that joins streams of a capture at its end.
const JOINS: Event = MAX_EVENTS as Event - 1;

impl Execution {
    pub(super) fn begin_capture(&mut self, stream: Stream, mode: CaptureMode) -> Checks {
        let handle = self.stream(stream)?;
        self.device.begin_capture(handle, mode).map_err(unexpected)?;
        self.captures.note_begin(stream, self.thread);
        Ok(())
    }

    /// Joins the streams of the capture and ends it.
    pub(super) fn end_capture(&mut self, stream: Stream) -> Checks {
        let found = self.captures.live.iter().find(|capture| capture.origin == stream);
        let Some(others) = found.map(|capture| capture.streams[1..].to_vec()) else { return Ok(()) };
        for other in others {
            self.record(JOINS, other)?;
            self.wait(stream, JOINS)?;
        }
        let handle = self.stream(stream)?;
        self.captures.note_end(stream);
        self.summary.captures += 1;
        let ended = self.device.end_capture(handle);
        ended.map_err(|error| Broken::new(FailureKind::Capture, error))
    }

    /// Whether the scope may be opened for the stream: the graphs of a scope never run at once, so the stream
    /// comes after what was captured for it.
    pub(super) fn can_open(&self, scope: Scope, stream: Stream) -> bool {
        let index = usize::from(scope);
        let follows = |owned: &Owned| self.order.is_after(stream, &owned.captured);
        self.config.new_scope.is_some()
            && index < MAX_SCOPES
            && !self.scopes.is_open(stream)
            && self.scopes.alive[index].as_ref().is_none_or(follows)
    }

    pub(super) fn has_scope(&self, scope: Scope) -> bool {
        self.scopes.alive.get(usize::from(scope)).is_some_and(Option::is_some)
    }

    pub(super) fn open_scope(&mut self, scope: Scope, stream: Stream) -> Checks {
        let Some(new_scope) = self.config.new_scope else { return Ok(()) };
        let _watch = watch::call(SCOPES);
        let handle = self.stream(stream)?;
        let slot = &mut self.scopes.alive[usize::from(scope)];
        let owned = match slot {
            Some(owned) => owned,
            None => {
                let made = new_scope(self.resource.inner()).map_err(unexpected)?;
                slot.insert(Owned { scope: made, captured: Clock::default() })
            }
        };
        let opened = owned.scope.open(handle).map_err(unexpected)?;
        self.scopes.open.push(Open { stream, scope, _opened: opened });
        self.summary.scopes += 1;
        Ok(())
    }

    pub(super) fn close_scope(&mut self, stream: Stream) {
        let _watch = watch::call(SCOPES);
        self.scopes.open.retain(|open| open.stream != stream);
    }

    pub(super) fn drop_scope(&mut self, scope: Scope) {
        let _watch = watch::call(SCOPES);
        // Streams that are open in it hold it.
        drop(self.scopes.alive[usize::from(scope)].take());
    }

    /// The scope from which a block for the stream comes.
    pub(super) fn scope_of(&self, stream: Stream) -> Option<Scope> {
        if self.scopes.open.is_empty() {
            return None;
        }
        self.scopes.of(&[stream]).or_else(|| self.scopes.of(self.captures.streams_with(stream)))
    }

    /// Notes captured work on a block of a scope.
    pub(super) fn note_captured(&mut self, block: Block, stream: Stream, point: Point) {
        let scope = self.blocks.get(&block).and_then(|live| live.scope);
        if let Some(owned) = scope.and_then(|scope| self.scopes.alive[usize::from(scope)].as_mut())
            && self.captures.is_capturing(stream)
        {
            owned.captured.add(point);
        }
    }
}
